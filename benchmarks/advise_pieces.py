"""Parts of scripted runs: cards, loads, programs that start and end."""

import random
from collections.abc import Sequence
from dataclasses import replace

from support.virtual_runs import CardScript, RunScript, Work
from wattloop.virtual.cards import card_named
from wattloop.virtual.gpu import IDLE, Activity

__all__ = [
    "FINE",
    "TOO_HIGH",
    "arithmetic",
    "cap_saving",
    "duration",
    "edges",
    "model_of",
    "script_of",
    "steady",
]

MODELS = ("h200", "a100", "v100", "a40", "rtx6000")
TOO_HIGH, FINE = 0.12, 0.08
"""A cap that saves more than this share of a card's energy for at most 5% time makes the limit too
high; below the other it is fine. Runs in between are not made."""


def cap_saving(
    model: str, activity: Activity, limit_share: float = 1, clock_share: float = 1
) -> float:
    """Return the saving of the best cap within 5% of the time, by the card's model."""
    card = card_named(model)
    limit_w, clock_mhz = limit_share * card.default_limit_w, clock_share * card.max_clock_mhz
    now = card.settle(activity, limit_w, clock_mhz)
    best = 0.0
    for step in range(41):
        cap_w = card.min_limit_w + (limit_w - card.min_limit_w) * step / 40
        there = card.settle(activity, cap_w, clock_mhz)
        slower = there.slowdown / now.slowdown
        if slower <= 1.05:
            best = max(best, 1 - slower * there.power_w / now.power_w)
    return best


def model_of(draw: random.Random) -> str:
    return draw.choice(MODELS)


def arithmetic(draw: random.Random, model: str) -> Activity:
    """Return compute-bound work, for which the factory limit is right."""
    while True:
        found = Activity(1.0, draw.uniform(0.1, 0.5), 1.0, overlap=draw.uniform(0.3, 1.0))
        if cap_saving(model, found) <= FINE:
            return found
        if draw.random() < 0.02:  # some cards have no such work at their limit
            return Activity(1.0, 0.1, 1.0, overlap=1.0)


def duration(draw: random.Random, low_s: float = 90, high_s: float = 1_500) -> float:
    return float(low_s * (high_s / low_s) ** draw.random())


def script_of(
    draw: random.Random, model: str, duration_s: float, cards: Sequence[CardScript], **more: object
) -> RunScript:
    interval_s = 0.1 if duration_s < 200 else 0.5
    values = {"averaged": draw.random() < 0.5, "cpu_w": draw.uniform(40, 150), **more}
    return RunScript(
        run_id="",
        duration_s=duration_s,
        model=model,
        cards=tuple(cards),
        interval_s=interval_s,
        **values,  # type: ignore[arg-type]  # fields of RunScript
    )


def steady(
    draw: random.Random, activity: Activity, begin_s: float, end_s: float, busy: float = 1.0
) -> list[Work]:
    """Return work whose load drifts a little every few seconds."""
    works, now_s = [], begin_s
    while now_s < end_s:
        share = min(1.0, max(0.05, busy + draw.gauss(-0.02, 0.02)))
        works.append(Work(now_s, replace(activity, busy=share)))
        now_s += draw.uniform(2, 8)
    return [*works, Work(end_s, IDLE)]


def edges(draw: random.Random, duration_s: float) -> tuple[float, float]:
    """Add the moments in which a program starts and ends."""
    return draw.uniform(1, 0.04 * duration_s + 2), duration_s * draw.uniform(0.97, 0.995)
