"""Kills of agents, API server and driver of a Kubernetes cluster: no pod lost, suspended or capped?

Two nodes of four virtual GPUs on one machine: on each an agent of `wattloop agent run` and a
control daemon, in the cluster the driver of `wattloop k8s run --drive` and, every five seconds,
the command of the chart's CronJob (`wattloop k8s release --if-expired`). All of these are the real
programs, and runs go to a real PostgreSQL. The API server is a stand-in with its state on disk (no
package carries kube-apiserver), in a process of its own; the controllers of Jobs, the scheduler and
the kubelets (real gRPC, folders of control groups) are simulated here and work through that API
alone.

Jobs of one to four GPUs are submitted suspended with the label of managed Jobs; their pods ask for
a cap of -20% by annotation and load their GPUs for 20 to 35 seconds. At random moments an agent,
the API server, the driver or a control daemon is killed with SIGKILL and comes back up to four
seconds later, so that several are down at once.

After every trial, with everything up again: every Job must be complete and none suspended; every
container that lived for more than 20 s must have a run in the store; the joules of all runs, pods'
and those of no pod, must be those of the virtual cards' own books, GPU by GPU; every card's limit
must be what it was, and no journal of a lever may be left.

An earlier run, with pods of 8 to 16 seconds and earlier code, was not clean: 3 containers of 96
Jobs had no run of their own, though all joules were in the store. The cause was not traced. That
run had 24 Jobs a trial instead of 14, and looked at containers that lived for more than 4 s. An
agent that is killed takes 4 to 10 seconds to come back on this busy machine, so that short pods can
begin and end meanwhile; since then an agent also looks for containers at once when it starts, and a
watch that is quiet for ten seconds no longer breaks.
"""

import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bars import Bar, Page, Table, arguments, publish
from fleet_kills import Trial, check_caps, check_joules, killing, runs
from fleet_machine import ENTRY_POINTS, GPUS, HERE, NODES, RULES, SRC, UNALLOCATED_H, Keeping, Part
from support.free_ports import PortBlock
from support.kubelet import Kubelet, cgroup_of, make_group, remove_group
from support.kubernetes_cluster import Controllers, gpus_of, job, node
from support.postgres_lab import PostgresLab, why_no_postgres
from wattloop.core.clock import RealClock
from wattloop.core.errors import ClusterError
from wattloop.fleet.kubernetes.api_client import ApiAddress, KubernetesClient
from wattloop.schedule.kubernetes.driver import DriverLease
from wattloop.schedule.kubernetes.queue import KubernetesQueue, release_all
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.node import shared_gpus

ENDS_S, STORED_S = 300.0, 120.0
MEASURED_S = 20.0
"""An agent takes some seconds to start here; who lives longer than this is measured."""
LEASE_S, RELEASE_EVERY_S = 15.0, 5.0
LABEL = "nvidia.com/gpu.product"
AGENT = """\
folder: {folder}/agents/{{node}}
virtual_gpus: {gpus}
virtual_state: {folder}/{{node}}.state
devices: gpu
cpus: 8
interval_s: 0.5
cluster: lab
unallocated_hours: {hours}
cgroup_root: {folder}/{{node}}.cgroup
store_file: {folder}/store.url
kubernetes: {{api: "{url}", socket: "{folder}/{{node}}.kubelet"}}
control: {{socket: "{folder}/{{node}}.sock", recap_s: 5}}
"""


class ApiPart(Part):
    """The stand-in API server."""

    program = (str(HERE / "support" / "kubernetes_api.py"),)


