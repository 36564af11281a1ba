"""Two hundred nodes at 1 Hz into PostgreSQL, through the server, while readers open the Jobs page.

    python benchmarks/fleet_ingest.py [--seconds 300] [--nodes 200] [--kubernetes] [--json FILE]

Everything runs on this machine: the nodes' senders (as the agent has them, a hundred per process),
the server, PostgreSQL with its usual syncing, and five readers. The store already holds 100,000
jobs. In the end every sample of every run that a node wrote must be in the store, once.
"""

import argparse
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bars import Bar, Page, Table, arguments, publish
from fleet_ingest_store import fill_old_jobs, samples_by_run
from support.fleet_server import FleetServer
from support.postgres_lab import PostgresLab
from wattloop.fleet.tokens import Role, add_token
from wattloop.store.database import open_store

OLD_JOBS = 100_000
A_PROCESS = 100
READERS, EVERY_S = 5, 2.0
PAGES = tuple(
    f"/jobs{q}" for q in ("", "?page=40", "?sort=energy", "?text=train+99", "?cluster=bench")
)
PAGES += ("/nodes",)
JOBS_MS = 1_000.0


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--kubernetes", action="store_true", help="pods in place of Slurm's jobs")
    args = parser.parse_args()
    old_jobs = OLD_JOBS
    if args.quick:
        args.seconds, old_jobs = min(args.seconds, 20.0), 5_000
    with tempfile.TemporaryDirectory(prefix="wattloop-fleet-ingest-") as folder:
        publish(_page(measured(Path(folder), args, old_jobs), args, old_jobs), args)


