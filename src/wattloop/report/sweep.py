"""The report on a sweep: cost and gain of each setting, with intervals."""

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from wattloop.accounting.summary import GpuPrice
from wattloop.analyze.repeats import Estimate
from wattloop.core.table import Table
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.report.document import Block, Chart, Document, Fact, Facts, Note, Paragraph, Section
from wattloop.report.figures.sweep import (
    cap_figures,
    scaling_figures,
    sweep_figures,
    technique_figures,
)
from wattloop.report.stored_results import stored_sweep
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment
from wattloop.sweep.result import Gain, SweepResult
from wattloop.sweep.tables import best_rows, point_rows


def title_of(result: SweepResult) -> str:
    name = result.experiment.name or result.experiment.experiment_id
    window = result.experiment.spec.get("window")
    part = f", window '{window}'" if window else ""
    measured = f" ({result.provenance})" if result.scope else ""
    return f"{name}{part}, {_energy_of(result)}{measured}"


def _energy_of(result: SweepResult) -> str:
    return f"energy of {result.scope}" if result.scope else "no energy measured yet"


def kinds_of(results: Sequence[SweepResult]) -> str:
    return ", ".join(dict.fromkeys(f"{r.scope}, {r.provenance}" for r in results))


def setting_text(row: dict[str, Any]) -> str:
    marked = row["is_default"] and row["setting"] != "default"
    return f"{row['setting']}{' (default)' if marked else ''}"


def runs_text(row: dict[str, Any]) -> str:
    return f"{row['used']}" + (f" of {row['runs']}" if row["used"] != row["runs"] else "")


def with_interval(value: Estimate | None) -> str:
    if value is None:
        return "-"
    if value.half_width is None:
        return _number(value.mean)
    return f"{_number(value.mean)} ± {_digits(value.half_width, value.mean)}"


def mean_only(value: Estimate | None) -> str:
    return "-" if value is None else _number(value.mean)


def with_sd(value: Estimate | None) -> str:
    if value is None:
        return "-"
    return f"{value.mean:.1f}" + ("" if value.sd is None else f" ± {value.sd:.1f}")


def gain_text(gain: Gain | None, sign: int = 1) -> str:
    """Format per cent with half-width; `sign` -1 makes a gain of time a loss."""
    if gain is None:
        return "-"
    value = f"{sign * gain.value_pct + 0.0:+.2f}".replace("-0.00", "+0.00")
    if gain.half_width_pct:
        return f"{value} ± {gain.half_width_pct:.2f}"
    return value


def noise_text(gain: Gain, is_default: bool) -> str:
    """Mark a best value that is not significant."""
    if is_default or gain.half_width_pct is None or gain.beyond_noise:
        return ""
    return " (within noise)"


