"""Promises of docs/metrics.md: joules that agree with the store, bounded series, cheap scrapes."""

import json
import math
import os
import random
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from tests.fleet.agent.scripted_node import PACKAGE, ScriptedNode, counter, domains_of, gauge
from wattloop.core.records import Scope
from wattloop.fleet.agent.agent import AgentService
from wattloop.fleet.agent.config import AgentConfig
from wattloop.fleet.agent.job_caps import JobSetup
from wattloop.fleet.agent.job_facts import JobFacts
from wattloop.fleet.agent.live_metrics import ENDED_S, MOST_JOBS, AgentMetrics
from wattloop.fleet.agent.program_progress import JobPrograms
from wattloop.measure.run_journal import PHASES, RunProgress

LINE = re.compile(r"(\w+)\{(.*)\} (\S+)(?: # .*)?$")


def values(text: str, name: str, /, **wanted: str) -> list[float]:
    """Values of a family whose labels have the wanted ones."""
    found = []
    for line in text.splitlines():
        match = LINE.match(line)
        if match and match[1] == name:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
            if all(labels.get(key) == value for key, value in wanted.items()):
                found.append(float(match[3]))
    return found


def promtool_series(scraped: list[str], name: str) -> list[dict[str, str]]:
    """Series of a family as promtool takes them; the first scrape is one interval after 0."""
    found: dict[str, list[str]] = {}
    for place, text in enumerate(scraped):
        for line in text.splitlines():
            match = LINE.match(line)
            if match and match[1] == name:
                points = found.setdefault(match[2], [])
                points += ["_"] * (place + 1 - len(points)) + [match[3]]
    return [
        {"series": f"{name}{{{labels}}}", "values": " ".join(points)}
        for labels, points in found.items()
    ]


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A package of 100 W and a GPU of 300 W."""
    scripts = [
        (counter(PACKAGE, Scope.CPU), lambda t: 100.0 * t),
        (gauge("gpu:0", Scope.GPU, device="H200"), lambda t: 300.0),
    ]
    return ScriptedNode(tmp_path, scripts, monkeypatch, interval_s=1.0, cluster="big")


def followed(node: ScriptedNode, programs: JobPrograms | None = None) -> AgentMetrics:
    agent, metrics = node.start(), AgentMetrics(programs)
    agent.on_step = lambda: metrics.update(agent, agent.faults, 0)
    agent.on_job_closed = partial(metrics.close_job, agent)
    return metrics


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is missing")
def test_joules_of_an_hour_agree_with_the_store(node, tmp_path):
    """Bar: `increase()` over an hour, as Prometheus computes it from scrapes every 15 s, within
    0.5% of what the store has of the job.
    """
    metrics, scraped = followed(node), []
    node.pass_time(5)
    node.event("start", "7", gpus="0", name="train", account="phys")
    for _ in range(240):
        node.pass_time(15, step_s=1.0)
        scraped.append(metrics.render(False))
    node.event("end", "7")
    node.pass_time(20)
    stored = sum(d["energy_j"] for d in domains_of(node.end_of("7")).values())
    # the GPU, and 2 of 8 CPUs of a package with nothing to do
    assert stored == pytest.approx((300.0 + 100.0 * 2 / 8) * 3_600, rel=0.005)
    joules = 'wattloop_job_energy_joules_total{in_total="true", job_id="7"}'
    ratio = f"sum by (user) (increase({joules}[1h])) / {stored}"
    agrees = (f"abs({ratio} - 1) < bool 0.005", '{user="ada"}')
    promtool_agrees(tmp_path / "increase.yml", scraped, [agrees])
    # devices count from the start of the agent
    (package_j,) = values(scraped[-1], "wattloop_energy_joules_total", domain=PACKAGE)
    assert package_j == pytest.approx(100.0 * 3_605, rel=0.005)


def promtool_agrees(path, scraped, checks):
    """Let promtool evaluate (expression, labels) after an hour of scrapes every 15 s: each is 1."""
    names = {name for expr, _ in checks for name in re.findall(r"wattloop_\w+", expr)}
    test = {
        "interval": "15s",
        "input_series": [one for name in sorted(names) for one in promtool_series(scraped, name)],
        "promql_expr_test": [
            {"expr": expr, "eval_time": "1h", "exp_samples": [{"labels": labels, "value": 1}]}
            for expr, labels in checks
        ],
    }
    path.write_text(json.dumps({"rule_files": [], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is missing")
def test_joules_of_jobs_shorter_than_a_scrape(node, tmp_path):
    """Bar: with jobs of 3 to 20 s and scrapes every 15 s, `increase()` by user is within 0.5% of
    the store, and the last value of each job is what the store has of it.
    """
    metrics, scraped, dice = followed(node), [], random.Random(2)
    begins_s, ends_s, job = 40, 0, 0
    for second in range(3_600):
        if job < 400 and second == begins_s and second < 3_450:
            job, ends_s = job + 1, second + dice.randrange(3, 21)
            user = dice.choice(["ada", "bob"])
            node.event("start", str(job), gpus="0", user=user, account="phys")
        if second == ends_s:
            node.event("end", str(job))
            begins_s = second + dice.randrange(1, 4)
        node.pass_time(1, step_s=1.0)
        if second % 15 == 14:
            scraped.append(metrics.render(False))
    assert job > 250
    stored = {"ada": 0.0, "bob": 0.0}
    of_job: dict[str, float] = {}
    for journal in node.journals():
        if journal.header["job"] is not None:
            end = journal.end["result"]
            joules = sum(d["energy_j"] for d in end["domains"] if d["in_total"])
            stored[journal.header["user"]] += joules
            of_job[journal.header["job"]["id"]] = joules
    name = "wattloop_user_energy_joules_total"
    checks = [
        (
            f'abs(sum by (user) (increase({name}{{user="{user}"}}[1h])) / {joules} - 1) '
            "< bool 0.005",
            f'{{user="{user}"}}',
        )
        for user, joules in stored.items()
    ]
    of_jobs = 'wattloop_job_energy_joules_total{in_total="true", job_id!="unallocated"}'
    of_all = f"sum(increase({of_jobs}[1h])) / {sum(stored.values())}"
    checks.append((f"abs({of_all} - 1.02) < bool 0.06", "{}"))  # half a scrape is extrapolated
    for job, joules in list(of_job.items())[:40]:
        of_job_now = f'wattloop_job_energy_joules_total{{in_total="true", job_id="{job}"}}'
        last = f"sum by (job_id) (max_over_time({of_job_now}[1h]))"
        checks.append((f"abs({last} / {joules} - 1) < bool 0.001", f'{{job_id="{job}"}}'))
    promtool_agrees(tmp_path / "short.yml", scraped, checks)


def test_a_job_is_shown_for_two_minutes_after_its_end(node):
    """Promise: its last joules can be scraped, and its power is gone at once."""
    metrics = followed(node)
    node.event("start", "7", gpus="0", name="train")
    node.pass_time(30)
    metrics.render(False)
    node.event("end", "7")
    node.pass_time(20)
    stored = {name: d["energy_j"] for name, d in domains_of(node.end_of("7")).items()}
    text = metrics.render(False)
    for name in ("gpu:0", PACKAGE):
        shown = values(text, "wattloop_job_energy_joules_total", job_id="7", domain=name)
        assert shown == [pytest.approx(stored[name])]
    assert values(text, "wattloop_job_power_watts", job_id="7") == []
    assert values(text, "wattloop_agent_jobs") == [0.0]
    node.pass_time(ENDED_S)
    assert values(metrics.render(False), "wattloop_job_energy_joules_total", job_id="7") == []


def doubled(text: str) -> list[str]:
    """Return series that have two samples in one scrape, of which Prometheus drops one."""
    series = [line.rpartition("} ")[0] for line in text.splitlines() if LINE.match(line)]
    return [one for one in set(series) if series.count(one) > 1]


def test_a_requeued_job_continues_its_series(node):
    """Promise: a job that runs again soon after its end has one sample, from zero again."""
    metrics = followed(node)
    node.event("start", "7", gpus="0", name="train")
    node.pass_time(30)
    metrics.render(False)
    node.event("end", "7")
    node.pass_time(20)
    name, gpu = "wattloop_job_energy_joules_total", {"job_id": "7", "domain": "gpu:0"}
    seen = values(metrics.render(False), name, **gpu)
    node.event("start", "7", gpus="0", name="train")
    for _ in range(3):
        node.pass_time(2)
        text = metrics.render(False)
        assert doubled(text) == []
        seen += values(text, name, **gpu)
    assert seen == [pytest.approx(9_000, rel=0.01), 0.0, *sorted(seen[2:])]
    assert 300 < seen[2] < seen[3] < 2_000


def test_labels_of_a_job_do_not_change(node, monkeypatch):
    """Promise: a job is shown from when Slurm's controller has named it, and begins with zero."""
    monkeypatch.setattr("wattloop.fleet.agent.open_runs.PATIENCE_S", 6.0)
    metrics, shown = followed(node), []
    node.event("start", "7", gpus="0", name="")
    for second in range(12):
        node.pass_time(1)
        text = metrics.render(False)
        for name in ("", "train"):
            wanted = {"job_id": "7", "name": name, "domain": "gpu:0"}
            found = values(text, "wattloop_job_energy_joules_total", **wanted)
            shown += [(name, joules) for joules in found]
        if second == 3:
            (run,) = node.agent.open_runs.runs.values()
            facts = JobFacts({"name": "train"})
            node.agent.open_runs.apply_setup(JobSetup(run.plan.run_id, facts))
    assert {name for name, _ in shown} == {"train"}
    assert shown[0][1] == 0.0
    assert shown[-1][1] > 300 * 8


