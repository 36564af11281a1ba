"""*Run* and *Compare* pages: one run, and the significant differences of several."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.accounting.summary import cost_of
from wattloop.advise.advisor import noticed, silent_rules
from wattloop.advise.facts import read_facts, reason_without_facts
from wattloop.core.errors import ExperimentNotFound
from wattloop.core.records import Scope
from wattloop.core.table import Table
from wattloop.core.units import (
    format_change,
    format_duration,
    format_edp,
    format_number,
    format_power,
    short_energy,
)
from wattloop.integrations.run_phases import StepTotals
from wattloop.integrations.stored_steps import read_phase_spans
from wattloop.report.document import Block, Chart, Note
from wattloop.report.figures.run import power_figure
from wattloop.report.run import (
    grid_facts,
    labels,
    notes_of,
    remarks,
    saving_blocks,
    sensors,
    serving_blocks,
    step_blocks,
    windows_table,
)
from wattloop.serve.api.live import LiveRunAnswer, live_answers
from wattloop.serve.api.overview import tariff_of
from wattloop.serve.api.predict import known_models
from wattloop.serve.api.runs import compare_runs, find_any_run, run_advice, step_totals
from wattloop.serve.blocks import blocks_html
from wattloop.serve.pages.jobs import listed_rows
from wattloop.serve.state import AppState, State
from wattloop.store.comparison import Cell, RunComparison
from wattloop.store.experiments import Experiment, find_experiment
from wattloop.store.run_record import read_windows
from wattloop.store.runs import RunRecord, child_runs, find_run
from wattloop.store.samples import series_of
from wattloop.store.trial_groups import TRIAL_TAGS

router = APIRouter()

NO_SENSOR = Note(
    "No sensor was read, so no energy is known of this run.",
    tone="warning",
    command="wattloop devices",
    source="says which sensors there are, and what keeps others from being read",
)


@router.get("/runs/{run_id}")
def run(request: Request, state: State, run_id: str) -> HTMLResponse:
    """Show one run, also a live one."""
    record = find_any_run(state.store, run_id)
    accounting = record.accounting or {}
    windows = read_windows(state.store, record.run_id)
    # without advice, what was noticed stands in its place
    seen = [] if run_advice(state, record) else noticed(record)
    found = [
        *([sensors(record)] if record.result is not None else []),
        None if series_of(record.feeds) else NO_SENSOR,
        labels(accounting),
        *(each for each in remarks(record) if each.text not in seen),
        grid_facts(accounting) if accounting else None,
        windows_table(windows),
    ]
    is_live = record.status.value == "running"
    totals = None if is_live else step_totals(state, record)
    grid_j = (accounting.get("facility") or {}).get("energy_j") or record.energy_j
    tariff = state.answers.get("tariff", lambda: tariff_of(state))
    cost = None
    if grid_j is not None and tariff.per_kwh is not None:
        cost = cost_of(grid_j, tariff.per_kwh, tariff.currency)
    return state.page(
        "run.html",
        request,
        record=record,
        grid_j=grid_j,
        cost=cost,
        is_live=is_live,
        now=_live_answer(state, record) if is_live else None,
        totals=totals,
        command=shlex.join(record.command) if record.command else "",
        environment=_environment(record),
        inside=[] if is_live else child_runs(state.store, record.run_id),
        experiment=_experiment(state, record),
        predict=_predict_link(record, totals),
        has_samples=any(series.kind != "signal" for series in series_of(record.feeds)),
        has_limits=any(
            one.get("tdp_w") for feed in record.feeds for one in feed.get("domains") or ()
        ),
        has_windows=bool(windows),
        has_phases=bool(not is_live and read_phase_spans(state.store, record)),
        has_signals=any(series.kind == "signal" for series in series_of(record.feeds)),
        advice=state.cache.get(
            ("advice notes", record.run_id, record.status),
            lambda: blocks_html(_advice_notes(state, record)),
        ),
        steps=state.cache.get(  # a run has no stored steps until it has ended
            ("steps", record.run_id, record.status),
            lambda: blocks_html(step_blocks(state.store, record)),
        ),
        saving=blocks_html(saving_blocks(record)),
        serving=state.cache.get(
            ("serving", record.run_id, record.status),
            lambda: blocks_html(serving_blocks(state.store, record)),
        ),
        blocks=blocks_html([block for block in found if block is not None]),
    )


def _advice_notes(state: AppState, record: RunRecord) -> list[Block]:
    """Return advice with its evidence; without any, which rules found nothing and which lacked."""
    found = run_advice(state, record)
    if found or record.status.value == "running":
        return [*notes_of(found)]
    facts = read_facts(state.store, record, state.settings)
    reason = reason_without_facts(record)
    if facts is None or reason:
        return [Note(f"Not known: {reason or 'the run has no readings'}.", tone="info")]
    by_reason: dict[str, list[str]] = {}
    for rule in silent_rules(facts, found):
        by_reason.setdefault(rule.lacked or "looked", []).append(rule.rule)
    looked = ", ".join(by_reason.pop("looked", []))
    text = f"No waste was found by {looked}." if looked else "No rule could judge this run."
    lacked = "; ".join(f"{reason}: {', '.join(rules)}" for reason, rules in by_reason.items())
    seen = [Note(each, tone="warning", title="Noticed:") for each in noticed(record)]
    return [*seen, Note(text, tone="info", source=f"Could not judge: {lacked}" if lacked else "")]


def _live_answer(state: AppState, record: RunRecord) -> LiveRunAnswer | None:
    return next((one for one in live_answers(state) if one.run_id == record.run_id), None)


def _environment(record: RunRecord) -> dict[str, str]:
    """Return what is known about where and how the run was started."""
    ending = "" if record.exit_code is None else str(record.exit_code)
    if record.signal is not None:
        ending = f"signal {record.signal}"
    scheduler = (record.job or {}).get("scheduler")
    job = str((record.job or {}).get("id") or "")
    if job and isinstance(scheduler, Mapping) and scheduler.get("partition"):
        job += f" ({scheduler['partition']})"
    devices = () if record.result is None else record.result.domains
    facts = {
        "User": record.user,
        "Host": record.host,
        "Devices": ", ".join(dict.fromkeys(d.device for d in devices if d.device)),
        "Exit code": ending,
        "Folder": record.cwd,
        "Job": job,
        "Measured as": {"command": "a command", "python": "a Python block"}.get(
            record.kind, record.kind
        ),
        "Python": record.python,
        "Wattloop": record.version,
        "Identifier": record.run_id,
    }
    return {name: value for name, value in facts.items() if value}


def _experiment(state: AppState, record: RunRecord) -> Experiment | None:
    """Return the sweep or search whose trial a run is."""
    for key in TRIAL_TAGS:
        with suppress(ExperimentNotFound):
            if record.tags.get(key):
                return find_experiment(state.store, str(record.tags[key]))
    return None


OTHER_GPU = "h100-sxm"
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def _predict_link(record: RunRecord, totals: StepTotals | None) -> str:
    """Return the address of the prediction on another GPU, with what is known of the run."""
    words = [str(record.tags.get("model") or ""), *(record.command or []), record.name]
    named = {_letters(word.rpartition("=")[2].rpartition("/")[2]) for word in words}
    model = next((name for name in known_models() if _letters(name) in named), "")
    precision, batch = record.tags.get("precision"), _batch(record, totals)
    devices = () if record.result is None else record.result.scope_domains(Scope.GPU)
    asked = {
        "run": record.run_id,
        "gpu": OTHER_GPU,
        "model": model,
        "precision": precision if precision in PRECISIONS else "",
        "batch": batch,
        "gpus": str(len(devices)) if len(devices) > 1 else "",
    }
    return f"/predict?{urlencode({name: value for name, value in asked.items() if value})}"


def _letters(name: str) -> str:
    """Return a name without what its spellings differ in: `ResNet-50` is `resnet50`."""
    return "".join(c for c in name.lower() if c.isalnum())


def _batch(record: RunRecord, totals: StepTotals | None) -> str:
    """Return the batch that the hook counted, or that tags or the command of a run name."""
    words = [f"{key}={value}" for key, value in record.tags.items()] + list(record.command or [])
    text = " ".join(words).replace("-", "_")
    found = re.search(r"\b_*(?:per_device_train_)?batch(?:_size)?[= ](\d{1,5})\b", text)
    if found is None and totals and totals.samples and totals.steps:
        return str(max(1, round(totals.samples / totals.steps / max(1, totals.processes))))
    return found[1] if found else ""


OFFERED, LIKE_IT = 30, 8
LONGEST_HEAD = 32
SCOPES = ("gpu", "cpu", "dram", "node")
SHOWN: dict[str, Callable[[float], str]] = {
    "s": format_duration,
    "W": format_power,
    "J": short_energy,
    "J s": format_edp,
}
"""Numbers for people, by unit."""


@router.get("/compare")
def compare_page(
    request: Request,
    state: State,
    run: Annotated[list[str] | None, Query(max_length=12)] = None,
    text: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """Show the comparison of the chosen runs, and others to choose, found by name."""
    shown = Markup("")
    chosen = [find_run(state.store, name) for name in dict.fromkeys(run or []) if name]
    names = list(dict.fromkeys(record.run_id for record in chosen))
    if len(names) > 1:
        key = ("compare", *names)
        found = state.answers.get(key, lambda: compare_runs(state.store, names))
        # runs that are over do not change; their repeats may become more
        counts = tuple(map(len, found.repeats))
        shown = state.cache.get((*key, counts), lambda: blocks_html(_blocks(state, found)))

    def link(names: Sequence[str]) -> str:
        return f"/compare?{urlencode([('run', name) for name in names])}"

    return state.page(
        "compare.html",
        request,
        chosen=chosen,
        text=text,
        offered=_offered(state, chosen, text),
        adding=lambda run_id: link([*names, run_id] if run_id else names),
        without=lambda run_id: link([name for name in names if name != run_id]),
        blocks=shown,
    )


def _offered(state: AppState, chosen: Sequence[RunRecord], text: str) -> list[Mapping[str, Any]]:
    """Return runs to choose: those of the same name, then the newest, unless a text is searched."""
    known = {record.run_id for record in chosen}
    rows = listed_rows(state, text=text, size=OFFERED)
    if chosen and chosen[0].name and not text:
        rows = listed_rows(state, text=chosen[0].name, size=LIKE_IT) + rows
    found = {row["run_id"]: row for row in rows if row["run_id"]}
    return [row for run_id, row in found.items() if run_id not in known]


def _blocks(state: AppState, found: RunComparison) -> list[Block]:
    heads = [_head(record) for record in found.records]
    if len(set(heads)) < len(heads):  # the verdict names identifiers
        heads = [record.run_id for record in found.records]
    columns = ["quantity", heads[0]]
    for head in heads[1:]:
        columns += [head, "difference"]
    rows = tuple(
        (
            f"{quantity.name} {quantity.scope}".strip(),
            *_cells(quantity.cells, quantity.unit),
        )
        for quantity in found.quantities
    )
    table = Table.of(
        tuple(columns),
        rows,
        title=f"Compared with {heads[0]}; a difference within the uncertainty is marked '?'",
        numbers=range(1, len(columns)),
        notes=found.notes,
    )
    blocks: list[Block] = [Note(f"{each}.", tone="info") for each in found.verdicts]
    blocks.append(table)
    runs = {f"{record.name} {record.run_id[-6:]}": record for record in found.records}
    silent = [name for name, record in runs.items() if not series_of(record.feeds)]
    for scope in SCOPES:
        chart = power_figure(state.store, runs, scope, 0.0)
        if chart is not None:
            blocks.append(Chart(f"power-{scope}", chart, f"Power of {scope} of each run over time"))
    if silent:
        blocks.append(Note(f"No samples were kept of {', '.join(silent)}: no curve."))
    return blocks


def _head(record: RunRecord) -> str:
    """Shorten a name to the width of a column."""
    name = record.name or record.run_id
    return name if len(name) <= LONGEST_HEAD else f"{name[: LONGEST_HEAD - 9]}…{name[-8:]}"


def _cells(cells: tuple[Cell, ...], unit: str) -> list[str]:
    found = [_value(cells[0], unit)]
    for cell in cells[1:]:
        found.append(_value(cell, unit))
        if cell.difference is None:
            found.append("–")
        else:
            found.append(f"{format_change(cell.difference)}{'' if cell.real else ' ?'}")
    return found


def _value(cell: Cell, unit: str) -> str:
    if cell.value is None:
        return "–"
    shown = SHOWN.get(unit)
    return f"{format_number(cell.value)} {unit}" if shown is None else shown(cell.value)
