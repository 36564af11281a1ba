"""Terminal output, figures and Optuna studies of searches."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import print_table, say
from wattloop.cli.progress import counted
from wattloop.cli.settings import settings_of
from wattloop.core.paths import user_path
from wattloop.core.units import format_duration, format_energy, format_number, format_power
from wattloop.report.stored_results import looked_at
from wattloop.store.experiments import Experiment
from wattloop.store.tables import iso_time
from wattloop.tune.results import CandidateResult, SearchSummary, parameter_columns
from wattloop.tune.search_store import OVER

if TYPE_CHECKING:
    from wattloop.store.database import Store


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
    from wattloop.report.figures.render import needs_libraries, writable_folder
    from wattloop.report.search import is_by_sm2

    if not is_by_sm2(experiment):
        return
    needs_libraries()
    writable_folder(user_path(folder))


def draw(store: "Store", experiment: "Experiment", folder: str) -> None:
    """Write figures 1 and 2 of document 003; for other strategies print where figures are."""
    from wattloop.report.figures.render import save
    from wattloop.report.search import is_by_sm2, sm2_charts
    from wattloop.tune.results import summarize_search

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


UNKNOWN = "-"


FRONT_SHOWN = 12


def result_dict(store: "Store", experiment: Experiment) -> dict[str, Any]:
    """Return a search as plain data: summary, candidates, specification."""
    return result_of(*looked_at(store, experiment), experiment)


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


def print_list(rows: Sequence[tuple[Experiment, SearchSummary]]) -> None:
    """Print searches, newest first."""
    print_table(
        ("search", "name", "status", "configurations", "energy", "time", "best"),
        [
            (
                e.experiment_id,
                e.name,
                e.status + (" (limit)" if s.stopped else ""),
                str(s.candidates),
                energy_text(s.energy_j, s.scope),
                format_duration(s.elapsed_s),
                UNKNOWN if s.best is None else setting_text(s.best),
            )
            for e, s in rows
        ],
        spare=("time", "name"),
    )


def print_summary(store: "Store", experiment: Experiment) -> None:
    """Print the candidates and the result."""
    print_found(*looked_at(store, experiment), experiment)


def print_found(
    found: Sequence[CandidateResult], summary: SearchSummary, experiment: Experiment
) -> None:
    """Print the same from a search that was read already."""
    print_candidates(found, summary, experiment)
    print_best(summary, experiment)


def print_candidates(
    candidates: Sequence[CandidateResult],
    summary: SearchSummary,
    experiment: Experiment,
    most: int = 20,
) -> None:
    """Print a row per configuration, the best first."""
    names = list(parameter_columns(candidates))
    metric = (experiment.facts.get("quality") or {}).get("metric") or "quality"
    maximize = (experiment.facts.get("quality") or {}).get("maximize", True)
    ordered = sorted(candidates, key=lambda c: _rank(c, summary, maximize=maximize))
    scope = f" ({summary.scope})" if summary.scope else ""
    print_table(
        (
            "trial",
            *names,
            f"best {metric}",
            "epochs",
            f"energy{scope}",
            "to target",
            "time",
            "power",
            "status",
        ),
        [
            (
                c.candidate,
                *(value_text(c.parameters.get(n, c.levers.get(n))) for n in names),
                UNKNOWN if c.best is None else format_number(c.best),
                f"{c.epochs:g}",
                UNKNOWN if c.energy_j is None else format_energy(c.energy_j),
                UNKNOWN if c.to_target_j is None else format_energy(c.to_target_j),
                format_duration(c.time_s),
                UNKNOWN if c.power_w is None else format_power(c.power_w),
                summary.status_of(c),
            )
            for c in ordered[:most]
        ],
        title=f"{experiment.experiment_id} {experiment.name}".strip(),
        spare=("power", "time", "epochs"),
    )
    if len(ordered) > most:
        say(f"wattloop: {len(ordered) - most} more; 'wattloop tune export' has all of them")


def print_best(summary: SearchSummary, experiment: Experiment) -> None:
    """Print the configuration to use, and the cost of the search."""
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
    lines.append(
        f"spent: {energy_text(summary.energy_j, summary.scope)} {summary.provenance}, "
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
    """Return the configuration to use as plain data."""
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
    """Format a setting: `lr=0.1 batch_size=64, power_limit=250`."""
    pairs = {**candidate.parameters, **candidate.levers}
    if candidate.learning_rate is not None:
        pairs["learning rate"] = candidate.learning_rate
    return " ".join(f"{name}={value_text(value)}" for name, value in pairs.items())


def value_text(value: Any) -> str:
    """Format the value of a parameter."""
    if value is None:
        return ""
    return format_number(value) if isinstance(value, float) else str(value)


def energy_text(energy_j: float | None, scope: str | None) -> str:
    """Format energy with its scope: `12 Wh gpu`."""
    if energy_j is None:
        return "energy not known"
    return f"{format_energy(energy_j)} {scope or ''}".strip()


def _rank(
    c: CandidateResult, summary: SearchSummary, *, maximize: bool
) -> tuple[bool, bool, bool, float, float]:
    best = summary.best is not None and c.candidate == summary.best.candidate
    cost_j = c.to_target_j if c.to_target_j is not None else float("inf")
    quality = float("inf") if c.best is None else (-c.best if maximize else c.best)
    return not best, not c.good, not c.reached, cost_j, quality


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
