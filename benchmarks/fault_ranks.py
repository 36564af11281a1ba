"""Many ranks on one node, compared with a single watcher and the true energy."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fault_machine import FaultMachine, fault_machine, wait_for
from support.nvml_stub import StubNvml

GPUS = 2
RANK = """
import pathlib, sys, time, wattloop
folder, rank = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{rank}.up").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
with wattloop.measure("rank"):
    (folder / f"{rank}.begun").touch()
    while not (folder / "stop").exists():
        time.sleep(0.02)
"""
WAITING = """
import pathlib, sys, time
folder, rank = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{rank}.begun").touch()
while not (folder / "stop").exists():
    time.sleep(0.02)
"""
WATCHER = """
import json, sys, time
from wattloop.measure.session import Session
session = Session.open(name="watcher", in_process=False, keep=False)
print("ready", flush=True)
begin_s, end_s = map(float, sys.stdin.readline().split())
print(json.dumps(session.between(begin_s, end_s).to_dict()), flush=True)
session.close()
"""


@dataclass(frozen=True)
class RanksOutcome:
    """Results of one job."""

    how: str
    ranks: int
    total_j: float
    watcher_j: float
    true_j: float
    naive_j: float
    """The totals of all ranks, added as if each had a machine of its own."""
    counted: int

    @property
    def watcher_error_pct(self) -> float:
        return 100 * abs(self.total_j - self.watcher_j) / self.watcher_j

    @property
    def true_error_pct(self) -> float:
        return 100 * abs(self.total_j - self.true_j) / self.true_j

    @property
    def naive_error_pct(self) -> float:
        return 100 * abs(self.naive_j - self.watcher_j) / self.watcher_j


def ranks_outcome(ranks: int, lasting_s: float) -> RanksOutcome:
    """Run ranks that measure themselves; the total is that of `wattloop runs job`."""
    with _node(ranks) as node:
        node.start(lambda rank: [sys.executable, "-c", RANK, str(node.meeting), str(rank)])
        node.work(lasting_s)
        return node.outcome("measure() in every rank")


def killed_owner_outcome(ranks: int, lasting_s: float) -> RanksOutcome:
    """Run the same, but kill the rank that reads the devices for all half-way."""
    with _node(ranks) as node:
        node.start(lambda rank: [sys.executable, "-c", RANK, str(node.meeting), str(rank)])
        node.work(lasting_s, kill_first=True)
        return node.outcome("the same, the rank that counts killed half-way")


def commands_outcome(ranks: int, lasting_s: float) -> RanksOutcome:
    """Run ranks started by `wattloop run --json`; the total is the sum of those that count."""
    with _node(ranks) as node:

        def command(rank: int) -> list[str]:
            program = [sys.executable, "-S", "-c", WAITING, str(node.meeting), str(rank)]
            target = str(node.meeting / f"{rank}.json")
            return node.machine.command("run", "-q", "--json", target, "--", *program)

        node.start(command)
        node.work(lasting_s)
        found = [json.loads(path.read_text()) for path in node.meeting.glob("*.json")]
        counted = [run for run in found if run["counted"]]
        return node.outcome(
            "wattloop run around every rank, sum of those that count",
            total_j=sum(run["energy_j"] for run in found if run["energy_j"] is not None),
            spans_of=[run["run_id"] for run in counted],
        )


@contextmanager
def _node(ranks: int) -> Iterator["_Node"]:
    with (
        tempfile.TemporaryDirectory() as folder,
        fault_machine(Path(folder)) as machine,
        StubNvml(Path(folder), gpus=GPUS) as stub,
    ):
        node = _Node(machine, stub, ranks)
        try:
            yield node
        finally:
            for process in (*node.processes, node.watcher):
                process.kill()
                process.wait()


class _Node:
    """A machine with GPUs, a watcher outside the job, and the ranks."""

    def __init__(self, machine: FaultMachine, stub: StubNvml, ranks: int) -> None:
        self.machine = machine
        self.stub = stub
        self.ranks = ranks
        self.meeting = machine.folder / "meeting"
        self.meeting.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []
        stub.square(0, 100.0, 500.0, 1.3)
        stub.constant(1, 250.0)
        self.environment = {
            **machine.environment,
            **stub.environment,
            "WATTLOOP_METERS": "rapl,nvidia",
        }
        self.watcher = subprocess.Popen(
            [sys.executable, "-c", WATCHER],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.watcher.stdout is not None
        assert self.watcher.stdout.readline() == "ready\n"

    def start(self, command: object) -> None:
        for rank in range(self.ranks):
            launched = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29500",
            }
            self.processes.append(
                subprocess.Popen(
                    command(rank),  # type: ignore[operator]  # any callable
                    env={**self.environment, **launched},
                    stdout=subprocess.DEVNULL,
                )
            )

    def work(self, lasting_s: float, *, kill_first: bool = False) -> None:
        """Run all ranks: they begin, work and end together."""
        begun = self.meeting.glob
        if "measure" in str(self.processes[0].args):
            wait_for(lambda: len(list(begun("*.up"))) == self.ranks)
        (self.meeting / "go").touch()
        wait_for(lambda: len(list(begun("*.begun"))) == self.ranks)
        time.sleep(lasting_s / 2)
        if kill_first:
            os.kill(self.processes[0].pid, signal.SIGKILL)
        time.sleep(lasting_s / 2)
        (self.meeting / "stop").touch()
        for process in self.processes:
            process.wait(timeout=120)

    def outcome(
        self, how: str, total_j: float | None = None, spans_of: list[str] | None = None
    ) -> RanksOutcome:
        shown = self.machine.wattloop("runs", "job", "--json", "-")
        if shown.returncode != 0:
            raise RuntimeError(shown.stderr)
        job = json.loads(shown.stdout)
        (node,) = job["nodes"]
        listed = self.machine.wattloop("runs", "list", "--limit", "0", "--json", "-")
        runs = json.loads(listed.stdout)["runs"]
        begin_s, end_s = node["begin_s"], node["end_s"]
        if spans_of:
            details = [
                json.loads(self.machine.wattloop("runs", "show", r, "--json", "-").stdout)
                for r in spans_of
            ]
            begin_s = min(d["result"]["begin_s"] for d in details)
            end_s = max(d["result"]["end_s"] for d in details)
        true_j = self.machine.cpu_energy_j(begin_s, end_s)
        true_j += sum(self.stub.true_energy_j(gpu, begin_s, end_s) for gpu in range(GPUS))
        return RanksOutcome(
            how=how,
            ranks=len(node["runs"]),
            total_j=job["energy_j"] if total_j is None else total_j,
            watcher_j=self._watched_j(begin_s, end_s),
            true_j=true_j,
            naive_j=sum(run["energy_j"] or 0.0 for run in runs),
            counted=sum(run["counted"] for run in runs),
        )

    def _watched_j(self, begin_s: float, end_s: float) -> float:
        output, _ = self.watcher.communicate(f"{begin_s} {end_s}\n", timeout=30)
        return float(json.loads(output)["energy_j"])
