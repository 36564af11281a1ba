"""Terminal output, figures and Optuna studies of searches."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wattloop.analyze.roles import default_target, with_energy
from wattloop.analyze.table import format_level
from wattloop.cli.options import settings_of
from wattloop.cli.output import print_table, say
from wattloop.cli.progress import counted, is_redrawable, spinner, spinner_columns, updated_row
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.table import Table
from wattloop.core.units import format_duration, format_energy, iso_time
from wattloop.report.search import candidates_table, final_table, is_by_sm2, sm2_charts
from wattloop.report.search import setting_text as format_setting
from wattloop.report.stored_results import read_search, search_table
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment
from wattloop.tune.results import (
    CandidateResult,
    SearchSummary,
    parameter_columns,
    summarize_search,
)
from wattloop.tune.search_loop import BudgetSpent
from wattloop.tune.search_problem import Limits
from wattloop.tune.search_store import OVER
from wattloop.tune.segment import Progress, Segment, Status

if TYPE_CHECKING:
    from wattloop.tune.final import FinalResult
    from wattloop.tune.spec import SearchSpec


def write_study(store: "Store", search_id: str, file: str, config: str | None) -> None:
    """Write the study and print how to open it."""
    from wattloop.tune.optuna_export import export_study

    settings = settings_of(config)
    with counted("writing trials") as bar:
        name = export_study(store, search_id, file, settings=settings, listener=bar.update)
    target = file if file.endswith((".log", ".journal")) else f"sqlite:///{file}"
    say(f"study '{name}' is in {file}; look at it with: optuna-dashboard {target}")


def drawable(experiment: "Experiment", folder: str) -> None:
    """Refuse figures that cannot be written before anything is printed."""
    from wattloop.report.figures.render import check_drawable

    if is_by_sm2(experiment):
        check_drawable(folder)


def draw(store: "Store", experiment: "Experiment", folder: str) -> None:
    from wattloop.report.figures.render import save

    search_id = experiment.experiment_id
    if not is_by_sm2(experiment):
        say(
            "wattloop: these figures are those of sm2, which this search did not use; see "
            f"'wattloop report {search_id}' and 'wattloop analyze'"
        )
        return
    summary = summarize_search(store, experiment)
    charts = sm2_charts(store, experiment, summary)
    if not charts:
        say("wattloop: nothing to draw: no epoch of this search has ended")
        return
    host = experiment.facts.get("host", "unknown")
    notes = [f"{search_id}: energy of {summary.scope}, {summary.provenance}; host {host}"]
    written = save(charts, user_path(folder), title=experiment.name or search_id, notes=notes)
    say(f"wattloop: {len(charts)} figures in {folder}: see {written[-1]}")


FRONT_SHOWN = 12
ROWS_SHOWN = 20


def result_dict(store: "Store", experiment: Experiment) -> dict[str, Any]:
    return result_of(*read_search(store, experiment), experiment)


def result_of(
    found: Sequence[CandidateResult], summary: SearchSummary, experiment: Experiment
) -> dict[str, Any]:
    """Return the same from a search that was read already."""
    return {
        **summary.to_dict(),
        "created": iso_time(experiment.created_wall_s),
        "metric": experiment.facts.get("quality"),
        "objective": experiment.facts.get("objective"),
        "trials": [c.to_dict() for c in found],
        "spec": experiment.spec,
    }


def list_table(rows: Sequence[tuple[Experiment, SearchSummary]]) -> Table:
    is_named = any(experiment.name for experiment, _ in rows)
    return Table.from_records(
        rows,
        {
            "search": lambda row: row[0].experiment_id,
            "name": lambda row: row[0].name,
            "status": lambda row: row[0].status + (" (limit)" if row[1].stopped else ""),
            "configurations": lambda row: row[1].candidates,
            "energy": lambda row: energy_text(row[1].energy_j, row[1].scope),
            "time": lambda row: format_duration(row[1].elapsed_s),
            "best": lambda row: None if row[1].best is None else setting_text(row[1].best),
        },
        spare=("time", "configurations") if is_named else ("name", "time", "configurations"),
    )


def print_summary(store: "Store", experiment: Experiment) -> None:
    print_found(*read_search(store, experiment), experiment)


def print_found(
    found: Sequence[CandidateResult], summary: SearchSummary, experiment: Experiment
) -> None:
    table = candidates_table(found, summary, experiment, ROWS_SHOWN)
    print_table(table)
    for note in table.notes:
        say(f"wattloop: {note}")
    print_best(summary)


def print_best(summary: SearchSummary) -> None:
    lines = []
    if summary.best is None:
        none = "none" if summary.status in OVER else "none yet"
        lines.append(f"best: {none}{f'; {summary.why}' if summary.why else ''}")
    else:
        lines.append(f"best: {setting_text(summary.best)}")
        if summary.why:
            lines.append(f"  {summary.why}")
        if summary.tie:
            lines.append(f"  {summary.tie}")
    if len(summary.front) > 1:
        lines.append(f"front: {len(summary.front)} that no other beats in every objective")
        lines += [f"  {c.candidate}: {setting_text(c)}" for c in summary.front[:FRONT_SHOWN]]
        if len(summary.front) > FRONT_SHOWN:
            lines.append(f"  and {len(summary.front) - FRONT_SHOWN} more; --json has all")
    source = "" if summary.energy_j is None else f" {summary.provenance}"
    lines.append(
        f"spent: {energy_text(summary.energy_j, summary.scope)}{source}, "
        f"{format_duration(summary.elapsed_s)}, {summary.candidates} "
        f"configuration{'s' * (summary.candidates != 1)}"
        + (f", {summary.failed} of them failed" if summary.failed else "")
    )
    if summary.repeated_j:
        lines.append(
            f"  of that {format_energy(summary.repeated_j)} twice, because it was interrupted"
        )
    if summary.idle_j:
        lines.append(f"  of that {format_energy(summary.idle_j)} in devices that waited for others")
    if summary.saved_j is not None and summary.default is not summary.best:
        lines.append(_saving(summary))
    print("\n".join(lines))  # noqa: T201 - the answer


def best_dict(summary: SearchSummary) -> dict[str, Any]:
    best = summary.best
    return {
        "search_id": summary.search_id,
        "parameters": None if best is None else best.parameters,
        "levers": None if best is None else best.levers,
        "learning_rate": None if best is None else best.learning_rate,
        "why": summary.why,
        "summary": summary.to_dict(),
    }


def setting_text(candidate: CandidateResult) -> str:
    rate = candidate.learning_rate
    found = {} if rate is None else {"learning rate": rate}
    return format_setting(candidate.parameters, candidate.levers, found)


def energy_text(energy_j: float | None, scope: str | None) -> str:
    """Format energy with its scope: `12 Wh gpu`."""
    if energy_j is None:
        return "energy not known"
    return f"{format_energy(energy_j)} {scope or ''}".strip()


def _saving(summary: SearchSummary) -> str:
    assert summary.saved_j is not None
    assert summary.default is not None
    whole_j = summary.default.to_target_j or summary.default.energy_j or 0.0
    share = 100 * summary.saved_j / whole_j if whole_j else 0.0
    if summary.saved_j <= 0:
        return f"against the default ({setting_text(summary.default)}): nothing is saved"
    if summary.default in summary.ties:
        return (
            f"against the default ({setting_text(summary.default)}): a tie, "
            f"{format_energy(summary.saved_j)} ({share:.0f}%) is within the noise of single runs"
        )
    return (
        f"against the default ({setting_text(summary.default)}): "
        f"{format_energy(summary.saved_j)} less a run ({share:.0f}%), as far as the search has "
        "seen; 'wattloop tune final' proves it"
    )


def print_final(result: "FinalResult") -> None:
    from wattloop.tune.final import format_saving

    print_table(final_table(result.to_dict()).without("status"))
    if result.winner.files:
        print(f"what it saved is in {result.winner.files}")  # noqa: T201 - the answer
    print(format_saving(result))  # noqa: T201 - the answer
    for note in result.notes:
        say(f"wattloop: note: {note}")


FINE = (Status.PAUSED, Status.REACHED, Status.ENDED, Status.NOT_SUPPORTED)


@contextmanager
def progress(spec: "SearchSpec | None" = None) -> Iterator["Watcher"]:
    with updated_row(spinner_columns) as update:
        yield Watcher(spec, update)


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show a line with the elapsed time on a terminal; elsewhere the line alone."""
    if not is_redrawable():
        say(f"wattloop: {text}")
    with spinner(text):
        yield