class PodFleet:
    """The whole cluster; use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        info = folder / "site" / "wattloop-0.dist-info"
        info.mkdir(parents=True)
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        (folder / "log").mkdir()
        self.postgres = PostgresLab()
        self._ports = PortBlock()
        self.url = f"http://127.0.0.1:{self._ports.take()}"
        self.parts: dict[str, Part] = {}
        self.kubelets = {name: Kubelet(folder / f"{name}.kubelet") for name in NODES}
        self.lengths_s: dict[str, float] = {}
        self.lived: dict[str, list[float]] = {}
        """Container -> when it began and ended."""
        self.checked: set[str] = set()
        self.released = 0
        self._groups: dict[str, tuple[str, str, Path, list[int]]] = {}
        self._stop = threading.Event()

    def __enter__(self) -> "PodFleet":
        with ExitStack() as stack:
            stack.callback(self._ports.close)
            stack.enter_context(self.postgres)
            for kubelet in self.kubelets.values():
                stack.enter_context(kubelet)
            stack.callback(self._stop_parts)
            self._write()
            self.parts["api"].start()
            client = self.client()
            while not self.wait(lambda: self._answers(client), 60):
                raise SystemExit("kubernetes_kills: the API server does not come up")
            for name in NODES:
                client.create("/api/v1/nodes", node(name, GPUS))
            for part in self.parts.values():
                part.start()
            stack.enter_context(Keeping(self.parts))
            threads = [threading.Thread(target=t) for t in (self._control, self._release)]
            for thread in threads:
                thread.start()
                stack.callback(thread.join)
            stack.callback(self._stop.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def client(self) -> KubernetesClient:
        return KubernetesClient(ApiAddress(url=self.url, timeout_s=5.0))

    def targets(self) -> list[str]:
        """Return the parts that can be killed, each kind as often as the others."""
        return [*(f"{k} {n}" for k in ("agent", "daemon") for n in NODES), *["api", "driver"] * 2]

    def kill(self, name: str) -> None:
        self.parts[name].kill()

    def start(self, name: str) -> None:
        self.parts[name].start()

    def cards(self, name: str) -> list[VirtualGpu]:
        environment = {"WATTLOOP_VIRTUAL_STATE": str(self.folder / f"{name}.state")}
        return shared_gpus(GPUS, RealClock(), environment)

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        give_up_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > give_up_s:
                return False
            time.sleep(0.2)
        return True

    def submit(self, name: str, rng: random.Random) -> None:
        gpus = rng.choice((1, 1, 1, 2, 2, 4))
        self.lengths_s[name] = rng.uniform(20.0, 35.0)
        body = job(name, gpus=gpus, template_annotations={"wattloop.dev/power-cap": "-20%"})
        client = self.client()
        while not self._created(client, body):
            time.sleep(0.2)

    def jobs(self) -> list[dict[str, Any]]:
        """Return all Jobs; none while the API server is away."""
        try:
            return self.client().list("/apis/batch/v1/jobs")[0]
        except ClusterError:
            return []

    def _created(self, client: KubernetesClient, body: dict[str, Any]) -> bool:
        try:
            client.create("/apis/batch/v1/namespaces/default/jobs", body)
        except ClusterError as error:
            return getattr(error, "status", 0) == 409
        return True

    def _answers(self, client: KubernetesClient) -> bool:
        try:
            client.list("/api/v1/nodes")
        except ClusterError:
            return False
        return True

    def _control(self) -> None:
        """Run controllers and kubelets; while the API server is away, containers continue."""
        client = self.client()
        controllers = Controllers(client, lambda name: self.lengths_s.get(name, 1.0))
        while not self._stop.wait(0.2):
            try:
                controllers.step()
                self._sync(client.list("/api/v1/pods")[0])
            except ClusterError:
                continue
        self._sync([])

    def _sync(self, pods: list[dict[str, Any]]) -> None:
        """Make the containers follow the API server's pods."""
        wanted = {}
        for item in pods:
            for status in item["status"].get("containerStatuses", ()):
                wanted[status["containerID"].rpartition("/")[2]] = item
        for container in [one for one in self._groups if one not in wanted]:
            place, name, folder, numbers = self._groups.pop(container)
            self.kubelets[place].take(name)
            remove_group(folder)
            for number in numbers:
                self.cards(place)[number].load(0.0)
            self.lived[container].append(time.monotonic())
        for container, item in wanted.items():
            if container not in self._groups:
                self._begin(container, item)

    def _begin(self, container: str, item: dict[str, Any]) -> None:
        place, name = item["spec"]["nodeName"], item["metadata"]["name"]
        used = {n for at, _, _, numbers in self._groups.values() if at == place for n in numbers}
        numbers = [n for n in range(GPUS) if n not in used][: gpus_of(item)]
        self.kubelets[place].give(name, devices=tuple(f"gpu-{n}" for n in numbers))
        folder = cgroup_of(self.folder / f"{place}.cgroup", item["metadata"]["uid"], container)
        make_group(folder)
        for number in numbers:
            self.cards(place)[number].load(0.8)
        self._groups[container] = (place, name, folder, numbers)
        self.lived[container] = [time.monotonic()]

    def _release(self) -> None:
        """Run the command of the chart's CronJob."""
        while not self._stop.wait(RELEASE_EVERY_S):
            client = self.client()
            try:
                if DriverLease(client, "wattloop", "").is_expired():
                    self.released += len(release_all(KubernetesQueue(client), "expired")[0])
            except ClusterError:
                continue

    def _write(self) -> None:
        folder, port = self.folder, self.url.rpartition(":")[2]
        (folder / "store.url").write_text(self.postgres.url)
        config = folder / "agent.yaml"
        config.write_text(AGENT.format(folder=folder, gpus=GPUS, hours=UNALLOCATED_H, url=self.url))
        self._part("api", "", "--port", port, "--state", str(folder / "etcd.json"))
        for name in NODES:
            rules = folder / f"{name}.rules.yaml"
            rules.write_text(RULES.format(folder=folder, node=name))
            self._part(f"daemon {name}", name, "control-daemon", "--rules", str(rules))
            words = ("agent", "run", "--config", str(config), "--node", name)
            self._part(f"agent {name}", name, *words)
        driver = ("k8s", "run", "--drive", "--policy", "fifo", "--oracle", "table", "--gpus-only")
        driver += ("--api", self.url, "--lease-namespace", "wattloop", "--interval", "1")
        self._part("driver", "", *driver, "--lease", f"{LEASE_S:g}")

    def _part(self, name: str, place: str, *words: str) -> None:
        environment = {
            "PYTHONPATH": f"{SRC}:{self.folder / 'site'}",
            "OMP_NUM_THREADS": "1",
            "HOME": str(self.folder),
            "POD_NAME": "wattloop-driver-0",
            "WATTLOOP_STATE_DIR": str(self.folder / "levers"),
            "WATTLOOP_VIRTUAL_GPUS": str(GPUS) if place else "0",
            "WATTLOOP_VIRTUAL_STATE": str(self.folder / f"{place or 'none'}.state"),
            "PATH": os.environ["PATH"],
        }
        log = self.folder / "log" / name.replace(" ", "-")
        kind = ApiPart if name == "api" else Part
        self.parts[name] = kind(name, words, environment, log)

    def _stop_parts(self) -> None:
        for name in sorted(self.parts, key=lambda name: (name == "api", name != "driver")):
            self.parts[name].stop()


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-trial", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=14, help="of each trial")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for logs, in place of one that goes")
    options = parser.parse_args()
    if reason := why_no_postgres():
        sys.exit(f"kubernetes_kills: {reason}")
    if options.quick:
        options.kills, options.per_trial, options.jobs = 4, 4, 4
    with tempfile.TemporaryDirectory(prefix="wl-k8s-") as folder:
        place = options.keep or Path(folder)
        place.mkdir(exist_ok=True)
        place.chmod(0o755)
        rng, trials = random.Random(options.seed), list[Trial]()
        with PodFleet(place) as fleet:
            ready = [place / f"agents/{name}/state.json" for name in NODES]
            if not fleet.wait(lambda: all(p.exists() for p in ready), STORED_S):
                raise SystemExit(f"kubernetes_kills: the agents do not come up; see {place}")
            lease = DriverLease(fleet.client(), "wattloop", "")
            if not fleet.wait(lambda: not lease.is_expired(), STORED_S):
                raise SystemExit(f"kubernetes_kills: the driver does not come up; see {place}")
            while sum(len(trial.kills) for trial in trials) < options.kills:
                trial = Trial(len(trials), rng.randrange(10**6))
                run_trial(trial, fleet, options.per_trial, options.jobs)
                trials.append(trial)
                print(f"trial {trial.number}: {trial.took_s:.0f} s, {trial.problems}",
                      file=sys.stderr)  # fmt: skip
            page = page_of(trials, fleet, options.seed)
    publish(page, options)


