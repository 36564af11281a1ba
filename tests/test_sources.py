"""Promises of docs/sources.md: every command of the table works, with the result of its row."""

import contextlib
import csv
import os
import re
import runpy
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from tests.analyze.synthetic_runs import cali3_runs, greenscreen_runs
from tests.serve.filled import Filled, filled
from tests.support.libraries import library
from tests.support.virtual_caps import settle
from wattloop.cli.main import main
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions

for needed in ("numba", "sklearn", "statsmodels", "torch", "vl_convert"):
    library(needed, reason=f"{needed} is not installed")

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "sources.md"
STATES = ("works", "differs", "open")

TRAIN = """\
import time
for epoch in range(1, 4):
    time.sleep(0.05)
    good = 1 - 0.5 / epoch
    print(f"epoch={epoch} loss={1 / epoch:.3f} accuracy={good} val_accuracy={good}", flush=True)
"""
SEARCH = """\
name: small
command: python train.py ${args}
metric: {name: accuracy, goal: maximize}
objective: energy
strategy: grid
parameters: {lr: [0.1, 0.01], batch: [8, 16]}
default: {lr: 0.1, batch: 8}
"""
STUDY = """\
name: small
need: Less energy.
kpis: [{metric: energy_kwh, goal: no worse than 50%}]
baseline: {scenario: thesis-pareto, policy: pollux, seeds: 1}
candidates: [zeus]
validation: {scenario: thesis-pareto, seeds: 100..100}
"""
OWN_TRAINING = ["--", "python", "train.py", "${args}"]
SMALL = {
    "wattloop tune run examples/denergium/cali3.yaml": ["--trials", "1", *OWN_TRAINING],
    "wattloop tune run examples/denergium/meluxina.yaml": ["--trials", "1", *OWN_TRAINING],
    "wattloop tune run examples/denergium/grid5000.yaml": OWN_TRAINING,
    "wattloop tune run examples/greenscreen/space.yaml": ["--trials", "1", *OWN_TRAINING],
}
"""Words added to commands that would train for hours."""
SMALL_SM2 = ["--configurations=2", "--rates=3", "--seeds=1", "--epochs=2", "--width=8"]


class Row(NamedTuple):
    """One item of a document."""

    section: str
    item: str
    command: str
    gives: str
    state: str
    page: str

    @property
    def words(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.gives)


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "section":
            found.append(Row(*cells))
    return found


def commands() -> dict[str, list[Row]]:
    """Return each command with the rows that name it, so that each runs once."""
    found: dict[str, list[Row]] = {}
    for row in rows():
        found.setdefault(row.command.strip("`"), []).append(row)
    return found


class Lab(NamedTuple):
    """A folder with programs, tables and a store."""

    folder: Path
    stored: Filled


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch, filled(folder) as stored:
        settle(patch, folder)
        patch.delenv("WATTLOOP_METERS")
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
            patch.setenv(name, str(folder))
        patch.setenv("XDG_CACHE_HOME", str(shared_cache))
        patch.setenv("COLUMNS", "400")
        patch.setenv("PYTHONPATH", f"{folder / 'site'}{os.pathsep}{ROOT / 'src'}")
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        patch.setenv("WATTLOOP_INTERVAL", "0.02")
        patch.chdir(folder)
        for name in ("examples", "benchmarks"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "train.py").write_text(TRAIN)
        (folder / "search.yaml").write_text(SEARCH)
        (folder / "study.yaml").write_text(STUDY)
        for name, table in (("greenscreen", greenscreen_runs()), ("cali3", cali3_runs())):
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(table[0]))
                writer.writeheader()
                writer.writerows(table)
        for command in SET_UP:
            assert main(shlex.split(command)[1:]) == 0, command
        yield Lab(folder, stored)


SET_UP = (
    "wattloop run --name night --zone USA --pue 1.3 --tariff 0.148 -- python train.py",
    "wattloop tune run search.yaml",
    "wattloop bench --kernels gemm,triad --backends numba,numpy --threads 1 --seconds 0.1"
    " --idle none --sizes gemm=64,triad=4096",
)
"""What other commands show again."""