def test_names_that_are_cut_alike_are_one_series(node):
    metrics = followed(node)
    node.event("start", "7", gpus="0", user="u" * 130 + "a")
    node.event("start", "8", user="u" * 130 + "b")
    node.pass_time(5)
    metrics.render(False)
    node.pass_time(10)
    text = metrics.render(False)
    assert doubled(text) == []
    name = "wattloop_user_energy_joules_total"
    assert values(text, name, scope="gpu") == [pytest.approx(300 * 15, rel=0.15)]


def test_the_number_of_ended_jobs_is_bounded(node, monkeypatch):
    """Promise: of jobs that end faster than they are forgotten, the latest are shown."""
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_JOBS", 3)
    metrics = followed(node)
    for job in range(8):
        node.event("start", str(job), cpus="1")
        node.pass_time(3)
        node.event("end", str(job))
        node.pass_time(5)
    name = "wattloop_job_energy_joules_total"
    shown = [job for job in range(8) if values(metrics.render(False), name, job_id=str(job))]
    assert shown == [5, 6, 7]


def test_users_beyond_the_limit_are_added_up(node, monkeypatch):
    """Promise: names that users choose do not make series without end, and no joule is lost."""
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_USERS", 4)
    metrics = followed(node)
    for job in range(30):
        node.event("start", str(job), cpus="1", user=f"u{job}")
        node.pass_time(2)
        node.event("end", str(job))
        node.pass_time(2)
    node.pass_time(20)
    metrics.render(False)
    node.pass_time(1)
    name = "wattloop_user_energy_joules_total"
    text = metrics.render(False)
    assert len(values(text, name)) <= 5
    ends = [j.end["result"] for j in node.journals() if j.header["job"] is not None]
    stored_j = sum(d["energy_j"] for end in ends for d in end["domains"] if d["in_total"])
    assert len(ends) == 30
    assert sum(values(text, name)) == pytest.approx(stored_j, rel=0.005)
    assert values(text, name, user="other")[0] > 0.5 * stored_j


