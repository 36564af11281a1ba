"""`wattloop idle`: measure the idle power of this machine."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wattloop.accounting.idle import (
    DURATIONS_S,
    IdleFit,
    IdleRecord,
    fit_idle,
    idle_path,
    save_idle,
)
from wattloop.cli.app import MeterOptions, Verb
from wattloop.cli.options import option
from wattloop.cli.output import print_rows, say, write_json
from wattloop.cli.progress import counted, is_redrawable, warn_if_busy
from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.records import picked
from wattloop.core.results import WindowResult
from wattloop.core.settings import Settings
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.measure.session import Session

MIN_WINDOWS = 3
SETTLE_S = 0.25
"""A slow sensor shows the end of a window only some time after it."""
app = Verb()


@app.command("idle", example="wattloop idle")
def idle(
    *,
    windows: str = option(
        "--windows SECONDS,...",
        "Lengths of the idle windows.",
        ",".join(f"{s:g}" for s in DURATIONS_S),
    ),
    dry_run: bool = option("--dry-run", "Measure, but do not store."),
    given: MeterOptions,
) -> None:
    """Measure the idle power of this machine and store it for later runs.

    Leave the machine alone meanwhile. Application energy is what was measured minus this.
    """
    durations_s = _durations_s(windows)
    settings = given.settings()
    session = Session.open(settings, name="idle", in_process=False, keep=False)
    try:
        if not session.channels:
            reasons = "; ".join(f"{m.name}: {m.reason}" for m in session.missing)
            raise MeterUnavailable(
                "idle", f"nothing can be read here ({reasons})", "see 'wattloop devices'"
            )
        warn_if_busy(session, "the idle line will be too high; stop what runs")
        fit = _fit(session, durations_s)
        record = IdleRecord(
            machine_id=session.host.machine_id,
            host=session.host.name,
            kernel=platform.release(),
            fitted_wall_s=session.clock.wall_s(),
            lines=fit.lines,
        )
    finally:
        session.close()
    _report(fit, quiet=given.json_file == "-")
    kept = "" if dry_run or not fit.lines else _kept(settings, record)
    write_json(_as_dict(fit, record, kept), given.json_file)


def _durations_s(text: str) -> list[float]:
    try:
        durations_s = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--windows {text}: write seconds with commas, such as 1,2,4") from None
    if len(set(durations_s)) < MIN_WINDOWS or not all(0.1 <= d <= 3_600 for d in durations_s):
        raise ConfigError(
            f"--windows {text}: give at least {MIN_WINDOWS} different lengths between 0.1 and "
            "3600 seconds, such as 1,2,4,8"
        )
    return durations_s


def _fit(session: Session, durations_s: list[float]) -> IdleFit:
    def measure_sleep(duration_s: float) -> WindowResult:
        begin_s = session.clock.now_s()
        session.clock.sleep(duration_s)
        end_s = session.clock.now_s()
        session.clock.sleep(SETTLE_S)
        return session.between(begin_s, end_s, name=f"idle {duration_s:g} s")

    with _progress(sum(durations_s)) as advance:
        return fit_idle(measure_sleep, durations_s, lambda window: advance(window.duration_s))


@contextmanager
def _progress(total_s: float) -> Iterator[Callable[[float], None]]:
    if not is_redrawable():
        say(f"wattloop: measuring {format_duration(total_s)} of idling; leave the machine alone")
    with counted("idling; leave the machine alone", total_s) as bar:
        yield bar.advance


def _report(fit: IdleFit, *, quiet: bool) -> None:
    if not quiet:
        rows = [
            (
                name,
                format_power(line.beta_w),
                format_energy(line.alpha_j),
                f"{line.line.r2:.4f}",
                line.provenance.value,
                line.source,
            )
            for name, line in fit.lines.items()
        ]
        headers = ("domain", "idle power", "at t=0", "R2", "how", "source")
        print_rows(headers, rows, title="Idle energy = power x time + constant")
    for missing in fit.skipped:
        say(f"wattloop: no idle line for {missing.name}: {missing.reason}")
    for warning in fit.warnings:
        say(f"wattloop: warning: {warning}")


def _kept(settings: Settings, record: IdleRecord) -> str:
    path = idle_path(settings.store_location, record.machine_id)
    save_idle(path, record)
    say(f"wattloop: kept in {path}")
    return str(path)


def _as_dict(fit: IdleFit, record: IdleRecord, kept: str) -> dict[str, Any]:
    return {
        **picked(record, "machine_id host kernel fitted_wall_s"),
        "kept": kept or None,
        "domains": [
            {
                "name": name,
                "idle_power_w": line.beta_w,
                "constant_j": line.alpha_j,
                "r2": line.line.r2,
                "rmse_j": line.line.rmse,
                "points": line.line.points,
                "provenance": line.provenance.value,
                "source": line.source,
            }
            for name, line in fit.lines.items()
        ],
        "missing": [picked(missing, "name reason") for missing in fit.skipped],
        "warnings": list(fit.warnings),
    }
