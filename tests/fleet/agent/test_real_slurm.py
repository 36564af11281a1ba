"""Promises of the agent on a real Slurm: two nodes of four virtual GPUs, jobs that share them."""

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fleet.agent.test_live_metrics import values
from tests.integrations.step_hook.test_hard_processes import FRAMEWORK
from tests.support.free_ports import PortBlock
from tests.support.slurm_lab import SlurmLab, why_no_slurm
from tests.sweep.conftest import ENTRY_POINTS
from wattloop.core.clock import RealClock
from wattloop.fleet.agent.hooks import install_hooks
from wattloop.fleet.agent.job_facts import JobFacts, ask_slurm
from wattloop.measure.job_energy import job_energy
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import open_store
from wattloop.store.job_queries import find_job_members, stored_journal
from wattloop.store.journal import read_journal
from wattloop.store.runs import RunRecord, list_runs
from wattloop.virtual.node import shared_gpus

pytestmark = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "never")

SRC = Path(__file__).parents[3] / "src"
WORK = Path(__file__).with_name("lab_work.py")
NODES = ("n1", "n2")


class Fleet:
    """A Slurm with hooks, and an agent per node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        info = folder / "site" / "wattloop-0.dist-info"
        info.mkdir(parents=True)
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        prolog, epilog = install_hooks(folder / "hooks", f"{folder}/agents/{{node}}")
        self.config = folder / "agent.yaml"
        self.config.write_text(
            f"folder: {folder}/agents/{{node}}\n"
            "virtual_gpus: 4\ndevices: gpu\ninterval_s: 0.5\ncluster: lab\n"
            f"control:\n  socket: {folder}/{{node}}.sock\n"
        )
        self.lab = SlurmLab(folder, nodes=2, gpus=4, cpus=8, prolog=prolog, epilog=epilog)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def start_daemon(self, node: str) -> subprocess.Popen[bytes]:
        rules = self.folder / "rules.yaml"
        rules.write_text(
            f"socket: {{path: {self.folder}/{node}.sock}}\nlog: {self.folder}/control.jsonl\n"
            "low_power: 60%\nrules:\n  - {uids: [0], trusted: true, low_power: true, "
            'levers: {"*/*": any}}\n'
        )
        state = {"WATTLOOP_STATE_DIR": f"{self.folder}/levers", "WATTLOOP_VIRTUAL_GPUS": "4"}
        with (self.folder / "daemon.log").open("ab") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "wattloop", "control-daemon", "--rules", str(rules)],
                env={**self.lab.environment_of(node), **self.python, **state},
                stdout=log,
                stderr=log,
            )
        self.lab.wait((self.folder / f"{node}.sock").exists, "no control daemon")
        return daemon

    def limit_w(self, node: str, gpu: int) -> float:
        return shared_gpus(4, RealClock(), self.lab.environment_of(node))[gpu].now().limit_w

    def start_agent(self, node: str) -> None:
        command = [sys.executable, "-m", "wattloop", "agent", "run"]
        with (self.folder / f"{node}.log").open("ab") as log:
            self.agents[node] = subprocess.Popen(
                [*command, "--config", str(self.config), "--node", node],
                env={**self.lab.environment_of(node), **self.python},
                stdout=log,
                stderr=log,
            )
        state = self.folder / "agents" / node / "state.json"
        before = state.stat().st_mtime_ns if state.exists() else 0
        self.lab.wait(
            lambda: state.exists() and state.stat().st_mtime_ns != before, f"no agent on {node}"
        )

    def kill_agent(self, node: str, number: int = signal.SIGKILL) -> None:
        agent = self.agents.pop(node)
        agent.send_signal(number)
        agent.wait()

    @property
    def python(self) -> dict[str, str]:
        path = f"{SRC}:{self.folder / 'site'}"
        return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def submit(self, seconds: float, *options: str, load: float = 0.9) -> int:
        python = f"PYTHONPATH={SRC} {sys.executable} {WORK} {seconds} {load}"
        return self.lab.submit(f"srun sh -c '{python}'", *options)

    def runs(self, node: str) -> list[RunRecord]:
        with open_store(self.folder / "agents" / node / "runs.db") as store:
            return list_runs(store)

    def of_job(self, number: int, nodes: tuple[str, ...] = NODES) -> list[RunRecord]:
        return [r for n in nodes for r in self.runs(n) if r.job and r.job["id"] == str(number)]

    def wait_for_runs(self, number: int, count: int = 1) -> list[RunRecord]:
        self.lab.wait(lambda: len(self.of_job(number)) >= count, f"no run of job {number}")
        return self.of_job(number)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    with found.lab:
        daemon = found.start_daemon("n1")
        for node in NODES:
            found.start_agent(node)
        yield found
        for node in list(found.agents):
            found.kill_agent(node, signal.SIGTERM)
        daemon.terminate()
        daemon.wait()


def gpu_j(record: RunRecord) -> float:
    assert record.result is not None
    return record.result.gpu_energy_j or 0.0


def true_j(fleet: Fleet, node: str, begin_s: float, end_s: float) -> float:
    cards = shared_gpus(4, RealClock(), fleet.lab.environment_of(node))
    return sum(card.true_energy_j(begin_s, end_s) for card in cards)


def test_jobs_that_share_a_node_and_its_rest_add_up_though_the_agent_is_killed(
    fleet: Fleet,
) -> None:
    """Energy of every job, exact by GPU; parts of the node within 1% of the truth, twice killed."""
    pin = ("-w", "n1")
    jobs = {
        fleet.submit(4.0, "--gres=gpu:1", "-c2", *pin): 1,
        fleet.submit(3.0, "--gres=gpu:2", "-c2", "-J", "two cards", *pin): 2,
    }
    short = fleet.submit(1.0, "--gres=gpu:1", "-c1", *pin)
    time.sleep(1.5)
    fleet.kill_agent("n1")
    time.sleep(1.0)
    fleet.start_agent("n1")
    time.sleep(0.7)
    fleet.kill_agent("n1")
    fleet.start_agent("n1")
    found = {number: fleet.wait_for_runs(number)[0] for number in (*jobs, short)}
    fleet.kill_agent("n1", signal.SIGTERM)  # a last row for what no job used
    journals = [read_journal(p) for p in (fleet.folder / "agents/n1/journals").glob("*.journal")]
    rest = next(j for j in journals if j is not None and j.header["kind"] == "unallocated")
    end = finalize_orphaned_run(rest)
    fleet.start_agent("n1")

    for number, cards in jobs.items():
        assert found[number].status == "finished"
        assert found[number].result is not None
        assert len(found[number].result.domains) == cards
    assert found[max(jobs)].name == "two cards"
    assert found[max(jobs)].job["scheduler"]["cluster"].startswith("lab")  # type: ignore[index]  # asserted above
    parts_j = sum(gpu_j(r) for r in fleet.runs("n1")) + sum(
        d["energy_j"] for d in end["result"]["domains"]
    )
    whole_j = true_j(fleet, "n1", rest.header["started_s"], end["time_s"])
    assert parts_j == pytest.approx(whole_j, rel=0.01)
    assert gpu_j(found[short]) > 0.1 * gpu_j(found[min(jobs)])


def test_a_job_on_two_nodes_is_one_job_with_a_run_on_each(fleet: Fleet) -> None:
    """Same job in both agents' stores; `measure.jobs` adds them up."""
    number = fleet.submit(1.0, "--gres=gpu:1", "-N2", "-n2", "-c1")
    records = fleet.wait_for_runs(number, 2)
    assert sorted(record.host for record in records) == list(NODES)
    stores = {n: fleet.folder / "agents" / n / "runs.db" for n in NODES}
    total = 0.0
    for node, path in stores.items():
        with open_store(path) as store:
            members = find_job_members(store, str(number))
            energy = job_energy(members.name, members.records, lambda r: stored_journal(store, r))
            assert [n.host for n in energy.nodes] == [node]
            total += energy.energy_j or 0.0
            stated_j = [r.result.uncertainty_j for r in members.records if r.result is not None]
            assert energy.uncertainty_j == pytest.approx(stated_j[0])
    assert total == pytest.approx(sum(map(gpu_j, records)), rel=0.01)