class Program:
    """A process of a job under `wattloop run`, as /proc shows it, and what it tells."""

    def __init__(self, node: ScriptedNode, pid: int, **environment: str) -> None:
        self.folder = node.folder / f"wattloop-steps-{pid}"
        self.folder.mkdir(exist_ok=True)
        self.place = node.folder / "proc" / str(pid)
        self.place.mkdir()
        (self.place / "root").symlink_to("/")
        words = {"WATTLOOP_STEPS": str(self.folder), **environment}
        text = "".join(f"{name}={value}\0" for name, value in words.items())
        (self.place / "environ").write_text(text)
        (self.place / "cgroup").write_text("0::/user.slice/user-7.slice\n")
        self.phases: dict[str, tuple[float, float | None]] = dict.fromkeys(PHASES, (0.0, 0.0))

    def tell(self, until_s: float, steps: int, **known) -> None:
        RunProgress(
            steps=steps, last_step_s=until_s, until_s=until_s, phases=self.phases, **known
        ).write(self.folder)


@pytest.fixture
def uid(tmp_path):
    return str(tmp_path.stat().st_uid)


def test_steps_and_phases_of_a_job(node, uid):
    """Promise: a program under `wattloop run` in a job gives the job's metrics steps and phases;
    the joules of phases are the job's, divided as the program saw them, and they only grow.
    """
    programs = JobPrograms(node.host.procfs, "n1")
    metrics = followed(node, programs)
    node.event("start", "7", gpus="0", account="phys", uid=uid)
    node.pass_time(10)
    program = Program(node, 4_242, SLURM_JOB_ID="7", SLURMD_NODENAME="n1")
    begin_s = node.clock.now_s()
    node.pass_time(20)
    program.phases |= {"start-up": (5.0, 500.0), "training": (15.0, 4_500.0)}
    program.tell(begin_s + 20, 100, tokens=1_000.0)
    programs.look()
    node.pass_time(1)
    name = "wattloop_job_phase_energy_joules_total"
    first = metrics.render(False)
    assert values(first, "wattloop_job_steps_total", job_id="7") == [0.0]
    node.pass_time(14)
    text = metrics.render(False)
    mine = {"job_id": "7", "user": "ada", "project": "phys", "node": "n1"}
    assert values(text, "wattloop_job_steps_total", **mine) == [100.0]
    assert values(text, "wattloop_job_tokens_total", **mine) == [1_000.0]
    assert values(text, "wattloop_job_samples_total", **mine) == []
    assert values(text, "wattloop_job_seconds_since_step", **mine) == [pytest.approx(15, abs=1)]
    # 300 W, and 2 of 8 CPUs of 100 W, from the program's start: 10% and 90% of 20 s
    assert values(text, name, phase="start-up", **mine) == [pytest.approx(650, rel=0.01)]
    assert values(text, name, phase="training", provenance="modelled", **mine) == [
        pytest.approx(5_850, rel=0.01)
    ]
    seconds = "wattloop_job_phase_seconds_total"
    assert values(text, seconds, phase="training", **mine) == [15.0]
    program.phases |= {"evaluation": (10.0, None), "training": (20.0, None)}
    program.tell(begin_s + 35, 150)
    programs.look()
    node.pass_time(1)
    text = metrics.render(False)
    # its joules are not known any more: by time
    assert values(text, name, phase="evaluation", **mine) == [pytest.approx(325 * 10, rel=0.01)]
    whole_j = sum(values(text, name, **mine))
    assert whole_j == pytest.approx(325 * 35, rel=0.01)
    program.phases["training"] = (1.0, 1.0)
    program.tell(begin_s + 36, 3, local_rank=1)  # nonsense: a counter never falls
    programs.look()
    node.pass_time(1)
    text = metrics.render(False)
    assert values(text, "wattloop_job_steps_total", **mine) == [150.0]
    assert values(text, seconds, phase="training", **mine) == [20.0]
    (program.place / "environ").unlink()  # the program has ended, its job has not
    programs.look()
    node.event("end", "7")
    node.pass_time(20)
    text = metrics.render(False)
    assert values(text, "wattloop_job_steps_total", **mine) == [150.0]
    assert values(text, "wattloop_job_seconds_since_step", **mine) == []
    node.pass_time(ENDED_S)
    assert values(metrics.render(False), "wattloop_job_steps_total") == []


