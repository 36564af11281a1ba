"""Promises of recorded precision: which statements count, and from which source."""

import pytest

from wattloop.advise.facts import recorded_precision
from wattloop.store.runs import RunRecord


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--precision 32", "fp32"),
        ("--precision=bf16-mixed", "bf16"),
        ("trainer.precision=16-mixed", "fp16"),
        ("--torch_dtype torch.float32", "fp32"),
        ("--mixed_precision no", "fp32"),
        ("--no-amp", "fp32"),
        ("--fp16", "fp16"),
        ("--bf16 false", None),
        ("--amp", None),
        ("--epochs 32 --precision", None),
        ("--precision 32 --bf16", None),
        ("", None),
    ],
)
def test_precision_from_arguments(words: str, expected: str | None) -> None:
    """Promise: arguments of common launchers are understood; a number elsewhere is not a
    precision.
    """
    found = recorded_precision(RunRecord(run_id="a", command=["python", *words.split()]))
    assert (found.name if found else None) == expected


def test_a_training_loop_takes_precedence_over_its_command() -> None:
    """Promise: a record of an integration takes precedence over arguments."""
    record = RunRecord(run_id="a", command=["python", "--precision", "32"])
    found = recorded_precision(record, [{"type": "precision", "value": "bf16-mixed"}])
    assert found is not None
    assert (found.name, found.said_by) == ("bf16", "the training loop")
