"""Runs with known faults, and healthy ones that look suspicious, for judging advice.

Each is a script of what virtual cards do (`wattloop.testing.virtual_runs`). Whether a power cap
is too high is no opinion: the physical model of the card says what the best cap saves.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattloop.testing.virtual_runs import CardScript, RunScript, Work
from wattloop.virtual.cards import card_named
from wattloop.virtual.physics import IDLE, Activity

__all__ = ["FAULTS", "HEALTHY", "Case", "cap_saving", "cases"]

MODELS = ("h200", "a100", "v100", "a40", "rtx6000")
TOO_HIGH, FINE = 0.12, 0.08
"""A cap that saves more than this share of a card's energy for at most 5% time makes the limit too
high; below the other it is fine. Runs in between are not made."""


@dataclass(frozen=True)
class Case:
    """A run and what is wrong with it: the name of a rule, or empty."""

    kind: str
    fault: str
    script: RunScript


def cases(seed: int, faulty: int = 40, healthy: int = 40) -> list[Case]:
    """As many of every kind as evenly as possible; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for makers, count in ((FAULTS, faulty), (HEALTHY, healthy)):
        names = list(makers)
        for number in range(count):
            kind = names[number % len(names)]
            script = makers[kind](draw)
            run_id = f"{kind}-{seed}-{number}"
            fault = kind if makers is FAULTS else ""
            found.append(Case(kind, fault, replace(script, run_id=run_id)))
    return found


def cap_saving(
    model: str, activity: Activity, limit_share: float = 1, clock_share: float = 1
) -> float:
    """What the best cap within 5% of the time saves, by the model of the card."""
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


# -- pieces ------------------------------------------------------------------------------------


def _model(draw: random.Random) -> str:
    return draw.choice(MODELS)


def _arithmetic(draw: random.Random, model: str) -> Activity:
    """Work bound by arithmetic, for which the factory limit is fine."""
    while True:
        found = Activity(1.0, draw.uniform(0.1, 0.5), 1.0, overlap=draw.uniform(0.3, 1.0))
        if cap_saving(model, found) <= FINE:
            return found
        if draw.random() < 0.02:  # some cards have no such work at their limit
            return Activity(1.0, 0.1, 1.0, overlap=1.0)


def _duration(draw: random.Random, low_s: float = 90, high_s: float = 1_500) -> float:
    return float(low_s * (high_s / low_s) ** draw.random())