def run_trial(trial: Trial, fleet: PodFleet, kills: int, jobs: int) -> None:
    rng, begin_s = random.Random(trial.seed), time.monotonic()
    for number in range(jobs):
        name = f"t{trial.number}j{number}"
        trial.jobs[name] = number
        fleet.submit(name, rng)
    killing(trial, fleet, rng, kills)  # type: ignore[arg-type]  # as much of a fleet as it needs
    check_pods(trial, fleet)
    check_caps(trial, fleet)  # type: ignore[arg-type]  # as above
    check_joules(trial, fleet)  # type: ignore[arg-type]  # as above
    check_runs(trial, fleet)
    trial.took_s = time.monotonic() - begin_s


def check_pods(trial: Trial, fleet: PodFleet) -> None:
    """Check that every Job of the trial is complete and none suspended."""

    def left() -> list[str]:
        found = {one["metadata"]["name"]: one for one in fleet.jobs()}
        return [n for n in trial.jobs if not found.get(n, {}).get("status", {}).get("conditions")]

    if not fleet.wait(lambda: not left(), ENDS_S):
        found = {one["metadata"]["name"]: one for one in fleet.jobs()}
        for name in left():
            held = found.get(name, {}).get("spec", {}).get("suspend")
            state = "is lost" if name not in found else "is suspended" if held else "does not end"
            trial.stuck.append(f"job {name} {state}")


