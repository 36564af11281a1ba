"""Promises of the pages: they open on any store, show texts as text, and write nothing."""

import re
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.cap.saver.test_totals import OBSERVED, saving
from tests.cap.saver.test_totals import record as saved_run
from tests.integrations.test_serving import EVENT, TOTALS
from tests.integrations.test_stored_steps import PHASES, STEPS, add_run
from tests.serve.conftest import NASTY
from tests.serve.filled import LIVE, filled
from tests.store.test_job_queries import record
from tests.support.virtual_runs import CardScript, RunScript, Work, write_run
from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.database import open_store
from wattloop.store.experiments import Experiment, create_experiment
from wattloop.store.runs import insert_run
from wattloop.virtual.gpu import IDLE, Activity

PAGES = (
    "/",
    "/jobs",
    "/jobs/",
    "/nodes",
    "/compare",
    "/sweeps",
    "/searches",
    "/predict",
    "/simulate",
    "/study",
)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_on_an_empty_store(path: str, tmp_path: Path) -> None:
    """The page says how to begin."""
    with TestClient(create_app(ServeOptions(store=str(tmp_path / "none.db")))) as client:
        answer = client.get(path)
    assert answer.status_code == 200
    assert "<h1>" in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/runs/2026-002"])
def test_no_page_asks_another_host(client: TestClient, path: str) -> None:
    """No script or style comes from elsewhere, and the browser is told to refuse them."""
    answer = client.get(path)
    assert "http://" not in answer.text.replace("http://www.w3.org", "")
    assert "https://" not in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/jobs", "/runs/2026-002", "/compare?run=2026-001&run=2026-002"])
def test_names_tags_and_commands_are_text(client: TestClient, path: str) -> None:
    """A run may have any name."""
    answer = client.get(path)
    assert answer.status_code == 200
    assert NASTY not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text


def test_the_filter_of_runs_is_sent_as_it_stands(client: TestClient) -> None:
    """Promise: Enter in the search field, which sends every field of the form, shows the list."""
    form = client.get("/jobs").text.partition('<form class="filters"')[2].partition("</form>")[0]
    names = r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"'
    fields = dict(re.findall(names, form))
    fields |= re.findall(r'<select name="(\w+)">\s*<option value="([^"]*)"', form)
    assert {"text", "status", "exclusive", "when", "trials"} <= {*fields}
    found = client.get("/jobs", params={**fields, "text": "no such run"})
    assert found.status_code == 200
    assert "No run matches" in found.text


def test_a_filter_is_text_and_not_a_query(client: TestClient) -> None:
    """A quotation mark finds a run with one in its name."""
    answer = client.get("/api/v1/jobs", params={"text": "'; drop table"})
    assert [job["run_id"] for job in answer.json()["jobs"]] == ["2026-002"]
    assert client.get("/api/v1/jobs").json()["totals"]["runs"] == 3


@pytest.mark.parametrize(
    "path", ["/runs/none", "/sweeps/none", "/searches/none", "/simulate/none", "/study/none"]
)
def test_what_is_not_there_is_a_page_with_404(client: TestClient, path: str) -> None:
    """A page in words for people, and JSON for a program."""
    answer = client.get(path)
    assert answer.status_code == 404
    assert "<h1>Not found</h1>" in answer.text
    told = client.get(f"/api/v1{path.replace('simulate', 'campaigns').replace('study', 'studies')}")
    assert (told.status_code, list(told.json())) == (404, ["detail"])


@pytest.mark.parametrize("path", ["/runs/..%2f..%2fetc%2fpasswd", "/static/..%2fapp.py"])
def test_paths_lead_nowhere_else(client: TestClient, path: str) -> None:
    """A name with dots is only a name."""
    assert client.get(path).status_code == 404


def test_a_run_page_has_its_identifier_to_copy(client: TestClient) -> None:
    """Promise: the identifier that `wattloop runs show` takes is on the page, with a button."""
    assert "<code>2026-002</code><button" in client.get("/runs/2026-002").text


