"""Kubernetes driver and observer: rounds on Jobs and Workloads."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from wattloop.accounting.grid import FRESH_S, GridSeries, StartAdvice, best_start
from wattloop.core.errors import ConfigError, GridUnavailable, KubernetesAway, KubernetesError
from wattloop.core.units import format_duration
from wattloop.fleet.kubernetes.api_client import Json, KubernetesClient, segment
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.inventory import SchedulerJob
from wattloop.schedule.driver.managed_cluster import DriverSettings, ManagedCluster
from wattloop.schedule.driver.planner import PlannedStart, RoundPlan
from wattloop.schedule.driver.poller import Rebuild, Snapshot
from wattloop.schedule.driver.power_readings import Readings, no_readings
from wattloop.schedule.driver.rounds import RoundObserver, RoundRunner
from wattloop.schedule.driver.view import LiveView
from wattloop.schedule.estimates.job_estimator import EstimateSource
from wattloop.schedule.kubernetes.queue import (
    PARTITION,
    START_BY,
    KubernetesQueue,
    release_all,
    release_patch,
    seconds,
    stamp,
    suspend_patch,
)
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.selene import LEAST_GAIN, SLACK, delay_seconds

LEASE = "wattloop-driver"
Forecast = Callable[[], GridSeries]
_Runner: TypeAlias = "KubernetesDriver | KubernetesObserver"
ADVISE_EVERY_S = 60.0
MOST_DELAY_S = 400 * 86_400.0
UNKNOWN_S = 3_600.0
"""Run time of a Job with neither an estimate nor a limit, as of `run --when-green`."""


@dataclass(slots=True)
class DriverLease:
    """The Lease object that says which driver works, and until when.

    A program that finds it expired may release everything: `wattloop k8s release --if-expired`,
    which the chart runs every minute. So nothing waits for a driver that died, and there is neither
    a finalizer nor a state file to lose.

    Attributes:
        holder: this driver; the same identity may take its own lease again.
        valid_s: without a renewal for so long the driver counts as dead.
    """

    client: KubernetesClient
    namespace: str
    holder: str
    valid_s: float = 60.0
    name: str = LEASE
    renewed_s: float = field(default=float("-inf"), init=False)

    @property
    def _folder(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{segment(self.namespace)}/leases"

    @property
    def _path(self) -> str:
        return f"{self._folder}/{segment(self.name)}"

    def renew(self, now_s: float | None = None) -> None:
        """Take the lease or extend it; once per third of its time.

        Raises:
            KubernetesAway: another driver has it.
        """
        if time.monotonic() - self.renewed_s < self.valid_s / 3:
            return
        now_s = time.time() if now_s is None else now_s
        found = self._read()
        other = _holder(found)
        if other not in ("", self.holder) and not is_expired(found, now_s):
            raise KubernetesAway(
                f"Kubernetes: another driver, {other}, holds Lease {self.namespace}/{self.name}; "
                "this one waits until it stops or no longer renews the Lease"
            )
        spec = {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(1, round(self.valid_s)),
            "renewTime": _micro_time(now_s),
        }
        if found is None:
            about = {"name": self.name, "namespace": self.namespace}
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            self.client.create(self._folder, {**kind, "metadata": about, "spec": spec})
        else:
            # with its resourceVersion: of two drivers that find it expired, one gets it
            self.client.replace(self._path, {**found, "spec": spec})
        self.renewed_s = time.monotonic()

    def give_up(self) -> None:
        """Expire the lease at once, if it is this driver's."""
        found = self._read()
        if found is not None and _holder(found) == self.holder:
            self.client.replace(self._path, {**found, "spec": {"holderIdentity": ""}})
        self.renewed_s = float("-inf")

    def is_expired(self, now_s: float | None = None) -> bool:
        """Return True when no driver works."""
        return is_expired(self._read(), time.time() if now_s is None else now_s)

    def _read(self) -> Json | None:
        try:
            return self.client.get(self._path)
        except KubernetesError as error:
            if error.status == 404:
                return None
            raise


def is_expired(lease: Json | None, now_s: float) -> bool:
    """Return True for a lease that is missing, given up, or not renewed in its time."""
    spec = (lease or {}).get("spec")
    if not isinstance(spec, dict) or not spec.get("holderIdentity"):
        return True
    length_s, text = spec.get("leaseDurationSeconds"), spec.get("renewTime")
    if not isinstance(length_s, int) or not isinstance(text, str):
        return True
    renewed_s = seconds(text)
    # a renewal in the future is of a clock that is wrong: it must not hold jobs for ever
    return not renewed_s - 60 <= now_s <= renewed_s + length_s


