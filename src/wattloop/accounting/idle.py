"""Idle lines and application energy (thesis, eq. 3.2), and the file of idle lines per machine."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.accounting.energy_slope import MIN_POINTS, Line, fit_line
from wattloop.core.errors import StoreError, StoreTooNew, StoreUnwritable, WattloopError
from wattloop.core.files import atomic_write_json, user_path
from wattloop.core.records import Provenance
from wattloop.core.results import DomainEnergy, Missing, WindowResult
from wattloop.core.settings import Settings
from wattloop.core.units import format_energy

# Idle lines and application energy (thesis, eq. 3.2).
#
# E_idle(t) = alpha + beta t
# E_application = E_measured - E_idle(t_application)

DURATIONS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Doubling lengths as in the thesis's table 3.13; one minute in all."""
LINEAR_R2 = 0.99
"""The thesis found 0.9977 and more on quiet machines; below this the machine was not idle."""
COVERED = 0.99
"""A window with a smaller covered share is not used."""


class IdleLine(NamedTuple):
    """Energy of one domain while the machine does nothing, as a line over time."""

    domain: str
    line: Line
    source: str
    provenance: Provenance

    @property
    def alpha_j(self) -> float:
        """Joules at t = 0: the cost of the window itself."""
        return self.line.intercept

    @property
    def beta_w(self) -> float:
        return self.line.slope

    def energy_j(self, duration_s: float) -> float:
        """Joules the idle domain would have used in `duration_s`."""
        return self.line.at(duration_s)

    def uncertainty_j(self, duration_s: float) -> float:
        """Half-width (95%) for `energy_j`; grows where the line is extrapolated."""
        return self.line.half_width(duration_s)


class IdleFit(NamedTuple):
    """Result of `fit_idle`: a line per domain, domains without one, and warnings."""

    lines: dict[str, IdleLine]
    skipped: tuple[Missing, ...]
    warnings: tuple[str, ...]


class ApplicationDomain(NamedTuple):
    """Application energy of one domain; None with a reason where it is unknown."""

    name: str
    energy_j: float | None
    uncertainty_j: float
    idle_j: float | None
    provenance: Provenance
    in_total: bool
    reason: str = ""


class ApplicationEnergy(NamedTuple):
    """Energy due to the application: measured energy minus the energy of idling."""

    domains: tuple[ApplicationDomain, ...]
    warnings: tuple[str, ...]

    @property
    def counted(self) -> tuple[ApplicationDomain, ...]:
        """The domains that make up the total."""
        return tuple(d for d in self.domains if d.in_total and d.energy_j is not None)

    @property
    def energy_j(self) -> float | None:
        """Joules over the domains that have an idle line; None when none has."""
        values = [d.energy_j for d in self.counted if d.energy_j is not None]
        return sum(values) if values else None

    @property
    def uncertainty_j(self) -> float:
        """Half-width for `energy_j`; domains are independent, so parts add in quadrature."""
        return math.hypot(*(d.uncertainty_j for d in self.counted))

    @property
    def complete(self) -> bool:
        """True if every domain of the window's total has its application energy."""
        return bool(self.counted) and all(
            d.energy_j is not None for d in self.domains if d.in_total
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "energy_j": self.energy_j,
            "uncertainty_j": self.uncertainty_j,
            "complete": self.complete,
            "domains": [d._asdict() for d in self.domains],
        }


def application_energy(
    result: WindowResult, idle_lines: Mapping[str, IdleLine]
) -> ApplicationEnergy:
    """Compute measured minus idle energy, per domain, with the uncertainty of both."""
    domains, warnings = [], []
    for measured in result.domains:
        line = idle_lines.get(measured.name)
        part = _application_of(measured, result.duration_s, line)
        domains.append(part)
        warnings += _doubts(measured, part, line)
    return ApplicationEnergy(tuple(domains), tuple(warnings))


