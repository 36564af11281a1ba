"""Execution of the Slurm driver from the command line, and its terminal output."""

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
from typing import TYPE_CHECKING, Annotated, Any

from wattloop.cli.options import Config, JsonFile, StorePlace, option
from wattloop.cli.output import is_terminal, print_rows, say, write_json
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.settings import STORE
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.driver import RoundRunner, SlurmDriver, run_loop
from wattloop.schedule.slurm.dry_run import DecisionTable, SlurmObserver
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.managed_cluster import (
    ClusterOptions,
    DriverSettings,
    ManagedCluster,
    build_managed_cluster,
)
from wattloop.schedule.slurm.nodes import SlurmNode
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


EVERY_S = 10.0
"""A line about a round in which nothing happened, at most so often."""
TOLD = {"start": "start", "preempt": "stop", "recap": "recap", "would-start": "would start"}
QUIET = ("standby", "pass", "late")


class Console:
    """Messages of the driver on standard error.

    Args:
        quiet: nothing but refusals.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._said_s = 0.0
        self._line = is_terminal(sys.stderr)

    def introduce(self, site: ManagedCluster, policy: str, *, looks_only: bool) -> None:
        if self._quiet:
            return
        known, gpus = site.known, site.known.cluster.gpus
        what = "looks at" if looks_only else "places jobs of"
        say(
            f"wattloop: {policy} {what} {', '.join(site.managed)}: {len(known.names)} nodes, "
            f"{gpus} GPUs ({', '.join(kind.name for kind in known.cluster.types)})"
        )
        for line in known.left_out:
            say(f"wattloop: left out: {line}")
        if site.shared and not looks_only:
            say(f"wattloop: shared with {', '.join(site.shared)}: their jobs are let through")

    def tell(self, kind: str, text: str) -> None:
        if kind in QUIET or (self._quiet and kind not in ("refused", "fault", "warning")):
            return
        say(f"{time.strftime('%H:%M:%S')} {TOLD.get(kind, kind)}: {text}")

    def round(self, report: RoundReport) -> None:
        now_s = time.monotonic()
        if self._quiet or now_s - self._said_s < EVERY_S:
            return
        self._said_s = now_s
        budget = "" if report.budget_w == float("inf") else f" of {format_power(report.budget_w)}"
        say(
            f"{time.strftime('%H:%M:%S')} {report.waiting} wait, {report.running} run, "
            f"{report.free_gpus} GPUs free, {format_power(report.power_w)}{budget}, round "
            f"{report.took_s * 1e3:.0f} ms"
        )


def would_have_rows(table: DecisionTable) -> None:
    """Show the policy's decisions next to what Slurm did."""
    rows = [
        (
            row.key,
            row.user,
            row.source,
            "-" if row.would_s is None else format_duration(max(row.would_s - row.submit_s, 0)),
            "-" if row.began_s is None else format_duration(max(row.began_s - row.submit_s, 0)),
            ",".join(row.nodes),
            str(row.gpus or "-"),
            "-" if row.cap_w is None else format_power(row.cap_w),
            "-" if row.time_s is None else format_duration(row.time_s),
            "-" if row.gpu_energy_j is None else format_energy(row.gpu_energy_j),
        )
        for row in table.rows.values()
    ]
    headers = (
        "job", "user", "estimate", "would wait", "waited", "nodes", "gpus", "cap", "time",
        "gpu energy",
    )  # fmt: skip
    if rows:
        print_rows(headers, rows, spare=("user", "nodes"))
    else:
        say("wattloop: no job waited")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOptions:
    """Options of `slurm run`; None means not given."""

    policy: Annotated[
        str, option("--policy -p POLICY", "Such as fifo, zeus, charon; FILE.py:Class.")
    ] = "zeus"
    budget: Annotated[
        str | None, option("--budget POWER", "Most that all nodes may draw: 4.5kW.")
    ] = None
    partition: Annotated[
        list[str] | None,
        option("--partition NAME", "Whose jobs are ours to place (may be repeated)."),
    ] = None
    observe: Annotated[bool, option("--observe", "Change nothing; show what it would do.")] = False
    dry_run: Annotated[bool, option("--dry-run", "One round: print its commands, run none.")] = (
        False
    )
    once: Annotated[bool, option("--once", "One round, then stop.")] = False
    interval: Annotated[
        float,
        option(
            "--interval -i SECONDS",
            "Between two rounds; down to a fifth of it while jobs come and go.",
        ),
    ] = 1.0
    lease: Annotated[
        float, option("--lease SECONDS", "How long Slurm waits for a driver that died.")
    ] = 20.0
    cluster: Annotated[
        str | None, option("--cluster FILE", "Watts of GPUs and hosts (docs/clusters.md).")
    ] = None
    gpus_only: Annotated[bool, option("--gpus-only", "Count the power of GPUs, not of hosts.")] = (
        False
    )
    mapping: Annotated[
        str | None, option("--mapping FILE", "Rules that map job names to models.")
    ] = None
    oracle: Annotated[str, option("--oracle KIND", "'analytic' predicts, 'table' looks up.")] = (
        "analytic"
    )
    fleet: Annotated[
        str | None, option("--fleet URL", "The fleet's server: power as measured.")
    ] = None
    token_file: Annotated[str | None, option("--token-file FILE", "Token for the server.")] = None
    annotate: Annotated[
        bool | None,
        option(
            "--annotate/--no-annotate",
            "Write the measured energy of ended jobs into AdminComment (default: with "
            "--fleet or --store; not with --observe).",
        ),
    ] = None
    standby: Annotated[
        bool, option("--standby/--no-standby", "Let jobs through ahead, for GPUs about to be free.")
    ] = True
    state: Annotated[str | None, option("--state FILE", "Where the driver keeps its notes.")] = None
    log: Annotated[str | None, option("--log FILE", "Log, one JSON object a line.")] = None
    store: StorePlace = None
    config: Config = None
    json_file: JsonFile = None


