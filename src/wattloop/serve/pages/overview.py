"""*Overview* page: energy now and lately, consumers, savings proven and waiting, health."""

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup
from starlette.exceptions import HTTPException

from wattloop.accounting.carbon import carbon_g
from wattloop.advise.advice import Advice
from wattloop.advise.advisor import advice_on
from wattloop.cap.saver.proof import format_percent
from wattloop.cap.saver.totals import (
    RunSaving,
    format_interval,
    format_saved,
    read_savings,
    sum_savings,
)
from wattloop.core.errors import ConfigError, RunNotFound
from wattloop.core.units import format_duration, format_mass
from wattloop.hardware.carbon import annual_intensity
from wattloop.report.document import Chart
from wattloop.report.figures.run import daily_figure
from wattloop.serve.api.jobs import JobListQuery, jobs_answer
from wattloop.serve.api.nodes import node_answers
from wattloop.serve.api.overview import DAYS, By, DayAnswer, overview_answer, period_begins
from wattloop.serve.blocks import blocks_html
from wattloop.serve.pages.jobs import listed_rows
from wattloop.serve.state import AppState, State
from wattloop.store.job_queries import NamedConsumer, largest_names, newest_runs
from wattloop.store.runs import find_run, list_runs

router = APIRouter()
DAY_S = 86_400.0
LATELY_D, SAVED_D = 7, 30
CostSpan = Literal["7 days", "this week", "last week"]
LARGEST, LOOKED_AT, WAITING, HOSTS, LINES = 8, 6, 6, 200, 6


class ProvenSaving(NamedTuple):
    """What savers saved lately, in words."""

    energy: str
    remark: str


class WaitingSaving(NamedTuple):
    """Energy that could be saved, how, and why that is believed."""

    what: str
    run_id: str
    energy_j: float
    text: str
    command: str
    source: str


class HealthLine(NamedTuple):
    """Something that is well or wrong with a sensor, a node or a run, and the remedy."""

    tone: str
    what: str
    text: str
    remedy: str = ""
    link: str = ""


class GridView(NamedTuple):
    """PUE, country and carbon intensity, each with its source, and this month's energy with them.

    `fault` says why the intensity is unknown. Values of the form change this view only.
    """

    pue: float
    pue_source: str
    zone: str
    zone_source: str
    g_co2e_per_kwh: float | None
    intensity_source: str
    grid_j: float
    carbon_g: float | None
    fault: str = ""


@router.get("/")
def overview(
    request: Request,
    state: State,
    by: Annotated[By, Query()] = "project",
    cost: Annotated[CostSpan, Query()] = "7 days",
    pue: Annotated[float | None, Query(ge=1, le=10)] = None,
    zone: Annotated[str, Query(max_length=60)] = "",
) -> Response:
    """Show energy of periods and days, live runs, consumers, savings and health."""
    if request.query_params.keys() & JobListQuery.model_fields.keys():
        # lists of jobs had this address before
        kept = [(k, v) for k, v in request.query_params.multi_items() if k != "token"]
        return RedirectResponse(f"/jobs?{urlencode(kept)}", 307)
    state.tidy()
    parts = overview_parts(state, by, cost)
    month_j = parts["answer"].periods[-1].now.energy_j
    grid = _grid(state, month_j, pue, zone.strip())
    return state.page("overview.html", request, **parts, grid=grid)


def _grid(state: AppState, month_j: float, pue: float | None, zone: str) -> GridView:
    """Return the form's values, else the server's settings, else those of the newest run."""
    settings, run = state.settings, next(iter(list_runs(state.store, limit=1)), None)
    told = (run.accounting if run is not None else None) or {}
    pue_source = zone_source = "this form"
    if pue is None:
        stated = settings.sources.get("pue", "default") != "default"
        known = settings.pue if stated else (told.get("facility") or {}).get("pue")
        pue = float(known) if isinstance(known, int | float) and known >= 1 else 1.0
        pue_source = settings.sources.get("pue", "") if stated else "the newest run"
        if not stated and known is None:
            pue_source = "not stated: cooling is not counted"
    grams, source, fault = settings.carbon_g_per_kwh, "the settings", ""
    if zone or grams is None:
        intensity = told.get("carbon_intensity") or {}
        if not zone and settings.zone:
            zone, zone_source = settings.zone, settings.sources.get("zone", "settings")
        elif not zone:
            zone, zone_source = str(intensity.get("zone") or ""), "the newest run"
        grams, source = None, ""
        try:
            found = annual_intensity(zone) if zone else None
        except ConfigError as error:
            found, fault = None, str(error)
        if found is not None:
            grams, source = found.g_co2e_per_kwh, f"annual mean, {found.source}"
    grid_j = month_j * pue
    mass_g = None if grams is None else carbon_g(grid_j, grams)
    if not zone:
        zone_source = "not stated"
    return GridView(pue, pue_source, zone, zone_source, grams, source, grid_j, mass_g, fault)