def test_a_run_without_a_result_has_a_page(client: TestClient) -> None:
    """It crashed before any result was known."""
    answer = client.get("/runs/2026-003")
    assert answer.status_code == 200
    assert "–" in answer.text


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One prediction server for all tests: its tracing process loads PyTorch once."""
    options = ServeOptions(store=str(tmp_path_factory.mktemp("forecaster") / "runs.db"))
    with TestClient(create_app(options)) as found:
        yield found


def test_a_prediction_takes_the_speed_of_the_host(forecaster: TestClient) -> None:
    """At half the speed the dispatch time doubles; the form and the command of the page have it."""
    asked = {"model": "bert-base-uncased", "batch": 8, "seq": 128}
    usual = forecaster.get("/api/v1/predict", params=asked).json()
    slow = forecaster.get("/api/v1/predict", params={**asked, "host_speed": 0.5}).json()
    assert slow["host_s"] == pytest.approx(2 * usual["host_s"])
    assert (usual["host_speed"], slow["host_speed"]) == (1.0, 0.5)
    page = forecaster.get("/predict", params={**asked, "host_speed": 0.5}).text
    assert 'name="host_speed" min="0.05" max="20" step="any" value="0.5"' in page
    assert "--host-speed 0.5" in page


def test_a_compiled_step_is_predicted(forecaster: TestClient) -> None:
    asked = {"model": "gpt2", "batch": 8, "seq": 512}
    eager = forecaster.get("/api/v1/predict", params=asked).json()
    fused = forecaster.get("/api/v1/predict", params={**asked, "compile": "default"}).json()
    assert (eager["compile"], fused["compile"]) == (None, "default")
    assert fused["step_s"] < eager["step_s"]
    page = forecaster.get("/predict", params={**asked, "compile": "default"}).text
    assert "<option selected>default</option>" in page
    assert "--compile default" in page
    assert forecaster.get("/api/v1/predict", params={**asked, "compile": "fast"}).status_code == 422


def test_the_page_shows_where_time_and_memory_go(forecaster: TestClient) -> None:
    page = forecaster.get("/predict", params={"model": "gpt2", "batch": 8, "seq": 512}).text
    assert 'data-chart="spec-where"' in page
    assert "memory at its peak" in page and "energy of a step" in page


def test_a_served_model_is_predicted(forecaster: TestClient) -> None:
    """More concurrent requests need less energy per token; the page has the same command."""
    asked = {"model": "llama-3.1-8b", "gpu": "h200", "task": "serve"}
    few = forecaster.get("/api/v1/predict/serve", params={**asked, "concurrency": 4}).json()
    many = forecaster.get("/api/v1/predict/serve", params={**asked, "concurrency": 64}).json()
    assert many["token_j"] < few["token_j"]
    page = forecaster.get("/predict", params={**asked, "concurrency": 64}).text
    assert "Between tokens" in page
    assert "wattloop predict serve --model hf:llama-3.1-8b --gpu h200 --tp 1" in page


def test_layouts_of_many_gpus_are_searched(forecaster: TestClient) -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "gpus": 8, "seq": 4096, "task": "plan"}
    found = forecaster.get("/api/v1/predict/plan", params=asked).json()
    assert found["fits"]
    page = forecaster.get("/predict", params=asked).text
    assert found["best"]["layout"] in page
    assert "memory of the fullest GPU" in page
    assert (
        forecaster.get("/api/v1/predict/plan", params={**asked, "gpus": 1}).json()["fits"] is False
    )


def test_a_run_that_knows_no_code_is_predicted(client: TestClient) -> None:
    """A page must not run code that a link names."""
    for model in ("file.py:factory", "torch:os:getcwd", "/etc/passwd.json"):
        assert client.get("/api/v1/predict", params={"model": model}).status_code == 404


def test_other_addresses_need_a_token(place: Path) -> None:
    """Both to start the server and to read from it."""
    with pytest.raises(ConfigError, match="--token"):
        ServeOptions(store=str(place), host="0.0.0.0")
    options = ServeOptions(store=str(place), host="0.0.0.0", token="secret")
    with TestClient(create_app(options)) as client:
        assert client.get("/").status_code == 401
        assert client.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert client.get("/?token=secret").status_code == 200
        assert client.get("/").status_code == 200  # the cookie


@pytest.mark.parametrize(
    ("asked", "clean"),
    [
        ("/?token=secret", "./"),
        ("/runs?token=secret", "./runs"),
        ("/runs?page=2&token=secret&tag=a%20b%26c", "./runs?page=2&tag=a+b%26c"),
        ("//evil.example/?token=secret", "./"),
        ("/javascript:alert(1)?token=secret", "./javascript%3Aalert%281%29"),
    ],
)
def test_token_leaves_the_address_of_a_page(place: Path, asked: str, clean: str) -> None:
    """Otherwise it would stay in the history, in bookmarks and in shared links."""
    options = ServeOptions(store=str(place), host="0.0.0.0", token="secret")
    with TestClient(create_app(options), follow_redirects=False) as client:
        answer = client.get(f"http://testserver{asked}")
        assert (answer.status_code, answer.headers["location"]) == (303, clean)
        assert "secret" not in answer.headers["location"]
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert answer.headers["cache-control"] == "no-store"
        again = client.get(f"http://testserver{asked}")  # with the cookie
        assert (again.status_code, again.headers["location"]) == (303, clean)
        # programs store no cookies: the API answers at once
        assert client.get("/api/v1/jobs?token=secret").status_code == 200


def test_another_name_of_this_address_is_not_answered(client: TestClient) -> None:
    """A page of another site cannot reach a dashboard without a token by using another name."""
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "query",
    [
        "page=0",
        "size=99999",
        "sort=body",
        "since=yesterday",
        "until=2026-01-31T12:00:00",
        "shortest_s=x",
        "shortest_s=-1",
        "longest_s=nan",
        "label=x",
    ],
)
def test_wrong_questions_are_said_to_be_wrong(client: TestClient, query: str) -> None:
    """422, never a traceback."""
    assert client.get(f"/api/v1/jobs?{query}").status_code == 422


def test_totals_for_prometheus_escape_their_labels(client: TestClient) -> None:
    """Every line is a comment or a sample, for any name of a project."""
    lines = client.get("/metrics").text.splitlines()
    assert 'wattloop_energy_joules{cluster="c1"' in "\n".join(lines)
    assert all(line.startswith(("#", "wattloop_")) for line in lines)


def test_a_run_can_be_taken_away(client: TestClient) -> None:
    """The file has the run's name."""
    answer = client.get("/api/v1/runs/2026-001/download", params={"what": "runs", "format": "json"})
    assert answer.status_code == 200
    assert "2026-001-runs.json" in answer.headers["content-disposition"]
    assert client.get("/api/v1/runs/none/download").status_code == 404


