"""How long the machine did nothing after a run, and what it draws then."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import select

from wattloop.accounting.idle import IdleLine, idle_path, load_idle
from wattloop.core.errors import StoreError
from wattloop.core.results import non_overlapping
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord
from wattloop.store.schema import runs

__all__ = ["IdleNode", "idle_node"]


class IdleNode(NamedTuple):
    """From the end of a run to the next one that was measured on the machine.

    Attributes:
        waited_s: seconds in between.
        power_w: of the idle machine, of the devices that its idle line covers.
        source: of that power.
    """

    waited_s: float
    power_w: float
    source: str


def idle_node(store: Store, record: RunRecord) -> IdleNode | None:
    """None where the machine has no idle line, or no later run says how long it waited."""
    location = str(store.journals.parent / "runs.db")
    if record.ended_wall_s is None or not record.machine_id:
        return None
    try:
        idle = load_idle(idle_path(location, record.machine_id))
    except StoreError:  # damaged, or by a newer version: advice does without
        return None
    if idle is None or not idle.lines:
        return None
    query = (
        select(runs.c.started_wall_s)
        .where(runs.c.machine_id == record.machine_id)
        .where(runs.c.started_wall_s > record.ended_wall_s)
        .order_by(runs.c.started_wall_s)
        .limit(1)
    )
    with store.reading() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    return IdleNode(
        float(row[0]) - record.ended_wall_s,
        _power_w(idle.lines),
        f"by the idle line of {idle.note(idle.fitted_wall_s).split(' (')[0].split()[-1]}",
    )


def _power_w(lines: Mapping[str, IdleLine]) -> float:
    """Of devices that do not overlap; a meter at the socket covers them all."""
    if "node" in lines:
        return lines["node"].beta_w
    names = non_overlapping((name, _inside(name)) for name in lines)
    return sum(lines[name].beta_w for name in names)


def _inside(name: str) -> str | None:
    head, _, leaf = name.rpartition("/")
    return f"{head}/package" if head and leaf != "package" else None
