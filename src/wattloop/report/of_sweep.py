"""A report on a sweep: what each setting costs and gains, with the interval its repeats allow."""

import shlex
import time

from wattloop.report.document import (
    Block,
    Chart,
    Document,
    Fact,
    Facts,
    Note,
    Paragraph,
    Section,
    Table,
)
from wattloop.report.figures.scaling import scaling_figures
from wattloop.report.figures.sweep import sweep_figures
from wattloop.report.figures.techniques import technique_figures
from wattloop.report.stored import stored_sweep
from wattloop.report.sweep_cells import (
    gain_text,
    noise_text,
    runs_text,
    setting_text,
    with_interval,
)
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment
from wattloop.sweep.result import SweepResult
from wattloop.sweep.tables import best_rows, point_rows
from wattloop.version import __version__

__all__ = ["report_of_sweep"]


def report_of_sweep(store: Store, experiment: Experiment) -> Document:
    """Everything a sweep found."""
    result = stored_sweep(store, experiment.experiment_id)
    sections = [Section("In short", tuple(_short(result)))]
    charts = {**sweep_figures(result), **scaling_figures(result), **technique_figures([result])}
    if charts:
        drawn = tuple(Chart(n, c, n.replace("-", " ")) for n, c in charts.items() if c is not None)
        sections.append(Section("Figures", drawn))
    sections.append(Section("All settings", (_points(result),)))
    remarks = _remarks(result)
    if remarks:
        sections.append(Section("Remarks", tuple(remarks)))
    return Document(
        title=f"Sweep {experiment.name or experiment.experiment_id}",
        subtitle=f"energy of {result.scope or 'nothing'}, {result.provenance}; "
        f"{len(result.points)} settings; {result.experiment.status}",
        sections=tuple(sections),
        made_wall_s=time.time(),
        version=__version__,
        about={"kind": "sweep", "id": experiment.experiment_id},
    )


def _short(result: SweepResult) -> list[Block]:
    rows = best_rows(result)
    blocks: list[Block] = []
    command = result.experiment.spec.get("command")
    if command:
        words = command if isinstance(command, str) else shlex.join(str(part) for part in command)
        blocks.append(Paragraph(f"Command: {words}"))
    if not rows:
        return [*blocks, Paragraph("No setting beside the default has a result yet.")]
    first = rows[0]
    facts = (
        Fact(
            f"{first['metric']} saved", f"{gain_text(first['gain'])}%", f"at {setting_text(first)}"
        ),
        Fact("Time then", f"{gain_text(first['time'], -1)}%", "against the default"),
    )
    cells = tuple(
        (
            row["group"] or "all",
            row["metric"],
            setting_text(row),
            gain_text(row["gain"]) + noise_text(row["gain"], row["is_default"]),
            gain_text(row["time"], -1),
        )
        for row in rows
    )
    table = Table(
        ("of", "metric", "best setting", "gain %", "time %"),
        cells,
        caption="Best setting by each metric, against the default; 95% intervals",
        numbers=frozenset((3, 4)),
    )
    return [*blocks, Facts(facts), table]


def _points(result: SweepResult) -> Table:
    rows = tuple(
        (
            row["group"] or "all",
            setting_text(row),
            runs_text(row),
            with_interval(row["time_s"]),
            with_interval(row["energy_j"]),
            with_interval(row["average_w"]),
            gain_text(row["gains"]["energy"]),
            gain_text(row["gains"]["edp"]),
        )
        for row in point_rows(result)
    )
    return Table(
        ("of", "setting", "runs", "time (s)", "energy (J)", "power (W)", "energy %", "EDP %"),
        rows,
        caption="Means with 95% intervals; gains over the default in per cent",
        numbers=frozenset(range(2, 8)),
    )


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