class AdvisedStart(NamedTuple):
    """Greenest start of a Job that may wait until `latest_s`; it runs for `lasts_s`."""

    advice: StartAdvice
    lasts_s: float
    latest_s: float

    @property
    def waits(self) -> bool:
        return self.advice.saving >= LEAST_GAIN

    def __str__(self) -> str:
        advice, lasts = self.advice, format_duration(self.lasts_s)
        if not self.waits:
            return f"start now: no later start of {lasts} saves {LEAST_GAIN:.0%} of its carbon"
        return (
            f"start at {stamp(advice.start_wall_s)}: {advice.g_co2e_per_kwh:.0f} instead of "
            f"{advice.now_g_co2e_per_kwh:.0f} g/kWh over {lasts}, {advice.saving:.0%} less carbon; "
            f"by {stamp(self.latest_s)} at the latest"
        )


class GreenStarts:
    """Starts of Jobs that may wait for a lower carbon intensity.

    A Job says so itself, by its annotation; else the policy's delay holds for all (`selene`).

    Args:
        forecast: reads the carbon intensity of the next day; None without a provider.

    Attributes:
        advised: by job, of those that may wait.
    """

    def __init__(self, forecast: Forecast | None = None) -> None:
        self._forecast = forecast
        self._series: GridSeries | None = None
        self._asked_s = self._advised_s = -math.inf
        self._said: dict[str, str] = {}
        self.advised: dict[str, AdvisedStart] = {}

    def set_aside(
        self, runner: KubernetesDriver | KubernetesObserver, now_s: float
    ) -> dict[str, float]:
        """Return jobs that are not offered to the policy yet, with their starts."""
        waiting = {job.key: job for job in runner.snapshot.waiting}
        old = now_s >= self._advised_s + ADVISE_EVERY_S
        self.advised = {} if old else {k: v for k, v in self.advised.items() if k in waiting}
        self._advised_s = now_s if old else self._advised_s
        self._said = {key: text for key, text in self._said.items() if key in waiting}
        for key, job in waiting.items():
            known = self.advised.get(key)
            if known is None or known.advice.start_wall_s <= now_s:
                self._advise(runner, job, now_s)
        return {
            key: found.advice.start_wall_s for key, found in self.advised.items() if found.waits
        }

    def _advise(self, runner: _Runner, job: SchedulerJob, now_s: float) -> None:
        self.advised.pop(job.key, None)
        notes = runner.queue.objects[job.key].item["metadata"].get("annotations") or {}
        text = notes.get(START_BY)
        delay_s = getattr(runner.policy, "delay_s", 0.0) if self._forecast else 0.0
        if text is None and not delay_s:
            return
        try:
            lasts_s, deadline_s = _expected_s(runner, job)
            if text is None:
                latest_s = job.submit_s + min(delay_s, SLACK * max(0.0, deadline_s - lasts_s))
            else:
                latest_s = latest_start(text, job.submit_s)
            if latest_s <= now_s:
                return
            advice = best_start(self._points(now_s).points, lasts_s, now_s, latest_s - now_s)
        except (ConfigError, GridUnavailable) as error:
            self._tell(runner, job, f"starts without advice: {error}")
            return
        self.advised[job.key] = found = AdvisedStart(advice, lasts_s, latest_s)
        self._tell(runner, job, str(found))

    def _points(self, now_s: float) -> GridSeries:
        """Return the forecast; a provider that does not answer is asked again after a while.

        Raises:
            GridUnavailable: there is none.
        """
        if self._forecast is None:
            raise GridUnavailable("no provider of a forecast is set (docs/carbon.md)")
        if now_s >= self._asked_s + FRESH_S:
            self._asked_s, self._series = now_s, None
            self._series = self._forecast()
        if self._series is None:
            raise GridUnavailable("its provider had no forecast lately")
        return self._series

    def _tell(self, runner: _Runner, job: SchedulerJob, text: str) -> None:
        """Log advice once, and again when it changes."""
        before, self._said[job.key] = self._said.get(job.key), text.partition(":")[0]
        if before != self._said[job.key]:
            runner.log.add("green", f"{job.key}: {text}", job=job.key)


