"""Idle energy to subtract: the machine's idle line, and idle by threads.

E_idle(t) = a + b t, measured by `wattloop idle` and kept, or fitted here from a few short
windows.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from wattloop.accounting.idle import IdleLine, fit_idle, fit_windows, idle_path, load_idle
from wattloop.core.errors import MeterUnavailable, WattloopError
from wattloop.core.results import WindowResult
from wattloop.kernels.worker import KernelJob, KernelWorker, worker_environment
from wattloop.measure.session import Session

WINDOWS_S = {"cpu": (0.5, 1.0, 1.5), "gpu": (1.0, 2.0, 3.0)}
"""Short: good for the slope, which is what matters; `wattloop idle` takes a minute."""
THREAD_WINDOWS_S = (0.5, 1.0, 2.0)
SETTLE_S = 0.25
PATIENCE_S = 60.0


class IdleLines(NamedTuple):
    """Idle lines by domain, and where they come from."""

    lines: Mapping[str, IdleLine]
    note: str
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "note": self.note,
            "domains": {
                name: {
                    "constant_j": line.alpha_j,
                    "power_w": line.beta_w,
                    "r2": line.line.r2,
                    "rmse_j": line.line.rmse,
                    "provenance": line.provenance.value,
                }
                for name, line in self.lines.items()
            },
            "warnings": list(self.warnings),
        }


class IdleByThreads(NamedTuple):
    """Sleeping threads over a window (thesis, tables 3.13 and 3.14)."""

    threads: int
    sleep_s: float
    domain: str
    energy_j: float
    power_w: float
    provenance: str


def idle_line(session: Session, how: str, device: str, on_window: Callable[[], None]) -> IdleLines:
    """Return the idle line: `stored`, `fit`, `auto` (stored, else fit) or `none`."""
    if how == "none":
        return IdleLines({}, "idle energy is not subtracted")
    if how in ("auto", "stored"):
        try:
            path = idle_path(session.settings.store_location, session.host.machine_id)
            record = load_idle(path)
        except WattloopError:
            if how == "stored":
                raise
            record = None
        if record is not None:
            kernel = os.uname().release
            return IdleLines(record.lines, record.note(session.clock.wall_s(), kernel))
        if how == "stored":
            raise MeterUnavailable("idle", "this machine has no idle line", "run 'wattloop idle'")
    fit = fit_idle(
        lambda duration_s: _slept(session, duration_s), WINDOWS_S[device], lambda _: on_window()
    )
    total_s = sum(WINDOWS_S[device])
    note = f"idle line fitted from {total_s:g} s before the kernels; 'wattloop idle' does it better"
    return IdleLines(fit.lines, note, fit.warnings)


def idle_by_threads(
    session: Session,
    threads: Sequence[int],
    on_window: Callable[[], None],
    windows_s: Sequence[float] = THREAD_WINDOWS_S,
) -> tuple[list[IdleByThreads], dict[str, IdleLine]]:
    """Windows of so many sleeping threads, and one line per domain through all of them."""
    rows: list[IdleByThreads] = []
    windows: list[WindowResult] = []
    for count in threads:
        order = {"threads": count, "sleep_s": list(windows_s), "cpus": None}
        job = KernelJob("numpy", "library", count, "cpu", (), 0.0, 0.0)
        with KernelWorker(order, worker_environment(job, os.environ)) as worker:
            for message in worker.messages(PATIENCE_S):
                session.clock.sleep(SETTLE_S)
                window = session.between(message["begin_s"], message["end_s"], name="idle")
                windows.append(window)
                rows += _rows(window, count, windows_s[message["case"]])
                on_window()
    return rows, fit_windows(windows).lines if windows else {}


def _rows(window: WindowResult, threads: int, sleep_s: float) -> list[IdleByThreads]:
    return [
        IdleByThreads(
            threads, sleep_s, d.name, d.energy_j, d.energy_j / window.duration_s, d.provenance.value
        )
        for d in window.domains
        if d.energy_j is not None
    ]


def _slept(session: Session, duration_s: float) -> WindowResult:
    begin_s = session.clock.now_s()
    session.clock.sleep(duration_s)
    end_s = session.clock.now_s()
    session.clock.sleep(SETTLE_S)
    return session.between(begin_s, end_s, name=f"idle {duration_s:g} s")
