"""Execution of the Slurm driver from the command line."""

import getpass
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattloop.cli.commands.slurm.view import Console, would_have_rows
from wattloop.cli.output import say, write_json
from wattloop.core.errors import ConfigError
from wattloop.core.paths import user_path
from wattloop.core.settings import STORE
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.driver import RoundRunner, SlurmDriver, run_loop
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.managed_cluster import (
    ClusterOptions,
    DriverSettings,
    ManagedCluster,
    build_managed_cluster,
)
from wattloop.schedule.slurm.nodes import SlurmNode
from wattloop.schedule.slurm.observer import SlurmObserver
from wattloop.schedule.slurm.power import Readings, no_readings
from wattloop.schedule.slurm.state import (
    DriverState,
    default_state_path,
    read_status,
    status_path,
    write_status,
)

if TYPE_CHECKING:
    from wattloop.schedule.slurm.energy_annotator import EnergyAnnotator
    from wattloop.store.database import Store


@dataclass(slots=True, kw_only=True)
class RunRequest:
    """Options of `slurm run`; None means not given."""

    policy: str
    budget: str | None = None
    partitions: tuple[str, ...] = ()
    observe: bool = False
    dry_run: bool = False
    once: bool = False
    interval_s: float = 1.0
    lease_s: float = 20.0
    cluster: str | None = None
    gpus_only: bool = False
    mapping: str | None = None
    oracle: str = "analytic"
    fleet: str | None = None
    token_file: str | None = None
    annotate: bool | None = None
    standby: bool = True
    state: str | None = None
    log: str | None = None
    store: str | None = None
    config: str | None = None
    json_file: str | None = None


@contextmanager
def store_of(request: RunRequest) -> "Iterator[Store | None]":
    """Return the store of past runs, if the operator names one."""
    if request.store is None and request.config is None:
        yield None
        return
    from wattloop.cli.settings import settings_of
    from wattloop.store.database import open_store

    store = open_store(settings_of(request.config, needs=STORE, store=request.store).store_location)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def readings_of(request: RunRequest, site: "ManagedCluster", log: DriverLog) -> Iterator[Readings]:
    """Return the reader of node power from the fleet server."""
    if request.fleet is None:
        if request.token_file is not None:
            raise ConfigError("--token-file is for --fleet URL; give that as well")
        yield no_readings
        return
    from wattloop.schedule.slurm.power import FleetPower

    token = _token(request.token_file)
    with FleetPower(request.fleet, token, site.known, log) as power:
        yield power.readings


@contextmanager
def annotating_of(
    request: RunRequest, store: "Store | None", client: SlurmClient, log: DriverLog
) -> "Iterator[EnergyAnnotator | None]":
    """Return the writer of ended jobs' energy, where energy is known and requested."""
    has_source = store is not None or request.fleet is not None
    if request.annotate and not has_source:
        raise ConfigError("--annotate needs to know the energy: give --fleet URL or --store PLACE")
    default = has_source and not request.observe and not request.dry_run
    if not (default if request.annotate is None else request.annotate):
        yield None
        return
    from wattloop.schedule.slurm.energy_annotator import (
        EnergyAnnotator,
        MeasuredEnergy,
        energy_from_fleet,
        energy_from_store,
    )

    cluster, token = client.cluster_name(), _token(request.token_file)

    def energy_of(number: str) -> MeasuredEnergy | None:
        if store is not None:
            return energy_from_store(store, cluster, number)
        return energy_from_fleet(str(request.fleet), token, cluster, number)

    with EnergyAnnotator(SlurmClient(), energy_of, log) as annotating:
        yield annotating


def _token(name: str | None) -> str:
    if name is None:
        return os.environ.get("WATTLOOP_TOKEN", "")
    try:
        return user_path(name).read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"--token-file {name}: {error.strerror}") from None


