"""Time, power and energy of jobs on placements, many pairs at once."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu, gpu_of_table
from wattloop.predict.cap_curve import cap_curve, static_power
from wattloop.predict.intervals import most_power_w
from wattloop.predict.prediction import HOP_S, Placement
from wattloop.predict.workload.workload import Workload
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.analytic import laid_out_figures
from wattloop.schedule.estimates.fleet_file import FleetOracle
from wattloop.schedule.estimates.history import PastRuns
from wattloop.schedule.estimates.job_estimator import (
    EstimateSource,
    JobDescription,
    WorkloadKey,
    allowed_types,
)
from wattloop.schedule.estimates.oracle import placements_of
from wattloop.schedule.estimates.workload_estimates import (
    PlacementKey,
    WorkloadEstimates,
    WorkloadFigure,
)
from wattloop.schedule.jobs.kind import JobKind

COSTS: Mapping[str, Callable[[float, float], float]] = {
    "energy": lambda time_s, power_w: time_s * power_w,
    "time": lambda time_s, power_w: time_s,
    "edp": lambda time_s, power_w: time_s**2 * power_w,
}
"""Objective -> cost of a time and a power; lower is better."""
Pair = tuple[int, int]
Factors = Mapping[str, float]
UNKNOWN = "no model, no history and no time limit"


@dataclass(frozen=True, slots=True)
class PlacementQuery:
    """GPUs of one type with their power limit and network.

    Attributes:
        gpu: name in the hardware table or, with a cluster, of its GPU type.
        cap_w: power limit of each; None for the factory limit.
        gpus_per_node: more GPUs than this communicate over the network.
        spread: on more nodes than necessary.
    """

    gpu: str
    gpus: int = 1
    cap_w: float | None = None
    gpus_per_node: int = 8
    network_bytes_s: float = 25e9
    spread: bool = False

    def placement(self, gpu: Gpu, link_bytes_s: float | None = None) -> Placement:
        return Placement(
            gpu=gpu,
            gpus=self.gpus,
            cap_w=self.cap_w,
            link_bytes_s=link_bytes_s,
            gpus_per_node=1 if self.spread else self.gpus_per_node,
            network_bytes_s=self.network_bytes_s,
        )

    def to_dict(self) -> dict[str, Any]:
        return {"gpu": self.gpu, "gpus": self.gpus, "cap_w": self.cap_w, "spread": self.spread}


def known_places(places: Sequence[PlacementQuery]) -> list[Placement | str]:
    """Convert each to a placement of `predict`, or to an error message."""
    found: dict[PlacementQuery, Placement | str] = {}
    for where in dict.fromkeys(places):
        try:
            gpu = gpu_of_table(where.gpu)
        except ConfigError as error:
            found[where] = str(error)
            continue
        if where.cap_w is not None and not gpu.cap_min_w <= where.cap_w <= gpu.cap_max_w:
            found[where] = (
                f"cap_w {where.cap_w:g}: the {gpu.product} can be set to {gpu.cap_min_w:g} to "
                f"{gpu.cap_max_w:g} W"
            )
        else:
            found[where] = where.placement(gpu)
    return [found[where] for where in places]


def cluster_places(kind: JobKind, cluster: Cluster) -> list[tuple[PlacementQuery, Placement]]:
    """Return all placements of a kind on a cluster, without regard to the batch."""
    rows = placements_of(kind, cluster)
    columns = (rows.type_index, rows.gpus, rows.cap_w, rows.spread)
    found: dict[PlacementQuery, Placement] = {}
    for number, gpus, cap_w, spread in zip(*(each.tolist() for each in columns), strict=True):
        where = _on_cluster(cluster, number, gpus, cap_w, spread)
        gpu_type = cluster.types[number]
        found[where] = replace(
            where.placement(gpu_type.gpu, gpu_type.link_bytes_s),
            exchange_w=gpu_type.exchange_w,
            exchange_hop_s=gpu_type.exchange_hop_s,
            zero=kind.zero,
            link_latency_s=cluster.hop_s or HOP_S,
        )
    return list(found.items())


def _on_cluster(
    cluster: Cluster, number: int, gpus: int, cap_w: float, spread: bool
) -> PlacementQuery:
    per_node = cluster.gpus_per_node(number)
    name = cluster.types[number].name
    return PlacementQuery(name, gpus, cap_w, per_node, cluster.network_bytes_s, spread)


@dataclass(slots=True)
class PlacementEstimate:
    """Estimate of one job on one placement.

    Attributes:
        time_s: time of the whole job; None when the number of samples is unknown.
        power_w: power of all its GPUs together (scope: gpu).
        most_w: upper bound of the power, in addition to `factors`; None when unknown.
        samples_s: throughput; None where only a time is known.
        batch: samples per GPU and step that cost least; None where only a time is known.
        cap_w: power limit of each GPU.
        factors: quantity -> the true value is within value / factor and value x factor.
        provenance: `predicted`, `measured`, ..., or `limit` for the most it may be.
        error: why there is no estimate; all other fields are then None.
        later: the estimate is being computed; ask again in some seconds.
    """

    time_s: float | None = None
    power_w: float | None = None
    most_w: float | None = None
    samples_s: float | None = None
    batch: int | None = None
    cap_w: float | None = None
    factors: Factors | None = None
    provenance: str = ""
    source: str = ""
    error: str = ""
    later: bool = False

    @property
    def energy_j(self) -> float | None:
        """Return the energy of all its GPUs (scope: gpu)."""
        if self.time_s is None or self.power_w is None:
            return None
        return self.time_s * self.power_w

    def to_dict(self) -> dict[str, Any]:
        if self.error:
            return {"error": self.error, "later": self.later}
        factors = self.factors or {}
        return {
            "time_s": self.time_s,
            "power_w": self.power_w,
            "energy_j": self.energy_j,
            "samples_s": self.samples_s,
            "batch": self.batch,
            "cap_w": self.cap_w,
            "intervals": {
                "time_s": _interval(self.time_s, factors.get("time")),
                "power_w": _interval(self.power_w, factors.get("power"), self.most_w),
                "energy_j": _interval(self.energy_j, factors.get("energy")),
            },
            "provenance": self.provenance,
            "source": self.source,
        }


def _interval(
    value: float | None, factor: float | None, most: float | None = None
) -> list[float] | None:
    if value is None or factor is None:
        return None
    high = value * factor
    return [value / factor, high if most is None else min(high, max(most, value))]


class PairEstimates:
    """Estimates of one query.

    Args:
        kept: cached workloads and models, shared by all queries.
        wait_s: most time for tracing new models, in all.
    """

    def __init__(self, kept: WorkloadEstimates, *, wait_s: float) -> None:
        self._kept = kept
        self._until_s = time.monotonic() + wait_s
        self._workloads: dict[WorkloadKey, Workload | PlacementEstimate] = {}

    def of(
        self,
        jobs: Sequence[JobDescription],
        places: Sequence[Placement | str],
        pairs: Sequence[Pair],
        objective: str,
    ) -> list[PlacementEstimate]:
        """Estimate each pair; a placement that is a text is an error message."""
        found: list[PlacementEstimate | None] = [None] * len(pairs)
        asked: list[tuple[int, WorkloadKey, PlacementKey]] = []
        spots: dict[tuple[int, float | None, int], PlacementKey] = {}
        for at, (number, where) in enumerate(pairs):
            job, place = jobs[number], places[where]
            refused = place if isinstance(place, str) else _refused(job, place)
            if refused or isinstance(place, str):
                found[at] = PlacementEstimate(error=refused)
                continue
            kind = job.kind(())
            if kind.is_laid_out:
                found[at] = self._laid_out(job, kind, _capped(place, job.cap_share), objective)
                continue
            spot = spots.get((where, job.cap_share, kind.zero))
            if spot is None:
                spot = self._kept.spot(replace(_capped(place, job.cap_share), zero=kind.zero))
                spots[where, job.cap_share, kind.zero] = spot
            if not job.keys:
                found[at] = _by_time(job, spot.placement)
            for key in job.keys:
                asked.append((at, key, spot))
        figures = self._figures(asked)
        for at, key, spot in asked:
            price = _price(figures[key, spot], key, spot, jobs[pairs[at][0]].work)
            other = found[at]
            found[at] = price if other is None else _better(other, price, objective)
        return [price or PlacementEstimate(error="no price") for price in found]

    def _laid_out(
        self, job: JobDescription, kind: JobKind, place: Placement, objective: str
    ) -> PlacementEstimate:
        """Estimate a layout or a service; the rest of a long query is left for the next one."""
        best: PlacementEstimate | None = None
        plain = replace(kind, gpus=(1,), caps=(1.0,), batches=(1,), may_spread=False)
        for batch in kind.batches:
            if time.monotonic() > self._until_s:
                return PlacementEstimate(error="being worked out; ask again", later=True)
            try:
                idle_w = static_power(place.gpu).watts
                figures = laid_out_figures(plain, place, batch, idle_w)
            except ConfigError as error:
                price = PlacementEstimate(error=str(error))
            else:
                price = PlacementEstimate(
                    time_s=None if job.work is None else job.work * figures.sample_s,
                    power_w=figures.power_w,
                    most_w=place.gpus * most_power_w(place),
                    samples_s=1 / figures.sample_s,
                    batch=batch,
                    cap_w=place.cap_w,
                    factors={"time": figures.time_x},
                    provenance="predicted",
                    source=f"decoder ({place.gpu.name}, {figures.source})",
                )
            best = price if best is None else _better(best, price, objective)
        return best or PlacementEstimate(error="no batch")

    def _figures(
        self, asked: Sequence[tuple[int, WorkloadKey, PlacementKey]]
    ) -> dict[tuple[WorkloadKey, PlacementKey], WorkloadFigure | PlacementEstimate]:
        """Compute each needed figure once; an estimate with an error where there is none."""
        found: dict[tuple[WorkloadKey, PlacementKey], WorkloadFigure | PlacementEstimate] = {}
        by_gpu: dict[str, dict[WorkloadKey, dict[PlacementKey, None]]] = {}
        for _, key, spot in asked:
            by_gpu.setdefault(spot.placement.gpu.name, {}).setdefault(key, {})[spot] = None
        for by_key in by_gpu.values():
            wanted: dict[WorkloadKey, tuple[Workload, Sequence[PlacementKey]]] = {}
            for key, own in by_key.items():
                workload = self._workload(key)
                if isinstance(workload, PlacementEstimate):
                    found |= {(key, spot): workload for spot in own}
                else:
                    wanted[key] = (workload, list(own))
            try:
                found |= self._kept.figures(wanted)
            except ConfigError as error:
                refused = PlacementEstimate(error=str(error))
                found |= {(key, spot): refused for key in wanted for spot in by_key[key]}
        return found

    def _workload(self, key: WorkloadKey) -> Workload | PlacementEstimate:
        if key not in self._workloads:
            left_s = max(self._until_s - time.monotonic(), 0.0)
            try:
                found = self._kept.workload(key, left_s)
            except ConfigError as error:
                self._workloads[key] = PlacementEstimate(error=str(error))
            else:
                said = f"{key.label} is being traced; ask again in some seconds"
                self._workloads[key] = found or PlacementEstimate(error=said, later=True)
        return self._workloads[key]


def _capped(place: Placement, share: float | None) -> Placement:
    """Return the placement with the job's cap, if it has none itself."""
    if place.cap_w is not None or share is None:
        return place
    return replace(place, cap_w=max(share * place.gpu.tdp_w, place.gpu.cap_min_w))


