"""Promises of the overview: each joule in its day, periods next to the preceding ones."""

import html
import re
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.cap.saver.test_totals import OBSERVED
from tests.cap.saver.test_totals import record as saved_run
from tests.serve.filled import LIVE, filled
from tests.store.test_job_queries import record
from wattloop.core.results import Missing, RunStatus
from wattloop.core.settings import Settings
from wattloop.serve.api.overview import overview_answer, period_begins
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.serve.state import AppState
from wattloop.store.database import open_store
from wattloop.store.experiments import Experiment, create_experiment
from wattloop.store.runs import insert_run

NOON = datetime(2026, 3, 11, 12).timestamp()
"""A Wednesday."""
HOUR_S, DAY_S = 3_600.0, 86_400.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def add(place: Path, number: int, started_wall_s: float, **changes: Any) -> None:
    usual = {"started_wall_s": started_wall_s, "job": None}
    with open_store(place) as store:
        insert_run(store, record(number, **{**usual, **changes}))


def state_of(place: Path) -> AppState:
    found: AppState = create_app(ServeOptions(store=str(place))).state.wattloop
    return found


def test_periods_stand_next_to_those_before_them(place: Path) -> None:
    """Run n has 100 n joules: two today, one yesterday morning, one last week, one last month."""
    for number, age_s in ((1, HOUR_S), (2, 2 * HOUR_S), (4, 26 * HOUR_S), (8, 7 * DAY_S)):
        add(place, number, NOON - age_s)
    add(place, 16, datetime(2026, 2, 3, 12).timestamp())
    add(place, 32, NOON - 13 * HOUR_S)  # yesterday, later than now
    answer = overview_answer(state_of(place), "project", NOON)
    today, week, month = answer.periods
    assert (today.now.energy_j, today.now.jobs) == (300.0, 2)
    assert (today.before.energy_j, today.whole_before.energy_j) == (400.0, 3_600.0)
    assert (week.now.energy_j, week.before.energy_j) == (3_900.0, 0.0)
    assert week.whole_before.energy_j == 800.0
    assert (month.now.energy_j, month.before.energy_j) == (4_700.0, 1_600.0)


def test_a_run_of_two_days_is_divided_by_time(place: Path) -> None:
    """Ten hours from eight in the evening: four of them belong to the first day."""
    begun_s = datetime(2026, 3, 10, 20).timestamp()
    ten_h = record(1).result
    assert ten_h is not None
    add(place, 1, begun_s, result=ten_h._replace(end_s=10 * HOUR_S), user="ada")
    answer = overview_answer(state_of(place), "user", NOON)
    days = {(day.day, day.name): day.energy_j for day in answer.days}
    assert days == {
        ("2026-03-10", "ada"): pytest.approx(40.0),
        ("2026-03-11", "ada"): pytest.approx(60.0),
    }
    assert answer.periods[0].now.energy_j == pytest.approx(60.0)


def test_names_beyond_the_largest_are_others(place: Path) -> None:
    """Bars have few colours, and no joule is lost."""
    for number in range(1, 12):
        add(place, number, NOON - HOUR_S, tags={"project": f"p{number:02}"})
    days = overview_answer(state_of(place), "project", NOON).days
    assert len(days) == 7
    assert days[-1].name == "others"
    assert sum(day.energy_j for day in days) == pytest.approx(6_600.0)


def test_what_nodes_use_for_no_job_is_apart(place: Path) -> None:
    """The bars have a name of its own for it, and the sums of jobs exclude it."""
    add(place, 1, NOON - HOUR_S)
    add(place, 5, NOON - HOUR_S, kind="unallocated")
    answer = overview_answer(state_of(place), "project", NOON)
    assert answer.periods[0].now.energy_j == 100.0
    assert answer.no_job_j == 500.0
    assert {day.name for day in answer.days} == {"unnamed", "no job"}


def test_cost_uses_one_tariff_and_says_whose(place: Path) -> None:
    """The server's own tariff, else that of the newest run, else none, never zero."""
    accounting = {"cost": {"amount": 1.0, "currency": "CHF", "tariff_per_kwh": 0.36}}
    kwh = {"energy_j": 3.6e6}
    add(place, 1, NOON - HOUR_S, accounting={"facility": kwh})
    state = state_of(place)
    assert overview_answer(state, "project", NOON).periods[0].now.cost is None
    add(place, 2, NOON - HOUR_S, accounting={**accounting, "facility": kwh})
    answer = overview_answer(state_of(place), "project", NOON)
    assert answer.periods[0].now.cost == pytest.approx(0.72)
    assert (answer.currency, answer.tariff_source) == ("CHF", "the newest run")
    state = state_of(place)
    state.settings = Settings(tariff_per_kwh=1.0, currency="EUR")
    answer = overview_answer(state, "project", NOON)
    assert (answer.periods[0].now.cost, answer.currency) == (pytest.approx(2.0), "EUR")


