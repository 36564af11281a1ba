"""Promises of `wattloop tune`, with real commands on a machine that draws 50 W."""

import contextlib
import csv
import io
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import Machine
from tests.cli.test_output import shown
from tests.support.environment import without
from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from wattloop.cli.commands.tune.view import list_table
from wattloop.cli.main import main
from wattloop.report.stored_results import read_search
from wattloop.store.database import open_store
from wattloop.store.experiments import find_experiment, set_experiment_status

TRAIN = """\
import sys, time
lr = float(sys.argv[1])
with open("trained.log", "a") as log:
    log.write(f"{lr}\\n")
for epoch in range(1, 7):
    time.sleep(0.02)
    print(f"epoch {epoch} loss={1 / epoch:.3f} accuracy={1 - 1 / (1 + epoch * lr * 10):.4f}")
"""
SPEC = """\
name: small
metric: {name: accuracy, goal: maximize, target: 0.8}
strategy: grid
parameters:
  lr: {values: [0.01, 0.1, 0.3]}
default: {lr: 0.1}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The processor of this machine; this process is in a folder with a training and its
    specification.
    """
    for name in os.environ.keys() - without("WATTLOOP", "XDG").keys():
        monkeypatch.delenv(name)
    sysfs = tmp_path / "sys"
    package = PowercapTree(sysfs).add_package(0, max_power_w=200, limit_w=150)
    own = {
        "HOME": str(tmp_path),
        "COLUMNS": "160",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "WATTLOOP_SYSFS_ROOT": str(sysfs),
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
        "WATTLOOP_STATE_DIR": str(tmp_path / "state"),
        "WATTLOOP_METERS": "rapl",
        "WATTLOOP_INTERVAL": "0.02",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "s.yaml").write_text(SPEC)
    return package


@pytest.fixture
def here(tmp_path, package):
    """Its folder; the processor draws 50 W."""
    with Driver({package: Constant(50.0)}, update_period_s=0.005):
        yield tmp_path


@pytest.fixture
def counting(tmp_path, package):
    """Its folder; the processor draws 0.5 J in each epoch, however long it takes. A training that
    has reached the target does nothing more until it is ended.
    """
    count = (
        "    import os, pathlib\n"
        f"    file = pathlib.Path({str(package.energy_file)!r})\n"
        "    new = file.with_name('new')\n"
        "    new.write_text(str(int(file.read_text()) + 500_000))\n"
        "    os.replace(new, file)\n"
    )
    head, line, tail = TRAIN.partition("    print(")
    wait = "    time.sleep(300 if epoch * lr * 10 >= 4 else 0)\n"
    (tmp_path / "train.py").write_text(head + count + line + tail + wait)
    return tmp_path


COMMAND = ["--", sys.executable, "train.py", "{lr}"]


def trained(folder):
    log = folder / "trained.log"
    return [float(line) for line in log.read_text().splitlines()] if log.exists() else []


