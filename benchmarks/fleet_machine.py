"""A small fleet on one machine, every part of which can be killed and comes back.

A real Slurm with virtual GPUs, PostgreSQL, `wattloop serve`, and on each node an agent and a
control daemon; the driver next to them. The fleet keeps Wattloop's own parts running as systemd
would: a part that ends is started again, unless the benchmark holds it down.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from support.free_ports import PortBlock
from support.postgres_lab import PostgresLab
from support.slurm_lab import SlurmLab
from wattloop.core.clock import RealClock
from wattloop.core.process import BackgroundThread
from wattloop.fleet.agent.hooks import install_hooks
from wattloop.fleet.tokens import Role, add_token
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.node import shared_gpus

HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "src"
NODES, GPUS = ("n1", "n2"), 4
UNALLOCATED_H = 8 / 3_600
"""How long a run of what no job used is; short, so that the store soon has everything."""
ENTRY_POINTS = """\
[wattloop.meters]
virtual = wattloop.virtual.meter:detect

[wattloop.levers]
virtual = wattloop.virtual.lever:detect
"""
SLURM = """\
SlurmdTimeout=30
BatchStartTimeout=2
"""
"""Slurm sees within half a minute that a job was lost with the slurmd that was to start it."""
RULES = """\
socket: {{path: {folder}/{node}.sock, mode: 0600}}
log: {folder}/{node}.control.jsonl
rules: [{{uids: [0], trusted: true, levers: {{"gpu:*/power_limit": any}}}}]
"""
AGENT = """\
folder: {folder}/agents/{{node}}
virtual_gpus: {gpus}
devices: gpu
cpus: 8
interval_s: 0.5
cluster: lab
unallocated_hours: {hours}
deliver: {{url: "http://127.0.0.1:{port}", token_file: "{folder}/{{node}}.token", every_s: 0.5}}
control: {{socket: "{folder}/{{node}}.sock", default_cap: "-20%"}}
"""


class Part:
    """A process that is started again when it ends, like a service."""

    program: Sequence[str] = ("-m", "wattloop")

    def __init__(self, name: str, words: Sequence[str], environment: dict[str, str], log: Path):
        self.name = name
        self.starts = 0
        self.held_down = True
        self._words, self._environment, self._log = list(words), environment, log
        self._process: subprocess.Popen[bytes] | None = None
        self._tried_s = 0.0

    def start(self) -> None:
        """Let the process run from now on."""
        self.held_down = False
        self.look_after()

    def kill(self) -> None:
        """Kill at once, and stay down until `start`."""
        self.held_down = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Stop as an operator does; return the exit code."""
        self.held_down = True
        if self._process is None:
            return 0
        self._process.terminate()
        return self._process.wait(60)

    def look_after(self) -> None:
        """Start the process if it has ended, at most once a second."""
        ended = self._process is None or self._process.poll() is not None
        if self.held_down or not ended or time.monotonic() - self._tried_s < 1.0:
            return
        self._tried_s = time.monotonic()
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.program, *self._words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


