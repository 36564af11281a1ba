"""What `wattloop slurm run` was asked for, and where power and energy come from."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattloop.core.errors import ConfigError
from wattloop.core.settings import STORE
from wattloop.core.user_code import user_path
from wattloop.schedule.slurm.event_log import DriverLog
from wattloop.schedule.slurm.poller import Readings, no_readings
from wattloop.schedule.slurm.scontrol import SlurmClient

if TYPE_CHECKING:
    from wattloop.schedule.slurm.annotate import EnergyAnnotator
    from wattloop.schedule.slurm.managed_cluster import ManagedCluster
    from wattloop.store.database import Store

__all__ = ["RunRequest", "annotating_of", "readings_of", "store_of"]


@dataclass(slots=True, kw_only=True)
class RunRequest:
    """Options as they were given; None means not given."""

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
    """Past runs, where the operator names a store."""
    if request.store is None and request.config is None:
        yield None
        return
    from wattloop.cli.chosen import settings_of
    from wattloop.store.database import open_store

    store = open_store(settings_of(request.config, needs=STORE, store=request.store).store_location)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def readings_of(request: RunRequest, site: "ManagedCluster", log: DriverLog) -> Iterator[Readings]:
    """Power that nodes report to the fleet's server."""
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
    """Whoever writes the energy of ended jobs, where it is known and wanted."""
    has_source = store is not None or request.fleet is not None
    if request.annotate and not has_source:
        raise ConfigError("--annotate needs to know the energy: give --fleet URL or --store PLACE")
    default = has_source and not request.observe and not request.dry_run
    if not (default if request.annotate is None else request.annotate):
        yield None
        return
    from wattloop.schedule.slurm.annotate import (
        EnergyAnnotator,
        JobEnergy,
        energy_from_fleet,
        energy_from_store,
    )

    cluster, token = client.cluster_name(), _token(request.token_file)

    def energy_of(number: str) -> JobEnergy | None:
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