def test_counters_of_a_job_continue_with_a_restarted_agent(node, uid):
    """Promise: a restart adds no joule and no step again: zero would be a reset to Prometheus."""
    program, seen = None, []
    for _ in range(2):
        programs = JobPrograms(node.host.procfs, "n1")
        metrics = followed(node, programs)
        if program is None:
            node.event("start", "7", gpus="0", uid=uid)
            node.pass_time(20)
            program = Program(node, 50, SLURM_JOB_ID="7")
        node.pass_time(2)
        program.phases["training"] = (node.clock.now_s() - 1_000.0, 100.0)
        program.tell(node.clock.now_s(), 100)
        programs.look()
        for _ in range(3):
            node.pass_time(2)
            text = metrics.render(False)
            (joules,) = values(text, "wattloop_job_energy_joules_total", domain="gpu:0", job_id="7")
            (steps,) = values(text, "wattloop_job_steps_total")
            seen.append((joules, steps))
        node.kill()
        node.pass_time(5)
    assert seen[0] == (0.0, 0.0), "neither the job nor its steps were scraped before"
    assert seen[1:] == sorted(seen[1:])
    assert seen[1][1] == seen[-1][1] == 100.0


def test_programs_of_a_job_are_added_up(node, uid):
    """Promise: programs one after the other add up; ranks of a node make the same steps."""
    programs = JobPrograms(node.host.procfs, "n1")
    metrics = followed(node, programs)
    node.event("start", "7", gpus="0", uid=uid)
    node.pass_time(10)
    now_s = node.clock.now_s()
    for pid, rank in ((10, 0), (11, 1), (12, 0)):
        program = Program(node, pid, SLURM_JOB_ID="7")
        program.phases["training"] = (2.0, 10.0)
        program.tell(now_s, 50, samples=400.0, local_rank=rank)
    programs.look()
    node.pass_time(1)
    metrics.render(False)
    node.pass_time(1)
    text = metrics.render(False)
    assert values(text, "wattloop_job_steps_total") == [100.0]
    assert values(text, "wattloop_job_samples_total") == [1_200.0]
    assert values(text, "wattloop_job_phase_seconds_total", phase="training") == [4.0]


