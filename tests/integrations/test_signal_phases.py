"""Promises of phases that are inferred from power and utilisation, for programs without steps."""

import json
import math
import os
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wattloop.integrations.run_phases import StepTotals, format_totals
from wattloop.integrations.signal_phases import (
    BLOCK_S,
    SignalReading,
    SignalRecorder,
    split_by_signals,
)

IDLE_W, WORK_W = 120.0, 500.0
TRAINING, EVALUATION, PAUSE = (WORK_W, 0.95, 0.5), (WORK_W, 0.98, 0.36), (IDLE_W, 0.0, 0.0)

Part = tuple[tuple[float, float, float], float]


def readings(*parts: Part, every_s: float = 0.2) -> list[SignalReading]:
    """Return readings of parts that follow each other: power, utilisations, seconds."""
    found: list[SignalReading] = []
    end_s = 0.0
    for (power_w, busy, memory), length_s in parts:
        end_s += length_s
        while (time_s := (len(found) + 1) * every_s) < end_s + 1e-9:
            # A reading is the mean of the time before it, into which the kernels of a step fall
            # unevenly.
            uneven = 1 + 0.02 * math.sin(7.1 * time_s)
            found.append(SignalReading(time_s, power_w * uneven, busy, memory * uneven))
    return found


def test_a_pause_and_an_evaluation_are_found() -> None:
    """Promise: both are found with edges to a fifth of a second; start-up and tail are outside."""
    parts = split_by_signals(
        readings(
            (PAUSE, 3), (TRAINING, 10), (EVALUATION, 0.8), (TRAINING, 8), (PAUSE, 1), (TRAINING, 8)
        )
    )
    assert parts["work"] == [pytest.approx((3.0, 30.8), abs=0.25)]
    assert parts["other work"] == [pytest.approx((13.0, 13.8), abs=0.25)]
    assert parts["pause"] == [pytest.approx((21.8, 22.8), abs=0.25)]


def test_work_at_low_power() -> None:
    """Promise: idle power is that of a GPU in use, not the lower one before the program."""
    closed, opened, little = (79.0, 0.0, 0.0), (122.0, 0.0, 0.0), (165.0, 0.4, 0.05)
    parts = split_by_signals(
        readings((closed, 40), (little, 0.4), (opened, 2), (little, 10), (opened, 0.8), (little, 9))
    )
    assert parts["pause"] == [pytest.approx((52.4, 53.2), abs=0.25)]
    assert parts["work"][0][0] == pytest.approx(42.4, abs=0.3)


def test_a_pause_before_other_work_belongs_to_it() -> None:
    """An evaluation begins with a loader that starts: the GPU waits, then works."""
    parts = split_by_signals(
        readings((TRAINING, 10), (PAUSE, 0.8), (EVALUATION, 1), (TRAINING, 10), (PAUSE, 1))
    )
    assert parts["pause"] == []
    assert parts["other work"] == [pytest.approx((10.0, 11.8), abs=0.25)]


def test_work_of_less_than_two_seconds_tells_nothing() -> None:
    """Promise: a run of 2 s that trains throughout is not called start-up for two thirds."""
    assert split_by_signals(readings((TRAINING, 1.2), (PAUSE, 0.4), (TRAINING, 0.6))) == {}
    assert split_by_signals(readings((TRAINING, 1.2), (PAUSE, 0.4), (TRAINING, 2.4)))


def test_a_slow_host_is_not_other_work() -> None:
    """Promise: kernels that are launched late lower utilisation and power, and nothing is found."""
    late = (300.0, 0.5, 0.5 * 0.5 / 0.95)
    parts = split_by_signals(readings((TRAINING, 10), (late, 2), (TRAINING, 10), (PAUSE, 1)))
    assert (parts["pause"], parts["other work"]) == ([], [])


def test_parts_of_a_long_step_are_not_other_work() -> None:
    """A pattern that returns every second belongs to the training's own loop."""
    step: list[Part] = [(TRAINING, 0.8), (EVALUATION, 0.4)]
    parts = split_by_signals(readings(*step * 20, (PAUSE, 1)))
    assert parts["other work"] == []


def test_a_slow_sampler_finds_pauses_only() -> None:
    """Promise: readings of a whole second say nothing about work of half a second."""
    parts = split_by_signals(
        readings(
            (TRAINING, 20), (EVALUATION, 3), (TRAINING, 20), (PAUSE, 3), (TRAINING, 9), every_s=1.0
        )
    )
    assert parts["other work"] == []
    assert parts["pause"] == [pytest.approx((43, 46), abs=1.0)]


@pytest.mark.parametrize(
    "read",
    [[], readings((TRAINING, 0.3)), readings((PAUSE, 5))],
    ids=["nothing", "two readings", "a GPU that never works"],
)
def test_too_little_to_judge(read: Sequence[SignalReading]) -> None:
    assert split_by_signals(read) == {}


def test_memory_utilisation_that_cannot_be_read() -> None:
    """Pauses are found without it."""
    read = readings((TRAINING, 10), (PAUSE, 1), (TRAINING, 5))
    parts = split_by_signals([r._replace(memory_busy=math.nan) for r in read])
    assert len(parts["pause"]) == 1
    assert parts["other work"] == []


