"""Validation of runs from other machines: bounded texts, corrected clock, plausible energies."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.records import highest_power_w, shape_fault
from wattloop.core.results import DomainEnergy, Label, Missing, WindowResult
from wattloop.core.text import plain
from wattloop.store.run_record import AGENT_KINDS, UNALLOCATED_KIND, RunRecord, feeds_fault

# Plausibility: negative or infinite energy, more than the devices can draw, a time in the future.

MARGIN = 1.25
"""Tolerance over limit x time: GPUs exceed their limit briefly, sensors are off by some percent."""
SLACK_S = 2.0
FUTURE_S = 120.0
EARLIEST_WALL_S = 946_684_800.0  # the year 2000: older GPUs are not measured


def reasons_to_doubt(record: RunRecord, now_wall_s: float) -> list[str]:
    """Return why the figures of a run are impossible; empty when they are plausible."""
    return [*_times(record, now_wall_s), *_energies(record)]


def _times(record: RunRecord, now_wall_s: float) -> Iterator[str]:
    begin_s = record.started_wall_s
    if begin_s > now_wall_s + FUTURE_S:
        yield f"begins {begin_s - now_wall_s:.0f} s in the future"
    if begin_s < EARLIEST_WALL_S:
        yield "begins before the year 2000"
    duration_s = record.duration_s
    if duration_s is None:
        return
    if not math.isfinite(duration_s) or duration_s < 0:
        yield f"lasts {duration_s:g} s"
    elif begin_s + duration_s > now_wall_s + FUTURE_S >= begin_s:
        yield f"ends {begin_s + duration_s - now_wall_s:.0f} s in the future"


def _energies(record: RunRecord) -> Iterator[str]:
    if record.result is None:
        return
    for domain in record.result.domains:
        energy_j = domain.energy_j
        if energy_j is None:
            continue
        if not math.isfinite(energy_j) or not math.isfinite(domain.uncertainty_j):
            yield f"{domain.name}: {energy_j:g} J"
        elif energy_j < 0:
            yield f"{domain.name}: negative energy, {energy_j:.4g} J"
        else:
            limit_w = _limit_w(domain)
            most_j = limit_w * MARGIN * (max(0.0, record.result.duration_s) + SLACK_S)
            if energy_j > most_j:
                yield (
                    f"{domain.name}: {energy_j:.4g} J in {record.result.duration_s:.4g} s is more "
                    f"than {limit_w:.0f} W x time allow ({most_j:.4g} J)"
                )


def _limit_w(domain: DomainEnergy) -> float:
    """Return the highest power of the device: its stated TDP, below the ceiling of its kind.

    An enforced limit may have been changed during the run, so the ceiling is used then.
    """
    ceiling_w = highest_power_w(domain.scope)
    stated_w = domain.tdp_w
    if stated_w is None or not 0 < stated_w < ceiling_w or "enforced" in domain.tdp_note:
        return ceiling_w
    return stated_w


# Sanitising: any owner of a token may send anything. Data that would break a page, a total or a
# database is cut or dropped here, with a note.

SMALLEST_OFFSET_S = 2.0
"""Smaller clock differences are not corrected: a request takes as long."""
LONGEST = {"name": 200, "host": 200, "user": 100, "cwd": 1_000, "python": 100, "version": 100}
LONGEST_ID = 200
PLACES = (
    *("store", "carbon_file", "carbon_url", "carbon_provider"),
    *("redfish_url", "visa_resource", "replay_file"),
)
"""Settings that name a file or an address of the measuring machine."""
MOST_TAGS, LONGEST_TAG = 64, 1_000
MOST_PARTS, LONGEST_PART = 1_000, 4_000
LARGEST_JSON_B = 256 * 1024
MOST_FEEDS, MOST_SERIES = 64, 2_048


@dataclass(frozen=True, slots=True)
class RunSource:
    """The sender of a run.

    Attributes:
        node: whose token it is; empty when the sender may send any node's.
        clock_offset_s: how far its clock is ahead of ours; None when it was not measured.
        is_trusted: may speak for whole jobs, as agents do: a job's energy is what they say.
        not_for: nodes, which one without trust may not speak for.
    """

    node: str = ""
    clock_offset_s: float | None = None
    is_trusted: bool = False
    not_for: frozenset[str] = frozenset()


def received_run(record: RunRecord, source: RunSource, now_wall_s: float) -> None:
    """Make a record of another machine fit for the store.

    Raises:
        ValueError, TypeError: it cannot be interpreted.
    """
    _bound(record)
    if not source.is_trusted and record.kind in (*AGENT_KINDS, UNALLOCATED_KIND):
        record.kind = "command"
    record.settings = without_places(record.settings)
    _correct_clock(record, source.clock_offset_s)
    doubts = reasons_to_doubt(record, now_wall_s)
    if doubts:
        record.quarantine = "; ".join(doubts)[:LONGEST_PART]
        record.counted = False
        record.notes.append(
            f"quarantined, in no total: {record.quarantine}; look at the node's sensors and clock"
        )
        record.accounting = None  # derived from impossible figures
        if record.result is not None:
            record.result = WindowResult.from_dict(_finite(record.result.to_dict()))


def without_places(settings: Any) -> dict[str, Any]:
    """Remove files and addresses from another machine's settings: they are not opened here."""
    known = settings if isinstance(settings, Mapping) else {}
    return {**known, **{name: "" for name in PLACES if known.get(name) or name == "store"}}


