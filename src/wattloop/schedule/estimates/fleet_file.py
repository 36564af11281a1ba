"""Fleet: the file of machines, oracle and rules, and the oracle of a fleet's jobs."""

import queue
import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from wattloop.core.cache import LruCache
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.yaml_spec import read_yaml
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.file import cluster_from, load_cluster
from wattloop.schedule.estimates.job_rules import JobRules, load_rules
from wattloop.schedule.estimates.oracle import Factors, Oracle, PlacementOptions, placements_of
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.yaml_model import NameOrFields, StrictModel

MOST_WAITING = 64
"""Most keys that wait for a worker; further ones are requested again later."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BackgroundCache(Generic[K, V]):
    """Cache that computes each value once and keeps the last `most` of them, including errors.

    Args:
        make: computes the value of a key, one call at a time; a `ConfigError` is cached as well.
    """

    def __init__(self, make: Callable[[K], V], *, most: int) -> None:
        self._make = make
        self._values: LruCache[K, V | ConfigError] = LruCache(most)
        self._guard = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._waiting: queue.Queue[K] = queue.Queue(MOST_WAITING)
        self._coming: dict[K, threading.Event] = {}
        self._worker: threading.Thread | None = None

    def get(self, key: K) -> V:
        """Return the value, computed now if necessary.

        Raises:
            ConfigError: it cannot be computed.
        """
        found = self._values.get(key)
        if found is None:
            with self._one_at_a_time:
                found = self._values.get(key)
                if found is None:
                    try:
                        found = self._make(key)
                    except ConfigError as error:
                        found = error
                    self._values.put(key, found)
        if isinstance(found, ConfigError):
            raise ConfigError(str(found))  # a new object: the cached one would collect tracebacks
        return found

    def soon(self, key: K, wait_s: float = 0.0) -> V | None:
        """Return the value if it is available within `wait_s`; None while it is computed.

        Raises:
            ConfigError: it cannot be computed.
        """
        if self._values.get(key) is None:
            event = self._requested(key)
            if event is None or not event.wait(wait_s):
                return None
        return self.get(key)

    def _requested(self, key: K) -> threading.Event | None:
        """Return an event that is set with the value; None when too many keys wait."""
        with self._guard:
            if key in self._coming:
                return self._coming[key]
            try:
                self._waiting.put_nowait(key)
            except queue.Full:
                return None
            event = self._coming[key] = threading.Event()
            if self._worker is None:
                self._worker = threading.Thread(
                    target=self._work, name="wattloop-oracle", daemon=True
                )
                self._worker.start()
            return event

    def _work(self) -> None:
        while True:
            key = self._waiting.get()
            try:
                self.get(key)
            except ConfigError:
                pass  # cached; the next caller gets the error
            except Exception as error:  # noqa: BLE001 - an error of one key must not end the worker
                self._values.put(key, ConfigError(f"cannot be predicted: {error}"))
            with self._guard:
                self._coming.pop(key).set()


MOST_SAID = 5


class ModelNames:
    """Table from users' model names to the oracle's; case and punctuation do not matter.

    A name never becomes a path or a module. Names outside of the table are refused, so that a
    job's comment cannot run code or read files.

    Args:
        known: name -> the oracle's name.
        batches: the oracle's name -> its only batches; empty for any.
        other: finds further spellings; returns a name of `known`, or None.
        precision: default precision of a job; empty where the oracle has only one.
        precisions: the oracle's name -> its only precision.
    """

    def __init__(
        self,
        known: Mapping[str, str],
        *,
        batches: Mapping[str, Sequence[int]] | None = None,
        other: Callable[[str], str | None] = lambda text: None,
        precision: str = "",
        precisions: Mapping[str, str] | None = None,
    ) -> None:
        self._known = dict(known)
        self._by_key = {_key(name): name for name in known}
        self._batches = dict(batches or {})
        self._other = other
        self._precision = precision
        self._precisions = dict(precisions or {})

    def find(self, text: str) -> str:
        """Return the oracle's name of a model.

        Raises:
            ConfigError: the model is unknown; the message has the nearest names.
        """
        name = self._by_key.get(_key(text)) or self._other(text)
        if name is None or name not in self._known:
            raise ConfigError(f"model '{text[:100]}': unknown; {self._nearest(text)}")
        return self._known[name]

    def batches(self, model: str) -> tuple[int, ...]:
        return tuple(self._batches.get(model, ()))

    def precision(self, model: str) -> str:
        return self._precisions.get(model, self._precision)

    def names(self) -> list[str]:
        return sorted(self._known)

    def with_workloads(self, files: Mapping[str, str]) -> "ModelNames":
        """Return the table with saved workloads under the operator's names, each with one batch."""
        if not files:
            return self
        from wattloop.predict.workload.files import load_workload

        traced = {path: load_workload(path) for path in files.values()}
        return ModelNames(
            {**self._known, **files},
            batches={**self._batches, **{path: (one.batch,) for path, one in traced.items()}},
            other=self._other,
            precision=self._precision,
            precisions={path: one.precision for path, one in traced.items()},
        )

    def _nearest(self, text: str) -> str:
        near = get_close_matches(_key(text)[:100], list(self._by_key), n=MOST_SAID, cutoff=0.5)
        if near:
            return f"did you mean {', '.join(self._by_key[key] for key in near)}?"
        some = self.names()[:MOST_SAID]
        more = f" and {len(self._known) - len(some)} more" if len(self._known) > len(some) else ""
        return f"known are {', '.join(some)}{more}"


