"""Promises of programs with several processes: the store's total is what the machine used."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.exact_meter import exact_meter
from tests.support.exact_meter.exact_meter import HIGH_W, LOW_W, energy_j
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import open_store
from wattloop.store.job_queries import job_totals, stored_journal
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import RunRecord, list_runs

SRC = Path(__file__).parents[2] / "src"


@dataclass
class Node:
    """A machine whose package changes between 20 and 60 W every second."""

    folder: Path
    environment: dict[str, str]

    def start(self, program: str, *words: str, name: str = "program.py") -> subprocess.Popen[str]:
        """Start a Python program of this machine."""
        path = self.folder / name
        path.write_text(textwrap.dedent(program))
        return self.launch(sys.executable, str(path), *words)

    def launch(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            env=self.environment,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, program: str) -> None:
        process = self.start(program)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors

    def records(self) -> list[RunRecord]:
        with open_store(str(self.folder / "runs.db")) as store:
            list(import_orphaned(store, finalize_orphaned_run))
            return sorted(list_runs(store), key=lambda r: r.started_s)

    def check_total(self, *, one_job: bool = False) -> list[RunRecord]:
        """The store's total against what the package used while at least one run went on.

        Runs of `one_job` hand their counters on. Of other runs at the same time, each knows the
        energy of its part by its own readings, a tenth of a second apart unless it had to wait.
        """
        records = self.records()
        with open_store(str(self.folder / "runs.db")) as store:
            total_j = job_totals(store).energy_j
        true_j = 0.0
        until_s = -1.0
        for record in records:
            assert record.ended_s is not None
            begin_s = max(until_s, record.started_s)
            if record.ended_s > begin_s:
                true_j += energy_j(record.ended_s) - energy_j(begin_s)
                until_s = record.ended_s
        # Of ranks that start together one becomes the leader: it counts from its own start, not
        # from that of a rank that was a moment earlier.
        late_s = min(r.started_s for r in records if r.counted) - records[0].started_s
        assert late_s < 60.0  # their start on a busy machine
        late_j = energy_j(records[0].started_s + late_s) - energy_j(records[0].started_s)
        if not one_job:
            # between two readings the power changes once at most, which bounds the error
            holes_s = [max(0.0, self._longest_hole_s(record) - 0.15) for record in records]
            late_j += (HIGH_W - LOW_W) / 4 * sum(holes_s)
        sys.stdout.write(f"total {total_j:.2f} J, truth {true_j:.2f} J, {late_j:.2f} J late\n")
        most_j = 1.01 * true_j + (0.0 if one_job else late_j)
        assert true_j - late_j - 0.01 * true_j <= total_j <= most_j
        return records

    def _longest_hole_s(self, record: RunRecord) -> float:
        with open_store(str(self.folder / "runs.db")) as store:
            journal = stored_journal(store, record)
        assert journal is not None
        times_s = [time_s for block in journal.blocks for time_s in block.times_s]
        return max((after - before for before, after in pairwise(times_s)), default=0.0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "run").mkdir()
    hidden = ("WATTLOOP_JOB", "WATTLOOP_RUN", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
        "WATTLOOP_NODE_RUNS": str(tmp_path / "node"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        **exact_meter.environment(SRC),
        "OMP_NUM_THREADS": "1",
    }
    return Node(tmp_path, environment)


def test_ddp_of_lightning(node: Node) -> None:
    """`Trainer(devices=2, strategy="ddp")` with the callback, and nothing around it."""
    pytest.importorskip("lightning", reason="Lightning is not installed")
    node.run(
        """
        import time, torch, warnings
        import lightning.pytorch as pl
        from wattloop.integrations.lightning import EnergyCallback
        warnings.simplefilter("ignore")

        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch, index):
                time.sleep(0.1)
                return self.layer(batch[0]).square().mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        if __name__ == "__main__":
            data = torch.utils.data.TensorDataset(torch.randn(80, 4))
            trainer = pl.Trainer(
                max_epochs=6, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                enable_progress_bar=False, enable_model_summary=False,
                enable_checkpointing=False, callbacks=[EnergyCallback()],
            )
            trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
        """
    )
    first, second = node.check_total(one_job=True)
    assert first.job is not None and second.job is not None
    assert first.job["id"] == second.job["id"]
    assert sorted(r.counted for r in (first, second)) == [False, True]


RANKS = """
import os, sys, time, torch, wattloop
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, folder, joined):
    if joined:
        method = f"file://{folder}/meet"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
        dist.barrier()
    with wattloop.measure("rank"):
        time.sleep(2.5 + 0.5 * rank)
    if joined:
        dist.barrier()

if __name__ == "__main__":
    mp.spawn(work, args=(os.getcwd(), JOINED), nprocs=2)
