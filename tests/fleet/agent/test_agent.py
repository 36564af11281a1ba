"""Promises of the agent on one node: every job has its energy, whatever happens to either."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.fleet.agent.conftest import Node
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent import AgentService
from wattloop.fleet.agent.config import AgentConfig, agent_context
from wattloop.fleet.agent.job_events import MissingEpilogs
from wattloop.fleet.agent.node_attribution import load_state
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import open_store
from wattloop.store.job_queries import job_page
from wattloop.store.journal import Journal
from wattloop.store.journal_import import import_journal
from wattloop.store.run_record import header_fault
from wattloop.store.runs import list_runs
from wattloop.virtual.node import shared_gpus


def energy_j(journal: Journal, name: str) -> float:
    assert journal.end is not None
    return float(next(d["energy_j"] for d in journal.end["result"]["domains"] if d["name"] == name))


def true_j(gpu: int, journal: Journal) -> float:
    assert journal.end is not None
    card = shared_gpus(2)[gpu]
    return card.true_energy_j(journal.header["started_s"], journal.end["time_s"])


def test_a_short_job_gets_the_energy_of_its_gpu(node: Node) -> None:
    """Half a second between two readings of a second; its card's own energy within the sensor."""
    node.config["interval_s"] = 1.0
    node.start()
    cards = shared_gpus(2)
    node.work(0.1)
    node.begin("7", "1", SLURM_JOB_ACCOUNT="phys", SLURM_CLUSTER_NAME="big")
    cards[1].load(1.0)
    node.work(0.5)
    cards[1].load(0.0)
    node.end("7", 256)
    (journal,) = node.ended("7")
    assert journal.end is not None
    assert [d["name"] for d in journal.header["feeds"][0]["domains"]] == ["gpu:1"]
    assert energy_j(journal, "gpu:1") == pytest.approx(true_j(1, journal), rel=0.15)
    assert journal.end["status"] == "failed"
    assert journal.end["exit_code"] == 1
    assert header_fault(journal.header) == ""  # a server takes it
    assert journal.header["host"] == "n1"
    assert journal.header["user"] == "ada"
    facts = journal.header["job"]["scheduler"]
    assert (facts["cluster"], facts["project"], facts["exclusive"]) == ("big", "phys", "no")


def test_jobs_and_rest_add_up_after_a_kill_and_the_gap_is_kept(node: Node) -> None:
    """The agent is killed while two jobs run and one of them ends; counters and parts still add
    up.
    """
    node.start()
    cards = shared_gpus(2)
    node.begin("1", "0")
    node.begin("2", "1")
    for card in cards:
        card.load(1.0)
    node.work(0.6)
    node.kill()
    time.sleep(1.2)
    cards[1].load(0.0)
    node.end("2")
    time.sleep(1.2)
    node.start()
    cards[0].load(0.0)
    node.work(0.3)
    node.end("1")
    (first,), (second,) = node.ended("1"), node.ended("2")
    node.stop()
    rest = next(j for j in node.journals() if j.header["kind"] == "unallocated")
    end = finalize_orphaned_run(rest)
    for gpu, journal in ((0, first), (1, second)):
        off_j = abs(energy_j(journal, f"gpu:{gpu}") - true_j(gpu, journal))
        assert off_j <= journal.end["result"]["uncertainty_j"] + 1  # type: ignore[index]  # ended
        assert "no agent ran" in " ".join(journal.end["result"]["warnings"])  # type: ignore[index]  # ended
    whole_j = sum(c.true_energy_j(rest.header["started_s"], end["time_s"]) for c in cards)
    parts_j = sum(energy_j(j, f"gpu:{g}") for g, j in ((0, first), (1, second)))
    parts_j += sum(d["energy_j"] for d in end["result"]["domains"])
    assert parts_j == pytest.approx(whole_j, rel=0.01)
    assert [j.header["run_id"] for j in node.of_job("1")] == [first.header["run_id"]]


def test_a_reboot_closes_jobs_as_died_with_what_was_read(node: Node) -> None:
    """The end never came: the node was restarted under the job."""
    node.start()
    node.begin("7", "0")
    node.work(0.8)
    node.kill()
    path = node.home / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "boot_id": "another"}))
    node.start()
    (journal,) = node.ended("7")
    assert journal.end is not None
    assert journal.end["status"] == "died"
    assert energy_j(journal, "gpu:0") > 0
    assert "restarted" in " ".join(journal.end["result"]["warnings"])


def test_a_state_that_is_damaged_loses_no_journal(node: Node) -> None:
    """A power failure may leave half a file: jobs are closed with what their journals hold."""
    node.start()
    node.begin("7", "0")
    node.work(0.6)
    node.kill()
    (node.home / "state.json").write_text('{"version": 1, "boo')
    agent = node.start()
    (journal,) = node.ended("7")
    assert journal.end is not None
    assert journal.end["status"] == "died"
    assert any("state.json" in fault for fault in agent.faults)


def test_strange_events_change_nothing(node: Node) -> None:
    """An end without a start, a start twice, a file without a job, an event of an earlier boot."""
    node.start()
    node.end("99")
    node.begin("7", "0")
    node.begin("7", "0")
    (node.home / "events" / "junk").write_text("hello")
    text = "event=start\nboot=other\njob=8\nwhole=yes\n"
    (node.home / "events" / f"{time.time_ns()}-8-start").write_text(text)
    node.work(0.8)
    node.end("7")
    assert len(node.ended("7")) == 1
    assert not node.of_job("8")
    assert not node.of_job("99")
    assert not list((node.home / "events").iterdir())
    assert (node.home / "strange" / "junk").exists()


