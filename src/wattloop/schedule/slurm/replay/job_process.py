"""Replayed job: load the allocated virtual GPUs for the time that the oracle predicts.

    python -m wattloop.schedule.slurm.replay.job_process FOLDER JOB

Imports only the standard library and the virtual GPU, because 200 of these processes start within
minutes on two cores.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from wattloop.core.errors import ConfigError
from wattloop.virtual.gpu import IDLE, Activity, VirtualGpu
from wattloop.virtual.node import MODEL_VARIABLE, STATE_VARIABLE, shared_gpus
from wattloop.virtual.timeline import this_process


def main(folder: Path, job: str) -> int:
    """Run the job and record what it did; return 2 when it cannot run here."""
    env = os.environ
    try:
        node = env["SLURMD_NODENAME"]
        plan = json.loads((folder / "jobs" / f"{job}.json").read_text("utf-8"))
        kind = json.loads((folder / "plan.json").read_text("utf-8"))["nodes"][node]
        numbers = [int(each) for each in _gpus_here(env.get("CUDA_VISIBLE_DEVICES", ""))]
        gpus = len(numbers) * int(env.get("SLURM_JOB_NUM_NODES", "1"))
        seconds, power_w = plan["options"][f"{kind}/{gpus}"]
    except (KeyError, OSError, ValueError) as problem:
        sys.stderr.write(f"replayed job {job}: cannot run here: {problem!r}\n")
        return 2
    environment = {
        STATE_VARIABLE: str(folder / "virtual" / f"{node}.state"),
        MODEL_VARIABLE: str(folder / "virtual" / f"{kind}.json"),
    }
    cards = shared_gpus(max(numbers) + 1, environment=environment)
    notes = folder / "notes" / f"{job}.{node}"
    return _work([cards[number] for number in numbers], float(seconds), float(power_w), notes)


def _work(gpus: list[VirtualGpu], seconds: float, power_w: float, notes: Path) -> int:
    kept = _kept(notes) if os.environ.get("WATTLOOP_REPLAY_KEEPS") == "work" else 0.0
    signal.signal(signal.SIGTERM, _leave)
    owner, stopped = this_process(), True
    busy = (power_w - gpus[0].model.idle_w) / gpus[0].model.compute_w
    activity = Activity(1.0, 0.0, min(1.0, max(0.0, busy)))
    begin_s = time.monotonic()
    for gpu in gpus:
        gpu.occupy(activity, at_s=begin_s, owner=owner)
    try:
        time.sleep(max(0.0, begin_s + (1.0 - kept) * seconds - time.monotonic()))
        stopped = False
    finally:
        end_s = time.monotonic()
        for gpu in gpus:
            gpu.occupy(IDLE, at_s=end_s)
        share = kept + (end_s - begin_s) / seconds if seconds > 0.0 else 1.0
        _note(notes, gpus, begin_s, end_s, share if stopped else 1.0)
    return 0


def _note(path: Path, gpus: list[VirtualGpu], begin_s: float, end_s: float, share: float) -> None:
    line = {
        "slurm_job": int(os.environ.get("SLURM_JOB_ID", "0")),
        "gpus": [gpu.index for gpu in gpus],
        "begin_s": begin_s,
        "end_s": end_s,
        "done": min(1.0, share),
    }
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, (json.dumps(line) + "\n").encode())
    finally:
        os.close(fd)


def _kept(path: Path) -> float:
    """Return the share of work that earlier runs of a preempted job completed."""
    try:
        return float(json.loads(path.read_text("utf-8").splitlines()[-1])["done"])
    except (OSError, ValueError, IndexError, KeyError):
        return 0.0


def _gpus_here(text: str) -> list[str]:
    numbers = [part for part in text.split(",") if part.strip()]
    if not numbers:
        raise ValueError("CUDA_VISIBLE_DEVICES is empty; does Slurm know GPUs (gres.conf)?")
    return numbers


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