def predicted_names() -> ModelNames:
    from wattloop.predict.sources.huggingface import architecture_names, canonical_name

    known = {name: f"hf:{name}" for name in architecture_names()}
    return ModelNames(known, other=canonical_name, precision="fp32")


def table_names(models: Mapping[str, Sequence[float]]) -> ModelNames:
    """Return the names of a table of measurements, each with its batches per GPU."""
    whole = {
        name: tuple(int(batch) for batch in batches if batch == int(batch))
        for name, batches in models.items()
    }
    return ModelNames({name: name for name in models}, batches=whole)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


TIMED = "timed:"
"""Prefix of timed models; comments cannot name them, because they may not contain a colon."""


def timed_model(gpu_w: float | None = None) -> str:
    """Return the model name of a kind whose work is in seconds, with `gpu_w` per GPU uncapped."""
    return TIMED if gpu_w is None else f"{TIMED}{gpu_w:.1f}W"


def is_timed(kind: JobKind) -> bool:
    return kind.model.startswith(TIMED)


def timed_options(kind: JobKind, cluster: Cluster) -> PlacementOptions:
    """Return the placements of a timed kind.

    With a known power, a cap slows the job like a typical program of that power. Without one, the
    job is assumed to draw the power limit for its whole time limit, so that neither a budget nor a
    deadline depends on an estimate that is too low.
    """
    rows = placements_of(replace(kind, batches=(1,)), cluster)
    said = kind.model.removeprefix(TIMED).removesuffix("W")
    stretch, power_w = np.ones(len(rows)), rows.cap_w.copy()
    if said:
        from wattloop.predict.cap_curve import cap_curve

        for number in np.unique(rows.type_index).tolist():
            mine = rows.type_index == number
            gpu_type = cluster.types[number]
            own_w = min(max(float(said), gpu_type.idle_w), gpu_type.cap_w(1.0))
            curve = cap_curve(1.0, own_w, rows.cap_w[mine], gpu_type.gpu)
            stretch[mine] = np.maximum(curve.step_s.ravel(), 1.0)
            power_w[mine] = curve.power_w.ravel()
    source = f"measured: {said} W per GPU" if said else "time limit at the GPUs' power limit"
    return rows.options(stretch, power_w * rows.gpus, stretch, source)


MOST_KINDS = 2_000
"""Most cached kinds: users can invent kinds, and memory is limited."""


