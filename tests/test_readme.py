"""Promises of the README: its code runs, and prints the output that the README shows.

Numbers differ from machine to machine, so outputs are compared by shape: every number may be any
other, `...` may be any text, and lines that depend on the sensors at hand may differ.
"""

import os
import re
import runpy
import shlex
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support import warm_start
from tests.support.environment import without
from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from tests.support.synthetic_energy import about_j

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


def blocks(language: str, text: str = README) -> list[str]:
    """Return the fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shape(line: str) -> re.Pattern[str]:
    """Return a pattern that any output of the same shape matches."""
    pattern = re.escape(line)
    pattern = re.sub(r"\d+(?:\\\.\d+)?", lambda _: NUMBER, pattern)
    # a busy machine takes minutes, a fast one milliseconds
    pattern = pattern.replace(rf"\ in\ {NUMBER}\ s\ ", r"\ in\ .*(?:ms|s|min)\ ")
    pattern = re.sub(r"\\ mJ\b", r"\\ m?J", pattern)  # and may need more than 100 mJ
    pattern = re.sub(r"(?:\\ )+", r"\\s+", pattern)  # columns are as wide as their numbers
    return re.compile(pattern.replace(re.escape("..."), ".*"))


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    """A clean environment: only the estimate, a store of its own, `wattloop` and `python` on the
    path.
    """
    kept = without("WATTLOOP_")
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
        "WATTLOOP_METERS": "estimate",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        **extra,
    }


def ran(code: str, tmp_path: Path, env: dict[str, str]) -> list[str]:
    done = warm_start.run([sys.executable, "-c", code], env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_python_example_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """The run uses the estimate, as on the machine of the README."""
    code, (expected,) = blocks("python")[0], blocks("text")
    lines = ran(code, tmp_path, environment(tmp_path))
    shown = [line for line in expected.splitlines() if "not measured" not in line]
    printed = [line for line in lines if "not measured" not in line]
    for line in shown:
        pattern = shape(line)
        assert any(pattern.fullmatch(p) for p in printed), f"nothing printed looks like: {line}"
    assert len(shown) <= len(printed)


def test_python_example_measures_where_there_are_counters(tmp_path: Path) -> None:
    """The same code on a machine with RAPL gives measured, complete and right joules."""
    code = blocks("python")[0]
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0)
    env = environment(tmp_path, WATTLOOP_METERS="rapl", WATTLOOP_SYSFS_ROOT=str(tmp_path / "sys"))
    with Driver({package: Constant(50.0)}) as driver:
        lines = ran(code, tmp_path, env)
    assert any(re.fullmatch(r"cpu:0/package: .* J, measured \(powercap .*\)", x) for x in lines)
    assert not any("not measured" in line for line in lines)
    epochs = [re.fullmatch(r"epoch \d: ([\d.]+) J in ([\d.]+) s", line) for line in lines[:3]]
    joules = sum(float(epoch[1]) for epoch in epochs if epoch is not None)
    seconds = sum(float(epoch[2]) for epoch in epochs if epoch is not None)
    assert None not in epochs
    assert joules == about_j(50.0, seconds, driver)


CONSOLE = [
    part.rstrip("\n").splitlines()
    for block in blocks("console")
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
]


@pytest.mark.parametrize("lines", CONSOLE, ids=lambda lines: lines[0])
def test_console_blocks_run_and_print_the_shown_output(lines: list[str], tmp_path: Path) -> None:
    """Every `$ command` of the README, with the lines below it."""
    words = shlex.split(lines[0].replace("60_000_000", "600_000"))  # a hundredth of the work
    given = dict(word.split("=", 1) for word in words[: words.index("wattloop")])
    if "WATTLOOP_VIRTUAL_GPUS" in given:
        if not entry_points(group="wattloop.levers"):
            pytest.skip("wattloop is not installed: its virtual GPU is found by entry points")
        given["WATTLOOP_METERS"] = "virtual"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = warm_start.run(
        [sys.executable, "-m", "wattloop", *words[words.index("wattloop") + 1 :]],
        cwd=tmp_path,
        env=environment(
            tmp_path,
            WATTLOOP_STATE_DIR=str(tmp_path / "state"),
            WATTLOOP_VIRTUAL_STATE=str(tmp_path / "virtual"),
            **given,
        ),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    printed = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    # times of the virtual training are real ones: on a busy machine a search may find no saving
    no_saving = "  that is the reference: no lower cap pays" in printed
    for line in lines[1:]:
        if no_saving and line.startswith(("  GPU energy saved:", "  time lost:")):
            continue
        assert any(shape(line).fullmatch(p) for p in printed), (line, printed)


def test_links_of_the_documents_lead_somewhere() -> None:
    """Every relative link of the pages at the root and in docs names an existing file."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_command_is_in_the_table_of_verbs() -> None:
    """The table of verbs and the command line agree, in both directions."""
    table = README.partition("## Commands")[2].partition("\n## ")[0]
    verbs = {
        verb
        for names in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
        for verb in re.findall(r"`([\w-]+)`", names)
    }
    done = warm_start.run(
        [sys.executable, "-m", "wattloop.cli.main", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "COLUMNS": "100"},
        cwd=ROOT,
    )
    assert verbs == set(re.findall(r"^│ (\w[\w-]*) {2,}", done.stdout, re.MULTILINE))