def test_an_empty_store_names_three_commands(place: Path) -> None:
    """The page shows nothing else."""
    with TestClient(create_app(ServeOptions(store=str(place)))) as client:
        page = client.get("/").text
    assert page.count("data-copy") == 3
    assert "wattloop run -- python train.py" in page
    assert "This week" not in page


def test_one_run_fills_every_part(place: Path) -> None:
    """Its use, unreadable devices, a possible saving, and commands to copy."""
    now_s = time.time()
    lost = Missing("dram", "no permission", "sudo chmod a+r /sys/class/powercap")
    seen = saved_run("seen", OBSERVED, started_wall_s=now_s - 60, command=["python", "my train.py"])
    assert seen.result is not None
    with open_store(place) as store:
        insert_run(
            store,
            type(seen)(**{**as_fields(seen), "result": seen.result._replace(missing=(lost,))}),
        )
    with TestClient(create_app(ServeOptions(store=str(place)))) as client:
        page = client.get("/").text
    assert "dram is not read: no permission" in page
    assert "sudo chmod a+r /sys/class/powercap" in page
    assert "wattloop run --save -- python &#39;my train.py&#39;" in page
    assert 'id="spec-days"' in page


def as_fields(run: Any) -> dict[str, Any]:
    return {name: getattr(run, name) for name in run.__slots__}


def test_live_runs_have_their_watts_and_energy_so_far(tmp_path: Path) -> None:
    """The page and the JSON have them before there is a result."""
    with (
        filled(tmp_path) as store,
        TestClient(create_app(ServeOptions(store=str(store.path)))) as client,
    ):
        deadline_s = time.monotonic() + 300
        while time.monotonic() < deadline_s:
            (run,) = client.get("/api/v1/runs/live").json()["runs"]
            if run["power_w"] is not None:
                break
        page = client.get("/").text
    assert run["run_id"] == LIVE
    assert 500 < run["power_w"] < 1_000
    # the integral of 800 + 100 sin(t / 3) + 50 cos(t / 5) watts over 4.9 s
    assert run["energy_j"] == pytest.approx(4_446, rel=0.01)
    assert f'data-run="{LIVE}"' in page


def test_lists_had_this_address_before(place: Path) -> None:
    """Bookmarks of filtered lists lead to the list."""
    add(place, 1, NOON)
    with TestClient(create_app(ServeOptions(store=str(place))), follow_redirects=False) as client:
        answer = client.get("/?project=p&sort=energy")
    assert (answer.status_code, answer.headers["location"]) == (307, "/jobs?project=p&sort=energy")


def test_trials_are_folded_on_the_page_and_on_request_in_the_json(place: Path) -> None:
    """One row with its result; all of them on request; the API is unchanged by default."""
    summary = {
        "best": [{"metric": "energy", "point": "300 W", "value_pct": 38.4, "beyond_noise": True}]
    }
    with open_store(place) as store:
        create_experiment(
            store,
            Experiment(
                experiment_id="sweep-1",
                kind="sweep",
                name="caps",
                status="finished",
                facts={"summary": summary},
            ),
        )
    for number in (1, 2, 3):
        add(place, number, NOON, tags={"experiment": "sweep-1"})
    add(place, 4, NOON)
    with TestClient(create_app(ServeOptions(store=str(place)))) as client:
        page = client.get("/jobs").text
        everything = client.get("/jobs?trials=all").text
        trials = client.get("/jobs?experiment=sweep-1").text
        plain = client.get("/api/v1/jobs").json()
        folded = client.get("/api/v1/jobs?trials=fold").json()
        sweeps = client.get("/sweeps").text
    assert "sweep of 3 trials" in page
    assert "300 W saves 38.4% energy" in page
    assert "train 2" not in page
    assert "train 2" in everything
    assert "train 2" in trials and "train 4" not in trials
    assert (len(plain["jobs"]), plain["rows"]) == (4, 4)
    assert (len(folded["jobs"]), folded["rows"], folded["totals"]["runs"]) == (2, 2, 4)
    assert [row["result"] for row in folded["jobs"] if row["experiment_kind"]] == [
        "300 W saves 38.4% energy"
    ]
    assert "300 W saves 38.4% energy" in sweeps


def test_days_begin_at_midnight_of_the_server(place: Path) -> None:
    """This also holds for a run of zero length."""
    midnight = datetime(2026, 3, 11)
    empty = record(1).result
    assert empty is not None
    add(place, 1, midnight.timestamp(), result=empty._replace(end_s=0.0))
    add(place, 2, (midnight - timedelta(seconds=30)).timestamp(), result=empty._replace(end_s=0.0))
    answer = overview_answer(state_of(place), "project", NOON)
    assert (answer.periods[0].now.jobs, answer.periods[0].whole_before.jobs) == (1, 1)


