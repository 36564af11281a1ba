"""Probes in processes of their own: same counters, same environment, one tool each."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Failed", "Laboratory"]

HERE = Path(__file__).resolve().parent
PATIENCE_S = 120.0
EXIT_PATIENCE_S = 20.0


class Failed(Exception):
    """A probe that failed, with the reason."""


@dataclass
class Laboratory:
    """A folder with running counters, and the interpreters of the tools.

    Args:
        pythons: tool -> its interpreter.
        shared_counters: show the counters to every tool as /sys/class/powercap.
    """

    pythons: dict[str, Path]
    shared_counters: bool = True

    def __enter__(self) -> "Laboratory":
        self._folder = tempfile.TemporaryDirectory(prefix="wattloop-overhead-")
        self.root = Path(self._folder.name)
        self._driver = subprocess.Popen(
            [
                sys.executable,
                str(HERE.parent / "powercap_counters.py"),
                str(self.root / "sys"),
                "7200",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._driver.stdout is not None
        if not self._driver.stdout.readline().startswith("running"):
            raise RuntimeError("the counters do not run; is wattloop installed?")
        self._cover = _cover(self.root / "sys")
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.terminate()
        self._driver.wait()
        self._folder.cleanup()

    @property
    def can_share(self) -> bool:
        """Return true if other tools can see the counters (private mounts are allowed)."""
        return bool(self._cover)

    def probe(self, tool: str, task: str, *numbers: float, sensors: bool = True) -> dict[str, Any]:
        """Return the probe's result; raise Failed."""
        started = self._start(tool, task, *numbers, sensors=sensors)
        try:
            out, err = started.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            started.kill()
            started.communicate()
            raise Failed(f"no end after {PATIENCE_S:g} s") from None
        return _result(out, err)

    def exit_s(self, tool: str, interval_s: float, *, sensors: bool = True) -> float:
        """Return the seconds from a program's last line to its end, with the tool still
        measuring.
        """
        with tempfile.TemporaryFile("w+") as out:
            started = self._start(tool, "exit", interval_s, sensors=sensors, out=out)
            # Import and set-up come before; only what follows the last line has to be short.
            deadline_s = time.monotonic() + PATIENCE_S
            left_s: float | None = None
            while started.poll() is None:
                if left_s is None:
                    left_s = _left_s(out)
                ended = left_s is not None and time.monotonic() - left_s > EXIT_PATIENCE_S
                if ended or time.monotonic() > deadline_s:
                    started.kill()
                    started.wait()
                    raise Failed(f"hangs (over {EXIT_PATIENCE_S:g} s)")
                time.sleep(0.001)
            end_s = time.monotonic()
            left_s = _left_s(out)
            if left_s is None:
                out.seek(0)
                raise Failed(_reason(out.read()))
            return end_s - left_s

    def command_cpu_s(self, *command: str) -> float:
        """Return the CPU seconds of a command and of its children."""
        started = subprocess.Popen(
            command, env=self._environment(True), stdout=subprocess.DEVNULL, cwd=self.root
        )
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode != 0:
            raise Failed(f"exit status {started.returncode}")
        return usage.ru_utime + usage.ru_stime

    def _start(
        self, tool: str, task: str, *numbers: float, sensors: bool, out: Any = subprocess.PIPE
    ) -> "subprocess.Popen[str]":
        python = self.pythons[tool]
        ours = python == Path(sys.executable)
        command = [str(python), str(HERE / "probe.py"), tool, task, *map(str, numbers)]
        if sensors and not ours:
            command = [*self._cover, *command]
        return subprocess.Popen(
            command,
            env=self._environment(ours),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT if out is not subprocess.PIPE else subprocess.PIPE,
            text=True,
        )

    def _environment(self, ours: bool) -> dict[str, str]:
        environment = dict(os.environ)
        # A user's installation has its bytecode cached.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONUNBUFFERED"] = "1"
        if ours:
            folders = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(f).resolve()) for f in folders)
            environment["WATTLOOP_SYSFS_ROOT"] = str(self.root / "sys")
            environment["WATTLOOP_STORE"] = str(self.root / "runs.db")
            for name in ("JOB", "METERS", "DEVICES", "SAMPLER"):
                environment.pop(f"WATTLOOP_{name}", None)
        else:
            environment.pop("PYTHONPATH", None)
        return environment


def _cover(root: Path) -> list[str]:
    """Return a command prefix that mounts this tree over /sys/class/powercap, for the command
    alone.
    """
    real = Path("/sys/class/powercap")
    # Where the kernel has no powercap, no directory can be made in sysfs: cover its parent.
    place, tree = (
        (real, root / "class/powercap") if real.is_dir() else (real.parent, root / "class")
    )
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    script = f"mount --bind '{tree}' '{place}' && exec \"$@\""
    prefix = [*unshare, "sh", "-c", script, "sh"]
    try:
        done = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return prefix if done.returncode == 0 else []


def _left_s(out: Any) -> float | None:
    out.seek(0)
    lines = [line for line in out.read().splitlines() if line.startswith("PROBE {")]
    return float(json.loads(lines[-1][6:])["left_s"]) if lines else None


def _result(out: str, err: str) -> dict[str, Any]:
    for line in reversed(out.splitlines()):
        if line.startswith("PROBE "):
            result: dict[str, Any] = json.loads(line[6:])
            return result
    raise Failed(_reason(err or out))


def _reason(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it said nothing"
    return f"does not start: {last[:90]}"