def _price(
    figure: WorkloadFigure | PlacementEstimate,
    key: WorkloadKey,
    spot: PlacementKey,
    work: float | None,
) -> PlacementEstimate:
    if isinstance(figure, PlacementEstimate):
        return figure
    if figure.refused:
        return PlacementEstimate(error=figure.refused)
    return PlacementEstimate(
        time_s=None if work is None else work / figure.samples_s,
        power_w=figure.power_w,
        most_w=figure.most_w,
        samples_s=figure.samples_s,
        batch=key.batch,
        cap_w=spot.placement.cap_w,
        factors=figure.factors,
        provenance="predicted",
        source=figure.source,
    )


def _refused(job: JobDescription, place: Placement) -> str:
    if job.source is EstimateSource.NONE:
        return "; ".join(job.refusals) or f"{UNKNOWN}: nothing is known"
    if job.gpus and place.gpus not in job.gpus:
        allowed = ", ".join(map(str, job.gpus))
        return f"on {place.gpus} GPUs: the job is known or may run on {allowed} only"
    return ""


def _better(one: PlacementEstimate, other: PlacementEstimate, objective: str) -> PlacementEstimate:
    """Return the estimate that costs less per sample; an estimate rather than an error."""
    if one.error or other.error:
        return other if one.error else one

    def cost(price: PlacementEstimate) -> float:
        return COSTS[objective](1 / (price.samples_s or 1.0), price.power_w or 0.0)

    return other if cost(other) < cost(one) else one


