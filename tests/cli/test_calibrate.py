"""Promises of `wattloop calibrate collect`."""

import json

import pytest

from tests.cli.conftest import Machine
from wattloop.cli.commands.calibrate import report
from wattloop.cli.main import main
from wattloop.predict.calibrate.host import HostSpeed

torch = pytest.importorskip("torch", reason="the suite measures torch")

KERNELS = ("calibrate", "collect", "--gpu", "cpu", "--sections", "kernels", "-o", "mine.jsonl")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_to_do(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, no traceback, no file."""
    assert main(["calibrate", "collect"]) == 2
    assert "needs a GPU and torch sees none here; check 'nvidia-smi'" in capsys.readouterr().err
    assert not list(here.folder.glob("*.jsonl"))


def test_without_torch_it_names_the_command(here: Machine) -> None:
    """A user without torch is told how to get it."""
    blocked = here.folder / "torch.py"
    blocked.write_text("raise ImportError('none')")
    path = f"{here.folder}:{here.environment['PYTHONPATH']}"
    done = here.wattloop("calibrate", "collect", PYTHONPATH=path)
    assert done.returncode == 2
    assert b"pip install wattloop[torch]" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_second_run_goes_on_with_the_first(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --resume the file is refused; with it, nothing is taken twice."""
    assert main([*KERNELS, "--json", "first.json"]) == 0
    first = json.loads((here.folder / "first.json").read_text())["sections"]["kernels"]
    assert first["taken"] == first["cases"] > 10
    assert main([*KERNELS]) == 2
    assert "add --resume" in capsys.readouterr().err
    lines = (here.folder / "mine.jsonl").read_text().splitlines()
    (here.folder / "mine.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    assert main([*KERNELS, "--resume"]) == 0
    out, err = capsys.readouterr()
    assert out.split()[-4:] == ["3", "0", str(first["cases"] - 3), str(first["cases"])]
    assert "nothing to fit" in err
    assert main(["calibrate", "fit", "mine.jsonl"]) == 2
    assert "collected with --gpu cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpu", "first"], "--gpu first: give the GPU's number"),
        (["--sections", "kernel"], "--sections kernel: known are host, kernels"),
        (["--gpu", "cpu", "-o", "nowhere/mine.jsonl"], "no folder nowhere"),
        (["--gpu", "cpu", "-o", "-"], "--output -: samples are kept to go on with"),
        (["--gpu", "cpu", "-o", "mine.jsonl.gz"], "cannot be added to a compressed file"),
    ],
)
def test_bad_options_are_told(
    here: Machine, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    """The message names the option and its valid values."""
    assert main(["calibrate", "collect", *words]) == 2
    assert told in capsys.readouterr().err


def test_an_empty_file_is_not_fitted(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what is missing and which command writes it."""
    (here.folder / "empty.jsonl").touch()
    assert main(["calibrate", "fit", "empty.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "empty.jsonl: no record of a machine in it" in said
    assert "wattloop calibrate collect" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpu", "cpu"], "--gpu cpu: how quick a host asks a GPU is measured on one"),
        (["--gpu", "first"], "--gpu first: give the GPU's number"),
        (["--json", "nowhere/host.json"], "no folder nowhere"),
    ],
)
def test_a_host_without_a_gpu_is_not_measured(
    here: Machine, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, no traceback."""
    assert main(["calibrate", "host", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_speed_is_told_with_the_constants_it_holds_for(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the user's own constants, the suggested command names them."""
    found = HostSpeed(0.8, 0.75, 0.81, {"net 8 fp32": 0.010}, {"net 8 fp32": 0.008})
    report(found, "h200", None, "host.json")
    assert "predict --gpu h200 --host-speed 0.80 ..." in capsys.readouterr().err
    assert json.loads((here.folder / "host.json").read_text())["speed"] == 0.8
    report(found, "h200", "my own.json", "-")
    out, err = capsys.readouterr()
    assert "predict --gpu h200 --calibration 'my own.json' --host-speed 0.80 ..." in err
    assert json.loads(out)["calibration"] == "my own.json"
