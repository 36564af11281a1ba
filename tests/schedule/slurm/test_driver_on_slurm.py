"""Promises of a driver on a real Slurm: it starts the policy's jobs, and Slurm runs without it."""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.support.slurm_lab import SlurmLab, why_no_slurm
from wattloop.core.errors import ConfigError, SlurmError
from wattloop.schedule.actions import Action, Preempt, Recap, Start
from wattloop.schedule.driver.event_log import RoundReport
from wattloop.schedule.driver.inventory import SchedulerJob
from wattloop.schedule.driver.managed_cluster import DriverSettings
from wattloop.schedule.driver.rounds import DriverStopped, run_loop
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.driver import SlurmDriver
from wattloop.schedule.view import ClusterView

from .lab_driver import client_of, driver_of, events_of, start_driver

pytestmark = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "-")

MINUTE = "--time=1"
ONE_GPU = "--gres=gpu:1"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    extra = "PartitionName=other Nodes=n2\nKillWait=1"
    with SlurmLab(tmp_path_factory.mktemp("lab"), nodes=2, gpus=2, extra=extra) as found:
        yield found


@pytest.fixture(autouse=True)
def _empty_queue(lab: SlurmLab) -> Iterator[None]:
    """Check that every test leaves a Slurm without jobs and without a gate."""
    yield
    for user in ("root", "nobody"):
        lab.run("scancel", f"--user={user}", check=False)
    lab.wait_for_jobs()
    for each in client_of(lab).reservations():
        lab.run("scontrol", "delete", f"ReservationName={each.name}", check=False)


def jobs_of(lab: SlurmLab) -> dict[str, SchedulerJob]:
    return {job.key: job for job in client_of(lab).jobs()}


def rounds_until(driver: SlurmDriver, done: Callable[[], bool]) -> None:
    """Run rounds until a condition holds."""
    give_up_s = time.monotonic() + 120
    while not done():
        assert time.monotonic() < give_up_s, "it does not come to be"
        driver.round()
        time.sleep(0.1)


def is_up(said: Path, times: int) -> bool:
    """Return true once a driver has run for so many rounds."""
    return said.read_text().count("places jobs") >= times


class Never(Policy):
    """A policy that starts nothing."""

    name = "never"

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Return no actions."""
        return ()


class Scripted(Policy):
    """A policy with a script of actions, by the names of jobs."""

    name = "scripted"
    needs_free_gpus = False

    def __init__(self, say: Callable[[ClusterView], Sequence[Action]]) -> None:
        self.say = say

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Return the script's actions."""
        return self.say(view)


def test_jobs_start_only_when_and_where_the_policy_says(lab: SlurmLab, tmp_path: Path) -> None:
    """The gate keeps GPUs free, and a start gets the node that was chosen for it."""
    chosen: list[str] = []

    def say(view: ClusterView) -> Sequence[Action]:
        return [Start(n, 0) for n in view.queue.in_order() if view.jobs.names[n] in chosen]

    driver = driver_of(lab, tmp_path, Scripted(say))
    driver.begin()
    first, second = (str(lab.submit("sleep 60", ONE_GPU, MINUTE)) for _ in range(2))
    driver.round()
    time.sleep(1.0)  # long enough for Slurm to start them, if it could
    assert {job.state for job in jobs_of(lab).values()} == {"PENDING"}
    chosen.append(second)
    rounds_until(driver, lambda: jobs_of(lab)[second].has_machines)
    assert jobs_of(lab)[first].is_pending
    opened = driver.state.released[second]
    assert [name for name, _ in jobs_of(lab)[second].placed] == list(opened.nodes)
    driver.restore()
    lab.wait_for_state(int(first), "RUNNING")
    # while a running job has it, Slurm lists it beyond its end
    assert all(each.end_s <= time.time() for each in client_of(lab).reservations())


def test_one_call_starts_a_job_of_any_user(lab: SlurmLab, tmp_path: Path) -> None:
    """A start is one scontrol call and the lease; the job's user passes the gate."""
    driver = driver_of(lab, tmp_path)
    driver.begin()
    mine = str(lab.submit("sleep 60", ONE_GPU, MINUTE, user="nobody"))
    report = driver.round()
    assert report.starts == [mine]
    assert report.calls <= 4  # squeue, sinfo the first time, the users of the gate, the job
    lab.wait_for_state(int(mine), "RUNNING")
    assert driver.round().calls <= 2  # the queue, and the lease once it is old
    driver.restore()


