"""`--figures DIR`: what a sweep found, drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import say
from wattloop.core.errors import RunNotFound
from wattloop.core.user_code import user_path
from wattloop.report.figures.power import power_figure
from wattloop.report.figures.render import needs_libraries, save
from wattloop.report.figures.style import said_of
from wattloop.report.figures.sweep import sweep_figures
from wattloop.report.figures.techniques import technique_figures
from wattloop.store.runs import RunRecord, find_run
from wattloop.sweep.result import EDP, Group, SweepResult

if TYPE_CHECKING:
    from wattloop.store.database import Store

__all__ = ["draw"]


def draw(results: Sequence[SweepResult], store: "Store", folder: str) -> None:
    """Write all figures that there is data for."""
    needs_libraries()
    charts: dict[str, Any] = {}
    for number, result in enumerate(results):
        prefix = f"{number + 1}-" if len(results) > 1 else ""
        own = sweep_figures(result)
        power = _power_over_time(result, store)
        own |= {} if power is None else {"power-over-time": power}
        charts |= {f"{prefix}{name}": chart for name, chart in own.items()}
    charts |= technique_figures(results)
    if not charts:
        say("wattloop: nothing to draw: no point beside the default was measured")
        return
    names = [r.experiment.name or r.experiment.experiment_id for r in results]
    notes = [
        f"{r.experiment.experiment_id}: {said_of(r)}; host "
        f"{r.experiment.facts.get('host', 'unknown')}"
        for r in results
    ]
    written = save(charts, user_path(folder), title=", ".join(names), notes=notes)
    say(f"wattloop: {len(charts)} figures in {folder}: see {written[-1]}")


def _power_over_time(result: SweepResult, store: "Store") -> Any:
    """A typical run at the default and at the lowest EDP, with most GPUs."""
    if not result.groups or result.scope is None:
        return None
    group = max(result.groups, key=lambda g: g.key[2] or 0)
    scope = result.scope if _is_read(group, result.scope) else "gpu"
    best = group.best(EDP)
    wanted = (
        {} if group.reference is None else {f"{group.reference.label} (default)": group.reference}
    )
    if best is not None and not best[0].is_default:
        wanted[f"{best[0].label} (lowest EDP)"] = best[0]
    runs: dict[str, RunRecord] = {}
    for label, point in wanted.items():
        try:
            runs[label] = find_run(store, point.run_id or "none")
        except RunNotFound:
            continue
    return power_figure(store, runs, scope, _tdp_w(group, scope)) if runs else None


def _is_read(group: Group, scope: str) -> bool:
    used = [o for p in group.points for o in p.repeated.used]
    return any(scope in o.scopes and not o.scopes[scope].modelled for o in used)


def _tdp_w(group: Group, scope: str) -> float:
    """Of the default setting: a cap that was set is not what the hardware can do."""
    reference = group.reference
    if reference is None or not reference.repeated.used:
        return 0.0
    domains = reference.repeated.used[0].domains
    return sum(d.get("tdp_w") or 0.0 for d in domains if d["scope"] == scope and d["in_total"])
