"""`wattloop cap`: find on virtual GPUs, evaluate on tables, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.virtual_caps import SRC, machine, settle, virtual_curve
from wattloop.cap.command_search import ProgressLines
from wattloop.cap.evaluation import COLUMNS
from wattloop.cli.main import main
from wattloop.control.registry import find_levers, levers_named
from wattloop.control.session import lever_session
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings, settings_from
from wattloop.store.database import open_store
from wattloop.store.experiments import find_experiment
from wattloop.trials.experiment_lock import lock_experiment
from wattloop.virtual.gpu import Fault
from wattloop.virtual.node import shared_gpus

TRAIN = [sys.executable, "-m", "wattloop.virtual.train", "--gpus", "2"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """This process, too, is on the machine with virtual GPUs."""
    settle(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{SRC}")


def limits():
    found = levers_named(find_levers(settings=Settings(virtual_gpus=2)), "gpu/power_limit")
    return {lever.read() for lever in found}


def table(folder):
    caps = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
    rows = [",".join(COLUMNS)]
    for intensity in (20.0, 150.0, 300.0, 600.0):
        curve = virtual_curve("v100", intensity, caps)
        rows += [
            f"d,n{intensity:g},1,sgd,{cap},{time_s},{power_w}"
            for cap, time_s, power_w in zip(caps, curve.time_s, curve.power_w, strict=True)
        ]
    path = folder / "power.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_evaluate_writes_every_field(tmp_path):
    """Promise: the fields that other programs read, of a table of the stated shape."""
    words = ["--metric", "eds", "--k", "1.5", "--noise", "2", "--seeds", "2", "--json", "e.json"]
    assert main(["cap", "evaluate", "--table", str(table(tmp_path)), *words]) == 0
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["curves"] == 4
    assert 1 <= found["responsive_curves"] <= 4
    assert 0 <= found["within_2pct_share"] <= 1
    assert 1 <= found["median_probes"] <= 4
    assert 1 <= found["mean_probes"] <= 4
    assert found["worst_regret_pct"] >= 0
    assert 0 <= found["exhaustive_within_2pct_share"] <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "--table", "absent.csv"], "no such file"),
        (["evaluate", "--table", "power.csv", "--metric", "joule"], "unknown metric"),
        (["evaluate", "--table", "power.csv", "--k", "1"], "above 1"),
        (["evaluate", "--table", "power.csv", "--noise", "-1"], "--noise"),
        (["evaluate", "--table", "power.csv", "--seeds", "0"], "--seeds"),
        (["find"], "no command"),
        (["find", "--metric", "joule", "--", "true"], "unknown metric"),
        (["find", "--k", "0.5", "--", "true"], "above 1"),
        (["find", "--gpus", "9", "--", "true"], "no gpu:9"),
        (["find", "--caps", "5,10", "--", "true"], "outside"),
        (["find", "--apply", "--", "true"], "--apply"),
        (["find", "--timeout", "0", "--", "true"], "--timeout"),
        (["find", "--gpus", "", "--", "true"], "--gpus"),
        (["find", "--noise", "50", "--", "true"], "--noise 50"),
        (["find", "--noise", "nan", "--", "true"], "--noise"),
        (["find", "--probes", "0", "--", "true"], "--probes 0"),
        (["find", "--devices", "cpu", "--", "touch", "ran"], "energy of gpu:0, gpu:1"),
        (["find", "--progress", "(", "--", "true"], "not a regular expression"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2(tmp_path, words, message, capsys):
    """Promise: the error, exit code 2, and no traceback."""
    table(tmp_path)
    assert main(["cap", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "ran").exists()


def test_a_machine_without_levers_says_what_it_would_need(monkeypatch, capsys):
    """Promise: no GPU is a message, with the virtual one as a way to try."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "0")
    assert main(["cap", "find", "--", "true"]) == 2
    assert "WATTLOOP_VIRTUAL_GPUS" in capsys.readouterr().err


