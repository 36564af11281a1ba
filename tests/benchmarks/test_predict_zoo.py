"""Promises of the zoo: the rebuilt networks are the measured ones."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from predict_zoo import ZOO, rows  # the benchmarks are programs outside the package

HUGGING_FACE = {"albert", "distilbert", "tinyllama", "gpt2"}


@pytest.mark.parametrize("name", ZOO)
def test_a_rebuilt_network_has_the_parameters_that_were_measured(name: str) -> None:
    """Promise: the measured number of parameters, and a loss of its own or one output per
    sample.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    entry = ZOO[name]
    if entry.group in HUGGING_FACE:
        pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.device("meta"):
        model, inputs = entry.factory(), entry.inputs(2)
        output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
        loss = output.loss if entry.loss is None else output
    assert sum(p.numel() for p in model.parameters()) == entry.parameters
    assert loss.shape == () if entry.loss is None else loss.shape[0] == 2


def test_rows_are_read_in_si_units(tmp_path: Path) -> None:
    """Promise: a line of the table becomes a row with bytes, watts and joules."""
    raw = {
        "model": "gpt2@1024", "batch": 2, "precision": "bf16", "optimizer": "adamw",
        "step_s": 0.03, "energy_j_per_step": 9.0, "avg_power_w": 300.0, "peak_mem_gib": 2.0,
        "sm_clock_mhz": 1980.0, "params": 124439808,
    }  # fmt: skip
    (tmp_path / "steps.jsonl").write_text(json.dumps(raw) + "\n")
    (row,) = rows(tmp_path / "steps.jsonl")
    assert (row.power_w, row.energy_j, row.peak_bytes) == (300.0, 9.0, 2 * 2**30)