def test_advice_is_on_the_run_page_and_in_the_json(place: Path, client: TestClient) -> None:
    """Promise: the waste of a run is shown with its command, and the same under /api/v1."""
    busy = CardScript([Work(1.0, Activity(1.0, 0.2, 1.0)), Work(39.0, IDLE)])
    with open_store(place) as store:
        cards = (busy, CardScript())
        write_run(store, RunScript(run_id="idle", duration_s=40.0, interval_s=0.5, cards=cards))
    (advice,) = client.get("/api/v1/runs/idle/advice").json()["advice"]
    assert advice["rule"] == "idle-gpu"
    assert advice["title"] in client.get("/runs/idle").text
    assert client.get("/api/v1/runs/nowhere/advice").status_code == 404


def test_tokens_of_a_server_are_on_the_run_page(place: Path, client: TestClient) -> None:
    """Promise: tokens, cost and curve, also as JSON; nothing on runs without a server."""
    with open_store(place) as store:
        add_run(store, EVENT, TOTALS, run_id="server")
    page = client.get("/runs/server").text
    assert "Energy per generated token" in page
    assert 'id="spec-serving"' in page
    assert "Tokens and requests" not in client.get("/runs/2026-001").text
    assert client.get("/api/v1/runs/server").json()["serving"]["generated_token_j"] == 3.0
    assert client.get("/api/v1/runs/2026-001").json()["serving"] is None


def test_steps_and_phases_are_on_the_run_page(place: Path, client: TestClient) -> None:
    """Promise: cost of a step, phases and curve, also as JSON; nothing on runs without steps."""
    with open_store(place) as store:
        add_run(store, STEPS, PHASES, run_id="steps")
    page = client.get("/runs/steps").text
    assert "Energy per token" in page
    assert "<td>start-up</td>" in page
    assert 'id="spec-steps"' in page
    assert "Energy per step" not in client.get("/runs/2026-001").text
    totals = client.get("/api/v1/runs/steps").json()["step_totals"]
    assert (totals["steps"], totals["step_j"], totals["token_j"]) == (4, 300.0, 1.0)
    assert totals["phases"] == PHASES["phases"]
    assert client.get("/api/v1/runs/2026-001").json()["step_totals"] is None


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Promise: columns are headed as the verdict calls the runs."""
    with open_store(tmp_path / "runs.db") as store:
        for number in (1, 2):
            insert_run(store, record(number, name="gpt2"))
    with TestClient(create_app(ServeOptions(store=str(tmp_path / "runs.db")))) as client:
        text = client.get("/compare?run=2026-001&run=2026-002").text
    heads = text[text.index("<thead>") : text.index("</thead>")]
    assert "2026-001" in heads
    assert "2026-002" in heads


def test_runs_that_were_chosen_stay_chosen(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for old runs; a run without samples is reported to have no curve."""
    page = import_module("wattloop.serve.pages.run")
    monkeypatch.setattr(page, "OFFERED", 1)
    text = client.get("/compare?run=2026-001&run=2026-002").text
    chosen = "run=2026-001&amp;run=2026-002"
    assert text.index('value="2026-001"') < text.index('value="2026-002"')
    assert f'href="/compare?{chosen}&amp;run=2026-' in text
    assert 'href="/compare?run=2026-002"' in text  # without the first
    assert "No samples were kept of" in text
    assert client.get("/compare?run=none").status_code == 404