@dataclass
class Reading:
    """Response times of readers, and the processor time of all parts."""

    ms: dict[str, list[float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    span_s: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    late_s: float = 0.0
    drained_s: float = 0.0
    left: int = 0
    power: dict[str, Any] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Return the samples that a node wrote and the store lacks."""
        return sum(max(0, n - self.stored.get(run, 0)) for run, n in self.sent.items())

    @property
    def twice(self) -> int:
        """Return the samples in the store that no node wrote."""
        return sum(max(0, n - self.sent.get(run, 0)) for run, n in self.stored.items())


def measured(folder: Path, args: argparse.Namespace, old_jobs: int) -> Reading:
    found = Reading()
    with PostgresLab() as postgres:
        with open_store(postgres.url) as store:
            fill_old_jobs(store, old_jobs)
        with FleetServer(folder, postgres.url) as server:
            _make_tokens(folder, server, args.nodes)
            time.sleep(5)  # libraries that the server loads in the background
            before = _cpu_s(server.pid)
            begun_s = time.monotonic()
            clients = _clients(folder, server.url, args)
            stop = threading.Event()
            readers = [
                threading.Thread(target=_read, args=(server, found, stop, number))
                for number in range(READERS)
            ]
            for reader in readers:
                reader.start()
            time.sleep(args.seconds * 0.9)
            found.power = _get(server, "/api/v1/fleet/power")
            said = [json.loads(_output(client)) for client in clients]
            stop.set()
            for reader in readers:
                reader.join()
            found.span_s = time.monotonic() - begun_s
            after = _cpu_s(server.pid)
            found.faults += [
                line
                for line in server.log.read_text("utf-8", "replace").splitlines()
                if "dashboard at" not in line
            ][-60:]
        with open_store(postgres.url) as store:
            found.stored = samples_by_run(store)
    found.cpu_s = {name: after[name] - before[name] for name in after}
    found.cpu_s["senders"] = sum(one["cpu_s"] for one in said)
    for one in said:
        found.sent |= one["made"]
        found.late_s = max(found.late_s, one["late_s"])
        found.drained_s = max(found.drained_s, one["drained_s"])
        found.left += one["left"]
        found.faults += one["faults"]
    return found


def _make_tokens(folder: Path, server: FleetServer, nodes: int) -> None:
    (folder / "nodes" / "tokens").mkdir(parents=True)
    for number in range(nodes):
        name = f"n{number:03}"
        secret = add_token(server.tokens, name, Role.NODE, name)
        (folder / "nodes" / "tokens" / f"{name}.token").write_text(secret)


def _clients(folder: Path, url: str, args: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    program = Path(__file__).with_name("fleet_ingest_nodes.py")
    found = []
    for first in range(0, args.nodes, A_PROCESS):
        count = min(A_PROCESS, args.nodes - first)
        kind = "kubernetes" if args.kubernetes else "slurm"
        parts = [folder / "nodes", url, first, count, args.seconds, kind]
        command = [sys.executable, str(program), *(str(part) for part in parts)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        found.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
    return found


def _output(client: subprocess.Popen[bytes]) -> bytes:
    out, _ = client.communicate()
    if client.returncode:
        raise SystemExit(f"the nodes' process ended with {client.returncode}")
    return out


def _read(server: FleetServer, found: Reading, stop: threading.Event, number: int) -> None:
    """Read as one person at a browser."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for turn in itertools.count(number):
        if stop.wait(EVERY_S):
            return
        page = PAGES[turn % len(PAGES)]
        begun_s = time.monotonic()
        try:
            connection.request("GET", page)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            found.faults.append(f"{page}: {type(error).__name__}")
            connection.close()
            continue
        if answer.status != 200:
            found.faults.append(f"{page}: {answer.status}")
        kind = "Nodes" if page == "/nodes" else "Jobs"
        found.ms.setdefault(kind, []).append(1_000 * (time.monotonic() - begun_s))


def _get(server: FleetServer, path: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path)
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    return found


def _cpu_s(server_pid: int) -> dict[str, float]:
    """Return the processor time so far of the server, and of PostgreSQL with all its children."""
    below = psutil.Process().children(recursive=True)
    postgres = [process for process in below if process.name() == "postgres"]
    return {
        "server": _used_s(psutil.Process(server_pid)),
        "PostgreSQL": sum(_used_s(one, with_ended=True) for one in postgres),
    }


def _used_s(process: psutil.Process, *, with_ended: bool = False) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    ended_s = times.children_user + times.children_system if with_ended else 0.0
    return float(times.user + times.system + ended_s)


def _page(found: Reading, args: argparse.Namespace, old_jobs: int) -> Page:
    jobs_ms, nodes_ms = found.ms.get("Jobs", []), found.ms.get("Nodes", [])
    sent = sum(found.sent.values())
    bars = [
        Bar("samples lost", found.lost + found.left, "samples", 0.0, note=f"of {sent} written"),
        Bar("samples stored twice", found.twice, "samples", 0.0),
        Bar("Jobs page, p95", _p95(jobs_ms), "ms", JOBS_MS, note=f"{len(jobs_ms)} pages"),
        Bar("Jobs page, median", statistics.median(jobs_ms) if jobs_ms else None, "ms"),
        Bar("Nodes page, p95", _p95(nodes_ms), "ms", note=f"{len(nodes_ms)} pages"),
        Bar("runs stored", len(found.stored), "runs", note=f"{len(found.sent)} written"),
        Bar("last run in the store after the last sample", found.drained_s, "s"),
        Bar("nodes in the fleet's power", len(found.power.get("power_by_node_w", ())), "nodes"),
        Bar("oldest power in it", found.power.get("oldest_s"), "s"),
        Bar("largest delay of a sample at the nodes", found.late_s, "s", note="all on 2 cores"),
    ]
    shares = [
        (name, f"{used_s:.1f}", f"{100 * used_s / found.span_s:.0f}%")
        for name, used_s in found.cpu_s.items()
    ]
    tables = [Table("Processor time", ("who", "seconds", "of one core"), shares)]
    if found.faults:
        tables.append(Table("Said on the way", ("what",), [(f,) for f in found.faults[:60]]))
    of_kubernetes = args.kubernetes
    where, unit = (" of Kubernetes", "container") if of_kubernetes else ("", "job")
    text = (
        f"{args.nodes} nodes{where}, each with a run of what no job used and one {unit} after the "
        "other "
        f"(4 nodes a job, 40 to 120 s), 6 domains at 1 Hz for {args.seconds:.0f} s; a request per "
        f"node and second with its status and what is new. {READERS} readers open a page every "
        f"{EVERY_S:.0f} s. {old_jobs} jobs were there before. Journals are simulated, senders, "
        "server and PostgreSQL are real and share this machine's cores."
    )
    if of_kubernetes:
        title = "Two hundred Kubernetes nodes into PostgreSQL"
        command = f"fleet_ingest.py --kubernetes --seconds {args.seconds:.0f}"
        return Page("kubernetes_ingest", title, bars, tables, text=text, command=command)
    text += (
        " On 2 cores that other programs use as well it is slower: 1,994 and 1,175 ms for the Jobs "
        "page (p95) in runs of 2026-11-15 at loads of 17 and 10, the first before runs were put "
        "in at half the pace; nothing was lost in either."
    )
    return Page("fleet_ingest", "Two hundred nodes into PostgreSQL", bars, tables, text=text)


def _p95(values: list[float]) -> float | None:
    return statistics.quantiles(values, n=20)[-1] if len(values) > 1 else None


if __name__ == "__main__":
    main()