def overview_parts(
    state: AppState, by: By = "project", cost: CostSpan = "7 days"
) -> dict[str, Any]:
    """Return what the page shows; also called before the first reader comes."""
    answer = overview_answer(state, by)
    span = _cost_span(cost)
    return {
        "answer": answer,
        "spans": _spans(),
        "chart": _chart(state, by, answer.days),
        "largest": state.answers.get(("largest", span), lambda: _largest(state, span)),
        "span": span,
        "cost": cost,
        "lately_d": LATELY_D,
        "saved_d": SAVED_D,
        "saved": proven_saving(state),
        "waiting": state.answers.get("waiting", lambda: _waiting(state)),
        "health": state.answers.get("health", lambda: _health(state)),
        "is_empty": not answer.live and not _has_jobs(state),
    }


def _spans() -> list[dict[str, str]]:
    """Return the days on which the previous periods begin, and those that follow them."""
    begins = period_begins(datetime.now().date())
    days = [[datetime.fromtimestamp(s).date().isoformat() for s in each[1:]] for each in begins]
    return [{"before": first, "last": after} for first, after in days]


def _has_jobs(state: AppState) -> bool:
    return bool(listed_rows(state, size=1))


def _chart(state: AppState, by: By, days: Sequence[DayAnswer]) -> Markup:
    def make() -> Markup:
        rows = [(each.day, each.name, each.energy_j) for each in days]
        if rows:  # days without any energy have their place, too
            known, today = {day for day, _, _ in rows}, datetime.now().date()
            last = [(today - timedelta(days=n)).isoformat() for n in range(DAYS)]
            rows += [(day, rows[0][1], 0.0) for day in last if day not in known]
        words = f"Energy of each of the last 30 days by {by}"
        return blocks_html([Chart("days", daily_figure(rows, by), words)]) if rows else Markup("")

    known = tuple((each.day, each.name, each.energy_j) for each in days)
    return state.cache.get(("days", by, datetime.now().date(), known), make)


class DaySpan(NamedTuple):
    """Days of the card of what cost most; without `until`, up to now."""

    since: str
    until: str
    text: str

    @property
    def link(self) -> str:
        """The same runs in the list, the dearest first."""
        asked = {"since": self.since, "until": self.until, "when": "ran", "sort": "cost"}
        return f"/jobs?{urlencode({key: value for key, value in asked.items() if value})}"


def _cost_span(cost: CostSpan) -> DaySpan:
    today = datetime.now().date()
    last, this = (datetime.fromtimestamp(s).date() for s in period_begins(today)[1][1:])
    first, until = {
        "7 days": (today - timedelta(days=LATELY_D), None),
        "this week": (this, None),
        "last week": (last, this),
    }[cost]
    end = today if until is None else until - timedelta(days=1)
    text = f"{first.day} {first:%b} to {end.day} {end:%b}"
    return DaySpan(first.isoformat(), "" if until is None else until.isoformat(), text)


def _largest(state: AppState, span: DaySpan) -> list[dict[str, object]]:
    rows = listed_rows(
        state, since=span.since, until=span.until, when="ran", sort="cost", size=LARGEST
    )
    return [row for row in rows if row["energy_j"]]


def proven_saving(state: AppState) -> ProvenSaving | None:
    """Return what runs with a saver saved lately; None where there was none."""
    total = sum_savings(_recent_savings(state))
    if not total.runs:
        return None
    energy, remarks = "nothing yet", []
    if total.saved_j is not None and total.saved_pct is not None:
        energy = format_saved(total.saved_j)
        runs = f"{total.compared} run{'s' * (total.compared != 1)}"
        remarks.append(f"{format_percent(total.saved_pct)} of the GPU energy of {runs}")
    remarks += [f"{format_interval(cost)} {unit}" for unit, cost in total.cost.items()]
    if total.carbon_g is not None:
        remarks.append(f"{format_mass(total.carbon_g.value)} CO2e")
    if total.expected_j is not None:
        runs = f"{total.observed} run{'s' * (total.observed != 1)}"
        remarks.append(f"{runs} could have saved {format_saved(total.expected_j)} (modelled)")
    return ProvenSaving(energy, "; ".join(remarks) or "no run was compared with its reference")


def _recent_savings(state: AppState) -> list[RunSaving]:
    """Return runs with a saver; a thousand of them take a second to read."""
    return state.answers.get(
        "recent savings",
        lambda: read_savings(state.store, state.settings, time.time() - SAVED_D * DAY_S),
    )


def _waiting(state: AppState) -> list[WaitingSaving]:
    """Return savings that advice and savers expect, the largest first."""
    found = [*_advised(state), *_observed(state)]
    return sorted(found, key=lambda one: -one.energy_j)[:WAITING]


