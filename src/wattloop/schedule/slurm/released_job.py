"""Record of a released job, with the fields to restore if it does not start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Why = Literal["start", "standby", "pass", "ran"]


"""start: its GPUs are free. standby: they may become free before the next round. pass: a job that
the driver does not place. ran: it has started; if it returns to the queue, its changed fields are
restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedJob:
    """Waiting job that the driver has released to start in its reservation.

    Attributes:
        key: Slurm's key of the job.
        nodes: requested nodes; empty leaves the choice to Slurm.
        gpus: requested GPUs.
        cap_w: power cap of each GPU written for it; None for none.
        at_s: time of the release, seconds since 1970.
        undo: previous values of the changed fields.
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
        """Build a record from the result of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the data has another form.
        """
        why = str(data["why"])
        if why not in ("start", "standby", "pass", "ran"):
            raise ValueError(f"{why!r} is not a reason to release a job")
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
