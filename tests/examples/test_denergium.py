"""Promises of examples/denergium: the grids are those of the study, and each can be run."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm_start
from tests.support.environment import without
from wattloop.store.database import open_store
from wattloop.tune.results import search_table
from wattloop.tune.spec import read_spec
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import FileTimeline

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "denergium"
TINY = ["--epochs=1", "--pieces=80", "--layers=1", "--width=16"]


@pytest.mark.parametrize(("name", "count"), [("cali3", 400), ("meluxina", 128), ("grid5000", 6)])
def test_the_grids_are_as_large_as_the_study_says(name: str, count: int) -> None:
    """400, 128 and 6 configurations; the evaluation batch equals the training batch."""
    space = read_spec(str(FOLDER / f"{name}.yaml")).space()
    configurations = list(space.grid())
    assert space.size == len(configurations) == count
    assert all(c["eval_batch_size"] == c["train_batch_size"] for c in configurations)


def test_caps_and_clocks_are_varied_one_at_a_time() -> None:
    """None of the six points has both a lower cap and a lower clock."""
    space = read_spec(str(FOLDER / "grid5000.yaml")).space()
    points = [space.split(configuration)[1] for configuration in space.grid()]
    lowered = [{n for n, value in point.items() if value != "100%"} for point in points]
    assert sorted(map(len, lowered)) == [0, 1, 1, 1, 1, 1]
    assert {point["power_limit"] for point in points} == {"100%", "85%", "70%", "50%"}


def trained(*words: str) -> list[str]:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "train.py"), *TINY, *words],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_training_takes_every_parameter_of_the_grids() -> None:
    """A configuration of Cali3 trains unchanged and reports the metric of the grid."""
    spec = read_spec(str(FOLDER / "cali3.yaml"))
    *_, last = spec.space().grid()
    (line,) = trained(*(f"--{name}={value}" for name, value in (last | {"workers": 1}).items()))
    assert line.startswith("epoch=1 ")
    assert spec.metric is not None
    assert f" {spec.metric.name}=" in line


def test_batch_precision_and_accumulation_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """They determine the steps, the arithmetic and how often the optimizer steps."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    train = loaded(monkeypatch)
    moves: list[int] = []
    kinds: set[str] = set()
    real = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self, *a, **k: (moves.append(1), real(self, *a, **k))[1]
    )

    def moved(*words: str) -> int:
        args = train.arguments().parse_args([*TINY, *words])
        model = transformers.DistilBertForSequenceClassification(train.config(args, transformers))
        model.classifier.register_forward_hook(lambda m, i, out: kinds.add(str(out.dtype)))
        moves.clear()
        kinds.clear()
        train.train_for(args, model)
        return len(moves)

    assert moved("--train_batch_size=8") == 10
    assert kinds == {"torch.float32"}
    assert moved("--train_batch_size=16") == 5
    assert moved("--train_batch_size=8", "--gradient_accumulation_steps=4") == 3
    assert moved("--train_batch_size=8", "--precision=fp16") == 10
    assert kinds == {"torch.float16"}
    args = train.arguments().parse_args(["--workers=3"])
    assert train.loader(args, 8, 4, seed=0, shuffle=False).num_workers == 3


def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the program as a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("denergium_train", FOLDER / "train.py")
    assert spec is not None
    assert spec.loader is not None
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    return train


def test_a_step_loads_the_virtual_card_and_a_cap_makes_it_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a GPU the card of WATTLOOP_VIRTUAL_GPUS works as long as a step, and is then idle."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "1")
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    train = loaded(monkeypatch)
    args = train.arguments().parse_args(["--virtual_step=0.02"])
    (gpu,) = shared_gpus(1)
    gpu.set_power_cap(gpu.model.min_limit_w)
    with train.virtual_step(args):
        pass
    idle, busy, after = FileTimeline(tmp_path / "cards").segments(0)[-3:]
    assert (idle.busy, busy.busy, after.busy) == (0.0, 1.0, 0.0)
    assert after.start_s - busy.start_s >= 1.2 * 0.02  # slower under the lowest cap


def test_the_hardware_points_are_set_and_restored(tmp_path: Path) -> None:
    """All six run on a virtual GPU under their own cap or clock, which is restored."""
    entry_points = tmp_path / "site" / "wattloop-0.dist-info" / "entry_points.txt"
    entry_points.parent.mkdir(parents=True)
    groups = (("meters", "meter"), ("levers", "lever"))
    entry_points.write_text(
        "".join(f"[wattloop.{g}]\nvirtual = wattloop.virtual.{m}:detect\n" for g, m in groups)
    )
    text = (FOLDER / "grid5000.yaml").read_text()
    command = text.partition("command: ")[2].partition("\n")[0]
    program = tmp_path / "train.py"
    program.write_text(
        "from wattloop.virtual.train import main\n"
        "main(['--steps', '2', '--time-scale', '1000'])\n"
        "print('accuracy=0.9')\n"
    )
    (tmp_path / "spec.yaml").write_text(text.replace(command, f"{sys.executable} {program}"))
    state = tmp_path / "cards"
    environment = {
        **without("WATTLOOP_"),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path / 'site'}",
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
        "WATTLOOP_STATE_DIR": str(tmp_path / "levers"),
        "WATTLOOP_VIRTUAL_STATE": str(state),
        "WATTLOOP_VIRTUAL_GPUS": "1",
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "wattloop", "tune", "run", "spec.yaml"]
    done = warm_start.run(command, env=environment, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    with open_store(str(tmp_path / "runs.db")) as store:
        rows = search_table(store, "denergium on Grid'5000")
    assert {row["status"] for row in rows} == {"ended"}
    assert len({(row["power_limit"], row["sm_clock"]) for row in rows}) == 6
    # the setting of the card during the work; mean power depends on the load of this machine
    stretches = FileTimeline(state).segments(0)
    full_w, full_mhz = stretches[0].limit_w, stretches[0].max_clock_mhz
    worked = [stretch for stretch in stretches if stretch.busy]
    assert {round(s.limit_w / full_w, 2) for s in worked} == {1.0, 0.85, 0.7, 0.5}
    clocks = {s.max_clock_mhz / full_mhz for s in worked if s.clock_locked}
    assert sorted(clocks) == pytest.approx([0.7, 0.85, 1.0], abs=0.01)
    assert stretches[-1].limit_w == full_w
