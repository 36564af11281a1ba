"""API of the overview: energy, cost and CO2e of periods, days, live runs, savings and health."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from wattloop.accounting.summary import cost_of
from wattloop.serve.api.live import LiveRunAnswer, live_answers
from wattloop.serve.state import AppState, State
from wattloop.store.job_queries import SpentEnergy, spent_energies
from wattloop.store.runs import Tariff, known_tariff

router = APIRouter(tags=["overview"])
DAYS = 30
NO_JOB, UNNAMED = "no job", "unnamed"
By = Literal["project", "user"]


class Amount(BaseModel):
    """Energy of the devices, and what it means for the grid, the bill and the climate.

    `cost` is that of the facility's energy (the devices' where no PUE is known) at one tariff;
    `carbon_g` is the sum of the runs with a carbon intensity. Both are null where unknown.
    """

    energy_j: float
    cost: float | None
    carbon_g: float | None
    jobs: int


class PeriodAnswer(BaseModel):
    """A period until now; the one before until the same point, and as a whole."""

    name: str
    begin_wall_s: float
    now: Amount
    before: Amount
    whole_before: Amount


class DayAnswer(BaseModel):
    """Energy of a day by project or user."""

    day: str
    name: str
    energy_j: float


class OverviewAnswer(BaseModel):
    """Energy of this server's runs; a job of several days is divided by time.

    `no_job_j` is what nodes used in this month while no job ran, which is in no period.
    """

    periods: list[PeriodAnswer]
    days: list[DayAnswer]
    by: By
    currency: str
    tariff_per_kwh: float | None
    tariff_source: str
    without_carbon: int
    measured_share: float | None
    no_job_j: float
    live: list[LiveRunAnswer]


@router.get("/overview")
def overview(state: State, by: Annotated[By, Query()] = "project") -> OverviewAnswer:
    """Return energy, cost and CO2e of today, this week and this month, days, and live runs."""
    return overview_answer(state, by)


def overview_answer(state: AppState, by: By, now_wall_s: float | None = None) -> OverviewAnswer:
    """Return the overview for page and API."""
    now_s = time.time() if now_wall_s is None else now_wall_s
    return state.answers.get(("overview", by), lambda: _overview(state, by, now_s))


def _overview(state: AppState, by: By, now_s: float) -> OverviewAnswer:
    today = datetime.fromtimestamp(now_s).date()
    begins = period_begins(today)
    first_s = min(_midnight(today - timedelta(days=DAYS)), *(b for _, b, _ in begins))
    spent = spent_energies(state.store, first_s)
    of_jobs = [each for each in spent if each.in_job]
    tariff = tariff_of(state)
    periods = []
    for name, before_s, begin_s in begins:
        same_s = min(before_s + now_s - begin_s, begin_s)
        periods.append(
            PeriodAnswer(
                name=name,
                begin_wall_s=begin_s,
                now=_amount(of_jobs, begin_s, now_s, tariff),
                before=_amount(of_jobs, before_s, same_s, tariff),
                whole_before=_amount(of_jobs, before_s, begin_s, tariff),
            )
        )
    month_s = begins[-1][2]
    lately = [e for e in of_jobs if e.end_wall_s >= month_s]
    total_j = math.fsum(e.energy_j for e in lately)
    idle = (e for e in spent if not e.in_job)
    return OverviewAnswer(
        periods=periods,
        days=_days(spent, today, by),
        by=by,
        currency=tariff.currency,
        tariff_per_kwh=tariff.per_kwh,
        tariff_source=tariff.source,
        without_carbon=sum(e.carbon_g is None for e in lately),
        measured_share=math.fsum(e.energy_j for e in lately if e.is_measured) / total_j
        if total_j > 0
        else None,
        no_job_j=math.fsum(e.energy_j * _share(e, month_s, now_s) for e in idle),
        live=live_answers(state),
    )


def period_begins(today: date) -> list[tuple[str, float, float]]:
    """Return name, beginning of the period before, and beginning of each period."""
    monday = today - timedelta(days=today.weekday())
    first = today.replace(day=1)
    return [
        ("today", _midnight(today - timedelta(days=1)), _midnight(today)),
        ("this week", _midnight(monday - timedelta(days=7)), _midnight(monday)),
        ("this month", _midnight((first - timedelta(days=1)).replace(day=1)), _midnight(first)),
    ]


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day).timestamp()


def _share(spent: SpentEnergy, begin_s: float, end_s: float) -> float:
    """Return the part of a job that lies in a period."""
    length_s = spent.end_wall_s - spent.begin_wall_s
    if length_s <= 0:
        return float(begin_s <= spent.begin_wall_s < end_s)
    inside_s = min(spent.end_wall_s, end_s) - max(spent.begin_wall_s, begin_s)
    return max(0.0, inside_s) / length_s


def _amount(spent: Iterable[SpentEnergy], begin_s: float, end_s: float, tariff: Tariff) -> Amount:
    energies_j, grid_j, grams, jobs = [], [], [], 0
    for each in spent:
        share = _share(each, begin_s, end_s)
        if share <= 0:
            continue
        jobs += 1
        energies_j.append(share * each.energy_j)
        grid_j.append(share * (each.energy_j if each.facility_j is None else each.facility_j))
        if each.carbon_g is not None:
            grams.append(share * each.carbon_g)
    cost = None
    if tariff.per_kwh is not None:
        cost = cost_of(math.fsum(grid_j), tariff.per_kwh, tariff.currency).amount
    return Amount(
        energy_j=math.fsum(energies_j),
        cost=cost,
        carbon_g=math.fsum(grams) if grams else None,
        jobs=jobs,
    )


def _days(spent: Sequence[SpentEnergy], today: date, by: By) -> list[DayAnswer]:
    """Return energies of the last days; names beyond the largest seven are `others`."""
    name_of: Callable[[SpentEnergy], str] = (
        (lambda e: e.project) if by == "project" else (lambda e: e.user)
    )
    days = [today - timedelta(days=n) for n in reversed(range(DAYS))]
    edges_s = [*(_midnight(day) for day in days), _midnight(today + timedelta(days=1))]
    found: dict[tuple[int, str], float] = {}
    for each in spent:
        name = (name_of(each) or UNNAMED) if each.in_job else NO_JOB
        first = max(0, bisect_right(edges_s, each.begin_wall_s) - 1)
        for place in range(first, DAYS):
            if each.end_wall_s < edges_s[place]:
                break
            share = _share(each, edges_s[place], edges_s[place + 1])
            if share > 0:
                key = (place, name)
                found[key] = found.get(key, 0.0) + share * each.energy_j
    sums: dict[str, float] = {}
    for (_, name), energy_j in found.items():
        sums[name] = sums.get(name, 0.0) + energy_j
    shown = sorted(sums, key=lambda name: -sums[name])[:MOST_NAMES]
    merged: dict[tuple[int, str], float] = {}
    for (place, name), energy_j in found.items():
        key = (place, name if name in shown else OTHERS)
        merged[key] = merged.get(key, 0.0) + energy_j
    order = {name: at for at, name in enumerate([*shown, OTHERS])}
    return [
        DayAnswer(day=days[place].isoformat(), name=name, energy_j=energy_j)
        for (place, name), energy_j in sorted(
            merged.items(), key=lambda item: (item[0][0], order[item[0][1]])
        )
    ]


MOST_NAMES, OTHERS = 6, "others"


def tariff_of(state: AppState) -> Tariff:
    """Return the server's tariff, else that of the newest run that has one."""
    return known_tariff(state.store, state.settings)
