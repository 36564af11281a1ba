"""A control daemon in a process of its own, on a machine of virtual GPUs, and clients of it."""

import grp
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.control.conftest import eventually
from tests.support import warm_start
from tests.support.environment import without
from wattloop.control.daemon.audit_log import read_log
from wattloop.control.daemon.client import Client, connect
from wattloop.control.lock import user_name
from wattloop.core.errors import WattloopError
from wattloop.virtual.node import shared_gpus

SRC = Path(__file__).parents[3] / "src"
NOBODY_UID = 65534
ME = user_name(os.geteuid())
GROUP = next(group for group in grp.getgrall() if group.gr_gid not in (0, NOBODY_UID))
"""Any that there is."""
DEFAULT_W = 700.0
"""Of the virtual H200."""
ENTRY_POINTS = "[wattloop.levers]\nvirtual = wattloop.virtual.lever:detect\n"

RULES = """\
socket: {{path: {folder}/c.sock, mode: 0666}}
log: {folder}/c.jsonl
jobs_file: {folder}/jobs.json
low_power: 70%
limits: {{connections_per_user: 4, line_s: 60}}
rules:
  - uids: [{uid}]
    trusted: true
    levers: {{"*/*": any}}
  - uids: [65534]
    low_power: true
    levers:
      gpu:*/power_limit: 300 W to 50%
      gpu:*/sm_clock: 600 to 1500 MHz
  - groups: [{group}]
    only_own_gpus: true
    levers: {{"gpu:*/power_limit": any}}
"""


@dataclass
class DaemonRig:
    """A machine, its rules, and the daemon on it."""

    folder: Path
    extra: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | warm_start.Started | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "c.sock"

    @property
    def rules(self) -> Path:
        return self.folder / "rules.yaml"

    @property
    def environment(self) -> dict[str, str]:
        kept = without("WATTLOOP")
        return {
            **kept,
            "PYTHONPATH": f"{SRC}:{self.folder / 'site'}",
            "HOME": str(self.folder),
            "WATTLOOP_VIRTUAL_GPUS": "2",
            "WATTLOOP_VIRTUAL_STATE": str(self.folder / "virtual.state"),
            "WATTLOOP_STATE_DIR": str(self.folder / "state"),
            "WATTLOOP_STATE_COPY_DIR": str(self.folder / "copies"),
            **self.extra,
        }

    def write_rules(self, text: str = RULES) -> None:
        self.rules.write_text(
            text.format(folder=self.folder, group=GROUP.gr_name, uid=os.geteuid())
        )

    def start(self, *words: str) -> subprocess.Popen[bytes] | warm_start.Started:
        """Start the daemon, and return once it answers."""
        command = [sys.executable, "-m", "wattloop.cli.main", "control-daemon"]
        with (self.folder / "daemon.err").open("ab") as errors, Path(os.devnull).open() as nothing:
            self.process = warm_start.start(
                [*command, "--rules", str(self.rules), *words],
                env=self.environment,
                cwd=Path.cwd(),
                streams=[nothing.fileno(), errors.fileno(), errors.fileno()],
            )
        assert eventually(self._answers), (self.folder / "daemon.err").read_text()
        return self.process

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "daemon.err").read_text()
        try:
            connect(self.socket).close()
        except WattloopError:
            return False
        return True

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(120)

    def connect(self) -> Client:
        return connect(self.socket)

    def limit_w(self, gpu: int = 0) -> float:
        """Return the limit of the card, read without the daemon."""
        environment = {"WATTLOOP_VIRTUAL_STATE": self.environment["WATTLOOP_VIRTUAL_STATE"]}
        return shared_gpus(2, environment=environment)[gpu].now().limit_w

    def put_limit_w(self, value_w: float, gpu: int = 0) -> None:
        """Set the limit as another root process would, without the daemon."""
        environment = {"WATTLOOP_VIRTUAL_STATE": self.environment["WATTLOOP_VIRTUAL_STATE"]}
        shared_gpus(2, environment=environment)[gpu].set_power_cap(value_w)

    def log(self, event: str = "") -> list[dict[str, Any]]:
        if not (self.folder / "c.jsonl").exists():
            return []
        records = read_log(self.folder / "c.jsonl")
        return [record for record in records if event in ("", record["event"])]

    def journals(self) -> list[Path]:
        return sorted((self.folder / "state").glob("*.journal"))

    def wattloop(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **variables}
        command = [sys.executable, "-m", "wattloop.cli.main", *words]
        return warm_start.run(command, env=environment, cwd=self.folder)


def made_rig(folder: Path) -> DaemonRig:
    """Make a rig in a folder that other users can enter."""
    folder.chmod(0o755)
    info = folder / "site" / "wattloop-0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    made = DaemonRig(folder)
    made.write_rules()
    return made


def tidied(rig: DaemonRig) -> None:
    if rig.process is not None and rig.process.poll() is None:
        rig.process.kill()
        rig.process.wait()
        assert eventually(lambda: not rig.journals())  # its watcher has checked
    shutil.rmtree(rig.folder, ignore_errors=True)


@pytest.fixture
def rig() -> Iterator[DaemonRig]:
    """A machine without a running daemon."""
    made = made_rig(Path(tempfile.mkdtemp(prefix="wattloop-daemon-")))
    yield made
    tidied(made)


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonRig]:
    """A daemon that the tests of a module share; each restores what it sets."""
    made = made_rig(Path(tempfile.mkdtemp(prefix="wattloop-daemon-")))
    made.start()
    yield made
    tidied(made)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def as_user(
    uid: int, act: Callable[[], Any], gid: int | None = None, groups: tuple[int, ...] = ()
) -> Any:
    """Run `act` in a child process of this user; return its result or raise its exception."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            result = (True, act())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the parent
            result = (False, error)
        os.write(writer, pickle.dumps(result))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    good, found = pickle.loads(data)
    if not good:
        raise found
    return found
