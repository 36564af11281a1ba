"""Waiting and running jobs, read by one call of squeue."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from wattloop.core.errors import SlurmError
from wattloop.fleet.slurm_text import expand_nodes
from wattloop.schedule.driver.inventory import HAS_MACHINES, SchedulerJob

ITEMS = re.compile(r"(?:[^,(]|\([^)]*\))+")
"""Parts of a text between commas outside of brackets."""
ITEM = re.compile(
    r"(?:gres[:/])?gpu(?:[:/](?P<type>[A-Za-z_][\w.+-]{0,63}))?(?:[:=](?P<count>\d{1,6}))?"
    r"(?P<rest>\(.*\))?",
    re.ASCII,
)


class GpuRequest(NamedTuple):
    """Number and type of GPUs; the type is empty where none is named."""

    type_name: str
    number: int


def parse_gpus(text: str) -> GpuRequest:
    """Parse the GPUs of a TRES text; for several types, the first type with the total count."""
    type_name, count = "", 0
    for item in ITEMS.findall(text[:10_000]):
        match = ITEM.fullmatch(item)
        if match is not None:
            type_name = type_name or (match["type"] or "").lower()
            count += int(match["count"] or 1)
    return GpuRequest(type_name, count)


# Columns and records have a fixed width in bytes, so line breaks or separators in a job's name or
# comment cannot change other columns. `squeue --json` is as safe, but also lists finished jobs and
# takes ten times as long (ADR 0043).

COLUMNS = {
    "JobArrayID": ("JOBID", 128),
    "JobID": ("JOBID", 20),
    "State": ("STATE", 20),
    "Reason": ("REASON", 64),
    "UserName": ("USER", 64),
    "Account": ("ACCOUNT", 64),
    "Partition": ("PARTITION", 128),
    "Reservation": ("RESERVATION", 64),
    "tres-per-node": ("TRES_PER_NODE", 100),
    "tres-per-job": ("TRES_PER_JOB", 100),
    "tres-per-task": ("TRES_PER_TASK", 100),
    "NumNodes": ("NODES", 12),
    "NumTasks": ("TASKS", 12),
    "NodeList": ("NODELIST", 400),
    "ReqNodes": ("REQ_NODES", 128),
    "Feature": ("FEATURES", 64),
    "SubmitTime": ("SUBMIT_TIME", 24),
    "StartTime": ("START_TIME", 24),
    "TimeLimit": ("TIME_LIMIT", 24),
    "Deadline": ("DEADLINE", 24),
    "PriorityLong": ("PRIORITY", 24),
    "RestartCnt": ("RESTART_COUNT", 12),
    "Requeue": ("REQUEUE", 12),
    "OverSubscribe": ("OVER_SUBSCRIBE", 16),
    "AdminComment": ("ADMIN_COMMENT", 1024),
    "Name": ("NAME", 128),
    "Command": ("COMMAND", 256),
    "Comment": ("COMMENT", 1100),
}
"""Column name of squeue -> its heading and its width in bytes."""
OLD_NAMES = {"AdminComment": "admin_comment"}
"""In 22.05."""
NOTHING = {"", "(null)", "N/A", "n/a", "None assigned", "NONE"}
LIMIT = re.compile(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", re.ASCII)
ARRAY = re.compile(r"(\d{1,18})_\[(.*?)\]?", re.ASCII | re.DOTALL)
TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
KEY = re.compile(r"\d{1,18}(_\d{1,9})?", re.ASCII)
MOST_TASKS = 200
"""Most waiting tasks read of one array; the rest follows as these start."""


class JobLister:
    """Job list from squeue that parses only records changed since the last call."""

    def __init__(self, run: Callable[..., bytes]) -> None:
        self._run = run
        self._read: dict[bytes, list[SchedulerJob]] = {}

    def jobs(self) -> list[SchedulerJob]:
        """Return all jobs that wait or have an allocation."""
        error = SlurmError("Slurm: squeue has other columns than those asked for")
        for names in (OLD_NAMES, {}):
            form = ",".join(f"{names.get(n, n)}:{width}" for n, (_, width) in COLUMNS.items())
            text = self._run("squeue", "--all", "-O", form)
            try:
                records = _records(text)
            except SlurmError as found:
                error = found
                continue
            self._read = {each: self._read.get(each) or _jobs(_cut(each)) for each in records}
            return [job for jobs in self._read.values() for job in jobs]
        raise error


def _records(text: bytes) -> list[bytes]:
    """Split the output into records; the length and the headings show that it is complete."""
    size = sum(width for _, width in COLUMNS.values()) + 1
    if len(text) < size or len(text) % size:
        raise SlurmError("Slurm: squeue's list of jobs does not have the requested form")
    headings = _cut(text[:size])
    for name, (heading, _) in COLUMNS.items():
        if not headings[name].startswith(heading[:3]):
            raise SlurmError(f"Slurm: squeue shows {headings[name][:20]!r} for column {name}")
    return [text[begin : begin + size] for begin in range(size, len(text), size)]


def _cut(record: bytes) -> dict[str, str]:
    values, at = {}, 0
    for name, (_, width) in COLUMNS.items():
        value = record[at : at + width].decode("utf-8", "replace").rstrip(" ")
        values[name] = "" if value in NOTHING else value
        at += width
    return values


def _jobs(row: Mapping[str, str]) -> list[SchedulerJob]:
    match = ARRAY.fullmatch(row["JobArrayID"])
    if match is not None:
        return [_job(row, f"{match[1]}_{task}") for task in _tasks(match[2])]
    return [_job(row, row["JobArrayID"])] if KEY.fullmatch(row["JobArrayID"]) else []


def _job(row: Mapping[str, str], key: str) -> SchedulerJob:
    state, nodes = row["State"], max(_whole(row["NumNodes"]) or 1, 1)
    per_node, in_all = parse_gpus(row["tres-per-node"]), parse_gpus(row["tres-per-job"])
    per_task = parse_gpus(row["tres-per-task"])
    tasks = _whole(row["NumTasks"]) or 1
    gpus = in_all.number or per_node.number * nodes or per_task.number * tasks
    submit_s = float(_whole(row["SubmitTime"]) or 0)
    deadline_s = _whole(row["Deadline"])
    return SchedulerJob(
        key=key,
        state=state,
        number=row["JobID"],
        reason=row["Reason"],
        user=row["UserName"],
        name=row["Name"],
        account=row["Account"],
        partition=row["Partition"],
        command=row["Command"],
        comment=row["Comment"],
        admin_comment=row["AdminComment"],
        reservation=row["Reservation"],
        gpus=gpus,
        gpu_type=per_node.type_name or in_all.type_name or per_task.type_name,
        gpus_per_node=per_node.number if not in_all.number else 0,
        nodes=nodes,
        placed=_placed(row["NodeList"], gpus) if state in HAS_MACHINES else (),
        required_nodes=row["ReqNodes"],
        features=row["Feature"],
        submit_s=submit_s,
        start_s=float(_whole(row["StartTime"]) or 0) if state != "PENDING" else 0.0,
        time_limit_s=_limit_s(row["TimeLimit"]),
        deadline_s=None if not deadline_s else max(deadline_s - submit_s, 0.0),
        priority=_whole(row["PriorityLong"]),
        restarts=_whole(row["RestartCnt"]) or 0,
        may_requeue=row["Requeue"] != "0",
        is_exclusive=row["OverSubscribe"] == "NO",
    )


def _placed(text: str, gpus: int) -> tuple[tuple[str, int], ...]:
    """Return the nodes of a job with its GPUs on each. Slurm chooses the GPUs within a node."""
    try:
        names = expand_nodes(text)
    except SlurmError:
        return ()
    if not names:
        return ()
    each, rest = divmod(gpus, len(names))
    return tuple((name, each + (place < rest)) for place, name in enumerate(names))


def _tasks(text: str) -> list[int]:
    """Expand array tasks: `1-5:2,9%2` -> 1, 3, 5, 9; only the first ones of many."""
    found: list[int] = []
    for piece in text.partition("%")[0].split(","):
        match = TASKS.fullmatch(piece)
        if match is not None:
            first, last = int(match[1]), int(match[2] or match[1])
            step = max(int(match[3] or 1), 1)
            found += range(first, last + 1, step)[: MOST_TASKS - len(found)]
    return found


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _limit_s(text: str) -> float | None:
    """Parse a time limit such as `3-04:05:06` or `05:06`; None for UNLIMITED."""
    match = LIMIT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    found_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return float(found_s) if 0 < found_s < 365 * 86_400 else None
