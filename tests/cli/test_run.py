"""Promises of `wattloop run`: right numbers, and the program behaves as without us."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Machine
from tests.support import model_server
from tests.support.free_ports import PortBlock
from wattloop.cli.main import main
from wattloop.cli.options import settings_of
from wattloop.store.database import open_store

PROMISED = {
    "run_id",
    "exit_code",
    "duration_s",
    "energy_j",
    "complete",
    "domains",
    "missing",
    "carbon_g",
    "cost",
    "labels",
}


def test_energy_and_json_of_a_program(machine: Machine) -> None:
    """The JSON has every promised key and the energy of a known power; stdout is the program's."""
    out = machine.folder / "run.json"
    done = machine.wattloop(
        "run", "--json", str(out), "--name", "nap", "--tag", "model=tiny",
        "--", "sh", "-c", "echo out; sleep 0.6; exit 3",
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout == b"out\n"
    assert b"wattloop: " in done.stderr
    data = json.loads(out.read_text())
    assert set(data) >= PROMISED
    assert data["exit_code"] == 3
    assert data["tags"] == {"model": "tiny"}
    (domain,) = data["domains"]
    assert {"name", "energy_j", "provenance", "uncertainty_j", "source"} <= set(domain)
    assert domain["provenance"] == "measured"
    assert data["energy_j"] == machine.about_j(data["duration_s"], rel=0.05)


def test_finished_run_is_in_the_store(machine: Machine) -> None:
    """After the command returns the run is in the database and its journal is gone."""
    assert machine.wattloop("run", "--", "true").returncode == 0
    with sqlite3.connect(machine.store) as connection:
        rows = connection.execute("SELECT status, exit_code FROM runs").fetchall()
    assert rows == [("finished", 0)]
    assert list(Path(f"{machine.store}.journals").glob("*.journal")) == []


def test_nothing_measurable_is_said_and_is_not_zero(bare: Machine) -> None:
    """Without any sensor the program runs, energy is null with a reason, and never 0."""
    done = bare.wattloop("run", "--json", "-", "--", "sh", "-c", "exit 4")
    data = json.loads(done.stdout)
    assert b"nothing was measured in" in done.stderr
    assert b"'wattloop devices' says why" in done.stderr
    assert done.returncode == 4
    assert data["energy_j"] is None
    assert data["complete"] is False
    assert data["missing"]
    assert data["missing"][0]["reason"]


@pytest.mark.parametrize("value", ["0", "1e-9", "1e9", "nan", "-1", "soon"])
def test_wrong_interval_starts_nothing(
    here: Machine, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the allowed range, and the program was not started."""
    assert main(["run", f"--interval={value}", "--", "touch", "started"]) == 2
    text = capsys.readouterr().err
    assert "between 0.001 and 3600" in text
    assert "Traceback" not in text
    assert not (here.folder / "started").exists()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--meters", "nosuch"], "unknown meter nosuch"),
        (["--tag", "oops"], "key=value"),
        (["--json", "no/such/folder/x.json"], "no folder"),
        (["--json", "."], "is a directory"),
        (["--config", "none.yaml"], "is not a file"),
        (["--pue", "0.5"], "PUE lies between"),
        (["--tariff", "1 2 3"], "--tariff must be a number, not '1 2 3'; use a price per kWh"),
        (["--tariff", ""], "--tariff must be a number"),
        (["--nosuch"], "No such option"),
    ],
)
def test_wrong_option_starts_nothing(
    here: Machine, words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every mistake in the options ends with 2 before the program is started."""
    assert main(["run", *words, "--", "touch", "started"]) == 2
    assert wanted in capsys.readouterr().err
    assert not (here.folder / "started").exists()


def test_flag_beats_environment_beats_file(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """--interval wins over WATTLOOP_INTERVAL, which wins over wattloop.yaml."""
    file = here.folder / "wattloop.yaml"
    file.write_text("interval: 5\n")
    assert settings_of().interval_s == 5
    monkeypatch.setenv("WATTLOOP_INTERVAL", "0.3")
    assert settings_of().interval_s == 0.3
    assert settings_of(interval="0.2").interval_s == 0.2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("interval: fast\n", "wattloop.yaml:1: interval must be a number"),
        ("zone: FRA\n\nintervall: 1\n", "wattloop.yaml:3: unknown key 'intervall'"),
        ("tariff:\n  per_kwh: -1\n", "wattloop.yaml:2: tariff.per_kwh is -1"),
    ],
)
def test_mistake_in_the_file_names_line_and_key(
    here: Machine, text: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong wattloop.yaml ends with 2 before the program is started."""
    (here.folder / "wattloop.yaml").write_text(text)
    assert main(["run", "--", "touch", "started"]) == 2
    assert wanted in capsys.readouterr().err
    assert not (here.folder / "started").exists()


def test_mistake_in_the_environment_names_the_variable(
    here: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says where the wrong value comes from."""
    monkeypatch.setenv("WATTLOOP_INTERVAL", "bad")
    assert main(["run", "--", "true"]) == 2
    assert "environment WATTLOOP_INTERVAL" in capsys.readouterr().err


def test_unknown_zone_is_said(machine: Machine) -> None:
    """A user who asks for carbon gets it or the reason; the program has run all the same."""
    done = machine.wattloop("run", "--zone", "GER", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert b"warning: no carbon: no carbon intensity for zone 'GER'" in done.stderr
    assert b"DEU (Germany)" in done.stderr


def test_command_not_found_and_not_executable(machine: Machine) -> None:
    """127 and 126, as a shell, with a message and no run left behind."""
    assert machine.wattloop("run", "--", "no-such-program").returncode == 127
    script = machine.folder / "script"
    script.write_text("echo hi\n")
    done = machine.wattloop("run", "--", str(script))
    assert done.returncode == 126
    assert b"chmod +x" in done.stderr
    assert not machine.store.exists()


BAD_STORES = {
    "directory": "is a directory",
    "under a file": "cannot write",
    "not a database": "not a SQLite database",
    "newer": "schema version",
    "locked": "another process",
}


HASTY = """
import sys
from wattloop.cli import main
from wattloop.cli.commands.run import execution
execution.FOLD_TIMEOUT_S = 0.1
sys.exit(main.main())
"""


@pytest.mark.parametrize("kind", BAD_STORES)
def test_bad_store_never_harms_the_program(machine: Machine, kind: str) -> None:
    """The program runs to its own exit code; the warning names the store and what to do."""
    store = machine.folder / "bad.db"
    holder: sqlite3.Connection | None = None
    if kind == "directory":
        store.mkdir()
    elif kind == "under a file":
        store.write_text("x")
        store = store / "runs.db"
    elif kind == "not a database":
        store.write_text("certainly not a database, whatever its name\n" * 50)
    else:
        open_store(store).close()
        holder = sqlite3.connect(store, isolation_level=None)
        if kind == "newer":
            holder.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
        else:
            holder.execute("BEGIN EXCLUSIVE")
    words = ("run", "--store", str(store), "--", "sh", "-c", "echo ran; exit 7")
    done = subprocess.run(
        [sys.executable, "-c", HASTY, *words], env=machine.environment, cwd=machine.folder,
        capture_output=True, check=False,
    )  # fmt: skip
    if holder is not None:
        holder.close()
    if kind == "locked":  # the journal waited, and the next run folds it
        machine.wattloop("run", "--store", str(store), "--", "true")
        with sqlite3.connect(store) as connection:
            assert connection.execute("SELECT count(*) FROM runs").fetchone() == (2,)
    assert (done.returncode, done.stdout) == (7, b"ran\n")
    text = done.stderr.decode()
    assert "warning" in text
    assert BAD_STORES[kind] in text
    assert "Traceback" not in text


def test_child_knows_who_counts(machine: Machine) -> None:
    """WATTLOOP_JOB in the program names the run."""
    out = machine.folder / "run.json"
    done = machine.wattloop("run", "--json", str(out), "--", "sh", "-c", "echo $WATTLOOP_JOB")
    assert done.stdout.decode().strip() == json.loads(out.read_text())["run_id"]


@pytest.mark.parametrize("gpus", [0, 1])
def test_terminal_gets_a_table_of_several_domains(machine: Machine, gpus: int) -> None:
    """With source and uncertainty below the line, which says all of a single one."""
    ours, theirs = os.openpty()
    command = machine.command("run", "--", "sleep", "0.1")
    meters = {"WATTLOOP_METERS": "rapl,virtual", "WATTLOOP_VIRTUAL_GPUS": str(gpus)}
    subprocess.run(command, env={**machine.environment, **meters}, stderr=theirs, check=True)
    os.close(theirs)
    text = os.read(ours, 65536).decode()
    os.close(ours)
    headings = [line.split() for line in text.splitlines() if line.startswith("  domain")]
    assert headings == [["domain", "energy", "±", "power", "how", "source"]] * gpus
    assert ("powercap intel-rapl:0" in text) == bool(gpus)


def test_quiet_prints_nothing(machine: Machine) -> None:
    """--quiet leaves standard error to the program."""
    done = machine.wattloop("run", "-q", "--", "sh", "-c", "echo only >&2")
    assert done.stderr == b"only\n"


def test_json_that_cannot_be_written_is_a_warning(machine: Machine) -> None:
    """The program has ended by then: its exit code stays, and the run is stored all the same."""
    done = machine.wattloop("run", "--json", "/dev/full", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert b"--json /dev/full: cannot be written" in done.stderr
    with sqlite3.connect(machine.store) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)


def test_nested_run_does_not_count_twice(machine: Machine) -> None:
    """A measured program that itself uses `wattloop run` gets its part, counted by the outer."""
    out = machine.folder / "inner.json"
    outer_out = machine.folder / "outer.json"
    inner = machine.command("run", "--json", str(out), "--", "sleep", "0.2")
    done = machine.wattloop("run", "--json", str(outer_out), "--", *inner)
    assert done.returncode == 0
    data, outer = json.loads(out.read_text()), json.loads(outer_out.read_text())
    assert (data["counted"], outer["counted"]) == (False, True)
    # Not compared with the power set: on a loaded machine the thread that moves the counter is
    # late.
    assert 0 < data["energy_j"] <= outer["energy_j"]
    assert b", part of run" in done.stderr


def test_prometheus_file_is_what_an_export_of_the_run_would_be(machine: Machine) -> None:
    """`run --prometheus` and `runs export -f prometheus` write the same text, tags included."""
    out = machine.folder / "run.prom"
    machine.wattloop(
        "run", "--prometheus", str(out), "-t", 'a-b=say "x"', "--", "sh", "-c", "exit 3"
    )
    text = out.read_text()
    assert 'tag_a_b="say \\"x\\""' in text
    assert 'domain="cpu:0/package"' in text
    assert text.endswith("} 3.0\n")
    exported = machine.wattloop("runs", "export", "last", "--format", "prometheus")
    assert exported.stdout.decode() == text


def test_killed_program_is_marked(machine: Machine) -> None:
    """A program that dies of a signal gives 128+N and a run marked killed."""
    out = machine.folder / "run.json"
    done = machine.wattloop("run", "--json", str(out), "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    data = json.loads(out.read_text())
    assert (data["status"], data["signal"]) == ("killed", 9)


def test_killing_wattloop_leaves_the_program_and_a_died_run(machine: Machine) -> None:
    """kill -9 of wattloop: the program continues, and the next run imports the crashed one."""
    mark = machine.folder / "mark"
    process = subprocess.Popen(
        machine.command("run", "--", "sh", "-c", f"echo up; read go; touch {mark}"),
        env=machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.write(b"go\n")
    process.stdin.close()
    process.stdout.close()
    deadline_s = time.monotonic() + 120
    while not mark.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert mark.exists()
    machine.wattloop("run", "--", "true")
    with sqlite3.connect(machine.store) as connection:
        statuses = connection.execute("SELECT status FROM runs ORDER BY run_id").fetchall()
    assert sorted(statuses) == [("died",), ("finished",)]


def test_nothing_heavy_is_loaded_before_the_program_starts(machine: Machine) -> None:
    """No heavy package stands between the user and the program."""
    code = (
        "import os, sys\n"
        "from wattloop.measure import command\n"
        "def stop(*_):\n"
        "    heavy = 'pydantic sqlalchemy yaml typer rich numpy'.split()\n"
        "    print(sorted(set(heavy) & set(sys.modules)), flush=True); os._exit(0)\n"
        "command.launch = stop\n"
        "from wattloop.cli.main import main\n"
        "main(['run', '--name', 'x', '--', 'true'])\n"
    )
    done = subprocess.run(
        [machine.command()[0], "-c", code], env=machine.environment, cwd=machine.folder,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout == b"[]\n", done.stderr.decode()


def test_a_virtual_machine_is_not_charged_for_its_whole_host(machine: Machine) -> None:
    """Two of 192 threads: the grid energy is of the order of the measured, not twenty times it."""
    procfs = machine.folder / "proc"
    procfs.mkdir()
    block = (
        "processor : {n}\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\n"
        "model name : AMD EPYC\nphysical id : 0\ncore id : {n}\nflags : fpu hypervisor\n\n"
    )
    (procfs / "cpuinfo").write_text("".join(block.format(n=n) for n in range(2)))
    (procfs / "stat").write_text(
        "cpu 0 0 0 0\n" + "".join(f"cpu{n} 500 0 0 500 0 0 0 0\n" for n in range(2)) + "intr 1\n"
    )
    done = machine.wattloop(
        *("run", "--json", "out.json", "--", sys.executable, "-c", "import time; time.sleep(0.3)"),
        WATTLOOP_METERS="estimate",
        WATTLOOP_PROCFS_ROOT=str(procfs),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((machine.folder / "out.json").read_text())
    assert found["energy_j"] > 0
    assert found["accounting"]["facility"]["energy_j"] < 2 * found["energy_j"]
    shown = machine.wattloop("runs", "show", "--json", "-").stdout
    (package,) = json.loads(shown)["result"]["domains"]
    assert package["host_share"] == pytest.approx(2 / 192)


JOBLIB = """
from joblib import Parallel, delayed
print(sum(Parallel(n_jobs=2)(delayed(abs)(i) for i in range(9))))
"""
SPAWN = """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sum(pool.map(abs, range(9))))
"""


@pytest.mark.parametrize(("library", "program"), [("joblib", JOBLIB), ("multiprocessing", SPAWN)])
def test_workers_that_end_with_their_program_are_not_left_running(
    bare: Machine, library: str, program: str
) -> None:
    """A pool's workers and its resource tracker end by themselves, and are not reported."""
    pytest.importorskip(library)
    (bare.folder / "pool.py").write_text(program)
    done = bare.wattloop("run", "--json", "r.json", "--", sys.executable, "pool.py")
    assert (done.returncode, done.stdout) == (0, b"36\n")
    assert b"still run" not in done.stderr
    assert json.loads((bare.folder / "r.json").read_text())["left_running"] == 0


def test_a_process_that_stays_is_said(bare: Machine) -> None:
    """One that the program left behind is named once its end has been waited for."""
    script = "sleep 60 >/dev/null 2>&1 & echo $!"
    done = bare.wattloop("run", "--", "sh", "-c", script)
    os.kill(int(done.stdout), 9)
    assert b"1 process(es) it started still run" in done.stderr


def test_tokens_of_a_server(machine: Machine) -> None:
    """Promise: energy per token, per request and tokens/s in the summary, JSON and `runs show`."""
    port = PortBlock().take()
    out = machine.folder / "run.json"
    server = Path(model_server.__file__)
    done = machine.wattloop(
        "run", "--json", str(out), "--serving", f"http://127.0.0.1:{port}",
        "--", sys.executable, str(server), str(port), "vllm", "2.6",
    )  # fmt: skip
    assert done.returncode == 0
    serving = json.loads(out.read_text())["serving"]
    assert serving["server"] == "vLLM"
    assert serving["generated_tokens"] == 20 * serving["requests"] > 0
    assert serving["energy_j"] == machine.about_j(serving["duration_s"], rel=0.15)
    assert serving["generated_token_j"] == pytest.approx(
        serving["energy_j"] / serving["generated_tokens"]
    )
    # on a busy machine it may be up before it is asked for the first time
    assert serving["startup_s"] is None or serving["startup_s"] > 0
    shown = machine.wattloop("runs", "show").stdout.decode()
    line = next(line for line in shown.splitlines() if line.startswith("serving"))
    assert "J per generated token" in line
    assert line.removeprefix("serving").strip() in done.stderr.decode()
    stored = json.loads(machine.wattloop("runs", "show", "--json", "-").stdout)["serving"]
    assert stored == serving


def test_a_server_that_never_answers(machine: Machine) -> None:
    """Promise: the program's exit code, one line with the reason, and the energy of the run."""
    done = machine.wattloop("run", "--serving", "http://127.0.0.1:1", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    lines = [line for line in done.stderr.decode().splitlines() if "no tokens" in line]
    assert lines == ["wattloop: no tokens from http://127.0.0.1:1/metrics: Connection refused"]
    wrong = machine.wattloop("run", "--serving", "8000", "--", "touch", "started")
    assert wrong.returncode == 2
    assert b"such as http://127.0.0.1:8000/metrics" in wrong.stderr
    assert not (machine.folder / "started").exists()
