"""Promises for programs whose processes are hard to follow, with a small, quick framework."""

import ast
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
import time
from array import array
from pathlib import Path

import pytest

from tests.integrations.conftest import Machine
from tests.integrations.step_hook.test_program_steps import run_program
from wattloop.core.files import try_lock
from wattloop.integrations.step_hook import program, sitecustomize
from wattloop.integrations.step_hook.collector import StepCollector
from wattloop.integrations.step_hook.step_file import STEP
from wattloop.measure.api import Measurement, active_session

FRAMEWORK = """
class CallbackList:
    def on_train_batch_end(self, batch, logs=None): pass
    def on_epoch_end(self, epoch, logs=None): pass
    def on_test_begin(self, logs=None): pass
    def on_test_end(self, logs=None): pass
"""
"""Keras's list of callbacks: the only part of it that the hook needs."""
STEPS = """
from keras.src.callbacks.callback_list import CallbackList
def train(count):
    calls = CallbackList()
    for i in range(count):
        calls.on_train_batch_end(i)
"""


@pytest.fixture
def framework(machine: Machine) -> Machine:
    folder = Path("keras/src/callbacks")
    folder.mkdir(parents=True)
    for each in (folder, *folder.parents[:2]):
        (each / "__init__.py").touch()
    (folder / "callback_list.py").write_text(FRAMEWORK, encoding="utf-8")
    return machine


def test_thousands_of_steps_a_second(framework: Machine) -> None:
    """Promise: each step is counted, and phases add up."""
    done, _, data = run_program(STEPS + "train(30_000)")
    assert data["step_totals"]["steps"] == 30_000, done.stderr
    energy_j = sum(p["energy_j"] for p in data["step_totals"]["phases"])
    assert energy_j == pytest.approx(data["energy_j"], rel=0.005)


IN_A_CHILD = {
    "fork": """
def child(count):
    pid = os.fork()
    if not pid:
        train(count)
        os._exit(0)
    os.waitpid(pid, 0)
""",
    "spawn": """
def child(count):
    subprocess.run([sys.executable, __file__, str(count)], check=True)
""",
}


@pytest.mark.parametrize("how", IN_A_CHILD)
def test_a_parent_and_its_children_train_in_turn(framework: Machine, how: str) -> None:
    """Promise: every step of both is counted, and their energies and the phases add up."""
    text = (
        f"import os, subprocess, sys\n{STEPS}{IN_A_CHILD[how]}"
        "if len(sys.argv) > 1:\n    train(int(sys.argv[1]))\n    raise SystemExit\n"
        "train(200); child(15); train(40); child(3); train(1000); child(400); train(3); child(2)\n"
    )
    done, _, data = run_program(text)
    assert data["step_totals"]["steps"] == 1663, done.stderr
    energy_j = sum(p["energy_j"] for p in data["step_totals"]["phases"])
    assert energy_j == pytest.approx(data["energy_j"], rel=0.005)


def test_a_program_that_is_replaced_or_ends_at_once(framework: Machine) -> None:
    """Promise: `os.exec` and `os._exit` lose no step, and pickle works as without the hook."""
    text = (
        f"import os, pickle, sys\n{STEPS}train(40)\n"
        "assert pickle.loads(pickle.dumps(os._exit)) is os._exit\n"
        "if len(sys.argv) < 2: os.execvp(sys.executable, [sys.executable, __file__, 'again'])\n"
        "os._exit(4)"
    )
    done, _, data = run_program(text)
    assert done.returncode == 4, done.stderr
    assert data["step_totals"]["steps"] == 80


def test_threads_that_train(framework: Machine) -> None:
    """Promise: steps that end in several threads at once are all counted."""
    text = f"""
import sys, threading
sys.setswitchinterval(1e-6)
{STEPS}
threads = [threading.Thread(target=train, args=(500,)) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
"""
    done, _, data = run_program(text)
    assert data["step_totals"]["steps"] == 2_000, done.stderr