"""


@pytest.mark.parametrize("joined", [True, False], ids=["torch.distributed", "processes only"])
def test_spawn_of_torch(node: Node, joined: bool) -> None:
    """`torch.multiprocessing.spawn`, with and without variables that make its ranks one job."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    node.run(RANKS.replace("JOINED", str(joined)))
    records = node.check_total(one_job=joined)
    jobs = [record.job for record in records]
    assert len(jobs) == 2 and jobs[0] is not None and jobs[1] is not None
    assert jobs[0]["id"] == jobs[1]["id"]
    assert jobs[0]["kind"] == ("torch" if joined else "multiprocessing")


def test_pool_of_multiprocessing(node: Node) -> None:
    """Workers that measure one task after the other, at any time."""
    node.run(
        """
        import multiprocessing, time, wattloop

        def task(number):
            with wattloop.measure(f"task {number}"):
                time.sleep(0.4 + 0.25 * (number % 3))

        if __name__ == "__main__":
            with multiprocessing.Pool(3) as pool:
                pool.map(task, range(15), chunksize=1)
        """
    )
    records = node.check_total()
    assert len(records) == 15
    assert any(record.left_out > 0.5 for record in records)
    assert {(record.job or {}).get("kind") for record in records} == {"multiprocessing"}


def test_workers_of_joblib(node: Node) -> None:
    """`joblib.Parallel` of measured functions."""
    pytest.importorskip("joblib", reason="joblib is not installed")
    node.run(
        """
        import time, joblib, wattloop

        def task(number):
            with wattloop.measure(f"task {number}"):
                time.sleep(1.0 + 0.3 * number)

        if __name__ == "__main__":
            joblib.Parallel(n_jobs=2)(joblib.delayed(task)(i) for i in range(4))
        """
    )
    records = node.check_total()
    assert len({(record.job or {}).get("id") for record in records}) == 1
    assert (records[0].job or {}).get("kind") == "joblib"


def test_workers_of_ray(node: Node) -> None:
    """Tasks of Ray that measure themselves."""
    pytest.importorskip("ray", reason="Ray is not installed")
    node.environment["RAY_USAGE_STATS_ENABLED"] = "0"
    node.run(
        """
        import time, ray, wattloop

        @ray.remote
        def task(number):
            with wattloop.measure(f"task {number}"):
                time.sleep(1.5 + 0.5 * number)

        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
        ray.get([task.remote(i) for i in range(3)])
        ray.shutdown()
        """
    )
    records = node.check_total()
    assert len(records) == 3
    assert len({(record.job or {}).get("id") for record in records}) == 1
    assert (records[0].job or {}).get("kind") == "ray"


def test_two_runs_at_once(node: Node) -> None:
    """Two unrelated programs are both marked, with their overlap."""
    words = [sys.executable, "-m", "wattloop", "run", "-q", "--name"]
    until_both = "until [ -e both ]; do sleep 0.02; done; sleep 2"
    first = node.launch(*words, "first", "--", "sh", "-c", until_both)
    _until_listed(node, 1)
    second = node.launch(*words, "second", "--", "sh", "-c", "touch both; sleep 4")
    for process in (first, second):
        assert process.wait(timeout=300) == 0
    one, two = node.check_total()
    assert one.ended_s is not None and one.shared is not None and two.shared is not None
    overlap_s = one.ended_s - two.started_s
    for record, other in ((one, two), (two, one)):
        assert record.shared is not None and record.duration_s is not None
        assert record.shared["overlap_s"] == pytest.approx(overlap_s, abs=0.02)
        share = record.shared["overlap_s"] / record.duration_s
        assert record.shared["share"] == pytest.approx(share, rel=0.02)
        assert [run["run_id"] for run in record.shared["runs"]] == [other.run_id]
        assert record.result is not None
        assert any(text.startswith("shared: ") for text in record.result.warnings)
    assert one.left_out == 0.0
    shown = node.launch(sys.executable, "-m", "wattloop", "runs", "list").communicate()[0]
    assert "left out" in shown
    shown = node.launch(sys.executable, "-m", "wattloop", "runs", "show", one.run_id)
    assert f"in use by run {two.run_id}" in shown.communicate()[0]


def test_leader_that_is_killed(node: Node) -> None:
    """The run that began first is killed, and the other counts the rest."""
    program = """
        import os, sys, time, wattloop
        with wattloop.measure(sys.argv[1]):
            while not os.path.exists("end"):
                time.sleep(0.02)
        """
    first = node.start(program, "first", name="first.py")
    _until_listed(node, 1)
    second = node.start(program, "second", name="second.py")
    begin_s = time.monotonic()
    _until_listed(node, 2)
    time.sleep(1.5)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    time.sleep(time.monotonic() - begin_s)  # the same time with and without the first run
    (node.folder / "end").touch()
    assert second.wait(timeout=300) == 0
    one, two = node.check_total()
    assert (one.status.value, two.status.value) == ("died", "finished")
    assert 0.1 < two.left_out < 0.9


def _until_listed(node: Node, count: int) -> None:
    """Wait until this many processes list a run that counts."""
    limit_s = time.monotonic() + 120
    folder = node.folder / "node"
    while len(list(folder.glob("[0-9]*.json"))) < count:
        assert time.monotonic() < limit_s, "no run was listed"
        time.sleep(0.02)
    time.sleep(1.0)
