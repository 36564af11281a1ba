"""Promises of a study: steps in order, a validated twin, and a proof at the end."""

from pathlib import Path
from typing import Any

import pytest

from tests.store.test_job_queries import record
from wattloop.cli.main import main
from wattloop.core.errors import ConfigError
from wattloop.report.study import report_of_study
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import Experiment, create_experiment, list_experiments
from wattloop.store.runs import insert_run
from wattloop.study.goals import GoalVerdict, decide
from wattloop.study.record import next_step, study_campaigns
from wattloop.study.spec import EXAMPLE, StudySpec, read_study
from wattloop.study.steps import StudyRunner

SMALL = {
    "name": "small",
    "need": "less energy",
    "kpis": [
        {"metric": "energy_kwh", "goal": "no worse than 50%"},
        {"metric": "jobs_done", "goal": "no worse than 50%"},
    ],
    "baseline": {"scenario": "thesis-pareto", "policy": "pollux", "seeds": 3},
    "candidates": ["zeus"],
    "validation": {"scenario": "thesis-pareto", "seeds": "5,6,7"},
}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty store."""
    with open_store(tmp_path / "runs.db") as place:
        yield place


def study(store: Store, **changes: Any) -> StudyRunner:
    """Return the small study with changes."""
    return StudyRunner(store, StudySpec.model_validate({**SMALL, **changes}))


def test_the_six_steps_lead_from_a_need_to_a_proof(store: Store) -> None:
    """Each step is stored, the next is named, and the report shows all of them."""
    work = study(store)
    for step in ("baseline", "characterize", "simulate", "decide", "validate"):
        assert next_step(work.record.steps) == step
        getattr(work, step)()
    assert next_step(work.record.steps) is None
    proof = work.record.steps["validate"]
    assert proof["success"]
    assert [v["metric"] for v in proof["verdicts"]] == ["energy_kwh", "jobs_done"]
    again = study(store)
    assert again.record.steps == work.record.steps
    document = report_of_study(store, again.record.experiment)
    assert document.subtitle.startswith("SUCCESS")
    assert len(document.sections) == 6
    # its campaigns are grouped under it: in the list of the command line, and on the page
    campaigns = {each.experiment_id for each in list_experiments(store, "campaign")}
    inside = study_campaigns(store)
    assert campaigns and {*inside} == campaigns
    assert {each.name for each in inside.values()} == {SMALL["name"]}


@pytest.mark.parametrize(
    ("step", "missing"),
    [("characterize", "baseline"), ("simulate", "baseline"), ("decide", "simulate")],
)
def test_a_step_before_its_turn_names_the_missing_one(
    store: Store, step: str, missing: str
) -> None:
    """The message names the command that does it."""
    with pytest.raises(ConfigError, match=f"wattloop study {missing}"):
        getattr(study(store), step)()


def test_a_step_done_again_makes_later_ones_void(store: Store) -> None:
    """They depended on its result."""
    work = study(store)
    work.baseline()
    work.characterize()
    work.baseline()
    assert next_step(work.record.steps) == "characterize"


def test_a_twin_that_is_far_off_is_refused(store: Store) -> None:
    """Measured runs of some joules do not match the thesis's cluster."""
    insert_run(store, record(1))
    insert_run(store, record(2))
    work = study(
        store,
        kpis=[{"metric": "energy_kwh", "goal": "-10%"}],
        baseline={"runs": "train*"},
        twin={"scenario": "thesis-pareto", "policy": "pollux", "seeds": 2},
    )
    assert work.baseline()["provenance"] == "measured"
    work.characterize()
    assert not work.simulate()["believed"]
    with pytest.raises(ConfigError, match="the twin is off in energy_kwh"):
        work.decide()


def test_an_unmeasured_kpi_is_reported(store: Store) -> None:
    """Measured runs have no deadlines."""
    insert_run(store, record(1))
    work = study(
        store,
        kpis=[{"metric": "miss_rate", "goal": "<= 1%"}],
        baseline={"runs": "train*"},
        twin={"scenario": "thesis-pareto", "policy": "pollux", "seeds": 2},
    )
    work.baseline()
    work.characterize()
    with pytest.raises(ConfigError, match="miss_rate: not measured"):
        work.simulate()


