"""From gathered columns to a trace: sorted, counted from the first arrival, with notes."""

import re
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.units import format_duration
from wattloop.schedule.jobs.traces.detection import Layout
from wattloop.schedule.jobs.traces.rows import Gathered
from wattloop.schedule.jobs.traces.trace import Coded, Trace

__all__ = ["trace_of"]

LONGEST_S = 3e9
"""No cluster has run for a century: whoever reads so took another unit."""

Floats = NDArray[np.float64]


def trace_of(name: str, found: Gathered, layout: Layout) -> Trace:
    """The trace of what was gathered from a file.

    Raises:
        ConfigError: nothing usable is left, or times that cannot be.
    """
    columns = {key: _joined(found, key) for key in list(found.columns)}
    arrival_s = columns.pop("arrival", np.empty(0))
    if not len(arrival_s):
        why = f": left out {_counted(found.left_out)}" if found.left_out else ""
        raise ConfigError(f"{name}: no job in {found.rows} rows below the names{why}")
    order = None
    late = int(np.sum(np.diff(arrival_s) < 0))
    if late:
        order = np.argsort(arrival_s, kind="stable")
        arrival_s = arrival_s[order]
        columns = {key: values[order] for key, values in columns.items()}
    first_s = float(arrival_s[0])
    arrival_s -= first_s
    if arrival_s[-1] > LONGEST_S:
        raise ConfigError(
            f"{name}: from the first arrival to the last pass {arrival_s[-1] / 31_557_600:.0f} "
            "years; is its unit right? Say which it is, such as "
            "jobs.trace.columns.arrival=COLUMN:ms"
        )
    model, batch = _model_and_batch(found, columns, layout)
    gpus = columns.pop("gpus").astype(np.int64)
    if batch is not None and layout.form.unit("batch") == "global":
        batch = batch / gpus
    samples, counted = _samples(_said(columns, "steps"), batch, gpus, layout)
    deadline_s = _said(columns, "deadline")
    names = tuple(found.names or ())
    if names and order is not None:
        names = tuple(names[row] for row in order.tolist())
    return Trace(
        source=name,
        arrival_s=arrival_s,
        gpus=gpus,
        duration_s=columns.pop("duration"),
        samples=samples,
        batch=batch,
        deadline_s=None if deadline_s is None else deadline_s - first_s,
        priority=_said(columns, "priority"),
        user=_coded(found, columns, "user"),
        model=model,
        gpu_type=_coded(found, columns, "gpu_type"),
        names=names,
        notes=(*_notes(name, found, layout, late, float(arrival_s[-1])), *counted),
    )


def _joined(found: Gathered, key: str) -> NDArray[np.float64]:
    return np.concatenate(found.columns.pop(key))  # popped: never two copies of all columns


def _said(columns: dict[str, Floats], key: str) -> Floats | None:
    """A column that says something of some job."""
    values = columns.pop(key, None)
    return None if values is None or np.isnan(values).all() else values


def _coded(found: Gathered, columns: dict[str, Floats], key: str) -> Coded | None:
    if key not in columns:
        return None
    words = tuple(word for word, code in found.words[key].items() if code >= 0)
    column = Coded(words, columns.pop(key).astype(np.int32, copy=False)).used()
    return column if column.values else None


def _model_and_batch(
    found: Gathered, columns: dict[str, Floats], layout: Layout
) -> tuple[Coded | None, Floats | None]:
    """`LM (batch size 10)` is a model and a batch, where the format says so."""
    model, batch = _coded(found, columns, "model"), _said(columns, "batch")
    if model is None or not layout.form.model_batch:
        return model, batch
    matches = [re.fullmatch(layout.form.model_batch, word) for word in model.values]
    words = [m.group(1) if m else w for m, w in zip(matches, model.values, strict=True)]
    sizes = np.array([*(float(m.group(2)) if m else np.nan for m in matches), np.nan])
    distinct = tuple(dict.fromkeys(words))
    codes = np.array([*(distinct.index(word) for word in words), -1], np.int32)
    return Coded(distinct, codes[model.codes]), sizes[model.codes] if batch is None else batch


def _samples(
    steps: Floats | None, batch: Floats | None, gpus: NDArray[np.int64], layout: Layout
) -> tuple[Floats | None, tuple[str, ...]]:
    if steps is None:
        return None, ()
    known = np.full(len(steps), np.nan) if batch is None else batch
    workers = gpus if layout.form.unit("steps") == "global" else 1
    single = int(np.sum(np.isnan(known)))
    note = f"{single} jobs without a batch: a step counts as one sample" if single else ""
    samples = steps * np.where(np.isnan(known), 1.0, known * workers)
    return samples, (note,) if note else ()


def _notes(name: str, found: Gathered, layout: Layout, late: int, span_s: float) -> tuple[str, ...]:
    jobs = found.rows - found.left_out.total()
    notes = [
        f"{name}: {jobs} jobs of {found.rows} rows over {format_duration(span_s)}, read as "
        f"{layout.form.name}"
    ]
    if found.left_out:
        notes.append(f"left out: {_counted(found.left_out)}")
    if late:
        notes.append(f"sorted by arrival; rows that came after later ones: {late}")
    if found.rounded_up:
        notes.append(f"{found.rounded_up} jobs asked for parts of a GPU, rounded up to whole ones")
    if found.names is None:
        notes.append("names of jobs are not kept: there are more than a million")
    return tuple(notes)


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{count} with {reason}" for reason, count in reasons.most_common())
