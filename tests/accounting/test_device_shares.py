"""Promises of the division of a card's energy among its users."""

import json
import math
import random
from collections.abc import Hashable

import pytest

from wattloop.accounting.device_shares import (
    DeviceDivision,
    RunningDivision,
    UseInterval,
    energies_j,
    fit_power,
    merged,
)

COSTS_W = {"gemm": 600.0, "copy": 150.0, "lookup": 300.0, "small": 450.0}
IDLE_W = 80.0


def _intervals(seed: int = 1, looks: int = 200) -> tuple[list[UseInterval], dict[str, float]]:
    """Return intervals of four users of different cost with varying loads, and each user's true
    energy.
    """
    dice = random.Random(seed)
    found: list[UseInterval] = []
    true_j = dict.fromkeys(COSTS_W, 0.0)
    for _ in range(looks):
        use: dict[Hashable, float | None] = {
            user: round(dice.choice([0.0, dice.uniform(0.05, 0.25)]), 2) for user in COSTS_W
        }
        watts = {user: COSTS_W[user] * (use[user] or 0.0) for user in COSTS_W}
        for user in COSTS_W:
            true_j[user] += 0.5 * (watts[user] + IDLE_W / len(COSTS_W))
        memory: dict[Hashable, float] = {user: 1e9 * (1 + i) for i, user in enumerate(COSTS_W)}
        found.append(UseInterval(0.5, 0.5 * (IDLE_W + sum(watts.values())), use, memory))
    return found, true_j


def test_users_of_different_cost_are_distinguished() -> None:
    """Promise: each part is within 10% of the truth, its interval covers the truth, and the sum
    is exact.
    """
    intervals, true_j = _intervals()
    parts = DeviceDivision(intervals, fit_power(intervals, limit_w=700.0)).parts()
    for user, energy_j in true_j.items():
        assert parts[user].energy_j == pytest.approx(energy_j, rel=0.1)
        assert abs(parts[user].energy_j - energy_j) <= parts[user].uncertainty_j
    whole_j = math.fsum(each.energy_j for each in intervals)
    assert math.fsum(part.energy_j for part in parts.values()) == whole_j


def test_a_card_at_its_limit_does_not_hide_what_programs_cost() -> None:
    """Promise: intervals in which the card lowers its clock only give a lower bound of the sum."""
    alone = [
        UseInterval(0.5, 0.5 * (IDLE_W + COSTS_W[user] * 0.5), {user: 0.5})
        for user in ("gemm", "copy")
        for _ in range(20)
    ]
    both: dict[Hashable, float | None] = {"gemm": 0.5, "copy": 0.5}
    limit_w = 300.0  # the sum would be 455 W
    held = [UseInterval(0.5, 0.5 * limit_w, both)] * 200
    parts = DeviceDivision(held, fit_power([*alone, *held], idle_w=IDLE_W, limit_w=limit_w)).parts()
    dynamic_j = 100 * (limit_w - IDLE_W)
    assert parts["gemm"].energy_j == pytest.approx(100 * IDLE_W / 2 + dynamic_j * 0.8, rel=0.03)
    low = [UseInterval(0.5, 0.5 * limit_w, {"gemm": 0.1})] * 50
    fit = fit_power([*low, *held], idle_w=IDLE_W, limit_w=limit_w)
    assert fit is not None
    assert (
        fit.idle_w + 0.1 * fit.cost_w("gemm") >= 0.9 * limit_w
    )  # a cost that is too low is raised


def test_unknown_idle_power_is_learned_while_the_card_has_no_user() -> None:
    """Promise: a time without users gives an unknown idle power; a known figure stays."""
    use: dict[Hashable, float | None] = {"large": 0.25, "small": 0.03}
    busy = [UseInterval(0.5, 0.5 * (IDLE_W + 300.0 * 0.28), use)] * 200
    quiet = [UseInterval(0.5, 0.5 * IDLE_W, {})] * 20
    parts = DeviceDivision(busy, fit_power([*quiet, *busy], limit_w=400.0)).parts()
    true_j = 100.0 * (IDLE_W / 2 + 300.0 * 0.03)
    assert parts["small"].energy_j == pytest.approx(true_j, rel=0.02)
    known = fit_power([*quiet, *busy], idle_w=1.2 * IDLE_W, limit_w=400.0)
    assert known == fit_power(busy, idle_w=1.2 * IDLE_W, limit_w=400.0)


def test_instances_pay_idle_power_by_their_slices() -> None:
    idle = UseInterval(1.0, 70.0, {"big": 0.0, "small": 0.0}, {}, {"big": 6.0, "small": 1.0})
    assert idle.idle_part(["big"]) == pytest.approx(6 / 7)
    parts = DeviceDivision([idle] * 10, fit_power([idle] * 10, idle_w=70.0)).parts()
    assert parts["small"].energy_j == pytest.approx(100.0, rel=0.05)


