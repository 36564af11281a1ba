"""`wattloop slurm` at the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_lab import SlurmLab, why_no_slurm
from wattloop.cli.main import main

needs_slurm = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "-")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    with SlurmLab(tmp_path_factory.mktemp("lab"), nodes=1, gpus=2) as found:
        yield found


@pytest.fixture
def run(lab: SlurmLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs a command line against the lab; its exit code."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, lab.environment[name])

    def command(*words: str) -> int:
        return main(["slurm", *words, "--state", str(tmp_path / "state.json")])

    return command


@needs_slurm
def test_a_dry_run_prints_the_commands_and_runs_none(
    run, lab: SlurmLab, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands are those of a driver, and the job does not change."""
    ours = ("ReservationName=maintenance", "StartTime=now", "Duration=5", "Nodes=n1")
    lab.run("scontrol", "create", "reservation", *ours, "Users=daemon")
    job = lab.submit("sleep 30", "--gres=gpu:1", "--time=1")
    assert run("run", "--dry-run", "--policy", "fifo", "--gpus-only") == 0
    assert capsys.readouterr().out == (
        f"scontrol update JobId={job} ReservationName=wattloop_gate ReqNodeList=n1\n"
    )
    assert "wattloop" not in lab.run("scontrol", "show", "reservation", "-o")
    assert "Reservation=wattloop" not in lab.run("scontrol", "show", "job", str(job))
    lab.run("scancel", str(job))
    lab.run("scontrol", "delete", "ReservationName=maintenance")
    lab.wait_for_jobs()


@needs_slurm
def test_observing_changes_nothing_and_says_what_it_would_do(
    run, lab: SlurmLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No reservation, no job touched, a table and JSON of would-have decisions."""
    found = tmp_path / "found.json"
    assert run("run", "--observe", "--once", "--gpus-only", "--json", str(found)) == 0
    data = json.loads(found.read_text())
    assert data["mode"] == "observe"
    assert data["last"]["free_gpus"] == 2
    assert lab.run("scontrol", "show", "reservation", "-o").startswith("No reservations")
    capsys.readouterr()
    assert run("status") == 0  # the process that observed is this one
    assert "observe, zeus" in capsys.readouterr().out


@needs_slurm
def test_one_round_for_real_leaves_nothing_behind(run, lab: SlurmLab, tmp_path: Path) -> None:
    """--once closes the gate, decides, and opens it again; release has nothing left to do."""
    assert run("run", "--once", "--policy", "charon", "--budget", "700W", "--gpus-only") == 0
    assert lab.run("scontrol", "show", "reservation", "-o").startswith("No reservations")
    released = tmp_path / "released.json"
    assert run("release", "--json", str(released)) == 0
    assert json.loads(released.read_text()) == {"released": [], "reservation_removed": False}


@needs_slurm
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--partition", "nope"), "no partition 'nope'; there are all"),
        (("--policy", "zues"), "unknown policy 'zues'"),
        (("--budget", "5W"), "not above"),
        (("--budget", "much"), "is not a power"),
        (("--observe", "--dry-run"), "give one of them"),
        (("--interval", "0"), "--interval"),
        (("--fleet", "ftp://x"), "--fleet ftp://x"),
        (("--annotate",), "--annotate needs"),
        (("--cluster", "nope.yaml"), "nope.yaml"),
        (("--mapping", "nope.yaml"), "nope.yaml"),
        (("--oracle", "crystal"), "oracle"),
    ],
)
def test_wrong_requests_are_told_in_a_line(
    run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Exit code 2, what is wrong, and nothing started."""
    assert run("run", "--once", *words) == 2
    assert said in capsys.readouterr().err


def test_without_slurm_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No program, no driver, no traceback."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("wattloop.schedule.slurm.client.PATH", str(tmp_path))
    assert main(["slurm", "run", "--once"]) == 2
    assert "is this a Slurm machine?" in capsys.readouterr().err
    assert main(["slurm", "status", "--state", str(tmp_path / "none.json")]) == 2
    assert "no driver has run" in capsys.readouterr().err