def latest_start(text: Any, submit_s: float) -> float:
    """Return the time of an annotation such as `2026-11-20T06:00:00Z` or `6 h` after submission.

    Raises:
        ConfigError: it is neither.
    """
    words = text if isinstance(text, str) else ""
    try:
        return submit_s + min(delay_seconds(words), MOST_DELAY_S)
    except ConfigError:
        pass
    try:
        found = datetime.fromisoformat(words)
    except ValueError:
        raise ConfigError(
            f"{START_BY} is {words[:40]!r}: give a time such as 2026-11-20T06:00:00Z, or 6 h"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _expected_s(runner: _Runner, job: SchedulerJob) -> tuple[float, float]:
    """Return how long a job runs on its fastest placement, and its deadline after submission."""
    estimate = runner.site.estimates.estimate(job)
    if estimate.kind is not None and estimate.source is not EstimateSource.TIME_LIMIT:
        options = runner.site.oracle.soon(estimate.kind)
        if options is not None and len(options):
            return max(1.0, estimate.work * float(options.sample_s.min())), estimate.deadline_s
    return job.time_limit_s or UNKNOWN_S, estimate.deadline_s


class KubernetesDriver(RoundRunner):
    """Driver that lets suspended Jobs and gated Workloads start when its policy says so."""

    scheduler = "Kubernetes"

    def __init__(
        self,
        queue: KubernetesQueue,
        site: ManagedCluster,
        policy: Policy,
        lease: DriverLease,
        *,
        log: DriverLog,
        settings: DriverSettings,
        readings: Readings = no_readings,
        rebuild: Rebuild | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        super().__init__(
            queue, site, policy, log=log, settings=settings, readings=readings, rebuild=rebuild
        )
        self.queue, self.lease = queue, lease
        self.green = GreenStarts(forecast)
        self._running: dict[str, SchedulerJob] = {}
        self._used_gpu_s: dict[str, float] = {}
        self._use_gpu_s = self._used_gpu_s

    def begin(self) -> None:
        """Take the lease, and tell Kueue that the checks of this controller have one.

        Raises:
            KubernetesError: another driver works, or the account may not do this.
        """
        self.lease.renew()
        for check in self.queue.checks() if self.queue.kueue else ():
            name = str(check["metadata"]["name"])
            condition = {
                **{"type": "Active", "status": "True", "reason": "DriverRuns"},
                **{"message": "wattloop k8s run", "lastTransitionTime": _micro_time(time.time())},
            }
            path = f"{self.queue.kueue_path()}/admissionchecks/{segment(name)}/status"
            self.queue.client.patch(path, {"status": {"conditions": [condition]}})

    def restore(self) -> None:
        """Release everything that waits, and expire the lease; not while another driver works."""
        if self.lease.renewed_s == float("-inf"):
            return
        self.lease.renewed_s = float("-inf")
        self.lease.renew()
        released, refused = release_all(self.queue, "the driver stopped")
        for text in refused:
            self.log.add("warning", f"not released: {text}")
        if released:
            self.log.add("released", f"{len(released)} jobs: the driver stops")
        self.lease.give_up()

    def _poll(self) -> Snapshot:
        self.lease.renew()
        found = self.poller.nodes()
        if self.poller.fault:
            self.log.add("warning", self.poller.fault)
            self.poller.fault = ""
        if found is not None:
            self.poller.site = found
            self.log.add("nodes", f"nodes are now {','.join(found.known.names)}")
        jobs = self.queue.jobs()
        self._released = self.queue.released()
        return self.poller.classify(jobs, PARTITION, self._released)

    def _reconcile(self, now_s: float) -> None:
        """Count the use of namespaces, and say which released Jobs do not start."""
        now = {job.key: job for job in self.snapshot.running}
        for key, was in self._running.items():
            if key not in now:
                gpu_s = sum(gpus for _, gpus in was.placed) * max(now_s - was.start_s, 0.0)
                self._used_gpu_s[was.user] = self._used_gpu_s.get(was.user, 0.0) + gpu_s
        self._running = now
        for job in self.snapshot.coming:
            if now_s - self._released[job.key].at_s > self.settings.patience_s:
                message = f"{job.key}: released, and Kubernetes does not start it yet"
                self.log.add("warning", message, job=job.key)
        # a Job that was not suspended when it was submitted has never waited for a policy
        self.snapshot.unreleased.clear()

    def _set_aside(self, now_s: float) -> Mapping[str, float]:
        return self.green.set_aside(self, now_s)

    def _execute(self, plan: RoundPlan, live: LiveView, report: RoundReport) -> None:
        for refusal in plan.refusals:
            self.log.add("refused", refusal)
        for number in plan.preempts:
            job = live.jobs[number]
            if self._patch(job, *suspend_patch(self.queue.objects[job.key])):
                report.preempts.append(job.key)
                self.log.add("preempt", job=job.key, user=job.user)
        for start in plan.starts[: self.settings.most_openings]:
            job = live.jobs[start.job]
            if not job.is_pending or job.key not in self.queue.objects:
                continue
            if self._release(job, *start_choice(self, live, start)):
                report.starts.append(job.key)
                self.log.add("start", job=job.key, user=job.user, gpus=job.gpus)

    def _release(self, job: SchedulerJob, cap_w: float | None, product: str) -> bool:
        queued, why = self.queue.objects[job.key], f"{self.policy.name}: its GPUs are free"
        path, patch = release_patch(queued, why, cap_w=cap_w, product=product)
        if self._patch(job, path, patch):
            return True
        plain_patch = release_patch(queued, why)[1]
        # its template may not change any more: better without a cap than never
        return patch.get("spec") != plain_patch.get("spec") and self._patch(job, path, plain_patch)

    def _patch(self, job: SchedulerJob, path: str, patch: Json) -> bool:
        try:
            self.queue.client.patch(path, patch)
        except KubernetesAway:
            raise
        except KubernetesError as error:
            if error.status in (403, 401):
                raise
            if error.status not in (404, 409):  # gone, or changed: the next round sees it
                self.log.add("refused", f"{job.key}: {error}", job=job.key)
            return False
        return True


class KubernetesObserver(RoundObserver):
    """Observer that asks a policy each round and changes nothing in Kubernetes.

    Attributes:
        commands: `kubectl` commands that a driver's last round amounts to.
    """

    scheduler = "Kubernetes"

    def __init__(
        self,
        queue: KubernetesQueue,
        *args: Any,
        forecast: Forecast | None = None,
        **options: Any,
    ) -> None:
        super().__init__(queue, *args, **options)
        self.queue, self.green = queue, GreenStarts(forecast)

    def _set_aside(self, now_s: float) -> Mapping[str, float]:
        return self.green.set_aside(self, now_s)

    def _execute(self, plan: RoundPlan, live: LiveView, report: RoundReport) -> None:
        commands: list[tuple[str, ...]] = []
        for number in plan.preempts:
            job = live.jobs[number]
            report.preempts.append(job.key)
            commands.append(_command(job, suspend_patch(self.queue.objects[job.key])[1]))
            self.log.add("would-preempt", job=job.key, user=job.user)
        for start in plan.starts:
            job = live.jobs[start.job]
            queued = self.queue.objects.get(job.key)
            if queued is None:
                continue
            cap_w, product = start_choice(self, live, start)
            report.starts.append(job.key)
            commands.append(
                _command(job, release_patch(queued, "start", cap_w=cap_w, product=product)[1])
            )
            if self.table.add(live, start):
                nodes = ",".join(self.site.known.names[node] for node, _ in start.nodes)
                self.log.add("would-start", job=job.key, user=job.user, nodes=nodes, gpus=job.gpus)
        self.commands = commands


def start_choice(
    driver: KubernetesDriver | KubernetesObserver, live: LiveView, start: PlannedStart
) -> tuple[float | None, str]:
    """Return the cap that the policy chose, and the product of its GPUs where there are several.

    The scheduler of Kubernetes chooses the node: a Job that were tied to one would wait for it.
    """
    options = live.view.queue.options(start.job)
    cap_w = float(options.cap_w[start.option]) if driver.policy.sets_caps else None
    if len(driver.site.known.cluster.types) < 2 or not start.nodes:
        return cap_w, ""
    node = driver.site.known.names[start.nodes[0][0]]
    return cap_w, driver.queue.products.get(node, "")


def _command(job: SchedulerJob, patch: Json) -> tuple[str, ...]:
    kind, namespace, name = job.key.split("/", 2)
    words = ("kubectl", "-n", namespace, "patch", kind.lower(), name, "--type", "merge")
    return (*words, "-p", json.dumps(patch))


def _holder(lease: Json | None) -> str:
    spec: Mapping[str, Any] = (lease or {}).get("spec") or {}
    return str(spec.get("holderIdentity") or "")


def _micro_time(now_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1e6):06d}Z"
