"""A training on the virtual GPUs whose time reacts to power caps and clocks.

export WATTLOOP_VIRTUAL_GPUS=8 WATTLOOP_VIRTUAL_MODEL=node004
wattloop run -- python -m wattloop.virtual.train --gpus 8 --time-scale 60
"""

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import FrameType

from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError
from wattloop.virtual.job import JOBS, TrainingJob, job_named
from wattloop.virtual.job_run import TrainingRun
from wattloop.virtual.node import NODES, VirtualMachine, shared_machine
from wattloop.virtual.timeline import process_start_s, this_process


def main(arguments: Sequence[str] | None = None, since_s: float | None = None) -> int:
    """Train, print a line per step and the result as JSON; exit code 2 for wrong arguments.

    The work begins at `since_s`, now unless given: run as a program, with the process, so that
    what Python needs to start is not added to a job of a second.
    """
    options = _parser().parse_args(arguments)
    try:
        cards = max(options.gpus, int(os.environ.get("WATTLOOP_VIRTUAL_GPUS") or options.gpus))
        machine = shared_machine(cards)
        jobs = _jobs(options, machine)
        run = TrainingRun(
            machine.gpus,
            options.gpus,
            RealClock(),
            node=machine.node,
            time_scale=options.time_scale,
            owner=this_process(),
        )
        signal.signal(signal.SIGTERM, _leave)  # a `kill` leaves the cards idle
        during = _window(options.window)
        begin_s = since_s if during is None else None
        result = run.run(jobs, lambda step: _say(step, options.steps), begin_s, during)
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result.to_dict()))  # noqa: T201 - the program's output
    return 0


def _jobs(options: argparse.Namespace, machine: VirtualMachine) -> list[TrainingJob]:
    first = _job(options.job, machine)
    if options.change_to is None:
        return [first] * options.steps
    before = round(options.change_at * options.steps)
    return [first] * before + [_job(options.change_to, machine)] * (options.steps - before)


def _window(name: str | None) -> AbstractContextManager[object] | None:
    if name is None:
        return None
    from wattloop.measure.api import measure

    return measure(name)


def _job(name: str | None, machine: VirtualMachine) -> TrainingJob:
    own = {node.job.name: node.job for node in NODES.values()}
    if name is None:
        return machine.node.job if machine.node else JOBS["cnn"]
    return own.get(name) or job_named(name)


def _say(step: int, steps: int) -> None:
    # A curve that looks like one; nothing is learned.
    loss = 0.1 + 4.1 * math.exp(-3 * step / steps)
    print(f"step {step}/{steps} loss {loss:.4f} (simulated)", flush=True)  # noqa: T201 - output


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m wattloop.virtual.train",
        description="Train on the virtual GPUs: time and power react to caps and clocks.",
    )
    known = ", ".join([*JOBS, *(node.job.name for node in NODES.values())])
    parser.add_argument(
        "--gpus",
        type=_whole(1, 64),
        default=os.environ.get("WATTLOOP_GPUS") or "1",
        metavar="N",
        help="cards to use (default: what a sweep asks for with WATTLOOP_GPUS, or 1)",
    )
    parser.add_argument("--job", help=f"{known}; unless given, the node's own or cnn")
    parser.add_argument("--steps", type=_whole(1, 100_000), default=20, metavar="N")
    parser.add_argument(
        "--time-scale",
        type=_number(1e-3, 1e5),
        default=60.0,
        metavar="X",
        help="simulated seconds per second: the job does 1/X of its work (default 60)",
    )
    parser.add_argument(
        "--window",
        metavar="NAME",
        help="measure the training itself, without start and end of the program, under this name",
    )
    parser.add_argument("--change-to", metavar="JOB", help="go on with another job half-way")
    parser.add_argument(
        "--change-at",
        type=_number(0, 1),
        default=0.5,
        metavar="SHARE",
        help="share of the steps after which --change-to begins (default 0.5)",
    )
    return parser


def _whole(low: int, high: int) -> "type[int]":
    def parse(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
        return number

    return parse  # type: ignore[return-value]  # argparse takes any callable


def _number(low: float, high: float) -> "type[float]":
    def parse(text: str) -> float:
        number = float(text)
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return number

    return parse  # type: ignore[return-value]  # argparse takes any callable


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(since_s=process_start_s()))
