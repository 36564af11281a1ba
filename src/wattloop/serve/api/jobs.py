"""API of jobs: filtered, sorted and paged, with totals and energy over duration."""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from wattloop.accounting.energy_slope import slopes
from wattloop.report.stored_results import headline
from wattloop.serve.errors import faults
from wattloop.serve.state import AppState, State
from wattloop.store.database import Store
from wattloop.store.experiments import find_experiment
from wattloop.store.job_queries import (
    JobFilter,
    JobTotals,
    count_trials,
    folded_job_page,
    job_page,
    job_totals,
    job_with_runs,
    matching_groups,
)
from wattloop.store.trial_groups import TrialGroup
from wattloop.trials.experiment_lock import with_status_now

DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


# RFC 3339, section 5.6: a date-time names its offset, so that it means the same everywhere
DATE_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}):(\d{2})(\.\d+)?(Z|[+-]\d{2}:\d{2})", re.ASCII
)
LEAP = "60"


def moment_wall_s(text: str) -> float | None:
    """Parse `2026-01-31` (midnight of this server) or `2026-01-31T12:00:00Z`.

    None for an empty text.

    Raises:
        ValueError: neither of them.
    """
    if not text:
        return None
    if DAY.fullmatch(text):
        return _midnight(date.fromisoformat(text))
    found = DATE_TIME.fullmatch(text.upper())
    if found is None:
        raise ValueError("neither a day nor a moment with its offset")
    minute, second, fraction, offset = found.groups()
    is_leap = second == LEAP
    begun = datetime.fromisoformat(f"{minute}:{'59' if is_leap else second}{offset}")
    return begun.timestamp() + float(fraction or 0.0) + is_leap


def _midnight(day: date) -> float:
    begun = datetime(day.year, day.month, day.day)
    try:
        return begun.astimezone().timestamp()
    except (OverflowError, ValueError, OSError):  # years that no clock of this machine has had
        return (begun.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)


def _checked(text: str) -> str:
    try:
        moment_wall_s(text)
    except ValueError as error:
        raise ValueError(f"{error}; write 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return text


Moment = Annotated[
    str,
    AfterValidator(_checked),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date"},
                {"type": "string", "format": "date-time"},
                {"type": "string", "const": ""},
            ],
            "examples": ["2026-01-31", "2026-01-31T12:00:00Z"],
        }
    ),
]
"""A day, a moment with its offset, or nothing."""


class DeviceSlope(BaseModel):
    """Joules per further second on a type of device."""

    device: str
    slope_w: float
    intercept_j: float
    r2: float
    runs: int


class NoSlope(BaseModel):
    """A type of device whose jobs do not lie on a line, with the reason."""

    device: str
    reason: str


class SlopesAnswer(BaseModel):
    """Energy against duration per device of matching jobs; points for a chart."""

    slopes: list[DeviceSlope]
    missing: list[NoSlope]
    points: list[tuple[str, float, float]]


def fit_slopes(rows: Iterable[Mapping[str, Any]]) -> SlopesAnswer:
    """Fit lines through jobs that count in totals."""
    points = [
        (str(row["device"] or "unknown device"), float(row["duration_s"]), float(row["energy_j"]))
        for row in rows
        if row["energy_j"] is not None and row["duration_s"] is not None and row["in_totals"]
    ]
    pairs: dict[str, list[tuple[float, float]]] = {}
    for device, duration_s, energy_j in points:
        pairs.setdefault(device, []).append((duration_s, energy_j))
    lines, missing = slopes(pairs)
    return SlopesAnswer(
        slopes=[DeviceSlope(**line._asdict()) for line in lines],
        missing=[NoSlope(device=each.name, reason=each.reason) for each in missing],
        points=points,
    )


router = APIRouter(tags=["jobs"])
Sort = Literal[
    "started", "name", "duration", "energy", "cost", "carbon", "cluster", "partition", "project",
    "label", "status", "nodes",
]  # fmt: skip
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SLOPE_RUNS = 2_000


