"""The report on a search: results, savings and dependencies; analyses as report parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wattloop.analyze.analysis_result import Findings, cell
from wattloop.analyze.roles import default_target, with_energy
from wattloop.analyze.table import RunTable as AnalyzeTable
from wattloop.core.errors import ConfigError
from wattloop.core.settings import load_settings
from wattloop.core.table import Table
from wattloop.core.units import (
    format_duration,
    format_energy,
    format_number,
    format_power,
    short_energy,
)
from wattloop.report.document import Block, Chart, Document, Fact, Facts, Note, Paragraph, Section
from wattloop.report.stored_results import read_search, search_table
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, each_trial
from wattloop.trials.experiment_lock import with_status_now
from wattloop.tune.results import CandidateResult, SearchSummary, epoch_rows, parameter_columns
from wattloop.tune.search_store import OVER

ROWS_SHOWN = 40


def findings_blocks(found: Findings) -> list[Block]:
    cells = found.cells()
    numbers = frozenset(
        place
        for place, key in enumerate(found.columns)
        if any(isinstance(row.get(key), int | float) for row in found.rows)
    )
    more = len(cells) - ROWS_SHOWN
    facts = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in _facts(found).items())
    notes = (
        *([facts] if facts else ()),
        *found.notes,
        *((f"and {more} more rows",) if more > 0 else ()),
    )
    blocks: list[Block] = [
        Table.of(found.headers, tuple(cells[:ROWS_SHOWN]), found.title, numbers, notes)
    ]
    blocks += [Note(text, tone="warning", title="Beware:") for text in found.warnings]
    for other in found.others:
        blocks += findings_blocks(other)
    return blocks


def analysis_section(
    heading: str, analysis: Callable[[], Findings], figures: Callable[[Any], Mapping[str, Any]]
) -> Section:
    """Return the section of one analysis, or the reason why it cannot be made."""
    try:
        found = analysis()
    except ConfigError as error:
        return Section(heading, (Note(str(error), title="Not possible:"),))
    drawn = [
        Chart(name, chart, f"{heading}: {found.title}")
        for name, chart in figures(found).items()
        if chart is not None
    ]
    return Section(heading, (*drawn, *findings_blocks(found)))


def _facts(found: Findings) -> dict[str, str]:
    return {name: cell(value) for name, value in found.facts.items()}


def is_by_sm2(experiment: Experiment) -> bool:
    strategy = experiment.spec.get("strategy") or experiment.spec.get("method") or {}
    name = strategy.get("name") if isinstance(strategy, Mapping) else strategy
    return bool(name == "sm2")


def sm2_charts(store: Store, experiment: Experiment, summary: SearchSummary) -> dict[str, Any]:
    """Return both figures of a stored search by name; none without its course."""
    from wattloop.report.figures.search import sm2_figures
    from wattloop.tune.search_setup import restored_strategy
    from wattloop.tune.strategies.sm2.sm2 import Sm2

    strategy = restored_strategy(store, experiment, load_settings(needs=()))
    if not isinstance(strategy, Sm2):
        return {}
    return sm2_figures(strategy, said=f"energy of {summary.scope}, {summary.provenance}")


def sm2_section(store: Store, experiment: Experiment, summary: SearchSummary) -> Section:
    """Return the course of the search, then the rates of each configuration."""
    charts = sm2_charts(store, experiment, summary)
    course = charts.pop("course", None)
    drawn = [] if course is None else [Chart("sm2-course", course, COURSE)]
    drawn += [Chart(f"sm2-{name}", chart, RATES) for name, chart in charts.items()]
    heading = "The course of SM2"
    return Section(heading, tuple(drawn) if drawn else (Note("Nothing was explored yet."),))


COURSE = "Performance, energy and learning rate of every configuration, epoch by epoch"
RATES = "Loss over the learning rates of an exploratory epoch, with the window that was chosen"


# A report on a search: what it found, what that saves, and what depends on what.
#
# Tables and figures of GreenScreen (Burmester et al.): best runs by quality, power and quotient,
# the front, the regression over levels, the configuration matrix, and the families of runs.


def report_of_search(store: Store, experiment: Experiment) -> Document:
    experiment = with_status_now(store, experiment)
    candidates, summary = read_search(store, experiment)
    sections = [
        Section("In short", tuple(_short(summary))),
        Section("Configurations", (candidates_table(candidates, summary, experiment, ROWS_SHOWN),)),
    ]
    if experiment.facts.get("final"):
        sections.insert(1, _in_full(experiment.facts["final"], summary))
    if is_by_sm2(experiment):
        sections.append(sm2_section(store, experiment, summary))
    if candidates:
        table = with_energy(search_table(store, experiment, looked=(candidates, summary)))
        sections.append(_learning(store, experiment, summary, table))
        sections += _analyses(table)
    name = experiment.name or experiment.experiment_id
    return Document(
        title=f"Search {name}",
        subtitle=_subtitle(summary),
        sections=tuple(sections),
        about={"kind": "search", "id": experiment.experiment_id},
    )


def _learning(
    store: Store, experiment: Experiment, summary: SearchSummary, table: AnalyzeTable
) -> Section:
    """Draw learning curves of all runs, the course of the best, and histograms."""
    from wattloop.report.figures.search import histogram_figures, learning_figures

    metric = (experiment.facts.get("quality") or {}).get("metric") or "quality"
    best = None if summary.best is None else summary.best.candidate
    epochs = epoch_rows(each_trial(store, experiment.experiment_id))
    charts = learning_figures(epochs, best, metric, table.source)
    results = [name for name in (f"best_{metric}", "power_w", "time_s") if name in table.results]
    charts |= histogram_figures(table, [*results, *table.parameters])
    drawn = tuple(Chart(name, chart, LEARNING[name]) for name, chart in charts.items())
    none = Note("No run reported its metrics epoch by epoch.", title="Not possible:")
    return Section("Learning curves", drawn or (none,))


LEARNING = {
    "learning": "Quality and loss of every run by epoch",
    "best-run": "Quality, loss, power and time of the best run by epoch",
    "histograms": "How often each result and each value of a parameter occurs",
}


def _subtitle(summary: SearchSummary) -> str:
    spent = "unknown energy" if summary.energy_j is None else format_energy(summary.energy_j)
    return (
        f"{summary.candidates} configurations for {spent} ({summary.scope or 'no scope'}, "
        f"{summary.provenance}) in {format_duration(summary.elapsed_s)}; {summary.status}"
    )


def _short(summary: SearchSummary) -> list[Block]:
    facts = []
    if summary.best is not None:
        best = setting_text(summary.best.parameters, summary.best.levers)
        facts.append(Fact("Best", best or summary.best.candidate, summary.why))
        if summary.best.to_target_j is not None:
            facts.append(Fact("Its energy to the target", format_energy(summary.best.to_target_j)))
        if summary.tie:
            names = ", ".join(c.candidate for c in summary.ties)
            facts.append(Fact("Tied with" if names else "Certain", names or "no", summary.tie))
    else:
        facts.append(Fact("Best", "none" if summary.status in OVER else "none yet", summary.why))
    if summary.saved_j is not None and summary.default is not summary.best:
        share = _saved_share(summary)
        facts.append(Fact("Saved against the default", format_energy(summary.saved_j), share))
    if summary.energy_j is not None:
        sure = f"± {short_energy(summary.uncertainty_j, summary.energy_j)}, {summary.provenance}"
        facts.append(Fact("Spent on the search", format_energy(summary.energy_j), sure))
    blocks: list[Block] = [Facts(tuple(facts))]
    if summary.failed:
        blocks.append(Paragraph(f"{summary.failed} configurations failed; they are kept as such."))
    return blocks


def final_table(final: Mapping[str, Any], title: str = "") -> Table:
    """Return the winner and the default as `tune final` trained them."""
    runs = [("best", final["winner"])]
    if final["default"] is not None and final["default"] != final["winner"]:
        runs.append(("default", final["default"]))
    return Table.from_records(
        runs,
        {
            "run": lambda run: run[0],
            "configuration": lambda run: setting_text(run[1]["parameters"], run[1]["levers"]),
            "quality": lambda run: run[1]["quality"],
            "epochs": lambda run: f"{run[1]['epochs']:g}",
            "energy": lambda run: _energy(run[1]),
            "time": lambda run: format_duration(run[1]["time_s"]),
            "status": lambda run: run[1]["status"].replace("_", " "),
            "where from": lambda run: _where(run[1]),
        },
        title,
        ("quality", "epochs", "energy", "time"),
    )


def _energy(run: Mapping[str, Any]) -> str:
    if run["energy_j"] is None:
        return "not known"
    return f"{format_energy(run['energy_j'])} ± " + short_energy(
        run["uncertainty_j"], run["energy_j"]
    )


def _where(run: Mapping[str, Any]) -> str:
    where = "the search" if run.get("from_search") else "this run"
    return f"{where}, {run['provenance']}" + (f"; {run['status']}" if run.get("message") else "")


def setting_text(*settings: Mapping[str, Any]) -> str:
    pairs = {name: value for setting in settings for name, value in setting.items()}
    return " ".join(f"{name}={value_text(value)}" for name, value in pairs.items())


def value_text(value: Any) -> str:
    """Format the value of a parameter: a sampled number with four of its sixteen digits."""
    if value is None:
        return ""
    return format_number(value) if isinstance(value, float) else str(value)


def candidates_table(
    candidates: Sequence[CandidateResult], summary: SearchSummary, experiment: Experiment, most: int
) -> Table:
    """Return a row per configuration, the best first."""
    quality: Mapping[str, Any] = experiment.facts.get("quality") or {}
    metric, maximize = quality.get("metric") or "quality", quality.get("maximize", True)
    ordered = sorted(candidates, key=lambda c: _rank(c, summary, maximize=maximize))
    energy = f"energy ({summary.scope})" if summary.scope else "energy"
    own = {
        name: lambda c, name=name: value_text(c.parameters.get(name, c.levers.get(name)))
        for name in parameter_columns(candidates)
    }
    cells: dict[str, Callable[[CandidateResult], Any]] = {
        "trial": lambda c: c.candidate,
        **own,
        f"best {metric}": lambda c: c.best,
        "epochs": lambda c: f"{c.epochs:g}",
        energy: lambda c: None if c.energy_j is None else format_energy(c.energy_j),
        "to target": lambda c: None if c.to_target_j is None else format_energy(c.to_target_j),
        "time": lambda c: format_duration(c.time_s),
        "power": lambda c: None if c.power_w is None else format_power(c.power_w),
        "status": summary.status_of,
    }
    more = len(ordered) - most
    return Table.from_records(
        ordered[:most],
        cells,
        f"{experiment.experiment_id} {experiment.name}".strip(),
        (f"best {metric}", "epochs", energy, "to target", "time", "power"),
        (f"{more} more; 'wattloop tune export' has all of them",) if more > 0 else (),
        ("power", "time", "epochs"),
    )


def _rank(
    c: CandidateResult, summary: SearchSummary, *, maximize: bool
) -> tuple[bool, bool, bool, float, float]:
    best = summary.best is not None and c.candidate == summary.best.candidate
    cost_j = c.to_target_j if c.to_target_j is not None else float("inf")
    quality = float("inf") if c.best is None else (-c.best if maximize else c.best)
    return not best, not c.good, not c.reached, cost_j, quality


def _in_full(final: dict[str, Any], summary: SearchSummary) -> Section:
    """Return the results of `tune final`: the winner and the default."""
    title = f"Trained in full, energy of {summary.scope or 'nothing'}"
    table = final_table(final, title).without("where from")
    said = final["said"]
    notes = (Note(text, title="Note:") for text in final.get("notes") or ())
    return Section("Trained in full", (table, Paragraph(f"{said[0].upper()}{said[1:]}."), *notes))


def _saved_share(summary: SearchSummary) -> str:
    default_j = None if summary.default is None else summary.default.to_target_j
    if not default_j or summary.saved_j is None:
        return ""
    return f"{summary.saved_j / default_j:.1%} of the default's"


def _analyses(table: AnalyzeTable) -> list[Section]:
    from wattloop.analyze.clusters import clusters
    from wattloop.analyze.configuration_matrix import configuration_matrix
    from wattloop.analyze.efficiency_quotient import quotients, top_runs
    from wattloop.analyze.ols import regression
    from wattloop.analyze.pareto import pareto_front
    from wattloop.report.figures.clusters import cluster_figures
    from wattloop.report.figures.search import matrix_figures, pareto_figures, top_figures
    from wattloop.report.figures.statistics import regression_figures

    return [
        analysis_section("Best runs", lambda: top_runs(table, found=quotients(table)), top_figures),
        analysis_section("Pareto front", lambda: pareto_front(table), pareto_figures),
        _parallel(table),
        analysis_section("Regression over levels", lambda: regression(table), regression_figures),
        analysis_section(
            "Configuration matrix",
            lambda: configuration_matrix(table, default_target(table)),
            matrix_figures,
        ),
        analysis_section("Families of runs", lambda: clusters(table, "hybrid"), cluster_figures),
    ]


def _parallel(table: AnalyzeTable) -> Section:
    """Draw every configuration as a line across parameters and results."""
    from wattloop.report.figures.search import parallel_figure

    chart = parallel_figure(table)
    if chart is None:
        return Section("Parallel coordinates", (Paragraph("Too little varies to be drawn."),))
    said = "Every configuration as a line across its parameters and results"
    return Section("Parallel coordinates", (Chart("parallel", chart, said),))
