"""Promises of the bounds of a cap finder under noise: computed as the page describes."""

from pathlib import Path

import pytest

from wattloop.cap.evaluation import MeasuredCurve, replays

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CAPS_W = (100.0, 150.0, 200.0, 250.0)


@pytest.fixture
def cap_bounds(monkeypatch):
    """Load the benchmark's module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cap_bounds

    return cap_bounds


def curve(name: str, time_s: tuple[float, ...], power_w: tuple[float, ...]) -> MeasuredCurve:
    return MeasuredCurve(("d", name, "32", "adam"), CAPS_W, time_s, power_w)


KNOWN = [
    curve("flat in time", (100.0, 99.0, 98.0, 97.0), (99.0, 148.0, 190.0, 220.0)),
    curve("steep", (400.0, 220.0, 140.0, 100.0), (100.0, 140.0, 170.0, 200.0)),
    curve("between", (180.0, 120.0, 105.0, 100.0), (98.0, 145.0, 185.0, 240.0)),
]


def test_known_curves_are_identified(cap_bounds) -> None:
    """Promise: with hardly any noise the known curve is identified, and its best cap chosen."""

    def make(at_hand: MeasuredCurve):
        return cap_bounds.KnowsTheCurves(KNOWN, at_hand.caps_w, "edp", 2.0, noise=0.01)

    done = list(replays(KNOWN, "edp", 2.0, 0.01, seeds=3, make=make))
    assert all(replayed.regret <= 0.02 for replayed in done)
    assert {replayed.probes for replayed in done} == {4}


def test_every_cap_is_read_once(cap_bounds) -> None:
    """Promise: the exhaustive search reads each cap once, the reference among them."""
    finder = cap_bounds.EveryCap(CAPS_W, "edp", 2.0, noise=0.05)
    while (cap_w := finder.ask()) is not None:
        finder.tell(cap_w, 100.0, 100.0 * cap_w)
    assert sorted(probe.cap_w for probe in finder.probes) == list(CAPS_W)


def test_curves_of_the_family_have_the_measured_power(cap_bounds) -> None:
    """Promise: drawn curves have the caps and nearly the highest power of their models."""
    made = cap_bounds.family_curves(KNOWN, each=3)
    assert len(made) == 9
    for number, one in enumerate(made):
        model = KNOWN[number // 3]
        assert one.responsive and one.caps_w == model.caps_w
        assert one.power_w[-1] == pytest.approx(model.power_w[-1], rel=0.01)


def test_the_table_has_a_row_per_metric(cap_bounds) -> None:
    """Promise: every share is a fraction of percent; better-informed methods stand next to ours."""
    table = cap_bounds.bounds_table({"x": KNOWN}, {"edp": ("edp", 2.0)}, 0.05, seeds=1, each=1)
    (row,) = table.rows
    assert row[0] == "edp" and len(row) == len(table.header)
    assert all(0 <= share <= 100 for share in row[1:])