def test_steps_of_many_programs_one_after_the_other(node, uid, monkeypatch):
    """Promise: a job that starts any number of programs, as a sweep does, counts the steps of all,
    and what the agent remembers is bounded; of more programs at a time the first are counted.
    """
    monkeypatch.setattr("wattloop.fleet.agent.program_progress.MOST_PROGRAMS", 3)
    programs = JobPrograms(node.host.procfs, "n1")
    metrics = followed(node, programs)
    node.event("start", "7", gpus="0", uid=uid)
    node.pass_time(10)
    metrics.render(False)
    seen, running = [], []
    for pid in range(10, 30):
        program = Program(node, pid, SLURM_JOB_ID="7")
        program.phases["training"] = (1.0, 10.0)
        program.tell(node.clock.now_s(), 50, samples=400.0, tokens=7.0)
        if pid < 26:  # ends before the next one begins; later ones run on
            running.append(program)
        for one in running[:-1]:
            shutil.rmtree(one.place)
            running.remove(one)
        programs.look()
        node.pass_time(2)
        text = metrics.render(False)
        seen += values(text, "wattloop_job_steps_total")
    assert seen == sorted(seen)
    assert seen[-1] == 50 * (15 + 3)
    (run_id,) = [run.plan.run_id for run in node.agent.open_runs.runs.values()]
    assert len(programs.told(run_id)) == 3
    assert len(metrics._progress[run_id].programs) == 3
    assert values(text, "wattloop_job_samples_total") == [400.0 * 18]
    assert values(text, "wattloop_job_tokens_total") == [7.0 * 18]
    assert values(text, "wattloop_job_phase_seconds_total", phase="training") == [18.0]
    assert values(text, "wattloop_job_phase_energy_joules_total", phase="training")[0] > 0
    assert values(text, "wattloop_job_seconds_since_step")[0] < 10


