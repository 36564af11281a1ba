"""Runs with one known fault each, as scripts of virtual cards."""

import random
from collections.abc import Callable

from advise_pieces import (
    TOO_HIGH,
    arithmetic,
    cap_saving,
    duration,
    edges,
    model_of,
    script_of,
    steady,
)
from support.virtual_runs import CardScript, RunScript, Work
from wattloop.virtual.gpu import IDLE, Activity

__all__ = ["FAULTS"]


def _idle_gpu(draw: random.Random) -> RunScript:
    model, duration_s = model_of(draw), duration(draw)
    activity = arithmetic(draw, model)
    begin_s, end_s = edges(draw, duration_s)
    if draw.random() < 0.25:  # the only card, in long pauses
        blocks = draw.randint(2, 4)
        whole_s = (end_s - begin_s) / blocks
        duration_s = max(duration_s, 300.0)
        begin_s, end_s = edges(draw, duration_s)
        whole_s = (end_s - begin_s) / blocks
        busy = draw.uniform(0.2, 0.4)
        works: list[Work] = []
        for block in range(blocks):
            last_s = begin_s + (block + 1) * whole_s
            works += steady(draw, activity, last_s - busy * whole_s, last_s)
        return script_of(draw, model, duration_s, [CardScript(works)])
    count = draw.randint(2, 8)
    idle = draw.randint(1, count - 1)
    cards = []
    for number in range(count):
        share = draw.choice((0.0, draw.uniform(0.1, 0.4))) if number < idle else 1.0
        stop_s = begin_s + share * (end_s - begin_s)
        works = steady(draw, activity, begin_s, stop_s) if share else []
        cards.append(CardScript(works))
    draw.shuffle(cards)
    return script_of(draw, model, duration_s, cards)


def _starved(draw: random.Random) -> RunScript:
    model, duration_s = model_of(draw), duration(draw)
    activity = arithmetic(draw, model)
    begin_s, end_s = edges(draw, duration_s)
    waiting = draw.uniform(0.32, 0.7)
    count = draw.choice((1, 1, 2, 4))
    if draw.random() < 0.5:  # steps too short to be resolved
        cards = [
            CardScript(steady(draw, activity, begin_s, end_s, 1 - waiting)) for _ in range(count)
        ]
        return script_of(draw, model, duration_s, cards)
    step_s = draw.uniform(0.8, 8)
    works, now_s = [], begin_s
    while now_s < end_s:
        works.append(Work(now_s, activity))
        now_s += step_s * (1 - waiting) * draw.uniform(0.9, 1.1)
        works.append(Work(now_s, IDLE))
        now_s += step_s * waiting * draw.lognormvariate(0, 0.25)
    return script_of(draw, model, duration_s, [CardScript(works)] * count)


def _cap(draw: random.Random) -> RunScript:
    model, duration_s = model_of(draw), duration(draw)
    begin_s, end_s = edges(draw, duration_s)
    while True:
        share = draw.choice((1.0, 1.0, draw.uniform(0.75, 0.95)))
        activity = Activity(draw.uniform(0.25, 0.9), 1.0, 1.0, overlap=draw.uniform(0.4, 1.0))
        if cap_saving(model, activity, share) >= TOO_HIGH:
            break
    cards = [
        CardScript(steady(draw, activity, begin_s, end_s), limit_share=share)
        for _ in range(draw.choice((1, 1, 2, 8)))
    ]
    return script_of(draw, model, duration_s, cards)


def _fp32(draw: random.Random) -> RunScript:
    model, duration_s = model_of(draw), duration(draw)
    begin_s, end_s = edges(draw, duration_s)
    works = steady(draw, arithmetic(draw, model), begin_s, end_s)
    said: dict[str, object] = draw.choice(
        (
            {"tags": {"precision": "fp32"}},
            {"tags": {"dtype": "float32", "model": "vit"}},
            {"command": ("python", "train.py", "--precision", "32")},
            {"command": ("python", "train.py", "--dtype=float32", "--epochs", "3")},
            {"command": ("python", "train.py", "trainer.precision=32-true")},
            {"command": ("accelerate", "launch", "--mixed_precision", "no", "train.py")},
            {"events": ({"type": "precision", "time_s": 1_001.0, "value": "fp32"},)},
        )
    )
    return script_of(draw, model, duration_s, [CardScript(works)], **said)


def _launch(draw: random.Random) -> RunScript:
    model, duration_s = model_of(draw), duration(draw)
    begin_s, end_s = edges(draw, duration_s)
    filled, shown = draw.uniform(0.03, 0.15), draw.uniform(0.65, 1.0)
    activity = Activity(1.0, draw.uniform(0.3, 0.9), 1.0, overlap=0.0)
    works = [
        work._replace(resident=min(1.0, shown + draw.gauss(0, 0.02)))
        if work.activity.busy > 0
        else work
        for work in steady(draw, activity, begin_s, end_s, filled + 0.02)
    ]
    cards = [CardScript(works, memory_share=draw.uniform(0.02, 0.3))]
    return script_of(
        draw, model, duration_s, cards, command=("python", "train.py", "--batch-size", "8")
    )


def _tail(draw: random.Random) -> RunScript:
    model, duration_s = model_of(draw), duration(draw, low_s=150)
    begin_s, _ = edges(draw, duration_s)
    end_s = duration_s * (1 - draw.uniform(0.12, 0.5))
    activity = arithmetic(draw, model)
    cards = [
        CardScript(steady(draw, activity, begin_s, end_s)) for _ in range(draw.choice((1, 1, 4)))
    ]
    return script_of(draw, model, duration_s, cards)


FAULTS: dict[str, Callable[[random.Random], RunScript]] = {
    "idle-gpu": _idle_gpu,
    "starved-loader": _starved,
    "cap-too-high": _cap,
    "fp32": _fp32,
    "launch-bound": _launch,
    "idle-tail": _tail,
}
"""Name of the rule that should find it -> a run with that fault and no other."""