def _by_time(job: JobDescription, place: Placement) -> PlacementEstimate:
    """Estimate a job of which only a time is known."""
    assert job.time_s is not None  # only jobs with a known time get here
    limit_w = place.gpu.tdp_w if place.cap_w is None else place.cap_w
    found = PlacementEstimate(
        time_s=job.time_s,
        power_w=limit_w * place.gpus,
        cap_w=place.cap_w,
        provenance="limit",
        source="; ".join(job.notes),
    )
    if job.gpu_w is None or job.past is None:
        return found
    own_w = min(max(job.gpu_w, place.gpu.idle_w or 0.0), place.gpu.tdp_w)
    curve = cap_curve(1.0, own_w, [limit_w], place.gpu)
    found.time_s = job.time_s * max(float(curve.step_s.ravel()[0]), 1.0)
    found.power_w = float(curve.power_w.ravel()[0]) * place.gpus
    found.factors, found.provenance = _spread(job.past), job.past.provenance
    return found


def _spread(past: PastRuns) -> Factors:
    """Return the factor of the middle 80% of earlier jobs, the wider side of the interval."""

    def factor(low: float | None, middle: float | None, high: float | None) -> float:
        if not low or not middle or not high:
            return 1.0
        return max(high / middle, middle / low, 1.0)

    time_x = factor(past.time_low_s, past.time_s, past.time_high_s)
    power_x = factor(past.gpu_low_w, past.gpu_w, past.gpu_high_w)
    both = float(np.exp(np.hypot(np.log(time_x), np.log(power_x))))
    return {"time": time_x, "power": power_x, "energy": both}