class Run:
    """A run whose GPU follows a list of readings."""

    def __init__(self, read: Sequence[SignalReading]) -> None:
        self._times_s = [reading.time_s for reading in read]
        lengths_s = [0.0, *(b - a for a, b in pairwise(self._times_s))]
        energies_j = [r.power_w * s for r, s in zip(read, lengths_s, strict=True)]
        self._energy_j = list(accumulate(energies_j))
        self.started_s, self.ended_s = read[0].time_s, read[-1].time_s
        self.events: list[dict[str, Any]] = []
        names = ("gpu:0/utilisation", "gpu:0/memory_utilisation")
        signals = tuple(SimpleNamespace(name=name) for name in names)
        self.feeds = [SimpleNamespace(signals=signals, on_signals=None)]
        domain = SimpleNamespace(name="gpu:0")
        self.channels = [SimpleNamespace(domain=domain, between=self.between)]

    def between(self, begin_s: float, end_s: float) -> Any:
        begin, end = (bisect_left(self._times_s, time_s) for time_s in (begin_s, end_s))
        return SimpleNamespace(energy_j=self._energy_j[end] - self._energy_j[begin])

    def record(self, event: dict[str, Any]) -> None:
        self.events.append(event)


def recorded(read: Sequence[SignalReading]) -> tuple[Run, SignalRecorder]:
    """Return a run and a recorder that has read it; its memory is bounded."""
    run = Run(read)
    recorder = SignalRecorder.of(run)  # type: ignore[arg-type]
    assert recorder is not None
    for reading in read:
        run.feeds[0].on_signals(reading.time_s, (reading.busy, reading.memory_busy))
        if round(reading.time_s * 5) % 100 == 0:
            recorder.update(reading.time_s)
            assert len(recorder._readings) <= BLOCK_S * 5 + 200
    return run, recorder


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_evaluation_longer_than_a_block(at: int) -> None:
    """Promise: main work is that of most of the run, wherever the other work lies in it."""
    parts: list[Part] = [(TRAINING, 700.0), (TRAINING, 700.0)]
    parts.insert(at, (EVALUATION, 1.3 * BLOCK_S))
    run, recorder = recorded(readings((PAUSE, 5), *parts, (PAUSE, 5)))
    totals = recorder.finish()
    assert totals is not None
    phases = {phase.name: phase.time_s for phase in totals.phases}
    assert phases["other work"] == pytest.approx(1.3 * BLOCK_S, abs=3)
    assert phases["main work"] == pytest.approx(1400, abs=3)
    assert sum(phases.values()) == pytest.approx(run.ended_s - run.started_s)


def test_a_run_longer_than_a_block() -> None:
    """Promise: memory is bounded, no phase is found twice, and phases add up to the run."""
    hours = readings(
        (PAUSE, 5), *[(TRAINING, 100.0), (EVALUATION, 2.0)] * 13, (TRAINING, 50), (PAUSE, 5)
    )
    run, recorder = recorded(hours)
    totals = recorder.finish(compilations=[(1.0, 3.0)])
    assert totals is not None
    phases = {phase.name: phase for phase in totals.phases}
    assert phases["other work"].parts == 13
    assert phases["other work"].time_s == pytest.approx(26, abs=3)
    assert phases["compilation"].time_s == pytest.approx(2)
    assert phases["start-up"].time_s == pytest.approx(3, abs=0.3)
    whole_s = run.ended_s - run.started_s
    assert sum(phase.time_s for phase in totals.phases) == pytest.approx(whole_s)
    energy_j = sum(phase.energy_j or 0.0 for phase in totals.phases)
    assert energy_j == pytest.approx(run.between(run.started_s, run.ended_s).energy_j)
    assert StepTotals.from_dict(run.events[-1]) == totals
    assert "inferred from GPU signals: main work" in format_totals(totals)[0]


def test_a_program_on_a_gpu_without_steps(tmp_path: Path) -> None:
    """Promise: its phases are in the run, marked as inferred, and add up to its energy."""
    command = [sys.executable, "-m", "wattloop", "run", "--json", "run.json", "--"]
    work = [sys.executable, "-m", "wattloop.virtual.work", "--seconds", "4"]
    environment = {"WATTLOOP_VIRTUAL_GPUS": "1", "WATTLOOP_DEVICES": "gpu"}
    done = subprocess.run(
        [*command, *work],
        env=os.environ | environment | {"WATTLOOP_STORE": str(tmp_path / "runs.db")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    data = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    totals = data["step_totals"]
    assert (totals["inferred"], totals["steps"]) == (True, 0), done.stderr
    assert "main work" in {phase["name"] for phase in totals["phases"]}
    energy_j = sum(phase["energy_j"] for phase in totals["phases"])
    assert energy_j == pytest.approx(data["energy_j"], rel=0.005)
    assert "inferred from GPU signals" in done.stderr


SHARED = os.environ.get("WATTLOOP_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data"
H200 = Path(SHARED, "gpu", "h200_signals.jsonl.gz")


@pytest.mark.skipif(
    not H200.exists(), reason="no recorded trainings; WATTLOOP_SHARED_DATA names their folder"
)
def test_recorded_trainings() -> None:
    """Promise: evaluations and pauses of 0.5 s are found in real signals, and no false ones."""
    from benchmarks.signal_phases import Score, by_signals, read_trainings, scores

    total = sum((scores(t, by_signals, 4) for t in read_trainings(H200)), Score())
    assert total.found >= 0.9 * total.events > 0
    assert total.false <= 0.05 * total.reports
