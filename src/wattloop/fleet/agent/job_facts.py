"""Facts about a job from its prolog and from Slurm: user, comment, CPUs and GPUs on this node."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from wattloop.core.errors import MeterUnavailable, SlurmError
from wattloop.core.records import Domain
from wattloop.fleet.job_comment import read_comment
from wattloop.fleet.slurm_text import expand_nodes, parse_notes
from wattloop.hardware.host import Host

# Which of the node's cards a job's GPU numbers mean.
#
# Slurm numbers GPUs by the device files of `gres.conf` (`SLURM_JOB_GPUS=0,1` means /dev/nvidia0
# and /dev/nvidia1), so the number is the driver's *minor number*. NVML, and with it our `gpu:N`,
# counts in the order of the PCI bus; CUDA inside a job counts the visible ones from 0 again. The
# first two differ on some boards, so the minor numbers are asked for.

MOST = 1_024


def parse_numbers(text: str) -> list[int]:
    """Parse `0,1`, `0-3` or `0,2-3` into numbers, each once; [] for other texts."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None:
            return []
        first = int(match.group(1))
        last = first if match.group(2) is None else int(match.group(2))
        if last < first or last >= MOST:
            return []
        found += range(first, last + 1)
    return sorted(set(found))


def gpu_names(
    numbers: Sequence[int], known: Sequence[str], mapping: Mapping[int, int]
) -> tuple[list[str], list[int]]:
    """Return the domains of these GPUs, and the numbers without a card here.

    Args:
        numbers: as Slurm gives them.
        known: the GPU domains of this node (`gpu:0`, ...).
        mapping: Slurm's number -> number of the domain; where it says nothing, they are the same
            if the first card is `gpu:0`, else counted from the first.
    """
    own = sorted((name for name in known if re.fullmatch(r"gpu:\d+", name)), key=_number)
    found, strange = [], []
    for number in numbers:
        name = f"gpu:{mapping[number]}" if number in mapping else ""
        if not mapping and number < len(own):
            name = own[number] if f"gpu:{number}" not in own else f"gpu:{number}"
        if name in own:
            found.append(name)
        else:
            strange.append(number)
    return found, strange


def minor_numbers(host: Host) -> dict[int, int]:
    """Return minor number -> NVML index of every NVIDIA card; {} without the driver."""
    from wattloop.meters import nvidia

    try:
        nvml = nvidia.open_nvml(host)
    except MeterUnavailable:
        return {}
    try:
        found: dict[int, int] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found[int(nvml.nvmlDeviceGetMinorNumber(handle))] = index
            except nvml.NVMLError:
                continue  # lost, or a driver that does not say: its number stays unknown
        return found
    finally:
        nvidia.shut_down(nvml)


def _number(name: str) -> int:
    return int(name.partition(":")[2])


# Identity of a job: from its prolog, and from Slurm's controller.
#
# `squeue` is asked once per job and node, in columns of fixed width with what users choose last.
# Where caps are in use, `scontrol` is asked as well, for AdminComment: users cannot write that,
# but a job's name, comment or folder can spell it out, so a job whose own words do is refused
# (`tampered`).

ASK_S = 5.0
LONGEST = 200
ADMIN = "AdminComment="
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Facts about a job from Slurm's controller.

    Attributes:
        facts: for the run's header, by the names that `measure.job` uses.
        cap: `cap_w` and what else the operator's side wrote into AdminComment.
        low_power: its user asked for the low-power mode.
        no_save: its user objects to a saver: `wattloop:no-save`.
        tampered: its own texts imitate AdminComment, so AdminComment is ignored.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    cap: Mapping[str, Any] = field(default_factory=dict)
    low_power: bool = False
    tampered: bool = False
    no_save: bool = False