TRAINING = """
import os, time
from keras.src.callbacks.callback_list import CallbackList
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import this_process
number = int(os.environ["SLURM_JOB_GPUS"])
shared_gpus(number + 1)[number].load(0.9, owner=this_process())
calls = CallbackList()
for i in range(100_000):
    time.sleep(0.02)
    calls.on_train_batch_end(i)
    if i % 100 == 50:
        calls.on_test_begin(); time.sleep(0.5); calls.on_test_end()
"""


def test_metrics_have_the_steps_and_phases_of_a_job(fleet: Fleet, tmp_path: Path) -> None:
    """Promise: `sbatch` of `wattloop run -- python train.py` is enough for the agent to show steps,
    and phases whose joules are the job's.
    """
    folder = tmp_path / "keras/src/callbacks"
    folder.mkdir(parents=True)
    for each in (folder, *folder.parents[:2]):
        (each / "__init__.py").touch()
    (folder / "callback_list.py").write_text(FRAMEWORK)
    (tmp_path / "train.py").write_text(TRAINING)
    port, plain = PortBlock().take(), fleet.config
    fleet.kill_agent("n2", signal.SIGTERM)
    fleet.config = tmp_path / "agent.yaml"
    fleet.config.write_text(plain.read_text() + f"metrics: 127.0.0.1:{port}\n")
    fleet.start_agent("n2")
    store = f"WATTLOOP_STORE={tmp_path}/runs.db PYTHONPATH={SRC}"
    program = f"{sys.executable} -m wattloop run -- {sys.executable} {tmp_path}/train.py"
    number = fleet.lab.submit(f"srun sh -c '{store} {program}'", "--gres=gpu:1", "-c2", "-w", "n2")
    text = ""

    def shown(name: str, **labels: str) -> float:
        return sum(values(text, f"wattloop_job_{name}_total", job_id=str(number), **labels))

    def evaluated() -> bool:
        nonlocal text
        url = f"http://127.0.0.1:{port}/metrics"
        with suppress(OSError), urllib.request.urlopen(url, timeout=600) as answer:
            text = answer.read().decode()
        return shown("phase_seconds", phase="evaluation") > 0.9

    try:
        fleet.lab.wait(evaluated, "no steps of the job")
    finally:
        fleet.lab.run("scancel", str(number))
        fleet.kill_agent("n2", signal.SIGTERM)
        fleet.config = plain
        fleet.start_agent("n2")
    assert shown("steps") >= 100
    job_j, phases_j = shown("energy_joules", in_total="true"), shown("phase_energy_joules")
    assert 0 < phases_j <= job_j
    assert shown("phase_energy_joules", phase="training") > 0.4 * phases_j
    assert shown("phase_energy_joules", phase="evaluation") > 0