def test_the_limit_of_a_run_that_goes_on_is_known(tmp_path: Path) -> None:
    """The limit is known before any result."""
    with (
        filled(tmp_path) as store,
        TestClient(create_app(ServeOptions(store=str(store.path)))) as client,
    ):
        curves = client.get(f"/api/v1/runs/{LIVE}/curves").json()["curves"]
    assert {curve["tdp_w"] for curve in curves} == {700.0}


def test_a_run_without_any_sensor_says_so(place: Path, client: TestClient) -> None:
    """The text says what to do, and offers no missing data."""
    with open_store(place) as store:
        insert_run(store, record(9, result=None, accounting=None, feeds=[]))
    text = client.get("/runs/2026-009").text
    assert "No sensor was read" in text
    assert "wattloop devices" in text
    assert "Download the samples" not in text


def test_a_total_is_called_measured_only_if_it_is(tmp_path: Path) -> None:
    """A sum that contains joules of a virtual GPU or an estimate says so."""
    place = tmp_path / "runs.db"
    with open_store(place) as store:
        insert_run(store, record(1))
        with TestClient(create_app(ServeOptions(store=str(place)))) as client:
            assert "<dt>Measured</dt>" in client.get("/jobs").text
        weak = record(2).result
        assert weak is not None
        domain = weak.domains[0]._replace(provenance=Provenance.SIMULATED)
        insert_run(store, record(2, result=weak._replace(domains=(domain,))))
    with TestClient(create_app(ServeOptions(store=str(place)))) as client:
        text = client.get("/jobs").text
    assert "<dt>Measured</dt>" not in text
    assert "1 job at least in part modelled" in text


def test_savings_are_on_the_first_page_and_the_run_page(place: Path, client: TestClient) -> None:
    """Promise: a card with the sum of 30 days, the saving of a run, and both as JSON."""
    assert "none yet" in client.get("/").text
    with open_store(place) as store:
        now_s = time.time()
        insert_run(store, saved_run("saved", saving(), started_wall_s=now_s))
        insert_run(store, saved_run("seen", OBSERVED, started_wall_s=now_s))
    # another server: on a busy machine the first one serves an older result
    with TestClient(create_app(ServeOptions(store=str(place)))) as reader:
        page = reader.get("/").text
        assert "Proven in 30 days" in page
        assert "200 (170 to 230) Wh" in page
        assert "1 run could have saved 120 (40 to 200) Wh (modelled)" in page
        page = reader.get("/runs/saved").text
        assert "20.0% (17.5 to 22.3%) of GPU energy" in page
        assert "12 slices at the reference, 140 others" in page
        assert "Could have saved" in reader.get("/runs/seen").text
        assert 'id="saving"' not in reader.get("/runs/2026-001").text
        answer = reader.get("/api/v1/savings", params={"by": "user"}).json()
        assert answer["total"]["compared"] == 1
        assert answer["groups"][0]["name"] == "ada"
        assert {run["run_id"] for run in answer["runs"]} == {"saved", "seen"}
        assert reader.get("/api/v1/savings", params={"by": "cat"}).status_code == 422


def test_a_run_leads_to_its_cost_on_another_gpu(place: Path, client: TestClient) -> None:
    """The model comes from the command or a tag with a known name; the start command is shown."""
    command = ["python", "my train.py", "--model", "bert-base-uncased"]
    with open_store(place) as store:
        insert_run(store, record(8, command=command, tags={"precision": "bf16"}, exit_code=3))
    page = client.get("/runs/2026-008").text
    link = "run=2026-008&amp;gpu=h100-sxm&amp;model=bert-base-uncased&amp;precision=bf16"
    assert f"/predict?{link}" in page
    assert "python &#39;my train.py&#39; --model bert-base-uncased" in page
    assert "<dt>Exit code</dt><dd>3</dd>" in page
    assert "precision=bf16</span>" in page
    assert '/predict?run=2026-001&amp;gpu=h100-sxm"' in client.get("/runs/2026-001").text


def test_a_sweep_before_its_first_result_says_so(place: Path) -> None:
    """Promise: no scope called None or nothing, and no default that has a result."""
    with open_store(place) as store:
        create_experiment(store, Experiment(experiment_id="sweep-1", kind="sweep", name="caps"))
    with TestClient(create_app(ServeOptions(store=str(place)))) as client:
        text = client.get("/sweeps/sweep-1").text
    assert "no energy measured yet; 0 settings" in text
    assert "No result yet." in text
    assert "energy of None" not in text
    assert "Only the default" not in text


def test_calls_of_the_api_page_break_at_slashes_and_mark_names(client: TestClient) -> None:
    text = client.get("/api").text
    assert "<wbr>runs/<wbr>{run_id}/<wbr>live</code>" in text
    assert "<code>samples</code>" in text
    assert "`" not in re.sub(r"title=\"[^\"]*\"", "", text)
