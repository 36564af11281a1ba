"""The report on one run: measurements, sensors, uncertainty and accounting."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from wattloop.accounting.energy_delay import dcie
from wattloop.accounting.summary import LEAST_EQUIVALENT
from wattloop.advise.advice import Advice
from wattloop.cap.saver.proof import format_percent
from wattloop.cap.saver.totals import format_interval, format_saved, run_saving
from wattloop.core.records import Scope
from wattloop.core.results import WindowResult
from wattloop.core.table import Table
from wattloop.core.units import (
    format_duration,
    format_energy,
    format_error,
    format_mass,
    format_money,
    format_number,
    format_power,
    format_share,
    short_energy,
)
from wattloop.integrations.run_phases import StepTotals
from wattloop.integrations.serving import ServingTotals, read_serving_points, read_serving_totals
from wattloop.integrations.stored_steps import read_step_points, read_step_totals
from wattloop.report.document import (
    Badges,
    Block,
    Chart,
    Document,
    DocumentBadge,
    Fact,
    Facts,
    Note,
    Paragraph,
    Section,
)
from wattloop.report.figures.run import (
    components_figure,
    power_figure,
    serving_figure,
    steps_figure,
)
from wattloop.store.database import Store
from wattloop.store.run_record import read_windows
from wattloop.store.runs import RunRecord

LABEL_TONES = {"high": "good", "medium": "info", "low": "warning"}
INSIGHT_TONES = {"good": "good", "info": "info", "warning": "warning"}
WINDOWS_SHOWN = 30


def notes_of(found: Iterable[Advice]) -> list[Note]:
    return [
        Note(
            text=f"{advice.text} ({'; '.join(advice.evidence)}.)",
            tone="info",
            title=f"{advice.title}: {advice.saving_words}.",
            command=advice.command,
            source=f"Saving {advice.source}",
        )
        for advice in found
    ]


def sensors(record: RunRecord) -> Table:
    assert record.result is not None
    result = record.result
    rows = []
    for domain in result.domains:
        energy_j = domain.energy_j
        power_w = (
            None if energy_j is None or not result.duration_s else energy_j / result.duration_s
        )
        rows.append(
            (
                domain.name + ("" if domain.in_total else " (within another)"),
                _or_dash(energy_j, format_energy),
                "–" if energy_j is None else f"± {format_error(domain.uncertainty_j, energy_j)}",
                _or_dash(power_w, format_power),
                "–" if domain.tdp_w is None else format_power(domain.tdp_w),
                domain.provenance.value,
                domain.source,
            )
        )
    rows += [
        (part.name, "not known", "", "", "", "missing", part.reason) for part in result.missing
    ]
    return Table.of(
        ("domain", "energy", "uncertainty", "mean power", "limit", "how", "sensor"),
        tuple(rows),
        title="Energy by component, and where each figure comes from",
        numbers=(1, 2, 3, 4),
        notes=tuple(f"{part.name}: {part.remedy}" for part in result.missing if part.remedy),
    )


def labels(accounting: Mapping[str, Any]) -> Badges | None:
    badges = [
        DocumentBadge(
            label=one["name"],
            value=f"{one['value']:.2f} {one['label']}",
            tone=LABEL_TONES.get(one["label"], "plain"),
            meaning=f"{format_power(one['power_w'])} of {format_power(one['tdp_w'])} "
            f"({one['basis']}), {one['provenance']}",
        )
        for one in accounting.get("efficiencies") or ()
    ]
    return Badges(tuple(badges)) if badges else None


def remarks(record: RunRecord) -> list[Note]:
    accounting = record.accounting or {}
    found = [
        Note(one["text"], tone=INSIGHT_TONES.get(str(one["severity"]), "plain"), title="Insight:")
        for one in accounting.get("insights") or ()
    ]
    if record.result is not None:
        found += [Note(text, tone="warning", title="Beware:") for text in record.result.warnings]
    return found + [Note(text, tone="info") for text in record.notes]


def grid_facts(accounting: Mapping[str, Any]) -> Facts:
    """Return energy at the wall and of the facility, carbon and cost, with their sources."""
    facts = []
    node = accounting.get("node") or {}
    if node.get("energy_j") is not None:
        facts.append(
            Fact("Whole node", format_energy(node["energy_j"]), str(node.get("provenance") or ""))
        )
    facility = accounting.get("facility") or {}
    if facility.get("energy_j") is not None:
        said = []
        if facility.get("pue"):
            said.append(f"PUE {facility['pue']:g}, DCiE {dcie(facility['pue']):.0%}")
        said += [str(facility["provenance"])] if facility.get("provenance") else []
        facts.append(Fact("From the grid", format_energy(facility["energy_j"]), "; ".join(said)))
    if accounting.get("carbon_g") is not None:
        intensity = accounting.get("carbon_intensity") or {}
        grams, source = intensity.get("g_co2e_per_kwh"), str(intensity.get("source") or "")
        how = source if grams is None else f"{grams:g} g/kWh, {source}"
        facts.append(Fact("Carbon", f"{format_mass(accounting['carbon_g'])} CO2e", how))
    else:
        facts.append(Fact("Carbon", "not known", str(accounting.get("carbon_reason") or "")))
    cost = accounting.get("cost")
    if cost:
        facts.append(Fact("Cost", f"{format_money(cost['amount'])} {cost['currency']}"))
    else:
        facts.append(Fact("Cost", "not known", str(accounting.get("cost_reason") or "")))
    alike = [
        f"{one['amount']:.3g} {one['unit']} {one['text']}"
        for one in accounting.get("equivalents") or ()
        if one["amount"] >= LEAST_EQUIVALENT
    ]
    if alike:
        facts.append(Fact("As much as", alike[0], "; ".join(alike[1:])))
    return Facts(tuple(facts))


def windows_table(windows: Sequence[WindowResult]) -> Table | None:
    if not windows:
        return None
    rows = tuple(
        (
            window.name,
            format_duration(window.duration_s),
            _or_dash(window.energy_j, format_energy),
            "–"
            if window.energy_j is None
            else f"± {format_error(window.uncertainty_j, window.energy_j)}",
        )
        for window in windows[:WINDOWS_SHOWN]
    )
    more = len(windows) - len(rows)
    return Table.of(
        ("window", "duration", "energy", "uncertainty"),
        rows,
        title="Windows",
        numbers=(1, 2, 3),
        notes=(f"and {more} more; 'wattloop runs export --what windows' has them all",)
        if more > 0
        else (),
    )


def step_blocks(store: Store, record: RunRecord) -> list[Block]:
    """Return the cost of a step, the phases of the run and the curve over steps, where known."""
    points = read_step_points(store, record)
    totals = read_step_totals(store, record, points)
    if totals is None or not (totals.steps or totals.inferred):
        return []
    inferred = Paragraph("No steps were seen; the phases are inferred from GPU signals.")
    blocks: list[Block] = [inferred if totals.inferred else _step_facts(totals)]
    whole_s = sum(phase.time_s for phase in totals.phases)
    if whole_s > 0:
        rows = [
            (
                phase.name,
                format_duration(phase.time_s),
                format_share(phase.time_s / whole_s),
                _or_dash(phase.energy_j, format_energy),
            )
            for phase in totals.phases
        ]
        headers = ("phase", "time", "share of time", "energy")
        blocks.append(Table.of(headers, rows, title="Phases", numbers=(1, 2, 3)))
    kind = record.result.provenance if record.result is not None else None
    chart = steps_figure(points, kind.value if kind else "not measured")
    if chart is not None:
        about = f"Energy per step, and the loss where it was recorded, over {totals.steps:,} steps"
        blocks.append(Chart("steps", chart, about))
    return blocks


def _step_facts(totals: StepTotals) -> Facts:
    labels: dict[str, tuple[str, Callable[[float], str]]] = {
        "step_j": ("Energy per step", format_energy),
        "step_s": ("Time per step", format_duration),
        "sample_j": ("Energy per sample", format_energy),
        "samples_per_j": ("Samples per joule", _rate),
        "token_j": ("Energy per token", format_energy),
        "tokens_per_j": ("Tokens per joule", _rate),
    }
    costs = [Fact(labels[key][0], labels[key][1](cost)) for key, cost in totals.costs.items()]
    counts = [("Steps", totals.steps), ("Samples", totals.samples), ("Tokens", totals.tokens)]
    known = [Fact(name, f"{count:,.0f}") for name, count in counts if count is not None]
    return Facts((*known, *costs))


def _rate(per_j: float) -> str:
    """Format what a joule pays for, which is what a second at one watt pays for."""
    return format_number(per_j, 3)


def serving_blocks(store: Store, record: RunRecord) -> list[Block]:
    """Return tokens, requests and their cost, and the curve over time, where a server was read."""
    points = read_serving_points(store, record)
    totals = read_serving_totals(store, record, points)
    if totals is None:
        return []
    blocks: list[Block] = []
    if totals.generated_tokens is not None:
        blocks.append(_serving_facts(totals))
    kind = record.result.provenance if record.result is not None else None
    chart = serving_figure(points, record.started_s, kind.value if kind else "not measured")
    if chart is not None:
        about = f"Generated tokens per second and their energy over time, of {totals.server}"
        blocks.append(Chart("serving", chart, about))
    return [*blocks, *(Note(text, tone="warning") for text in totals.notes)]


def _serving_facts(totals: ServingTotals) -> Facts:
    facts = [Fact("Server", totals.server, f"read for {format_duration(totals.duration_s)}")]
    counts = {
        "Generated tokens": totals.generated_tokens,
        "Prompt tokens": totals.prompt_tokens,
        "Requests": totals.requests,
    }
    facts += [Fact(name, f"{n:,.0f}") for name, n in counts.items() if n is not None]
    labels: dict[str, tuple[str, Callable[[float], str]]] = {
        "generated_token_j": ("Energy per generated token", format_energy),
        "token_j": ("Energy per token, prompts included", format_energy),
        "request_j": ("Energy per request", format_energy),
        "generated_tokens_per_s": ("Generated tokens/s", format_number),
        "generated_tokens_per_s_per_w": ("Generated tokens/s per W", format_number),
    }
    facts += [Fact(labels[key][0], labels[key][1](cost)) for key, cost in totals.costs.items()]
    for name, time_s, energy_j in (
        ("Without a request", totals.idle_s, totals.idle_j),
        ("Start-up", totals.startup_s, totals.startup_j),
    ):
        if time_s:
            facts.append(Fact(name, format_duration(time_s), _or_dash(energy_j, format_energy)))
    return Facts(tuple(facts))


def saving_blocks(record: RunRecord) -> list[Block]:
    """Return what `wattloop run --save` saved, or could have, and the evidence for it."""
    saving = run_saving(record)
    if saving is None:
        return []
    facts = []
    if saving.saved_j is not None and saving.saved_pct is not None:
        share = f"{format_percent(saving.saved_pct)} of GPU energy"
        facts.append(Fact("Saved", format_saved(saving.saved_j), share))
    if saving.slowdown_pct is not None:
        facts.append(Fact("Time", format_percent(saving.slowdown_pct, "+")))
    if saving.cost is not None:
        facts.append(Fact("Money saved", f"{format_interval(saving.cost)} {saving.currency}"))
    if saving.carbon_g is not None:
        facts.append(Fact("CO2e saved", format_mass(saving.carbon_g.value)))
    if saving.expected_j is not None:
        could = format_saved(saving.expected_j)
        facts.append(Fact("Could have saved", could, "modelled; nothing was set"))
    facts.append(Fact("Setting", saving.setting, saving.state.value))
    if saving.pairs:
        slices = f"{saving.reference_slices} slices at the reference, {saving.saving_slices} others"
        facts.append(Fact("Evidence", f"{saving.pairs} pairs", f"{slices}; 90% intervals"))
    notes = [Note(saving.reason, tone="info")] if saving.reason else []
    return [Facts(tuple(facts)), *notes]


def _or_dash(value: float | None, shown: Any) -> str:
    return "–" if value is None else str(shown(value))


EFFICIENCY = Paragraph(
    "Efficiency is the energy over what the device could have drawn in that time, "
    "E / (limit x T): low means hardware that was paid for and not used."
)
PARTS = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory", "node": "node"}


def report_of_run(store: Store, record: RunRecord, advice: Sequence[Note] = ()) -> Document:
    """Return the report on a run: measurements, uncertainty, accounting, advice.

    Args:
        store: where its samples are.
        record: the run.
        advice: what could be done about what it wasted, ready to print.
    """
    is_measured, accounting = record.result is not None, record.accounting or {}
    marks, windows = labels(accounting), windows_table(read_windows(store, record.run_id))
    parts: dict[str, Sequence[Block]] = {
        "In short": _short(record),
        "What to do about it": advice,
        "Energy by component": _components(record) if is_measured else (),
        "Power over time": _curves(store, record) if is_measured else (),
        "Saving": saving_blocks(record),
        "Steps and phases": step_blocks(store, record),
        "Tokens and requests": serving_blocks(store, record),
        "Efficiency and insights": [*([EFFICIENCY, marks] if marks else ()), *remarks(record)],
        "Carbon and cost": [grid_facts(accounting), *_assumptions(accounting)]
        if accounting
        else (),
        "Windows": [windows] if windows else (),
        "How it was measured": _how(record),
    }
    return Document(
        title=f"Energy of {record.name or record.run_id}",
        subtitle=_subtitle(record),
        sections=tuple(Section(name, tuple(blocks)) for name, blocks in parts.items() if blocks),
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
        sure = f"± {short_energy(result.uncertainty_j, result.energy_j)}"
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
    return blocks or [Paragraph("No samples were stored, so no curve is shown.")]


def _said(part: str, domains: Sequence[Any], tdp_w: float) -> str:
    limit = f" against a limit of {format_power(tdp_w)}" if tdp_w else ""
    return f"Power of the {part} ({', '.join(d.name for d in domains)}) over time{limit}"


def _assumptions(accounting: Any) -> list[Block]:
    node = accounting.get("node") or {}
    facility = accounting.get("facility") or {}
    lines = [*(node.get("assumptions") or ()), facility.get("assumption") or ""]
    return [Paragraph(line) for line in lines if line]


def _used(record: RunRecord) -> set[tuple[str, str]]:
    """Return meter and domain of every sensor that contributes to the run."""
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
    """Return sensors with their resolution, and the machine of the run."""
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
    table = Table.of(
        ("domain", "meter", "kind", "resolution", "updates every", "known error", "device"),
        tuple(rows),
        title="Sensors that these figures come from",
        numbers=(3, 4, 5),
        notes=(f"known here and not used: {', '.join(unused)}",) if unused else (),
    )
    interval_s = record.settings.get("interval_s")
    where = [
        f"Wattloop {record.version}, Python {record.python}"
        + (f", a sample every {1e3 * interval_s:g} ms" if interval_s else ""),
        f"run {record.run_id} by {record.user or 'unknown'} in {record.cwd or 'unknown'}",
    ]
    return [table, *(Paragraph(line) for line in where)]
