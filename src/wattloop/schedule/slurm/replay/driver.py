"""Slurm driver in a background thread during a replay."""

import getpass
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from wattloop.core.errors import ConfigError, SlurmError
from wattloop.schedule.estimates.fleet_oracle import FleetOracle
from wattloop.schedule.estimates.job_estimator import JobEstimator
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.commands import SlurmCommands
from wattloop.schedule.slurm.driver import SlurmDriver
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.loop import run_loop
from wattloop.schedule.slurm.managed_cluster import (
    Believed,
    DriverSettings,
    ManagedCluster,
    shared_partitions,
)
from wattloop.schedule.slurm.nodes import SlurmNode, known_nodes
from wattloop.schedule.slurm.replay.plan import ReplayPlan
from wattloop.schedule.slurm.scontrol import SlurmClient
from wattloop.schedule.slurm.state import DriverState
from wattloop.schedule.step_function import StepFunction


@dataclass
class Steering:
    """Factory of context managers in which a driver runs a policy on Slurm.

    Args:
        plan: replay plan; the driver uses its oracle and its budget.
        commands: runner of Slurm's programs.
        folder: folder of the driver's state file and log.
        partition: managed partition; by default Slurm's only one.
        settings: intervals and limits of the driver.

    Attributes:
        rounds: reports of the driver's rounds, by policy.
    """

    plan: ReplayPlan
    commands: SlurmCommands
    folder: Path
    partition: str = ""
    settings: DriverSettings = field(default_factory=DriverSettings)
    rounds: dict[str, list[RoundReport]] = field(default_factory=dict)

    def looks(self, policy: str) -> list[tuple[float, list[int]]]:
        """Return the times of a driver's polls (`time.monotonic`) and the jobs started then."""
        offset_s = time.time() - time.monotonic()
        return [
            (report.at_s - offset_s, [int(key) for key in report.starts if key.isdigit()])
            for report in self.rounds.get(policy, [])
        ]

    def __call__(self, policy: str) -> AbstractContextManager[object]:
        """Return a context in which the policy schedules Slurm's jobs."""
        return self._steering(policy)

    @contextmanager
    def _steering(self, name: str) -> Iterator[SlurmDriver]:
        client = SlurmClient(self.commands)
        site = self._site(client)
        stem = name.partition("{")[0]
        state = DriverState.load(self.folder / f"driver-{stem}.json")
        log = DriverLog(self.folder / f"driver-{stem}.jsonl")
        state.hold()
        driver = SlurmDriver(
            client,
            site,
            policy_from(name),
            state=state,
            log=log,
            settings=self.settings,
            owner=getpass.getuser(),
        )
        stop, faults = threading.Event(), list[Exception]()
        reports = self.rounds.setdefault(name, [])

        def work() -> None:
            try:
                run_loop(driver, stop, on_round=reports.append)
            except Exception as error:  # noqa: BLE001 - reported when the context ends
                faults.append(error)

        thread = threading.Thread(target=work, name=f"driver {name}")
        thread.start()
        try:
            yield driver
        finally:
            stop.set()
            thread.join()
            state.let_go()
            log.close()
        if faults:
            raise SlurmError(f"replay: the driver of {name} gave up: {faults[0]}")

    def _site(self, client: SlurmClient) -> ManagedCluster:
        """Build the managed cluster with the plan's power figures and oracle."""
        plan = self.plan
        nodes = client.nodes()
        partitions = (self.partition,) if self.partition else _only(nodes)
        known = known_nodes(nodes, partitions, described=plan.cluster)
        oracle = FleetOracle.of(known.cluster, plan.oracle)
        for kind in plan.open.kinds:
            oracle.options(kind)  # trace models now: tracing takes longer than a round
        return ManagedCluster(
            known=known,
            managed=partitions,
            shared=shared_partitions(nodes, known, partitions),
            believed=Believed(JobEstimator(oracle), known.cluster),
            oracle=oracle,
            budget_w=_constant(plan.settings.budget_w),
        )


def _only(nodes: Sequence[SlurmNode]) -> tuple[str, ...]:
    found = sorted({name for node in nodes for name in node.partitions})
    if len(found) != 1:
        raise ConfigError(f"Slurm has partitions {', '.join(found)}; say which with --partition")
    return (found[0],)


def _constant(budget: StepFunction) -> StepFunction:
    """Return the budget if it is constant: driver and plan count time from different origins."""
    if len(budget.values) > 1 and not math.isinf(max(budget.values)):
        raise ConfigError("replay: a budget that changes over the day; give one with --budget")
    return budget