@contextmanager
def store_of(options: DriverOptions) -> "Iterator[Store | None]":
    if options.store is None and options.config is None:
        yield None
        return
    from wattloop.cli.options import settings_of
    from wattloop.store.database import open_store

    settings = settings_of(options.config, needs=STORE, store=options.store)
    with open_store(settings.store_location) as store:
        yield store


@contextmanager
def readings_of(
    options: DriverOptions, site: "ManagedCluster", log: DriverLog
) -> Iterator[Readings]:
    if options.fleet is None:
        if options.token_file is not None:
            raise ConfigError("--token-file is for --fleet URL; give that as well")
        yield no_readings
        return
    from wattloop.schedule.slurm.power import FleetPower

    token = _token(options.token_file)
    with FleetPower(options.fleet, token, site.known, log) as power:
        yield power.readings


@contextmanager
def annotating_of(
    options: DriverOptions, store: "Store | None", client: SlurmClient, log: DriverLog
) -> "Iterator[EnergyAnnotator | None]":
    has_source = store is not None or options.fleet is not None
    if options.annotate and not has_source:
        raise ConfigError("--annotate needs to know the energy: give --fleet URL or --store PLACE")
    default = has_source and not options.observe and not options.dry_run
    if not (default if options.annotate is None else options.annotate):
        yield None
        return
    from wattloop.schedule.slurm.energy_annotator import (
        EnergyAnnotator,
        MeasuredEnergy,
        energy_from_fleet,
        energy_from_store,
    )

    cluster, token = client.cluster_name(), _token(options.token_file)

    def energy_of(number: str) -> MeasuredEnergy | None:
        if store is not None:
            return energy_from_store(store, cluster, number)
        return energy_from_fleet(str(options.fleet), token, cluster, number)

    with EnergyAnnotator(SlurmClient(), energy_of, log) as annotating:
        yield annotating


def _token(name: str | None) -> str:
    if name is None:
        return os.environ.get("WATTLOOP_TOKEN", "")
    try:
        return user_path(name).read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"--token-file {name}: {error.strerror}") from None


def execute(options: DriverOptions) -> None:
    """Drive, observe, or show the commands of one poll.

    Raises:
        WattloopError: something asked for is wrong, or the policy failed too often.
    """
    if options.observe and options.dry_run:
        raise ConfigError("--observe goes on and on, --dry-run is one round; give one of them")
    policy = policy_from(options.policy)
    settings = DriverSettings(
        interval_s=options.interval, lease_s=options.lease, standby=options.standby
    )
    state_path = user_path(options.state) if options.state else default_state_path()
    looks_only = options.observe or options.dry_run
    client, console = SlurmClient(), Console(quiet=options.dry_run)
    log_path = user_path(options.log) if options.log else state_path.with_suffix(".log.jsonl")
    with store_of(options) as store:
        asked = ClusterOptions(
            partitions=tuple(options.partition or ()),
            cluster=options.cluster,
            gpus_only=options.gpus_only,
            mapping=options.mapping,
            oracle=options.oracle,
            budget=options.budget,
            store=store,
        )
        site = build_managed_cluster(client.nodes(), asked, policy)
        console.introduce(site, policy.name, looks_only=looks_only)
        log = DriverLog(None if options.dry_run and not options.log else log_path, console.tell)

        def rebuild(nodes: Sequence[SlurmNode]) -> ManagedCluster:
            return build_managed_cluster(nodes, asked, policy)

        with readings_of(options, site, log) as readings:
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
            reports = _Reports(options, steering, state_path, console)
            with stopping() as stop, annotating_of(options, store, client, log) as annotating:

                def on_round(report: RoundReport) -> None:
                    reports.add(report)
                    if annotating is not None:
                        annotating.update(steering.snapshot.by_key, report.at_s)

                rounds = 1 if options.once or options.dry_run else None
                run_loop(steering, stop, rounds=rounds, on_round=on_round)
            if isinstance(steering, SlurmDriver):
                steering.state.unlock()
        _finish(options, steering, reports)
        log.close()


class _Reports:
    """Output of polls: console, status file and `--json`."""

    def __init__(
        self, options: DriverOptions, steering: RoundRunner, state_path: Path, console: Console
    ) -> None:
        self._console, self._steering = console, steering
        self._path = None if options.dry_run else _own_status(state_path)
        self._mode = "observe" if options.observe else "drive"
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


def _finish(
    options: DriverOptions, steering: SlurmDriver | SlurmObserver, reports: _Reports
) -> None:
    data = reports.to_dict()
    if isinstance(steering, SlurmObserver):
        data["would_have"] = [row.to_dict() for row in steering.table.rows.values()]
        data["commands"] = [list(words) for words in steering.commands]
        if options.dry_run and options.json_file != "-":
            for words in steering.commands:
                sys.stdout.write(shlex.join(words) + "\n")
            if not steering.commands:
                say("wattloop: nothing to do in this round")
        elif options.json_file != "-":
            would_have_rows(steering.table)
    write_json(data, options.json_file)


@contextmanager
def stopping() -> Iterator[threading.Event]:
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
