"""Finish the run of a crashed process from its journal and from samples it had not written."""

import math
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from wattloop.core.clock import VirtualClock
from wattloop.core.files import CLOSE_ON_EXEC
from wattloop.core.records import Domain, Gap
from wattloop.core.results import Missing, RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.concurrent_runs import shared_in
from wattloop.measure.meter_stream import STAMP_SLACK_S, MeterStream, domain_sources
from wattloop.measure.node_leader import NodeLock
from wattloop.measure.process_share import ShareCurves
from wattloop.measure.run_journal import domain_from_dict
from wattloop.measure.window_energy import window_energy
from wattloop.meters.base import Meter, Reading
from wattloop.store.journal import (
    SAMPLES,
    Journal,
    SampleBlock,
    block_from,
    frames_in,
    lock_journal,
    read_journal,
    samples_frame,
)


def finalize_orphaned_run(journal: Journal) -> dict[str, Any]:
    """Write the end of a crashed run: status `died`, energy of its readings."""
    header = journal.header
    feeds = recorded_feeds(journal)
    begin_s = float(header["started_s"])
    times_s = [block.times_s[-1] for block in journal.blocks if len(block.times_s)]
    end_s = max([begin_s, *times_s])
    missing = [Missing(**m) for m in header.get("missing", [])]
    role = _last_role(journal)
    counts_from_s = max(begin_s, min(end_s, float(role.get("counts_from_s", begin_s))))
    settings = header.get("settings", {})
    channels = domain_sources(feeds, settings.get("devices", ()))
    divided = settings.get("share") == "process"
    split = any(channel.domain.is_split for channel in channels)
    shares = ShareCurves.from_events(journal.events) if divided or split else None

    def between(from_s: float, until_s: float) -> WindowResult:
        found = window_energy(
            channels,
            missing,
            name=header["name"],
            window_id=0,
            parent_id=None,
            begin_s=from_s,
            end_s=until_s,
            warnings=("the measuring process died; the run ends with the last reading",),
        )
        return found if shares is None else shares.applied(found, channels)

    result = between(counts_from_s, end_s)
    cpu_part: float | None = 1.0
    if shares is not None and divided:
        cpu_part = shares.cpu_part(channels, counts_from_s, end_s)
    shared = shared_in(journal, result, (channel.domain for channel in channels), between)
    if shared is not None:
        text = shared.text(result.energy_j)
        result = result._replace(warnings=(*result.warnings, text))
    return {
        "type": "end",
        "time_s": end_s,
        "wall_s": float(header["started_wall_s"]) + (end_s - begin_s),
        "status": RunStatus.DIED.value,
        "exit_code": None,
        "signal": None,
        "result": result._replace(begin_s=begin_s).to_dict(),
        "accounting": _accounting(result, header, cpu_part),
        "counted": bool(role.get("counts", True)),
        "counted_by": role.get("counted_by"),
        "shared": None if shared is None else shared.to_dict(),
        "saving": _last_event(journal, "saving").get("saving"),
    }


def _last_role(journal: Journal) -> dict[str, Any]:
    """Return whether the crashed run counted its node and since when, or which run did."""
    if role := _last_event(journal, "role"):
        return role
    # It crashed before its first flush: the first rank of a node locks it at once, others later.
    job = journal.header.get("job") or {}
    return {"counts": not job.get("local_rank")}


def _last_event(journal: Journal, kind: str) -> dict[str, Any]:
    for event in reversed(journal.events):
        if isinstance(event, dict) and event.get("type") == kind:
            return event
    return {}


def _accounting(
    result: WindowResult, header: Mapping[str, Any], cpu_part: float | None
) -> dict[str, Any]:
    """Do the accounting of the run, without a live carbon intensity."""
    from wattloop.accounting.summary import account

    known = set(Settings._fields)
    stored = {name: value for name, value in header.get("settings", {}).items() if name in known}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    settings = Settings(**{**values, "carbon_url": "", "carbon_provider": ""}).of_part(cpu_part)
    started_wall_s = float(header["started_wall_s"])
    return account(result, settings, started_wall_s=started_wall_s).to_dict()