POD_FACTS = (
    *("name", "namespace", "pod", "container", "owner_kind", "owner", "pod_uid", "container_id"),
)
"""Facts of a container, from its event."""
COLUMNS = (
    *(("id", "JobID", 20), ("array_job", "ArrayJobID", 20), ("array_task", "ArrayTaskID", 20)),
    *(("nodes", "NumNodes", 12), ("user", "UserName", 64), ("partition", "Partition", 64)),
    *(("project", "Account", 64), ("name", "Name", 256), ("comment", "Comment", 1100)),
    *(("workdir", "WorkDir", 1024), ("command", "Command", 1024), ("network", "Network", 256)),
)
_FACTS = ("array_job", "array_task", "nodes", "user", "partition", "project", "name")
_NOTHING = {"", "(null)", "N/A"}


class JobSource(Protocol):
    """Source of the jobs of a node: Slurm, or Kubernetes."""

    def exit_status(self, job: str) -> int | None:
        """Return how an ended job ended, as `wait` has it; None if unknown so far."""
        ...

    def awaits_exit(self, job: str, since_s: float) -> bool:
        """Return True if the status of a job that ended `since_s` seconds ago is yet to come."""
        ...

    def attach(self, domains: Mapping[str, Domain]) -> None:
        """Learn the domains of the node."""
        ...

    def follower(
        self, events: Path, running: Callable[[], Sequence[str]]
    ) -> AbstractContextManager[object]:
        """Return a thread that writes the events that hooks do not write."""
        ...

    def cpu_file(self, job: str, uid: int) -> Path | None:
        """Return the file with the CPU time of a job's control group, if it has one."""
        ...

    def ask(self, job: str, caps: bool) -> tuple[JobFacts | None, str]:
        """Return facts about a job, with its cap if asked for; or why there are none."""
        ...

    def refused(self, job: str, why: str) -> None:
        """Report that the control daemon refused the cap of a job."""
        ...


def ask_slurm(job: str, *, folder: str = "", caps: bool = False) -> tuple[JobFacts | None, str]:
    """Return the controller's facts about a job, or why there are none.

    `folder` holds Slurm's programs where they are not in the path. With `caps`, AdminComment is
    read as well.
    """
    form = ",".join(f"{name}:{width}" for _, name, width in COLUMNS)
    listed, reason = _asked(folder, "squeue", "-h", "-a", "-t", "all", "-j", job, "-O", form)
    values = _row(listed, job)
    if values is None:
        return None, reason or f"squeue does not list job {job}"
    facts = {
        name: _CONTROL.sub(" ", values[name])[:LONGEST]
        for name in _FACTS
        if values[name] not in _NOTHING
    }
    if values["array_task"] in _NOTHING:
        facts.pop("array_job", None)
    stated, _ = read_comment(values["comment"])
    low_power = wants_low_power(values["comment"])
    no_save = stated is not None and stated.no_save
    if not caps:
        return JobFacts(facts, low_power=low_power, no_save=no_save), ""
    shown, reason = _asked(folder, "scontrol", "show", "job", job)
    words = [values[name] for name in ("name", "comment", "workdir", "command", "network")]
    written = admin_comment(shown, words)
    if written:
        # A column holds only the beginning of a long folder. On one line for the whole job, any
        # further line is one that its user has put somewhere.
        line, reason = _asked(folder, "scontrol", "-o", "show", "job", job)
        written = None if "\n" in line.strip() else written
        written = "" if reason else written
    if written is None:
        return JobFacts(facts, low_power=low_power, tampered=True, no_save=no_save), ""
    return JobFacts(facts, parse_notes(written), low_power, no_save=no_save), reason


def jobs_on_node(node: str, folder: str = "") -> set[str] | None:
    """Return the jobs that Slurm has on a node now; None when it does not answer."""
    states = "R,S,ST,CG,CF,SO,SI,RS"
    listed, reason = _asked(folder, "squeue", "-h", "-a", "-w", node, "-t", states, "-o", "%A")
    return None if reason else set(listed.split())


