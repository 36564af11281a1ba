"""Promises of many short runs of GreenScreen's parameters: their effect, and their energy."""

import gzip
import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.libraries import library

from wattloop.tune.spec import read_spec

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "benchmarks"
CHOSEN = {"batch_size": 16, "partitioning": "60-20-20", "lr": 0.01, "optimizer": "Adam"}

library("torch", reason="PyTorch is not installed")
library("sklearn", reason="scikit-learn is not installed")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    import sys

    before = {name: sys.modules.pop(name, None) for name in ("images", "train")}
    monkeypatch.syspath_prepend(str(PROGRAMS))
    yield importlib.import_module("greenscreen_torch")
    for name in ("greenscreen_torch", "images", "train"):
        sys.modules.pop(name, None)
    sys.modules |= {name: module for name, module in before.items() if module is not None}


class Reports:
    """A trial that stores its reports."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def report(self, **metrics: Any) -> None:
        self.seen.append(metrics)


def training(program: ModuleType, **changed: Any) -> Any:
    return program.Training(CHOSEN | changed, widths=(4, 8), device="cpu", images=60)


def test_every_value_of_the_ten_parameters_trains(program: ModuleType) -> None:
    """Promise: no value of the space is refused; results are numbers, or the loss is not finite."""
    spec = read_spec(str(ROOT / "examples" / "greenscreen" / "space.yaml"))
    for name, parameter in spec.parameters.items():
        for value in parameter.values or []:
            if value == "jit_compilation":
                continue  # compiling takes minutes on a busy CPU
            seen = training(program, **{name: value}).epoch()
            assert 0 <= seen["accuracy"] <= 1, (name, value)


def test_schedules_are_those_of_keras(program: ModuleType) -> None:
    """Promise: the learning rate of a step is that of Keras's schedules."""
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    decays = keras.optimizers.schedules
    theirs = {
        "exponential": decays.ExponentialDecay(0.01, 1000, decay_rate=0.96),
        "polynomial": decays.PolynomialDecay(0.01, 1000),
        "cosine": decays.CosineDecay(0.01, 1000),
    }
    for name, schedule in theirs.items():
        for step in (0, 1, 500, 999, 1500):
            ours = program.scheduled(name, 0.01, step)
            assert ours == pytest.approx(float(schedule(step)), rel=1e-5, abs=1e-9), (name, step)
    assert program.scheduled("constant", 0.01, 700) == 0.01


def test_a_training_that_begins_again_is_the_same(program: ModuleType) -> None:
    """Promise: weights, order and optimizer are the same, and the warm-up leaves no state."""
    made = training(program, augmentation="mixup")
    first = [made.epoch(), made.epoch()]
    made.restart()
    assert [made.epoch(), made.epoch()] == first
    again = training(program, augmentation="mixup")
    again.warm_up()
    assert again.epoch() == first[0]


def test_quantised_weights_have_eight_bits(program: ModuleType) -> None:
    """Promise: at most 255 levels per output, before training as after it, and fewer bytes."""
    made = training(program, internal="post_quantization")
    made.epoch()
    made.quantize_weights()
    for weight in made._kernels():
        for row in weight.detach().flatten(1):
            step = float(row.abs().max()) / program.LEVELS
            assert float(((row / step) - (row / step).round()).abs().max()) < 1e-3
    plain = training(program)
    assert made.weight_bytes() < 0.4 * plain.weight_bytes()
    assert training(program, internal="pre_quantization").epoch() != plain.epoch()


