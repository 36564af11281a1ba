"""What the driver has asked of Slurm and has to undo if nothing comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Why = Literal["start", "standby", "pass", "ran"]


"""start: its GPUs are free. standby: they may become free before the next round. pass: a job that
is not ours to place, let through. ran: it has begun; should it come back to the queue, what we
changed is undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedJob:
    """A waiting job that was let through the gate.

    Attributes:
        key: of the job.
        nodes: it is to run on; empty leaves the choice to Slurm.
        gpus: that it is to have.
        cap_w: power limit of each GPU that was written for it; None for none.
        at_s: when, seconds since 1970.
        undo: fields of the job as they were before, where they were changed.
    """

    key: str
    user: str
    why: Why
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    cap_w: float | None = None
    at_s: float = 0.0
    undo: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "user": self.user,
            "why": self.why,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "cap_w": self.cap_w,
            "at_s": self.at_s,
            "undo": dict(self.undo),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ReleasedJob":
        """From what `to_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        why = str(data["why"])
        if why not in ("start", "standby", "pass", "ran"):
            raise ValueError(f"{why!r} is no reason to open")
        return cls(
            key=str(data["key"]),
            user=str(data["user"]),
            why=why,  # type: ignore[arg-type]  # compared just above
            nodes=tuple(map(str, data["nodes"])),
            gpus=int(data["gpus"]),
            cap_w=None if data["cap_w"] is None else float(data["cap_w"]),
            at_s=float(data["at_s"]),
            undo={str(name): str(value) for name, value in dict(data["undo"]).items()},
        )
