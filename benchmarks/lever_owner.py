"""Programs that set levers until they are killed, each in a process forked from a warm one.

Starting Python and importing a sweep's libraries takes a second, in which there is nothing to
kill: forked from a process that has them, a program is itself from its first line.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from wattloop.cap.saver import saver
from wattloop.cap.saver.saver import SaverConfig as QuickSaver
from wattloop.cli.main import main
from wattloop.control.lever import LeverState, Setting
from wattloop.control.registry import find_levers, lever_named
from wattloop.control.session import lever_session
from wattloop.hardware.host import Host

__all__ = ["cycle", "forked", "saved_run", "sweep", "warm_up"]


def forked(program: Callable[[], int], output: Path) -> int:
    """Fork a child that runs `program` with its output in a file; return its process number."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        code = program()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def sweep(levers: Sequence[str], seed: int) -> int:
    """Run `wattloop sweep` over a few values of each lever."""
    rng = random.Random(seed)
    states = {name: state_of(name) for name in levers}
    words = ["sweep", "run", "--new", "--repeats", "1", "--warmup", "0", "--seed", str(seed)]
    for name in levers:
        values = [another(states[name], rng) for _ in range(rng.randrange(1, 4))]
        words += ["--lever", f"{name}={','.join(dict.fromkeys(map(shown, values)))}"]
    sys.argv = ["wattloop", *words]
    return main([*words, "--", "sleep", "0.02"])


def cycle(levers: Sequence[str], seed: int) -> int:
    """Lock, set, set, release and lock again in a loop."""
    rng = random.Random(seed)
    found = find_levers(Host.from_environment())
    chosen = [lever_named(found, name) for name in levers]
    states = {lever.name: lever.state() for lever in chosen}
    while True:
        with lever_session(chosen) as held:
            for _ in range(rng.randrange(1, 12)):
                held.set({x.name: x.accepted(another(states[x.name], rng)) for x in chosen})
                time.sleep(rng.uniform(0, 0.01))
                if rng.random() < 0.2:
                    held.restore()


SAVED_PROGRAM = """
import signal, sys, time
from wattloop.integrations.step_hook.program_steps import ProgramSteps
signal.signal(signal.SIGINT, signal.SIG_DFL)
end_s = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end_s:
    time.sleep(0.005)
    ProgramSteps.shared().step()
"""


def saved_run(seconds: float) -> int:
    """Run `wattloop run --save` of a program with steps, with slices of tenths of a second."""
    saver.SaverConfig = partial(  # type: ignore[misc]
        QuickSaver,
        wait_s=0.1,
        slice_s=0.25,
        hold_s=0.25,
        settle_s=0.05,
        lag_s=0.1,
        least_steps=1,
        reference_share=0.05,
        first_references=4,
    )
    Path("saved_program.py").write_text(SAVED_PROGRAM)
    program = [sys.executable, "saved_program.py", f"{seconds:g}"]
    words = ["run", "--save", "--interval", "0.05", "--", *program]
    sys.argv = ["wattloop", *words]
    return main(words)


def warm_up() -> None:
    """Import the modules of the programs and of `wattloop restore`."""
    sweep(["gpu:0/power_limit"], 0)
    main(["restore"])


def state_of(name: str) -> LeverState:
    return lever_named(find_levers(Host.from_environment()), name).state()


def another(state: LeverState, rng: random.Random) -> Setting:
    """Return any value that the device accepts."""
    if state.choices:
        return rng.choice(state.choices)
    assert state.high is not None
    low, high = state.low or state.high / 3, state.high
    if state.name == "cpu/min_frequency":
        high = 2_000.0  # below every upper bound of the machine
    if state.name == "cpu/max_frequency":
        low = 2_000.0
    return float(rng.randint(round(low), round(high)))


def shown(value: Setting) -> str:
    return value if isinstance(value, str) else f"{value:g}"