class WrittenSteps:
    """A folder of step files, and the collector that reads them."""

    def __init__(self, folder: Path) -> None:
        self.begin_s = time.monotonic() - 60
        self._folder = folder
        folder.mkdir()
        self._measurement = Measurement("run", {}).begin()
        session = active_session()
        assert session is not None
        self.collector = StepCollector(session, folder)

    def write(self, pid: int, *ends_s: float) -> None:
        """Write steps that ended at these times, from a begin in the past."""
        path = self._folder / f"{pid}-0.steps"
        if not path.exists():
            path.write_text(json.dumps({"pid": pid, "local_rank": None}) + "\n")
        records = [
            value
            for end_s in ends_s
            for value in (STEP, self.begin_s + end_s, self.begin_s + end_s, 0, math.nan, 0, 0)
        ]
        with path.open("ab") as file:
            file.write(array("d", records).tobytes())

    def finish(self) -> int:
        self.collector.finish()
        self._measurement.end()
        return self.collector.steps


def test_processes_that_train_at_the_same_time(machine: Machine, tmp_path: Path) -> None:
    """Promise: processes without a rank that step together are one training, also at its end."""
    written = WrittenSteps(tmp_path / "steps")
    written.write(os.getpid(), *(0.1 * i for i in range(1, 101)))
    written.write(os.getppid(), *(0.1 * i + 0.03 for i in range(1, 101)))
    assert written.finish() == 100


def test_steps_that_are_written_late(machine: Machine, tmp_path: Path) -> None:
    """Promise: steps that a waiting parent writes after its child has trained are counted."""
    written = WrittenSteps(tmp_path / "steps")
    written.write(os.getpid(), *(0.001 * i for i in range(1, 11)))
    written.write(os.getppid(), *(5 + 0.1 * i for i in range(25)))
    written.collector._poll()
    assert written.collector.steps == 35
    written.write(os.getpid(), 0.011, 0.012, 0.013, *(20 + 0.001 * i for i in range(5)))
    assert written.finish() == 43
    begin_s, end_s = written.collector._edges_s[-16], written.collector._edges_s[-1]
    assert (begin_s, end_s) == pytest.approx((written.begin_s + 0.01, written.begin_s + 20.004))


def test_a_step_that_never_comes_again(framework: Machine) -> None:
    """Promise: time after the last step is the tail, and no step is invented."""
    done, _, data = run_program(STEPS + "train(20)\nimport time; time.sleep(0.7)")
    phases = {p["name"]: p["time_s"] for p in data["step_totals"]["phases"]}
    assert data["step_totals"]["steps"] == 20, done.stderr
    assert phases["tail"] >= 0.7


def test_a_program_that_kills_itself(framework: Machine) -> None:
    """Promise: its earlier steps are counted, and its signal is passed on."""
    text = (
        STEPS + "train(500)\nimport os, time; time.sleep(0.05); train(1)\nos.kill(os.getpid(), 9)"
    )
    done, _, data = run_program(text)
    assert done.returncode == 128 + signal.SIGKILL
    assert data["step_totals"]["steps"] == 501


def test_a_daemon(framework: Machine) -> None:
    """Promise: a program that trains as a daemon neither blocks the run nor is disturbed."""
    text = f"""
import os, sys, time
print("begun", flush=True)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for i in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), i)
time.sleep(0.5)
{STEPS}
train(50)
open("ended", "w").close()
"""
    begin_s = time.monotonic()
    done, printed, data = run_program(text)
    assert (printed, done.returncode) == ("begun\n", 0), done.stderr
    assert data["energy_j"] > 0
    while not Path("ended").exists():
        assert time.monotonic() < begin_s + 60, "the daemon did not end"
        time.sleep(0.02)


@pytest.mark.parametrize("place", ["/dev/null", "/proc"])
def test_no_write_access(framework: Machine, place: str) -> None:
    """Promise: without a folder for step files the program runs, and the run says why."""
    done, printed, data = run_program(STEPS + "train(5); print('ran')", TMPDIR=place)
    assert (printed, done.returncode) == ("ran\n", 0)
    assert data["step_totals"] is None
    assert "steps are not recorded" in done.stderr


FROZEN = """
#include <Python.h>
int main(void) {
    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    if (PyStatus_Exception(Py_InitializeFromConfig(&config))) return 3;
    int failed = PyRun_SimpleString("import sys; print('ran', len(sys.meta_path))");
    return Py_FinalizeEx() || failed;
}
"""