def test_every_row_is_complete() -> None:
    """A document's section, a known state and an existing page; the counts above are right."""
    count = dict.fromkeys(STATES, 0)
    for row in rows():
        assert all(row), row
        count[row.state] += 1
        target = re.fullmatch(r"\[[^\]]+\]\(([^)#]+)(#[^)]*)?\)", row.page)
        assert target is not None and (PAGE.parent / target[1]).is_file(), row.page
        assert row.words or row.state != "works" or not is_printed(row.command), row
    said = f"{len(rows())} items: {count['works']} work, {count['differs']} differ, "
    assert said + f"{count['open']} are open." in PAGE.read_text()


def is_printed(command: str) -> bool:
    return command.strip("`").startswith(("wattloop", "GET"))


@pytest.mark.parametrize("command", commands())
def test_the_command_gives_the_result_of_its_row(
    lab: Lab, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each word in code type is in the output or the files of the command."""
    if all(row.state == "open" for row in commands()[command]):
        pytest.skip("the page says that it is missing")
    given = run(lab, command, capsys)
    for row in commands()[command]:
        missing = [word for word in row.words if not is_in(word, given)]
        assert not missing or row.state == "open", (row.item, given[-3000:])


def is_in(word: str, text: str) -> bool:
    """Return whether the word is in the text, not only as a part of a longer one."""
    return re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", text, re.IGNORECASE) is not None


def run(lab: Lab, command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command and return its output and its files."""
    if command.startswith("GET "):
        return page_of(lab, command.removeprefix("GET "))
    if command.startswith(("from ", "import ")):
        scope: dict[str, object] = {}
        exec(command, scope)
        return " ".join(scope)
    if command.startswith("python benchmarks/"):
        # Its own test runs it: benchmarks take minutes.
        script = Path(command.split()[1])
        assert script.is_file()
        return ""
    if command.startswith("python "):
        with contextlib.suppress(SystemExit):
            patched = pytest.MonkeyPatch()
            small = SMALL_SM2 if "sm2.py" in command else []
            patched.setattr(sys, "argv", [*command.split()[1:], *small])
            try:
                runpy.run_path(command.split()[1], run_name="__main__")
            finally:
                patched.undo()
        return capsys.readouterr().out
    *variables, first = re.findall(r"\w+=\S+|\S+", command.partition("wattloop ")[0] + "x")
    if "wattloop " not in command:
        assert first and (ROOT / command).is_file()
        return ""
    before = {path: path.stat().st_mtime_ns for path in files(lab.folder)}
    with pytest.MonkeyPatch.context() as patch:
        for variable in variables:
            patch.setenv(*variable.split("=", 1))
            patch.setenv("WATTLOOP_VIRTUAL_STATE", str(lab.folder / "other.state"))
        words = shlex.split(command)
        code = main([*words[len(variables) + 1 :], *SMALL.get(command, [])])
    said = capsys.readouterr()
    assert code in (0, 1 if " validate" in command else 0), said.err
    written = [path for path in files(lab.folder) if before.get(path) != path.stat().st_mtime_ns]
    texts = [path.read_text(errors="ignore") for path in written if path.suffix != ".db"]
    return "\n".join((said.out, said.err, *map(str, written), *texts))


def files(folder: Path) -> list[Path]:
    """Return the files that commands write, without the store and links."""
    return [p for p in folder.iterdir() if p.is_file() and p.suffix not in (".db", ".state")] + [
        p for sub in folder.iterdir() if sub.is_dir() and not sub.is_symlink()
        for p in sub.glob("*.*") if sub.name not in ("sys", "site", "state")
    ]  # fmt: skip


def page_of(lab: Lab, address: str) -> str:
    with TestClient(create_app(ServeOptions(store=str(lab.stored.path)))) as client:
        answer = client.get(address.replace("SEARCH", lab.stored.search))
        while answer.status_code == 202:  # it is still being computed; the browser asks again, too
            time.sleep(0.2)
            answer = client.get(address.replace("SEARCH", lab.stored.search))
    assert answer.status_code == 200, answer.text
    return answer.text
