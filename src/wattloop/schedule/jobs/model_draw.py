"""Which model each job of a trace is taken to train."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.jobs.draws import Draws
from wattloop.schedule.jobs.template import JobTemplate
from wattloop.schedule.jobs.traces.trace import Trace
from wattloop.schedule.jobs.traces.words import known_models

__all__ = ["drawn_models"]

Bools = NDArray[np.bool_]


def drawn_models(
    trace: Trace, templates: Sequence[JobTemplate], draws: Draws, notes: list[str]
) -> tuple[NDArray[np.int32], Bools]:
    """The template of each job, and whether the trace itself says so.

    Where it does not, one is drawn by weight among those that suit the job's GPUs and duration.
    """
    drawn = _drawn(trace, templates, draws, notes)
    known = np.zeros(len(trace), bool)
    if trace.model is not None:
        said = known_models(trace.model, templates)
        known = said >= 0
        drawn = np.where(known, said, drawn)
        notes.append(f"model: {int(known.sum())} jobs train what the trace says")
    if not known.all():
        labels = ", ".join(template.kind.label for template in templates)
        notes.append(
            f"model: {int((~known).sum())} drawn by weight from {labels}, seed {draws.seed}"
        )
    return drawn, known


def _drawn(
    trace: Trace, templates: Sequence[JobTemplate], draws: Draws, notes: list[str]
) -> NDArray[np.int32]:
    suits = [_suits(trace, template) for template in templates]
    none: Bools = ~np.logical_or.reduce(suits)
    if count := int(np.sum(none)):
        notes.append(f"model: {count} jobs suit none by GPUs and duration, drawn from all")
    total = np.zeros(len(trace))
    for template, suit in zip(templates, suits, strict=True):
        total += template.weight * (suit | none)
    drawn = np.full(len(trace), -1, np.int32)
    wanted, reached = draws.uniform("models", len(trace)) * total, np.zeros(len(trace))
    for number, (template, suit) in enumerate(zip(templates, suits, strict=True)):
        reached += template.weight * (suit | none)
        drawn[(drawn < 0) & (wanted < reached)] = number
    return drawn


def _suits(trace: Trace, template: JobTemplate) -> Bools:
    (least, most), (short_s, long_s) = template.trace_gpus, template.trace_s
    fits: Bools = (trace.gpus >= least) & (trace.gpus <= most)
    if (short_s, long_s) != (0, np.inf):  # an unknown duration suits only those who do not ask
        fits &= (trace.duration_s >= short_s) & (trace.duration_s < long_s)
    return fits
