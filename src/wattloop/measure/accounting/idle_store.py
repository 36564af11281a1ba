"""Idle lines kept per machine, as a JSON file next to the store."""

import contextlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import StoreError, StoreTooNew, StoreUnwritable
from wattloop.core.provenance import Provenance
from wattloop.core.settings import Settings
from wattloop.core.user_path import user_path
from wattloop.measure.accounting.idle import IdleLine
from wattloop.measure.accounting.line import MIN_POINTS, Line

__all__ = ["IdleRecord", "idle_path", "load_idle", "save_idle"]

VERSION = 1
OLD_AFTER_DAYS = 90
"""Firmware, kernel and services change within months; then the line should be fitted anew."""
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
    """`<directory of the store>/idle/<machine_id>.json`.

    A store on a database server has no directory: the user's data directory is used.
    """
    location = Settings().store_location if "://" in store_location else store_location
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in machine_id) or "machine"
    return user_path(location).parent / "idle" / f"{safe}.json"


def save_idle(path: Path, record: IdleRecord) -> None:
    """Write `record` so that readers see the old file or the new one, never half of it."""
    import tempfile  # only writers need it, and it is slow to import

    text = json.dumps(_to_dict(record), indent=2) + "\n"
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105 - `temporary` is a name from mkstemp
    except OSError as problem:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise StoreUnwritable(
            f"idle lines cannot be written to {path}: {problem.strerror or problem}; make the "
            "directory writable or name another store with WATTLOOP_STORE"
        ) from None


def load_idle(path: Path) -> IdleRecord | None:
    """The stored lines; None when the machine has none yet.

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
        f"idle lines in {path} are damaged ({what}); run 'wattloop idle' to fit them anew, "
        "or delete the file to do without"
    )


def _to_dict(record: IdleRecord) -> dict[str, Any]:
    return {
        "version": VERSION,
        "machine_id": record.machine_id,
        "host": record.host,
        "kernel": record.kernel,
        "fitted_wall_s": record.fitted_wall_s,
        "fitted": _date(record.fitted_wall_s),
        "domains": {
            name: {
                "source": line.source,
                "provenance": line.provenance.value,
                **line.line._asdict(),
            }
            for name, line in record.lines.items()
        },
    }


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
        line=Line(
            intercept=float(entry["intercept"]),
            slope=float(entry["slope"]),
            r2=float(entry["r2"]),
            rmse=float(entry["rmse"]),
            points=points,
            mean_x=float(entry["mean_x"]),
            sum_squares_x=float(entry["sum_squares_x"]),
        ),
        source=str(entry["source"]),
        provenance=Provenance(entry["provenance"]),
    )


def _date(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d")