def test_find_runs_the_command_per_probe_and_puts_the_caps_back(tmp_path, capsys):
    """Promise: few runs, a cap with gains and how to use it, limits as before."""
    job = [*TRAIN, "--steps", "5", "--time-scale", "300"]
    words = ["--metric", "edp", "--caps", "300:700:100", "--probes", "2", "--json", "r.json"]
    assert main(["cap", "find", *words, "--", *job]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["provenance"] == "simulated"
    assert found["probes"][0]["cap_w"] == 700
    assert len(found["probes"]) <= 2
    assert found["choice"]["cap_w"] in (300, 400, 500, 600, 700)
    said = capsys.readouterr().out
    assert "best cap for edp" in said
    assert "wattloop set gpu:0,1/power_limit=" in said
    assert limits() == {700}


def test_runs_that_are_stated_noisy_may_be_one_per_cap(tmp_path, capsys):
    """Promise: with --noise 5 the limit is one run per cap; a run beyond four says why."""
    job = [*TRAIN, "--steps", "60", "--time-scale", "90"]
    words = ["--metric", "ed2p", "--caps", "400:700:50", "--noise", "5", "--json", "r.json"]
    assert main(["cap", "find", *words, "--", *job]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["choice"]["probes"] == found["probe_count"] == len(found["probes"])
    assert found["probe_count"] <= found["probe_limit"] == 7
    said = capsys.readouterr().err
    assert "reference 1 of at most 7" in said
    # how sure four runs are depends on how long they took on this machine
    assert ("probing on" in said) is (found["probe_count"] > 4)


def test_a_window_of_the_command_may_be_all_that_counts(tmp_path, capsys):
    """Promise: with `--window` loading is not in the times; a missing window is reported."""
    (tmp_path / "job.py").write_text(
        "import pathlib, time, wattloop\n"
        "time.sleep(1)\n"
        "begin_s = time.monotonic()\n"
        "with wattloop.measure('training'):\n"
        "    time.sleep(0.2)\n"
        "pathlib.Path('took').write_text(str(time.monotonic() - begin_s))\n"
    )
    words = ["cap", "find", "--caps", "300:700:100", "--probes", "1", "--json", "r.json"]
    job = ["--", sys.executable, "job.py"]
    assert main([*words, "--window", "training", *job]) == 0
    (probe,) = json.loads((tmp_path / "r.json").read_text())["probes"]
    assert 0.2 <= probe["time_s"] <= float((tmp_path / "took").read_text())
    assert "  1 probe; 1 was allowed\n" in capsys.readouterr().out
    assert main([*words, "--window", "epoch", *job]) == 2
    assert "training" in capsys.readouterr().err
    assert main([*words, "--window", "training", "--progress", "x", *job]) == 2
    assert "--window is for a run per probe" in capsys.readouterr().err


def test_a_command_that_fails_is_told_and_the_probes_are_kept(tmp_path, capsys):
    """Promise: exit code 2, what the command said, limits back; paid probes are not paid again."""
    # Seconds of work: after a slow start of the program the GPUs must still draw more than the
    # lowest cap on average, or one probe is enough.
    (tmp_path / "job.py").write_text(
        "import pathlib, sys\n"
        "runs = pathlib.Path('runs'); runs.write_text(runs.read_text() + 'x' if runs.exists() "
        "else 'x')\n"
        "if len(runs.read_text()) == 2: sys.exit('out of memory')\n"
        "from wattloop.virtual.train import main\n"
        "main(['--gpus', '2', '--steps', '3', '--time-scale', '40'])\n"
    )
    words = ["cap", "find", "--caps", "300:700:100", "--probes", "2", "--"]
    assert main([*words, sys.executable, "job.py"]) == 2
    assert "out of memory" in capsys.readouterr().err
    assert limits() == {700}
    assert main([*words, sys.executable, "job.py"]) == 0
    assert "going on with" in capsys.readouterr().err
    assert len((tmp_path / "runs").read_text()) == 3


def test_the_same_command_goes_on_unless_it_is_to_begin_anew(capsys):
    """Promise: an unfinished search is resumed; `--new` begins another."""
    for words, resumed in (([], False), ([], True), (["--new"], False)):
        assert main(["cap", "find", *words, "--", "false"]) == 2
        assert ("going on with" in capsys.readouterr().err) is resumed


def test_a_search_that_another_process_runs_is_only_refused(capsys):
    """Promise: no message suggests continuing a search that cannot be continued."""
    assert main(["cap", "find", "--", "false"]) == 2
    capsys.readouterr()
    with open_store(settings_from(os.environ).store_location) as store:
        unfinished = find_experiment(store, "last", "cap").experiment_id
        with lock_experiment(store, unfinished):
            assert main(["cap", "find", "--", "false"]) == 2
    said = capsys.readouterr().err
    assert f"{unfinished} is being run by process {os.getpid()}" in said
    assert "going on with" not in said


def test_a_command_that_hangs_is_ended(capsys):
    """Promise: after --timeout nothing runs on, in both ways, and the limits are back."""
    for way in ([], ["--progress", "x"]):
        assert main(["cap", "find", *way, "--timeout", "0.3", "--", "sleep", "60"]) == 2
        assert "did not end within 0.3 s" in capsys.readouterr().err
        assert limits() == {700}


def test_a_gpu_lost_in_mid_run_is_no_saving(tmp_path, capsys):
    """Promise: energy that was read for a part of a run only is refused, with the reason."""
    (tmp_path / "job.py").write_text(
        "import time\n"
        "from wattloop.virtual.gpu import Fault\n"
        "from wattloop.virtual.node import shared_gpus\n"
        "gpus = shared_gpus(2)\n"
        "for gpu in gpus: gpu.load(1.0, memory=0.3)\n"
        "time.sleep(0.5); gpus[1].inject(Fault.LOST); time.sleep(0.7)\n"
    )
    words = ["cap", "find", "--caps", "700,600", "--probes", "1", "--", sys.executable, "job.py"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "gpu:1 was not read for the whole run" in said
    assert "fallen off the bus" in said
    shared_gpus(2)[1].inject(Fault.NONE)
    (tmp_path / "job.py").write_text(
        "import time\n"
        "from wattloop.virtual.node import shared_gpus\n"
        "for gpu in shared_gpus(2): gpu.load(1.0, memory=0.3)\n"
        "time.sleep(0.5)\n"
    )
    # that run is useless, so it is not stored
    assert main(words) == 0
    assert "going on with" in capsys.readouterr().err


def test_the_job_s_gpus_are_those_it_can_see(monkeypatch, capsys):
    """Promise: with CUDA_VISIBLE_DEVICES the caps of other people's GPUs are left alone."""
    words = ["cap", "find", "--dry-run", "--caps", "300,700", "--", "true"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "virtual H200 1" in said
    assert "virtual H200 0" not in said
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert main(words) == 2
    assert "names no GPU" in capsys.readouterr().err


def test_gpus_that_somebody_holds_are_named_with_the_holder(capsys, caplog):
    """Promise: two searches never fight over one card, in both ways, and say so once."""
    with lever_session(
        levers_named(find_levers(settings=Settings(virtual_gpus=2)), "gpu/power_limit")
    ):
        for way in ([], ["--progress", "x"]):
            assert main(["cap", "find", *way, "--", "true"]) == 2
            assert "held by this process" in capsys.readouterr().err
    assert not [r for r in caplog.records if "goes on without" in r.message]


def test_dry_run_shows_every_write_and_runs_nothing(tmp_path, capsys):
    """Promise: nothing is set, nothing is started."""
    assert main(["cap", "find", "--dry-run", "--caps", "300,700", "--", "touch", "x"]) == 0
    assert "power_limit = 300 W" in capsys.readouterr().out
    assert not (tmp_path / "x").exists()
    assert limits() == {700}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "at most 4 probes of these caps, the reference first (up to 5 where readings turn"),
        (("--noise", "5"), "at most 5 probes of these caps, the reference first:"),
        (("--probes", "1"), "at most 1 probe of these caps, the reference first:"),
    ],
)
def test_dry_run_says_how_many_probes_there_may_be(words, said, capsys):
    """Promise: the number is one that no search exceeds, noise that is only measured included."""
    caps = ["--caps", "300:700:100"]
    assert main(["cap", "find", "--dry-run", *caps, *words, "--", "true"]) == 0
    assert said in capsys.readouterr().out


PROGRESS = """
import sys, time
from wattloop.control.registry import find_levers, lever_named
from wattloop.core.settings import Settings
from wattloop.virtual.node import shared_gpus
gpus = shared_gpus(2)
lever = lever_named(find_levers(settings=Settings(virtual_gpus=2)), "gpu:0/power_limit")
print("began")
lower_s = None
for n in range(6_000):
    for gpu in gpus: gpu.load(1.0, memory=0.3)
    time.sleep(0.005)
    print(f"step {n}")
    lower_s = lower_s or (time.monotonic() if lever.read() < 700 else None)
    if lower_s and END: break
print("last limit", lever.read())
"""
QUICK = ["--metric", "edp", "--caps", "300:700:100", "--probes", "2", "--probe-seconds", "0.4"]


def test_progress_probes_within_one_run(tmp_path, capsys):
    """Promise: one run, several caps, the rest of the run at the cap found, limits back."""
    end = "(lever.read() == 700 or time.monotonic() > lower_s + 3)"
    (tmp_path / "job.py").write_text(PROGRESS.replace("END", end))
    words = [*QUICK, "--caps", "300,400", "--progress", r"step (\d+)", "--apply"]
    assert main(["cap", "find", *words, "--json", "r.json", "--", sys.executable, "job.py"]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert len(found["probes"]) >= 1
    assert found["failure"] is None
    said = capsys.readouterr().out
    assert said.count("began") == 1
    assert "last limit 700" not in said
    assert limits() == {700}


def test_a_run_that_fails_after_its_cap_was_found_says_both(tmp_path, capsys):
    """Promise: a failed training does not look like a good one, and the cap is not lost."""
    end = "lever.read() == 700: sys.exit('out of memory')\n    if False"
    (tmp_path / "job.py").write_text(PROGRESS.replace("END", end))
    words = ["--progress", r"step (\d+)", "--json", "r.json", "--", sys.executable, "job.py"]
    assert main(["cap", "find", *QUICK, *words]) == 2
    said = capsys.readouterr()
    assert "best cap for edp" in said.out
    assert "the cap was found, but then the command failed: exit code 1" in said.err
    found = json.loads((tmp_path / "r.json").read_text())
    assert "out of memory" in found["failure"]
    assert found["choice"]["cap_w"] in (300, 400, 500, 600, 700)


def test_progress_that_never_matches_says_so(capsys):
    """Promise: no cap found, and why."""
    assert main(["cap", "find", "--progress", "epoch", "--", "echo", "step 1"]) == 2
    assert "0 lines matched" in capsys.readouterr().err


def test_ctrl_c_puts_the_caps_back(tmp_path):
    """Promise: interrupted in the middle of a probe, nothing stays set and nothing runs on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wattloop", "cap", "find", "--caps", "300,400", "--",
         sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, **machine(tmp_path)},
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()  # the reference has begun: 400 W is set or about to be
    give_up_s = time.monotonic() + 120
    while limits() != {400} and time.monotonic() < give_up_s:
        time.sleep(0.1)
    assert limits() == {400}
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    assert limits() == {700}
    assert "interrupted" in said and "command continues the search" in said


def test_lines_of_progress_are_counted():
    """Promise: a number counts how far it has grown, a line without one is one unit."""
    numbered = ProgressLines(r"step (\d+)")
    assert [numbered.units(f"step {n}") for n in (10, 20, 50, 10)] == [0, 10, 30, 0]
    assert numbered.units("loss 3") is None
    assert ProgressLines("done").units("batch done") == 1
    with pytest.raises(ConfigError, match="not a regular expression"):
        ProgressLines("[")