def test_a_requeued_job_has_two_runs_even_if_its_first_end_was_never_heard(node: Node) -> None:
    """The second start ends the first run, and says so."""
    node.start()
    node.begin("7", "0")
    node.work(0.4)
    node.begin("7", "0", SLURM_JOB_RESTART_COUNT="1")
    node.work(0.4)
    node.end("7", SLURM_JOB_RESTART_COUNT="1")
    first, second = sorted(node.ended("7", 2), key=lambda j: float(j.header["started_s"]))
    assert "never heard" in " ".join(first.end["result"]["warnings"])  # type: ignore[index]  # ended
    assert first.end["time_s"] == pytest.approx(second.header["started_s"])  # type: ignore[index]  # ended


@pytest.mark.parametrize(
    "changes", [{"SLURM_JOB_UID": "4242"}, {"gpus": "1"}, {"SLURM_JOB_RESTART_COUNT": "1"}]
)
def test_a_number_that_is_given_out_again_is_another_job(
    node: Node, changes: dict[str, str]
) -> None:
    """As after a controller that lost its state: the new job's joules are not the old one's."""
    node.start()
    node.begin("7", "0")
    node.work(0.3)
    node.begin("7", **{"gpus": "0", **changes})
    node.work(0.3)
    node.end("7")
    assert len(node.ended("7", 2)) == 2


def test_a_job_whose_end_was_lost_has_died(node: Node) -> None:
    """A lost end is unknown, not a success, and its run says so."""
    node.start()
    node.begin("7", "0")
    node.work(0.3)
    MissingEpilogs(node.home / "events", "n1", list)._write_end("7")
    (journal,) = node.ended("7")
    assert journal.end is not None
    assert journal.end["status"] == "died"
    assert "never heard" in " ".join(journal.end["result"]["warnings"])


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, node: Node) -> None:
    """A user who can write events can assign GPUs to jobs; only root's hooks may write there."""
    if os.geteuid() != 0:
        pytest.skip("only root's agent has something to lose")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    config = AgentConfig.model_validate({**node.config, "folder": str(shared / "{node}")})
    service = AgentService(agent_context(config.of_node("n1"), "n1", Settings()))
    with pytest.raises(ConfigError, match="others may write it"):
        service.run()


def test_a_gpu_that_no_sensor_has_is_said(node: Node) -> None:
    """Missing is not zero: the run has no energy, and a reason."""
    node.start()
    node.begin("7", "5")
    node.work(0.3)
    node.end("7")
    (journal,) = node.ended("7")
    assert journal.end is not None
    assert journal.end["result"]["energy_j"] is None
    assert "GPU 5" in " ".join(journal.end["result"]["warnings"])


def test_runs_are_jobs_on_the_jobs_page_and_nobodys_run_is_rolled_over(node: Node) -> None:
    """Folded like every other run: cluster, partition, project, label, status."""
    node.config["unallocated_hours"] = 0.5 / 3600
    node.start()
    node.begin("7", "0", SLURM_JOB_ACCOUNT="phys")
    shared_gpus(2)[0].load(1.0)
    node.work(0.7)
    shared_gpus(2)[0].load(0.0)
    node.end("7")
    node.ended("7")
    node.work_until(lambda: sum(j.header["kind"] == "unallocated" for j in node.journals()) >= 2)
    with open_store(node.folder / "runs.db") as store:
        for path in sorted((node.home / "journals").glob("*.journal")):
            import_journal(store, path, finalize_orphaned_run)
        rows = job_page(store)
        runs = list_runs(store)
    row = next(r for r in rows if r["job_id"] == "7")
    assert (row["cluster"], row["partition"], row["project"]) == ("test", "gpu", "phys")
    assert row["label"] in ("medium", "high")
    assert row["status"] == "finished"
    assert row["exclusive"] is False
    nobody = [r for r in runs if r.kind == "unallocated" and r.status == "finished"]
    assert nobody
    assert len(rows) == 1


def test_a_full_disk_or_readonly_folder_is_said_and_nothing_is_counted_twice(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the state no row is written; when there is room again, all is there."""
    agent = node.start()
    node.begin("7", "0")
    node.work(0.5)

    def full(path: Path, state: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("wattloop.fleet.agent.agent.save_state", full)
        node.work(0.5)
    assert any("No space left" in fault for fault in agent.faults)
    node.work(0.3)
    node.end("7")
    (journal,) = node.ended("7")
    assert energy_j(journal, "gpu:0") == pytest.approx(true_j(0, journal), rel=0.1)


def test_the_state_is_private_and_small(node: Node) -> None:
    """It names users and jobs; a second's work writes a few kilobytes."""
    node.start()
    node.begin("7", "0")
    node.work(0.3)
    path = node.home / "state.json"
    assert path.stat().st_mode & 0o077 == 0
    assert path.stat().st_size < 20_000
    state, reason = load_state(path)
    assert not reason
    assert state is not None
    assert [kept.plan.job for kept in state.runs] == ["7", ""]
    assert node.home.stat().st_mode & 0o077 == 0
