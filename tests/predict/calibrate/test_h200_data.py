"""Promises of the samples of the H200 that the repository holds."""

from pathlib import Path

import pytest

from wattloop.predict.calibrate.sample_file import records
from wattloop.predict.calibrate.suite import cases

DATA = Path(__file__).parents[3] / "benchmarks" / "data" / "h200"


@pytest.fixture(scope="module")
def rows():
    return [row for path in sorted(DATA.glob("suite_*.jsonl.gz")) for row in records(path)]


def test_every_sample_is_a_case_of_the_suite(rows):
    """What was measured can be measured again: the suite still has each case."""
    sections = ("kernels", "host", "power", "steps", "waiting")
    known = {case.key for section in sections for case in cases(section)}
    taken = {row["case"] for row in rows if row["record"] in ("kernel", "host", "power", "step")}
    assert taken <= known
    assert len(taken) > 11_000


def test_samples_name_their_machine(rows):
    """A calibration holds for a GPU, a driver and a version of torch."""
    machines = [row for row in rows if row["record"] == "machine"]
    assert {row["gpu"] for row in machines} == {"NVIDIA H200"}
    assert all(row["driver"] and row["torch"] and row["cudnn"] for row in machines)


def test_kernels_were_timed_steadily(rows):
    """Rounds of one kernel differ by less than 2% in nine of ten cases."""
    spreads = sorted(row["spread"] for row in rows if row["record"] == "kernel")
    assert spreads[int(0.9 * len(spreads))] < 0.02


def test_the_newest_steps_have_the_hosts_own_time(rows):
    """Every phase's dispatch, and probes before and after, for all of `waiting` and the last 60."""
    asked = [row for row in rows if row["record"] == "step" and row.get("host_s")]
    assert len(asked) == 126
    assert {tuple(row["host_s"]) for row in asked} == {("forward", "backward", "optimizer")}
    assert all(len(row["probes"]) == 2 and len(row["marks_s"]) >= 3 for row in asked)
    rounds = [row["round"] for row in asked if row["case"].startswith("waiting")]
    assert sorted(rounds) == [1] * 22 + [2] * 22 + [3] * 22