class JobFilters(BaseModel):
    """Filter of jobs; empty fields match any."""

    model_config = ConfigDict(extra="ignore")

    text: str = Field("", max_length=200, description="In the name or an identifier.")
    status: str = Field("", max_length=40)
    host: str = Field("", max_length=200)
    cluster: str = Field("", max_length=200)
    partition: str = Field("", max_length=200)
    project: str = Field("", max_length=200)
    label: Literal["", "low", "medium", "high"] = ""
    since: Moment = Field("", description="Begun then or later; a day is that of the server.")
    until: Moment = Field("", description="Begun before; a day is that of the server.")
    when: Literal["begun", "ran"] = Field(
        "begun", description="`ran`: also jobs that began before `since` and ran then."
    )
    shortest_s: Seconds | Literal[""] = Field("", description="Duration at least.")
    longest_s: Seconds | Literal[""] = Field("", description="Duration at most.")
    exclusive: Literal["", "yes", "no"] = ""
    kind: str = Field("", max_length=40, description="`unallocated`: what nodes used for no job.")
    experiment: str = Field("", max_length=200, description="Trials of this sweep or search.")


class JobListQuery(JobFilters):
    """Filter, order and page of jobs."""

    sort: Sort = "started"
    order: Literal["down", "up"] = "down"
    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(25, ge=1, le=500)
    trials: Literal["all", "fold"] = Field(
        "all", description="`fold`: one row per sweep or search instead of its trials."
    )


class JobRow(BaseModel):
    """One job in the list: a run, or all runs of a batch job.

    Energies in joules of everything that was read on its `nodes`; `run_id` is the first of its
    `runs`. Those of the `quarantined` are not believed, and in no sum. A row of folded trials is
    their experiment: `experiment_kind` is `sweep` or `search`, `run_id` is empty, `result` says
    what came out.
    """

    job_key: str
    run_id: str
    name: str
    status: str
    kind: str
    nodes: int
    nodes_expected: int | None
    runs: int
    quarantined: int
    host: str
    user_name: str
    job_id: str | None
    started_wall_s: float
    duration_s: float | None
    energy_j: float | None
    uncertainty_j: float | None
    counted: bool
    cluster: str | None
    partition: str | None
    project: str | None
    exclusive: bool | None
    device: str | None
    label: str | None
    insights: list[str]
    provenance: str | None
    complete: bool | None
    facility_j: float | None
    carbon_g: float | None
    experiment_kind: str | None = None
    result: str = ""


class JobRunRow(BaseModel):
    """The run of a job on one node."""

    run_id: str
    host: str
    name: str
    status: str
    kind: str
    started_wall_s: float
    duration_s: float | None
    energy_j: float | None
    gpu_energy_j: float | None
    uncertainty_j: float | None
    counted: bool
    label: str | None
    insights: list[str]
    provenance: str | None
    quarantine: str | None
    clock_offset_s: float | None


class JobAnswer(BaseModel):
    """A job with its runs, ordered by host."""

    job: JobRow
    runs: list[JobRunRow]


class JobsAnswer(BaseModel):
    """A page of jobs; `rows` is the number of rows on all pages."""

    jobs: list[JobRow]
    totals: JobTotals
    rows: int
    page: int
    pages: int


@router.get("/jobs")
def jobs(state: State, query: Annotated[JobListQuery, Query()]) -> JobsAnswer:
    """Return one page of jobs, with the totals of all that match."""
    state.tidy()
    return jobs_answer(state, query)


@router.get("/jobs/slopes")
def job_slopes(state: State, query: Annotated[JobFilters, Query()]) -> SlopesAnswer:
    """Return energy against duration per device type, with its slope."""
    return slopes_answer(state.store, query)


