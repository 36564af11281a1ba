"""Who is at the other end of a connection, as the kernel knows it."""

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wattloop.control.owner import user_name

__all__ = ["Peer", "peer_of", "uid_of"]

SO_PEERGROUPS = 59
"""Of Linux 4.13 on x86 and ARM; Python does not name it."""
MOST_B = 1_024
"""What Python takes: 256 groups."""
CREDENTIALS = struct.Struct("iII")
"""Process, user, group; of users and groups there are more than two thousand millions."""
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that has connected: what it was when it did."""

    pid: int
    uid: int
    gids: frozenset[int]
    user: str
    command: str

    def __str__(self) -> str:
        # others are told the program, not its arguments
        program = self.command.partition(" ")[0] or "unknown"
        return f"{self.user} (process {self.pid}, {program})"


def uid_of(line: socket.socket) -> int:
    """The user at the other end, without looking anything else up."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(data)[1])


def peer_of(line: socket.socket) -> Peer:
    """The process at the other end; its word is not asked for."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(data)
    user = user_name(uid)
    return Peer(pid, uid, frozenset({gid, *_groups(line, user, gid)}), user, _command(pid))


def _groups(line: socket.socket, user: str, gid: int) -> tuple[int, ...]:
    """Its supplementary groups; from the data base of groups where the kernel does not say."""
    with suppress(OSError, struct.error):
        data = line.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MOST_B)
        return struct.unpack(f"{len(data) // 4}I", data)
    with suppress(OSError, KeyError):
        return tuple(os.getgrouplist(user, gid))
    return ()


def _command(pid: int) -> str:
    """For people; a process may call itself what it likes."""
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()[:400]
    except OSError:
        return ""
    words = data.decode(errors="replace").split("\0")
    text = " ".join([Path(words[0]).name, *words[1:]]).strip()
    return "".join(c if c.isprintable() else "?" for c in text)[:120]
