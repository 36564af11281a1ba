"""Drivers of Slurm and of Kubernetes on the command line: shared options, sources and output."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from wattloop.cli.options import Config, JsonFile, StorePlace, option, settings_of
from wattloop.cli.output import is_terminal, print_rows, say
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.settings import STORE
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.managed_cluster import ClusterOptions, ManagedCluster
from wattloop.schedule.driver.power_readings import FleetPower, Readings, no_readings
from wattloop.schedule.driver.rounds import DecisionTable
from wattloop.store.database import Store, open_store

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


INTERVAL = option(
    "--interval -i SECONDS", "Between two rounds; down to a fifth of it while jobs come and go."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDriverOptions:
    """Options of drivers of any scheduler; None means not given."""

    policy: Annotated[
        str, option("--policy -p POLICY", "Such as fifo, zeus, charon; FILE.py:Class.")
    ] = "zeus"
    budget: Annotated[
        str | None, option("--budget POWER", "Most that all nodes may draw: 4.5kW.")
    ] = None
    once: Annotated[bool, option("--once", "One round, then stop.")] = False
    interval: Annotated[float, INTERVAL] = 1.0
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
    log: Annotated[str | None, option("--log FILE", "Log, one JSON object a line.")] = None
    store: StorePlace = None
    config: Config = None
    json_file: JsonFile = None

    def cluster_options(self, partitions: Sequence[str], store: "Store | None") -> ClusterOptions:
        return ClusterOptions(
            partitions=tuple(partitions),
            cluster=self.cluster,
            gpus_only=self.gpus_only,
            mapping=self.mapping,
            oracle=self.oracle,
            budget=self.budget,
            store=store,
        )


@contextmanager
def store_of(options: ClusterDriverOptions) -> "Iterator[Store | None]":
    if options.store is None and options.config is None:
        yield None
        return

    settings = settings_of(options.config, needs=STORE, store=options.store)
    with open_store(settings.store_location) as store:
        yield store


@contextmanager
def readings_of(
    options: ClusterDriverOptions, site: "ManagedCluster", log: DriverLog
) -> Iterator[Readings]:
    if options.fleet is None:
        if options.token_file is not None:
            raise ConfigError("--token-file is for --fleet URL; give that as well")
        yield no_readings
        return

    token = token_of(options.token_file)
    with FleetPower(options.fleet, token, site.known, log) as power:
        yield power.readings


def token_of(name: str | None) -> str:
    if name is None:
        return os.environ.get("WATTLOOP_TOKEN", "")
    try:
        return user_path(name).read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"--token-file {name}: {error.strerror}") from None
