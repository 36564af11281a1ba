"""Promises of recorded precision: what counts as said, and by whom."""

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
def test_arguments_that_say_it(words: str, expected: str | None) -> None:
    """Promise: names of common launchers are understood; a number elsewhere is no precision."""
    found = recorded_precision(RunRecord(run_id="a", command=["python", *words.split()]))
    assert (found.name if found else None) == expected


def test_a_training_loop_knows_better_than_its_command() -> None:
    """Promise: what an integration recorded wins over arguments."""
    record = RunRecord(run_id="a", command=["python", "--precision", "32"])
    found = recorded_precision(record, [{"type": "precision", "value": "bf16-mixed"}])
    assert found is not None
    assert (found.name, found.said_by) == ("bf16", "the training loop")