class Watcher:
    """Progress of a search: a row on a terminal, and lines for failures."""

    def __init__(self, spec: "SearchSpec | None", update: Callable[..., None]) -> None:
        self._update = update
        self._limits = Limits()
        self._said: set[str] = set()
        if spec is not None:
            self.about(spec)

    def about(self, spec: "SearchSpec") -> None:
        self._limits = spec.limits.limits()

    def begins(self, segment: Segment, spent: BudgetSpent) -> None:
        parts = [
            f"{spent.candidates} configuration{'s' * (spent.candidates != 1)}",
            self._energy(spent),
        ]
        if self._limits.time_s is not None:
            left_s = max(0.0, self._limits.time_s - spent.elapsed_s)
            parts.append(f"{format_duration(left_s)} left")
        self._update(description=", ".join([*parts, _who(segment)]))

    def _energy(self, spent: BudgetSpent) -> str:
        if self._limits.energy_j is None:
            return f"{format_energy(spent.energy_j)} spent"
        left_j = max(0.0, self._limits.energy_j - spent.energy_j)
        return f"{format_energy(spent.energy_j)} spent, {format_energy(left_j)} left"

    def ended(self, segment: Segment, progress: Progress, spent: BudgetSpent) -> None:
        if progress.status not in FINE:
            say(f"wattloop: {_who(segment)}: {progress.status.value}: {progress.message}")
        elif progress.message and progress.message not in self._said:
            self._said.add(progress.message)
            say(f"wattloop: {_who(segment)}: {progress.message}")
        if progress.cap is not None and progress.cap.cap_w is None:
            reason, then = (
                f"no power cap was set: {progress.cap.reason}",
                "the search goes on without",
            )
            if progress.cap.too_short:
                reason = "a segment was too short to find a power cap"
                then = "a probe takes about five seconds, and a cap several of them"
            if reason not in self._said:
                self._said.add(reason)
                say(f"wattloop: {reason}; {then}")


