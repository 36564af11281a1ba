"""Run the kernels in worker processes and measure them from outside."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wattloop.accounting.idle import ApplicationDomain, IdleLine, application_energy
from wattloop.bench.idle import IdleLines
from wattloop.bench.plan import BenchPlan
from wattloop.bench.result import KernelEnergy, KernelResult
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.kernels.kernel import DTYPES
from wattloop.kernels.registry import KERNELS
from wattloop.kernels.worker import KernelCase, KernelJob, KernelWorker
from wattloop.measure.session import Session

SCOPES = (Scope.GPU, Scope.CPU, Scope.DRAM, Scope.NODE)


def scope_energies(
    window: WindowResult, lines: Mapping[str, IdleLine], gpu: int | None
) -> dict[str, KernelEnergy]:
    """A scope that was not read is absent. Of several GPUs only the one at work counts."""
    application = {d.name: d for d in application_energy(window, lines).domains}
    found = {}
    for scope in SCOPES:
        parts = window.scope_domains(scope)
        if scope is Scope.GPU and gpu is not None:
            parts = tuple(d for d in parts if d.name.split("/")[0] == f"gpu:{gpu}")
        if parts:
            found[scope.value] = _summed(parts, [application[d.name] for d in parts])
    return found


def _summed(
    parts: Sequence[DomainEnergy], application: Sequence[ApplicationDomain]
) -> KernelEnergy:
    known = [d.energy_j for d in application if d.energy_j is not None]
    complete = len(known) == len(parts)
    return KernelEnergy(
        energy_j=sum(d.energy_j for d in parts if d.energy_j is not None),
        uncertainty_j=math.hypot(*(d.uncertainty_j for d in parts)),
        provenance=Provenance.weakest(d.provenance for d in parts).value,
        domains=tuple(d.name for d in parts),
        application_j=sum(known) if complete else None,
        application_uncertainty_j=math.hypot(*(d.uncertainty_j for d in application)),
    )


SETTLE_S = 0.25
"""A slow sensor shows the end of a stretch only some time after it; the worker goes on."""
TIMEOUT_S = 300.0
"""Per kernel: three loops in Python's slowest style can take hours at a size made for a GPU."""
Listener = Callable[[str, KernelResult | None], None]


@dataclass
class KernelBench:
    """A plan being done.

    Attributes:
        listener: told what is being run, and each result as it comes.
    """

    plan: BenchPlan
    session: Session
    idle: IdleLines
    listener: Listener = lambda text, result: None
    timeout_s: float = TIMEOUT_S
    results: list[KernelResult] = field(default_factory=list)

    def run(self) -> list[KernelResult]:
        """Every job of the plan; results in its order, also in `results` as they come."""
        for job in self.plan.jobs:
            for result in self._done(job):
                self.results.append(result)
                self.listener("", result)
        return self.results

    def _done(self, job: KernelJob) -> Iterator[KernelResult]:
        """A worker that dies or hangs costs the kernel it was at; another does the rest."""
        left = list(job.cases)
        while left:
            count = 0
            for result in self._by_one_worker(replace(job, cases=tuple(left))):
                count += 1
                yield result
            left = left[count:]

    def _by_one_worker(self, job: KernelJob) -> Iterator[KernelResult]:
        """Results of its cases, in order; fewer than there are if the worker ends early."""
        facts: Mapping[str, Any] = {}
        at = 0
        self.listener(f"{job.backend} {job.style}: starting", None)
        with KernelWorker.of(job) as worker:
            try:
                for message in worker.messages(self.timeout_s):
                    kind = message["type"]
                    if kind == "unavailable":
                        for case in job.cases:
                            yield _empty(job, case, "skipped", message["reason"], facts)
                        return
                    if kind == "ready":
                        facts = message
                    elif kind == "begin":
                        self.listener(_doing(job, job.cases[at]), None)
                    elif kind != "measuring":
                        yield self._result(job, job.cases[at], message, facts)
                        at += 1
            except TimeoutError:
                reason = f"took longer than {self.timeout_s:g} s; use a smaller --sizes"
                yield _empty(job, job.cases[at], "timeout", reason, facts)
                return
            if at < len(job.cases):
                yield _empty(job, job.cases[at], "failed", worker.end_reason(), facts)

    def _result(
        self, job: KernelJob, case: KernelCase, message: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> KernelResult:
        if message["type"] != "measured":
            return _empty(job, case, message["type"], message["reason"], facts)
        clock_mhz = self.session.signals().get(f"gpu:{job.gpu}/sm_clock")
        self.session.clock.sleep(SETTLE_S)
        window = self.session.between(message["begin_s"], message["end_s"], name=case.kernel)
        peak_b = message["peak_host_b"] if job.device == "cpu" else message["peak_device_b"]
        return replace(
            _empty(job, case, "ok", "", facts),
            runs=message["runs"],
            batches=message["batches"],
            duration_s=message["end_s"] - message["begin_s"],
            time_s=message["time_s"],
            burst_time_s=message["burst_time_s"],
            clock_mhz=clock_mhz,
            time_low_s=message["time_low_s"],
            time_high_s=message["time_high_s"],
            counts=message["counts"],
            not_counted=message["not_counted"],
            scopes=scope_energies(window, self.idle.lines, job.gpu),
            check=message["check"],
            check_error=message["check_error"],
            peak_memory_b=peak_b,
            run_id=self.session.run_id,
            warnings=window.warnings,
        )


def _empty(
    job: KernelJob, case: KernelCase, status: str, reason: str, facts: Mapping[str, Any]
) -> KernelResult:
    problem = KERNELS[case.kernel](case.size, DTYPES[case.dtype])
    return KernelResult(
        kernel=case.kernel,
        backend=job.backend,
        style=job.style,
        threads=job.threads,
        device="cpu" if job.gpu is None else f"gpu:{job.gpu}",
        dtype=case.dtype,
        size=case.size,
        status=status,
        reason=reason,
        flops=problem.flops,
        bytes_moved=problem.bytes_moved,
        method=facts.get("methods", {}).get(case.kernel, ""),
        version=facts.get("version", ""),
        device_name=facts.get("device_name", ""),
    )


def _doing(job: KernelJob, case: KernelCase) -> str:
    threads = f" on {job.threads} thread(s)" if job.device == "cpu" else ""
    return f"{case.kernel} {case.size} {case.dtype}, {job.backend} {job.style}{threads}"