def _advised(state: AppState) -> list[WaitingSaving]:
    """Return advice on the newest run of each of the largest names."""
    found = []
    for name in largest_names(state.store, time.time() - SAVED_D * DAY_S, LOOKED_AT):
        advice = _advice(state, name)
        best = next((a for a in advice if a.saving_j is not None and a.saving_share > 0), None)
        if best is None:
            continue
        runs = f"its {name.jobs} runs" if name.jobs > 1 else "its run"
        found.append(
            WaitingSaving(
                what=name.name,
                run_id=name.newest_run_id,
                energy_j=best.saving_share * name.energy_j,
                text=f"{best.title}: {best.saving_share:.0%} of {runs} of {SAVED_D} days",
                command=best.command or f"wattloop advise {name.newest_run_id}",
                source=best.source,
            )
        )
    return found


def _advice(state: AppState, name: NamedConsumer) -> list[Advice]:
    """Return advice on the newest run of a name; none while it is worked out."""
    try:
        record = find_run(state.store, name.newest_run_id)
    except RunNotFound:  # deleted meanwhile
        return []
    if record.result is None:
        return []
    with suppress(HTTPException):  # too much is worked out already: at the next look
        return (
            state.cache.soon(
                ("advice", record.run_id),
                lambda: advice_on(state.store, record, state.settings),
                0.0,
            )
            or []
        )
    return []


def _observed(state: AppState) -> list[WaitingSaving]:
    """Return what savers expect of runs in which they set nothing, by name."""
    groups: dict[str, list[RunSaving]] = {}
    for run in _recent_savings(state):
        if run.expected_j is not None and run.expected_j.value > 0:
            groups.setdefault(run.name, []).append(run)
    found = []
    for name, runs in groups.items():
        record = find_run(state.store, runs[0].run_id)
        command = shlex.join(record.command) if record.command else "python train.py"
        count = f"{len(runs)} run{'s' * (len(runs) != 1)}"
        found.append(
            WaitingSaving(
                what=name or runs[0].run_id,
                run_id=runs[0].run_id,
                energy_j=sum(run.expected_j.value for run in runs if run.expected_j),
                text=f"A lower cap or clock: {count} only observed ({runs[0].reason})",
                command=f"wattloop run --save -- {command}",
                source="the saver's model",
            )
        )
    return found


def _health(state: AppState) -> list[HealthLine]:
    """Return what is wrong first, then what is well."""
    lines = [*_node_lines(state), *_sensor_lines(state)]
    refused = state.ingest.refused()
    if refused:
        text = f"{len(refused)} set aside, the last for: {refused[0].reason}"
        lines.append(HealthLine("warning", "journals", text, link="/nodes"))
    since = datetime.fromtimestamp(time.time() - LATELY_D * DAY_S).date().isoformat()
    for status in ("failed", "died"):
        query = JobListQuery.model_validate(
            {"status": status, "since": since, "size": LINES, "trials": "fold"}
        )
        found = jobs_answer(state, query)
        if found.rows:
            names = ", ".join(dict.fromkeys(row.name or row.run_id for row in found.jobs))
            more = ", ..." * (found.rows > LINES)
            text = f"{names}{more}, since {since}"
            what = f"{found.rows} run{'s' * (found.rows != 1)} {status}"
            link = f"/jobs?status={status}&since={since}"
            lines.append(HealthLine("warning", what, text, link=link))
    bad = [line for line in lines if line.tone == "warning"]
    return [*bad, *(line for line in lines if line.tone != "warning")]


def _node_lines(state: AppState) -> list[HealthLine]:
    lines, well = [], 0
    for node in node_answers(state.nodes):
        link = f"/nodes#{quote(node.node)}"
        said = list(node.faults)
        if node.stale:
            said.append(f"silent for {format_duration(node.age_s)}")
        if node.refusal:
            said.append(f"refused: {node.refusal}")
        lines += [HealthLine("warning", node.node, text, link=link) for text in said]
        well += not said
    if well:
        text = f"{well} node{'s' * (well != 1)} report as expected"
        lines.append(HealthLine("good", "agents", text, link="/nodes"))
    return lines


def _sensor_lines(state: AppState) -> list[HealthLine]:
    """Return what the newest run of each host could not read."""
    lines, well = [], 0
    for record in newest_runs(state.store, time.time() - LATELY_D * DAY_S, HOSTS):
        missing = () if record.result is None else record.result.missing
        lines += [
            HealthLine(
                "warning",
                record.host,
                f"{part.name} is not read: {part.reason}",
                part.remedy or "",
                f"/nodes#{quote(record.host)}",
            )
            for part in missing
        ]
        well += not missing
    if well:
        text = f"all known sensors of {well} host{'s' * (well != 1)} are read"
        lines.append(HealthLine("good", "sensors", text, link="/nodes"))
    return lines