def table_estimates(
    jobs: Sequence[JobDescription], oracle: FleetOracle, most: int, wait_s: float
) -> tuple[list[PlacementQuery], list[Pair], list[PlacementEstimate]]:
    """Estimate all allowed placements of each job; a job without any gets an error.

    Raises:
        ConfigError: more than `most` in all.
    """
    places: dict[PlacementQuery, int] = {}
    pairs: list[Pair] = []
    prices: list[PlacementEstimate] = []
    for number, job in enumerate(jobs):
        for where, price in _looked_up(job, oracle, wait_s):
            pairs.append((number, places.setdefault(where, len(places))))
            prices.append(price)
        if len(pairs) > most:
            raise ConfigError(f"{len(pairs):,} placements in all; at most {most:,}")
    return list(places), pairs, prices


def _looked_up(
    job: JobDescription, oracle: FleetOracle, wait_s: float
) -> list[tuple[PlacementQuery, PlacementEstimate]]:
    cluster = oracle.cluster
    try:
        kind = job.kind(allowed_types(job.stated.types, cluster, job.refusals))
        if not job.keys and job.time_s is None:
            raise ConfigError("; ".join(job.refusals) or UNKNOWN)
        options = oracle.soon(kind, wait_s)
    except ConfigError as error:
        return [(PlacementQuery("any"), PlacementEstimate(error=str(error)))]
    if options is None:
        price = PlacementEstimate(error="being worked out; ask again", later=True)
        return [(PlacementQuery("any"), price)]
    if not len(options):
        return [(PlacementQuery("any"), PlacementEstimate(error="fits no GPU of the fleet"))]
    work = job.work if job.keys else job.time_s
    found = []
    for option in range(len(options)):
        number, gpus, spread = options.shape(option)
        sample_s, cap_w = float(options.sample_s[option]), float(options.cap_w[option])
        price = PlacementEstimate(
            time_s=None if work is None else work * sample_s,
            power_w=float(options.power_w[option]),
            samples_s=1 / sample_s if job.keys else None,
            batch=int(options.batch[option]) if job.keys else None,
            cap_w=cap_w,
            provenance="table" if job.keys else "limit" if job.gpu_w is None else "measured",
            source=options.source,
        )
        found.append((_on_cluster(cluster, number, gpus, cap_w, spread), price))
    return found
