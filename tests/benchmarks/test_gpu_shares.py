"""Promises of `benchmarks/gpu_shares.py`: it repeats, and its page has four processes."""

from pathlib import Path

from tests.benchmarks.running import quick_bars

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu_shares.md"


def test_shares_of_four_processes_are_within_their_bars(tmp_path: Path) -> None:
    """Promise: the error is below 10% where loads change or programs are alike, and below
    utilisation's.
    """
    bars = quick_bars("gpu_shares", tmp_path)
    for family in ("same program", "loads vary", "come and go"):
        error = bars[f"error, {family}"]
        assert error["value"] <= 10.0
        assert error["value"] < error["baselines"]["equal"]
        assert bars[f"sum, {family}"]["value"] == 0.0
    assert (
        bars["error, loads vary"]["value"] < bars["error, loads vary"]["baselines"]["utilisation"]
    )


def test_the_page_has_every_family() -> None:
    page = PAGE.read_text()
    for family in ("same program", "loads vary", "come and go", "constant"):
        assert f"error, {family}" in page
