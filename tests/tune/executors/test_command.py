"""Commands as trainings: real processes, followed, paused and ended."""

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.small import small_problem
from wattloop.core.errors import CommandError, ConfigError
from wattloop.tune.executors import command, training_curve
from wattloop.tune.executors.command import CommandExecutor
from wattloop.tune.search_problem import Limits, Problem, Quality
from wattloop.tune.segment import RateSweep, Segment, Status, Until
from wattloop.tune.space import Choice, Space

ROOT = Path(__file__).parents[3]
SEARCH = f"search-{os.getpid()}"
MARK = f"WATTLOOP_TRIAL={SEARCH}/w1".encode()
TRAIN = """
import sys, time
width = float(sys.argv[1])
print("loading")
for epoch in range(1, 9):
    time.sleep(0.05)
    print(f"epoch {epoch}: loss={1 / epoch:.3f} accuracy={1 - 1 / (1 + epoch * width):.4f}")
"""


def segment(epochs=None, *, width=1, key="", **options):
    return Segment(
        key=key or f"w{width}/{epochs}",
        candidate=f"w{width}",
        parameters={"width": width},
        until=Until(epochs=epochs),
        **options,
    )


@pytest.fixture
def bench(settings, tmp_path, monkeypatch):
    made = []

    def make(program, *arguments, problem=None, **options):
        script = tmp_path / "train.py"
        script.write_text(program)
        command = [sys.executable, str(script), *(arguments or ("{width}",))]
        made.append(
            CommandExecutor(
                command,
                problem or small_problem(),
                settings,
                folder=tmp_path / "files",
                search_id=SEARCH,
                **options,
            )
        )
        return made[-1]

    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    yield make
    for each in made:
        each.close()


def test_a_program_is_paused_and_goes_on(bench):
    """Promise: paused at the end of an epoch it is idle; then it continues from there."""
    one = bench(TRAIN)
    first = one.run(segment(2))
    assert (first.status, first.epochs) == (Status.PAUSED, 2)
    assert first.metrics["loss"] == 0.5
    assert [point.epoch for point in first.curve] == [1, 2]
    time.sleep(1.0)
    begin_s = time.monotonic()
    second = one.run(segment(5))
    took_s = time.monotonic() - begin_s
    assert (second.status, second.epochs) == (Status.PAUSED, 5)
    assert second.time_s <= took_s  # what it slept is not in it
    assert second.curve[0].energy_j > first.curve[-1].energy_j
    last = one.run(segment())
    assert (last.status, last.epochs) == (Status.ENDED, 8)


def running(mark):
    """Processes that bear this name in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def ends(mark):
    """Return true once none of them runs; a killed one may take a moment."""
    until_s = time.monotonic() + 120
    while running(mark) and time.monotonic() < until_s:
        time.sleep(0.02)
    return not running(mark)


def test_what_is_let_go_leaves_nothing_running(bench):
    """Promise: a paused program and what it started are ended."""
    program = "import subprocess; subprocess.Popen(['sleep', '60'])\n" + TRAIN
    one = bench(program)
    one.run(segment(1))
    assert len(running(MARK)) == 2
    one.release("w1")
    assert ends(MARK)


def test_programs_of_a_killed_search_can_be_found(bench):
    """Promise: a program and what it started bear the variables of their search."""
    program = "import subprocess; subprocess.Popen(['sleep', '60'])\n" + TRAIN
    one = bench(program, variables={"WATTLOOP_TRIAL_LOCK": f"/{SEARCH}.lock"})
    one.run(segment(1))
    mark = f"\0WATTLOOP_TRIAL_LOCK=/{SEARCH}.lock\0".encode()
    assert len(running(mark)) == 2
    assert running(mark) == running(MARK)


def test_what_a_program_leaves_behind_is_ended(bench):
    """Promise: also where the program itself has ended."""
    program = "import subprocess; subprocess.Popen(['sleep', '60'])\nprint('accuracy=1')"
    assert bench(program).run(segment()).status is Status.ENDED
    assert ends(MARK)


SAVING = """
import json, os, signal, sys, time
from pathlib import Path
state = Path(os.environ["WATTLOOP_CHECKPOINT"]) / "state.json"
epoch = 0
if os.environ["WATTLOOP_RESUMED"] == "1":
    epoch = json.loads(state.read_text())
    assert epoch >= float(os.environ["WATTLOOP_EPOCHS_DONE"])
def save(*_):
    SAVE
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
started = epoch
while epoch < 8:
    time.sleep(0.05)
    epoch += 1
    print(json.dumps({"epoch": epoch, "accuracy": epoch / 10, "pid": os.getpid()}), flush=True)
    WAIT