def training_in(folder):
    """Return the processes of trainings in this folder, from any parent."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (place / "cwd").readlink() == folder and b"train.py" in (
                place / "cmdline"
            ).read_bytes():
                found.append(place.name)
    return found


def test_a_search_is_run_listed_shown_exported_and_proven(counting, capsys):
    """Promise: from a file and a command to the best configuration and what it saves."""
    assert main(["tune", "run", "s.yaml", "--json", "out.json", *COMMAND]) == 0
    text = capsys.readouterr()
    assert "best: lr=0.3" in text.out
    assert "cpu measured" in text.out
    result = json.loads((counting / "out.json").read_text())
    assert result["best"]["parameters"] == {"lr": 0.3}
    assert [t["reached"] for t in result["trials"]] == [True, False, True]
    assert result["status"] == "finished"
    assert trained(counting) == [0.1, 0.01, 0.3]

    assert main(["tune", "list"]) == 0
    assert result["search_id"] in capsys.readouterr().out
    with open_store(counting / "runs.db") as store:
        experiment = find_experiment(store, "last")
        table = list_table([(experiment, read_search(store, experiment)[1])])
    assert " small " in shown(80, table.headers, table.texts(), spare=table.spare)
    assert main(["tune", "show", "small", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == result["trials"]
    assert main(["tune", "best", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == {"lr": 0.3}
    assert main(["tune", "export"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["lr"] for row in rows] == ["0.1", "0.01", "0.3"]
    assert float(rows[0]["energy_j"]) > 0
    for row in rows:  # 150 W is the limit of the package
        share = float(row["energy_j"]) / float(row["time_s"]) / 150
        assert float(row["cpu_efficiency"]) == pytest.approx(share, rel=0.5)
        assert row["global_efficiency"] == row["cpu_efficiency"]
        assert row["gpu_efficiency"] == ""
    assert main(["tune", "export", "--epochs"]) == 0
    epochs = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    own = [row for row in epochs if row["candidate"] == "c0"]
    assert [float(row["epoch"]) for row in own] == [1, 2, 3, 4]
    assert [float(row["loss"]) for row in own] == [1.0, 0.5, 0.333, 0.25]
    assert sum(float(row["time_s"]) for row in own) <= float(rows[0]["time_s"])

    assert main(["tune", "final", "--json", "final.json"]) == 0
    said = capsys.readouterr().out
    assert "searching" in said
    final = json.loads((counting / "final.json").read_text())
    assert final["default"]["from_search"]
    assert final["notes"] == []
    assert final["winner"]["parameters"] == {"lr": 0.3}
    assert final["search"]["energy_j"] > final["winner"]["energy_j"]


def test_the_best_value_of_each_parameter_is_trained(here, capsys):
    """Promise: values that no run had together are put together, linked ones follow."""
    pytest.importorskip("statsmodels", reason="the extra 'analyze' is not installed")
    (here / "pair.yaml").write_text(
        "name: pair\nmetric: {name: accuracy, goal: maximize}\nobjective: quality\n"
        "strategy: grid\nparameters:\n  lr: [0.1, 0.3]\n  batch: [8, 16]\n"
        "  eval_batch: {same_as: batch}\n"
    )
    assert main(["tune", "run", "pair.yaml", *COMMAND]) == 0
    capsys.readouterr()
    assert main(["tune", "final", "pair", "--from-importances", "--json", "final.json"]) == 0
    said = capsys.readouterr()
    assert "best value of each parameter, more best_accuracy is better" in said.out
    final = json.loads((here / "final.json").read_text())
    assert final["winner"]["parameters"]["lr"] == 0.3
    assert final["winner"]["parameters"]["eval_batch"] == final["winner"]["parameters"]["batch"]


def test_the_report_of_a_search_tells_its_final_training(here, capsys):
    """Promise: the name still means the search after `final`, whose report has what was saved."""
    pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 0
    assert main(["report", "small", "-o", "before.html"]) == 0
    assert main(["tune", "final", "small", "--json", "final.json"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    final = json.loads((here / "final.json").read_text())
    assert main(["report", "small", "-o", "after.html"]) == 0
    assert main(["report", final["final_id"], "-o", "by_id.html"]) == 0
    assert "Trained in full" not in (here / "before.html").read_text()
    for name in ("after.html", "by_id.html"):
        text = (here / name).read_text()
        assert "Trained in full" in text
        assert said[1:] in text
    assert main(["tune", "list", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["searches"][0]["status"] == "finished"


def test_a_limit_stops_it_and_a_higher_one_goes_on(here, capsys):
    """Promise: it names the limit; a higher one continues, the same one starts again."""
    assert main(["tune", "run", "s.yaml", "--trials", "1", *COMMAND]) == 0
    assert "stopped: 1 configuration was allowed" in capsys.readouterr().err
    assert main(["tune", "run", "s.yaml", "--trials", "2", *COMMAND]) == 0
    assert "going on with" in capsys.readouterr().err
    assert trained(here) == [0.1, 0.01]
    assert main(["tune", "resume", "last", "--trials", "5"]) == 0
    assert trained(here) == [0.1, 0.01, 0.3]
    assert "nothing is left" not in capsys.readouterr().err
    assert main(["tune", "resume", "last", "--trials", "5"]) == 0
    assert "nothing is left to train in search-" in capsys.readouterr().err
    assert trained(here) == [0.1, 0.01, 0.3]
    assert main(["tune", "run", "s.yaml", "--resume", *COMMAND]) == 2
    assert "no unfinished search" in capsys.readouterr().err


def test_raised_limits_hold_for_whoever_goes_on_later(here, capsys):
    """Promise: a limit that was given when continuing need not be given again."""
    assert main(["tune", "run", "s.yaml", "--trials", "1", *COMMAND]) == 0
    slow = TRAIN.replace("0.02", "0.02 if lr == 0.1 else 60")
    (here / "train.py").write_text(slow)
    command = [sys.executable, "-m", "wattloop.cli.main", "tune", "resume", "last", "--trials", "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    give_up_s = time.monotonic() + 120
    while len(trained(here)) < 2 and time.monotonic() < give_up_s:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait()
    (here / "train.py").write_text(TRAIN)
    assert main(["tune", "resume"]) == 0
    assert trained(here) == [0.1, 0.01, 0.01, 0.3]


def test_what_was_searched_to_its_end_is_named_when_it_is_begun_again(here, capsys):
    """Promise: no search is paid for twice without a message."""
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 0
    assert "searched the same" not in capsys.readouterr().err
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 0
    assert "searched the same to its end" in capsys.readouterr().err


def test_a_parameter_of_thousands_is_written_out(here, capsys):
    """Promise: 20000 W of a cluster are shown as that, not as 2e+04."""
    spec = SPEC.replace("  lr: ", "  budget_w: {values: [20000.0]}\n  lr: ")
    (here / "s.yaml").write_text(spec.replace("{lr: 0.1}", "{lr: 0.1, budget_w: 20000.0}"))
    assert main(["tune", "run", "s.yaml", *COMMAND, "{budget_w}"]) == 0
    shown = capsys.readouterr().out
    assert "20000" in shown.replace(",", "")
    assert "e+04" not in shown


def test_several_objectives_end_with_their_front(here, capsys):
    """Promise: without a single best trial, all that no other trial beats are shown."""
    front = SPEC.replace("strategy: grid", "strategy: grid\nobjective: [quality, energy]")
    (here / "s.yaml").write_text(front.replace(", target: 0.8", ""))
    assert main(["tune", "run", "s.yaml", "--json", "out.json", *COMMAND]) == 0
    shown = capsys.readouterr().out
    result = json.loads((here / "out.json").read_text())
    assert result["best"]["candidate"] in [c["candidate"] for c in result["front"]]
    assert ("front: " in shown) == (len(result["front"]) > 1)


def test_killed_it_goes_on_and_pays_for_nothing_twice(here, capsys):
    """Promise: kill -9 of the search; its program is ended, what was finished stays finished."""
    slow = TRAIN.replace("0.02", "99 if lr == 0.01 else 0.02")
    (here / "train.py").write_text(slow)
    command = [sys.executable, "-m", "wattloop.cli.main", "tune", "run", "s.yaml", *COMMAND]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    give_up_s = time.monotonic() + 120
    while len(trained(here)) < 2 and time.monotonic() < give_up_s:
        time.sleep(0.02)
    for words in (["run", "s.yaml", "--trials", "99", *COMMAND], ["resume", "--trials", "99"]):
        assert main(["tune", *words]) == 2  # another process is running it
        said = capsys.readouterr().err
        assert f"is being run by process {process.pid}" in said
        assert "going on with" not in said
    with open_store(here / "runs.db") as store:
        assert "limits" not in find_experiment(store, "last").facts
    assert main(["tune", "final"]) == 2  # it would be measured while the search runs
    assert "is being run by process" in capsys.readouterr().err
    time.sleep(1.3)  # a run that was killed knows itself up to its last second
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert training_in(here)
    assert main(["tune", "best"]) == 0
    assert "best: lr=0.1" in capsys.readouterr().out
    assert main(["tune", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("  lr=0.1")
    (here / "train.py").write_text(TRAIN)
    assert main(["tune", "final"]) == 0
    assert "training the best configuration of small in full" in capsys.readouterr().err
    assert not training_in(here)
    assert trained(here) == [0.1, 0.01, 0.1]
    assert main(["tune", "resume"]) == 0
    told = capsys.readouterr()
    assert "good enough" in told.out
    assert "because it was interrupted" in told.out
    assert trained(here) == [0.1, 0.01, 0.1, 0.01, 0.3]


@pytest.mark.parametrize(
    ("spec", "command", "said"),
    [
        (SPEC.replace("  lr: {values: [0.01, 0.1, 0.3]}", "  {}"), COMMAND, "parameters"),
        (SPEC + "deadline: 3h\n", COMMAND, "s.yaml:7: deadline"),
        (SPEC.replace("{lr: 0.1}", "{momentum: 0.1}"), COMMAND, "s.yaml:6"),
        (SPEC.replace("grid", "gird"), COMMAND, "did you mean 'grid'"),
        (SPEC, [], "nothing to train"),
        (SPEC, ["--", "no-such-program"], "not found"),
        (SPEC, ["--", sys.executable, "-c", "print('hello')"], "without reporting 'accuracy'"),
    ],
)
def test_bad_input_is_refused(here, capsys, spec, command, said):
    """Promise: the error, its place, the remedy, and a distinct exit code."""
    (here / "s.yaml").write_text(spec)
    assert main(["tune", "run", "s.yaml", *command]) in (2, 127)
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_metric_that_is_nan_is_recorded(here, capsys):
    """Promise: that configuration has diverged; the others decide."""
    (here / "train.py").write_text(
        "import sys\nif sys.argv[1] == '0.3':\n    print('accuracy=nan', flush=True)\n" + TRAIN
    )
    assert main(["tune", "run", "s.yaml", "--json", "out.json", *COMMAND]) == 0
    result = json.loads((here / "out.json").read_text())
    assert [t["status"] for t in result["trials"]] == ["reached", "ended", "diverged"]
    assert result["best"]["parameters"] == {"lr": 0.1}
    assert "diverged: accuracy is nan" in capsys.readouterr().err


def test_a_search_in_which_everything_fails_has_failed(here, capsys):
    """Promise: a script that uses the winner learns that there is none, and why."""
    (here / "train.py").write_text("raise SystemExit('no data')\n")
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 1
    told = capsys.readouterr()
    assert "every configuration failed; the first: " in told.err
    assert "no data" in told.err


def test_a_cap_that_may_not_be_set_is_left_out(here, capsys):
    """Promise: the search continues without it, and says why."""
    (here / "s.yaml").write_text(SPEC + "hardware: {power_limit: [300, 500]}\n")
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 0
    told = capsys.readouterr()
    assert "goes on without power_limit: " in told.err
    assert trained(here) == [0.1, 0.01, 0.3]


@pytest.mark.parametrize("strategy", ["grid", "race"])
def test_a_cap_that_nobody_could_find_here_is_said_at_once(here, capsys, strategy):
    """Promise: of `power_limit: auto`, too, whether or not a strategy came to look for one."""
    (here / "s.yaml").write_text(SPEC.replace("grid", strategy) + "hardware: {power_limit: auto}\n")
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 0
    told = capsys.readouterr()
    assert told.err.count("goes on without power_limit: gpu/power_limit cannot be set here") == 1
    assert "good enough" in told.out


def test_a_cap_that_is_all_there_is_to_search_leaves_one_training(here, capsys):
    """Promise: the training as it is, measured, where its cap may not be set."""
    (here / "s.yaml").write_text(
        "metric: {name: accuracy, goal: maximize, target: 0.8}\nhardware: {power_limit: auto}\n"
    )
    assert main(["tune", "run", "s.yaml", *COMMAND[:-1], "0.3"]) == 0
    told = capsys.readouterr()
    assert "goes on without power_limit: " in told.err
    assert "good enough after" in told.out


def test_a_search_that_found_none_good_enough_says_how_near_it_came(here, capsys):
    """Promise: of a search that is over, `none` and not `none yet`, with the nearest to target."""
    assert main(["tune", "run", "s.yaml", "--target", "80", *COMMAND]) == 0
    assert "best: none; none has reached accuracy 80, c2 came nearest with 0.9474" in (
        capsys.readouterr().out
    )
    assert main(["tune", "best"]) == 0
    assert "c2 came nearest with 0.9474" in capsys.readouterr().out


def test_the_winner_of_trainings_side_by_side_is_measured_on_as_many_gpus(
    here, capsys, monkeypatch
):
    """Promise: idle GPUs are not in its energy, as they were not in the search's."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "3")  # 80 W each
    monkeypatch.setenv("WATTLOOP_METERS", "virtual")
    (here / "train.py").write_text(TRAIN.replace("0.02", "0.1"))
    assert main(["tune", "run", "s.yaml", "--parallel", "2", *COMMAND]) == 0
    assert main(["tune", "final", "--json", "out.json"]) == 0
    capsys.readouterr()
    final = json.loads((here / "out.json").read_text())
    assert final["winner"]["energy_j"] / final["winner"]["time_s"] < 120