def test_many_jobs_start_in_one_round(lab: SlurmLab, tmp_path: Path) -> None:
    """All GPUs at once, the next ones on standby, and nothing refused."""
    driver = driver_of(lab, tmp_path)
    driver.begin()
    jobs = [str(lab.submit("sleep 60", ONE_GPU, MINUTE)) for _ in range(8)]
    assert driver.round().starts == jobs[:4]
    lab.wait(lambda: all(jobs_of(lab)[job].has_machines for job in jobs[:4]), "they do not start")
    report = driver.round()
    assert report.standby == jobs[4:]
    assert report.calls <= 3  # the queue, the lease, and all four in one
    assert driver.round().calls <= 2  # the queue, and the lease once it is old
    assert "refused" not in {event["event"] for event in events_of(tmp_path)}
    lab.run("scancel", jobs[0])
    lab.wait_for_state(int(jobs[4]), "RUNNING")  # without another round
    driver.restore()


def test_a_user_who_names_the_gate_is_turned_away(lab: SlurmLab, tmp_path: Path) -> None:
    """Naming the reservation has no effect: Slurm or the driver refuses it, and it is logged."""
    driver = driver_of(lab, tmp_path, Never())
    driver.begin()
    driver.gate.extend(["nobody"])
    named = f"--reservation={driver.gate.name}"
    first = lab.submit("sleep 60", "--gres=gpu:2", "--nodes=2", MINUTE, named)
    lab.wait_for_state(first, "RUNNING")  # it has all GPUs, so that the second one waits
    blocked = str(lab.submit("sleep 60", "--gres=gpu:2", "--nodes=2", MINUTE, named, user="nobody"))
    driver.round()
    assert jobs_of(lab)[blocked].reservation == ""
    assert any(
        blocked in e.get("message", "") for e in events_of(tmp_path) if e["event"] == "refused"
    )
    driver.restore()


def test_jobs_of_other_partitions_are_let_through(lab: SlurmLab, tmp_path: Path) -> None:
    """Jobs outside the driver's partition start as Slurm decides, on shared nodes, and count as
    busy.
    """
    driver = driver_of(lab, tmp_path, Never())
    driver.begin()
    theirs = str(lab.submit("sleep 60", ONE_GPU, "--partition=other", MINUTE))
    no_gpu = str(lab.submit("sleep 60", MINUTE))
    idle_w = driver.round().power_w
    lab.wait_for_state(int(theirs), "RUNNING")
    lab.wait_for_state(int(no_gpu), "RUNNING")
    report = driver.round()
    assert report.free_gpus == 3
    assert report.power_w > idle_w
    driver.restore()


def test_a_stopped_job_waits_again_and_the_other_takes_its_gpus(
    lab: SlurmLab, tmp_path: Path
) -> None:
    """Preempt is a requeue, without Slurm's two minutes of waiting."""
    turn: list[str] = []

    def say(view: ClusterView) -> Sequence[Action]:
        names = view.jobs.names
        stops = [Preempt(n) for n in view.running if names[n] not in turn]
        return [*stops, *(Start(n, 0) for n in view.queue.in_order() if names[n] in turn)]

    driver = driver_of(lab, tmp_path, Scripted(say))
    driver.begin()
    whole = ("--gres=gpu:2", "--nodes=2", MINUTE, "--requeue")
    low = str(lab.submit("sleep 60", *whole))
    turn.append(low)
    rounds_until(driver, lambda: jobs_of(lab)[low].has_machines)
    high = str(lab.submit("sleep 60", *whole))
    turn[:] = [high]
    rounds_until(driver, lambda: jobs_of(lab)[high].has_machines)
    assert jobs_of(lab)[low].is_pending
    rounds_until(driver, lambda: jobs_of(lab)[low].reason != "BeginTime")
    turn[:] = [low, high]
    lab.run("scancel", high)
    rounds_until(driver, lambda: jobs_of(lab)[low].has_machines)
    assert jobs_of(lab)[low].restarts == 1
    driver.restore()


def test_the_gpu_count_of_a_malleable_job_is_chosen(lab: SlurmLab, tmp_path: Path) -> None:
    """With a comment that allows 1 or 2 GPUs the job gets the policy's choice."""

    def say(view: ClusterView) -> Sequence[Action]:
        jobs = view.queue.in_order()
        return [Start(n, int(view.queue.options(n).gpus.argmin())) for n in jobs]

    driver = driver_of(lab, tmp_path, Scripted(say))
    driver.begin()
    comment = "--comment=wattloop:model=resnet-50,batch=128,samples=1e6,gpus=1|2,precision=tf32"
    job = str(lab.submit("sleep 60", "--gres=gpu:2", comment, MINUTE))
    rounds_until(driver, lambda: jobs_of(lab)[job].has_machines)
    assert jobs_of(lab)[job].gpus == 1
    driver.restore()


