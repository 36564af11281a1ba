"""The header of a journal: run id, host, meters and start time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wattloop.core.records import Domain, DomainKind, Provenance, Scope
from wattloop.measure.meter_stream import MeterStream
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.measure.session import Session


def new_run_id(wall_s: float) -> str:
    """Sortable by time and unique: `20261115-031500-3f9a1c`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(wall_s))
    return f"{stamp}-{os.urandom(3).hex()}"


def journal_header(
    session: Session, *, command: Sequence[str] | None, kind: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Plain data for the first frame of a journal."""
    job = session.job or session.pool
    settings = {**session.settings._asdict(), "sources": dict(session.settings.sources)}
    return {
        "run_id": session.run_id,
        "name": session.name,
        "command": list(command) if command is not None else None,
        "kind": kind,
        "started_wall_s": session.started_wall_s,
        "started_s": session.started_s,
        "boot_id": session.host.boot_id,
        "host": session.host.name,
        "machine_id": session.host.machine_id,
        "pid": os.getpid(),
        "user": _user(),
        "cwd": _cwd(),
        "python": f"{sys.version.split()[0]} ({sys.implementation.name})",
        "version": __version__,
        "settings": without_secrets(settings),
        "tags": dict(tags),
        "job": None if job is None else job.to_dict(),
        "parent_run_id": session.parent_run_id,
        "feeds": [feed_to_dict(feed) for feed in session.feeds],
        "missing": [missing._asdict() for missing in session.missing],
    }


def feed_to_dict(feed: MeterStream) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        "meter": feed.meter.name,
        "domains": [domain._asdict() for domain in feed.domains],
        "signals": [signal._asdict() for signal in feed.signals],
    }


def domain_from_dict(data: Mapping[str, Any]) -> Domain:
    """Inverse of `domain._asdict()`; fields of later versions are ignored."""
    known = set(Domain._fields)
    values = {name: value for name, value in data.items() if name in known}
    return Domain(
        **{
            **values,
            "kind": DomainKind(values["kind"]),
            "scope": Scope(values["scope"]),
            "provenance": Provenance(values["provenance"]),
        }
    )


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # containers often run as a number without a name
        return str(os.getuid())


def _cwd() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - the text is stored, no path is built from it
    except OSError:
        return ""


def without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """URLs may carry passwords; those never reach a file."""
    kept = dict(settings)
    for name in ("redfish_url", "carbon_url", "store"):
        text = str(kept.get(name) or "")
        scheme, separator, rest = text.partition("://")
        if separator and "@" in rest:
            kept[name] = f"{scheme}://***@{rest.rpartition('@')[2]}"
    return kept