def test_a_search_on_a_cluster_is_not_compared_in_silence(here, capsys):
    """Promise: winner and default of a search on Ray are trained here, and the output says so."""
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 0
    with open_store(here / "runs.db") as store:  # as if workers of Ray had trained
        search = find_experiment(store, "last")
        set_experiment_status(store, search.experiment_id, search.status, {"parallel": "ray:2"})
    capsys.readouterr()
    assert main(["tune", "final", "--json", "out.json"]) == 0
    assert "note: the search ran on a Ray cluster" in capsys.readouterr().err
    final = json.loads((here / "out.json").read_text())
    assert "devices of this machine" in final["notes"][0]
    assert not final["default"]["from_search"]
    assert main(["report", search.experiment_id, "-o", "search.html"]) == 0
    assert "the search ran on a Ray cluster" in (here / "search.html").read_text()


def test_a_search_that_could_not_begin_is_not_gone_on_with(here, capsys):
    """Promise: missing GPUs or programs are reported, and the next try is a new search."""
    assert main(["tune", "run", "s.yaml", "--parallel", "2", *COMMAND]) == 2
    assert "gpu:0 is not read here" in capsys.readouterr().err
    assert main(["tune", "resume"]) == 2
    assert "no unfinished search" in capsys.readouterr().err
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 0
    assert "good enough" in capsys.readouterr().out
    with open_store(here / "runs.db") as store:  # as if it had been interrupted on another machine
        known = find_experiment(store, "last")
        set_experiment_status(store, known.experiment_id, "interrupted", {"parallel": 2})
    assert main(["tune", "run", "s.yaml", *COMMAND]) == 2
    told = capsys.readouterr().err
    assert "was begun with --parallel 2, cannot go on here: " in told
    assert "--new starts a new search" in told