MEMORY = """
import sys
from fastapi.testclient import TestClient
from wattloop.serve.app import create_app
from wattloop.serve.maintenance import warm_up
from wattloop.serve.options import ServeOptions

app = create_app(ServeOptions(store=sys.argv[1]))
warm_up(app.state.wattloop).join()
with TestClient(app) as client:
    for path in ("/", "/jobs", "/sweeps", "/nodes", "/static/vega.js", "/static/wattloop.js"):
        assert client.get(path).status_code == 200, path
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
print(*(name for name in ("sklearn", "statsmodels", "torch", "vl_convert") if name in sys.modules))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says how much it is")
def test_a_server_of_an_empty_store_is_small(place: Path) -> None:
    """At most 150 MB with warm caches and opened pages: analyses load on demand."""
    pytest.importorskip("vl_convert", reason="vl-convert, which brings Vega, is not installed")
    found = subprocess.run(
        [sys.executable, "-c", MEMORY, str(place)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    peak_kb, *loaded = found.stdout.split()
    assert loaded == []
    assert int(peak_kb) < 150_000


def test_room_and_grid_have_their_sources_and_a_form_that_stores_nothing(place: Path) -> None:
    """PUE, country and intensity of the newest run, or of the form; bad values are named."""
    accounting = {"facility": {"pue": 1.3, "energy_j": 1.0}, "carbon_intensity": {"zone": "FRA"}}
    add(place, 36_000, time.time() - 1, accounting=accounting)  # 3.6 MJ, 1 kWh
    with TestClient(create_app(ServeOptions(store=str(place)))) as client:
        page = client.get("/").text
        assert '<dd>1.3 <span class="soft">(the newest run' in page
        assert '<dd>FRA <span class="soft">(the newest run' in page
        assert "annual mean" in page
        other = client.get("/?pue=1.5&zone=Germany").text
        assert '<dd>1.5 <span class="soft">(this form' in other
        assert '<dd>Germany <span class="soft">(this form' in other
        assert "no carbon intensity for zone &#39;Nowhere&#39;" in client.get("/?zone=Nowhere").text
        assert client.get("/?pue=0.5").status_code == 422
        assert client.get("/").text.count("the newest run") == page.count("the newest run")


def test_a_card_and_the_list_that_it_leads_to_have_the_same_runs(place: Path) -> None:
    """A run that began before the week and ran in it is in both; the most expensive is first."""
    now_s = time.time()
    begins = period_begins(datetime.now().date())[1]
    monday_s = begins[2]
    long = record(1).result
    assert long is not None
    add(place, 1, monday_s - HOUR_S, result=long._replace(end_s=2 * HOUR_S))
    add(place, 2, monday_s - 3 * DAY_S)
    add(place, 3, monday_s - 5 * DAY_S, status=RunStatus.FAILED)
    add(place, 4, monday_s - 30 * DAY_S)
    with TestClient(create_app(ServeOptions(store=str(place)))) as client:
        page = client.get("/", params={"cost": "last week"}).text
        card = page[page.index("What cost most") :]
        (link,) = re.findall(r'href="(/jobs[^"]*)">all of them', card)
        listed = client.get(html.unescape(link)).text
        answer = client.get("/api/v1/overview").json()
    week = answer["periods"][1]["whole_before"]["jobs"]
    names = re.findall(r'/runs/[^"]*" class="cut" title="([^"]*)"', listed)
    assert len(names) == week == 3
    assert now_s < monday_s + 8 * DAY_S
    assert card.count('aria-label="Compare ') == 3
    assert ">failed</span>" in card


def test_jobs_sort_by_cost_with_the_room(place: Path) -> None:
    """The paid energy decides, not that of the devices."""
    for number, facility_j in ((1, 900.0), (2, 300.0), (3, None)):
        accounting = facility_j and {"facility": {"energy_j": facility_j, "pue": 1.0}}
        add(place, number, NOON, accounting=accounting)
    with TestClient(create_app(ServeOptions(store=str(place)))) as client:
        jobs = client.get("/api/v1/jobs?sort=cost").json()["jobs"]
        folded = client.get("/api/v1/jobs?sort=cost&order=up&trials=fold").json()["jobs"]
    found = [job["facility_j"] or job["energy_j"] for job in jobs]
    assert found == sorted(found, reverse=True) and found[0] == 900.0
    assert [job["run_id"] for job in folded] == [job["run_id"] for job in jobs][::-1] or (
        len(set(found)) < len(found)
    )
