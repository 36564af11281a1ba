"""Promises of `wattloop bench`."""

import csv
import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Machine
from tests.support.transcripts import not_printed
from wattloop.cli.main import main
from wattloop.kernels.backend import Backend

QUICK = ("bench", "--backends", "numpy", "--device", "cpu", "--threads", "1", "--seconds", "0.1")


def test_kernels_are_measured_kept_and_shown_again(machine: Machine) -> None:
    """Rates, joules of the known power, roof; --show finds the session again, word for word."""
    sizes = "gemm=64,triad=1e5"
    words = ("--kernels", "gemm,triad", "--sizes", sizes, "--json", "b.json", "--csv", "b.csv")
    words += ("--seconds", "1")  # against the moments in which the counter waits for a processor
    done = machine.wattloop(*QUICK, *words)
    assert done.returncode == 0, done.stderr.decode()
    data = json.loads((machine.folder / "b.json").read_text())
    assert [(r["kernel"], r["status"]) for r in data["results"]] == [
        ("gemm", "ok"),
        ("triad", "ok"),
    ]
    for result in data["results"]:
        assert result["scopes"]["cpu"]["provenance"] == "measured"
        cpu = result["scopes"]["cpu"]
        duration_s = cpu["energy_j"] / cpu["power_w"]
        assert cpu["energy_j"] == machine.about_j(duration_s)
        assert result["gflops"] > 0
    assert data["peaks"][0]["gb_s"] == pytest.approx(data["results"][1]["gb_s"])
    text, said = done.stdout.decode(), done.stderr.decode()
    assert "Per run, fp32 on cpu" in text
    assert "roof" in said
    assert "peak memory of a worker" in said
    # docs/bench.md shows the same columns and messages
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text("utf-8")
    heads = [line.split() for line in page.splitlines() if line.startswith("    kernel  ")]
    (own,) = (line.split() for line in text.splitlines() if line.startswith("kernel  size"))
    assert own in heads
    messages = [
        x.strip() for x in page.splitlines() if re.match("    wattloop: (cpu fp32|peak)", x)
    ]
    assert len(messages) == 2
    assert (
        not_printed(
            tuple(x.replace("numba parallel", "numpy library") for x in messages), said.splitlines()
        )
        == []
    )
    rows = list(csv.DictReader((machine.folder / "b.csv").open()))
    assert float(rows[0]["gflops"]) == pytest.approx(data["results"][0]["gflops"])
    again = machine.wattloop("bench", "--show", "last", "--json", "again.json")
    assert again.stdout.decode() == text
    assert json.loads((machine.folder / "again.json").read_text()) == data


def test_the_run_with_its_curve_is_stored(machine: Machine) -> None:
    """Readings during the kernels are a run like any other."""
    machine.wattloop(*QUICK, "--kernels", "triad", "--sizes", "1e5", "--idle", "none")
    done = machine.wattloop("runs", "list", "--json", "-")
    (run,) = json.loads(done.stdout)["runs"]
    assert run["name"] == "bench"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kernels", "gemmm"), "unknown kernel 'gemmm'; known are gemm, spmv, triad"),
        (("--backends", "numpyy"), "unknown backend 'numpyy'; known are numpy, numba, torch"),
        (("--sizes", "giant"), "unknown size 'giant'; known are small"),
        (("--kernels", "triad", "--sizes", "1e13"), "out of range"),
        (("--kernels", "triad", "--sizes", "1e12"), "needs about 16.4 TiB of memory"),
        (("--dtype", "int8"), "unknown dtype 'int8'; known are fp64, fp32"),
        (("--device", "gpu:7"), "see 'wattloop devices', or use cpu"),
        (("--device", "tpu"), "use cpu, gpu or a number"),
        (("--threads", "many"), "write numbers from 1"),
        (("--threads", "9999"), "--threads 9999: this process may use"),
        (("--idle", "maybe"), "use auto, stored, fit, threads, none"),
        (("--tables", "all,nice"), "known are kernels, speedups, frameworks, idle, all"),
        (("--json", "no/such/folder/x.json"), "no folder"),
        (("--backends", "cupy"), "nothing to run on the cpu (cupy: runs on the gpu"),
        (("--show", "bench-nowhere"), "no bench"),
    ],
)
def test_bad_input_is_explained(
    here: Machine, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 2, a sentence with what is known, no traceback, nothing run."""
    base = ["bench", "--device", "cpu"] if "--device" not in words else ["bench"]
    assert main([*base, *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_what_is_not_installed_is_left_out_with_its_command(
    here: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others run."""
    monkeypatch.setattr(
        Backend, "missing", classmethod(lambda cls: "" if cls.name == "numpy" else cls.remedy())
    )
    words = ["--kernels", "triad", "--sizes", "1e5", "-s", "0.05", "--idle", "none"]
    assert main(["bench", "--device", "cpu", *words]) == 0
    out, said = capsys.readouterr()
    assert "left out: jax: pip install 'wattloop[jax]'" in said
    assert "triad" in out
    assert "energy of the cpu was not read" in said


def test_list_names_everything(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels with sizes, frameworks with what adds them; nothing runs."""
    assert main(["bench", "--list", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [k["name"] for k in data["kernels"]] == [
        "gemm", "spmv", "triad", "stencil", "montecarlo", "dist", "spmv_coo",
    ]  # fmt: skip
    assert {b["name"] for b in data["backends"]} == {
        "numpy", "numba", "torch", "jax", "cupy", "tensorflow",
    }  # fmt: skip
    assert main(["bench", "--list"]) == 0
    assert "rows of the square matrices" in capsys.readouterr().out


def test_ctrl_c_leaves_no_worker_and_keeps_what_was_found(machine: Machine) -> None:
    """An interrupted session is marked so; its finished results are shown."""
    many = ",".join(f"triad={size}" for size in range(100_000, 160_000, 1_000))
    words = ("--kernels", "triad", "--sizes", many, "--seconds", "1")
    process = subprocess.Popen(
        machine.command(*QUICK, *words, "--idle", "none"),
        env={**machine.environment, "WATTLOOP_DEBUG": "1"}, cwd=machine.folder,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "numpy library" in line:
            break
    deadline_s = time.monotonic() + 120
    while not (started := workers_of(process.pid)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert started
    process.send_signal(2)
    process.communicate(timeout=300)
    assert process.returncode == 130
    deadline_s = time.monotonic() + 120
    while any(Path("/proc", pid).exists() for pid in started) and time.monotonic() < deadline_s:
        time.sleep(0.02)  # a worker sees that its parent is gone, and ends by itself
    assert not [pid for pid in started if Path("/proc", pid).exists()]
    shown = machine.wattloop("bench", "--show", "last")
    assert shown.returncode in (0, 2)
    assert b"Traceback" not in shown.stderr


def workers_of(parent: int) -> set[str]:
    """Processes that run kernels for `parent`."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"wattloop.kernels.worker" in words and int(after_name[1]) == parent:
            found.add(folder.name)
    return found