def test_a_store_that_cannot_be_read_is_left_alone(here, capsys):
    """Promise: a damaged or newer store is named and not touched; exit code 2."""
    place = here / "runs.db"
    place.write_bytes(b"not a database at all" * 100)
    before = place.read_bytes()
    for words in (["run", "s.yaml", *COMMAND], ["list"], ["best"], ["resume"]):
        assert main(["tune", *words]) == 2
        assert "runs.db" in capsys.readouterr().err
    assert place.read_bytes() == before
    place.unlink()
    assert main(["tune", "run", "s.yaml", "--trials", "1", *COMMAND]) == 0
    capsys.readouterr()
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    assert main(["tune", "list"]) == 2
    assert "upgrade" in capsys.readouterr().err


def test_nothing_yet_is_no_error(here, capsys):
    """Promise: an empty store says how to begin."""
    assert main(["tune", "list"]) == 0
    assert "wattloop tune run" in capsys.readouterr().err
    assert main(["tune", "best"]) == 2


def test_progress_is_shown_on_a_terminal_only(machine: Machine):
    """Promise: without a terminal only the result is printed."""
    (machine.folder / "train.py").write_text(TRAIN)
    (machine.folder / "s.yaml").write_text(SPEC)
    done = machine.wattloop("tune", "run", "s.yaml", "--trials", "1", *COMMAND)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 2
