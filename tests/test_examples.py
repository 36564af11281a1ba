import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm_start
from tests.support.environment import without
from wattloop.store.database import open_store
from wattloop.tune.results import search_table
from wattloop.virtual.timeline import FileTimeline

ROOT = Path(__file__).parents[1]


def test_train_digits_prints_energy_per_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the example runs on any machine and prints a line per epoch and the summary."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    example = runpy.run_path(str(ROOT / "examples" / "train_digits.py"))
    assert example["EPOCHS"] == 5
    example["main"].__globals__["EPOCHS"] = 2  # more of them show the same
    assert example["main"]() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["epoch 0", "epoch 1"]
    assert lines[-1].startswith("wattloop:")


def test_sweep_virtual_node_prints_the_papers_table() -> None:
    """Promise: table 1 and figure 7 of Koszczal et al. in seconds, with EDP best at 170 W."""
    done = warm_start.run(
        [sys.executable, str(ROOT / "examples" / "sweep_virtual_node.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=ROOT,
    )
    lines = {line.split("  ")[1]: line for line in done.stdout.splitlines() if "  " in line}
    assert "simulated" in done.stdout
    assert "at 170 W   (17.32 % at 170 W)" in lines["EDP"]
    assert "2:  228.0 s" in lines["260 W"]


def test_the_sweep_of_the_virtual_node_runs_as_real_processes(tmp_path: Path) -> None:
    """Promise: the specification runs, a cap saves energy, and every cap is restored."""
    entry_points = tmp_path / "site" / "wattloop-0.dist-info" / "entry_points.txt"
    entry_points.parent.mkdir(parents=True)
    groups = (("meters", "meter"), ("levers", "lever"))
    entry_points.write_text(
        "".join(f"[wattloop.{g}]\nvirtual = wattloop.virtual.{m}:detect\n" for g, m in groups)
    )
    text = (ROOT / "examples" / "virtual_node.yaml").read_text()
    caps = text.partition("gpu/power_limit: ")[2].partition("\n")[0]
    for old, new in ((caps, "[260 W, 170 W]"), ("[1, 2, 4, 8]", "[8]"), ("warmup: 1", "warmup: 0")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    text = text.replace("command: python", f"command: {sys.executable}")
    (tmp_path / "sweep.yaml").write_text(text)
    state = tmp_path / "cards"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path / 'site'}",
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
        "WATTLOOP_STATE_DIR": str(tmp_path / "levers"),
        "WATTLOOP_VIRTUAL_STATE": str(state),
        "WATTLOOP_VIRTUAL_GPUS": "8",
        "WATTLOOP_VIRTUAL_MODEL": "node004",
    }
    command = [sys.executable, "-m", "wattloop", "sweep", "sweep.yaml"]
    done = warm_start.run(command, env=environment, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout
    (energy,) = [line for line in done.stdout.splitlines() if line.startswith("Energy  ")]
    assert "170 W" in energy
    cards = FileTimeline(state)
    assert {cards.segments(gpu)[-1].limit_w for gpu in range(8)} == {260}


def searched(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Load an example with a store of its own, on the estimate."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    kept = without("WATTLOOP_")
    return warm_start.run(
        [sys.executable, *words],
        env={
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "WATTLOOP_STORE": str(tmp_path / "runs.db"),
            "WATTLOOP_METERS": "estimate",
            "XDG_RUNTIME_DIR": str(tmp_path),
            "OMP_NUM_THREADS": "1",  # small matrices: threads wait for each other
        },
        cwd=ROOT,
        timeout=600,
    )


def test_tune_digits_finds_a_configuration_that_is_good_enough(tmp_path: Path) -> None:
    """Promise: twenty lines search a real model on a CPU, and name the winner and the reason."""
    done = searched(tmp_path, str(ROOT / "examples" / "tune_digits.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'batch_size': ")
    assert "- good enough after " in done.stdout
    with open_store(str(tmp_path / "runs.db")) as store:
        rows = search_table(store, "last")
    assert rows[0]["batch_size"] == 16  # the default runs first
    assert any(row["reached"] for row in rows)
    assert all(row["energy_j"] > 0 and row["provenance"] == "estimated" for row in rows)


def test_tune_digits_is_twenty_lines_and_is_shown_in_the_documents() -> None:
    """Promise: docs/tune.md shows the file itself."""
    text = (ROOT / "examples" / "tune_digits.py").read_text()
    code = text.partition('"""\n\n')[2]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 21
    assert f"```python\n{code}```" in (ROOT / "docs" / "tune.md").read_text()


def test_the_program_of_digits_yaml_is_searched_unchanged(tmp_path: Path) -> None:
    """Promise: a program without Wattloop is tuned from a file that the docs show."""
    spec = (ROOT / "examples" / "digits.yaml").read_text()
    shown = spec[spec.index("name: digits") :]
    assert f"```yaml\n{shown}```" in (ROOT / "docs" / "tune.md").read_text()
    short = ["--target", "0.5", "--trials", "2"]
    done = searched(tmp_path, "-m", "wattloop", "tune", "run", "examples/digits.yaml", *short)
    assert done.returncode == 0, done.stderr
    assert "best: batch_size=" in done.stdout
    assert "good enough" in done.stdout


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("predict_step.py", "input: tokens = int64[64, 256], guessed from Embedding of 30000"),
        ("predict_choose_gpu.py", "least energy within the hour: "),
    ],
)
def test_examples_of_predictions_run_without_a_gpu(
    file: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Promise: a step of the user's model, and a choice of GPU, are predicted on any machine."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("transformers", reason="Transformers is not installed")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no calibration of the user's own
    runpy.run_path(str(ROOT / "examples" / file))
    printed = capsys.readouterr().out
    assert said in printed
    assert "none of them" not in printed


def test_tests_of_energy_pass_anywhere_and_take_their_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: tests with the fixture and the mark run without a sensor, and say so."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # an installed plugin is the same one
    shutil.copy(ROOT / "examples" / "test_energy.py", tmp_path)
    plugin = ("-p", "wattloop.check.pytest_plugin", "-p", "no:cacheprovider", "--energy-update")
    plugin += ("--confcutdir", str(tmp_path))  # whatever other files are in the temporary folder
    done = searched(tmp_path, "-m", "pytest", str(tmp_path / "test_energy.py"), *plugin)
    assert done.returncode == 0, done.stdout
    assert "test_energy.py::test_training_stays_below_a_limit" in done.stdout
    assert "no sensor can be read here (cpu:0/package would only be estimated)" in done.stdout
    kept = json.loads((tmp_path / "energy-baselines.json").read_text())
    assert list(kept["entries"]) == ["test_energy.py::test_training_is_no_worse_than_before"]