"""


def test_a_program_that_saves_is_ended_and_begun_again(bench):
    """Promise: with checkpoint it uses no memory while paused, and continues from its files."""
    # it does not run ahead of the request to stop, so that the epochs are the same on a busy
    # machine
    wait = "if epoch in (2, 4) and epoch > started: time.sleep(30)"
    program = SAVING.replace("SAVE", "state.write_text(json.dumps(epoch))").replace("WAIT", wait)
    one = bench(program, checkpoint=True)
    first = one.run(segment(2))
    assert first.status is Status.PAUSED
    assert ends(MARK)
    second = one.run(segment(4))
    assert second.metrics["pid"] != first.metrics["pid"]
    assert [point.epoch for point in second.curve][-1] == 4
    assert second.repeated_s == 0


def test_a_program_that_saves_nothing_is_trained_again_and_says_so(bench):
    """Promise: the cost to return to its earlier state is counted as repeated."""
    one = bench(SAVING.replace("SAVE", "pass").replace("WAIT", "pass"), checkpoint=True)
    first = one.run(segment(2))
    assert "saved nothing" in first.message
    second = one.run(segment(3))
    assert (second.status, second.epochs) == (Status.PAUSED, 3)
    assert second.repeated_j > 0
    assert [point.epoch for point in second.curve] == [3]


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("print('hello')", Status.NO_METRIC, "print a line such as 'accuracy=0.93'"),
        ("print('loss=1.0')", Status.NO_METRIC, "only loss"),
        ("print('accuracy=nan')\nimport time\ntime.sleep(30)", Status.DIVERGED, "accuracy is nan"),
        ("raise SystemExit('no such file')", Status.FAILED, "exit code 1; it said: no such file"),
        (
            "def f(): raise ValueError(1)\nf()",
            Status.FAILED,
            "in f | def f(): raise ValueError(1) | ",
        ),
        ("raise MemoryError", Status.OUT_OF_MEMORY, "MemoryError"),
        ("import os\nos.kill(os.getpid(), 9)", Status.KILLED, "signal 9"),
        ("raise RuntimeError('CUDA out of memory')", Status.OUT_OF_MEMORY, "exit code 1"),
    ],
)
def test_every_end_has_its_name(bench, program, status, said):
    """Promise: a program that ends badly is a result that says how."""
    progress = bench(program).run(segment())
    assert progress.status is status
    assert said in progress.message


def test_a_program_that_never_ends_is_ended(bench):
    """Promise: the time limit of a segment holds, whatever the program does."""
    problem = small_problem(limits=Limits(trial_time_s=0.3))
    progress = bench("import time\ntime.sleep(60)", problem=problem).run(segment())
    assert progress.status is Status.TIMEOUT
    assert ends(MARK)


HANGS = "import time\nprint('accuracy=0.5')\ntime.sleep(60)"
COOPERATES = "from wattloop.tune import current_trial\ncurrent_trial().report(accuracy=0.5)\n"


@pytest.mark.parametrize(
    ("program", "most"),
    [
        (HANGS, {"most_s": 0.3}),
        (HANGS, {"most_j": 15.0}),
        (COOPERATES + HANGS, {"most_s": 0.3}),
    ],
)
def test_a_program_that_hangs_is_paused_when_the_search_is_over(bench, program, most, monkeypatch):
    """Promise: a deadline or budget of the search holds within an epoch, too."""
    monkeypatch.setattr(command, "DROP_GRACE_S", 0.1)
    progress = bench(program).run(replace(segment(), until=Until(**most)))
    assert progress.status is Status.PAUSED
    assert progress.time_s < 30


def test_a_metrics_file_is_followed(bench, tmp_path):
    """Promise: CSV that a program writes counts as what it prints."""
    program = """
import sys, time
with open(sys.argv[1], "w", buffering=1) as file:
    file.write("epoch,accuracy\\n")
    for epoch in range(1, 5):
        time.sleep(0.03)
        file.write(f"{epoch},{epoch / 10}\\n")
"""
    one = bench(program, "{trial_dir}/m.csv", metrics_file="{trial_dir}/m.csv")
    progress = one.run(segment(3))
    assert (progress.status, progress.epochs, progress.quality) == (Status.PAUSED, 3, 0.3)


def test_parameters_reach_the_program(bench):
    """Promise: as arguments, as variables, and through `current_trial`."""
    program = """
import os, sys
from wattloop.tune import current_trial
trial = current_trial()
assert float(sys.argv[1]) == trial["width"] == float(os.environ["WATTLOOP_PARAM_WIDTH"])
assert trial.seed == 7 and not trial.resumed
for epoch in trial.epochs(3):
    trial.report(accuracy=epoch / 10, loss=None)
"""
    progress = bench(program).run(segment(seed=7, width=2))
    assert (progress.status, progress.epochs) == (Status.ENDED, 3), progress.message
    assert [point.quality for point in progress.curve] == [0.0, 0.1, 0.2]


def test_a_metric_that_disappears_is_said(bench):
    """Promise: epochs without it are epochs without quality, and there is a warning."""
    program = """
