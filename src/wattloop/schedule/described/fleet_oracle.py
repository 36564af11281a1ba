"""One oracle for all jobs of a fleet, whatever is known of them."""

from collections.abc import Callable, Mapping, Sequence

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.described.background import Prepared
from wattloop.schedule.described.model_names import ModelNames, predicted_names, table_names
from wattloop.schedule.described.timed import is_timed, timed_options
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.options import Options
from wattloop.schedule.oracle.oracle import Factors, Oracle
from wattloop.schedule.oracle.spec import OracleSpec

__all__ = ["FleetOracle"]

MOST_KINDS = 2_000
"""Kinds whose options are kept: users invent kinds, and memory is not theirs."""


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
        self._prepared: Prepared[JobKind, Options] = Prepared(self._answer, most=MOST_KINDS)
        # apart: whoever is told a time limit does not wait for a model that is being traced
        self._timed: Prepared[JobKind, Options] = Prepared(
            lambda kind: timed_options(kind, self.cluster), most=MOST_KINDS
        )

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
        return (self._timed if is_timed(kind) else self._prepared).get(kind)

    def soon(self, kind: JobKind, wait_s: float = 0.0) -> Options | None:
        """The same if it is there, or comes within `wait_s`; None while it is worked out.

        Raises:
            ConfigError: as `options`.
        """
        return self.options(kind) if is_timed(kind) else self._prepared.soon(kind, wait_s)

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

    def _answer(self, kind: JobKind) -> Options:
        if self._asked_inner >= MOST_KINDS:
            # what it keeps cannot be told to go; what it has computed is on disk
            self._inner, self._asked_inner = self._make(), 0
        self._asked_inner += 1
        return self._inner.options(kind)
