"""Completion of a trace with models, work, options, users and deadlines that it lacks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import nearest
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions
from wattloop.schedule.jobs.attributes import Deadlines, Draws, Users, best_runtime_s, pin_options
from wattloop.schedule.jobs.kind import JobKind, JobTemplate
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.traces.trace import Coded, Trace

Codes = NDArray[np.int32]


def match_models(words: Coded, templates: Sequence[JobTemplate]) -> Codes:
    """Return the template of each row's model; -1 for unknown models."""
    names: dict[str, int] = {}
    for number, template in enumerate(templates):
        model = template.kind.model
        for name in (*template.called, model, model.rpartition("/")[2], model.rpartition(":")[2]):
            names.setdefault(_plain(name), number)
    return _translated(words, [names.get(_plain(word), -1) for word in words.values])


def match_gpu_types(
    words: Coded, cluster: Cluster, renamed: Mapping[str, str], source: str, *, strict: bool
) -> Codes:
    """Return the cluster's GPU type (index) of each row; -1 for unknown ones.

    `renamed` maps words of the trace to types of the cluster; with `strict`, an unknown type is an
    error.
    """
    types: dict[str, int] = {}
    for number, each in enumerate(cluster.types):
        for name in (each.name, each.gpu.name, each.gpu.product, *each.gpu.aliases):
            types.setdefault(_plain(name), number)
    own = [each.name for each in cluster.types]
    for word, name in renamed.items():
        if name not in own:
            raise ConfigError(
                f"gpu_types: {word}: the cluster has no type '{name}', only {', '.join(own)}"
            )
        types[_plain(word)] = own.index(name)
    found = [types.get(_plain(word), -1) for word in words.values]
    if strict and -1 in found:
        word = words.values[found.index(-1)]
        rows = int(np.sum(words.codes == words.values.index(word)))
        raise ConfigError(
            f"{source}: GPU type '{word}' ({rows} jobs) is not in the cluster, which has "
            f"{', '.join(own)}. Say which stands for it (jobs.trace.gpu_types.{word}={own[0]}), "
            "or let jobs run on any (jobs.trace.gpu_types=any)"
        )
    return _translated(words, found)


def _translated(words: Coded, found: Sequence[int]) -> Codes:
    return np.array([*found, -1], np.int32)[words.codes]


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


WIDEST = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Combinations:
    """Distinct combinations of integer columns.

    Attributes:
        of_job: combination of each row, as an index into `rows`.
    """

    rows: list[tuple[int, ...]]
    counts: list[int]
    of_job: NDArray[np.int64]

    @classmethod
    def of(cls, *columns: NDArray[Any]) -> "Combinations":
        """Combine columns; the result is ordered by the first column, then the others."""
        of_job = np.zeros(len(columns[0]), np.int64)
        for column in columns:
            place, count = _places(column)
            of_job, _ = _places(of_job * count + place)
        counts = np.bincount(of_job)
        one = np.empty(len(counts), np.int64)
        one[of_job] = np.arange(len(of_job))  # any row represents its combination
        rows = [tuple(int(column[row]) for column in columns) for row in one.tolist()]
        return cls(rows, counts.tolist(), of_job)


