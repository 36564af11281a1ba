"""Promises of the steps that `wattloop run` counts, against those that programs count
themselves.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from tests.support import warm_start
from wattloop.integrations.stored_steps import read_step_points
from wattloop.store.database import open_store
from wattloop.store.runs import find_run

IN_STEPS = ("training", "waiting for data")
SIMPLE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(90, 8), torch.randint(0, 3, (90,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
held_back = DataLoader(TensorDataset(*data[:32]), batch_size=16)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
for epoch in range(3):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
    model.eval()
    for x, y in held_back:
        model(x)
    torch.save(model.state_dict(), "model.pt")
print(steps, model.weight.sum().item(), torch.rand(1).item())
raise SystemExit(3)
"""


def run_program(text: str, *options: str, **environment: str) -> tuple[Any, str, dict[str, Any]]:
    """Run a program under `wattloop run` and return its process, its output and its steps."""
    Path("program.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "wattloop", "run", "--json", "run.json", "--"]
    done = warm_start.run(
        [*command, sys.executable, *options, "program.py"],
        env=os.environ | environment,
        cwd=Path.cwd(),
    )
    data = json.loads(Path("run.json").read_text(encoding="utf-8"))
    return done, done.stdout, data


def test_a_torch_program(machine: Machine) -> None:
    """Promise: steps equal the program's own count, phases add up, and results are unchanged."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    plain = io.StringIO()
    with contextlib.redirect_stdout(plain), pytest.raises(SystemExit):
        exec(SIMPLE, {})
    done, printed, data = run_program(SIMPLE)
    assert printed == plain.getvalue(), done.stderr
    assert done.returncode == 3
    steps = data["step_totals"]
    assert steps["steps"] == int(printed.split()[0]) == 18
    assert steps["samples"] == 3 * 90
    phases = {p["name"]: p for p in steps["phases"]}
    assert set(phases) >= {"start-up", "training", "evaluation", "checkpoint", "tail"}
    assert phases["checkpoint"]["parts"] == 3
    energy_j = sum(p["energy_j"] for p in phases.values())
    assert energy_j == pytest.approx(data["energy_j"], rel=1e-6)
    with open_store(machine.store) as store:
        points = read_step_points(store, find_run(store, data["run_id"]))
    outside = [p["energy_j"] for p in steps["phases"] if p["name"] not in IN_STEPS]
    assert sum(p.steps for p in points) == 18
    stored_j = sum(point.energy_j or 0.0 for point in points)
    assert stored_j + sum(outside) == pytest.approx(data["energy_j"], rel=0.005)
    assert "18 steps" in done.stderr


def test_a_program_with_a_start_up_module_of_its_own(machine: Machine) -> None:
    """Promise: the hidden `sitecustomize` runs, and `sys.path` is as without the hook."""
    folder = Path("own")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys; sys.own = 'ran'\n", encoding="utf-8")
    text = "import sys, sitecustomize; print(sys.own, sitecustomize.__file__, sys.path)"
    plain = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[0] = {str(Path.cwd())!r}\n{text}"],
        env=os.environ | {"PYTHONPATH": str(folder.resolve())},
        capture_output=True,
        text=True,
        check=True,
    )
    done, printed, data = run_program(text, PYTHONPATH=str(folder.resolve()))
    assert printed == plain.stdout, done.stderr
    assert data["step_totals"] is None


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_an_isolated_interpreter(machine: Machine, option: str) -> None:
    """Promise: where Python ignores the hook, the program runs and is measured."""
    done, printed, data = run_program("print('ran')", option)
    assert (printed, done.returncode) == ("ran\n", 0)
    assert data["energy_j"] > 0
    assert data["step_totals"] is None


def test_a_torch_without_hooks(machine: Machine) -> None:
    """Promise: an old torch trains unchanged, and the run says why it has no steps."""
    Path("torch").mkdir()
    Path("torch/__init__.py").write_text("__version__ = '1.4'\n", encoding="utf-8")
    done, printed, data = run_program("import torch; print(torch.__version__)")
    assert (printed, done.returncode) == ("1.4\n", 0)
    assert data["step_totals"]["steps"] == 0
    assert "torch" in data["step_totals"]["notes"][0]


TRAINED = """
import torch
def train(count):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
"""
# In one program, which imports torch once: the number of missing steps identifies the part.
PARTS = {
    "looked for before it is imported": (
        "import importlib.util; importlib.util.find_spec('torch')\n" + TRAINED + "train(30)",
        30,
    ),
    "torch.save is pickled": (
        "import pickle; pickle.loads(pickle.dumps(torch.save)); train(5)",
        5,
    ),
    "a pipe and a folder among the step files": (
        "import os\nd = os.environ['WATTLOOP_STEPS']\n"
        "os.mkfifo(d + '/x.steps'); os.mkdir(d + '/y.steps'); train(10)",
        10,
    ),
    "a GradScaler that skips updates": (
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cpu')\n"
        "for i in range(30):\n"
        "    loss = model(torch.randn(2, 4)).sum() * (float('inf') if i % 10 == 3 else 1.0)\n"
        "    optimizer.zero_grad(); scaler.scale(loss).backward()\n"
        "    scaler.step(optimizer); scaler.update()\n",
        27,
    ),
    "saved by a signal handler in the middle of a step": (
        # The first save imports a module, which a handler must not interrupt.
        "import signal, io\ntorch.save({}, io.BytesIO())\n"
        "signal.signal(signal.SIGALRM, lambda *_: torch.save({}, io.BytesIO()))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\ntrain(300)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)",
        300,
    ),
}
HARD = {
    "one after another": (
        "\n".join(text for text, _ in PARTS.values()),
        sum(count for _, count in PARTS.values()),
    ),
    "a forked child that trains": (
        TRAINED + "import multiprocessing as m\n"
        "p = m.get_context('fork').Process(target=train, args=(40,)); p.start(); p.join()",
        40,
    ),
    "the parent steps, then a child trains": (
        TRAINED + "train(3)\nimport multiprocessing as m\n"
        "p = m.get_context('fork').Process(target=train, args=(30,)); p.start(); p.join()",
        33,
    ),
    "a child of few steps, forked while a second optimizer begins": (
        TRAINED + "import os\ntrain(6); train(2)\npid = os.fork()\n"
        "if not pid: train(3); os._exit(0)\nos.waitpid(pid, 0); train(9)",
        20,
    ),
    "the folder is removed while it trains": (
        TRAINED + "import contextlib, os, shutil, time\n"
        "def opened():\n"
        "    for file in os.scandir(f'/proc/{os.getppid()}/fd'):\n"
        "        with contextlib.suppress(OSError):\n"
        "            if os.readlink(file.path).endswith('.steps'): return True\n"
        "train(50)\n"
        "while not opened(): time.sleep(0.02)\n"
        "shutil.rmtree(os.environ['WATTLOOP_STEPS']); train(50)",
        100,
    ),
}


@pytest.mark.parametrize("name", HARD)
def test_programs_that_are_hard_to_follow(machine: Machine, name: str) -> None:
    """Promise: every step is counted once, and the program is not harmed."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    text, count = HARD[name]
    done, printed, data = run_program(text + "\nprint('ended')")
    assert (printed, done.returncode) == ("ended\n", 0), done.stderr
    assert data["step_totals"]["steps"] == count, done.stderr
    assert "Traceback" not in done.stderr


HOSTILE = {
    "fork": "import os, torch\npid = os.fork()\nos.waitpid(pid, 0) if pid else os._exit(0)\n",
    "exec": "import os, sys\nif 'X' not in os.environ: os.environ['X'] = '1'; "
    "os.execv(sys.executable, [sys.executable, 'program.py'])\nimport torch\n",
    "patched finders": "import sys\nsys.meta_path[:] = sys.meta_path[1:]\nimport torch\n",
    "no folder": "import os, shutil\nshutil.rmtree(os.environ['WATTLOOP_STEPS'])\nimport torch\n",
}
FAKE_TORCH = "__version__ = '9'\n"


@pytest.mark.parametrize("name", HOSTILE)
def test_programs_that_interfere_with_the_hook(machine: Machine, name: str) -> None:
    """Promise: forks, replaced programs, removed finders and folders change nothing."""
    Path("torch").mkdir()
    Path("torch/__init__.py").write_text(FAKE_TORCH, encoding="utf-8")
    done, printed, data = run_program(HOSTILE[name] + "print(torch.__version__)")
    assert (printed, done.returncode) == ("9\n", 0), done.stderr
    assert data["energy_j"] > 0


def test_no_steps(machine: Machine) -> None:
    """Promise: `--no-steps` leaves the environment of the program unchanged."""
    command = [sys.executable, "-m", "wattloop", "run", "--no-steps", "--", sys.executable, "-c"]
    text = "import os; print(os.environ.get('PYTHONPATH'), os.environ.get('WATTLOOP_STEPS'))"
    printed = subprocess.check_output([*command, text], text=True, stderr=subprocess.DEVNULL)
    assert printed == f"{os.environ.get('PYTHONPATH')} None\n"


def test_hugging_face(machine: Machine) -> None:
    """Promise: optimizer steps, not batches, count; tokens and evaluations are recorded."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    done, printed, data = run_program(
        """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=16, vocab_size=50)
