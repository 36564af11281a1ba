"""Promises of the pytest plugin, tested by real runs of pytest."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree

pytest_plugins = ["pytester"]

SRC = Path(__file__).parents[2] / "src"
WORK = """
import pytest, time

def work(rounds=200_000):
    for _ in range(rounds):
        pass
"""
OPTIONS = ("-p", "wattloop.check.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:randomly")


@pytest.fixture(autouse=True)
def nothing_can_be_read(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a machine without sensors, whatever this one has."""
    (pytester.path / "sys").mkdir()
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(pytester.path / "sys"))
    monkeypatch.setenv("WATTLOOP_METERS", "rapl")
    monkeypatch.setenv("WATTLOOP_STORE", str(pytester.path / "runs.db"))
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    # Where Wattloop is installed, its entry point would load the plugin a second time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def ran(pytester: pytest.Pytester, code: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=WORK + code)
    return pytester.runpytest_inprocess(*OPTIONS, *options)


@pytest.fixture
def sensed(pytester: pytest.Pytester) -> Driver:
    """A package that draws 50 W."""
    package = PowercapTree(pytester.path / "sys").add_package(0, max_power_w=200)
    return Driver({package: Constant(50.0)}, update_period_s=0.002)


BLOCKS = """
from pathlib import Path

def spend(joules):
    time.sleep(joules / 150)
    counter, = Path(SYS).rglob("energy_uj")
    counter.write_text(f"{int(counter.read_text()) + joules * 1_000_000}\\n")

def test_step(energy):
    spend(90)
    with energy.measure():
        spend(15)
    energy.assert_below("50 J")
    assert energy.energy_j > 4

def test_all_of_it(energy):
    spend(60)
    energy.assert_below("5 J")
"""


def test_joules_of_a_block_and_of_a_whole_test(pytester: pytest.Pytester, sensed: Driver) -> None:
    """Promise: only the block counts where there is one; a limit that is broken fails the test.

    The test advances the counter itself, so how long it takes changes no energy. The broken limit
    is far below the energy used: on a busy machine a window is uncertain by several joules.
    """
    result = ran(pytester, BLOCKS.replace("SYS", repr(str(pytester.path / "sys"))))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "energy: above: energy * J*(measured); limit 5.00 J",
            "test_it.py::test_step *energy (measured) * J*limit 50.0 J  below",
        ]
    )


def test_without_sensors_cpu_time_or_instructions_are_judged(pytester: pytest.Pytester) -> None:
    """Promise: a limit in seconds holds where joules are unavailable, and the report says why."""
    result = ran(
        pytester,
        """
def test_both(energy):
    with energy.measure():
        work()
    energy.assert_below("12 J", "30 s", "1e12 instructions")

def test_joules_only(energy):
    work()
    energy.assert_below("12 J")

def test_too_much(energy):
    work(2_000_000)
    energy.assert_below("1 ms", "1000 instructions")
    """,
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "energy: above: *",
            "*test_both*below",
            "*test_joules_only*limit 12.0 J*not judged",
            "*no sensor can be read here*",
        ]
    )


def test_an_intermittent_sensor_is_reported(pytester: pytest.Pytester, sensed: Driver) -> None:
    """Promise: repeats of which only some have joules are judged by their common figure, with a
    note.
    """
    code = """
@pytest.mark.energy(below=("90 J", "90 s"), repeats=2)
def test_x(tmp_path):
    time.sleep(0.05)
    for counter in Path(SYS).rglob("energy_uj"):
        counter.unlink()
"""
    code = "from pathlib import Path\n" + code.replace("SYS", repr(str(pytester.path / "sys")))
    with sensed:
        pass  # the files exist, but no process writes into them any more
    result = ran(pytester, code)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_x*limit 1 min 30 s*below", "*could not be read in every*"])


def test_strict_fails_what_cannot_be_judged(pytester: pytest.Pytester) -> None:
    """Promise: --energy-strict fails a limit that could not be measured."""
    code = "def test_j(energy):\n    energy.assert_below('12 J')\n"
    ran(pytester, code, "--energy-strict").assert_outcomes(failed=1)


BASE = """
@pytest.mark.energy(baseline=True, repeats=2)
def test_epoch():
    time.sleep(0.05)
"""


def scattered(pytester: pytest.Pytester, *values: float) -> None:
    """Write these values into the baseline, so that no verdict depends on the machine's load."""
    file = pytester.path / "energy-baselines.json"
    data = json.loads(file.read_text())
    (entry,) = data["entries"]["test_it.py::test_epoch"]
    assert len(entry["figures"][entry["judged"]]["values"]) == 2
    entry["figures"][entry["judged"]]["values"] = values
    file.write_text(json.dumps(data))