def check_runs(trial: Trial, fleet: PodFleet) -> None:
    """Check that every container has a run, unless it lived while its agent was down."""
    stored = Counter(
        run.job["scheduler"]["container_id"] for run in runs(fleet) if run.kind == "kubernetes"  # type: ignore[arg-type, index]  # as above
    )  # fmt: skip
    for container, lived_s in fleet.lived.items():
        if container in fleet.checked or len(lived_s) < 2:
            continue
        fleet.checked.add(container)
        if lived_s[1] - lived_s[0] > MEASURED_S and not stored[container]:
            trial.lost.append(f"container {container[:12]} has no run")


def page_of(trials: list[Trial], fleet: PodFleet, seed: int) -> Page:
    kills = [name.partition(" ")[0] for trial in trials for _, name in trial.kills]
    jobs = sum(len(trial.jobs) for trial in trials)

    def count(*kinds: str) -> int:
        return sum(len(getattr(trial, kind)) for trial in trials for kind in kinds)

    cards = f"of {len(NODES) * GPUS} cards after each trial: more than 0.1% and 5 J off"
    bars = [
        Bar("kills", len(kills), "kills", 100, at_least=True, note=f"with SIGKILL; seed {seed}"),
        Bar("jobs_suspended_or_stuck", count("stuck"), "jobs", 0, note=f"of {jobs} jobs"),
        Bar("pods_lost", count("lost"), "pods", 0, note=f"of {len(fleet.lived)} containers"),
        Bar("joules_lost_or_twice", count("joules"), "cards", 0, note=cards),
        Bar("caps_not_restored", count("caps"), "cards", 0, note="or journals of levers left"),
        Bar("worst_difference", max(t.worst_share for t in trials), "1", note="of a card's joules"),
        Bar("released_without_a_driver", fleet.released, "jobs", note="its Lease had expired"),
    ]
    logs = [fleet.folder / f"{name}.control.jsonl" for name in NODES]
    caps = sum(line.count('"set"') for p in logs if p.exists() for line in p.open())
    driven = (fleet.folder / "log" / "driver").read_text("utf-8", "replace").count(" start: ")
    bars += [
        Bar("released_by_the_driver", driven, "jobs", note="as its policy said"),
        Bar("caps_set", caps, "caps", note="by annotation, through the control daemons"),
    ]
    rows = [
        [t.number, t.seed, len(t.jobs), ", ".join(n for _, n in t.kills), f"{t.worst_j:.2f}",
         len(t.problems), round(t.took_s)]
        for t in trials
    ]  # fmt: skip
    header = ("trial", "seed", "jobs", "what was killed", "worst J", "problems", "s")
    tables = [
        Table("By trial", header, rows),
        Table("By what was killed", ("part", "kills"), sorted(Counter(kills).items())),
    ]
    problems = [(f"trial {t.number}: {problem}",) for t in trials for problem in t.problems]
    if problems:
        tables.append(Table("Problems", ("what",), problems))
    title = f"{len(kills)} kills of a Kubernetes cluster"
    return Page("kubernetes_kills", title, bars, tables, __doc__.partition("\n\n")[2])


if __name__ == "__main__":
    main()
