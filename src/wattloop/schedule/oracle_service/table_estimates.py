"""Prices on the machines of a fleet whose oracle is a table of measurements."""

from collections.abc import Sequence
from dataclasses import replace

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.fleet_oracle import FleetOracle
from wattloop.schedule.estimates.job_estimator import caps_of
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.estimates.submitted_job import timed_model
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle_service.job_query import JobQuery, fleet_types
from wattloop.schedule.oracle_service.placement_estimates import Pair, PlacementEstimate
from wattloop.schedule.oracle_service.placement_query import PlacementQuery


def table_estimates(
    jobs: Sequence[JobQuery], oracle: FleetOracle, most: int, wait_s: float
) -> tuple[list[PlacementQuery], list[Pair], list[PlacementEstimate]]:
    """Every placement that each job may take; a job that has none gets one that says why.

    Raises:
        ConfigError: more than `most` in all.
    """
    places: dict[PlacementQuery, int] = {}
    pairs: list[Pair] = []
    prices: list[PlacementEstimate] = []

    def add(job: int, where: PlacementQuery, price: PlacementEstimate) -> None:
        pairs.append((job, places.setdefault(where, len(places))))
        prices.append(price)

    for number, job in enumerate(jobs):
        try:
            kind = _kind(job, oracle.cluster)
            options = oracle.soon(kind, wait_s)
        except ConfigError as error:
            add(number, PlacementQuery("any"), PlacementEstimate(error=str(error)))
            continue
        if options is None or not len(options):
            said = "being worked out; ask again" if options is None else "fits no GPU of the fleet"
            add(number, PlacementQuery("any"), PlacementEstimate(error=said, later=options is None))
            continue
        for where, price in _rows(job, options, oracle):
            add(number, where, price)
        if len(pairs) > most:
            raise ConfigError(f"{len(pairs):,} placements in all; at most {most:,}")
    return list(places), pairs, prices


def _kind(job: JobQuery, cluster: Cluster) -> JobKind:
    stated = job.stated
    choices = JobKind(
        model="",
        gpus=job.gpus or (1,),
        caps=caps_of(stated),
        types=fleet_types(job, cluster),
        sequence=stated.sequence,
        may_spread=stated.may_spread,
    )
    if job.keys:
        key = job.keys[0]
        batches = tuple(each.batch for each in job.keys)
        return replace(choices, model=key.model, precision=key.precision, batches=batches)
    if job.time_s is None:
        raise ConfigError("; ".join(job.refusals) or "no model, no history and no time limit")
    return replace(choices, model=timed_model(job.gpu_w))


def _rows(
    job: JobQuery, options: PlacementOptions, oracle: FleetOracle
) -> list[tuple[PlacementQuery, PlacementEstimate]]:
    found = []
    cluster = oracle.cluster
    for option in range(len(options)):
        number, gpus, spread = options.shape(option)
        sample_s, cap_w = float(options.sample_s[option]), float(options.cap_w[option])
        work = job.work if job.keys else job.time_s
        where = PlacementQuery(
            cluster.types[number].name,
            gpus,
            cap_w,
            cluster.gpus_per_node(number),
            cluster.network_bytes_s,
            spread,
        )
        price = PlacementEstimate(
            time_s=None if work is None else work * sample_s,
            power_w=float(options.power_w[option]),
            samples_s=1 / sample_s if job.keys else None,
            batch=int(options.batch[option]) if job.keys else None,
            cap_w=cap_w,
            provenance="table" if job.keys else "limit" if job.gpu_w is None else "measured",
            source=options.source,
        )
        found.append((where, price))
    return found
