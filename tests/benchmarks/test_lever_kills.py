"""Promises of benchmarks/lever_kills.py: it distinguishes restored levers from others."""

import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tests.support.nvml_stub import NoCompiler, build

import lever_kills
from lever_machine import LeverMachine


def test_half_of_the_kills_hit_two_levers_and_all_targets_alike() -> None:
    """The plan is even for any seed."""
    kills = lever_kills.plan("sweep", 80, random.Random(7))
    assert sum(len(kill.levers) == 2 for kill in kills) == 40
    for target in lever_kills.TARGETS:
        assert sum(kill.target == target for kill in kills) == 20


def test_killed_program_is_judged_by_every_setting(tmp_path: Path) -> None:
    """A kill of program and watchdog:

    `wattloop restore` restores; without it, the fault is found.
    """
    try:
        library = build(tmp_path / "nvml").parent
    except NoCompiler as reason:
        pytest.skip(str(reason))
    # In a process of its own: a loaded library stays loaded for every later test too.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        restored, found_out = pool.submit(judged, tmp_path / "machine", library).result()
    assert restored == []
    assert found_out


def judged(folder: Path, library: Path) -> tuple[list[str], bool]:
    """Return (problems of a restored kill, true if an unrestored one was found)."""
    levers = ("gpu:0/power_limit", "cpu/governor")
    # A kill may also hit while the file of the governor is empty, between the two calls that write
    # it. The kernel's own is written in one. Twice in a row it does not.
    for attempt in range(2):
        with LeverMachine(folder / f"restored-{attempt}", library) as machine:
            os.environ.update(machine.environment)
            kill = lever_kills.Kill(1, "cycle", "both, guardian first", levers, 0.3)
            lever_kills.strike(machine, kill)
        if not kill.problems:
            break
    with LeverMachine(folder / "left", library) as machine:
        os.environ.update(machine.environment)
        lever_kills.wattloop = lambda words: 0
        # A kill may hit before any lever is set: the later it comes, the likelier levers are set.
        left = (strike_without_restore(machine, number, levers) for number in range(2, 32))
        return kill.problems, any(kill.left_set and kill.problems for kill in left)


def strike_without_restore(
    machine: LeverMachine, number: int, levers: tuple[str, ...]
) -> lever_kills.Kill:
    kill = lever_kills.Kill(number, "cycle", "both, guardian first", levers, 0.05 * number)
    try:
        lever_kills.strike(machine, kill)
    except ValueError:  # the restore that did not run printed no JSON
        kill.problems = kill.problems or []
    return kill
