"""Healthy runs that look suspicious, as scripts of virtual cards."""

import random
from collections.abc import Callable
from dataclasses import replace

from advise_pieces import FINE, arithmetic, cap_saving, duration, edges, model_of, script_of, steady
from support.virtual_runs import CardScript, RunScript, Work
from wattloop.virtual.cards import card_named
from wattloop.virtual.gpu import IDLE, Activity

__all__ = ["HEALTHY"]


def _filled(draw: random.Random) -> RunScript:
    model, duration_s = model_of(draw), duration(draw)
    begin_s, end_s = edges(draw, duration_s)
    works = steady(draw, arithmetic(draw, model), begin_s, end_s)
    return script_of(draw, model, duration_s, [CardScript(works)])


def _short(draw: random.Random) -> RunScript:
    """Half of the run is the start of the program."""
    model, duration_s = model_of(draw), draw.uniform(8, 30)
    begin_s = duration_s * draw.uniform(0.2, 0.5)
    works = steady(draw, arithmetic(draw, model), begin_s, duration_s - draw.uniform(0.3, 1.5))
    return script_of(draw, model, duration_s, [CardScript(works)])


def _even(draw: random.Random) -> RunScript:
    """Several cards exchange gradients after every step, within a tenth of each other."""
    model, duration_s = model_of(draw), duration(draw)
    begin_s, end_s = edges(draw, duration_s)
    activity = arithmetic(draw, model)
    cards = []
    for _ in range(draw.choice((2, 4, 8))):
        busy = draw.uniform(0.92, 1.0)
        cards.append(CardScript(steady(draw, activity, begin_s, end_s, busy)))
    return script_of(draw, model, duration_s, cards)


def _cpu_only(draw: random.Random) -> RunScript:
    return script_of(draw, "h200", duration(draw), [])


def _warm_up(draw: random.Random) -> RunScript:
    """The program loads its data and compiles before it works."""
    model, duration_s = model_of(draw), duration(draw)
    begin_s, end_s = duration_s * draw.uniform(0.12, 0.35), duration_s * 0.985
    works = steady(draw, arithmetic(draw, model), begin_s, end_s)
    return script_of(draw, model, duration_s, [CardScript(works)])


def _bursts(draw: random.Random) -> RunScript:
    """The program answers requests at random times; half of them are recorded as such."""
    model, duration_s = model_of(draw), duration(draw, low_s=200)
    activity = arithmetic(draw, model)
    rest_s, burst_s = draw.uniform(3, 12), draw.uniform(3, 12)
    works, now_s = [], draw.uniform(1, 5)
    while now_s < duration_s - 2:
        works.append(Work(now_s, activity))
        now_s += draw.expovariate(1 / burst_s) + 0.3
        works.append(Work(now_s, IDLE))
        now_s += draw.expovariate(1 / rest_s) + 0.1
    works = [*[work for work in works if work.begin_s < duration_s - 1], Work(duration_s - 1, IDLE)]
    said = {"command": ("vllm", "serve", "llama")} if draw.random() < 0.5 else {}
    return script_of(draw, model, duration_s, [CardScript(works)], **said)


def _capped(draw: random.Random) -> RunScript:
    """A memory-bound run whose user has already set the right cap."""
    model, duration_s = model_of(draw), duration(draw)
    begin_s, end_s = edges(draw, duration_s)
    card = card_named(model)
    while True:
        activity = Activity(draw.uniform(0.4, 0.9), 1.0, 1.0, overlap=draw.uniform(0.6, 1.0))
        share = draw.uniform(0.4, 0.8)
        if share * card.default_limit_w > card.min_limit_w and (
            cap_saving(model, activity, share) <= FINE
        ):
            break
    works = steady(draw, activity, begin_s, end_s)
    return script_of(draw, model, duration_s, [CardScript(works, limit_share=share)])


def _pauses(draw: random.Random) -> RunScript:
    """The program writes a checkpoint and evaluates after every epoch."""
    model, duration_s = model_of(draw), duration(draw, low_s=300)
    begin_s, end_s = edges(draw, duration_s)
    activity = arithmetic(draw, model)
    epoch_s = draw.uniform(30, 90)
    works, now_s = [], begin_s
    while now_s < end_s:
        last_s = min(end_s, now_s + epoch_s * draw.uniform(0.95, 1.05))
        works += steady(draw, activity, now_s, last_s)
        now_s = last_s + epoch_s * draw.uniform(0.02, 0.1)
    works = [work for work in works if work.begin_s < end_s]
    return script_of(draw, model, duration_s, [CardScript([*works, Work(end_s, IDLE)])])


def _half(draw: random.Random) -> RunScript:
    """The program computes in bf16, fp16 or tf32, and records it."""
    said: dict[str, object] = draw.choice(
        (
            {"tags": {"precision": "bf16"}},
            {"command": ("python", "train.py", "--precision", "bf16-mixed")},
            {"command": ("python", "train.py", "--bf16", "--optim", "adamw_torch")},
            {"command": ("python", "train.py", "--amp", "--dtype", "float32")},
            {"command": ("python", "train.py", "--tf32", "--epochs", "32")},
            {"events": ({"type": "precision", "time_s": 1_001.0, "value": "bf16-mixed"},)},
        )
    )
    return replace(_filled(draw), **said)  # type: ignore[arg-type]  # fields of RunScript


def _slowed(draw: random.Random) -> RunScript:
    """A memory-bound program has its clock locked low: little power, on purpose."""
    model, duration_s = model_of(draw), duration(draw)
    begin_s, end_s = edges(draw, duration_s)
    while True:
        activity = Activity(draw.uniform(0.1, 0.5), 1.0, 1.0, overlap=draw.uniform(0.5, 1.0))
        share = draw.uniform(0.35, 0.7)
        if cap_saving(model, activity, 1.0, share) <= FINE:
            break
    works = steady(draw, activity, begin_s, end_s)
    card = CardScript(works, clock_share=share, memory_share=draw.uniform(0.3, 0.95))
    return script_of(draw, model, duration_s, [card])


HEALTHY: dict[str, Callable[[random.Random], RunScript]] = {
    "well filled": _filled,
    "short": _short,
    "several GPUs, even": _even,
    "CPU only": _cpu_only,
    "long warm-up": _warm_up,
    "bursts on purpose": _bursts,
    "capped already": _capped,
    "pauses every epoch": _pauses,
    "half precision": _half,
    "slowed on purpose": _slowed,
}
"""Runs without a fault that rules could take for one."""
