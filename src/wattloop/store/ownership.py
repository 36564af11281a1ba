"""Whose a run is: a node's own, or of a machine that is no node."""

from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.store.arriving import Source
from wattloop.store.incoming import Origin
from wattloop.store.job_rows import AGENT_KIND, UNALLOCATED_KIND
from wattloop.store.run_record import RunRecord

__all__ = ["NotYours", "check_host", "check_owner", "check_record"]


class NotYours(ConfigError):
    """Somebody tried to write a run of another."""


def check_host(run_id: str, host: Any, source: Source) -> None:
    """Whether a run that calls itself of `host` may come from there.

    Raises:
        NotYours: it may not.
    """
    if (source.node and host != source.node) or str(host) in source.not_for:
        raise NotYours(f"{run_id} is a run of another node")


def check_owner(run_id: str, origin: Origin | None, source: Source | None) -> None:
    """Who began a run goes on with it, and nobody else but the server's own token.

    Raises:
        NotYours: another began it.
    """
    if source is None or (source.is_trusted and not source.node):
        return
    own = origin is not None and origin.node == source.node
    if not own or (not source.node and origin is not None and origin.is_trusted):
        raise NotYours(f"{run_id} is a run of another node")


def check_record(record: RunRecord, source: Source | None) -> None:
    """Who may hear of a run that is kept, and replace one that is kept provisionally.

    Raises:
        NotYours: it is another's.
    """
    if source is None:
        return
    check_host(record.run_id, record.host, source)
    if not source.is_trusted and record.kind in (AGENT_KIND, UNALLOCATED_KIND):
        raise NotYours(f"{record.run_id} is a run of a node")