def test_a_baseline_is_taken_and_a_regression_fails(pytester: pytest.Pytester) -> None:
    """Promise: new, updated, unclear and regression, through the file next to the tests."""
    first = ran(pytester, BASE)
    first.assert_outcomes(passed=1)
    first.stdout.fnmatch_lines(["*test_epoch*new"])
    ran(pytester, BASE, "--energy-update").assert_outcomes(passed=1)
    scattered(pytester, 1e-9, 1e12)
    same = ran(pytester, BASE)
    same.assert_outcomes(passed=1)
    same.stdout.fnmatch_lines(["*test_epoch*baseline * (*%*) *unclear"])
    scattered(pytester, *(1e-9 for _ in range(50)))
    worse = ran(pytester, BASE)
    worse.assert_outcomes(failed=1)
    worse.stdout.fnmatch_lines(["energy: regression: *baseline*"])


def test_a_regression_in_joules_is_seen(pytester: pytest.Pytester, sensed: Driver) -> None:
    """Promise: with a sensor, more joules than before fail, in the report and its Markdown."""
    with sensed:
        ran(pytester, BASE, "--energy-update").assert_outcomes(passed=1)
        scattered(pytester, *(1e-6 for _ in range(50)))
        result = ran(pytester, BASE, "--energy-report", "energy.md")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["energy: regression: energy *measured, mean of 2); baseline*"])
    text = (pytester.path / "energy.md").read_text()
    assert "| test_it.py::test_epoch | energy (measured) |" in text
    assert "| regression |" in text


def test_a_baseline_of_another_figure_is_not_compared(
    pytester: pytest.Pytester, sensed: Driver
) -> None:
    """Promise: joules before and none now: the test passes, and the report says it was not
    judged.
    """
    with sensed:
        ran(pytester, BASE, "--energy-update").assert_outcomes(passed=1)
    (pytester.path / "sys").rename(pytester.path / "gone")
    result = ran(pytester, BASE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_epoch*not judged", "*--energy-update*"])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "def test_x(energy):\n    energy.assert_below('3 parsec')\n",
            "*'3 parsec' is not a limit*",
        ),
        ("@pytest.mark.energy(below='3')\ndef test_x():\n    pass\n", "*is not a limit*"),
        ("@pytest.mark.energy(belwo='3 J')\ndef test_x():\n    pass\n", "*does not take belwo*"),
        ("@pytest.mark.energy(repeats=0)\ndef test_x():\n    pass\n", "*repeats=0*"),
    ],
)
def test_wrong_words_fail_with_what_to_write(
    pytester: pytest.Pytester, code: str, said: str
) -> None:
    """Promise: a wrong unit or mark is a message, not a traceback into the plugin."""
    result = ran(pytester, code)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([said])
    result.stdout.no_fnmatch_line("*pytest_fixture.py*")


def test_a_damaged_file_of_baselines_fails_with_its_path(pytester: pytest.Pytester) -> None:
    """Promise: a torn file is an error, not 'no baseline yet'."""
    (pytester.path / "energy-baselines.json").write_text("{")
    result = ran(pytester, BASE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["energy: *energy-baselines.json: not JSON*"])


def test_a_test_that_fails_by_itself_is_not_taken(pytester: pytest.Pytester) -> None:
    """Promise: a test that fails halfway gives no baseline."""
    code = BASE + "    assert False\n"
    ran(pytester, code, "--energy-update").assert_outcomes(failed=1)
    assert not (pytester.path / "energy-baselines.json").exists()


def test_workers_side_by_side_do_not_judge_joules(
    pytester: pytest.Pytester, sensed: Driver
) -> None:
    """Promise: under xdist each test is judged by its own CPU time, and results still arrive."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    code = "@pytest.mark.energy(below=('1 J', '30 s'))\ndef test_x():\n    work()\n"
    with sensed:
        pytester.makepyfile(test_it=WORK + code)
        result = pytester.runpytest_subprocess(*OPTIONS, "-p", "xdist", "-n", "2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_x*limit 30.0 s*below", "*side by side*"])


def test_installing_wattloop_installs_the_fixture(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the entry point of the package is enough, and `-p no:wattloop` disables it."""
    entry_points = tomllib.loads((SRC.parent / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]["pytest11"]
    info = pytester.path / "site" / "wattloop-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wattloop\nVersion: 0\n")
    lines = (f"{name} = {where}\n" for name, where in entry_points.items())
    (info / "entry_points.txt").write_text("[pytest11]\n" + "".join(lines))
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}{os.pathsep}{SRC}")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile(test_it="def test_x(energy):\n    energy.assert_below('90 s', '9 J')\n")
    plain = ("-p", "no:schemathesis", "-p", "no:hypothesispytest", "-p", "no:xdist")
    pytester.runpytest_subprocess(*plain).assert_outcomes(passed=1)
    without = pytester.runpytest_subprocess(*plain, "-p", "no:wattloop")
    without.assert_outcomes(errors=1)


def test_the_unused_plugin_loads_no_module_of_wattloop() -> None:
    """Promise: loading it imports pytest, and of Wattloop only what `import wattloop` does."""
    code = (
        "import sys, pytest, wattloop; before = set(sys.modules); "
        "import wattloop.check.pytest_plugin; "
        "print(*sorted(m for m in set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == ["wattloop.check", "wattloop.check.pytest_plugin"]
