"""What every replayed job did and when, by its own account."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ran", "read_notes"]


@dataclass(frozen=True, slots=True)
class Ran:
    """One job from its start to its end, or until it was stopped.

    Attributes:
        job: its number in the plan.
        slurm_job: its number in Slurm.
        gpus: (node, GPU) of all its GPUs.
        begin_s, end_s: of its work, on the clock of `time.monotonic`.
        done: share of its work that is done.
    """

    job: int
    slurm_job: int
    gpus: tuple[tuple[str, int], ...]
    begin_s: float
    end_s: float
    done: float


def read_notes(folder: Path) -> list[Ran]:
    """All that has been noted, by begin. A job of several nodes is one, and as long as its
    longest part.
    """
    parts: dict[tuple[int, int], list[Ran]] = defaultdict(list)
    for path in (folder / "notes").iterdir():
        name, _, node = path.name.partition(".")
        for turn, line in enumerate(path.read_text("utf-8").splitlines()):
            parts[int(name), turn].append(_ran(int(name), node, line))
    return sorted(map(_whole, parts.values()), key=lambda ran: ran.begin_s)


def _ran(job: int, node: str, line: str) -> Ran:
    data = json.loads(line)
    gpus = tuple((node, int(gpu)) for gpu in data["gpus"])
    return Ran(job, data["slurm_job"], gpus, data["begin_s"], data["end_s"], data["done"])


def _whole(parts: list[Ran]) -> Ran:
    first = parts[0]
    gpus = tuple(sorted(gpu for part in parts for gpu in part.gpus))
    begin_s, end_s = min(p.begin_s for p in parts), max(p.end_s for p in parts)
    return Ran(first.job, first.slurm_job, gpus, begin_s, end_s, min(p.done for p in parts))