def _number(value: float) -> str:
    """Format four digits, trailing zeros included; large joules in full."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:#.4g}".rstrip(".")


def _digits(half_width: float, mean: float) -> str:
    """Format with as many decimals as the mean."""
    shown = _number(mean)
    decimals = len(shown.partition(".")[2])
    return f"{half_width:,.{decimals}f}"


def points_table(result: SweepResult) -> Table:
    """Return cost and gain of every setting."""
    cells: dict[str, Callable[[Any], Any]] = {
        "group": lambda row: row["group"],
        "setting": setting_text,
        "runs": runs_text,
        "time (s)": lambda row: with_interval(row["time_s"]),
        "energy (J)": lambda row: with_interval(row["energy_j"]),
        "power (W)": lambda row: with_interval(row["average_w"]),
        "peak (W)": lambda row: mean_only(row["peak_w"]),
        "energy gain (%)": lambda row: gain_text(row["gains"]["energy"]),
        "time loss (%)": lambda row: gain_text(row["gains"]["time"], -1),
        "gain-loss": lambda row: gain_text(row["gains"]["gain_minus_loss"]),
        "EDP gain (%)": lambda row: gain_text(row["gains"]["edp"]),
    }
    if result.price is not None:
        cells[cost_header(result.price)] = lambda row: with_interval(row["gpu_cost"])
    title = f"{title_of(result)}: mean ± half-width of the 95% interval"
    spare = ("peak (W)", "gain-loss", "power (W)")
    return _grouped(point_rows(result), cells, title, list(cells)[2:], spare)


def cost_header(price: GpuPrice) -> str:
    return f"GPU cost ({price.currency})"


def best_table(result: SweepResult) -> Table:
    """Return the best setting by each metric; empty when only the default was measured."""
    cells: dict[str, Callable[[Any], Any]] = {
        "group": lambda row: row["group"],
        "metric": lambda row: row["metric"],
        "gain over default (%)": lambda row: (
            gain_text(row["gain"]) + noise_text(row["gain"], row["is_default"])
        ),
        "time loss (%)": lambda row: gain_text(row["time"], -1),
        "obtained at": setting_text,
    }
    title = f"{title_of(result)}: best setting per metric"
    return _grouped(best_rows(result), cells, title, ("gain over default (%)", "time loss (%)"))


def _grouped(
    rows: Sequence[dict[str, Any]],
    cells: dict[str, Callable[[Any], Any]],
    title: str,
    numbers: Sequence[str],
    spare: Sequence[str] = (),
) -> Table:
    """Return the table; its groups have a column where there are several."""
    table = Table.from_records(rows, cells, title, numbers, spare=spare)
    return table if len({row["group"] for row in rows}) > 1 else table.without("group")


def report_of_sweep(store: Store, experiment: Experiment) -> Document:
    result = stored_sweep(store, experiment.experiment_id)
    measured = f", {result.provenance}" if result.scope else ""
    sections = [Section("In short", tuple(_short(result)))]
    charts = {**sweep_figures(result), **scaling_figures(result), **technique_figures([result])}
    if charts:
        drawn = tuple(Chart(n, c, n.replace("-", " ")) for n, c in charts.items() if c is not None)
        sections.append(Section("Figures", drawn))
    sections.append(Section("All settings", (points_table(result),)))
    remarks = _remarks(result)
    if remarks:
        sections.append(Section("Remarks", tuple(remarks)))
    return Document(
        title=f"Sweep {experiment.name or experiment.experiment_id}",
        subtitle=f"{_energy_of(result)}{measured}; {len(result.points)} settings; "
        f"{result.experiment.status}",
        sections=tuple(sections),
        about={"kind": "sweep", "id": experiment.experiment_id},
    )


def report_of_cap(store: Store, experiment: Experiment) -> Document:
    """Return the report on a search of the best power cap: its probes and the choice."""
    finder = experiment.facts.get("finder") or {}
    choice = experiment.facts.get("choice") or {}
    probes = finder.get("probes") or []
    best_w = choice.get("cap_w")
    rows = [
        (
            f"{probe['cap_w']:g} W{' (best)' * (probe['cap_w'] == best_w)}",
            format_duration(probe["time_s"]),
            format_energy(probe["energy_j"]),
            format_power(probe["energy_j"] / probe["time_s"] / finder.get("devices", 1)),
        )
        for probe in sorted(probes, key=lambda probe: probe["cap_w"])
    ]
    head = ("cap", "time", "GPU energy", "power per GPU")
    table = Table.of(head, tuple(rows), title="Probes of a cap search", numbers=(1, 2, 3))
    facts = []
    if best_w is not None:
        gain, loss = choice["energy_gain_pct"], choice["time_loss_pct"]
        facts = [
            Fact(f"Best cap for {finder.get('metric')}", f"{best_w:g} W"),
            Fact("GPU energy saved", f"{gain['value']:.1f}%", _bounds(gain)),
            Fact("Time lost", f"{loss['value']:.1f}%", _bounds(loss)),
        ]
    drawn = [Chart(name, chart, name) for name, chart in cap_figures(probes, best_w).items()]
    return Document(
        title=f"Power caps of {experiment.experiment_id}",
        subtitle=f"energy of the GPUs under the cap; {experiment.status}",
        sections=(
            Section("In short", (Facts(tuple(facts)),) if facts else (Paragraph("No cap yet."),)),
            Section("Figures", tuple(drawn)),
            Section("Probes", (table,)),
        ),
        about={"kind": "cap", "id": experiment.experiment_id},
    )


def _bounds(interval: dict[str, float]) -> str:
    return f"90%: {interval['low']:.1f} to {interval['high']:.1f}%"


def _short(result: SweepResult) -> list[Block]:
    rows = best_rows(result)
    blocks: list[Block] = []
    command = result.experiment.spec.get("command")
    if command:
        words = command if isinstance(command, str) else shlex.join(str(part) for part in command)
        blocks.append(Paragraph(f"Command: {words}"))
    if not rows:
        known = "Only the default has a result so far." if result.points else "No result yet."
        return [*blocks, Paragraph(known)]
    first = rows[0]
    facts = (
        Fact(
            f"{first['metric']} saved", f"{gain_text(first['gain'])}%", f"at {setting_text(first)}"
        ),
        Fact("Time then", f"{gain_text(first['time'], -1)}%", "against the default"),
    )
    return [*blocks, Facts(facts), best_table(result)]


def _remarks(result: SweepResult) -> list[Note]:
    found = []
    for point in result.points:
        messages = dict.fromkeys(
            f"{outcome.status.value}: {outcome.message}"
            for outcome in point.repeated.outcomes
            if not outcome.ok
        )
        found += [Note(text, tone="warning", title=point.name) for text in messages]
        outliers = sum(point.repeated.outlying)
        if outliers:
            found.append(Note(f"{outliers} outliers are left out of the means", title=point.name))
    return found
