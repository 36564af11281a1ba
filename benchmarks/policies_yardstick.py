"""A nearly optimal online policy for the thesis's jobs, by value iteration.

A node of eight H100 and one of eight A100 are two servers; three kinds of jobs arrive at random.
The state is the job on each node with its remaining quarters, and the number of waiting jobs of
each kind. The policy minimises power plus h times the number of jobs in the system, so each h gives
one trade of energy for completion time. It chooses caps, starts, and waits; with `move_s` it may
also move running jobs between the nodes, for that time each. It knows true times and powers (no
errors of estimates), the rate of arrivals, and no deadlines, which is an easier problem than Helios
has. It is then simulated on the arrivals of a seed, with the time of waking up.
"""

# ruff: noqa: PLR0912, PLR0915, PLR0917 - numba compiles functions of arrays
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from wattloop.schedule.scenarios.file import load_scenario

__all__ = ["Yardstick", "yardstick"]

PARTS, MOST_WAITING, KINDS, CAPS = 4, 13, 3, 6
SLEEP_W, WAKE_S, AWAKE_S = 5.0, 10.0, 15.0
"""States of the cluster `thesis-sleep`: power asleep, time to wake, idle time before sleep."""
HORIZON_S, GPUS = 36_000.0, 16
ITERATIONS = 20_000
LOST_J = 5e6
"""Cost of a job that arrives while as many wait as the model has room for: it is lost."""


class Yardstick(NamedTuple):
    """Means over seeds."""

    energy_kwh: float
    jct_mean_s: float
    jobs_done: float
    moves: float


class _Model(NamedTuple):
    """Times and powers above sleep (node, kind, cap), and the waiting lines as numbers."""

    time_s: Any
    power_w: Any
    idle_w: Any
    number: Any
    more: Any
    less: Any
    length: Any


def yardstick(
    rate: float, second_w: float, seeds: Sequence[int], move_s: float | None = None
) -> Yardstick:
    """Compute the policy of one price of a job's second and simulate it.

    Args:
        rate: arrivals per second.
        second_w: h.
        seeds: of the scenario `thesis-sleep`.
        move_s: time of a move between nodes; None for no moves.
    """
    model = _model()
    moves, cost_s = move_s is not None, move_s or 0.0
    values = _iterated(
        model.time_s, model.power_w, model.idle_w, model.more, model.less, model.length,
        rate, second_w, moves, cost_s,
    )  # fmt: skip
    rows = []
    for seed in seeds:
        arrival_s, kind = _arrivals(rate, seed)
        rows.append(
            _simulated(
                values, arrival_s, kind, model.time_s, model.power_w, model.idle_w, model.number,
                model.less, second_w, moves, cost_s,
            )
        )  # fmt: skip
    joules, jct_s, done, moved = np.mean(np.array(rows), axis=0)
    asleep_kwh = GPUS * SLEEP_W * HORIZON_S / 3.6e6
    return Yardstick(joules / 3.6e6 + asleep_kwh, jct_s, done, moved)