class RecordedMeter(Meter):
    """A meter whose domains and readings come from a journal."""

    name: ClassVar[str] = "recorded"

    def __init__(self, domains: Sequence[Domain]) -> None:
        self._domains = tuple(domains)

    def read(self) -> Sequence[Reading]:
        return [Gap("recorded", lost=True)] * len(self._domains)


def recorded_feeds(journal: Journal) -> list[MeterStream]:
    """Return streams with the readings of a journal."""
    feeds = [
        MeterStream(
            RecordedMeter([domain_from_dict(d) for d in feed["domains"]]), VirtualClock(), index
        )
        for index, feed in enumerate(journal.header["feeds"])
    ]
    for block in journal.blocks:
        if block.feed >= len(feeds):  # signals
            continue
        for i, time_s in enumerate(block.times_s):
            values = block.values[i * block.width : (i + 1) * block.width]
            feeds[block.feed].take(time_s, [_reading(v) for v in values])
    return feeds


def _reading(value: float) -> Reading:
    return Gap("not read") if math.isnan(value) else value


# Samples that a killed program had not written: its sampler process still has them.
#
# Another process of the job may take over at the same moment, and counts from the end of the
# crashed run's journal. So only the holder of the node lock completes the journal.


def append_unsent_samples(job_id: str, run_id: str, path: Path, sent: Iterable[bytes]) -> None:
    """Complete the journal of a crashed run, unless another run already counts the node."""
    claim = NodeLock(job_id)
    owner = claim.owner()
    if owner is not None and owner.get("run_id") == run_id and claim.take(owner):
        claim.release(complete_journal(path, sent))


def complete_journal(path: Path, sent: Iterable[bytes]) -> float | None:
    """Append the readings among the frames `sent` that are newer than those in a crashed run's
    journal.

    Locks the journal, as an import does. The journal stays unchanged if another process holds the
    lock, if it was imported meanwhile, or if the run has an end.

    Returns:
        Time of the last reading in it; None if it was left unchanged.
    """
    with lock_journal(path) as refusal:
        if refusal is not None:
            return None
        journal = read_journal(path)
        if journal is None or journal.end is not None:
            return None
        last_s: dict[int, float] = {}
        for block in journal.blocks:
            if block.times_s:
                # Two processes set the timestamps: readings this close may be in the wrong order.
                until_s = block.times_s[-1] + STAMP_SLACK_S
                last_s[block.feed] = max(last_s.get(block.feed, -math.inf), until_s)
        rests = [
            rest
            for kind, payload, _ in frames_in(b"".join(sent))
            if kind == SAMPLES
            and (rest := _after(block := block_from(payload), last_s.get(block.feed, -math.inf)))
        ]
        size_b = path.stat().st_size - journal.torn_bytes
        file = os.open(path, os.O_WRONLY | os.O_APPEND | CLOSE_ON_EXEC)
        try:
            os.ftruncate(file, size_b)  # data after a torn frame is never read
            data = b"".join(samples_frame(*rest) for rest in rests)
            if os.write(file, data) != len(data):
                os.ftruncate(file, size_b)
                return None
        finally:
            os.close(file)
        times_s = [
            *(b.times_s[-1] for b in journal.blocks if b.times_s),
            *(rest.times_s[-1] for rest in rests),
        ]
    return max(times_s, default=None)


def _after(block: SampleBlock, time_s: float) -> SampleBlock | None:
    first = next((i for i, t in enumerate(block.times_s) if t > time_s), None)
    if first is None:
        return None
    values: array[float] = block.values[first * block.width :]
    return SampleBlock(block.feed, block.width, block.times_s[first:], values)
