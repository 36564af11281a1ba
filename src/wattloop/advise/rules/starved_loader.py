"""Rule: a GPU that waits repeatedly for its data or its next kernel."""

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.gpu_facts import IDLE_UTILISATION, GpuFacts, SignalTrace, TraceInterval
from wattloop.advise.rules.idle import LONG_REST_S
from wattloop.core.units import format_duration, format_energy, format_power

WAITING = 0.25
"""Share of the working time without work. Communication and optimizer steps keep a GPU busy, as
NVML counts it; checkpoints and evaluations stay below a tenth."""
FILLED = 0.3
"""Power above idle while it works, as a part of the room: less is small kernels, another rule."""
UNEVEN_RESTS = 0.8
"""Spread of the lengths of rests, over their mean. Loaders are a machine and wait evenly; requests
that arrive by chance are spread by 1."""
UNEVEN_LOAD = 0.35
"""Spread of the load over tenths of the working time, for the same reason."""
MANY = 5
SHORTEST_S = 10.0
WORKERS = ("--num-workers", "--num_workers", "--workers", "--dataloader_num_workers", "-j")
DATA_METRICS = ("data_s", "data_time", "data_time_s", "data_wait_s")
"""What training loops call the time they waited for a batch, in seconds."""
FREE_CORES, BUSY_CORES = 0.5, 0.9
"""CPU utilisation. Below the first, cores are free for as many workers again; above the second,
more workers take turns on the same cores."""
READY = 0.5
"""A loader that explains less than this part of the GPU's rests was ready most of the time."""


class _Waiting(NamedTuple):
    """Waiting of a GPU.

    Attributes:
        share: of the working time.
        how: how it was seen.
        has_rests: whether single rests between steps were seen.
        loader_ready: whether the program's loader had its batches ready meanwhile.
    """

    share: float
    how: str
    has_rests: bool = True
    loader_ready: bool = False


