"""How a job looks: a table per node and the totals."""

import sys

from wattloop.cli.output import print_table
from wattloop.cli.result_view import DOMAIN_HEADERS, UNKNOWN, domain_rows, short_energy
from wattloop.core.records import Scope
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.measure.job_energy import JobEnergy, NodeEnergy, job_energy
from wattloop.store.database import Store
from wattloop.store.job_queries import find_job_members, stored_journal

__all__ = ["find_job", "print_job"]

SCOPES = {Scope.CPU: "cpu", Scope.GPU: "gpu", Scope.DRAM: "dram"}


def find_job(store: Store, reference: str = "last") -> JobEnergy:
    """The job that `reference` names, with its energy."""
    found = find_job_members(store, reference)
    return job_energy(
        found.name,
        found.records,
        lambda record: stored_journal(store, record),
        earlier=found.earlier,
    )


def print_job(job: JobEnergy) -> None:
    """Every node with its devices, then the nodes side by side, then what to beware of."""
    size = f", {job.world_size} ranks" if job.world_size else ""
    _write(f"job       {job.job_id} ({job.kind}{size})")
    _write(f"duration  {format_duration(job.duration_s)}")
    _write(f"energy    {_total(job)}")
    for node in job.nodes:
        _write(f"\n{_title(node)}")
        print_table(DOMAIN_HEADERS, domain_rows(node.result), spare=("power",))
    _write("")
    headers = ("node", "runs", "duration", *SCOPES.values(), "total", "power")
    print_table(headers, [_row(node) for node in job.nodes])
    for line in _remarks(job):
        _write(line)


def _total(job: JobEnergy) -> str:
    if job.energy_j is None:
        return "unknown: nothing could be read; 'wattloop devices' says why"
    partial = "" if job.complete else ", incomplete"
    return f"{format_energy(job.energy_j)} ± {short_energy(job.uncertainty_j)}{partial}"


def _title(node: NodeEnergy) -> str:
    died = f", {node.died} died" if node.died else ""
    return f"{node.host}: {len(node.runs)} run(s){died}"


def _row(node: NodeEnergy) -> tuple[str, ...]:
    result = node.result
    scopes = (result.scope_energy_j(scope) for scope in SCOPES)
    return (
        node.host,
        str(len(node.runs)),
        format_duration(result.duration_s),
        *(UNKNOWN if energy_j is None else format_energy(energy_j) for energy_j in scopes),
        UNKNOWN if result.energy_j is None else format_energy(result.energy_j),
        _power(result.energy_j, result.duration_s),
    )


def _power(energy_j: float | None, duration_s: float) -> str:
    if energy_j is None or duration_s <= 0:
        return UNKNOWN
    return format_power(energy_j / duration_s)


def _remarks(job: JobEnergy) -> list[str]:
    lines = []
    for node in job.nodes:
        for part in node.result.missing:
            remedy = f"; {part.remedy}" if part.remedy else ""
            lines.append(f"missing on {node.host}: {part.name}: {part.reason}{remedy}")
        lines += [f"note: {node.host}: {warning}" for warning in node.result.warnings]
    lines += [f"insight: {insight.text}" for insight in job.insights]
    if job.earlier:
        lines.append(
            f"note: {job.earlier} earlier job(s) had the same name; name one of their runs to see "
            "them ('wattloop runs list')"
        )
    return lines


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