def _places(column: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Return the rank of each value among the distinct ones, and their number."""
    if not len(column):
        return np.zeros(0, np.int64), 0
    low, high = int(column.min()), int(column.max())
    if high - low >= WIDEST:
        values, place = np.unique(column, return_inverse=True)
        return place.astype(np.int64), len(values)
    # counting is ten times faster than sorting
    seen = np.bincount(column.astype(np.int64) - low) > 0
    places = np.cumsum(seen) - 1
    return places[column.astype(np.int64) - low], int(seen.sum())


def reference_type(cluster: Cluster) -> int:
    """Return the assumed GPU type of a trace without types: the most common one."""
    return int(np.argmax(cluster.gpus_by_type))


def reference_sample_s(
    options: PlacementOptions, cluster: Cluster, type_index: int, gpus: int
) -> tuple[float, bool]:
    """Return seconds per sample on `gpus` GPUs of a type at full power with the fastest batch.

    If that placement does not exist, use the same number of GPUs of the most common type that has
    it; else the nearest number of GPUs, with linear scaling.

    Returns:
        The figure, NaN for a kind without any placement; and True if it is of that placement.
    """
    if not len(options):
        return np.nan, False
    by_size = sorted(range(len(cluster.types)), key=lambda n: -cluster.gpus_by_type[n])
    for each in (type_index, *by_size):
        rows = np.flatnonzero((options.type_index == each) & (options.gpus == gpus))
        if len(rows):
            full = rows[options.cap_w[rows] == options.cap_w[rows].max()]
            return float(options.sample_s[full].min()), each == type_index
    nearest = options.gpus[np.argmin(np.abs(np.log(options.gpus / gpus)))]
    rows = np.flatnonzero(options.gpus == nearest)
    return float(options.sample_s[rows].min() * nearest / gpus), False


Bools = NDArray[np.bool_]


def draw_models(
    trace: Trace, templates: Sequence[JobTemplate], draws: Draws, notes: list[str]
) -> tuple[NDArray[np.int32], Bools]:
    """Return the template of each job, and True where the trace names it.

    Otherwise it is drawn by weight among those that suit the job's GPUs and duration.
    """
    drawn = _drawn(trace, templates, draws, notes)
    known = np.zeros(len(trace), bool)
    if trace.model is not None:
        said = match_models(trace.model, templates)
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
    if (short_s, long_s) != (0, np.inf):  # an unknown duration suits only templates without a bound
        fits &= (trace.duration_s >= short_s) & (trace.duration_s < long_s)
    return fits


# Every assumption is recorded in the notes of the resulting table.
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Completion:
    """Settings for making jobs of a trace's rows.

    Attributes:
        templates: assumed models, drawn by weight among those that suit a row's GPUs and duration.
            Their GPU counts are ignored, because the trace has its own.
        deadlines: deadlines of a share of the jobs, where the trace has no column for them.
        rigid: jobs run on the GPUs they asked for; otherwise also on half and twice as many.
        reference: GPU type on which a trace without types was recorded; empty is the cluster's
            most common one.
        match_types: jobs run only on the GPU type that the trace names.
        renamed_types: GPU type of the trace -> of the cluster.
    """

    templates: tuple[JobTemplate, ...]
    people: Users = field(default_factory=Users)
    deadlines: Deadlines | None = None
    rigid: bool = False
    reference: str = ""
    match_types: bool = False
    renamed_types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.templates:
            raise ConfigError("jobs: no models that the trace's jobs could be training")

    def table(self, trace: Trace, seed: int, cluster: Cluster, oracle: Oracle) -> JobTable:
        """Build the jobs of a trace for one seed."""
        draws, notes = Draws(seed), list(trace.notes)
        made_from, own_model = draw_models(trace, self.templates, draws, notes)
        recorded_on, tied = self._types(trace, cluster, notes)
        kinds, kind = self._kinds(trace, made_from, tied, cluster)
        if self.rigid:
            kinds, kind = pin_options(kinds, kind, draws, oracle)
        counts = "as many as" if self.rigid else "half, the same and twice what"
        notes.append(f"GPUs: {counts} the trace asks for")
        sample_s = _recorded_sample_s(trace, kinds, kind, recorded_on, cluster, oracle, notes)
        work = _work(trace, own_model, sample_s, notes)
        users, user = self._users(trace, draws, notes)
        return JobTable(
            kinds=kinds,
            users=users,
            arrival_s=trace.arrival_s,
            kind=kind,
            user=user,
            work=work,
            deadline_s=self._deadlines(trace, draws, kinds, kind, work, oracle, notes),
            priority=_priority(trace),
            names=trace.names,
            notes=tuple(notes),
        )

    def _types(self, trace: Trace, cluster: Cluster, notes: list[str]) -> tuple[Codes, Codes]:
        """Return the GPU type on which each job was recorded, and the required one or -1."""
        names = [each.name for each in cluster.types]
        if self.reference and self.reference not in names:
            known = nearest(self.reference, names)
            raise ConfigError(f"reference: the cluster has no '{self.reference}'; {known}")
        usual = names.index(self.reference) if self.reference else reference_type(cluster)
        any_type = np.full(len(trace), -1, np.int32)
        if trace.gpu_type is None:
            if self.match_types:
                raise ConfigError(f"{trace.source}: gpu_types: match, but no column names them")
            notes.append(f"durations are taken as recorded on {names[usual]}")
            return np.full(len(trace), usual, np.int32), any_type
        said = match_gpu_types(
            trace.gpu_type, cluster, self.renamed_types, trace.source, strict=self.match_types
        )
        notes.append(
            f"durations are taken as recorded on the GPU type that the trace names where the "
            f"cluster has it ({int((said >= 0).sum())} jobs), else on {names[usual]}"
        )
        tie = "jobs run only on that type" if self.match_types else "jobs may run on any type"
        notes.append(tie)
        return np.where(said < 0, np.int32(usual), said), said if self.match_types else any_type

    def _kinds(
        self, trace: Trace, made_from: Codes, tied: Codes, cluster: Cluster
    ) -> tuple[tuple[JobKind, ...], Ints]:
        batch = np.zeros(len(trace), np.int64)
        if self.rigid and trace.batch is not None:
            known = np.nan_to_num(trace.batch)
            batch = np.maximum(np.rint(known), known > 0).astype(np.int64)
        most = max(cluster.gpus_by_type)
        combined = Combinations.of(made_from, tied, trace.gpus, batch)
        numbers: dict[JobKind, int] = {}
        found = np.empty(len(combined.rows), np.int64)
        for row, (template, type_index, gpus, size) in enumerate(combined.rows):
            base = self.templates[template].kind
            counts = {gpus} if self.rigid else {gpus // 2 or 1, gpus, 2 * gpus}
            kind = replace(
                base,
                gpus=tuple(sorted(n for n in counts if n == gpus or n <= most)),
                batches=(size,) if size else base.batches,
                types=(cluster.types[type_index].name,) if type_index >= 0 else base.types,
            )
            found[row] = numbers.setdefault(kind, len(numbers))
        return tuple(numbers), found[combined.of_job]

    def _users(self, trace: Trace, draws: Draws, notes: list[str]) -> tuple[tuple[str, ...], Ints]:
        if trace.user is None:
            notes.append(f"user: drawn from {len(self.people.names)}")
            return self.people.names, self.people.draw(draws, len(trace))
        missing = trace.user.codes < 0
        if not missing.any():
            return trace.user.values, trace.user.codes.astype(np.int64)
        users = (*trace.user.values, "unknown")
        notes.append(f"user: {int(missing.sum())} jobs without one belong to 'unknown'")
        return users, np.where(missing, len(users) - 1, trace.user.codes).astype(np.int64)

    def _deadlines(
        self,
        trace: Trace,
        draws: Draws,
        kinds: tuple[JobKind, ...],
        kind: Ints,
        work: Floats,
        oracle: Oracle,
        notes: list[str],
    ) -> Floats:
        if trace.deadline_s is not None:
            return np.where(np.isfinite(trace.deadline_s), trace.deadline_s, np.inf)
        if self.deadlines is None:
            return np.full(len(trace), np.inf)
        notes.append(
            f"deadlines: {self.deadlines.share:.0%} of the jobs, {self.deadlines.factor:g} x best "
            "runtime after arrival"
        )
        best_s = best_runtime_s(kinds, kind, work, oracle)
        return self.deadlines.draw(draws, trace.arrival_s, best_s)


def _recorded_sample_s(
    trace: Trace,
    kinds: tuple[JobKind, ...],
    kind: Ints,
    recorded_on: Codes,
    cluster: Cluster,
    oracle: Oracle,
    notes: list[str],
) -> Floats:
    """Return seconds per sample of each job as recorded; NaN for jobs that can never run."""
    combined = Combinations.of(kind, recorded_on, trace.gpus)
    sample_s, never, elsewhere = np.empty(len(combined.rows)), 0, 0
    for row, (number, type_index, gpus) in enumerate(combined.rows):
        options = oracle.options(kinds[number])
        sample_s[row], there = reference_sample_s(options, cluster, type_index, gpus)
        never += 0 if len(options) else combined.counts[row]
        elsewhere += 0 if there or not len(options) else combined.counts[row]
    if elsewhere:
        notes.append(
            f"{elsewhere} jobs cannot run on that many GPUs of that type: their work is that of "
            "the nearest placement there is"
        )
    if never:
        notes.append(f"jobs that can never run on this cluster, kept and reported: {never}")
    return np.asarray(sample_s[combined.of_job])


def _work(trace: Trace, own_model: NDArray[np.bool_], sample_s: Floats, notes: list[str]) -> Floats:
    """Return samples: those of the trace for known models, else duration / sample time."""
    # a job that can never run has no speed: assume one sample per second
    work = trace.duration_s / np.where(np.isnan(sample_s), 1.0, sample_s)
    own = np.isnan(work)
    if trace.samples is not None:
        own |= own_model & np.isfinite(trace.samples)
        work = np.where(own, trace.samples, work)
        notes.append(f"work: {int(own.sum())} jobs have the samples that the trace says")
    if not own.all():
        notes.append(
            f"work: {int((~own).sum())} jobs have duration x samples per second where they were "
            "recorded, at full power with the fastest batch they may have"
        )
    return work


def _priority(trace: Trace) -> Ints:
    if trace.priority is None:
        return np.zeros(len(trace), np.int64)
    return np.rint(np.nan_to_num(trace.priority)).astype(np.int64)
