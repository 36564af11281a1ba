"""Promises of the savers of a node's jobs: which jobs have one, its effect, and restored levers."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.agent.conftest import Node, node  # noqa: F401 - a fixture
from tests.support.saved_runs import ROOT, TRAINING, wait_until
from wattloop.cap.saver import slurm_job_savers
from wattloop.cap.saver.proof import SavingResult, SavingState
from wattloop.cap.saver.saver import SaverConfig
from wattloop.cap.saver.slurm_job_savers import NO_JOB_STEPS, OBJECTED, JobSavers, job_steps
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.config import AgentConfig, SaveConfig, agent_context
from wattloop.fleet.agent.job_caps import SavedJob, save_refusal
from wattloop.fleet.agent.job_facts import COLUMNS, JobFacts
from wattloop.hardware.host import Host
from wattloop.virtual.node import shared_gpus

JOB = SavedJob("run", "7", os.getuid(), "ada", "train", ("gpu:0", "gpu:1"))
RULES = SaveConfig(max_slowdown="5%", clocks=True)


@pytest.fixture
def quick(
    node: Node,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Node]:
    """A node whose savers have slices of tenths of a second."""
    short = partial(
        SaverConfig, wait_s=0.4, slice_s=0.4, hold_s=0.4, settle_s=0.1, lag_s=0.15, least_steps=1
    )
    monkeypatch.setattr(slurm_job_savers, "SaverConfig", short)
    monkeypatch.setattr(slurm_job_savers, "LOOK_FOR_STEPS_S", 0.05)
    monkeypatch.setenv("WATTLOOP_STATE_DIR", str(node.folder / "state"))
    monkeypatch.setenv("WATTLOOP_STATE_COPY_DIR", str(node.folder / "copy"))
    monkeypatch.setenv("WATTLOOP_GUARDIAN", "0")
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "2")
    yield node


def slurm_says(folder: Path, **facts: str) -> None:
    """Make a squeue that lists job 7."""
    known = {"id": "7", "nodes": "1", "user": "ada", "partition": "gpu"} | facts
    row = "".join(f"{known.get(name, 'N/A'):<{width}}" for name, _, width in COLUMNS)
    folder.mkdir()
    script = folder / "squeue"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{row}\nEND\n")
    script.chmod(0o755)


def levers() -> list[Any]:
    """Return limits and clocks of the node's cards."""
    states = (card.now() for card in shared_gpus(2))
    return [(now.limit_w, now.max_clock_mhz) for now in states]


def start(place: Node, **rules: Any) -> Agent:
    """Start an agent with savers."""
    place.config["save"] = {"max_slowdown": "5%", **rules}
    config = AgentConfig.model_validate(place.config).of_node("n1")
    context = agent_context(config, "n1", Settings(), host=Host(sysfs=place.sysfs))
    assert config.save is not None
    place.agent = Agent(context, JobSavers(config.save, context.settings, "n1"))
    place.agent.start()
    return place.agent


