"""Promises of scenarios: reproducible by seed, distinct hashes, and the thesis as fixed."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.engine.settings import Keeps
from wattloop.schedule.engine.simulation import Simulation
from wattloop.schedule.policies.zeus import Zeus
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import Scenario
from wattloop.schedule.step_function import SourcedSteps, StepFunction


@pytest.fixture(scope="module")
def thesis() -> Scenario:
    return load_scenario("thesis")


def test_a_world_is_ready_to_be_simulated(thesis: Scenario) -> None:
    """One seed of the thesis with one policy, checked event by event, for an hour."""
    world, policy = thesis.world(0), Zeus()
    settings = replace(world.settings, horizon_s=3_600.0, checks=True, strict=True)
    result = Simulation(
        world.cluster,
        world.jobs,
        policy,
        truth=world.truth,
        oracle=world.oracle,
        settings=settings,
    ).run()
    assert result.is_done.sum() > 5
    assert result.refusals == 0


def test_trainings_in_layouts_and_services_are_simulated(tmp_path: Path) -> None:
    """FSDP jobs and services of a trace: services last as recorded, and every joule is counted."""
    trace = tmp_path / "jobs.csv"
    trace.write_text(
        "submit_time,runtime,gpus,model\n0,3600,16,llama-70b\n60,1800,2,chat\n90,600,8,finetune\n"
    )
    models = load_scenario("llm").jobs.models
    named = dict(zip(("finetune", "llama-70b", "chat", "chat-70b"), models, strict=True))
    changes = {
        f"jobs.models.{row}": each.model_copy(update={"called": [name]}).model_dump(
            by_alias=True, exclude_unset=True
        )
        | {"called": [name]}
        for row, (name, each) in enumerate(named.items())
    }
    scenario = load_scenario("llm", {**changes, "jobs.trace.file": str(trace), "oracle.noise": 0})
    world = scenario.world(0)
    settings = replace(world.settings, checks=True, strict=True)
    parts = {"truth": world.truth, "oracle": world.oracle, "settings": settings}
    result = Simulation(world.cluster, world.jobs, Zeus(), **parts).run()
    assert result.is_done.all() and not result.never
    assert [kind.service is not None for kind in world.jobs.kinds].count(True) == 1
    assert result.finished_s[1] - result.started_s[1] == pytest.approx(1800)


def test_seeds_make_worlds_that_repeat_and_differ(thesis: Scenario) -> None:
    """Jobs and their estimates come from the seed; the machines and the true values do not."""
    first, again, other = thesis.world(1), thesis.world(1), thesis.world(2)
    assert np.array_equal(first.jobs.arrival_s, again.jobs.arrival_s)
    assert not np.array_equal(first.jobs.arrival_s[:50], other.jobs.arrival_s[:50])
    kind = first.jobs.kinds[0]
    believed = [world.oracle.factors(0, kind) for world in (first, again, other)]
    assert all(each is not None for each in believed)
    times = [each.time.tolist() for each in believed if each is not None]
    assert times[0] == times[1] != times[2]
    assert first.truth is other.truth


def test_the_thesis_scenario_is_as_adr_0031_fixes_it(thesis: Scenario) -> None:
    """A changed line of it fails here."""
    assert thesis.cluster.name == "thesis"
    assert [kind.idle_w for kind in thesis.cluster.types] == [55, 70]
    settings = thesis.settings(seed=0)
    assert (settings.round_s, settings.horizon_s) == (1, 36_000)
    assert settings.preemption.keeps is Keeps.NOTHING
    assert thesis.oracle.noise == 0.1
    jobs = thesis.world(0).jobs
    assert [kind.precision for kind in jobs.kinds] == ["tf32", "bf16", "tf32"]
    assert {kind.gpus for kind in jobs.kinds} == {(1, 2, 4, 8)}
    assert sorted(set(jobs.work.tolist())) == [1_683_725, 2_500_000]
    assert len(jobs.users) == 5
    assert len(thesis.seeds) == 10
    urgent, count = 0, 0
    for seed in range(20):
        table = thesis.world(seed).jobs
        urgent, count = urgent + int(table.urgent.sum()), count + len(table)
    assert count == pytest.approx(20 * 180, rel=0.1)
    assert urgent / count == pytest.approx(0.1, abs=0.025)


def test_rigid_jobs_have_one_gpu_count_and_the_batch_of_table_4_1() -> None:
    """Counts alike, batches 256, 128 and 256."""
    rigid = load_scenario("thesis-malleability").variants["rigid"].world(0).jobs
    assert all(len(kind.gpus) == len(kind.batches) == 1 for kind in rigid.kinds)
    assert {(kind.model, kind.batches[0]) for kind in rigid.kinds} == {
        ("hf:google/vit-base-patch16-224", 256),
        ("hf:albert-base-v2", 128),
        ("hf:microsoft/resnet-50", 256),
    }
    counts = Counter(rigid.kinds[kind].gpus[0] for kind in rigid.kind.tolist())
    assert set(counts) == {1, 2, 4, 8}


def test_the_other_experiments_change_one_thing_each(thesis: Scenario) -> None:
    """Budget, deadlines, users or rate; all else is the thesis's."""
    budget = load_scenario("thesis-budget")
    assert budget.budget is not None
    assert replace(budget, budget=None).digest() == thesis.digest()
    factors = [each.jobs.deadlines for each in load_scenario("thesis-sla").variants.values()]
    assert [each.factor for each in factors if each is not None] == [3.5, 2.5, 2.0]
    heavy = load_scenario("thesis-imbalanced").world(0).jobs
    assert np.mean(heavy.user == 0) == pytest.approx(0.5, abs=0.12)
    sweep = load_scenario("thesis-load").variants.values()
    rates = [each.jobs.generate.rate_per_s for each in sweep if each.jobs.generate is not None]
    assert rates == [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01]
    assert load_scenario("thesis-pareto").digest() == thesis.digest()