class Keeping(BackgroundThread):
    """A block in which every ended part is started again."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__("keeping")
        self._parts = parts

    def _work(self) -> None:
        while not self._stop.wait(0.2):
            for part in self._parts.values():
                part.look_after()


class Fleet:
    """The whole fleet; use it as a context manager.

    Args:
        folder: for configurations, logs and jobs' output.
        policy: of the driver.
        budget: of the driver.
        without: parts to leave out.
    """

    def __init__(self, folder: Path, policy: str, budget: str, without: Sequence[str] = ()) -> None:
        self.folder = folder
        self._without = without
        self._policy, self._budget = policy, budget
        info = folder / "site" / "wattloop-0.dist-info"
        info.mkdir(parents=True)
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        (folder / "said").mkdir(mode=0o777)
        (folder / "log").mkdir()
        prolog, epilog = install_hooks(folder / "hooks", f"{folder}/agents/{{node}}")
        self.lab = SlurmLab(
            folder,
            nodes=len(NODES),
            gpus=GPUS,
            cpus=8,
            prolog=prolog,
            epilog=epilog,
            extra=SLURM,
        )
        self.postgres = PostgresLab()
        self._ports = PortBlock()
        self._port = self._ports.take()
        self.parts: dict[str, Part] = {}

    def __enter__(self) -> "Fleet":
        with ExitStack() as stack:
            stack.callback(self._ports.close)
            stack.enter_context(self.postgres)
            stack.enter_context(self.lab)
            stack.callback(self._stop_parts)
            self._write()
            for part in self.parts.values():
                part.start()
            stack.enter_context(Keeping(self.parts))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def targets(self) -> list[str]:
        """Return the parts that can be killed, each kind as often as the others."""
        kinds = ["driver", "agent", "postgres", "server", "daemon", "slurmd", "slurmctld"]
        return [n for kind in kinds if kind not in self._without for n in self._of_kind(kind)]

    def kill(self, name: str) -> None:
        """Kill with `kill -9`; slurmctld, which would lose its last seconds, is told to end."""
        if name in self.parts:
            self.parts[name].kill()
        elif name == "postgres":
            self.postgres.kill()
        elif name == "slurmctld":
            self.lab.kill(name, signal.SIGTERM)
        else:
            self.lab.kill(name.partition(" ")[2])

    def start(self, name: str) -> None:
        """Let the part start again, without waiting for it."""
        if name in self.parts:
            self.parts[name].start()
        elif name == "postgres":
            self.postgres.start()
        else:
            self.lab.spawn(name.partition(" ")[2] or name)

    def submit(self, name: str, rng: random.Random) -> int:
        """Submit a job that loads one to four GPUs for a few seconds."""
        seconds, load = rng.uniform(1.0, 5.0), rng.uniform(0.4, 1.0)
        gpus = rng.choice((1, 1, 1, 2, 2, 4))
        words = f"{sys.executable} {HERE}/fleet_job.py {name} {seconds} {load} {self.folder}/said"
        options = (f"--gres=gpu:{gpus}", "-c1", "-J", name, "--time=10")
        return self.lab.submit(f"PYTHONPATH={SRC} {words}", *options)

    def cards(self, node: str) -> list[VirtualGpu]:
        """Return the state of the cards, read without any part of the fleet."""
        return shared_gpus(GPUS, RealClock(), self.lab.environment_of(node))

    def nodes_are_up(self) -> bool:
        """Return true if Slurm may use all of them; a running driver has them reserved."""
        states = self.lab.run("sinfo", "-h", "-N", "-o", "%t", check=False).split()
        up = ("idle", "mix", "alloc", "comp", "resv")
        return len(states) == len(NODES) and all(state in up for state in states)

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition; return false if it does not hold in time."""
        give_up_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > give_up_s:
                return False
            time.sleep(0.2)
        return True

    def _of_kind(self, kind: str) -> list[str]:
        """Return two of each kind, so that kinds are equally likely."""
        if kind in ("agent", "daemon", "slurmd"):
            return [f"{kind} {node}" for node in NODES]
        return [kind] * len(NODES)

    def _write(self) -> None:
        folder = self.folder
        tokens = folder / "tokens.json"
        config = folder / "agent.yaml"
        config.write_text(
            AGENT.format(folder=folder, gpus=GPUS, hours=UNALLOCATED_H, port=self._port)
        )
        for node in NODES:
            secret = folder / f"{node}.token"
            secret.write_text(add_token(tokens, node, Role.NODE, node))
            secret.chmod(0o600)
            rules = folder / f"{node}.rules.yaml"
            rules.write_text(RULES.format(folder=folder, node=node))
            self._part(f"daemon {node}", node, "control-daemon", "--rules", str(rules))
            self._part(
                f"agent {node}", node, "agent", "run", "--config", str(config), "--node", node
            )
        server = ["serve", "--port", str(self._port), "--store", self.postgres.url]
        self._part("server", "", *server, "--tokens", str(tokens))
        driver = ["slurm", "run", "--policy", self._policy, "--budget", self._budget, "--gpus-only"]
        driver += ["--lease", "6", "--interval", "1", "--state", str(folder / "driver.json")]
        if "driver" not in self._without:
            self._part("driver", "", *driver)

    def _part(self, name: str, node: str, *words: str) -> None:
        lab = self.lab
        environment = {
            **(lab.environment_of(node) if node else lab.environment),
            "PYTHONPATH": f"{SRC}:{self.folder / 'site'}",
            "OMP_NUM_THREADS": "1",
            "HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "WATTLOOP_STATE_DIR": str(self.folder / "levers"),
            "WATTLOOP_VIRTUAL_GPUS": str(GPUS) if node else "0",
            "PATH": os.environ["PATH"] + ":/usr/sbin:/usr/bin:/sbin:/bin",
        }
        log = self.folder / "log" / name.replace(" ", "-")
        self.parts[name] = Part(name, words, environment, log)

    def _stop_parts(self) -> None:
        for name in sorted(self.parts, key=lambda name: name != "driver"):
            self.parts[name].stop()