def fit_idle(
    measure_sleep: Callable[[float], WindowResult],
    durations_s: Sequence[float] = DURATIONS_S,
    on_window: Callable[[WindowResult], None] | None = None,
) -> IdleFit:
    """Measure idle windows of the given lengths and fit a line for each domain.

    Args:
        measure_sleep: sleeps for so many seconds and returns the window around the sleep.
        durations_s: lengths of the windows; at least three different ones.
        on_window: called with each window as it ends, for a progress bar.
    """
    windows = []
    for duration_s in durations_s:
        window = measure_sleep(duration_s)
        windows.append(window)
        if on_window is not None:
            on_window(window)
    return fit_windows(windows)


def fit_windows(windows: Sequence[WindowResult]) -> IdleFit:
    """Fit a line for each domain seen in idle `windows`."""
    lines: dict[str, IdleLine] = {}
    skipped: list[Missing] = []
    warnings: list[str] = []
    newest = {domain.name: domain for window in windows for domain in window.domains}
    for name, domain in newest.items():
        points = [p for window in windows for p in _points(window, name)]
        try:
            line = fit_line([t for t, _ in points], [e for _, e in points])
        except ValueError as problem:
            remedy = "measure at least three windows of different lengths"
            skipped.append(Missing(name, f"no idle line: {problem}", remedy))
            continue
        lines[name] = IdleLine(name, line, domain.source, domain.provenance)
        if line.r2 < LINEAR_R2:
            warnings.append(
                f"{name}: idle energy is not a line over time (R2 {line.r2:.3f}); something else "
                "was running: stop it and run 'wattloop idle' again"
            )
    for missing in {m.name: m for window in windows for m in window.missing}.values():
        if missing.name not in lines:
            skipped.append(missing)
    return IdleFit(lines, tuple(skipped), tuple(warnings))


def _points(window: WindowResult, name: str) -> list[tuple[float, float]]:
    return [
        (window.duration_s, d.energy_j)
        for d in window.domains
        if d.name == name and d.energy_j is not None and d.covered >= COVERED
    ]


def _application_of(
    measured: DomainEnergy, duration_s: float, line: IdleLine | None
) -> ApplicationDomain:
    if measured.energy_j is None or line is None:
        return ApplicationDomain(
            name=measured.name,
            energy_j=None,
            uncertainty_j=0.0,
            idle_j=None,
            provenance=measured.provenance,
            in_total=measured.in_total,
            reason="it was not measured"
            if measured.energy_j is None
            else "no idle line for it: run 'wattloop idle' on this machine",
        )
    # Time without readings holds no measured energy, so it must cost no idle energy either.
    covered_s = duration_s * measured.covered
    idle_j = line.energy_j(covered_s)
    return ApplicationDomain(
        name=measured.name,
        energy_j=measured.energy_j - idle_j,
        uncertainty_j=math.hypot(measured.uncertainty_j, line.uncertainty_j(covered_s)),
        idle_j=idle_j,
        provenance=Provenance.weakest((measured.provenance, line.provenance)),
        in_total=measured.in_total,
    )


def _doubts(measured: DomainEnergy, part: ApplicationDomain, line: IdleLine | None) -> list[str]:
    doubts = []
    if part.energy_j is not None and part.energy_j < 0:
        doubts.append(
            f"{part.name}: application energy is {format_energy(part.energy_j)}: the machine was "
            "quieter than when its idle line was fitted; run 'wattloop idle' again"
        )
    if line is not None and line.source != measured.source:
        doubts.append(
            f"{part.name}: read from {measured.source}, but its idle line comes from "
            f"{line.source}; run 'wattloop idle' again"
        )
    return doubts


VERSION = 1
OLD_AFTER_DAYS = 90
"""Firmware, kernel and services change within months; then the line should be fitted again."""
DAY_S = 86_400.0