def execute(request: RunRequest) -> None:
    """Drive, observe, or show the commands of one poll.

    Raises:
        WattloopError: something asked for is wrong, or the policy failed too often.
    """
    if request.observe and request.dry_run:
        raise ConfigError("--observe goes on and on, --dry-run is one round; give one of them")
    policy = policy_from(request.policy)
    settings = DriverSettings(
        interval_s=request.interval_s, lease_s=request.lease_s, standby=request.standby
    )
    state_path = user_path(request.state) if request.state else default_state_path()
    looks_only = request.observe or request.dry_run
    client, console = SlurmClient(), Console(quiet=request.dry_run)
    log_path = user_path(request.log) if request.log else state_path.with_suffix(".log.jsonl")
    with store_of(request) as store:
        asked = _site_request(request, store)
        site = build_managed_cluster(client.nodes(), asked, policy)
        console.introduce(site, policy.name, looks_only=looks_only)
        log = DriverLog(None if request.dry_run and not request.log else log_path, console.tell)

        def rebuild(nodes: Sequence[SlurmNode]) -> ManagedCluster:
            return build_managed_cluster(nodes, asked, policy)

        with readings_of(request, site, log) as readings:
            steering: SlurmDriver | SlurmObserver
            if looks_only:
                steering = SlurmObserver(
                    client,
                    site,
                    policy,
                    log=log,
                    settings=settings,
                    readings=readings,
                    rebuild=rebuild,
                )
            else:
                state = DriverState.load(state_path)
                state.lock()
                steering = SlurmDriver(
                    client,
                    site,
                    policy,
                    state=state,
                    log=log,
                    settings=settings,
                    owner=getpass.getuser(),
                    readings=readings,
                    rebuild=rebuild,
                )
            reports = _Reports(request, steering, state_path, console)
            with _stopping() as stop, annotating_of(request, store, client, log) as annotating:

                def on_round(report: RoundReport) -> None:
                    reports.add(report)
                    if annotating is not None:
                        annotating.update(steering.snapshot.by_key, report.at_s)

                rounds = 1 if request.once or request.dry_run else None
                run_loop(steering, stop, rounds=rounds, on_round=on_round)
            if isinstance(steering, SlurmDriver):
                steering.state.unlock()
        _finish(request, steering, reports)
        log.close()


class _Reports:
    """Output of polls: console, status file and `--json`."""

    def __init__(
        self, request: RunRequest, steering: RoundRunner, state_path: Path, console: Console
    ) -> None:
        self._console, self._steering = console, steering
        self._path = None if request.dry_run else _own_status(state_path)
        self._mode = "observe" if request.observe else "drive"
        self._started_s = time.time()
        self.rounds = 0
        self.last: RoundReport | None = None

    def add(self, report: RoundReport) -> None:
        self.rounds += 1
        self.last = report
        self._console.round(report)
        if self._path is not None:
            write_status(self._path, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": self._mode,
            "policy": self._steering.policy.name,
            "pid": os.getpid(),
            "started_s": self._started_s,
            "rounds": self.rounds,
            "events": dict(self._steering.log.counts),
            "last": None if self.last is None else self.last.to_dict(),
        }


def _own_status(state_path: Path) -> Path | None:
    """Return the status file; None when another driver uses it."""
    path = status_path(state_path)
    with suppress(ConfigError):
        there = read_status(path)
        if there["alive"] and there.get("mode") == "drive" and there.get("pid") != os.getpid():
            return None
    return path


def _finish(request: RunRequest, steering: SlurmDriver | SlurmObserver, reports: _Reports) -> None:
    """Print the summary after the last poll."""
    data = reports.to_dict()
    if isinstance(steering, SlurmObserver):
        data["would_have"] = [row.to_dict() for row in steering.table.rows.values()]
        data["commands"] = [list(words) for words in steering.commands]
        if request.dry_run and request.json_file != "-":
            for words in steering.commands:
                sys.stdout.write(shlex.join(words) + "\n")
            if not steering.commands:
                say("wattloop: nothing to do in this round")
        elif request.json_file != "-":
            would_have_rows(steering.table)
    if request.json_file is not None:
        write_json(data, request.json_file)


def _site_request(request: RunRequest, store: "Store | None") -> ClusterOptions:
    return ClusterOptions(
        partitions=request.partitions,
        cluster=request.cluster,
        gpus_only=request.gpus_only,
        mapping=request.mapping,
        oracle=request.oracle,
        budget=request.budget,
        store=store,
    )


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM or SIGINT sets, also when sent twice."""
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        del number, frame
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