def program(folder: Path, seconds: float, **variables: str) -> "subprocess.Popen[bytes]":
    """Start a job's program as `wattloop run` does, with a folder for its steps."""
    (folder / "steps").mkdir(exist_ok=True)
    (folder / "job.py").write_text(f"{TRAINING}\ntrain({seconds})\n")
    environment = {
        **os.environ,
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n1",
        "WATTLOOP_STEPS": str(folder / "steps"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        **variables,
    }
    return subprocess.Popen([sys.executable, "job.py"], env=environment, cwd=folder)


def saving_of(place: Node) -> SavingResult:
    (journal,) = place.ended("7")
    assert journal.end is not None
    return SavingResult.from_dict(journal.end["saving"])


def test_a_job_with_steps_is_saved_and_its_levers_restored(quick: Node, tmp_path: Path) -> None:
    """Promise: caps are lower while the job trains, its record has the saving, and the levers are
    restored when it has ended.
    """
    slurm_says(tmp_path / "no-slurm")
    start(quick, clocks=True)
    before = levers()
    quick.begin("7", "0,1")
    job = program(tmp_path, 6.0)
    quick.work_until(lambda: levers() != before)
    quick.work_until(lambda: job.poll() is not None)
    quick.end("7")
    result = saving_of(quick)
    assert result.state is SavingState.APPLIED
    assert result.saving_slices > 0
    assert levers() == before


def test_a_stopped_agent_restores(quick: Node, tmp_path: Path) -> None:
    """Promise: an agent that ends while a job runs leaves no lever changed."""
    slurm_says(tmp_path / "no-slurm")
    start(quick, clocks=True)
    before = levers()
    quick.begin("7", "0,1")
    job = program(tmp_path, 30.0)
    quick.work_until(lambda: levers() != before)
    quick.stop()
    job.kill()
    job.wait()
    assert levers() == before


def test_a_killed_agent_is_restored_after(
    quick: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: after `kill -9` of the agent its watchdog restores the levers of the job."""
    monkeypatch.delenv("WATTLOOP_GUARDIAN")
    slurm_says(tmp_path / "no-slurm")
    before = levers()

    def agent() -> None:
        start(quick, clocks=True)
        quick.begin("7", "0,1")
        quick.work(120.0)

    process = multiprocessing.get_context("fork").Process(target=agent)
    process.start()
    job = program(tmp_path, 60.0)
    try:
        wait_until(lambda: levers() != before)
        process.kill()
        process.join()
        wait_until(lambda: levers() == before)
    finally:
        job.kill()
        job.wait()


def test_jobs_that_opt_out_or_have_no_steps(quick: Node, tmp_path: Path) -> None:
    """Promise: such jobs keep their settings, and the record says why."""
    slurm_says(tmp_path / "no-slurm")
    start(quick)
    cases: list[tuple[dict[str, str], str]] = [
        ({"WATTLOOP_SAVE": "0"}, OBJECTED),
        ({"WATTLOOP_STEPS": ""}, NO_JOB_STEPS),
    ]
    for variables, reason in cases:
        quick.begin("7", "0,1")
        job = program(tmp_path, 0.6, **variables)
        quick.work_until(lambda job=job: job.poll() is not None)
        quick.end("7", SLURM_JOB_RESTART_COUNT="0")
        journals = quick.ended("7")
        end = journals[-1].end
        assert end is not None
        result = SavingResult.from_dict(end["saving"])
        assert (result.state, result.reason) == (SavingState.LEFT, reason)
        for path in (quick.home / "journals").glob("*.journal"):
            path.unlink()


def test_steps_of_others_are_not_followed(tmp_path: Path) -> None:
    """Promise: a folder counts only if it and the process belong to the job's user."""
    place = tmp_path / "42"
    place.mkdir()
    steps = tmp_path / "steps"
    steps.mkdir()
    (place / "root").symlink_to("/")

    def environ(**variables: str) -> None:
        words = [f"{name}={value}" for name, value in variables.items()]
        (place / "environ").write_bytes("\0".join(words).encode())

    environ(SLURM_JOB_ID="7", WATTLOOP_STEPS=str(steps))
    assert job_steps(tmp_path, JOB, "n1") == (place / "root" / str(steps)[1:], False)
    assert job_steps(tmp_path, JOB._replace(uid=12_345), "n1") == (None, False)
    assert job_steps(tmp_path, JOB._replace(job="8"), "n1") == (None, False)
    link = tmp_path / "link"
    link.symlink_to(steps)
    for odd in (str(link), "steps", "", "/nowhere", f"{place}/environ"):
        environ(SLURM_JOB_ID="7", WATTLOOP_STEPS=odd)
        assert job_steps(tmp_path, JOB, "n1") == (None, False)
    environ(SLURM_JOB_ID="7", WATTLOOP_STEPS=str(steps), SLURMD_NODENAME="n2")
    assert job_steps(tmp_path, JOB, "n1") == (None, False)
    environ(SLURM_JOB_ID="7", WATTLOOP_STEPS=str(steps), WATTLOOP_SAVE="0")
    assert job_steps(tmp_path, JOB, "n1") == (None, True)


FACTS = {"user": "ada", "partition": "gpu", "nodes": "1"}


@pytest.mark.parametrize(
    ("facts", "cap_w", "sharing", "reason"),
    [
        (JobFacts(FACTS), {}, "", ""),
        (None, {}, "", "may have objected"),
        (JobFacts(FACTS, no_save=True), {}, "", "wattloop:no-save"),
        (JobFacts(FACTS, tampered=True), {}, "", "imitates"),
        (JobFacts(FACTS | {"user": "root"}), {}, "", "leave out user root"),
        (JobFacts(FACTS | {"partition": "debug"}), {}, "", "leave out partition debug"),
        (JobFacts(FACTS), {"gpu:0": 200.0}, "", "chosen otherwise"),
        (JobFacts(FACTS), {}, "9", "job 9 has one of its GPUs"),
        (JobFacts(FACTS | {"nodes": "2"}), {}, "", "runs on 2 nodes"),
    ],
)
def test_the_operators_rules(
    facts: JobFacts | None, cap_w: dict[str, float], sharing: str, reason: str
) -> None:
    rules = SaveConfig(exclude_users=("root",), exclude_partitions=("debug",))
    found = save_refusal(rules, facts, cap_w, sharing)
    assert (reason in found) if reason else found == ""


@pytest.mark.parametrize(
    "save",
    [{"max_slowdown": "lots"}, {"max_slowdown": "500%"}, {"least_cap": "-10%"}, {"x": 1}],
)
def test_wrong_rules_are_refused(save: dict[str, Any], tmp_path: Path) -> None:
    from wattloop.fleet.agent.config import load_agent_config

    path = tmp_path / "agent.yaml"
    words = "\n".join(f"  {name}: {value}" for name, value in save.items())
    path.write_text(f"save:\n{words}\n")
    with pytest.raises(ConfigError, match=r"agent\.yaml:2"):
        load_agent_config(str(path), "n1")


def test_least_caps() -> None:
    assert SaveConfig().least_w(400.0) == 0.0
    assert SaveConfig(least_cap="200 W").least_w(400.0) == 200.0
    assert SaveConfig(least_cap="60%").least_w(400.0) == pytest.approx(240.0)
    assert SaveConfig(max_slowdown="2.5 %").slowdown == pytest.approx(0.025)


def test_a_refused_job_has_its_reason() -> None:
    savers = JobSavers(RULES, Settings(), "n1")
    savers.begin(JOB, "because")
    found = savers.result("run")
    assert found is not None
    assert SavingResult.from_dict(found) == SavingResult(SavingState.LEFT, "because")
    savers.forget("run")
    assert savers.result("run") is None
    savers.close()