def test_caps_are_written_where_users_cannot(lab: SlurmLab, tmp_path: Path) -> None:
    """AdminComment has the cap, other text in it stays, and recaps work too."""

    class Capping(Scripted):
        sets_caps = True

    may_raise: list[bool] = []

    def say(view: ClusterView) -> Sequence[Action]:
        starts = [Start(n, len(view.queue.options(n)) - 1) for n in view.queue.in_order()]
        return starts or [Recap(n, 0) for n, r in view.running.items() if r.option and may_raise]

    driver = driver_of(lab, tmp_path, Capping(say))
    driver.begin()
    comment = "--comment=wattloop:model=resnet-50,batch=128,samples=1e6,caps=0.7|1,precision=tf32"
    job = str(lab.submit("sleep 60", ONE_GPU, comment, MINUTE))
    lab.run("scontrol", "update", f"JobId={job}", "AdminComment=ticket 12")
    rounds_until(driver, lambda: jobs_of(lab)[job].has_machines)
    tdp_w = driver.site.known.cluster.types[0].tdp_w
    assert jobs_of(lab)[job].admin_comment == f'ticket 12 wattloop:{{"cap_w":{0.7 * tdp_w:.1f}}}'
    may_raise.append(True)
    rounds_until(driver, lambda: f'"cap_w":{tdp_w:.1f}' in jobs_of(lab)[job].admin_comment)
    driver.restore()


def test_a_budget_puts_starts_off_whatever_the_policy(lab: SlurmLab, tmp_path: Path) -> None:
    """FIFO ignores budgets, but the driver enforces this one."""
    driver = driver_of(lab, tmp_path, budget="900 W")  # 4 x 52 W idle; a start adds up to 348 W
    driver.begin()
    jobs = [lab.submit("sleep 60", ONE_GPU, MINUTE) for _ in range(4)]
    rounds_until(driver, lambda: sum(j.has_machines for j in jobs_of(lab).values()) > 0)
    for _ in range(3):
        report = driver.round()
        assert report.power_w <= 900
    running = sum(job.has_machines for job in jobs_of(lab).values())
    assert 0 < running < len(jobs)
    assert report.short_of_power
    driver.restore()


@pytest.mark.parametrize("answer", ["throws", "nonsense"])
def test_a_policy_that_fails_is_stepped_back_from(
    lab: SlurmLab, tmp_path: Path, answer: str
) -> None:
    """Its rounds do nothing; after some of them the driver ends and Slurm continues by itself."""

    jobs: list[int] = []

    def say(view: ClusterView) -> Sequence[Action]:
        if not jobs:
            jobs.append(lab.submit("sleep 60", ONE_GPU, MINUTE))
        if answer == "throws":
            raise ZeroDivisionError("no energy")
        return 42  # type: ignore[return-value]  # what a bad policy does

    driver = driver_of(lab, tmp_path, Scripted(say))
    with pytest.raises(DriverStopped, match="scripted failed 5 times"):
        run_loop(driver, threading.Event())
    lab.wait_for_state(jobs[0], "RUNNING")
    assert not [each for each in client_of(lab).reservations() if each.is_active]
    assert sum(event["event"] == "fault" for event in events_of(tmp_path)) == 5


def test_slurmctld_may_restart(lab: SlurmLab, tmp_path: Path) -> None:
    """The driver waits and continues, and no job is lost."""
    driver = driver_of(lab, tmp_path)
    driver.client.timeout_s = 1.0
    stop = threading.Event()
    thread = threading.Thread(target=run_loop, args=(driver, stop))
    thread.start()
    try:
        lab.wait(lambda: bool(client_of(lab).reservations()), "no gate")
        lab.kill("slurmctld", signal.SIGTERM)
        time.sleep(1.0)
        lab.start("slurmctld")
        job = lab.submit("sleep 60", ONE_GPU, MINUTE)
        lab.wait_for_state(job, "RUNNING")
    finally:
        stop.set()
        thread.join()


def test_two_drivers_do_not_share_nodes(lab: SlurmLab, tmp_path: Path) -> None:
    """Neither with one file nor with one gate each."""
    (tmp_path / "other").mkdir()
    first, second = driver_of(lab, tmp_path), driver_of(lab, tmp_path / "other")
    first.begin()
    with pytest.raises(ConfigError, match="another 'wattloop slurm run'"):
        driver_of(lab, tmp_path)
    with pytest.raises(SlurmError, match="another driver"):
        second.begin()
    first.restore()
    second.begin()
    second.restore()