def test_a_frozen_interpreter(machine: Machine, tmp_path: Path) -> None:
    """Promise: a program with an interpreter of its own, which reads no variables, is measured."""
    Path("frozen.c").write_text(FROZEN, encoding="utf-8")
    place, version = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDVERSION")
    compiler = ["gcc", "frozen.c", "-o", "frozen", f"-I{sysconfig.get_path('include')}"]
    linked = [f"-L{place}", f"-Wl,-rpath,{place}", f"-lpython{version}", "-lm", "-ldl", "-lpthread"]
    try:
        subprocess.run([*compiler, *linked, "-lutil"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no compiler, or no library to embed Python")
    command = [sys.executable, "-m", "wattloop", "run", "--json", "run.json", "--", "./frozen"]
    plain = subprocess.check_output(["./frozen"], text=True)
    assert subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL) == plain
    assert json.loads(Path("run.json").read_text(encoding="utf-8"))["step_totals"] is None


def test_a_program_without_a_start_up_module(machine: Machine) -> None:
    """Promise: `import sitecustomize` fails under the hook if it fails without."""
    text = (
        "import sys\nfound = 'sitecustomize' in sys.modules\n"
        "try:\n    import sitecustomize; print(found, sitecustomize.__file__)\n"
        "except ImportError as error:\n    print(found, error)\n"
    )
    plain = subprocess.check_output([sys.executable, "-c", text], text=True)
    done, printed, _ = run_program(text)
    assert printed == plain, done.stderr
    assert "sitecustomize" not in done.stderr


def test_interpreters_of_any_age_can_read_the_start_up_module() -> None:
    """Promise: an old Python in the program does not print a syntax error of the hook."""
    text = Path(sitecustomize.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 4))
    new = (ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.AsyncFunctionDef, ast.Nonlocal)
    assert not [node for node in ast.walk(tree) if isinstance(node, new)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    annotated = [f.name for f in functions if f.returns or any(a.annotation for a in f.args.args)]
    assert annotated == [], "Python 2 has no annotations"
    assert "__future__" not in text


def test_folders_of_killed_runs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: folders of ended owners are removed; those of a live or a new run are not."""
    live, gone, other = (tmp_path / f"{program.FOLDER_PREFIX}{n}" for n in ("live", "gone", "x"))
    for folder in (live, gone):
        folder.mkdir()
        (folder / "1-1.steps").touch()
    other.symlink_to(tmp_path)
    lock = os.open(live, os.O_RDONLY)
    try:
        assert try_lock(lock)
        program.remove_stale_folders(tmp_path)
        assert gone.exists(), "it may be that of a run that begins"
        monkeypatch.setattr(program, "STALE_AFTER_S", -1.0)
        program.remove_stale_folders(tmp_path)
    finally:
        os.close(lock)
    assert (live.exists(), gone.exists(), other.is_symlink()) == (True, False, True)


def test_a_killed_run_leaves_its_lock_free(framework: Machine, tmp_path: Path) -> None:
    """Promise: `kill -9` of wattloop frees the lock of its folder, though the program lives."""
    Path("program.py").write_text(
        STEPS + "train(5)\nprint('trained', flush=True)\nimport time; time.sleep(60)\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "wattloop", "run", "--", sys.executable, "program.py"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "trained\n"
        (folder,) = tmp_path.glob(f"{program.FOLDER_PREFIX}*")
        (steps,) = folder.glob("*.steps")
        pid = json.loads(steps.read_bytes().partition(b"\n")[0])["pid"]
        run.kill()
        run.wait()
        os.kill(pid, signal.SIGKILL)
    lock = os.open(folder, os.O_RDONLY)
    try:
        assert try_lock(lock, wait_s=5.0)
    finally:
        os.close(lock)


NOTEBOOK = """
import sys
from jupyter_client.manager import KernelManager
manager = KernelManager()
manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=600)
for cell in (TRAINING, "train(30)", "train(12)"):
    answer = client.execute_interactive(cell, timeout=600)
    print(answer["content"]["status"])
client.stop_channels()
manager.shutdown_kernel()
"""


def test_a_notebook_kernel(framework: Machine) -> None:
    """Promise: steps of cells are those of the kernel that a server under the run started."""
    for name in ("ipykernel", "jupyter_client"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    cell = f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\n{STEPS}"
    done, printed, data = run_program(f"TRAINING = {cell!r}\n" + NOTEBOOK)
    assert printed.split() == ["ok"] * 3, done.stderr
    assert data["step_totals"]["steps"] == 42, done.stderr
