"""A report on one run: what was measured, how well, and what it means."""

import shlex
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from wattloop.core.records import Scope
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.report.document import Block, Chart, Document, Fact, Facts, Note, Paragraph, Section
from wattloop.report.figures.components import components_figure
from wattloop.report.figures.power import power_figure
from wattloop.report.run_parts import grid_facts, labels, remarks, sensors, windows_table
from wattloop.store.database import Store
from wattloop.store.details import read_windows
from wattloop.store.runs import RunRecord
from wattloop.version import __version__

__all__ = ["report_of_run"]

PARTS = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory", "node": "node"}


def report_of_run(store: Store, record: RunRecord, advice: Sequence[Note] = ()) -> Document:
    """Everything a reader needs to believe the figures of a run, and to act on them.

    Args:
        store: where its samples are.
        record: the run.
        advice: what could be done about what it wasted, ready to print.
    """
    sections = [Section("In short", tuple(_short(record)))]
    if advice:
        sections.append(Section("What to do about it", tuple(advice)))
    if record.result is not None:
        sections.append(Section("Energy by component", tuple(_components(record))))
        sections.append(Section("Power over time", tuple(_curves(store, record))))
    accounting = record.accounting or {}
    meaning: list[Block] = []
    marks = labels(accounting)
    if marks:
        meaning.append(
            Paragraph(
                "Efficiency is the energy over what the device could have drawn in that time, "
                "E / (limit x T): low means hardware that was paid for and not used."
            )
        )
        meaning.append(marks)
    meaning += remarks(record)
    if meaning:
        sections.append(Section("Efficiency and insights", tuple(meaning)))
    grid = grid_facts(accounting) if accounting else None
    if grid:
        sections.append(Section("Carbon and cost", (grid, *_assumptions(accounting))))
    windows = windows_table(read_windows(store, record.run_id))
    if windows:
        sections.append(Section("Windows", (windows,)))
    sections.append(Section("How it was measured", tuple(_how(record))))
    return Document(
        title=f"Energy of {record.name or record.run_id}",
        subtitle=_subtitle(record),
        sections=tuple(sections),
        made_wall_s=time.time(),
        version=__version__,
        about={"kind": "run", "id": record.run_id},
    )


def _subtitle(record: RunRecord) -> str:
    started = datetime.fromtimestamp(record.started_wall_s).astimezone()
    when = f"{started:%Y-%m-%d %H:%M} on {record.host or 'an unknown host'}"
    result = record.result
    if result is None or result.energy_j is None:
        return f"Nothing could be measured; {when}"
    return f"{format_energy(result.energy_j)} in {format_duration(result.duration_s)}; {when}"


def _short(record: RunRecord) -> list[Block]:
    result = record.result
    facts = []
    if result is not None and result.energy_j is not None:
        sure = f"± {format_energy(result.uncertainty_j).partition(' (')[0]}"
        kind = result.provenance.value if result.provenance else ""
        part = "" if result.complete else "; a part is missing"
        facts.append(Fact("Energy", format_energy(result.energy_j), f"{sure}, {kind}{part}"))
        if result.power_w is not None:
            facts.append(Fact("Mean power", format_power(result.power_w)))
    else:
        facts.append(Fact("Energy", "not known", "no sensor could be read"))
    if record.duration_s is not None:
        facts.append(Fact("Duration", format_duration(record.duration_s)))
    facts.append(Fact("Status", record.status.value, _exit(record)))
    blocks: list[Block] = [Facts(tuple(facts))]
    if record.command:
        blocks.append(Paragraph(f"Command: {shlex.join(record.command)}"))
    if record.tags:
        tags = ", ".join(f"{key}={value}" for key, value in record.tags.items())
        blocks.append(Paragraph(f"Tags: {tags}"))
    return blocks


def _exit(record: RunRecord) -> str:
    if record.signal:
        return f"by signal {record.signal}"
    return f"exit code {record.exit_code}" if record.exit_code else ""


def _components(record: RunRecord) -> list[Block]:
    assert record.result is not None
    blocks: list[Block] = []
    chart = components_figure(record.result)
    if chart is not None:
        parts = ", ".join(
            f"{domain.name} {format_energy(domain.energy_j)}"
            for domain in record.result.domains
            if domain.energy_j is not None and domain.in_total
        )
        blocks.append(Chart("components", chart, f"Energy by component: {parts}"))
    blocks.append(sensors(record))
    return blocks


def _curves(store: Store, record: RunRecord) -> list[Block]:
    assert record.result is not None
    blocks: list[Block] = []
    for scope in Scope:
        domains = list(record.result.scope_domains(scope))
        if not domains:
            continue
        limits = [domain.tdp_w for domain in domains]
        tdp_w = sum(limit for limit in limits if limit) if all(limits) else 0.0
        chart = power_figure(store, {record.name or record.run_id: record}, scope.value, tdp_w)
        if chart is not None:
            part = PARTS.get(scope.value, scope.value)
            blocks.append(Chart(f"power-{scope.value}", chart, _said(part, domains, tdp_w)))
    return blocks or [Paragraph("No samples were kept, so there is no curve.")]


def _said(part: str, domains: Sequence[Any], tdp_w: float) -> str:
    limit = f" against a limit of {format_power(tdp_w)}" if tdp_w else ""
    return f"Power of the {part} ({', '.join(d.name for d in domains)}) over time{limit}"


def _assumptions(accounting: Any) -> list[Block]:
    node = accounting.get("node") or {}
    facility = accounting.get("facility") or {}
    lines = [*(node.get("assumptions") or ()), facility.get("assumption") or ""]
    return [Paragraph(line) for line in lines if line]


def _used(record: RunRecord) -> set[tuple[str, str]]:
    """Meter and domain of every sensor that a figure of the run comes from."""
    if record.result is None:
        return set()
    chosen = {(domain.name, domain.source) for domain in record.result.domains}
    return {
        (feed["meter"], domain["name"])
        for feed in record.feeds
        for domain in feed.get("domains") or ()
        # without a source, as in old runs, nothing tells two sensors of a domain apart
        if (domain["name"], domain.get("source", "")) in chosen or "source" not in domain
    }


def _how(record: RunRecord) -> list[Block]:
    """Sensors with their resolution, and where the run was."""
    from wattloop.report.document import Table

    rows, unused = [], []
    used = _used(record)
    for feed in record.feeds:
        for domain in feed.get("domains") or ():
            if (feed["meter"], domain["name"]) not in used:
                unused.append(f"{domain['name']} by {feed['meter']}")
                continue
            unit = "J" if domain["kind"] == "counter" else "W"
            known = domain.get("known_error")
            rows.append(
                (
                    domain["name"],
                    feed["meter"],
                    domain["kind"],
                    f"{domain['resolution']:g} {unit}",
                    f"{1e3 * domain['update_period_s']:g} ms",
                    f"{known:.0%}" if known else "–",
                    domain.get("device") or "",
                )
            )
    table = Table(
        ("domain", "meter", "kind", "resolution", "updates every", "known error", "device"),
        tuple(rows),
        caption="Sensors that these figures come from",
        numbers=frozenset((3, 4, 5)),
        notes=(f"known here and not used: {', '.join(unused)}",) if unused else (),
    )
    interval_s = record.settings.get("interval_s")
    where = [
        f"Wattloop {record.version}, Python {record.python}"
        + (f", a sample every {1e3 * interval_s:g} ms" if interval_s else ""),
        f"run {record.run_id} by {record.user or 'unknown'} in {record.cwd or 'unknown'}",
    ]
    return [table, *(Paragraph(line) for line in where)]
