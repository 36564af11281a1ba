"""Several processes, perhaps on several nodes, measured as one job.

    with measured_together(EnergyMeter()) as job:
        train(job.meter)
    if job.energy is not None:          # on rank 0
        print(job.energy.table())

Works under `torchrun`, `mpirun` and `srun`: ranks begin and end together, each device is counted
once per node, and rank 0 gets a table of all nodes.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any

from wattloop.core.results import RunStatus
from wattloop.integrations.hook import TrainingMeter
from wattloop.integrations.job_table import JobTable
from wattloop.integrations.ranks import AloneRanks, Ranks, current_ranks
from wattloop.measure.run_result import RunResult

__all__ = ["MeasuredJob", "gather", "measured_together"]

_log = logging.getLogger("wattloop")


def measured_together(meter: TrainingMeter, ranks: Ranks | None = None) -> MeasuredJob:
    """A context manager that begins and ends `meter` at the same time in every rank."""
    return MeasuredJob(meter, ranks)


def gather(run: RunResult, node: str, ranks: Ranks | None = None) -> JobTable | None:
    """Energies of every rank's run, by node; on rank 0, None elsewhere. Called by every rank."""
    items = (ranks or current_ranks()).gather(_report(run, node))
    return None if items is None else JobTable.of(items)


class MeasuredJob:
    """This process's part in a job.

    Attributes:
        meter: this rank's meter.
        energy: after the end, on rank 0: the energy of all nodes.
    """

    def __init__(self, meter: TrainingMeter, ranks: Ranks | None = None) -> None:
        self.meter = meter
        self.energy: JobTable | None = None
        self._ranks: Ranks = ranks or AloneRanks()
        self._find_ranks = ranks is None

    def __enter__(self) -> MeasuredJob:
        if self._find_ranks:
            self._ranks = current_ranks()
        self._together()
        self.meter.begin()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None:  # the others will not come to a rank that failed
            self.meter.end(RunStatus.FAILED)
            return
        self._together()
        # Whoever counts the node's devices ends last: nobody may take over and count them again.
        session = self.meter.session
        counts = session is None or session.role.counts
        if not counts:
            self.meter.end()
        self._together()
        self.meter.end()
        self._gather()

    def _together(self) -> None:
        try:
            self._ranks.barrier()
        except Exception as error:  # noqa: BLE001 - each backend has its own; a dead rank
            self._ranks = AloneRanks()
            _log.warning("the ranks of this job do not end together: %s", error)

    def _gather(self) -> None:
        run, session = self.meter.run, self.meter.session
        if session is None:
            return
        if run is None:
            _log.warning("a run is still open around this job; its nodes are not gathered")
        try:
            report = {} if run is None else _report(run, session.host.name)
            items = self._ranks.gather(report)
            if items is not None:
                self.energy = JobTable.of([item for item in items if item])
        except Exception as error:  # noqa: BLE001 - each backend has its own; a dead rank
            _log.warning("the energies of this job's ranks could not be gathered: %s", error)


def _report(run: RunResult, node: str) -> dict[str, Any]:
    return {
        "node": node,
        "run_id": run.run_id,
        "counted": run.counted,
        "duration_s": run.result.duration_s,
        "domains": [
            {
                "name": d.name,
                "scope": d.scope.value,
                "energy_j": d.energy_j,
                "uncertainty_j": d.uncertainty_j,
                "in_total": d.in_total,
            }
            for d in run.result.domains
            if run.counted
        ],
        "missing": [m.name for m in run.missing] if run.counted else [],
    }
