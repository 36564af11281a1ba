"""Promises of benchmarks/lever_kills.py: it finds what is restored, and what is not."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import lever_kills
from lever_machine import LeverMachine
from wattloop.testing.nvml_stub import NoCompiler, build


def test_half_of_the_kills_hit_two_levers_and_all_targets_alike() -> None:
    """The plan is even, whatever the seed."""
    kills = lever_kills.plan("sweep", 80, random.Random(7))
    assert sum(len(kill.levers) == 2 for kill in kills) == 40
    for target in lever_kills.TARGETS:
        assert sum(kill.target == target for kill in kills) == 20


def test_killed_program_is_judged_by_every_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill of program and guardian: restored by `wattloop restore`; without it, found out."""
    try:
        library = build(tmp_path / "nvml").parent
    except NoCompiler as reason:
        pytest.skip(str(reason))
    levers = ("gpu:0/power_limit", "cpu/governor")
    with LeverMachine(tmp_path / "machine", library) as machine:
        for name, value in machine.environment.items():
            monkeypatch.setenv(name, value)
        kill = lever_kills.Kill(1, "cycle", "both, guardian first", levers, 0.3)
        lever_kills.strike(machine, kill)
        assert kill.problems == []
        monkeypatch.setattr(lever_kills, "wattloop", lambda words: 0)
        left = [strike_without_restore(machine, number, levers) for number in range(2, 12)]
        assert any(kill.left_set and kill.problems for kill in left)


def strike_without_restore(
    machine: LeverMachine, number: int, levers: tuple[str, ...]
) -> lever_kills.Kill:
    kill = lever_kills.Kill(number, "cycle", "both, guardian first", levers, 0.1)
    try:
        lever_kills.strike(machine, kill)
    except ValueError:  # no JSON came from the restore that did not run
        kill.problems = kill.problems or []
    return kill
