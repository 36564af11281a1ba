"""The pytest plugin: fixture `energy`, mark `energy`, and options.

    def test_step(energy):
        with energy.measure():
            step()
        energy.assert_below("12 J")

    @pytest.mark.energy(baseline=True, repeats=5)
    def test_epoch():
        epoch()

Loaded at the start of every pytest of whoever installs Wattloop, so it imports nothing but pytest
until a test asks for energy.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from wattloop.check.pytest_energy import Energy

__all__ = ["energy"]

DEFAULT_FILE = "energy-baselines.json"
MARK = (
    "energy(below=None, baseline=False, repeats=1, tolerance=None): measure this test; fail when "
    "it uses more than `below`, such as '12 J', or more than its baseline"
)
ENERGY = pytest.StashKey["Energy"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and settings."""
    group = parser.getgroup("energy", "energy of tests (wattloop)")
    group.addoption(
        "--energy-update", action="store_true", help="take the figures of now as baselines"
    )
    group.addoption("--energy-report", metavar="FILE", help="write a Markdown table of all figures")
    group.addoption(
        "--energy-tolerance", metavar="SHARE", help="what may be lost, beyond noise (5%%)"
    )
    group.addoption(
        "--energy-strict", action="store_true", help="fail tests whose energy cannot be judged"
    )
    parser.addini("energy_tolerance", "what may be lost, beyond noise", default="5%")
    parser.addini("energy_baselines", "file of baselines beside the tests", default=DEFAULT_FILE)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and whoever gathers results; workers of xdist send theirs."""
    config.addinivalue_line("markers", MARK)
    target = config.getoption("--energy-report")
    if target and not Path(target).absolute().parent.is_dir():
        raise pytest.UsageError(f"--energy-report {target}: no such folder; create it first")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Gathered(config), "wattloop-energy")


@pytest.fixture
def energy(request: pytest.FixtureRequest) -> "Energy":
    """What the test uses: `with energy.measure(): ...`, then `energy.assert_below("12 J")`."""
    return _energy_of(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Measure the call of a test that asks for it, as often as its mark says."""
    asked = ENERGY in pyfuncitem.stash or pyfuncitem.get_closest_marker("energy") is not None
    if not asked:
        return (yield)
    measured = _energy_of(pyfuncitem)
    if measured.repeating:  # called by the lines below
        with measured.execution():
            return (yield)
    with measured.opened():
        with measured.execution():
            result = yield
        for _ in range(measured.repeats - 1):
            with measured.repeated():
                pyfuncitem.ihook.pytest_pyfunc_call(pyfuncitem=pyfuncitem)
        measured.conclude()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send what was found along with the report, which also comes from xdist's workers."""
    report = yield
    if call.when == "call" and ENERGY in item.stash:
        found = item.stash[ENERGY].outcome(passed=report.passed)
        if found is not None:
            report.wattloop_energy = found  # type: ignore[attr-defined] # reports carry anything
    return report


class Gathered:
    """What all tests of this session used."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has ended, here or in a worker."""
        found = getattr(report, "wattloop_energy", None)
        if found is not None:
            self._found.append(found)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The section `energy`, the Markdown file, and the baselines."""
        if self._found:
            from wattloop.check.pytest_summary import conclude

            conclude(self._config, self._found, terminalreporter)


def _energy_of(item: Any) -> "Energy":
    """That of this test, made when it is first asked for."""
    if ENERGY not in item.stash:
        from wattloop.check.pytest_energy import energy_of

        item.stash[ENERGY] = energy_of(item)
    found: Energy = item.stash[ENERGY]
    return found