@lru_cache(maxsize=1)
def _model() -> _Model:
    world = load_scenario("thesis-sleep").world(0)
    time_s, power_w = np.zeros((2, KINDS, CAPS)), np.zeros((2, KINDS, CAPS))
    for kind, each in enumerate(world.jobs.kinds):
        options = world.truth.options(each)
        work = float(world.jobs.work[world.jobs.kind == kind].mean())
        for node, type_index in enumerate((1, 0)):  # the H100 first
            rows = np.flatnonzero((options.type_index == type_index) & (options.gpus == GPUS // 2))
            rows = rows[options.batch[rows] == options.batch[rows].max()]
            rows = rows[np.argsort(-options.cap_w[rows])]
            time_s[node, kind] = options.sample_s[rows] * work
            power_w[node, kind] = options.power_w[rows] - SLEEP_W * GPUS / 2
    idle_w = np.array([world.cluster.types[n].idle_w - SLEEP_W for n in (1, 0)]) * GPUS / 2
    lines = [q for q in product(range(MOST_WAITING + 1), repeat=3) if sum(q) <= MOST_WAITING]
    number = np.full((MOST_WAITING + 2,) * 3, -1)
    for n, line in enumerate(lines):
        number[line] = n

    def changed(line: tuple[int, ...], kind: int, by: int) -> int:
        return int(number[tuple(count + by * (k == kind) for k, count in enumerate(line))])

    more = np.array([
        [changed(q, k, 1) if sum(q) < MOST_WAITING else n for k in range(KINDS)]
        for n, q in enumerate(lines)
    ])  # fmt: skip
    less = np.array([[changed(q, k, -1) if q[k] else -1 for k in range(KINDS)] for q in lines])
    return _Model(time_s, power_w, idle_w, number, more, less, np.array([sum(q) for q in lines]))


@lru_cache(maxsize=256)
def _arrivals(rate: float, seed: int) -> tuple[Any, Any]:
    jobs = load_scenario("thesis-sleep", {"jobs.generate.rate_per_s": rate}).world(seed).jobs
    return np.array(jobs.arrival_s), np.array(jobs.kind)


# State of a node: 0 for none, else 1 + kind x PARTS + remaining parts - 1.


@njit(cache=True)
def _least(state_h, state_a, line, values, less, move_w, moves, move_s):
    """Return the least value after one immediate action, and that action; 0 for none.

    1 to 3: start a kind on the H100. 4 to 6: on the A100. 7, 8, 9: move to H100, to A100, swap.
    """
    best, action = values[state_h, state_a, line], 0
    for kind in range(KINDS):
        rest = less[line, kind]
        if rest < 0:
            continue
        whole = 1 + kind * PARTS + PARTS - 1
        if state_h == 0 and values[whole, state_a, rest] < best:
            best, action = values[whole, state_a, rest], 1 + kind
        if state_a == 0 and values[state_h, whole, rest] < best:
            best, action = values[state_h, whole, rest], 4 + kind
    if moves:
        cost = move_s * move_w
        if state_h == 0 and state_a > 0 and values[state_a, 0, line] + cost < best:
            best, action = values[state_a, 0, line] + cost, 7
        if state_a == 0 and state_h > 0 and values[0, state_h, line] + cost < best:
            best, action = values[0, state_h, line] + cost, 8
        if state_a > 0 and state_h > 0 and values[state_a, state_h, line] + 2 * cost < best:
            best, action = values[state_a, state_h, line] + 2 * cost, 9
    return best, action


@njit(cache=True)
def _cap(node, state, value, after, time_s, power_w):
    """Return the cap of least power plus progress of value, and that sum."""
    kind, best, cap = (state - 1) // PARTS, np.inf, 0
    for each in range(CAPS):
        rate = PARTS / time_s[node, kind, each]
        found = power_w[node, kind, each] + rate * (after - value)
        if found < best:
            best, cap = found, each
    return best, cap


@njit(cache=True)
def _iterated(time_s, power_w, idle_w, more, less, length, rate, second_w, moves, move_s):
    """Return relative values of all states of the policy of least mean cost (uniformisation)."""
    states, lines = 1 + KINDS * PARTS, len(length)
    values = np.zeros((states, states, lines))
    events = rate + PARTS / time_s[0].min() + PARTS / time_s[1].min()
    move_w = second_w + idle_w.mean()
    for _ in range(ITERATIONS):
        new = np.empty_like(values)
        for h in range(states):
            for a in range(states):
                for line in range(lines):
                    value = values[h, a, line]
                    change = second_w * (length[line] + (h > 0) + (a > 0))
                    for kind in range(KINDS):
                        lost = LOST_J if more[line, kind] == line else 0.0
                        change += rate / KINDS * (values[h, a, more[line, kind]] - value + lost)
                    if h > 0:
                        after = values[h - 1 if (h - 1) % PARTS else 0, a, line]
                        change += _cap(0, h, value, after, time_s, power_w)[0]
                    if a > 0:
                        after = values[h, a - 1 if (a - 1) % PARTS else 0, line]
                        change += _cap(1, a, value, after, time_s, power_w)[0]
                    new[h, a, line] = value + change / events
        for line in range(lines):  # shorter lines have lower numbers
            for _again in range(2):
                for h in range(states):
                    for a in range(states):
                        new[h, a, line] = _least(h, a, line, new, less, move_w, moves, move_s)[0]
        gain = new[0, 0, 0] - values[0, 0, 0]
        new -= new[0, 0, 0]
        if np.abs(new - values).max() < 1e-3 * gain:
            return new
        values = new
    return values


@njit(cache=True)
def _simulated(
    values, arrival_s, kinds, time_s, power_w, idle_w, number, less, second_w, moves, move_s
):
    """Return joules above sleep, mean completion time, jobs done, moves; by events."""
    jobs = len(arrival_s)
    left, waiting, lines = np.ones(jobs), np.zeros(KINDS, np.int64), np.zeros(jobs, np.bool_)
    job, ready_s, free_s = np.array([-1, -1]), np.zeros(2), np.full(2, -1e9)
    state, caps = np.zeros(2, np.int64), np.zeros(2, np.int64)
    joules = age_s = now_s = 0.0
    coming = done = moved = 0
    move_w = second_w + idle_w.mean()
    while now_s < HORIZON_S:
        line = 0
        for _ in range(100):
            shown = waiting.copy()
            while shown.sum() > MOST_WAITING:
                shown[np.argmax(shown)] -= 1
            line = number[shown[0], shown[1], shown[2]]
            for node in range(2):
                state[node] = 0
                if job[node] >= 0:
                    parts = min(max(int(np.ceil(left[job[node]] * PARTS - 1e-9)), 1), PARTS)
                    state[node] = kinds[job[node]] * PARTS + parts
            # ties of the settled values: an action that costs nothing against staying is taken
            here = values[state[0], state[1], line]
            trial = here + 1e-9 * abs(here) + 1e-3
            kept = values[state[0], state[1], line]
            values[state[0], state[1], line] = trial
            action = _least(state[0], state[1], line, values, less, move_w, moves, move_s)[1]
            values[state[0], state[1], line] = kept
            if action == 0:
                break
            if action <= 6:
                node, kind = (action - 1) // 3, (action - 1) % 3
                for each in range(coming):
                    if lines[each] and kinds[each] == kind:
                        job[node] = each
                        break
                lines[job[node]] = False
                waiting[kind] -= 1
                ready_s[node] = now_s + (WAKE_S if now_s - free_s[node] > AWAKE_S else 0.0)
            else:
                moved += 1
                job[0], job[1] = job[1], job[0]
                for node in range(2):
                    if job[node] >= 0:
                        ready_s[node] = now_s + move_s
                    else:
                        free_s[node] = now_s
        next_s = HORIZON_S
        if coming < jobs:
            next_s = min(next_s, arrival_s[coming])
        for node in range(2):
            if job[node] < 0:
                continue
            rest = state[node] - 1 if (state[node] - 1) % PARTS else 0
            after = values[rest, state[1], line] if node == 0 else values[state[0], rest, line]
            here = values[state[0], state[1], line]
            caps[node] = _cap(node, state[node], here, after, time_s, power_w)[1]
            if ready_s[node] > now_s:
                next_s = min(next_s, ready_s[node])
            else:
                part = left[job[node]] - ((state[node] - 1) % PARTS) / PARTS
                of_s = time_s[node, kinds[job[node]], caps[node]]
                next_s = min(next_s, now_s + max(part, 1e-7) * of_s)
        for node in range(2):
            if job[node] < 0:
                awake_s = min(next_s, free_s[node] + AWAKE_S) - max(now_s, free_s[node])
                joules += idle_w[node] * max(awake_s, 0.0)
            elif ready_s[node] > now_s:
                joules += idle_w[node] * (next_s - now_s)
            else:
                kind = kinds[job[node]]
                joules += power_w[node, kind, caps[node]] * (next_s - now_s)
                left[job[node]] -= (next_s - now_s) / time_s[node, kind, caps[node]]
        now_s = next_s
        for node in range(2):
            if job[node] >= 0 and left[job[node]] <= 1e-9:
                age_s += now_s - arrival_s[job[node]]
                done += 1
                job[node], free_s[node] = -1, now_s
        while coming < jobs and arrival_s[coming] <= now_s:
            lines[coming] = True
            waiting[kinds[coming]] += 1
            coming += 1
    return joules, age_s / max(done, 1), float(done), float(moved)
