"""`wattloop runs`: every command on the real store, through the real entry point."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import wattloop
from tests.cli.conftest import Machine
from tests.integrations.test_stored_steps import PHASES
from wattloop.cli.commands.runs.view import print_brief, print_run
from wattloop.cli.main import main
from wattloop.store.database import open_store
from wattloop.store.experiments import Experiment, create_experiment
from wattloop.store.journal import JournalWriter, journal_directory
from wattloop.store.run_record import RunRecord
from wattloop.store.runs import insert_run, list_runs
from wattloop.testing.journals import ended, header, root_window, write_journal


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of our own, named as a user would."""
    path = tmp_path / "data" / "runs.db"
    monkeypatch.setenv("WATTLOOP_STORE", str(path))
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def two(place: Path) -> Path:
    folder = journal_directory(str(place))
    first = header("20270115-080000-aaaaaa", tags={"lr": "0.1"})
    write_journal(folder, first["run_id"], head=first, end=ended())
    second = header("20270116-080000-bbbbbb", name="tuned", started_wall_s=1_800_086_400.0)
    better = ended(root_window(gpu_j=2_400.0, duration_s=9.0))
    write_journal(folder, second["run_id"], head=second, end=better)
    return place


def data_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["runs", *words, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_empty_store_is_helpful_and_not_created(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking leaves no file behind and says how to begin."""
    assert main(["runs", "list"]) == 0
    said = capsys.readouterr().err
    assert f"{place}: no runs yet" in said
    assert "wattloop run -- python train.py" in said
    assert main(["runs", "show"]) == 2
    assert "no runs yet" in capsys.readouterr().err
    assert not place.parent.exists()
    assert data_of(capsys, "list") == {"runs": [], "more": False, "experiments": []}


@pytest.fixture
def searched(place: Path) -> Path:
    """A search of three trials, and a run before and one after it."""
    with open_store(str(place)) as store:
        create_experiment(store, Experiment(experiment_id="search-1", kind="search", name="lr"))
        for number, tags in enumerate(({}, *[{"experiment": "search-1"}] * 3, {})):
            insert_run(
                store,
                RunRecord(
                    run_id=f"20270115-08000{number}-aaaaaa",
                    name=f"r{number}",
                    tags=dict(tags),
                    started_wall_s=1_800_000_000.0 + number,
                    result=root_window(gpu_j=100.0),
                ),
            )
    return place


def test_trials_are_one_row_unless_all_is_asked(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a search is one row among the runs, with its trials counted; --all shows each."""
    assert main(["runs", "list"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "20270115-080004-aaaaaa",
        "search-1",
        "20270115-080000-aaaaaa",
    ]
    assert "search of 3 runs" in out
    assert "3 trials are folded" in err and "--all" in err
    assert main(["runs", "list", "--all"]) == 0
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (6, "")
    two_trials = ["20270115-080001-aaaaaa", "20270115-080002-aaaaaa"]
    assert main(["runs", "delete", *two_trials, "--yes"]) == 0
    assert main(["runs", "list"]) == 0
    assert "1 trial is folded" in capsys.readouterr().err
    assert main(["runs", "list", "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    assert "search-1" in out and "r0" not in out
    assert "the 2 newest" in err


def test_json_of_the_list_has_every_run(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: programs get all runs as before, and the experiments next to them."""
    data = data_of(capsys, "list")
    assert [run["name"] for run in data["runs"]] == ["r4", "r3", "r2", "r1", "r0"]
    (search,) = data["experiments"]
    assert (search["experiment_id"], search["kind"], search["runs"]) == ("search-1", "search", 3)
    assert len(data_of(capsys, "list", "--limit", "2")["runs"]) == 2


def test_list_shows_and_filters(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Newest first; plain columns without a terminal; filters and limits apply."""
    assert main(["runs", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("20270116-080000-bbbbbb  tuned")
    assert "3.50 kJ" in lines[2]
    assert "measured" in lines[2]
    assert "\x1b" not in "".join(lines)
    assert [r["name"] for r in data_of(capsys, "list", "--tag", "lr=0.1")["runs"]] == ["train"]
    assert [r["name"] for r in data_of(capsys, "list", "--name", "tu*")["runs"]] == ["tuned"]
    assert data_of(capsys, "list", "--since", "2027-01-16T00:00")["runs"][0]["name"] == "tuned"
    assert data_of(capsys, "list", "--limit", "1")["more"] is True
    assert main(["runs", "list", "--status", "died"]) == 0
    assert "no run matches" in capsys.readouterr().err


def test_the_list_of_several_users_names_them(
    two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shared store says whose each run is; a store of one user has no such column."""
    assert main(["runs", "list"]) == 0
    assert "user" not in capsys.readouterr().out.splitlines()[0].split()
    third = header("20270117-080000-cccccc", name="hers", user="mei")
    write_journal(journal_directory(str(two)), third["run_id"], head=third, end=ended())
    assert main(["runs", "list", "--sort", "energy"]) == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    users = {row[1]: row[head.index("user")] for row in rows}
    assert users == {"hers": "mei", "tuned": "ada", "train": "ada"}
    assert {r["name"]: r["user"] for r in data_of(capsys, "list")["runs"]} == users


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--status", "happy"],
        ["list", "--since", "soon"],
        ["list", "--limit", "-1"],
        ["list", "--limit", "9" * 30],
        ["show", "nothing"],
        ["compare", "last"],
        ["compare", "last", "last"],
        ["export"],
        ["export", "last", "--all"],
        ["export", "last", "--format", "xml"],
        ["export", "last", "--what", "joules"],
        ["export", "last", "--format", "parquet"],
        ["export", "last", "-o", "/no/such/folder/x.csv"],
        ["export", "last", "--json", "-"],
        ["import", "nothing.csv"],
        ["delete", "last"],
        ["list", "--json", "/no/such/folder/x.json"],
        ["list", "--store", "/"],
        ["list", "--store", "mysql://x/y"],
    ],
    ids=" ".join,
)
def test_mistakes_are_a_message_and_exit_code_2(
    two: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """On standard error, never a traceback, nothing on standard output."""
    assert main(["runs", *words]) == 2
    said = capsys.readouterr()
    assert said.err.strip()
    assert "Traceback" not in said.err
    assert "unexpected" not in said.err
    assert said.out == ""


def test_show_tells_energy_by_domain(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By beginning of the identifier, with provenance and command; in ten lines unless -v."""
    assert main(["runs", "show", "20270115"]) == 0
    brief = capsys.readouterr().out
    assert len(brief.splitlines()) <= 10
    for words in ("python train.py", "3.50 kJ", "measured", "node1", "-v"):
        assert words in brief
    assert main(["runs", "show", "20270115", "-v"]) == 0
    said = capsys.readouterr().out
    for words in ("python train.py", "cpu:0/package", "3.00 kJ", "measured", "node1"):
        assert words in said
    data = data_of(capsys, "show", "last")
    assert (data["name"], data["energy_j"], data["windows"]) == ("tuned", 2_900.0, [])


@pytest.fixture
def stored(machine: Machine) -> Machine:
    """A machine with one run that was measured without zone and tariff."""
    assert machine.wattloop("run", "--name", "old", "--", "true").returncode == 0
    return machine


def test_zone_and_tariff_of_now_hold_for_a_stored_run(stored: Machine) -> None:
    """The hint that the tool prints works: carbon and cost appear, and say whose settings."""
    before = stored.wattloop("runs", "show", "-v").stdout.decode()
    assert "WATTLOOP_ZONE" in before and "WATTLOOP_TARIFF" in before
    shown = stored.wattloop("runs", "show", "-v", WATTLOOP_ZONE="FRA", WATTLOOP_TARIFF="0.30 EUR")
    text = shown.stdout.decode()
    assert "CO2e" in text and " EUR" in text
    assert "environment WATTLOOP_ZONE, environment WATTLOOP_TARIFF" in text
    data = json.loads(
        stored.wattloop(
            "runs", "show", "--json", "-", WATTLOOP_TARIFF="0.30", WATTLOOP_PUE="2"
        ).stdout
    )
    node_j = data["accounting"]["node"]["energy_j"]
    assert data["accounting"]["facility"]["energy_j"] == pytest.approx(2 * node_j)
    assert data["accounting"]["cost"]["amount"] == pytest.approx(2 * node_j / 3.6e6 * 0.30)
    assert data["accounting"]["carbon_g"] is None
    after = stored.wattloop("runs", "show", "-v").stdout.decode()
    assert after == before  # the store is as it was


def test_a_report_has_the_carbon_of_a_stored_run(stored: Machine) -> None:
    """`report` takes zone and tariff of now, as `runs show` does."""
    pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
    done = stored.wattloop(
        "report", "-o", "r.html", WATTLOOP_ZONE="FRA", WATTLOOP_TARIFF="0.30 EUR/kWh"
    )
    assert done.returncode == 0, done.stderr
    page = (stored.folder / "r.html").read_text()
    assert "annual mean of France" in page and " EUR" in page


def test_what_a_run_knew_is_not_replaced_by_the_file_of_the_reader(stored: Machine) -> None:
    """A run with a zone of its own keeps it, unless this very command names another."""
    stored.wattloop("run", "--zone", "USA", "--", "true")
    (stored.folder / "wattloop.yaml").write_text("zone: FRA\n")

    def zone(**variables: str) -> str:
        shown = stored.wattloop("runs", "show", "--json", "-", **variables).stdout
        return str(json.loads(shown)["accounting"]["carbon_intensity"]["zone"])

    assert zone() == "USA"
    assert zone(WATTLOOP_ZONE="DEU") == "DEU"
    assert zone(WATTLOOP_ZONE="Atlantis") == "USA"


@pytest.mark.parametrize("words", [["list"], ["show", "-v"], ["export", "--all"]])
def test_a_bad_tariff_stops_no_verb_that_does_without(stored: Machine, words: list[str]) -> None:
    """A wrong setting is the business of the verbs that use it."""
    bad = {"WATTLOOP_TARIFF": "cheap", "WATTLOOP_INTERVAL": "often"}
    done = stored.wattloop("runs", *words, **bad)
    assert done.returncode == 0, done.stderr
    if "show" in words:
        assert "environment WATTLOOP_TARIFF" in done.stdout.decode()
    assert stored.wattloop("restore", **bad).returncode == 0
    assert stored.wattloop("devices", WATTLOOP_TARIFF="cheap").returncode == 0
    refused = stored.wattloop("run", "--", "true", **bad)
    assert refused.returncode == 2
    assert b"environment WATTLOOP_" in refused.stderr


def test_job_shows_nodes_and_total(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table per node and one of all nodes; the total is that of the machine, not of the ranks."""
    for rank in range(3):
        run_id = f"20270115-080000-{rank:06}"
        job = {"id": "train", "kind": "user", "rank": rank, "local_rank": rank, "world_size": 3}
        head = header(run_id, job=job)
        end = ended(counted=rank == 0)
        write_journal(journal_directory(str(place)), run_id, head=head, end=end)
    data = data_of(capsys, "job", "train")
    assert data["energy_j"] == pytest.approx(3_500.0, rel=0.01)
    assert data["nodes"][0]["ranks"] == [0, 1, 2]
    assert main(["runs", "job"]) == 0
    text = capsys.readouterr().out
    assert "job       train (user, 3 ranks)" in text
    assert "node1: 3 run(s)" in text
    assert "missing on node1: dram: no DRAM domain" in text
    assert main(["runs", "job", "nosuch"]) == 2
    assert "wattloop runs list" in capsys.readouterr().err


def test_compare_says_what_is_real(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """20% less GPU energy is real; the same CPU energy is within the uncertainty."""
    assert main(["runs", "compare", "20270115", "20270116"]) == 0
    said = capsys.readouterr().out
    gpu = next(line for line in said.splitlines() if line.startswith("energy (gpu)"))
    cpu = next(line for line in said.splitlines() if line.startswith("energy (cpu)"))
    assert "-20.0%" in gpu
    assert "within" not in gpu
    assert "within uncertainty" in cpu
    assert "EDP (gpu)" in said
    data = data_of(capsys, "compare", "20270115", "20270116")
    assert data["baseline"].endswith("aaaaaa")


def test_compare_shows_the_cost_of_a_step(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: runs of different length are comparable by their steps, also in Prometheus."""
    for run_id, step_j in (("20270117-080000-cccccc", 300.0), ("20270118-080000-dddddd", 150.0)):
        phases = PHASES | {"step_j": step_j}
        folder = journal_directory(str(two))
        write_journal(folder, run_id, head=header(run_id), events=[phases], end=ended())
    assert main(["runs", "compare", "20270117", "20270118"]) == 0
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "-50.0%" in lines["energy per step"]
    assert "150 J" in lines["energy per step"]
    assert {"time per step", "energy per sample", "energy per token"} <= lines.keys()
    assert "+100.0%" in lines["tokens per joule"]
    assert main(["runs", "export", "20270118", "-f", "prometheus"]) == 0
    text = capsys.readouterr().out
    assert 'wattloop_run_steps{run="20270118-080000-dddddd",' in text
    assert re.search(r"^wattloop_run_step_energy_joules\{.*\} 150.0$", text, re.M)
    assert text.endswith("} 2.0\n")  # tokens per joule


def test_compare_with_a_run_of_almost_no_energy_can_be_read(
    two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A factor instead of percent; JSON has the exact number."""
    folder = journal_directory(str(two))
    idle = header("20270114-080000-cccccc", name="idle", started_wall_s=1_799_900_000.0)
    write_journal(folder, idle["run_id"], head=idle, end=ended(root_window(gpu_j=2.0)))
    assert main(["runs", "compare", "20270114", "20270115"]) == 0
    said = capsys.readouterr().out
    gpu = next(line for line in said.splitlines() if line.startswith("energy (gpu)"))
    assert gpu.rstrip().endswith("x 1,500 ± 21")
    assert "%" not in gpu
    data = data_of(capsys, "compare", "20270114", "20270115")
    energy = next(q for q in data["quantities"] if (q["name"], q["scope"]) == ("energy", "gpu"))
    assert energy["values"][1]["difference_pct"] == pytest.approx(149_900.0)


def test_export_writes_files_and_stdout(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CSV by default, else what the file's name says, else what is asked for."""
    assert main(["runs", "export", "--all"]) == 0
    assert capsys.readouterr().out.startswith("run_id,name,status")
    target = str(tmp_path / "s.csv")
    assert main(["runs", "export", "last", "--what", "samples", "-o", target]) == 0
    assert Path(target).read_text().startswith("time_s,domain,kind,value\n")
    done = data_of(capsys, "export", "last", "-f", "prometheus", "-o", str(tmp_path / "w.prom"))
    assert done["runs"] == ["20270116-080000-bbbbbb"]
    assert "wattloop_run_energy_joules{" in (tmp_path / "w.prom").read_text()
    assert data_of(capsys, "export", "last", "-o", str(tmp_path / "r.json"))["format"] == "json"
    assert json.loads((tmp_path / "r.json").read_text())[0]["run_id"] == "20270116-080000-bbbbbb"
    done = data_of(capsys, "export", "last", "-f", "csv", "-o", str(tmp_path / "r.json"))
    assert done["format"] == "csv", "what is asked for beats the name"


def test_import_names_bad_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Good lines come in once, bad ones are named; only bad ones is an error."""
    path = tmp_path / "emissions.csv"
    head = "timestamp,project_name,duration,emissions,energy_consumed\n"
    path.write_text(head + "2026-01-01T00:00:00,p,60,0.1,0.2\n2026-01-01,p,never,0.1,0.2\n")
    data = data_of(capsys, "import", str(path))
    assert len(data["added"]) == 1
    assert "emissions.csv:3: duration" in data["problems"][0]
    assert len(data_of(capsys, "import", str(path))["known"]) == 1
    path.write_text(head + "2026-01-01,p,never,0.1,0.2\n")
    assert main(["runs", "import", str(path)]) == 2


def test_copy_moves_runs_to_another_store(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything arrives; into itself is refused."""
    other = str(tmp_path / "new" / "other.db")
    assert len(data_of(capsys, "copy", other)["copied"]) == 2
    assert len(data_of(capsys, "copy", other)["known"]) == 2
    assert len(data_of(capsys, "list", "--store", other)["runs"]) == 2
    assert main(["runs", "copy", str(two)]) == 2


def test_delete_needs_a_yes(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a person or --yes nothing is deleted."""
    assert main(["runs", "delete", "last"]) == 2
    assert len(data_of(capsys, "list")["runs"]) == 2
    capsys.readouterr()
    assert main(["runs", "delete", "tuned", "--yes"]) == 2
    said = capsys.readouterr().err
    assert "'tuned' is a name" in said and "20270116-080000-bbbbbb" in said
    assert len(data_of(capsys, "delete", "last", "--yes")["deleted"]) == 1
    assert [r["name"] for r in data_of(capsys, "list")["runs"]] == ["train"]


def test_running_and_dead_runs_are_listed(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A live journal is shown as running; killed with -9, its run is shown as died."""
    folder = journal_directory(str(two))
    code = (
        "import sys, time; from pathlib import Path; from array import array\n"
        "from wattloop.store.journal import JournalWriter\n"
        "from wattloop.testing.journals import header\n"
        "w = JournalWriter(Path(sys.argv[1]) / 'live.journal', header('live', name='now',"
        " started_wall_s=time.time()))\n"
        "w.samples(0, 1, array('d', [1000.5, 1001.5]), array('d', [10.0, 60.0]))\n"
        "print('go', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    source = str(Path(wattloop.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    child.stdout.readline()
    assert data_of(capsys, "list", "--status", "running")["runs"][0]["name"] == "now"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (died,) = data_of(capsys, "list", "--status", "died")["runs"]
    assert died["name"] == "now"
    assert data_of(capsys, "list", "--status", "running")["runs"] == []


def test_a_store_in_use_can_still_be_listed(
    two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes for long: what is there is shown, with a warning."""
    import sqlite3

    main(["runs", "list"])
    monkeypatch.setattr(
        "wattloop.store.database.open_store", lambda place: open_store(place, timeout_s=0.05)
    )
    write_journal(journal_directory(str(two)), "late", end=ended())
    holder = sqlite3.connect(two, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    capsys.readouterr()
    assert main(["runs", "list"]) == 0
    said = capsys.readouterr()
    holder.close()
    assert "may be missing" in said.err
    assert "tuned" in said.out


def test_a_read_only_store_says_that_runs_wait(
    two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that cannot be folded are not passed over in silence."""
    open_store(two).close()
    monkeypatch.setattr("wattloop.store.location.StoreLocation.is_read_only", True)
    assert main(["runs", "list"]) == 0
    assert "2 run(s) wait in journals" in capsys.readouterr().err


def test_store_option_beats_the_environment(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--store names another place."""
    other = tmp_path / "other.db"
    writer = JournalWriter(journal_directory(str(other)) / "x.journal", header("x"))
    writer.end(ended())
    writer.close()
    assert [r["run_id"] for r in data_of(capsys, "list", "--store", str(other))["runs"]] == ["x"]
    with open_store(two) as store:
        assert list_runs(store) == []


def test_steps_and_epochs_are_counted_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: 48 steps and 3 epochs are not 51 steps."""
    steps = [{"kind": "step"}] * 48 + [{"kind": "epoch"}] * 3
    print_run(RunRecord(run_id="20270115-080000-aaaaaa"), [], steps)
    assert "3 epochs, 48 steps; export them" in capsys.readouterr().out
    print_brief(RunRecord(run_id="20270115-080000-aaaaaa"), [], steps)
    assert "3 epochs, 48 steps; all of it with -v" in capsys.readouterr().out


def test_a_program_on_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: ten lines, also of `python -c` with a program of several lines."""
    record = RunRecord(run_id="20270115-080000-aaaaaa", command=["python", "-c", "a = 1\nb = 2"])
    print_brief(record, [], [])
    assert "command   python -c 'a = 1\\nb = 2'\n" in capsys.readouterr().out