def slurm_cpus(node: str, folder: str = "") -> int | None:
    """Return the CPUs that Slurm allocates on a node, which may be fewer than it has."""
    listed, _ = _asked(folder, "sinfo", "-h", "-N", "-n", node, "-o", "%c")
    first = (listed.split() or [""])[0]
    return int(first) if first.isdigit() and int(first) > 0 else None


def admin_comment(shown: str, words: Sequence[str]) -> str | None:
    """Return AdminComment from `scontrol show job`; None where it is ambiguous.

    `words` are the user's texts that are printed before or next to AdminComment.
    """
    if any("\n" in text or ADMIN in text for text in words):
        return None
    found = re.findall(rf"^ *{ADMIN}(.*)$", shown, re.MULTILINE)
    if not found:
        return ""
    before = re.match(rf"[\s\S]*?^ *{ADMIN}", shown, re.MULTILINE)
    genuine = before is not None and not re.search(r"^ *StdErr=", before.group(), re.MULTILINE)
    # Paths of output files come after it: a second match there was written by the user.
    return found[0].strip() if genuine else ""


def wants_low_power(comment: str) -> bool:
    """Return True when a job's comment asks for low power: `wattloop:low-power`.

    By the grammar that the scheduler reads it by, or both would take it for something else.
    """
    stated, _ = read_comment(comment)
    return stated is not None and stated.low_power


def cpus_on_node(counts: str, nodes: str, node: str) -> int | None:
    """Return CPUs of a job on one node, from `SLURM_JOB_CPUS_PER_NODE` such as `4(x2),8`."""
    listed: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if match is None:
            return None
        listed += [int(match.group(1))] * int(match.group(2) or 1)
    if len(set(listed)) == 1:
        return listed[0]
    try:
        names = expand_nodes(nodes)
    except SlurmError:
        return None
    return listed[names.index(node)] if node in names and len(names) == len(listed) else None


def event_facts(facts: Mapping[str, str], *, cluster: str, node: str) -> dict[str, str]:
    """Return the facts of a prolog's event, by the names of `measure.job`."""
    named = {
        "scheduler": facts.get("scheduler", "slurm"),
        "job": facts.get("job", ""),
        **{name: facts.get(name, "") for name in POD_FACTS},
        "cluster": facts.get("cluster") or cluster,
        "partition": facts.get("partition", ""),
        "project": facts.get("account") or facts.get("namespace", ""),
        "user": facts.get("user", ""),
        "nodes": facts.get("nodes", ""),
        "node": node,
        "restart": facts.get("restart", ""),
    }
    return {name: value[:LONGEST] for name, value in named.items() if value}


def _asked(folder: str, program: str, *words: str) -> tuple[str, str]:
    command = f"{folder.rstrip('/')}/{program}" if folder else program
    try:
        done = subprocess.run(
            [command, *words],
            capture_output=True,
            timeout=ASK_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "SQUEUE_FORMAT": "", "SQUEUE_SORT": "i"},
        )
    except subprocess.TimeoutExpired:
        return "", f"{program} did not answer within {ASK_S:g} s"
    except OSError as error:
        return "", f"{command} cannot be started: {error.strerror}"
    message = done.stderr.decode("utf-8", "replace").strip()[:LONGEST]
    if done.returncode:
        return "", f"{program}: {_CONTROL.sub(' ', message) or 'failed'}"
    return done.stdout.decode("utf-8", "surrogateescape"), ""


def _row(listed: str, job: str) -> dict[str, str] | None:
    """Return the job's own row, by its beginning and the byte width of each column."""
    data = listed.encode("utf-8", "surrogateescape")
    begin = re.search(rb"^%s +" % re.escape(job.encode()), data, re.MULTILINE)
    if begin is None:
        return None
    values, at = {}, begin.start()
    for name, _, width in COLUMNS:
        values[name] = data[at : at + width].decode("utf-8", "replace").strip(" ")
        at += width
    return values