import time
from contextlib import suppress
from pathlib import Path
for epoch in range(1, 7):
    time.sleep(0.01)
    print(f"epoch {epoch} loss=0.1", f"accuracy={epoch / 10}" if epoch < 3 else "")
"""
    progress = bench(program).run(segment())
    assert progress.status is Status.ENDED
    assert progress.best == 0.2
    assert "accuracy was not reported any more after epoch 2" in progress.message


def test_a_program_that_falls_silent_and_trains_on_is_said(bench, monkeypatch):
    """Promise: the trial still ends, and its record says that epochs may be missing."""
    # on a busy machine an epoch may take as long as the silence
    monkeypatch.setattr(training_curve, "SILENT_EPOCHS", 0.0)
    monkeypatch.setattr(training_curve, "SILENT_S", 0.5)
    program = """
import time
for epoch in range(1, 4):
    time.sleep(0.05)
    print(f"accuracy={epoch / 10}")
time.sleep(2.5)
"""
    progress = bench(program).run(segment())
    assert (progress.status, progress.epochs) == (Status.ENDED, 3)
    assert progress.message.startswith("accuracy was not reported any more after epoch 3, though")


def test_a_rate_sweep_is_not_supported(bench):
    """Promise: refused without running anything."""
    sweep = RateSweep(low=1e-3, high=1.0, count=5)
    progress = bench(TRAIN).run(segment(rates=sweep))
    assert progress.status is Status.NOT_SUPPORTED


def test_a_program_that_is_not_there_is_an_error(settings, tmp_path):
    """Promise: said before a search begins."""
    with pytest.raises(CommandError, match="not found"):
        CommandExecutor(["no-such-program"], small_problem(), settings, folder=tmp_path)


WAITING = """
import sys, time
from wattloop.tune import current_trial
trial = current_trial()
try:
    for epoch in trial.epochs(8):
        for _ in trial.steps(range(20)):
            time.sleep(0.01)
        trial.report(accuracy=epoch / 10)
finally:
    (trial.checkpoint / "finally").write_text("x")
"""


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_that_reports_is_paused_where_it_reports(bench, tmp_path):
    """Promise: it waits at the end of an epoch and is not stopped in the middle of something; let
    go it cleans up behind itself.
    """
    one = bench(WAITING)
    first = one.run(segment(2))
    (pid,) = running(MARK)
    assert state_of(pid) == "S"
    second = one.run(segment(3))
    assert [point.epoch for point in second.curve] == [3]
    assert (first.status, second.status) == (Status.PAUSED, Status.PAUSED)
    training = one._trainings["w1"]
    training.drop()
    assert (training._files.checkpoint / "finally").exists()
    assert ends(MARK)


def test_a_program_that_tells_its_steps_is_paused_between_two(bench):
    """Promise: where a segment may end anywhere it waits after a step, and says how far it is."""
    one = bench(WAITING)
    one.run(segment(1))
    until = Until(time_s=0.1, anywhere=True)
    progress = one.run(Segment(key="a", candidate="w1", parameters={"width": 1}, until=until))
    assert progress.status is Status.PAUSED
    assert progress.epochs % 1 > 0
    (pid,) = running(MARK)
    assert state_of(pid) == "S"


def test_a_program_whose_search_died_ends_by_itself(bench):
    """Promise: nothing waits for ever for a search that was killed."""
    one = bench(WAITING)
    one.run(segment(1))
    training = one._trainings["w1"]
    training._channel.close()  # as the kernel does when its process is killed
    assert training._program.wait(300.0)
    assert (training._files.checkpoint / "finally").exists()


def test_what_a_reporting_program_prints_is_for_people(bench):
    """Promise: metrics that it also prints are not counted twice."""
    program = """
from wattloop.tune import current_trial
trial = current_trial()
for epoch in range(3):
    print(f"accuracy={epoch}")
    trial.report(accuracy=epoch / 10)
"""
    progress = bench(program).run(segment())
    assert [point.quality for point in progress.curve] == [0.0, 0.1, 0.2]


def test_a_number_of_gpus_is_what_the_program_sees(bench, monkeypatch):
    """Promise: so many of the GPUs that the search sees, as variable and placeholder."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    program = "import os, sys\nassert os.environ['CUDA_VISIBLE_DEVICES'] == '3,5'\n"
    program += "assert sys.argv[1] == '2'\nprint('accuracy=1')"
    space = Space({"gpus": Choice(values=(1, 2), lever="gpus")})
    problem = Problem(space=space, quality=Quality(metric="accuracy"))
    one = bench(program, "{gpus}", problem=problem)
    progress = one.run(segment(levers={"gpus": 2}))
    assert progress.status is Status.ENDED, progress.message


def test_energy_that_nobody_reads_is_refused(bench, settings, tmp_path):
    """Promise: said before anything is trained, where the search is for the least energy."""
    one = bench("raise SystemExit(1)", scope="gpu")
    with pytest.raises(ConfigError, match="the energy of the gpu is not read here"):
        one.run(segment())