def test_a_short_training_is_repeated_and_its_set_up_is_separate(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: epoch 0 is the set-up; then whole trainings follow until they have taken long
    enough.
    """
    now_s = iter(range(1000))  # every call of the clock is a second later
    monkeypatch.setattr(program.time, "monotonic", lambda: float(next(now_s)))
    monkeypatch.setattr(program, "LEAST_S", 2.5)
    trial, read_j = Reports(), iter((100.0, 350.0))
    made = training(program, internal="post_quantization")
    program.trained(trial, made, epochs=2, counter_j=lambda: next(read_j))
    *epochs, last = trial.seen
    assert [seen["epoch"] for seen in epochs] == [0, 1, 2, 3, 4, 5, 6]
    assert (last["trainings"], last["counter_j"]) == (3, 250.0)
    assert epochs[1]["loss"] == epochs[3]["loss"] == epochs[5]["loss"]
    assert {"test_accuracy", "window_s", "weight_bytes"} < set(last)


def runs_file(path: Path) -> Path:
    """Write forty runs: set-up of 1000 J, three epochs of 20 J, 80 J with batch size 4; two
    diverged.
    """
    spec = read_spec(str(ROOT / "examples" / "greenscreen" / "space.yaml"))
    facts = {"made": "2026-01-02", "device": "a GPU", "machine": "a machine", "torch": "2"}
    facts |= {"images": 1797, "widths": [8, 16], "epochs": 3, "least_s": 2.0, "idle_w": 90.0}
    lines: list[dict[str, Any]] = [facts]
    for number in range(40):
        levels = {
            name: parameter.values[(number // (place + 1) + number) % 4]
            for place, (name, parameter) in enumerate(spec.parameters.items())
        }
        each_j = 80.0 if levels["batch_size"] == 4 else 20.0
        curve = [
            {"epoch": n + 1, "time_s": 9.0 + n, "energy_j": 1000 + n * each_j, "loss": 1.0,
             "val_accuracy": number / 40}
            for n in range(4)
        ]  # fmt: skip
        metrics = {"accuracy": 0.5, "test_accuracy": 0.5, "weight_bytes": 1000.0, "setup_s": 9.0}
        if number < 38:
            metrics |= {"trainings": 1, "counter_j": 3 * each_j / 1.1}
        lines.append(
            {"run": f"c{number}", "status": "ended" if number < 38 else "diverged", "message": "",
             "parameters": levels, "metrics": metrics, "curve": curve, "provenance": "measured"}
        )  # fmt: skip
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def test_the_page_is_of_the_epochs_without_their_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: energy per epoch leaves out set-up and diverged runs, and the counter is
    compared.
    """
    monkeypatch.syspath_prepend(str(PROGRAMS))
    greenscreen = importlib.import_module("greenscreen")
    found = greenscreen.read_runs(runs_file(tmp_path / "runs.jsonl.gz"))
    row = found.rows[0]
    assert (row["energy_j"], row["time_s"], row["epochs"]) == (3 * row["energy_per_epoch_j"], 3, 3)
    assert row["energy_per_epoch_j"] in (20.0, 80.0)
    target = tmp_path / "bars.json"
    words = ["--runs", str(tmp_path / "runs.jsonl.gz"), "--docs", str(tmp_path)]
    assert greenscreen.main([*words, "--json", str(target)]) == 0
    bars = {bar["name"]: bar["value"] for bar in json.loads(target.read_text())["bars"]}
    assert (bars["runs"], bars["diverged"], bars["idle_power"]) == (38, 2, 90.0)
    assert bars["counter_difference"] == pytest.approx(10)
    page = (tmp_path / "greenscreen.md").read_text()
    assert "Made by `python benchmarks/greenscreen.py --runs runs.jsonl.gz` on 2026-01-02" in page
    assert "Machine: a GPU; a machine." in page
    lines = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    begin = page.splitlines().index("## Medians by batch size")
    energies = {line[1]: line[4] for line in lines[begin + 4 : begin + 8]}
    assert {size: float(energy) for size, energy in energies.items()} == {
        **{"4": 80, "32": 20},
        **{"64": 20, "128": 20},
    }


def test_a_file_that_is_not_of_runs_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: exit code 2 and the file, no traceback."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    greenscreen = importlib.import_module("greenscreen")
    (tmp_path / "runs.jsonl").write_text("no JSON\n")
    assert greenscreen.main(["--runs", str(tmp_path / "runs.jsonl")]) == 2
    assert "runs.jsonl: cannot be read" in capsys.readouterr().err


def test_the_published_page_is_of_the_published_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: docs/benchmarks/greenscreen.md has the figures of its command."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    greenscreen = importlib.import_module("greenscreen")
    data = PROGRAMS / "data" / "h200" / "greenscreen.jsonl.gz"
    greenscreen.main(["--runs", str(data), "--docs", str(tmp_path)])
    made, published = (
        [line for line in (folder / "greenscreen.md").read_text().splitlines()
         if "Versions: " not in line]
        for folder in (tmp_path, ROOT / "docs" / "benchmarks")
    )  # fmt: skip
    first = made.index("## Medians by batch size")
    assert made[: first + 20] == published[: first + 20]
    assert all(math.isfinite(row["energy_j"]) for row in greenscreen.read_runs(data).whole)