def _script(
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


def _steady(
    draw: random.Random, activity: Activity, begin_s: float, end_s: float, busy: float = 1.0
) -> list[Work]:
    """Work whose load wanders a little every few seconds."""
    works, now_s = [], begin_s
    while now_s < end_s:
        share = min(1.0, max(0.05, busy + draw.gauss(-0.02, 0.02)))
        works.append(Work(now_s, replace(activity, busy=share)))
        now_s += draw.uniform(2, 8)
    return [*works, Work(end_s, IDLE)]


def _edges(draw: random.Random, duration_s: float) -> tuple[float, float]:
    """A program takes a moment to start and to end."""
    return draw.uniform(1, 0.04 * duration_s + 2), duration_s * draw.uniform(0.97, 0.995)


# -- faults ------------------------------------------------------------------------------------


def _idle_gpu(draw: random.Random) -> RunScript:
    model, duration_s = _model(draw), _duration(draw)
    activity = _arithmetic(draw, model)
    begin_s, end_s = _edges(draw, duration_s)
    if draw.random() < 0.25:  # the only card, in long rests
        blocks = draw.randint(2, 4)
        whole_s = (end_s - begin_s) / blocks
        duration_s = max(duration_s, 300.0)
        begin_s, end_s = _edges(draw, duration_s)
        whole_s = (end_s - begin_s) / blocks
        busy = draw.uniform(0.2, 0.4)
        works: list[Work] = []
        for block in range(blocks):
            last_s = begin_s + (block + 1) * whole_s
            works += _steady(draw, activity, last_s - busy * whole_s, last_s)
        return _script(draw, model, duration_s, [CardScript(works)])
    count = draw.randint(2, 8)
    idle = draw.randint(1, count - 1)
    cards = []
    for number in range(count):
        share = draw.choice((0.0, draw.uniform(0.1, 0.4))) if number < idle else 1.0
        stop_s = begin_s + share * (end_s - begin_s)
        works = _steady(draw, activity, begin_s, stop_s) if share else []
        cards.append(CardScript(works))
    draw.shuffle(cards)
    return _script(draw, model, duration_s, cards)


def _starved(draw: random.Random) -> RunScript:
    model, duration_s = _model(draw), _duration(draw)
    activity = _arithmetic(draw, model)
    begin_s, end_s = _edges(draw, duration_s)
    waiting = draw.uniform(0.32, 0.7)
    count = draw.choice((1, 1, 2, 4))
    if draw.random() < 0.5:  # steps too short to be seen
        cards = [
            CardScript(_steady(draw, activity, begin_s, end_s, 1 - waiting)) for _ in range(count)
        ]
        return _script(draw, model, duration_s, cards)
    step_s = draw.uniform(0.8, 8)
    works, now_s = [], begin_s
    while now_s < end_s:
        works.append(Work(now_s, activity))
        now_s += step_s * (1 - waiting) * draw.uniform(0.9, 1.1)
        works.append(Work(now_s, IDLE))
        now_s += step_s * waiting * draw.lognormvariate(0, 0.25)
    return _script(draw, model, duration_s, [CardScript(works)] * count)


def _cap(draw: random.Random) -> RunScript:
    model, duration_s = _model(draw), _duration(draw)
    begin_s, end_s = _edges(draw, duration_s)
    while True:
        share = draw.choice((1.0, 1.0, draw.uniform(0.75, 0.95)))
        activity = Activity(draw.uniform(0.25, 0.9), 1.0, 1.0, overlap=draw.uniform(0.4, 1.0))
        if cap_saving(model, activity, share) >= TOO_HIGH:
            break
    cards = [
        CardScript(_steady(draw, activity, begin_s, end_s), limit_share=share)
        for _ in range(draw.choice((1, 1, 2, 8)))
    ]
    return _script(draw, model, duration_s, cards)


def _fp32(draw: random.Random) -> RunScript:
    model, duration_s = _model(draw), _duration(draw)
    begin_s, end_s = _edges(draw, duration_s)
    works = _steady(draw, _arithmetic(draw, model), begin_s, end_s)
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
    return _script(draw, model, duration_s, [CardScript(works)], **said)


def _launch(draw: random.Random) -> RunScript:
    model, duration_s = _model(draw), _duration(draw)
    begin_s, end_s = _edges(draw, duration_s)
    filled, shown = draw.uniform(0.03, 0.15), draw.uniform(0.65, 1.0)
    activity = Activity(1.0, draw.uniform(0.3, 0.9), 1.0, overlap=0.0)
    works = [
        work._replace(resident=min(1.0, shown + draw.gauss(0, 0.02)))
        if work.activity.busy > 0
        else work
        for work in _steady(draw, activity, begin_s, end_s, filled + 0.02)
    ]
    cards = [CardScript(works, memory_share=draw.uniform(0.02, 0.3))]
    return _script(
        draw, model, duration_s, cards, command=("python", "train.py", "--batch-size", "8")
    )


def _tail(draw: random.Random) -> RunScript:
    model, duration_s = _model(draw), _duration(draw, low_s=150)
    begin_s, _ = _edges(draw, duration_s)
    end_s = duration_s * (1 - draw.uniform(0.12, 0.5))
    activity = _arithmetic(draw, model)
    cards = [
        CardScript(_steady(draw, activity, begin_s, end_s)) for _ in range(draw.choice((1, 1, 4)))
    ]
    return _script(draw, model, duration_s, cards)


FAULTS: dict[str, Callable[[random.Random], RunScript]] = {
    "idle-gpu": _idle_gpu,
    "starved-loader": _starved,
    "cap-too-high": _cap,
    "fp32": _fp32,
    "launch-bound": _launch,
    "idle-tail": _tail,
}
"""Name of the rule that should find it -> a run with that fault and no other."""


# -- healthy -----------------------------------------------------------------------------------


def _filled(draw: random.Random) -> RunScript:
    model, duration_s = _model(draw), _duration(draw)
    begin_s, end_s = _edges(draw, duration_s)
    works = _steady(draw, _arithmetic(draw, model), begin_s, end_s)
    return _script(draw, model, duration_s, [CardScript(works)])


def _short(draw: random.Random) -> RunScript:
    """Half of it is the start of the program."""
    model, duration_s = _model(draw), draw.uniform(8, 30)
    begin_s = duration_s * draw.uniform(0.2, 0.5)
    works = _steady(draw, _arithmetic(draw, model), begin_s, duration_s - draw.uniform(0.3, 1.5))
    return _script(draw, model, duration_s, [CardScript(works)])


def _even(draw: random.Random) -> RunScript:
    """Several cards that exchange gradients after every step, within a tenth of each other."""
    model, duration_s = _model(draw), _duration(draw)
    begin_s, end_s = _edges(draw, duration_s)
    activity = _arithmetic(draw, model)
    cards = []
    for _ in range(draw.choice((2, 4, 8))):
        busy = draw.uniform(0.92, 1.0)
        cards.append(CardScript(_steady(draw, activity, begin_s, end_s, busy)))
    return _script(draw, model, duration_s, cards)


def _cpu_only(draw: random.Random) -> RunScript:
    return _script(draw, "h200", _duration(draw), [])


def _warm_up(draw: random.Random) -> RunScript:
    """Loads its data and compiles before it works."""
    model, duration_s = _model(draw), _duration(draw)
    begin_s, end_s = duration_s * draw.uniform(0.12, 0.35), duration_s * 0.985
    works = _steady(draw, _arithmetic(draw, model), begin_s, end_s)
    return _script(draw, model, duration_s, [CardScript(works)])


def _bursts(draw: random.Random) -> RunScript:
    """Answers requests that come by chance; half of them say so."""
    model, duration_s = _model(draw), _duration(draw, low_s=200)
    activity = _arithmetic(draw, model)
    rest_s, burst_s = draw.uniform(3, 12), draw.uniform(3, 12)
    works, now_s = [], draw.uniform(1, 5)
    while now_s < duration_s - 2:
        works.append(Work(now_s, activity))
        now_s += draw.expovariate(1 / burst_s) + 0.3
        works.append(Work(now_s, IDLE))
        now_s += draw.expovariate(1 / rest_s) + 0.1
    works = [*[work for work in works if work.begin_s < duration_s - 1], Work(duration_s - 1, IDLE)]
    said = {"command": ("vllm", "serve", "llama")} if draw.random() < 0.5 else {}
    return _script(draw, model, duration_s, [CardScript(works)], **said)


def _capped(draw: random.Random) -> RunScript:
    """Bound by memory, and somebody has set the right cap already."""
    model, duration_s = _model(draw), _duration(draw)
    begin_s, end_s = _edges(draw, duration_s)
    card = card_named(model)
    while True:
        activity = Activity(draw.uniform(0.4, 0.9), 1.0, 1.0, overlap=draw.uniform(0.6, 1.0))
        share = draw.uniform(0.4, 0.8)
        if share * card.default_limit_w > card.min_limit_w and (
            cap_saving(model, activity, share) <= FINE
        ):
            break
    works = _steady(draw, activity, begin_s, end_s)
    return _script(draw, model, duration_s, [CardScript(works, limit_share=share)])


def _pauses(draw: random.Random) -> RunScript:
    """Writes a checkpoint and looks at a validation set after every epoch."""
    model, duration_s = _model(draw), _duration(draw, low_s=300)
    begin_s, end_s = _edges(draw, duration_s)
    activity = _arithmetic(draw, model)
    epoch_s = draw.uniform(30, 90)
    works, now_s = [], begin_s
    while now_s < end_s:
        last_s = min(end_s, now_s + epoch_s * draw.uniform(0.95, 1.05))
        works += _steady(draw, activity, now_s, last_s)
        now_s = last_s + epoch_s * draw.uniform(0.02, 0.1)
    works = [work for work in works if work.begin_s < end_s]
    return _script(draw, model, duration_s, [CardScript([*works, Work(end_s, IDLE)])])


def _half(draw: random.Random) -> RunScript:
    """Computes in bf16, fp16 or tf32, and says so."""
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
    """Bound by memory with its clock locked low: little power, on purpose."""
    model, duration_s = _model(draw), _duration(draw)
    begin_s, end_s = _edges(draw, duration_s)
    while True:
        activity = Activity(draw.uniform(0.1, 0.5), 1.0, 1.0, overlap=draw.uniform(0.5, 1.0))
        share = draw.uniform(0.35, 0.7)
        if cap_saving(model, activity, 1.0, share) <= FINE:
            break
    works = _steady(draw, activity, begin_s, end_s)
    card = CardScript(works, clock_share=share, memory_share=draw.uniform(0.3, 0.95))
    return _script(draw, model, duration_s, [card])


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
