"""One oracle for all jobs of a fleet, whatever is known of them."""

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.described.model_names import ModelNames, predicted_names, table_names
from wattloop.schedule.described.timed import is_timed, timed_options
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.options import Options
from wattloop.schedule.oracle.oracle import Factors, Oracle
from wattloop.schedule.oracle.spec import OracleSpec

__all__ = ["FleetOracle"]

MOST_KINDS = 2_000
"""Kinds whose options are kept: users invent kinds, and memory is not theirs."""
MOST_WAITING = 64
"""Kinds that wait to be predicted; others are asked for again later."""


class FleetOracle(Oracle):
    """Models by an oracle behind it, jobs with a time alone by that time.

    Predicting a model nobody has asked for yet may take seconds (it is traced). `options` waits for
    it; `soon` does not, and a worker of this process goes on with it.

    Args:
        cluster: where jobs run.
        make: a new oracle that knows models; called again when it has kept too much.
        names: the models that jobs may name.
    """

    name = "fleet"

    def __init__(self, cluster: Cluster, make: Callable[[], Oracle], names: ModelNames) -> None:
        self.cluster = cluster
        self.names = names
        self._make = make
        self._inner = make()
        self._asked_inner = 0
        self._kept: OrderedDict[JobKind, Options | ConfigError] = OrderedDict()
        self._guard = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._waiting: queue.Queue[JobKind] = queue.Queue(MOST_WAITING)
        self._coming: dict[JobKind, threading.Event] = {}
        self._worker: threading.Thread | None = None

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        spec: OracleSpec | None = None,
        workloads: Mapping[str, str] | None = None,
    ) -> "FleetOracle":
        """As the `oracle` section of a scenario says; `workloads` are saved ones by name.

        Raises:
            ConfigError: a file it names is wrong.
        """
        spec = spec or OracleSpec()
        if spec.kind == "analytic":
            names = predicted_names().with_workloads(workloads or {})
            return cls(cluster, lambda: spec.truth(cluster), names)
        if workloads:
            raise ConfigError("workloads are predicted; a table of measurements cannot use them")
        from wattloop.schedule.oracle.table import TableOracle

        table = spec.truth(cluster)
        assert isinstance(table, TableOracle)
        return cls(cluster, lambda: spec.truth(cluster), table_names(table.throughputs.models))

    def options(self, kind: JobKind) -> Options:
        """Every placement of the kind; the same object as long as it is kept.

        Raises:
            ConfigError: nothing is known of it, or it cannot be predicted here.
        """
        found = self._look(kind)
        if found is None:
            with self._one_at_a_time:
                found = self._look(kind)
                if found is None:
                    found = self._answer(kind)
                    self._keep(kind, found)
        if isinstance(found, ConfigError):
            raise found
        return found

    def soon(self, kind: JobKind, wait_s: float = 0.0) -> Options | None:
        """The same if it is there, or comes within `wait_s`; None while it is worked out.

        Raises:
            ConfigError: as `options`.
        """
        if is_timed(kind) or self._look(kind) is not None:
            return self.options(kind)
        event = self._request(kind)
        if event is None or not event.wait(wait_s):
            return None
        return self.options(kind)

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """The inner oracle's; what was measured or limited has none."""
        return None if is_timed(kind) else self._inner.factors(job, kind)

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        """The inner oracle's; what was measured or limited has none."""
        return None if is_timed(kind) else self._inner.factors_of(jobs, kind)

    @property
    def power_error(self) -> float:
        """The inner oracle's."""
        return self._inner.power_error

    @property
    def time_error(self) -> float:
        """The inner oracle's."""
        return self._inner.time_error

    def _answer(self, kind: JobKind) -> Options | ConfigError:
        if is_timed(kind):
            return timed_options(kind, self.cluster)
        if self._asked_inner >= MOST_KINDS:
            # what it keeps cannot be told to go; what it has computed is on disk
            self._inner, self._asked_inner = self._make(), 0
        self._asked_inner += 1
        try:
            return self._inner.options(kind)
        except ConfigError as error:
            return error

    def _look(self, kind: JobKind) -> Options | ConfigError | None:
        with self._guard:
            found = self._kept.get(kind)
            if found is not None:
                self._kept.move_to_end(kind)
            return found

    def _keep(self, kind: JobKind, found: Options | ConfigError) -> None:
        with self._guard:
            self._kept[kind] = found
            while len(self._kept) > MOST_KINDS:
                self._kept.popitem(last=False)

    def _request(self, kind: JobKind) -> threading.Event | None:
        """An event that comes when the kind is known; None when too many wait already."""
        with self._guard:
            if kind in self._coming:
                return self._coming[kind]
            try:
                self._waiting.put_nowait(kind)
            except queue.Full:
                return None
            event = self._coming[kind] = threading.Event()
            if self._worker is None:
                self._worker = threading.Thread(
                    target=self._work, name="wattloop-oracle", daemon=True
                )
                self._worker.start()
            return event

    def _work(self) -> None:
        while True:
            kind = self._waiting.get()
            try:
                self.options(kind)
            except ConfigError:
                pass  # kept; whoever asks next hears it
            except Exception as error:  # noqa: BLE001 - a fault of one kind must not end the worker
                self._keep(kind, ConfigError(f"job kind {kind.label}: {error}"))
            with self._guard:
                self._coming.pop(kind).set()