def test_a_program_counts_for_its_own_job_only(node, uid):
    """Promise: a process is of the job whose control group it is in, or whose user it has."""
    programs = JobPrograms(node.host.procfs, "n1")
    metrics = followed(node, programs)
    container = "c" * 64
    node.event("start", "7", uid=uid)
    node.event("start", "8", uid="54321")
    node.event("start", container, uid="", scheduler="kubernetes", namespace="ml", cpus="1")
    node.pass_time(5)
    groups = {
        20: ("SLURM_JOB_ID", "7", "/user.slice/session-8.scope"),
        21: ("SLURM_JOB_ID", "8", "/user.slice"),  # of another user
        22: ("OTHER", "", "/system.slice/slurmstepd.scope/job_8/step_0/user/task_0"),
        23: ("OTHER", "", f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{container}.scope"),
        24: ("SLURMD_NODENAME", "n2", "/user.slice"),
    }
    for pid, (variable, value, group) in groups.items():
        more = {"SLURM_JOB_ID": "7"} if pid == 24 else {}
        program = Program(node, pid, **{variable: value}, **more)
        (program.place / "cgroup").write_text(f"0::{group}\n")
        program.tell(node.clock.now_s(), pid)
    programs.look()
    node.pass_time(1)
    metrics.render(False)
    node.pass_time(1)
    text = metrics.render(False)
    name = "wattloop_job_steps_total"
    assert values(text, name, job_id="7") == [20.0]
    assert values(text, name, job_id="8") == [22.0]
    assert values(text, name, job_id=container, project="ml", namespace="ml") == [23.0]
    assert len(values(text, name)) == 3


def test_a_real_process_is_found(node, uid):
    """Promise: what a kernel's /proc shows of another process is enough."""
    programs = JobPrograms(Path("/proc"), "n1")
    metrics = followed(node, programs)
    node.event("start", "70001", uid=uid)
    node.pass_time(5)
    folder = node.folder / "wattloop-steps-x"
    folder.mkdir()
    RunProgress(9, until_s=node.clock.now_s(), phases={"training": (1.0, 1.0)}).write(folder)
    environment = {"WATTLOOP_STEPS": str(folder), "SLURM_JOB_ID": "70001", "SLURMD_NODENAME": "n1"}
    process = subprocess.Popen(["sleep", "3600"], env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + 60
        while not values(metrics.render(False), "wattloop_job_steps_total", job_id="70001"):
            assert time.monotonic() < deadline
            programs.look()
            node.pass_time(1)
    finally:
        process.kill()
        process.wait()
    node.pass_time(1)
    assert values(metrics.render(False), "wattloop_job_steps_total", job_id="70001") == [9.0]


def test_a_folder_that_is_a_link_is_not_followed(node, uid):
    programs = JobPrograms(node.host.procfs, "n1")
    metrics = followed(node, programs)
    node.event("start", "7", uid=uid)
    node.pass_time(5)
    program = Program(node, 30, SLURM_JOB_ID="7")
    program.tell(node.clock.now_s(), 5)
    moved = program.folder.rename(node.folder / "moved")
    program.folder.symlink_to(moved)
    programs.look()
    node.pass_time(2)
    assert values(metrics.render(False), "wattloop_job_steps_total") == []


def test_power_owner_and_provenance(node):
    metrics = followed(node)
    node.event("start", "7", gpus="0", name="train", account="phys")
    node.pass_time(30)
    text = metrics.render(False)
    assert values(text, "wattloop_power_watts", domain="gpu:0") == [pytest.approx(300, rel=0.01)]
    (watts,) = values(
        text, "wattloop_job_power_watts", job_id="7", user="ada", project="phys", domain="gpu:0",
        provenance="measured", cluster="big", node="n1",
    )  # fmt: skip
    assert watts == pytest.approx(300, rel=0.02)
    assert values(text, "wattloop_agent_jobs") == [1.0]
    assert values(text, "wattloop_agent_faults") == [0.0]
    node.event("end", "7")
    node.pass_time(20)
    # a job that ended leaves no series behind
    assert values(metrics.render(False), "wattloop_job_power_watts", job_id="7") == []


def test_power_of_a_job_does_not_jitter_with_the_steps(tmp_path, monkeypatch):
    """Promise: a constant power is shown as constant, whenever the agent reads a counter that is
    renewed 10 times a second; the power of all jobs is that of the device.
    """
    scripts = [
        (counter("gpu:0", Scope.GPU, device="H200")._replace(update_period_s=0.1),
         lambda t: 300.0 * math.floor(10 * t + 1e-6) / 10),
        (gauge("gpu:0", Scope.GPU, device="H200"), lambda t: 300.0),
    ]  # fmt: skip
    node = ScriptedNode(tmp_path, scripts, monkeypatch, interval_s=1.0, cluster="big")
    metrics = followed(node)
    node.event("start", "7", gpus="0", name="train")
    node.pass_time(5)
    dice = random.Random(1)
    shown = []
    for _ in range(60):
        node.pass_time(dice.uniform(0.9, 1.1), step_s=0.37)
        shown += values(
            metrics.render(False), "wattloop_job_power_watts", job_id="7", domain="gpu:0"
        )
    assert len(shown) == 60
    assert shown == pytest.approx([300.0] * 60, rel=0.005)


def test_hostile_names_are_one_line(node):
    metrics = followed(node)
    node.event("start", "7", name='a"} 1\\nevil{x="', user="\x1b[31mroot", project="p" * 500)
    node.pass_time(5)
    text = metrics.render(True)
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("evil")]
    assert max(len(label) for label in re.findall(r'"([^"]*)"', text)) <= 130
    assert text.endswith("# EOF\n")


def test_the_number_of_series_is_bounded(node, monkeypatch):
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_JOBS", 3)
    assert MOST_JOBS == 256
    metrics = followed(node)
    for job in range(8):
        node.event("start", str(job), cpus="1")
    node.pass_time(10)
    text = metrics.render(False)
    jobs = set(re.findall(r'wattloop_job_energy_joules_total\{.*?job_id="(\w+)"', text))
    assert "other" in jobs
    assert len(jobs) <= 5
    assert values(text, "wattloop_agent_jobs") == [8.0]


def test_joules_of_the_other_jobs_never_fall(node, monkeypatch):
    """Promise: the energy of jobs beyond the limit stays in `other` after their end, and every
    joule is in one series only, with the labels of the sums in rules and dashboard.
    """
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_JOBS", 3)
    metrics = followed(node)
    name, shown, own = "wattloop_job_energy_joules_total", [], {}

    def follow(seconds: int) -> None:
        for _ in range(seconds):
            node.pass_time(1)
            text = metrics.render(False)
            shown.append(sum(values(text, name, job_id="other", domain=PACKAGE)))
            for line in text.splitlines():
                found = LINE.match(line)
                if found and found[1] == name and PACKAGE in found[2] and "other" not in found[2]:
                    own[found[2]] = max(own.get(found[2], 0.0), float(found[3]))

    for job in range(8):
        node.event("start", str(job), cpus="1")
        follow(2)
    for job in range(8):  # those with series of their own end first, and leave room
        node.event("end", str(job))
        follow(5)
    node.event("start", "8", cpus="1")
    follow(10)
    assert shown == sorted(shown)
    wanted = {"job_id": "other", "in_total": "true", "domain": PACKAGE, "provenance": "modelled"}
    assert values(metrics.render(False), name, cluster="big", user="", **wanted) == shown[-1:]
    assert shown[-1] > 0
    assert any('job_id="8"' in labels for labels in own)
    assert not any(f'job_id="{job}"' in labels for labels in own for job in range(3, 8))
    # the package's joules are those of all series; what a job used after the last step before its
    # end was recorded is the difference
    (package_j,) = values(metrics.render(False), "wattloop_energy_joules_total", domain=PACKAGE)
    assert shown[-1] + sum(own.values()) == pytest.approx(package_j, rel=0.02)


def test_the_other_jobs_begin_at_zero_with_a_restarted_agent(node, monkeypatch):
    """A fall to a value above zero would add joules of before the restart again."""
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_JOBS", 1)
    metrics = followed(node)
    for job in range(4):
        node.event("start", str(job), cpus="1")
    node.pass_time(60)
    metrics.render(False)
    node.pass_time(1)
    wanted = {"job_id": "other", "in_total": "true", "domain": PACKAGE}
    (before_j,) = values(metrics.render(False), "wattloop_job_energy_joules_total", **wanted)
    node.kill()
    node.pass_time(5)
    metrics = followed(node)
    node.pass_time(5)
    first = values(metrics.render(False), "wattloop_job_energy_joules_total", **wanted)
    assert first == [0.0]
    node.pass_time(1)
    (after_j,) = values(metrics.render(False), "wattloop_job_energy_joules_total", **wanted)
    assert 0 < after_j < before_j / 4


def test_openmetrics_names_the_run_of_a_job(node):
    metrics = followed(node)
    node.event("start", "7", gpus="0")
    node.pass_time(5)
    text = metrics.render(True)
    assert "# TYPE wattloop_job_energy_joules counter" in text
    assert "# UNIT wattloop_job_energy_joules joules" in text
    assert re.search(r'job_id="7".*\} \S+ # \{run="[\w-]+"\} ', text)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is missing")
def test_promtool_accepts_it(node, uid):
    programs = JobPrograms(node.host.procfs, "n1")
    metrics = followed(node, programs)
    node.event("start", "7", gpus="0", name="train", uid=uid)
    node.pass_time(10)
    Program(node, 40, SLURM_JOB_ID="7").tell(node.clock.now_s(), 5, samples=1.0, tokens=2.0)
    programs.look()
    node.pass_time(1)
    assert "wattloop_job_phase_energy_joules_total" in metrics.render(False)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics.render(False), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_real_agent_answers_scrapes(tmp_path, monkeypatch):
    """The endpoint of a running service: metrics, health, and nothing else."""
    scripts = [(counter(PACKAGE, Scope.CPU), lambda t: 50.0 * t)]
    node = ScriptedNode(tmp_path, scripts, monkeypatch, metrics="127.0.0.1:0", interval_s=0.1)
    from wattloop.core.clock import RealClock
    from wattloop.core.settings import Settings
    from wattloop.fleet.agent.config import AgentContext

    node.clock = RealClock()
    config = AgentConfig.model_validate(node.config)
    context = AgentContext("n1", config, Settings(), node.host, node.clock, {}, 8)
    service = AgentService(context)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        text = ""
        while "wattloop_energy_joules_total" not in text:
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
            if service.metrics_port is not None:
                url = f"http://127.0.0.1:{service.metrics_port}/metrics"
                text = urllib.request.urlopen(url, timeout=600).read().decode()
        health = urllib.request.urlopen(url.replace("metrics", "healthz"), timeout=600)
        assert health.read() == b"ok\n"
    finally:
        service.stop.set()
        thread.join(120)
    assert not thread.is_alive()


@pytest.mark.parametrize("text", ["", "x", "localhost", "1:2:x", "99999", 3.5])
def test_a_wrong_address_is_refused(text):
    with pytest.raises(ValueError, match="9464"):
        AgentConfig.model_validate({"metrics": text})


def test_an_address_in_use_is_said(tmp_path):
    import socket

    from wattloop.core.errors import ConfigError
    from wattloop.measure.metrics_endpoint import MetricsEndpoint

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="choose another port"):
            MetricsEndpoint(str(port), lambda _: "")