def _bound(record: RunRecord) -> None:
    for name, most in LONGEST.items():
        setattr(record, name, plain(getattr(record, name))[:most])
    for name in ("machine_id", "boot_id", "kind"):
        setattr(record, name, plain(getattr(record, name))[:LONGEST_ID])
    for name in ("parent_run_id", "counted_by"):
        value = getattr(record, name)
        setattr(record, name, None if value is None else plain(value)[:LONGEST_ID])
    record.started_wall_s = _number(record.started_wall_s, "started_wall_s")
    record.started_s = _number(record.started_s, "started_s")
    for name in ("ended_wall_s", "ended_s"):
        value = getattr(record, name)
        setattr(record, name, None if value is None else _number(value, name))
    for name in ("pid", "exit_code", "signal"):
        value = getattr(record, name)
        fits = isinstance(value, int) and abs(value) < 2**31
        setattr(record, name, value if fits else None)
    record.counted = bool(record.counted)
    record.tags = _texts(record.tags, MOST_TAGS, LONGEST_TAG)
    record.job = _job(record.job)
    if record.command is not None:
        record.command = [plain(part)[:LONGEST_PART] for part in record.command[:MOST_PARTS]]
    _check_feeds(record)
    _drop_unless(record, "settings", _is_small, {})
    _drop_unless(
        record, "missing", lambda v: _is_small(v) and not shape_fault(v, list[Missing]), []
    )
    _drop_unless(record, "accounting", _is_accounting, None)


def _job(job: Any) -> dict[str, Any] | None:
    if not isinstance(job, Mapping) or not job:
        return None
    ranks = {
        name: value if isinstance(value := job.get(name), int) else None
        for name in ("rank", "local_rank", "world_size")
    }
    return {
        "id": plain(job.get("id") or "")[:LONGEST_ID],
        "kind": plain(job.get("kind") or "")[:40],
        **ranks,
        "scheduler": _texts(job.get("scheduler") or {}, MOST_TAGS, LONGEST_ID),
    }


def _texts(given: Any, most: int, longest: int) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError("tags and facts of a scheduler are objects")
    pairs = list(given.items())[:most]
    return {plain(key)[:LONGEST_ID]: plain(value)[:longest] for key, value in pairs}


def _check_feeds(record: RunRecord) -> None:
    fault = feeds_fault(record.feeds)
    if fault:
        raise ValueError(fault)
    series = [
        *(d for f in record.feeds for d in (*(f.get("domains") or ()), *(f.get("signals") or ())))
    ]
    if len(record.feeds) > MOST_FEEDS or len(series) > MOST_SERIES:
        raise ValueError(f"more than {MOST_FEEDS} meters or {MOST_SERIES} series")
    for one in series:
        if len(one["name"]) > LONGEST_ID:
            raise ValueError("a series has no name that could be shown")


def _drop_unless(record: RunRecord, name: str, is_sound: Callable[[Any], bool], empty: Any) -> None:
    value = getattr(record, name)
    try:
        if value is None or is_sound(value):
            return
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    setattr(record, name, empty)
    record.notes.append(f"its {name} made no sense and were left out")


def _is_small(value: Any) -> bool:
    return len(json.dumps(value, default=str)) <= LARGEST_JSON_B


def _is_accounting(value: Any) -> bool:
    """Return True if lists and pages can show it."""
    if not isinstance(value, dict) or len(json.dumps(value, allow_nan=False)) > LARGEST_JSON_B:
        return False
    known = {label.value for label in Label}
    facility = value.get("facility") or {}
    return (
        set((value.get("labels") or {}).values()) <= known
        and _is_number(facility.get("energy_j"))
        and _is_number(value.get("carbon_g"))
        and all(
            all(isinstance(one[key], str) for key in ("code", "severity", "text"))
            and one["code"].replace("_", "").isalnum()
            for one in value.get("insights") or ()
        )
        and all(
            all(_is_number(one[key]) for key in ("value", "power_w", "tdp_w"))
            and all(isinstance(one[key], str) for key in ("name", "label", "basis", "provenance"))
            for one in value.get("efficiencies") or ()
        )
    )


def _is_number(value: Any) -> bool:
    if value is None:
        return True
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


def _number(value: Any, name: str) -> float:
    if value is None or not _is_number(value):
        raise ValueError(f"{name} is not a number")
    return float(value)


def _correct_clock(record: RunRecord, offset_s: float | None) -> None:
    if offset_s is None or abs(offset_s) < SMALLEST_OFFSET_S:
        return
    record.clock_offset_s = offset_s
    record.started_wall_s -= offset_s
    if record.ended_wall_s is not None:
        record.ended_wall_s -= offset_s
    way = "ahead of" if offset_s > 0 else "behind"
    record.notes.append(
        f"its node's clock was {abs(offset_s):.1f} s {way} the server's; start and end are "
        "corrected by that"
    )


def _finite(data: Any) -> Any:
    """Replace infinities and NaN, which JSON and sums cannot hold."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        cleaned = {key: _finite(value) for key, value in data.items()}
        if "uncertainty_j" in cleaned and cleaned["uncertainty_j"] is None:
            cleaned["uncertainty_j"] = 0.0
        return cleaned
    return [_finite(one) for one in data] if isinstance(data, list | tuple) else data