class FleetOracle(Oracle):
    """Oracle of all jobs of a fleet: models by another oracle, other jobs by their known time.

    The first prediction of a model may take seconds, because it is traced. `options` waits for it;
    `soon` does not, and a background thread continues with it.

    Args:
        make: creates the oracle of models; called again when its cache is too large.
    """

    name = "fleet"

    def __init__(self, cluster: Cluster, make: Callable[[], Oracle], names: ModelNames) -> None:
        self.cluster = cluster
        self.names = names
        self._make = make
        self._inner = make()
        self._asked_inner = 0
        self._prepared: BackgroundCache[JobKind, PlacementOptions] = BackgroundCache(
            self._answer, most=MOST_KINDS
        )
        # separate cache: jobs with a time limit must not wait for a model that is being traced
        self._timed: BackgroundCache[JobKind, PlacementOptions] = BackgroundCache(
            lambda kind: timed_options(kind, self.cluster), most=MOST_KINDS
        )

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        spec: OracleSpec | None = None,
        workloads: Mapping[str, str] | None = None,
    ) -> "FleetOracle":
        """Build the oracle of a scenario's `oracle` section; `workloads` are saved ones by name."""
        spec = spec or OracleSpec()
        if spec.kind == "analytic":
            names = predicted_names().with_workloads(workloads or {})
            return cls(cluster, lambda: spec.truth(cluster), names)
        if workloads:
            raise ConfigError("workloads are predicted; a table of measurements cannot use them")
        from wattloop.schedule.estimates.table import TableOracle

        table = spec.truth(cluster)
        assert isinstance(table, TableOracle)
        return cls(cluster, lambda: spec.truth(cluster), table_names(table.throughputs.models))

    def options(self, kind: JobKind) -> PlacementOptions:
        """Return all placements of the kind; the same object as long as it is cached."""
        return (self._timed if is_timed(kind) else self._prepared).get(kind)

    def soon(self, kind: JobKind, wait_s: float = 0.0) -> PlacementOptions | None:
        """Return the options if available within `wait_s`; None while they are computed."""
        return self.options(kind) if is_timed(kind) else self._prepared.soon(kind, wait_s)

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        return None if is_timed(kind) else self._inner.factors(job, kind)

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        return None if is_timed(kind) else self._inner.factors_of(jobs, kind)

    @property
    def power_error(self) -> float:
        return self._inner.power_error

    @property
    def time_error(self) -> float:
        return self._inner.time_error

    def _answer(self, kind: JobKind) -> PlacementOptions:
        if self._asked_inner >= MOST_KINDS:
            # its memory cannot be freed in another way; computed tables are on disk
            self._inner, self._asked_inner = self._make(), 0
        self._asked_inner += 1
        return self._inner.options(kind)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines with their oracle and the operator's rules.

    cluster: cluster.yaml      # or a shipped one by name, or its fields
    oracle: analytic           # as in a scenario
    rules: jobs.yaml           # optional
    """

    cluster: Cluster
    spec: OracleSpec
    rules: JobRules = field(default_factory=JobRules)

    def oracle(self) -> FleetOracle:
        return FleetOracle.of(self.cluster, self.spec, self.rules.workloads)


def load_fleet(name: str, mapping: str = "") -> Fleet:
    """Load a fleet file, a cluster file or a shipped cluster; `mapping` replaces its rules.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    rules = load_rules(mapping) if mapping else JobRules()
    if not name.endswith((".yaml", ".yml")):
        return Fleet(load_cluster(name), OracleSpec(), rules)
    source = read_yaml(name)
    if "groups" in source.data:
        return Fleet(load_cluster(name), OracleSpec(), rules)
    spec = _FleetSpec.read(source.data, source, name)
    folder = user_path(name).parent
    cluster = (
        cluster_from(spec.cluster, name=Path(name).stem)
        if isinstance(spec.cluster, Mapping)
        else load_cluster(_resolved(spec.cluster, folder))
    )
    if spec.rules and not mapping:
        rules = load_rules(_resolved(spec.rules, folder))
    return Fleet(cluster, spec.oracle.located(folder), rules)


def _resolved(name: str, folder: Path) -> str:
    return str(folder / user_path(name)) if name.endswith((".yaml", ".yml")) else name


class _FleetSpec(StrictModel):
    cluster: NameOrFields
    oracle: OracleSpec = OracleSpec()
    rules: str = ""
