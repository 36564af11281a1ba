"""Levers of the control daemon, where this user cannot set them and the daemon would."""

import os
import stat
from pathlib import Path

from wattloop.control.daemon.protocol import DEFAULT_SOCKET, SOCKET_VARIABLE
from wattloop.control.lever import Lever, LeverState
from wattloop.control.lever_inventory import LeverInventory
from wattloop.core.errors import WattloopError
from wattloop.hardware.host import Host

__all__ = ["with_daemon"]


def with_daemon(found: LeverInventory, host: Host) -> LeverInventory:
    """`found`, with the daemon's levers in place of those that we may not set, or that it holds.

    Without a socket nothing is done and nothing is imported. `WATTLOOP_CONTROL_SOCKET=` (empty)
    switches it off.
    """
    path = _socket(host)
    if path is None:
        return found
    from wattloop.control.daemon.client import connect
    from wattloop.control.daemon.remote_lever import RemoteLever

    try:
        client = connect(path)
        offers = client.levers()
    except WattloopError as error:
        reason = LeverState(name="daemon", available=False, reason=str(error))
        return LeverInventory(found.levers, [*found.absent, reason])
    own = {(lever.device, _leaf(lever.name)): lever for lever in found.levers}
    levers: dict[str, Lever] = {lever.name: lever for lever in found.levers}
    for offer in offers:
        local = own.get((offer["device"], _leaf(offer["name"])))
        remote = RemoteLever(client, offer, local.name if local else "")
        if not offer["available"]:
            continue
        ours = local is not None and local.state().available and not remote.managed
        if not ours and (local is not None or remote.name not in levers):
            levers[remote.name] = remote
    there = {(name.partition("/")[0].partition(":")[0], _leaf(name)) for name in levers}
    absent = [
        line
        for line in found.absent
        if (line.name.partition("/")[0], _leaf(line.name)) not in there
    ]
    return LeverInventory(list(levers.values()), absent)


def _socket(host: Host) -> Path | None:
    """Where to ask; the usual place is about this machine, not about a tree of files."""
    named = os.environ.get(SOCKET_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    try:
        there = stat.S_ISSOCK(DEFAULT_SOCKET.lstat().st_mode)
    except OSError:
        return None
    return DEFAULT_SOCKET if there and host.sysfs == Path("/sys") else None


def _leaf(name: str) -> str:
    return name.rpartition("/")[2]
