"""Promises of `wattloop report` as a process: one file, where it was asked for, or a reason."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from wattloop.cli.main import main

from .conftest import Machine, machine_in

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
pytest.importorskip("vl_convert", reason="vl-convert is not installed")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a machine on which one short run was measured."""
    folder = tmp_path_factory.mktemp("stored")
    sysfs = folder / "sys"
    package = PowercapTree(sysfs).add_package(0)
    with Driver({package: Constant(50.0)}, update_period_s=0.005):
        node = machine_in(folder, sysfs)
        done = node.wattloop(
            "run", "--name", "tiny", "--meters", "rapl,estimate", "--", "sleep", "0.3"
        )
    assert done.returncode == 0, done.stderr
    return node.store


@pytest.fixture
def reader(stored: Path, here: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This process, in a folder of its own, with that store."""
    monkeypatch.setenv("WATTLOOP_STORE", str(stored))
    return here


def test_a_run_becomes_one_file_that_needs_nothing_else(machine: Machine) -> None:
    """Promise: HTML and PDF from the same run, under 3 MB, nothing fetched from elsewhere."""
    pytest.importorskip("typst", reason="typst is not installed")
    machine.wattloop("run", "--name", "tiny", "--", "sleep", "0.3")
    done = machine.wattloop("report", "tiny", "--html", "--pdf", "-o", "out", "--json", "-")
    assert done.returncode == 0, done.stderr
    page = next(iter(machine.folder.glob("out*.html")))
    assert page.stat().st_size < 3e6
    assert "tiny" in page.read_text()
    assert 'src="http' not in page.read_text()
    assert next(iter(machine.folder.glob("out*.pdf"))).read_bytes().startswith(b"%PDF")
    assert json.loads(done.stdout)


def test_only_sensors_that_were_used_are_listed(reader: Machine) -> None:
    """Promise: an estimate that a counter made needless is not among the sensors of a figure."""
    assert main(["report", "tiny", "--html", "-o", "out.html"]) == 0
    page = (reader.folder / "out.html").read_text()
    table = page.partition("Sensors that these figures come from")[2].partition("</table>")[0]
    assert "<td>rapl" in table
    assert "<td>estimate" not in table
    assert "not used: cpu:0/package by estimate" in page


def test_a_name_without_an_ending_gets_one(
    reader: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: whatever dots are in the folders before it; the message has path and size."""
    (reader.folder / "v1.2").mkdir()
    assert main(["report", "--html", "-o", "v1.2/mine"]) == 0
    assert " KiB)" in capsys.readouterr().err  # a small file is never "0.0 MB"
    assert [path.name for path in (reader.folder / "v1.2").iterdir()] == ["mine.html"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody"], "nobody"),
        (["last", "-o", "none/x.html"], "none"),
        (["last", "-o", "x.docx"], "x.docx"),
        (["last", "-o", "-"], "a report is a file"),
        (["last", "-o", "/proc/x.html"], "choose another"),
        (["last", "--pdf", "-o", "x.html"], "the name says something else"),
        (["last", "-o", "x.html", "--json", "none/x.json"], "no folder"),
    ],
)
def test_what_cannot_be_reported_is_said(
    reader: Machine, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """Promise: exit code 2 with what to do, never a traceback, no file."""
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not list(reader.folder.glob("x.*"))


def test_a_missing_library_is_named_with_its_remedy(
    here: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: without the extra, one line says what to install, and no traceback."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main(["report", "last", "--html"]) == 2
    assert "pip install 'wattloop[figures]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "typst", None)
    assert main(["report", "last", "--pdf"]) == 2
    assert "pip install 'wattloop[report]'" in capsys.readouterr().err, (
        "it brings vl-convert as well"
    )