def test_the_hash_tells_worlds_apart_and_nothing_else(thesis: Scenario) -> None:
    """Name, description, policies and seeds do not change a simulation; everything else does."""
    renamed = replace(thesis.cluster, name="z", sources={})
    same = replace(thesis, name="x", policies=("fifo",), seeds=(3,), cluster=renamed)
    assert same.digest() == thesis.digest()
    budget = SourcedSteps(StepFunction.constant(5_000.0), "stated")
    others = [
        replace(thesis, budget=budget),
        replace(thesis, starts_at_s=3_600.0),
        replace(thesis, cluster=replace(thesis.cluster, network_w=1.0)),
        replace(thesis, engine=thesis.engine.model_copy(update={"interference": 0.1})),
        replace(thesis, oracle=thesis.oracle.model_copy(update={"noise": 0.2})),
        replace(thesis, jobs=thesis.jobs.model_copy(update={"rigid": True})),
    ]
    assert len({thesis.digest(), *(other.digest() for other in others)}) == len(others) + 1


def test_a_budget_below_idle_power_is_refused_in_programs_too(thesis: Scenario) -> None:
    """This also holds when machines are added to a scenario with a budget."""
    with pytest.raises(ConfigError, match=r"budget: 900 W is below the 1000 W"):
        replace(thesis, budget=SourcedSteps(StepFunction.constant(900.0), "stated"))


def test_a_trace_is_named_by_the_user_who_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found from the working directory; its content is hashed; without it the error has a
    remedy.
    """
    with pytest.raises(ConfigError, match=r"philly\.yaml:\d+: jobs\.trace: .*use --trace FILE"):
        load_scenario("philly")
    (tmp_path / "mine.csv").write_text("arrival_s,gpus,duration_s,vc\n0,1,60,a\n5,8,600,b\n")
    monkeypatch.chdir(tmp_path)
    philly = load_scenario("philly", {"jobs.trace.file": "mine.csv"})
    jobs = philly.world(0).jobs
    assert (len(jobs), jobs.users) == (2, ("a", "b"))
    before = philly.digest()
    (tmp_path / "mine.csv").write_text("arrival_s,gpus,duration_s,vc\n0,1,60,a\n5,8,900,b\n")
    assert philly.digest() != before


def test_a_trace_takes_the_place_of_generated_jobs(tmp_path: Path) -> None:
    """`simulate thesis --trace FILE` runs the user's jobs on the thesis's cluster."""
    (tmp_path / "mine.csv").write_text("arrival_s,gpus,duration_s,vc\n0,1,60,a\n5,8,600,b\n")
    scenario = load_scenario("thesis", {"jobs.trace.file": str(tmp_path / "mine.csv")})
    assert scenario.jobs.generate is None
    assert len(scenario.world(0).jobs) == 2


def test_jobs_of_a_trace_that_come_after_the_horizon_are_said(tmp_path: Path) -> None:
    """The shipped horizon of 10 h must not cut a user's trace without a message."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("submit_time,runtime,gpus\n0,60,1\n36000,60,1\n90000,60,1\n")
    cut = load_scenario("thesis", {"jobs.trace.file": str(trace)}).world(0).jobs.notes
    assert "2 of 3 jobs come after the horizon of 10 h" in cut[-1]
    whole = load_scenario("thesis", {"jobs.trace.file": str(trace), "engine.horizon": "none"})
    assert not any("horizon" in note for note in whole.world(0).jobs.notes)


def test_generated_jobs_without_a_horizon_need_a_count() -> None:
    """`--horizon none` of a scenario that generates jobs names the missing count."""
    with pytest.raises(ConfigError, match=r"jobs\.generate: give a horizon .* or a count"):
        load_scenario("thesis", {"engine.horizon": "none"})
    few = load_scenario("thesis", {"engine.horizon": "none", "jobs.generate.count": 3})
    assert len(few.world(0).jobs) == 3


def test_a_file_that_is_gone_is_said_not_hashed(tmp_path: Path) -> None:
    """The error has its name."""
    scenario = load_scenario("philly", {"jobs.trace.file": str(tmp_path / "none.csv")})
    with pytest.raises(ConfigError, match=r"none\.csv: cannot be read: No such file"):
        scenario.digest()


def test_a_folder_of_tables_is_hashed_by_what_is_in_it(tmp_path: Path) -> None:
    """Cap curves may be a folder; a changed file in it changes the simulation."""
    thesis = load_scenario("thesis")
    oracle = thesis.oracle.model_copy(update={"cap_curves": [str(tmp_path)]})
    (tmp_path / "power_v100.csv").write_text("one")
    before = replace(thesis, oracle=oracle).digest()
    (tmp_path / "power_v100.csv").write_text("two")
    assert replace(thesis, oracle=oracle).digest() != before