def _who(segment: Segment) -> str:
    values = " ".join(f"{name}={value}" for name, value in segment.parameters.items())
    return f"{segment.candidate} ({values})" if values else segment.candidate


def best_values(place: "Store", search: Experiment) -> dict[str, Any]:
    """Print the best value of each parameter by the search's objective, and return all of them.

    Parameters without an effect of their own keep the value of the best configuration.
    """
    from wattloop.analyze.efficiency_quotient import quotients
    from wattloop.analyze.importance import best_levels

    candidates, summary = read_search(place, search)
    if summary.best is None:
        raise ConfigError(f"{search.experiment_id}: {summary.why}")
    table = with_energy(search_table(place, search, looked=(candidates, summary)))
    names = (search.facts.get("objective") or {}).get("names") or ["energy"]
    quality = search.facts.get("quality") or {}
    if names[0] == "quality":
        found = best_levels(
            table, f"best_{quality['metric']}", maximize=quality.get("maximize", True)
        )
    elif names[0] == "quotient":
        per_ws = [None if math.isnan(value) else value for value in quotients(table).per_ws]
        found = best_levels(table.with_column("quotient", per_ws), "quotient", maximize=True)
    else:
        found = best_levels(table, default_target(table))
    print_table(Table.of(found.headers, tuple(found.cells()), found.title))
    chosen = {**summary.best.parameters, **summary.best.levers}
    columns = {column: name for name, column in parameter_columns(candidates).items()}
    for row in found.rows:
        name = columns.get(row["parameter"], "")
        tried = (c.parameters.get(name, c.levers.get(name)) for c in candidates)
        levels = {format_level(value): value for value in tried if value is not None}
        if name in chosen and row["level"] in levels:
            chosen[name] = levels[row["level"]]
    return chosen
