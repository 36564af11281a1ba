"""Promises of the cost of noise in probes: counted as the page describes."""

from pathlib import Path
from statistics import fmean

import pytest
from tests.support.virtual_caps import virtual_curve

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CAPS_W = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
CURVES = tuple(virtual_curve("v100", intensity, CAPS_W) for intensity in (150.0, 600.0))


@pytest.fixture
def cap_noise(monkeypatch):
    """Load the benchmark's module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cap_noise

    return cap_noise


def test_the_table_has_the_shipped_finder_and_four_probes_and_every_cap(cap_noise) -> None:
    """Promise: a row per noise and metric; the same readings for both finders up to 2% of noise,
    more probes than four above, and one per cap for the exhaustive search.
    """
    table = cap_noise.probes_table(CURVES, {"edp": ("edp", 2.0)}, (0.02, 0.05), seeds=3)
    little, much = table.rows
    assert [little[0], much[0]] == ["2%", "5%"] and little[1] == much[1] == "edp"
    assert little[2:4] == little[6:8] and little[5] <= 4
    assert 4 < much[5] <= len(CAPS_W) and float(much[3]) > float(much[7])
    assert little[9] == much[9] == f"{len(CAPS_W):.1f}"


def test_a_finder_limited_to_four_probes_makes_four(cap_noise) -> None:
    """Promise: the column of four probes is the result of `--probes 4`."""
    held = cap_noise.searched(CURVES, "edp", 2.0, 0.1, 3, 4)
    assert max(replayed.probes for replayed in held) <= 4
    assert cap_noise.share(held) == pytest.approx(
        100 * fmean(replayed.regret <= 0.02 for replayed in held)
    )
