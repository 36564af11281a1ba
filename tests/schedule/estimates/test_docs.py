"""Promises of docs/oracles.md: its examples work."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.estimates.cap_curves import load_cap_curves
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.estimates.table import TableOracle
from wattloop.schedule.estimates.throughputs import load_throughputs
from wattloop.schedule.jobs import JobKind

PAGE = (Path(__file__).parents[3] / "docs" / "oracles.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_tables_of_the_page_are_read(tmp_path: Path) -> None:
    """An operator who copies both has an oracle."""
    names = []
    for number, text in enumerate(_blocks("csv")):
        path = tmp_path / f"{number}.csv"
        path.write_text(text)
        names.append(str(path))
    types = (GpuType("v100", gpu_named("v100-sxm-16"), 40.0),)
    cluster = Cluster("mine", types, (NodeGroup("n", "v100", 2, 4),))
    oracle = TableOracle(cluster, load_throughputs(names[:1]), load_cap_curves(names[1:]))
    found = oracle.options(JobKind("my-net", "fp16", (1, 2, 4), (64,), (1.0, 0.5), may_spread=True))
    assert 1 / found.sample_s[0] == pytest.approx(410)
    assert set(found.gpus[found.spread].tolist()) == {4}
    assert np.all(found.power_w <= found.gpus * found.cap_w)


def test_the_section_of_the_page_is_valid() -> None:
    """The YAML is valid in a scenario, and the table of fields is complete."""
    (text,) = _blocks("yaml")
    assert OracleSpec.model_validate(yaml.safe_load(text)["oracle"]).noise == pytest.approx(0.1)
    for name in OracleSpec.model_fields:
        assert f"| `{name}` |" in PAGE


def test_the_python_of_the_page_runs() -> None:
    """Two types, two counts, two limits."""
    (text,) = _blocks("python")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "docs/oracles.md", "exec"), {})
    assert len(out.getvalue().splitlines()) == 8