def rows(count):
    return [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 2)}
            for i in range(count)]
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=2, per_device_train_batch_size=4, logging_steps=2,
    gradient_accumulation_steps=2, eval_strategy="epoch", report_to=[], use_cpu=True,
    include_num_input_tokens_seen=True, disable_tqdm=True)
trainer = Trainer(model=BertForSequenceClassification(config), args=arguments,
                  train_dataset=rows(32), eval_dataset=rows(8))
trainer.train()
print()
print(trainer.state.global_step, trainer.state.num_input_tokens_seen)
"""
    )
    count, tokens = map(int, printed.splitlines()[-1].split())
    steps = data["step_totals"]
    assert (steps["steps"], steps["tokens"], steps["samples"]) == (count, tokens, 64), done.stderr
    assert {"evaluation", "checkpoint"} <= {p["name"] for p in steps["phases"]}


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras(machine: Machine, backend: str) -> None:
    """Promise: batches of `fit` are steps, also where the backend's optimizer is not torch's."""
    pytest.importorskip("keras", reason="Keras is not installed")
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    done, printed, data = run_program(
        """
import numpy as np, keras
model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("adam", "mse")
x, y = np.random.rand(64, 8), np.random.rand(64, 1)
model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:16], y[:16]), verbose=0)
print(int(model.optimizer.iterations))
""",
        KERAS_BACKEND=backend,
    )
    assert data["step_totals"]["steps"] == int(printed) == 8, done.stderr
    phases = {p["name"] for p in data["step_totals"]["phases"]}
    assert phases >= {"evaluation"} | ({"compilation"} if backend == "jax" else set())
