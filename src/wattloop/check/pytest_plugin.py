"""The pytest plugin: fixture `energy`, mark `energy`, options and summary.

    def test_step(energy):
        with energy.measure():
            step()
        energy.assert_below("12 J")

    @pytest.mark.energy(baseline=True, repeats=5)
    def test_epoch():
        epoch()

pytest loads this plugin wherever Wattloop is installed, so it imports nothing but pytest until a
test asks for energy.
"""

import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from wattloop.check.pytest_fixture import Energy

HEADERS = ("test", "figure", "used", "against", "verdict")
DEFAULT_FILE = "energy-baselines.json"
MARK = (
    "energy(below=None, baseline=False, repeats=1, tolerance=None): measure this test; fail when "
    "it uses more than `below`, such as '12 J', or more than its baseline"
)
ENERGY = pytest.StashKey["Energy"]()


def pytest_addoption(parser: pytest.Parser) -> None:
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
    parser.addini("energy_baselines", "file of baselines next to the tests", default=DEFAULT_FILE)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark and the collector of results; xdist workers send theirs."""
    config.addinivalue_line("markers", MARK)
    target = config.getoption("--energy-report")
    if target and not Path(target).absolute().parent.is_dir():
        raise pytest.UsageError(f"--energy-report {target}: no such folder; create it first")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(EnergySummary(config), "wattloop-energy")


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


class EnergySummary:
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
            conclude(self._config, self._found, terminalreporter)


def _energy_of(item: Any) -> "Energy":
    """That of this test, made when it is first asked for."""
    if ENERGY not in item.stash:
        from wattloop.check.pytest_fixture import energy_of

        item.stash[ENERGY] = energy_of(item)
    found: Energy = item.stash[ENERGY]
    return found


def conclude(config: pytest.Config, found: list[dict[str, Any]], reporter: Any) -> None:
    """Print the summary and write the files; a failed write is reported, results stay."""
    from wattloop.check.markdown import table
    from wattloop.core.errors import WattloopError
    from wattloop.store.formats.table_files import Target

    reporter.section("energy")
    rows = [_row(one) for one in found]
    widths = [max(len(row[i]) for row in [HEADERS, *rows]) for i in range(len(HEADERS))]
    for row in (HEADERS, *rows):
        reporter.write_line(
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        )
    notes = _notes(found)
    for note in notes:
        reporter.write_line(f"- {note}")
    target = config.getoption("--energy-report")
    try:
        if target:
            text = "### Energy of tests\n\n" + table(HEADERS, rows)
            text += "".join(
                f"\n\n- {note}" if not i else f"\n- {note}" for i, note in enumerate(notes)
            )
            Target(target, "--energy-report").write_text(text + "\n")
        for file in _taken(found):
            reporter.write_line(f"baselines taken: {file}")
    except WattloopError as error:
        reporter.write_line(f"energy: {error}", red=True)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    from wattloop.check.figures import FigureKind

    kind = FigureKind(one["kind"])
    figure = f"{kind.words} ({one['provenance']})"
    return one["name"], figure, one["shown"], one["against"] or "–", one["verdict"]


def _notes(found: list[dict[str, Any]]) -> list[str]:
    """Return each note once, with the tests it belongs to."""
    by_note: dict[str, list[str]] = {}
    for one in found:
        for note in one["notes"]:
            by_note.setdefault(note, []).append(one["name"])
    return [
        f"{names[0] if len(names) == 1 else f'{len(names)} tests'}: {note}"
        for note, names in by_note.items()
    ]


def _taken(found: list[dict[str, Any]]) -> list[str]:
    """Write the baselines of passed tests; return the files."""
    from wattloop.check.baselines import Baseline, Baselines, Machine
    from wattloop.check.figures import FigureKind, judged_kind
    from wattloop.store.formats.table_files import Target
    from wattloop.version import __version__

    machine = Machine.here()
    by_file: dict[str, Baselines] = {}
    for one in found:
        if one["verdict"] != "taken" or not one["passed"]:
            continue
        file = one["file"]
        if file not in by_file:
            by_file[file] = Baselines.read_if_any(Path(file))
        data = {
            "machine": machine.to_dict(),
            "judged": judged_kind(FigureKind(name) for name in one["series"]),
            "figures": one["series"],
        }
        taken = Baseline.from_dict({**data, "taken_wall_s": time.time(), "wattloop": __version__})
        by_file[file].put(one["name"], taken)
    for file, baselines in by_file.items():
        Target(file).write_text(baselines.to_text())
    return list(by_file)