def test_a_constant_load_is_divided_by_utilisation_with_a_wide_interval() -> None:
    """Promise: where the data cannot distinguish users, the stated error covers different costs."""
    use: dict[Hashable, float | None] = {"gemm": 0.2, "copy": 0.2}
    power_w = IDLE_W + 0.2 * (COSTS_W["gemm"] + COSTS_W["copy"])
    intervals = [UseInterval(0.5, 0.5 * power_w, use)] * 100
    parts = DeviceDivision(intervals, fit_power(intervals, idle_w=IDLE_W)).parts()
    assert parts["gemm"].energy_j == pytest.approx(parts["copy"].energy_j)
    true_j = 50.0 * (IDLE_W / 2 + 0.2 * COSTS_W["gemm"])
    assert abs(parts["gemm"].energy_j - true_j) <= parts["gemm"].uncertainty_j


def test_one_user_alone_has_all_without_doubt() -> None:
    intervals = [UseInterval(1.0, 300.0, {"only": 0.5})] * 20
    part = DeviceDivision(intervals, fit_power(intervals, limit_w=700.0)).parts()["only"]
    assert part.energy_j == pytest.approx(6_000.0)
    assert part.uncertainty_j == pytest.approx(0.0, abs=1e-6)


def test_unknown_use_is_divided_by_memory_and_energy_without_users_belongs_to_none() -> None:
    """Promise: memory x time decides where utilisation is unknown; no energy is lost or
    invented.
    """
    unknown: dict[Hashable, float | None] = {"a": None, "b": None}
    intervals = [UseInterval(1.0, 100.0, unknown, {"a": 3e9, "b": 1e9}), UseInterval(1.0, 80.0, {})]
    fit = fit_power(intervals, limit_w=700.0)
    assert fit is None
    parts = DeviceDivision(intervals, fit).parts()
    assert parts["a"].energy_j == pytest.approx(75.0)
    assert parts["b"].energy_j == pytest.approx(25.0)
    assert parts[None].energy_j == 80.0
    assert parts["a"].uncertainty_j == pytest.approx(75.0 * 25.0 / 100.0)


def test_idle_users_divide_an_idle_card_evenly() -> None:
    intervals = [UseInterval(1.0, 80.0, {"a": 0.0, "b": 0.0})] * 4
    parts = DeviceDivision(intervals, fit_power(intervals, limit_w=700.0)).parts()
    assert parts["a"].energy_j == pytest.approx(160.0)


def test_more_users_than_are_fitted_are_divided_too() -> None:
    """Promise: a card with hundreds of processes is divided in a bounded time."""
    users: dict[Hashable, float | None] = {f"p{i}": 0.01 for i in range(200)}
    intervals = [UseInterval(0.5, 150.0, users)] * 240
    parts = DeviceDivision(intervals, fit_power(intervals, limit_w=700.0)).parts()
    assert math.fsum(p.energy_j for p in parts.values()) == pytest.approx(36_000.0, rel=1e-12)


@pytest.mark.parametrize("power_w", [0.0, 1e-9, 5_000.0])
def test_odd_powers_divide_without_a_fault(power_w: float) -> None:
    intervals = [UseInterval(1.0, power_w, {"a": 0.3, "b": 1.0}), UseInterval(0.0, 5.0, {"a": 0.1})]
    parts = DeviceDivision(intervals, fit_power(intervals)).parts()
    assert math.fsum(part.energy_j for part in parts.values()) == power_w
    assert all(part.energy_j >= 0 for part in parts.values())


@pytest.mark.parametrize("seed", range(5))
def test_steps_add_up_and_converge_to_the_whole_division(seed: int) -> None:
    """Promise: each step's parts are its energy and none is negative; in the end each user has what
    the whole time tells, though the first steps could not tell it. A state continues the division.
    """
    intervals, true_j = _intervals(seed, looks=240)
    dice = random.Random(seed)
    first = [UseInterval(0.5, 0.5 * (IDLE_W + 170.0), {"gemm": 0.2, "copy": 1 / 3})] * 60
    true_j["gemm"] += 30 * (IDLE_W / 2 + 120.0)
    true_j["copy"] += 30 * (IDLE_W / 2 + 50.0)
    given = dict.fromkeys(true_j, 0.0)
    division = RunningDivision(limit_w=700.0)
    for each in [*first, *intervals]:
        if dice.random() < 0.05:
            state = json.loads(json.dumps(division.to_state()))
            division = RunningDivision(limit_w=700.0, state=state)
        parts = division.divide(each)
        assert math.fsum(p.energy_j for p in parts.values()) == pytest.approx(each.energy_j)
        assert min(part.energy_j for part in parts.values()) >= 0
        for user, part in parts.items():
            given[str(user)] += part.energy_j
    assert division.is_shared
    assert given == pytest.approx(true_j, rel=0.1)


def test_a_long_time_is_remembered_coarsely_and_then_forgotten() -> None:
    division = RunningDivision(idle_w=IDLE_W)
    for step in range(3_000):
        both = {"a": 0.2, "b": 0.1} if step < 500 else {"a": 0.2}
        division.divide(UseInterval(1.0, 200.0, both))
        assert len(division.to_state()["steps"]) <= 128
    assert not division.is_shared


