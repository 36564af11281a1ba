"""A hundred nodes in one process: journals that grow at 1 Hz, each with its own sender.

    python benchmarks/fleet_ingest_nodes.py FOLDER URL FIRST COUNT SECONDS [slurm|kubernetes]

The senders are those of the agent, one thread each; only the measurement is simulated.
Prints what was written, as JSON: run -> samples.
"""

import json
import random
import resource
import sys
import threading
import time
from array import array
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.fleet.delivery import Delivery, DeliveryOptions, NodeStatus
from wattloop.store.journal import JournalWriter

GPUS = 4
NODES_A_JOB = 4
JOB_S = (40.0, 120.0)
DRAIN_S = 240.0
DOMAINS: list[dict[str, Any]] = [
    {
        **{"name": name, "kind": "gauge", "scope": scope, "source": "simulated", "inside": None},
        **{"provenance": "simulated", "resolution": 1.0, "update_period_s": 0.1, "tdp_w": tdp_w},
    }
    for name, scope, tdp_w in (
        *((f"gpu:{n}", "gpu", 400.0) for n in range(GPUS)),
        ("cpu:0/package", "cpu", 280.0),
        ("dram", "dram", 60.0),
    )
]


@dataclass
class Run:
    """A journal that grows."""

    writer: JournalWriter
    run_id: str
    begun_s: float
    until_s: float
    samples: int = 0

    def sample(self, now_s: float, power_w: float) -> None:
        """Write one reading of every domain."""
        values = array("d", [power_w + random.randrange(1_000) / 100 for _ in DOMAINS])
        self.writer.samples(0, len(DOMAINS), array("d", [now_s]), values)
        self.samples += 1

    def end(self, now_s: float) -> None:
        """End the job."""
        span_s = now_s - self.begun_s
        energies = tuple(
            DomainEnergy(
                d["name"], Scope(d["scope"]), 45.0 * span_s, 1.0, Provenance.SIMULATED, "simulated"
            )
            for d in DOMAINS
        )
        result = WindowResult("job", 0, None, self.begun_s, now_s, energies)
        self.writer.end(
            {
                **{"type": "end", "time_s": now_s, "wall_s": time.time(), "status": "finished"},
                **{"exit_code": 0, "result": result.to_dict(), "accounting": None},
            }
        )
        self.writer.close()


class Node:
    """A node: its unallocated energy, and one job after the other."""

    def __init__(self, folder: Path, url: str, number: int, kind: str) -> None:
        self.kind = kind
        self.name = f"n{number:03}"
        self.number = number
        self.folder = folder / self.name
        self.folder.mkdir(parents=True)
        self.made: dict[str, int] = {}
        self.power_w = 0.0
        self.idle = self._begin("unallocated", "", time.monotonic(), 1e9)
        self.job: Run | None = None
        token = (folder / "tokens" / f"{self.name}.token").read_text().strip()
        options = DeliveryOptions(url=url, node=self.name, folder=self.folder, token=token)
        self.delivery = Delivery(options, self.status)

    def status(self) -> NodeStatus:
        """Return the node's report on itself."""
        watts = {d["name"]: self.power_w / len(DOMAINS) for d in DOMAINS}
        limits = {d["name"]: d["tdp_w"] for d in DOMAINS}
        jobs = () if self.job is None else (self.job.run_id[-6:],)
        return NodeStatus(power_w=watts, limit_w=limits, provenance="simulated", jobs=jobs)

    def tick(self, now_s: float) -> None:
        """Advance by a second."""
        self.power_w = 270.0 + random.random()
        self.idle.sample(now_s, 5.0)
        if self.job is None or now_s > self.job.until_s:
            if self.job is not None:
                self._ended(self.job, now_s)
            group = random.Random(f"{self.number // NODES_A_JOB}-{int(now_s / 60)}")
            span_s = group.uniform(*JOB_S)
            job = f"{int(now_s / 60) % 1_000_000}{self.number // NODES_A_JOB:03}"
            self.job = self._begin(self.kind, job, now_s, now_s + span_s)
        self.job.sample(now_s, 40.0)

    def finish(self, now_s: float) -> None:
        """End the node's runs at the end of the benchmark."""
        for run in (self.idle, self.job):
            if run is not None:
                self._ended(run, now_s)

    def _ended(self, run: Run, now_s: float) -> None:
        run.end(now_s)
        self.made[run.run_id] = run.samples

    def _begin(self, kind: str, job: str, now_s: float, until_s: float) -> Run:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        run_id = f"{stamp}-{self.name}-{random.randrange(16**6):06x}"
        facts = {"scheduler": self.kind, "job": job, "cluster": "bench", "partition": "gpu"}
        if self.kind == "kubernetes":  # a container of a pod of a Job with a pod on four nodes
            pod = f"train-{job}-{self.number}"
            facts |= {"job": f"ml/Job/train-{job}", "namespace": "ml", "project": "ml"}
            facts |= {"pod": pod, "container": "main", "owner_kind": "Job", "owner": f"train-{job}"}
            facts |= {"container_id": f"{random.randrange(16**64):064x}", "pod_uid": pod}
        header = {
            **{"run_id": run_id, "name": f"train {job}" if job else "unallocated"},
            **{"kind": kind, "host": self.name, "started_wall_s": time.time()},
            **{"started_s": now_s, "settings": {}, "tags": {"cluster": "bench"}, "user": "ada"},
            "feeds": [{"meter": "simulated", "domains": DOMAINS, "signals": []}],
            "job": {"id": facts["job"], "kind": self.kind, "scheduler": facts} if job else None,
        }
        writer = JournalWriter(self.folder / f"{run_id}.journal", header)
        return Run(writer, run_id, now_s, until_s)


def main() -> None:
    folder, url = Path(sys.argv[1]), sys.argv[2]
    first, count, seconds = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    threading.stack_size(256 * 1024)
    kind = sys.argv[6] if len(sys.argv) > 6 else "slurm"
    nodes = [Node(folder, url, number, kind) for number in range(first, first + count)]
    starts = [random.random() for _ in nodes]
    deliveries = ExitStack()
    for wait_s, node in sorted(zip(starts, nodes, strict=True), key=lambda pair: pair[0]):
        time.sleep(max(0.0, wait_s / count))  # two hundred machines do not start at the same moment
        deliveries.enter_context(node.delivery)
    begun_s = time.monotonic()
    late_s = 0.0
    for second in range(int(seconds)):
        for number, node in enumerate(nodes):
            due_s = begun_s + second + number / len(nodes)
            now_s = time.monotonic()
            if now_s < due_s:
                time.sleep(due_s - now_s)
            late_s = max(late_s, now_s - due_s)
            node.tick(time.monotonic())
    written_s = time.monotonic()
    for node in nodes:
        node.finish(time.monotonic())
    while time.monotonic() - written_s < DRAIN_S:
        if not any(next(node.folder.glob("*.journal"), None) for node in nodes):
            break
        time.sleep(0.1)
    drained_s = time.monotonic() - written_s
    left = sum(len(list(node.folder.glob("*.journal"))) for node in nodes)
    deliveries.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "made": {run_id: n for node in nodes for run_id, n in node.made.items()},
                "late_s": late_s,
                "drained_s": drained_s,
                "left": left,
                "cpu_s": used.ru_utime + used.ru_stime,
                "faults": sorted({node.delivery.fault for node in nodes} - {""}),
            }
        )
    )


if __name__ == "__main__":
    main()
