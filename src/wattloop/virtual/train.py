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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, NamedTuple

from wattloop.core.clock import Clock, RealClock
from wattloop.core.errors import ConfigError
from wattloop.virtual.gpu import Activity, VirtualGpu
from wattloop.virtual.job import JOBS, JobPhase, TrainingJob, job_named
from wattloop.virtual.meter import node_energy_j
from wattloop.virtual.node import NODES, NodeModel, VirtualMachine, shared_machine
from wattloop.virtual.timeline import NO_OWNER, WorkOwner, process_start_s, this_process

# Execution of a virtual training job on cards, in scaled time.
#
# A job scaled by X is the same job with 1/X of its work in each step, on cards whose power and
# temperature follow X times faster. Seen from outside it lasts 1/X of the seconds and uses 1/X of
# the joules, at the same watts: every ratio between two settings (gain, loss, EDP, EDS) is that of
# the whole job. Its result gives simulated seconds and joules, multiplied by X again.

SLICE_S = 0.05
"""Limits are looked at this often, so that a cap set meanwhile takes effect."""
ENERGY_STEPS = 60
"""Cards are integrated exactly; host, fans and supplies move slowly."""


class TrainingResult(NamedTuple):
    """Simulated seconds and joules; `wall_s` is what really passed.

    `node_energy_j` is None where no node is modelled; `gpu_energy_j` covers the cards of the job.
    """

    job: str
    gpus: int
    steps: int
    time_s: float
    gpu_energy_j: float
    node_energy_j: float | None
    wall_s: float
    time_scale: float
    provenance: str = "simulated"

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


class TrainingRun:
    """One run of a job.

    Args:
        cards: those of the machine, of which the first `gpus` work.
        time_scale: how many simulated seconds pass in a second of the clock.
        owner: the process with which the work ends.
    """

    def __init__(
        self,
        cards: Sequence[VirtualGpu],
        gpus: int,
        clock: Clock,
        *,
        node: NodeModel | None = None,
        time_scale: float = 1.0,
        owner: WorkOwner = NO_OWNER,
    ) -> None:
        if not 1 <= gpus <= len(cards):
            raise ConfigError(
                f"the job asks for {gpus} GPUs and there are {len(cards)} virtual ones; set "
                f"WATTLOOP_VIRTUAL_GPUS={gpus}"
            )
        self._cards = cards
        self._used = cards[:gpus]
        self._clock = clock
        self._node = node
        self._scale = time_scale
        self._owner = owner
        self._at_s = clock.now_s()

    def run(
        self,
        jobs: Sequence[TrainingJob],
        on_step: Callable[[int], None] = lambda step: None,
        began_s: float | None = None,
        during: AbstractContextManager[object] | None = None,
    ) -> TrainingResult:
        """Train, one entry of `jobs` per step; `during` is entered for the steps alone."""
        steps, gpus = len(jobs), len(self._used)
        for card in self._cards:
            card.reap()  # of a job that was killed
        try:
            with during or nullcontext():
                begin_s = self._at_s = self._clock.now_s() if began_s is None else began_s
                for number, job in enumerate(jobs, start=1):
                    for phase in job.shortened(steps * self._scale).phases(gpus):
                        self._do(phase)
                    on_step(number)
                end_s = self._at_s
        finally:
            for card in self._used:
                card.leave(self._owner, min(self._at_s, self._clock.now_s()), self._scale)
        used_j = sum(card.true_energy_j(begin_s, end_s) for card in self._used)
        node_j = None
        if self._node is not None:
            step_s = (end_s - begin_s) / ENERGY_STEPS
            node_j = node_energy_j(self._node, self._cards, begin_s, end_s, step_s)
        return TrainingResult(
            job=" then ".join(dict.fromkeys(job.name for job in jobs)),
            gpus=gpus,
            steps=steps,
            time_s=self._scale * (end_s - begin_s),
            gpu_energy_j=self._scale * used_j,
            node_energy_j=None if node_j is None else self._scale * node_j,
            wall_s=end_s - begin_s,
            time_scale=self._scale,
        )

    def _do(self, phase: JobPhase) -> None:
        """One phase on all cards at once: the slowest one decides when it ends."""
        # Times are planned, not read: what the operating system sleeps too long is not work.
        for card in self._used:
            card.occupy(phase.activity, self._at_s, self._scale, self._owner)
        left = 1.0
        while left > 1e-9:
            whole_s = phase.duration_s * self._slowdown(phase.activity)
            slice_s = min(left * whole_s, max(SLICE_S, whole_s / 20))
            self._at_s += slice_s
            self._clock.sleep(max(0.0, self._at_s - self._clock.now_s()))
            left -= slice_s / whole_s

    def _slowdown(self, activity: Activity) -> float:
        different = {(card.limits, card.now().loads): card for card in self._used}
        settled = (card.settled(activity, self._owner) for card in different.values())
        return max(point.slowdown for point in settled)


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