def test_killed_at_any_moment_slurm_goes_on_and_nothing_is_held(
    lab: SlurmLab, tmp_path: Path
) -> None:
    """kill -9 a few times, a restart, and a last kill: every job runs, and none stays held."""
    jobs: list[int] = []
    for times, delay_s in enumerate((0.05, 0.4, 0.9), start=1):
        process = start_driver(lab, tmp_path, "--policy", "zeus")
        lab.wait(partial(is_up, tmp_path / "driver.out", times), "no driver")
        jobs += [lab.submit("sleep 0.3", ONE_GPU, MINUTE) for _ in range(6)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay_s)
        process.kill()
        process.wait()
    held = [job.key for job in jobs_of(lab).values() if job.priority == 0]
    assert held == []
    lab.wait_for_jobs()  # without a driver
    ended = (lab.folder / "finished.txt").read_text().split()
    assert all(f"JobId={job}" in ended for job in jobs)


def test_an_unknown_user_does_not_exclude_the_others(lab: SlurmLab, tmp_path: Path) -> None:
    """Slurm refuses the whole list because of one name; the others are added one by one."""
    driver = driver_of(lab, tmp_path, Never())
    driver.begin()
    driver.gate.extend(["nobody", "no-such-user"])
    (found,) = client_of(lab).reservations()
    assert set(found.users) == {"root", "nobody"}
    assert driver.gate.unknown_users == {"no-such-user"}
    driver.restore()


def test_a_restarted_driver_holds_jobs_that_slurm_did_not_start(
    lab: SlurmLab, tmp_path: Path
) -> None:
    """GPUs are free but cores are not: the second driver cancels the first one's starts."""
    for _ in lab.node_names:
        lab.submit("sleep 60", "--cpus-per-task=8", MINUTE)
    lab.wait(lambda: all(job.has_machines for job in jobs_of(lab).values()), "no cores taken")
    first = driver_of(lab, tmp_path)
    first.begin()
    job = str(lab.submit("sleep 60", ONE_GPU, MINUTE))
    first.round()
    assert jobs_of(lab)[job].required_nodes
    first.state.unlock()  # as if killed: no cleanup
    settings = DriverSettings(interval_s=0.3, lease_s=5.0, patience_s=0.0)
    second = driver_of(lab, tmp_path, settings=settings)
    assert second.gate.name == first.gate.name
    second.begin()
    second.round()
    left = jobs_of(lab)[job]
    assert (left.is_pending, left.required_nodes, left.reservation) == (True, "", "")
    refusals = [e["message"] for e in events_of(tmp_path) if e["event"] == "refused"]
    assert any(f"job {job}: Slurm does not start it" in said for said in refusals)
    second.restore()


def test_a_job_on_its_way_is_not_held_when_the_gate_ends(lab: SlurmLab, tmp_path: Path) -> None:
    """It was killed after it released a job that cannot start yet: the job starts when it can."""
    for _ in lab.node_names:
        lab.submit("sleep 60", "--cpus-per-task=8", "--job-name=cores", MINUTE)
    lab.wait(lambda: all(job.has_machines for job in jobs_of(lab).values()), "no cores taken")
    driver = driver_of(lab, tmp_path)
    driver.begin()
    job = lab.submit("sleep 60", ONE_GPU, MINUTE)
    driver.round()
    assert jobs_of(lab)[str(job)].reservation == driver.gate.name
    # Slurm drops an ended reservation half a minute later, and holds its jobs without this flag.
    assert "NO_HOLD_JOBS_AFTER" in lab.run("scontrol", "show", "reservation")
    # From here on no process extends the gate.
    lab.wait(lambda: not client_of(lab).reservations()[0].is_active, "the gate does not end")
    assert jobs_of(lab)[str(job)].priority != 0
    lab.run("scancel", "--name=cores")
    lab.wait_for_state(job, "RUNNING")


def test_on_an_idle_cluster_rounds_follow_each_other_sooner_than_told(
    lab: SlurmLab, tmp_path: Path
) -> None:
    """A job submitted there waits for the next round."""
    driver = driver_of(lab, tmp_path, settings=DriverSettings(interval_s=5.0, lease_s=20.0))
    stop, looks_s = threading.Event(), list[float]()

    def on_round(report: RoundReport) -> None:
        looks_s.append(report.at_s)
        if len(looks_s) == 10 or (len(looks_s) > 1 and looks_s[-1] - looks_s[-2] < 4.0):
            stop.set()

    run_loop(driver, stop, on_round=on_round)
    driver.state.unlock()
    assert looks_s[-1] - looks_s[-2] < 4.0