@router.get("/jobs/{job_key:path}", responses=faults(404))
def job(state: State, job_key: str) -> JobAnswer:
    """Return one job with the runs of all its nodes."""
    return job_answer(state.store, job_key)


def job_answer(store: Store, job_key: str) -> JobAnswer:
    """Return one job for page and API."""
    row, found = job_with_runs(store, job_key)
    return JobAnswer(job=_job(row), runs=[JobRunRow(**_listed(one)) for one in found])


def jobs_answer(state: AppState, query: JobListQuery) -> JobsAnswer:
    """Return a page of jobs for page and API."""
    wanted = _filter(query)
    order = (query.sort, query.order, query.page, query.size)
    how: dict[str, Any] = {
        "sort": query.sort,
        "descending": query.order == "down",
        "offset": (query.page - 1) * query.size,
        "limit": query.size,
    }
    found = state.answers.get(("totals", wanted), lambda: job_totals(state.store, wanted))
    if query.trials == "all" or query.experiment:
        rows = state.answers.get(
            ("jobs", wanted, *order), lambda: job_page(state.store, wanted, **how)
        )
        listed, count = [_job(row) for row in rows], found.runs
    else:
        groups, trials = state.answers.get(("groups", wanted), lambda: _groups(state, wanted))
        mixed = state.answers.get(
            ("folded", wanted, *order),
            lambda: folded_job_page(state.store, wanted, groups, **how),
        )
        listed = [_job(row) if isinstance(row, dict) else _group(state, row) for row in mixed]
        count = found.runs - trials + len(groups)
    return JobsAnswer(
        jobs=listed,
        totals=found,
        rows=count,
        page=query.page,
        pages=max(1, math.ceil(count / query.size)),
    )


def _groups(state: AppState, wanted: JobFilter) -> tuple[list[TrialGroup], int]:
    return matching_groups(state.store, wanted), count_trials(state.store, wanted)


def _group(state: AppState, group: TrialGroup) -> JobRow:
    """Return the row of an experiment: its trials together, and its result."""
    experiment = find_experiment(state.store, group.experiment_id)
    return JobRow(
        job_key=group.experiment_id,
        run_id="",
        name=group.name or group.experiment_id,
        status=with_status_now(state.store, experiment).status,
        kind=group.kind,
        nodes=1,
        nodes_expected=None,
        runs=group.runs,
        quarantined=0,
        host=group.host,
        user_name=group.user_name,
        job_id=None,
        started_wall_s=group.started_wall_s,
        duration_s=group.duration_s,
        energy_j=group.energy_j,
        uncertainty_j=None,
        counted=True,
        cluster=group.cluster,
        partition=group.partition,
        project=group.project,
        exclusive=None,
        device="",
        label="",
        insights=[],
        provenance=group.provenance,
        complete=group.complete,
        facility_j=group.facility_j,
        carbon_g=group.carbon_g,
        experiment_kind=group.kind,
        result=headline(state.store, experiment),
    )


def _job(row: Mapping[str, Any]) -> JobRow:
    return JobRow(**_listed(row))


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "insights": [c for c in (row["insights"] or "").split(",") if c]}


def slopes_answer(store: Store, query: JobFilters) -> SlopesAnswer:
    """Return energy against duration of the newest matching jobs."""
    return fit_slopes(job_page(store, _filter(query), limit=SLOPE_RUNS))


def _filter(query: JobFilters) -> JobFilter:
    return JobFilter(
        text=query.text,
        status=query.status,
        host=query.host,
        cluster=query.cluster,
        partition=query.partition,
        project=query.project,
        label=query.label,
        since_wall_s=moment_wall_s(query.since),
        until_wall_s=moment_wall_s(query.until),
        ran=query.when == "ran",
        shortest_s=None if query.shortest_s == "" else query.shortest_s,
        longest_s=None if query.longest_s == "" else query.longest_s,
        exclusive={"yes": True, "no": False}.get(query.exclusive),
        kind=query.kind,
        experiment=query.experiment,
    )