def test_the_tour_names_every_package() -> None:
    """The table in CONTRIBUTING and the picture of the packages match `src/wattloop`."""
    there = {p.parent.name for p in (ROOT / "src" / "wattloop").glob("*/__init__.py")}
    tour = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)/` \|", tour, re.MULTILINE)) == there
    picture = (ROOT / "docs" / "images" / "packages.svg").read_text("utf-8")
    assert set(re.findall(r">(\w+)/</text>", picture)) == there


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_modules_of_the_walks_exist(page: str) -> None:
    """Every `package/module` that a walk through the code names is a module or a folder."""
    source = ROOT / "src" / "wattloop"
    packages = {p.parent.name for p in source.glob("*/__init__.py")}
    named = re.findall(r"`((?:\w+/)+\w+)(?:\.py)?`", (ROOT / page).read_text("utf-8"))
    inside = [name for name in named if name.partition("/")[0] in packages]
    assert len(inside) >= 10
    assert [
        name
        for name in inside
        if not (source / f"{name}.py").exists() and not (source / name).is_dir()
    ] == []


def test_the_readme_is_short_and_has_pictures() -> None:
    """A newcomer reads all of it: under 200 lines; overview, a live run and a campaign."""
    assert README.count("\n") < 200
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert len(pictures) == 3
    assert all(0 < (ROOT / picture).stat().st_size < 300_000 for picture in pictures)


def test_links_of_the_package_index_lead_to_files_of_the_repository() -> None:
    """The package description has the README's links, absolute, and each names a file."""
    text = runpy.run_path(str(ROOT / "setup.py"))["description"]()
    assert re.findall(r"\]\((?!https://)[^)]+\)", text) == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    base = re.escape(project["urls"]["Repository"])
    links = re.findall(rf"\]\({base}/(blob|raw)/main/([^)#]+)", text)
    assert len(links) == len(re.findall(r"\]\((?!https?:)", README)) > 20
    for view, target in links:
        assert (ROOT / target).is_file()
        assert (view == "raw") == target.endswith(".png")


def test_every_benchmark_page_is_in_the_list_of_results() -> None:
    """`docs/benchmarks/README.md` names each page once."""
    folder = ROOT / "docs" / "benchmarks"
    named = re.findall(r"^\| \[[^\]]+\]\((\w+\.md)\)", (folder / "README.md").read_text(), re.M)
    assert sorted(named) == sorted(p.name for p in folder.glob("*.md") if p.name != "README.md")


def test_example_meter_of_the_contributors_page_works(tmp_path: Path) -> None:
    """The class in CONTRIBUTING is a working meter."""
    from wattloop.core.errors import MeterUnavailable
    from wattloop.core.records import Gap
    from wattloop.hardware.host import Host
    from wattloop.meters.base import Context

    (code,) = blocks("python", (ROOT / "CONTRIBUTING.md").read_text())
    names: dict[str, object] = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    detect = names["detect"]
    assert callable(detect)
    with pytest.raises(MeterUnavailable):
        detect(Context(Host(tmp_path)))
    power = tmp_path / "plug" / "power"
    power.parent.mkdir()
    power.write_text("12.5\n")
    (meter,) = detect(Context(Host(tmp_path)))
    assert meter.read() == [12.5]
    power.write_text("x")
    assert isinstance(meter.read()[0], Gap)