def starved_loader(facts: RunFacts) -> Advice | None:
    """Waiting that repeats, what it costs, and the workers that would end it."""
    span = facts.working
    if span is None or span.length_s < SHORTEST_S or facts.waits_on_purpose:
        return None
    gpus = [g for g in facts.used_gpus if g.power_share(span) >= FILLED]
    noticed = _noticed(facts, span)
    if noticed is not None and noticed.share >= WAITING:
        gpus, waiting = list(facts.used_gpus), noticed
    elif gpus and (found := _told(facts, span) or _seen_by_all(facts, gpus, span)):
        waiting = found
    else:
        return None
    if waiting.share < WAITING:
        return None
    idle_w = sum(gpu.idle.watts for gpu in gpus)
    saving_j = idle_w * span.length_s * waiting.share
    cpu_utilisation = facts.cpu_utilisation(span)
    whose, together = ("GPU", "") if len(gpus) == 1 else (f"{len(gpus)} GPUs", " together")
    workers_help = not waiting.loader_ready and (cpu_utilisation or 0.0) <= BUSY_CORES
    more = facts.scaled_argument(WORKERS, 2, least=4) if workers_help else {}
    return Advice(
        rule="starved-loader",
        title=f"The {whose} waited for {_for_what(waiting)} {waiting.share:.0%} of the time",
        text=(
            f"The {whose} had nothing to do {waiting.share:.0%} of the working time, and drew "
            f"{format_power(idle_w)}{together} all the while: {format_energy(saving_j)}. "
            f"{_remedy(waiting, cpu_utilisation)} "
            "The training gets faster by as much as it no longer waits."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-waiting.share * span.length_s / facts.duration_s,
        evidence=(
            waiting.how,
            *_cpu_evidence(cpu_utilisation),
            *(f"{g.label}: idle {format_power(g.idle.watts)} ({g.idle.source})" for g in gpus),
        ),
        source="by the readings of this run, if all waiting ends",
        command=facts.run_again(more=more),
    )


def _for_what(waiting: _Waiting) -> str:
    return "data" if waiting.has_rests and not waiting.loader_ready else "the host"


def _remedy(waiting: _Waiting, cpu_utilisation: float | None) -> str:
    if waiting.loader_ready:
        return (
            "Its loader had the batches ready: the program itself takes the time between steps. "
            "Look for values read back from the GPU in every step (loss.item(), print), work on "
            "the batch after the loader, and logging."
        )
    loader = (
        "give the loader more workers, pinned memory and prefetching, or decode the data once "
        "ahead of time"
    )
    if cpu_utilisation is not None and cpu_utilisation > BUSY_CORES:
        loader = "decode the data once ahead of time or on the GPU, since no CPU core is free"
    if waiting.has_rests:
        return f"{loader[0].upper()}{loader[1:]}."
    # An H200 running a tiny BERT eagerly shows 12% and no rest: kernels of microseconds.
    return (
        "Its rests are too short to be seen one by one: either batches come too slowly, or the "
        "host launches small kernels one after the other. If the processes of the loader are "
        f"busy, {loader}; if not, use a larger batch, torch.compile or CUDA graphs."
    )


def _cpu_evidence(utilisation: float | None) -> tuple[str, ...]:
    if utilisation is None or FREE_CORES <= utilisation <= BUSY_CORES:
        return ()
    free = "cores are free for more workers" if utilisation < FREE_CORES else "no core is free"
    return (f"CPU utilisation {utilisation:.0%}: {free}",)


def _noticed(facts: RunFacts, span: TraceInterval) -> _Waiting | None:
    """From the waits for a loader that `wattloop run` noticed.

    The program waits for its next batch while the GPU still computes the last one, so only waits
    that the GPUs were idle for count.
    """
    phase, gpus = facts.phase("waiting for data"), facts.used_gpus
    if phase is None or phase.parts < MANY or not gpus:
        return None
    idle_share = 1 - max(gpu.busy_share(span) for gpu in gpus)
    return _Waiting(
        min(phase.time_s / span.length_s, idle_share),
        f"waiting for data: {format_duration(phase.time_s)} in {phase.parts} parts; the GPU was "
        f"idle {idle_share:.0%} of its working time",
    )


def _told(facts: RunFacts, span: TraceInterval) -> _Waiting | None:
    """From steps whose loop recorded how long it waited for its batch."""
    steps = [step for step in facts.steps if step.get("kind") == "step"]
    waited_s = lasted_s = 0.0
    count = 0
    for step in steps:
        alike = step.get("stands_for", 1)  # of many steps, some are read
        count += alike
        metrics = step.get("metrics") or {}
        known = next((metrics[name] for name in DATA_METRICS if metrics.get(name)), None)
        if known is not None:
            waited_s += alike * float(known)
            lasted_s += alike * (float(step["end_s"]) - float(step["begin_s"]))
    if lasted_s < SHORTEST_S or lasted_s < 0.3 * span.length_s:
        return None
    return _Waiting(waited_s / lasted_s, f"{count} steps told how long they waited for data")


def _seen_by_all(facts: RunFacts, gpus: Sequence[GpuFacts], span: TraceInterval) -> _Waiting | None:
    """Return rests that all GPUs have, without those that were pauses for checkpoints."""
    seen = [waiting for g in gpus if (waiting := _seen_at_all(g, span))]
    if len(seen) < len(gpus):
        return None
    least = min(seen, key=lambda waiting: waiting.share)
    pauses, loader = facts.phase("checkpoint"), facts.phase("waiting for data")
    paused_s = 0.0 if pauses is None else pauses.time_s
    share = least.share - paused_s / span.length_s
    ready = loader is not None and loader.time_s < READY * share * span.length_s
    return least._replace(share=share, loader_ready=ready)


def _seen_at_all(gpu: GpuFacts, span: TraceInterval) -> _Waiting | None:
    """In the utilisation; else in the power, which is read more often."""
    return _seen(gpu, gpu.load, span) or _seen(gpu, gpu.load_by_power, span)


def _seen(gpu: GpuFacts, whole_load: SignalTrace, span: TraceInterval) -> _Waiting | None:
    """A saw-tooth, or an even part of the time where readings are too slow to see it."""
    load = whole_load.within(span)
    if len(load.values) < 2 * MANY:
        return None
    share = 1 - (load.mean() or 0.0)
    idle = load.where(lambda value: value <= IDLE_UTILISATION, span.end_s)
    rests = [rest.length_s for rest in idle]
    if sum(rests) < 0.3 * share * span.length_s:
        if whole_load is not gpu.signals.get("utilisation"):
            return None
        if _spread_over_tenths(load, span) > UNEVEN_LOAD:
            return None
        how = f"{gpu.label}: utilisation {1 - share:.0%}, evenly all the time"
        return _Waiting(share, how, has_rests=False)
    if len(rests) < MANY or max(rests) > max(LONG_REST_S, 0.2 * span.length_s):
        return None
    if _spread(rests) > UNEVEN_RESTS or _spread_over_tenths(load, span) > UNEVEN_LOAD:
        return None
    return _Waiting(
        share,
        f"{gpu.label}: {len(rests)} rests of about {sorted(rests)[len(rests) // 2]:.1f} s, "
        f"at work {1 - share:.0%} of the time",
    )


def _spread_over_tenths(load: SignalTrace, span: TraceInterval) -> float:
    """How differently it worked in each tenth of the time."""
    tenth_s = span.length_s / 10
    parts = [
        TraceInterval(span.begin_s + i * tenth_s, span.begin_s + (i + 1) * tenth_s)
        for i in range(10)
    ]
    means = [m for part in parts if (m := load.within(part).mean()) is not None]
    return _spread(means)


def _spread(values: Sequence[float]) -> float:
    mean = fmean(values) if values else 0.0
    return pstdev(values) / mean if len(values) > 1 and mean > 0 else 0.0