class IdleRecord(NamedTuple):
    """The idle lines of one machine, and when and on what kernel they were fitted."""

    machine_id: str
    host: str
    kernel: str
    fitted_wall_s: float
    lines: Mapping[str, IdleLine]

    def age_days(self, now_wall_s: float) -> float:
        """Days since the lines were fitted; 0 when the clock was set back."""
        return max(0.0, now_wall_s - self.fitted_wall_s) / DAY_S

    def note(self, now_wall_s: float, kernel: str = "") -> str:
        """One sentence on the age of the lines, for the results that use them."""
        days = self.age_days(now_wall_s)
        text = f"idle line fitted {_date(self.fitted_wall_s)} ({days:.0f} days ago)"
        if kernel and self.kernel and kernel != self.kernel:
            text += f" on kernel {self.kernel}, now {kernel}: run 'wattloop idle' again"
        elif days > OLD_AFTER_DAYS:
            text += ": old, run 'wattloop idle' again"
        return text


def idle_path(store_location: str, machine_id: str) -> Path:
    """Return `<directory of the store>/idle/<machine_id>.json`.

    A store on a database server has no directory: the user's data directory is used.
    """
    location = Settings().store_location if "://" in store_location else store_location
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in machine_id) or "machine"
    return user_path(location).parent / "idle" / f"{safe}.json"


def fitted_idle_power(settings: Settings, machine_id: str) -> dict[str, float]:
    """Return the slopes of a machine's idle lines; {} without them."""
    try:
        record = load_idle(idle_path(settings.store_location, machine_id))
    except WattloopError:
        return {}
    return {} if record is None else {name: line.beta_w for name, line in record.lines.items()}


def save_idle(path: Path, record: IdleRecord) -> None:
    """Write `record` atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(path, _to_dict(record), indent=2, mode=0o600, durable=True)
    except OSError as problem:
        raise StoreUnwritable(
            f"idle lines cannot be written to {path}: {problem.strerror or problem}; make the "
            "directory writable or name another store with WATTLOOP_STORE"
        ) from None


def load_idle(path: Path) -> IdleRecord | None:
    """Return the stored lines; None when the machine has none yet.

    Raises:
        StoreTooNew: a newer Wattloop wrote the file.
        StoreError: the file cannot be read or is damaged; the message says what to do.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StoreError(
            f"idle lines in {path} cannot be read: {problem.strerror or problem}; "
            f"check its permissions with 'ls -l {path}'"
        ) from None
    except ValueError as problem:
        raise _damaged(path, problem) from None
    if (
        isinstance(data, dict)
        and isinstance(data.get("version"), int)
        and data["version"] > VERSION
    ):
        raise StoreTooNew(
            f"idle lines in {path} were written by a newer Wattloop (format {data['version']}, "
            f"this one reads {VERSION}); upgrade, or run 'wattloop idle' to replace them"
        )
    try:
        return _from_dict(data)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise _damaged(path, problem) from None


def _damaged(path: Path, problem: Exception) -> StoreError:
    what = f"'{problem.args[0]}' is missing" if isinstance(problem, KeyError) else str(problem)
    return StoreError(
        f"idle lines in {path} are damaged ({what}); run 'wattloop idle' to fit them again, "
        "or delete the file to do without"
    )


def _to_dict(record: IdleRecord) -> dict[str, Any]:
    facts = record._asdict()
    del facts["lines"]
    domains = {
        name: {"source": line.source, "provenance": line.provenance, **line.line._asdict()}
        for name, line in record.lines.items()
    }
    fitted = _date(record.fitted_wall_s)
    return {"version": VERSION, **facts, "fitted": fitted, "domains": domains}


def _from_dict(data: Any) -> IdleRecord:
    return IdleRecord(
        machine_id=str(data["machine_id"]),
        host=str(data["host"]),
        kernel=str(data["kernel"]),
        fitted_wall_s=float(data["fitted_wall_s"]),
        lines={name: _line(name, entry) for name, entry in data["domains"].items()},
    )


def _line(name: str, entry: Any) -> IdleLine:
    points = int(entry["points"])
    if points < MIN_POINTS or float(entry["sum_squares_x"]) <= 0:
        raise ValueError(f"{name} has too few points")
    return IdleLine(
        domain=name,
        line=Line._make(float(entry[field]) for field in Line._fields)._replace(points=points),
        source=str(entry["source"]),
        provenance=Provenance(entry["provenance"]),
    )


def _date(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d")
