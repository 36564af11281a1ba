"""Promises of kernels as programs with a fixed amount of work."""

import json
import sys
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.kernels.__main__ import main
from wattloop.kernels.kernel import DTYPES
from wattloop.kernels.registry import KERNELS, nominal_runs, work_command
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import open_store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.run_record import read_windows
from wattloop.store.runs import find_run


def test_the_same_arguments_are_the_same_work() -> None:
    """The number of runs does not depend on a measurement, so a resumed sweep does the same."""
    words = work_command("gemm", "numpy", "cpu")
    assert words == work_command("gemm", "numpy", "cpu")
    assert words[:5] == [sys.executable, "-m", "wattloop.kernels", "gemm", "numpy"]
    assert int(words[words.index("--runs") + 1]) > 10


def test_runs_fill_the_seconds_of_a_middling_device() -> None:
    """Ten seconds of triad at 2 TB/s, by hand: 2^29 x 12 bytes take 3.2 ms."""
    triad = KERNELS["triad"](2**29, DTYPES["fp32"])
    assert nominal_runs(triad, "gpu", 10.0) == 3104
    assert nominal_runs(KERNELS["gemm"](100_000, DTYPES["fp32"]), "cpu", 1.0) == 1


def test_a_window_holds_the_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing, loading, compiling and checking stay outside of it."""
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    words = ["triad", "numpy", "--size", "3000", "--device", "cpu", "--runs", "7"]
    assert main([*words, "--window", "kernel"]) == 0
    told = json.loads(capsys.readouterr().out)
    with open_store(str(tmp_path / "runs.db")) as store:
        import_orphaned(store, finalize_orphaned_run)
        (window,) = read_windows(store, find_run(store, "last").run_id)
    assert window.name == "kernel"
    assert window.duration_s >= told["time_s"]


def test_unknown_names_are_refused() -> None:
    """The error comes before a sweep begins."""
    with pytest.raises(ConfigError, match="unknown kernel"):
        work_command("gem", "numpy", "cpu")
    with pytest.raises(ConfigError, match="unknown backend"):
        work_command("gemm", "nump", "cpu")


def test_the_program_runs_checks_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON line, exit code 0 when the result is right."""
    assert main(["triad", "numpy", "--size", "3000", "--device", "cpu", "--runs", "7"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["size"], told["right"]) == (7, 3000, True)
    assert told["gb_s"] > 0


def test_bad_input_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A message, no traceback."""
    assert main(["triad", "numpy", "--size", "huuge", "--device", "cpu"]) == 2
    assert "unknown size 'huuge'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["triad", "numpy", "--runs", "0"])
    assert ended.value.code == 2
