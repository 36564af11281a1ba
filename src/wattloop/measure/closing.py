"""The end of a run whose measurer died: what its journal still tells."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from wattloop.core.clock import VirtualClock
from wattloop.core.records import Domain, Gap
from wattloop.core.results import Missing, RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.channels import channels_of
from wattloop.measure.feeds import MeterFeed
from wattloop.measure.header import domain_from_dict
from wattloop.measure.meter import Meter, Reading
from wattloop.measure.presence import shared_in
from wattloop.measure.process_share import ShareCurves
from wattloop.measure.resolve import resolve_window
from wattloop.store.journal import Journal

__all__ = ["RecordedMeter", "close_journal", "recorded_feeds"]


def close_journal(journal: Journal) -> dict[str, Any]:
    """The end that the run could not write itself: status `died`, energy of what was read."""
    header = journal.header
    feeds = recorded_feeds(journal)
    begin_s = float(header["started_s"])
    times_s = [block.times_s[-1] for block in journal.blocks if len(block.times_s)]
    end_s = max([begin_s, *times_s])
    missing = [Missing(**m) for m in header.get("missing", [])]
    role = _last_role(journal)
    counts_from_s = max(begin_s, min(end_s, float(role.get("counts_from_s", begin_s))))
    settings = header.get("settings", {})
    channels = channels_of(feeds, settings.get("devices", ()))
    divided = settings.get("share") == "process"
    shares = ShareCurves.from_events(journal.events) if divided else None

    def between(from_s: float, until_s: float) -> WindowResult:
        found = resolve_window(
            channels,
            missing,
            name=header["name"],
            window_id=0,
            parent_id=None,
            begin_s=from_s,
            end_s=until_s,
            warnings=("whoever measured this run died; it ends with the last reading",),
        )
        return found if shares is None else shares.applied(found, channels)

    result = between(counts_from_s, end_s)
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
        "accounting": _accounting(result, header, shares),
        "counted": bool(role.get("counts", True)),
        "counted_by": role.get("counted_by"),
        "shared": None if shared is None else shared.to_dict(),
    }


def _last_role(journal: Journal) -> dict[str, Any]:
    """Whether the dead run counted its node and since when, or which run did."""
    for event in reversed(journal.events):
        if isinstance(event, dict) and event.get("type") == "role":
            return event
    # It died before its first flush: the first rank of a node claims it at once, others later.
    job = journal.header.get("job") or {}
    return {"counts": not job.get("local_rank")}


def _accounting(
    result: WindowResult, header: Mapping[str, Any], shares: ShareCurves | None
) -> dict[str, Any]:
    """What the run itself would have made of its energy, but for a live carbon intensity."""
    from wattloop.measure.accounting.summary import account

    known = set(Settings._fields)
    stored = {name: value for name, value in header.get("settings", {}).items() if name in known}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    settings = Settings(**{**values, "carbon_url": ""})
    if shares is not None:
        part = shares.share("cpu", result.begin_s, result.end_s) or 0.0
        settings = settings._replace(node_share=settings.node_share * part)
    started_wall_s = float(header["started_wall_s"])
    return account(result, settings, started_wall_s=started_wall_s).to_dict()


class RecordedMeter(Meter):
    """A meter that is only remembered: its domains are known, its readings come from a journal."""

    name: ClassVar[str] = "recorded"

    def __init__(self, domains: Sequence[Domain]) -> None:
        self._domains = tuple(domains)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """As the journal's header lists them."""
        return self._domains

    def read(self) -> Sequence[Reading]:
        """Nothing more can be read."""
        return [Gap("recorded", lost=True)] * len(self._domains)


def recorded_feeds(journal: Journal) -> list[MeterFeed]:
    """Feeds with the readings of a journal."""
    feeds = [
        MeterFeed(
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