@pytest.mark.parametrize("first", ["cheap", "costly"])
def test_a_user_that_has_ended_is_corrected_by_what_the_device_draws_without_it(first: str) -> None:
    """Promise: constant loads that begin together are told apart when one ends. Both get what they
    used, parts of each step add up to it, no running user loses a joule, also across restarts.
    """
    costs_w = {"cheap": 200.0, "costly": 800.0}
    given, closed = dict.fromkeys(costs_w, 0.0), set[Hashable]()
    division = RunningDivision(idle_w=IDLE_W)
    for second in range(600):
        if second % 50 == 49:
            state = json.loads(json.dumps(division.to_state()))
            division = RunningDivision(idle_w=IDLE_W, state=state)
        use = {user: 0.2 for user in costs_w if second < 300 or user != first}
        power_w = IDLE_W + sum(0.2 * costs_w[user] for user in use)
        ended = division.users - use.keys() - closed
        parts = division.divide(UseInterval(1.0, power_w, use), ended)
        assert math.fsum(part.energy_j for part in parts.values()) == pytest.approx(power_w)
        assert all(parts[user].energy_j >= 0 for user in use)
        assert all(parts[user].energy_j <= 1.6 * power_w for user in use)
        for user, part in parts.items():
            given[str(user)] += part.energy_j
        if second == 299:
            assert given["cheap"] > 1.5 * 300 * (IDLE_W / 2 + 0.2 * 200)
        for user in filter(division.is_settled, ended):
            division.close(user)
            closed.add(user)
    assert closed == {first}
    (other,) = costs_w.keys() - {first}
    true_j = {user: 300 * (IDLE_W / 2 + 0.2 * cost_w) for user, cost_w in costs_w.items()}
    true_j[other] += 300 * (IDLE_W + 0.2 * costs_w[other])
    assert given == pytest.approx(true_j, rel=0.03)


def test_steps_of_no_length_divide_and_are_remembered() -> None:
    """A job that begins within a microsecond of a reading; the state, too, may hold such steps."""
    division = RunningDivision(idle_w=IDLE_W)
    for second in range(400):
        for length_s, use in ((1.0, {"a": 0.2, "b": 0.1}), (1e-8, {}), (0.0, {"a": 0.2})):
            step = UseInterval(length_s, 200.0 * length_s, dict(use))
            parts = division.divide(step, {"b"} - use.keys())
            given_j = math.fsum(part.energy_j for part in parts.values())
            assert given_j == pytest.approx(step.energy_j if use else 0.0)
        if second % 20 == 0:
            state = json.loads(json.dumps(division.to_state()))
            division = RunningDivision(idle_w=IDLE_W, state=state)


def test_users_that_come_and_go_stay_apart_in_what_is_remembered() -> None:
    """Promise: minutes later a fit still sees the seconds in which a user was alone."""
    division = RunningDivision(idle_w=IDLE_W)
    for second in range(900):
        use = {"a": 0.2} if second < 10 else {"a": 0.2, "b": 0.2}
        division.divide(UseInterval(1.0, IDLE_W + 40.0 + 160.0 * ("b" in use), use))
    alone = [row for row in division.to_state()["steps"] if row[2].keys() == {"a"}]
    assert sum(row[0] for row in alone) == pytest.approx(10.0)
    assert sum(row[1] for row in alone) == pytest.approx(10 * (IDLE_W + 40.0))


def test_idle_power_seen_earlier_replaces_the_guess() -> None:
    """Promise: the power that this card drew without users is used where its table entry is
    missing.
    """
    use: dict[Hashable, float | None] = {"large": 0.25, "small": 0.03}
    busy = [UseInterval(0.5, 0.5 * (IDLE_W + 300.0 * 0.28), use)] * 200
    true_j = 100.0 * (IDLE_W / 2 + 300.0 * 0.03)
    errors = []
    for seen_w in (None, IDLE_W):
        fit = fit_power(busy, seen_w=seen_w, limit_w=400.0)
        errors.append(abs(DeviceDivision(busy, fit).part(["small"]).energy_j - true_j) / true_j)
    assert errors[0] > 0.25
    assert errors[1] < 0.02
    known = fit_power(busy, idle_w=1.2 * IDLE_W, seen_w=IDLE_W, limit_w=400.0)
    assert known == fit_power(busy, idle_w=1.2 * IDLE_W, limit_w=400.0)


def test_what_is_booked_leaves_the_rest_of_an_interval() -> None:
    each = UseInterval(1.0, 100.0, {"a": 0.2, "b": 0.2, "c": None}, {"b": 3.0, "c": 1.0})
    left = each.without({"a": 30.0})
    assert (left.energy_j, left.use, left.idle_share) == (70.0, {"b": 0.2, "c": None}, 2 / 3)
    assert energies_j(left, None) == pytest.approx({"b": 52.5, "c": 17.5})
    assert each.without({}) == each
    both = merged([each, UseInterval(3.0, 60.0, {"b": 0.4})])
    assert both.duration_s == 4.0
    assert both.use == {"a": pytest.approx(0.05), "b": pytest.approx(0.35), "c": None}
    assert both.weight == {"a": 0.0, "b": 0.75, "c": 0.25}
