"""Promises of a campaign's summary: means, deviations, paired differences, and what went wrong."""

from typing import Any

import pytest

from wattloop.schedule.campaigns.summary import PER_CELL, by_variant, per_cell, summary_of


def cell(energy: float, **others: Any) -> dict[str, Any]:
    """Return the result of a simulation, as far as it matters here."""
    return {"energy_kwh": energy, "miss_rate": None, "utilisation": {"a100": 0.5}, **others}


def test_differences_are_paired_seed_by_seed() -> None:
    """1 kWh less on each seed is certain, though the seeds themselves differ by ten."""
    found = summary_of(
        {
            **{("fifo", seed): cell(10.0 + 10 * seed) for seed in range(3)},
            **{("zeus", seed): cell(9.0 + 10 * seed) for seed in range(3)},
        }
    )
    spread = found.spreads["fifo"]["energy_kwh"]
    assert spread is not None and (spread.mean, spread.sd) == (20.0, pytest.approx(10.0))
    difference = found.differences["zeus"]["energy_kwh"]
    assert difference is not None
    assert (difference.mean, difference.half_width) == (-1.0, pytest.approx(0.0))
    assert list(found.differences) == ["zeus"]


def test_a_figure_without_values_is_unknown_and_not_zero() -> None:
    """Without deadlines the miss rate is missing; utilisation is given by type."""
    found = summary_of({("fifo", 0): cell(1.0)})
    assert found.spreads["fifo"].get("miss_rate") is None
    assert found.spreads["fifo"]["utilisation.a100"] is not None
    assert found.spreads["fifo"]["energy_kwh"].sd is None  # type: ignore[union-attr] # it is there


def test_what_went_wrong_is_counted_and_left_out_of_means() -> None:
    """Failures by cell, refusals by policy, jobs that never run by reason."""
    found = summary_of(
        {
            ("fifo", 0): cell(1.0, never={"too large": 2}, refusals=0, refused=[]),
            ("fifo", 1): {"error": "KeyError: 'x'"},
            ("zeus", 0): cell(3.0, never={"too large": 5}, refusals=4, refused=["at 0 s: no"]),
            ("zeus", 1): cell(
                5.0, refusals=1, refused=["at 9 s: never"], left=["a: impossible", "b: starved"]
            ),
        }
    )
    assert found.failed == {("fifo", 1): "KeyError: 'x'"}
    assert found.never == {"too large": 5}
    assert found.left == {"zeus": (2, "b: starved")}
    assert found.refused == {"zeus": (5, "at 0 s: no")}
    difference = found.differences["zeus"]["energy_kwh"]
    assert difference is not None and (difference.mean, difference.pairs) == (2.0, 1)


def test_notes_are_those_of_all_seeds() -> None:
    """A note on one seed's random draws does not appear; sources appear once."""
    cells = {
        ("fifo", seed): cell(1.0, notes=["read as philly", f"seed {seed}"], sources=["kernels"])
        for seed in (0, 1)
    }
    assert summary_of(cells).notes == ("read as philly", "time and power: kernels")


def test_every_row_begins_with_the_fields_that_were_promised() -> None:
    """They are in their order, with null for missing ones, and other fields follow."""
    outcomes = {("", "fifo", 7): cell(1.0), ("b", "zeus", 7): cell(2.0)}
    first, second = per_cell(outcomes)
    assert list(first)[: 2 + len(PER_CELL)] == ["policy", "seed", *PER_CELL]
    assert (first["jobs_done"], first["energy_kwh"]) == (None, 1.0)
    assert second["variant"] == "b"
    assert {name: list(found) for name, found in by_variant(outcomes).items()} == {
        "": [("fifo", 7)],
        "b": [("zeus", 7)],
    }