def verdict(*, met: bool) -> GoalVerdict:
    """Return a goal that is met or not."""
    return GoalVerdict("energy_kwh", "-10%", 10.0, 8.0, -0.2, met, "shown")


def test_the_tree_is_followed_where_its_policy_meets_the_goals() -> None:
    """Another candidate is chosen when it meets them with less energy, or when the tree's does
    not.
    """
    both = {"zeus": (verdict(met=True),), "helios": (verdict(met=True),)}
    objective = "energy and performance"
    assert decide(objective, both, {"zeus": 8.0, "helios": 9.0}).choice == "zeus"
    assert decide(objective, both, {"zeus": 8.0, "helios": 7.0}).choice == "helios"
    one = {"zeus": (verdict(met=False),), "helios": (verdict(met=True),)}
    assert decide(objective, one, {"zeus": 1.0, "helios": 9.0}).choice == "helios"


def test_no_candidate_that_meets_all_goals_is_no_decision() -> None:
    """The reasons name what failed, and the next command."""
    found = decide("deadlines", {"zeus": (verdict(met=False),)}, {"zeus": 1.0})
    assert found.choice == ""
    assert any("back to step 3" in reason for reason in found.reasons)


def test_the_example_is_a_study(tmp_path: Path) -> None:
    """The output of `init` is a valid study."""
    path = tmp_path / "study.yaml"
    path.write_text(EXAMPLE)
    assert read_study(path).name == "greener-cluster"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty"),
        (EXAMPLE.replace("need:", "neeed:"), "did you mean 'need'"),
        (EXAMPLE.replace("energy_kwh", "energi"), "unknown figure"),
        (EXAMPLE.replace('"-5%"', "better"), "-10%"),
        (EXAMPLE.replace("  policy: pollux\n", "", 1), "'scenario' and 'policy'"),
    ],
)
def test_faults_of_the_file_are_named(tmp_path: Path, text: str, fault: str) -> None:
    """The error has file, line and field."""
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=fault):
        read_study(path)


@pytest.mark.parametrize(
    "last",
    [
        {"decide": {"choice": ""}},
        {"decide": {"choice": "zeus"}, "validate": {"success": False}},
    ],
)
def test_a_dead_end_leads_back_to_the_third_step(last: dict[str, Any]) -> None:
    """Thesis 6.3.6: neither a validation without a decision nor an end."""
    done: dict[str, Any] = {"baseline": {}, "characterize": {}, "simulate": {}}
    assert next_step({**done, **last}) == "characterize"
    assert next_step({**done, "decide": {"choice": "zeus"}}) == "validate"


def test_campaigns_of_a_study_are_grouped_in_lists(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """`simulate list` and the page leave them out and say so; `--all` and JSON include them."""
    made = [
        Experiment(experiment_id=f"campaign-{n}", kind="campaign", name=n, created_wall_s=1e9)
        for n in ("own", "of-a-study")
    ]
    for each in made:
        create_experiment(store, each)
    study(store).record.keep("baseline", {"source": "campaign-of-a-study, thesis, seeds 3"})
    words = ["simulate", "list", "--store", store.where]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "campaign-own" in out and "campaign-of-a-study" not in out
    assert "1 more of the study small; see them with --all" in err
    assert main([*words, "--all"]) == 0
    assert "campaign-of-a-study" in capsys.readouterr().out
    assert main([*words, "-j"]) == 0
    assert "campaign-of-a-study" in capsys.readouterr().out
    client = pytest.importorskip("fastapi.testclient", reason="FastAPI is not installed")
    from wattloop.serve.app import create_app
    from wattloop.serve.options import ServeOptions

    with client.TestClient(create_app(ServeOptions(store=store.where))) as reader:
        page, every = (reader.get(f"/simulate{query}").text for query in ("", "?all=1"))
        listed = reader.get("/study").text
    assert "1 campaign of studies is listed under" in page
    assert "/simulate/campaign-of-a-study" not in page
    assert "/simulate/campaign-of-a-study" in every
    assert "/simulate/campaign-of-a-study" in listed