def test_clients_that_send_nothing_do_not_block_the_next(monkeypatch, caplog):
    """Promise: a scrape is answered at once, however many connections are silent for however long;
    the oldest of too many are closed, which the log says.
    """
    import socket

    from wattloop.measure import metrics_endpoint

    monkeypatch.setattr(metrics_endpoint, "REQUEST_S", 3_600.0)
    monkeypatch.setattr(metrics_endpoint._Handler, "timeout", 3_600.0)
    most = metrics_endpoint.MOST_WAITING
    with metrics_endpoint.MetricsEndpoint("0", lambda _: "x 1\n") as endpoint:
        silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(most + 8)]
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        for _ in range(3):
            assert urllib.request.urlopen(url, timeout=600).read() == b"x 1\n"
        assert silent[0].recv(1) == b""  # closed by the server
        for each in silent:
            each.close()
    assert "silent connections" in caplog.text


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_a_real_prometheus_scrapes_them(node, tmp_path):
    """A real Prometheus takes the exposition: joules of the meter, with the labels of the job."""
    from urllib.parse import quote

    from tests.support.free_ports import PortBlock
    from wattloop.measure.metrics_endpoint import MetricsEndpoint

    metrics = followed(node)
    node.event("start", "7", gpus="0", account="phys")
    node.pass_time(5)
    metrics.render(False)
    node.pass_time(1)
    port = PortBlock().take()
    with MetricsEndpoint("127.0.0.1:0", metrics.render) as endpoint:
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: wattloop\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{endpoint.port}']}}]\n"
        )
        server = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            query = quote('wattloop_job_energy_joules_total{job_id="7", domain="gpu:0"}')
            url = f"http://127.0.0.1:{port}/api/v1/query?query={query}"
            found: list = []
            deadline = time.monotonic() + 180
            while not found:
                assert time.monotonic() < deadline, "Prometheus has no sample"
                time.sleep(0.2)
                try:
                    found = json.load(urllib.request.urlopen(url, timeout=600))["data"]["result"]
                except OSError:
                    continue  # it is starting
        finally:
            server.kill()
            server.wait()
    (sample,) = found
    assert sample["metric"]["project"] == "phys"
    assert sample["metric"]["provenance"] == "measured"
    expected = values(
        metrics.render(False), "wattloop_job_energy_joules_total", job_id="7", domain="gpu:0"
    )
    assert [float(sample["value"][1])] == expected
    assert expected[0] > 1_000