def test_arrays_and_requeued_jobs_have_a_run_for_each_time_they_ran(fleet: Fleet) -> None:
    """Tasks of an array are jobs of their own; a requeued job has two runs."""
    array = fleet.submit(0.3, "--array=1-2", "-c1")
    alone = fleet.submit(0.2, "-c8", "-w", "n1")
    again = fleet.submit(1.0, "-c1", "--requeue", "-w", "n2")
    fleet.lab.wait_for_state(again, "RUNNING")
    time.sleep(0.5)
    fleet.lab.run("scontrol", "requeue", str(again))
    fleet.lab.wait(lambda: fleet.lab.job_state(again) == "PENDING", "not requeued")
    time.sleep(2.0)  # within the second of its end Slurm takes the job's credential for revoked
    fleet.lab.run("scontrol", "update", f"JobId={again}", "StartTime=now")
    assert len(fleet.wait_for_runs(again, 2)) == 2
    tasks = [
        r
        for n in NODES
        for r in fleet.runs(n)
        if r.job and r.job["scheduler"].get("array_job") == str(array)
    ]
    (exclusive,) = fleet.wait_for_runs(alone)
    assert exclusive.job is not None
    assert exclusive.job["scheduler"]["exclusive"] == "yes"  # all CPUs, as Slurm counts them
    assert sorted(r.job["scheduler"]["array_task"] for r in tasks if r.job) == ["1", "2"]
    assert not list((fleet.folder / "agents/n2/events").iterdir())


def test_the_cap_that_the_operators_side_chose_is_in_force_before_the_job_and_gone_after_it(
    fleet: Fleet,
) -> None:
    """AdminComment says 150 W; a job that only claims so by its name gets low power instead."""
    pin = ("-w", "n1", "--gres=gpu:1", "-c1", "--hold")
    chosen = fleet.submit(1.0, *pin)
    claimed = fleet.submit(1.0, "-J", 'x AdminComment=wattloop:{"cap_w":400}', *pin)
    fleet.lab.run("scontrol", "update", f"JobId={chosen}", 'AdminComment=wattloop:{"cap_w":150}')
    idle_w = fleet.limit_w("n1", 0)
    for number in (chosen, claimed):
        fleet.lab.run("scontrol", "release", str(number))
    capped = {n: fleet.wait_for_runs(n)[0] for n in (chosen, claimed)}
    limits_w = {}
    for number, record in capped.items():
        assert record.result is not None
        (domain,) = record.result.domains
        limits_w[number] = domain.tdp_w
        assert "enforced power limit" in domain.tdp_note
        assert domain.energy_j is not None
        assert domain.energy_j / record.result.duration_s <= 1.05 * (domain.tdp_w or 0.0)
    assert limits_w == {chosen: 150.0, claimed: pytest.approx(0.6 * idle_w)}
    fleet.lab.wait(
        lambda: {fleet.limit_w("n1", gpu) for gpu in range(4)} == {idle_w}, "caps are left"
    )
    assert "imitate" in (fleet.folder / "n1.log").read_text()


def test_what_a_user_chooses_is_never_taken_for_the_operators(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one word of theirs shift the next: columns are counted in bytes."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, fleet.lab.environment[name])
    forged = '\n   AdminComment=wattloop:{"cap_w":700}'
    # longer than any column that a list could print
    deep = tmp_path.joinpath(*["d" * 200] * 6, f"x{forged}")
    deep.mkdir(parents=True)

    def facts(*options: str) -> JobFacts:
        number = fleet.lab.submit("true", "--hold", *options)
        found, reason = ask_slurm(str(number), caps=True)
        fleet.lab.run("scancel", str(number))
        assert found is not None, reason
        return found

    for option in (f"--chdir={deep}", f"--job-name=x{forged}", f"--comment=x{forged}"):
        assert (facts(option).tampered, facts(option).cap) == (True, {}), option
    named = facts("--job-name=größenwahn", "--comment=wattloop:low-power")
    assert (named.facts["name"], named.low_power, named.tampered) == ("größenwahn", True, False)
