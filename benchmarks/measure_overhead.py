"""Cost of measuring for the measured program, with other tools in the same run.

    python benchmarks/measure_overhead.py [--quick] [--json FILE] [--no-peers]

The other tools are installed by name into `.venv-peers/` on the first run.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bars import Bar, Baseline, Page, Table, arguments, publish
from overhead import peers
from overhead.laboratory import Failed, Laboratory
from overhead.probe import SETTLE_S

REPOSITORY = Path(__file__).resolve().parent.parent
OURS = "wattloop"
API = "wattloop.measure.api"
THREAD = "wattloop, thread"
FULL = "wattloop, thread at full rate"
OWN = (OURS, API, THREAD, FULL)
SLOW_S, FAST_S = 0.1, 0.01
RATES = (("10hz", SLOW_S), ("100hz", FAST_S))
READER_NOTE = "the process that reads the sensors, mean"
TOTAL_NOTE = "the measured process and its sampler process"
ONLY_FUNCTIONS = {"perun": "measures whole functions only"}
"""Tools that have no begin and end: they are imported and set up, no more."""

TEXT = """
Every figure is taken in a fresh process, tools in turn, with Python's bytecode cached as in any
installation (one run before the first figure). Wattloop reads two counters (package and DRAM) of a
powercap tree of real files, which a process of its own keeps running. {sharing}

- Import and set-up are medians of the time on the clock. Set-up begins after the import and ends
  when the first measurement runs; what is imported on first use belongs to it.
- A window is begin and end inside a running measurement; median.
- CPU is that of the measured process and its children while the program sleeps: the median second,
  less that of the same program without a tool, from {settle:g} s after the start on. A thread that
  only wakes up, a hundred times a second, is in a table below: less is not possible from a thread
  of Python.
- `cpu_pct_*` is Wattloop as installed: once a measurement has lasted a second, a sampler of the
  program reads the sensors, and the program collects what it read. That process is not free:
  `beside_*` is its CPU, start and memory (with its share of what it has in common with other
  processes), `total_*` the sum. On a machine with idle cores only `cpu_pct_*` slows the program
  down; the joules of both are in what is measured.
- `thread_*` is the same without that process (`WATTLOOP_SAMPLER=thread`), which is also what the
  first second of every measurement costs. The thread has a CPU budget of 0.4% and reads counters
  less often where they would cost more; `thread_full_*` is without the budget. A window's energy
  does not depend on it, the curve between windows does.
- Times on the clock are those of a machine that others use as well; ratios say more than values.
"""
SHARED = (
    "The other tools are shown the same tree as /sys/class/powercap, by a mount that only they "
    "see; what they do without any sensor is in a table below."
)
NOT_SHARED = (
    "Private mounts are not allowed on this machine, so the other tools had no sensor to read."
)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--no-peers", action="store_true", help="only wattloop")
    parser.add_argument(
        "--peers-venv", type=Path, metavar="DIR", help="a ready environment; nothing is installed"
    )
    parser.add_argument("--seconds", type=float, help="length of one CPU figure (20; quick: 1)")
    parser.add_argument("--repeat", type=int, help="repetitions of a CPU figure (2; quick: 1)")
    args = parser.parse_args()
    failures: dict[str, str] = {}
    pythons = {tool: Path(sys.executable) for tool in ("none", "wake-ups", *OWN)}
    if not args.no_peers:
        folder = args.peers_venv or REPOSITORY / ".venv-peers"
        failures = peers.missing(folder) if args.peers_venv else peers.install(folder, _say)
        pythons |= {tool: peers.python_of(folder) for tool in peers.PEERS}
    with Laboratory(pythons) as laboratory:
        benchmark = Benchmark(laboratory, args.quick, args.seconds, args.repeat, failures)
        benchmark.warm_up()
        bars = benchmark.bars()
        tables = benchmark.tables()
        shared = laboratory.can_share
    versions = {} if args.no_peers else peers.versions(folder)
    text = TEXT.format(
        settle=SETTLE_S, sharing=(SHARED if shared else NOT_SHARED) if versions else ""
    )
    page = Page(
        "measure_overhead", "What measuring costs", bars, tables, text=text, versions=versions
    )
    publish(page, args)


class Benchmark:
    """Measurement of every figure for every tool."""

    def __init__(
        self,
        laboratory: Laboratory,
        quick: bool,
        seconds: float | None,
        repeat: int | None,
        failures: dict[str, str],
    ) -> None:
        self._laboratory = laboratory
        self._quick = quick
        self._seconds = seconds or (1.0 if quick else 20.0)
        self._repeat = repeat or (1 if quick else 2)
        self._failures = failures
        self._peers = [tool for tool in laboratory.pythons if tool in peers.PEERS]
        self._reads: dict[str, str] = {}

    def warm_up(self) -> None:
        """Run everything once, so that bytecode is cached; a tool that does not start is left
        out.
        """
        for tool in [OURS, API, *self._peers]:
            _say(f"warming up {tool}")
            try:
                self._laboratory.probe(tool, "import")
                if tool != API:
                    result = self._laboratory.probe(tool, "setup", SLOW_S)
                    self._reads[tool] = result["reads"]
            except Failed as failed:
                if tool not in self._peers:
                    raise
                self._failures.setdefault(tool, str(failed))

    def bars(self) -> list[Bar]:
        """Return the rows with a bar, then the others."""
        imports = self._import()
        setup = self._medians("setup", 2 if self._quick else 5, SLOW_S)
        windows = self._medians(
            "windows", 1 if self._quick else 2, SLOW_S, 500 if self._quick else 2_000
        )
        self._cpu = {interval_s: self._sleep(interval_s) for interval_s in (SLOW_S, FAST_S)}
        self._floor_pct = self._wake_ups()
        run = self._run_command()
        return [
            _bar("import_ms", "ms", 50, imports, "ms", "`import wattloop`"),
            _bar("setup_ms", "ms", 50, setup, "ms", "first `measure().begin()` of a process"),
            _bar("window_us", "us", 30, windows, "us", "begin and end, two domains"),
            _cpu_bar("cpu_pct_10hz", 0.1, self._cpu[SLOW_S]),
            _cpu_bar("cpu_pct_100hz", 0.5, self._cpu[FAST_S]),
            *self._reader(),
            *self._threads(),
            Bar(
                "import_api_ms",
                _value(imports[API], "ms"),
                "ms",
                note="`import wattloop` and all that `measure()` loads on first use",
            ),
            _bar("setup_cpu_ms", "ms", None, setup, "cpu_ms", "CPU time of the set-up"),
            _bar(
                "window_cpu_us",
                "us",
                None,
                windows,
                "cpu_us",
                "CPU time of a window, with what the background does for it later",
            ),
            Bar("run_cpu_ms", run, "ms", note=f"`wattloop run -- sleep {self._sleep_s:g}` itself"),
        ]

    def _reader(self) -> list[Bar]:
        """Return the readings taken and the processor time of the reader process."""
        bars = []
        for name, interval_s in RATES:
            results = self._cpu[interval_s]
            own_pct = _above_idle(results)[OURS]
            beside_pct = _value(results[OURS], "beside_pct")
            assert isinstance(own_pct, float), own_pct
            bars += [
                Bar(f"readings_{name}", _value(results[OURS], "rate_hz"), "1/s"),
                Bar(f"beside_cpu_pct_{name}", beside_pct, "% of a core", note=READER_NOTE),
                Bar(f"total_cpu_pct_{name}", own_pct + beside_pct, "% of a core", note=TOTAL_NOTE),
            ]
        slow = self._cpu[SLOW_S][OURS]
        start_ms, memory_mib = _value(slow, "beside_start_ms"), _value(slow, "beside_mib")
        note = f"CPU time of its start and first {SETTLE_S:g} s"
        return [
            *bars,
            Bar("beside_start_cpu_ms", start_ms, "ms", note=note),
            Bar("beside_memory_mib", memory_mib, "MiB", note="proportional share (PSS)"),
        ]

    def _threads(self) -> list[Bar]:
        """Return the cost of the thread alone, with and without its budget."""
        bars = []
        for name, interval_s in RATES:
            results = self._cpu[interval_s]
            for label, tool in (("thread", THREAD), ("thread_full", FULL)):
                pct = _above_idle(results)[tool]
                assert isinstance(pct, float), pct
                rate_hz = _value(results[tool], "rate_hz")
                bars.append(Bar(f"{label}_cpu_pct_{name}", pct, "% of a core"))
                bars.append(Bar(f"{label}_readings_{name}", rate_hz, "1/s"))
        return bars

    def tables(self) -> list[Table]:
        """Tables of stalls, ends, floors, and of the others without sensors."""
        tables = [self._stalls(), self._ends(), self._means()]
        if self._peers and self._laboratory.can_share:
            tables.append(self._without_sensors())
        if self._reads:
            rows = [[tool, text] for tool, text in self._reads.items()]
            tables.append(Table("What each tool said it was reading", ["tool", "sources"], rows))
        return tables

    # -- figures -----------------------------------------------------------------------------

    def _import(self) -> dict[str, Any]:
        count = 2 if self._quick else 5
        tools = [OURS, API, *self._peers]
        return self._each(
            tools, count, lambda tool: self._laboratory.probe(tool, "import"), whole=True
        )

    def _medians(self, task: str, count: int, *numbers: float) -> dict[str, Any]:
        tools = [OURS, *self._peers]
        whole = task == "setup"
        return self._each(
            tools, count, lambda tool: self._laboratory.probe(tool, task, *numbers), whole=whole
        )

    def _sleep(self, interval_s: float) -> dict[str, Any]:
        """Return results by tool; the tools take turns."""
        return self._each(
            ["none", OURS, THREAD, FULL, *self._peers],
            self._repeat,
            lambda tool: self._laboratory.probe(tool, "sleep", interval_s, self._seconds),
        )

    def _each(
        self,
        tools: Sequence[str],
        count: int,
        take: Callable[[str], dict[str, Any]],
        whole: bool = False,
    ) -> dict[str, Any]:
        """Return tool -> list of results, or the reason why there is none."""
        found: dict[str, Any] = {tool: [] for tool in tools}
        if not whole:
            found |= {tool: why for tool, why in ONLY_FUNCTIONS.items() if tool in found}
        for _ in range(count):
            for tool in tools:
                if tool in self._failures:
                    found[tool] = self._failures[tool]
                if isinstance(found[tool], str) or (tool in ONLY_FUNCTIONS and found[tool]):
                    continue  # no figure to be had, or one that takes ten seconds each time
                _say(f"{tool}")
                try:
                    found[tool].append(take(tool))
                except Failed as failed:
                    found[tool] = str(failed)
        return found

    def _wake_ups(self) -> float:
        """Return the CPU share of a thread that only wakes up, a hundred times a second."""
        result = self._laboratory.probe("wake-ups", "sleep", FAST_S, min(self._seconds, 10.0))
        return statistics.median(result["slices_pct"])

    @property
    def _sleep_s(self) -> float:
        return 0.5 if self._quick else 20.0

    def _run_command(self) -> float | None:
        code = "from wattloop.cli.main import main; main()"
        command = [sys.executable, "-c", code, "run", "--", "sleep"]
        try:
            self._laboratory.command_cpu_s(*command, "0.1")
            _say("wattloop run")
            return 1e3 * self._laboratory.command_cpu_s(*command, f"{self._sleep_s:g}")
        except Failed:
            return None

    # -- tables ------------------------------------------------------------------------------

    def _stalls(self) -> Table:
        seconds = 0.5 if self._quick else 5.0
        results = self._each(
            ["none", OURS, *self._peers],
            1 if self._quick else 3,
            lambda tool: self._laboratory.probe(tool, "stall", SLOW_S, seconds),
        )
        rows = [
            [_named(tool), *(_value(found, key) for key in ("p999_us", "worst_us", "ms_per_s"))]
            for tool, found in results.items()
        ]
        return Table(
            "Stall of the main thread",
            ["tool", "99.9% of slices below [us]", "worst [us]", "held up [ms per s]"],
            rows,
            "A loop of slices of a few microseconds of work, at 10 Hz of sampling: by how much "
            "slices took longer than usual. Medians of three runs; held up counts what is over "
            "50 us. The first row is the machine itself.",
        )

    def _ends(self) -> Table:
        count = 1 if self._quick else 3
        tools = ["none", OURS, *self._peers]
        stops = self._each(tools, count, lambda tool: self._laboratory.probe(tool, "stop", SLOW_S))
        exits = self._each(
            tools, count, lambda tool: {"ms": 1e3 * self._laboratory.exit_s(tool, SLOW_S)}
        )
        rows = [[_named(t), _value(stops[t], "ms"), _value(exits[t], "ms")] for t in tools]
        return Table(
            "Ending",
            ["tool", "stop [ms]", "exit without stopping [ms]"],
            rows,
            "Time to end a measurement of one second, and time from a program's last line to the "
            "end of its process when the program did not stop the measurement.",
        )

    def _means(self) -> Table:
        rows = []
        for tool in self._cpu[SLOW_S]:
            means = [_value(self._cpu[s][tool], "mean_pct") for s in (SLOW_S, FAST_S)]
            rows.append([_named(tool), *means])
        rows.append(["a thread that only wakes up", None, self._floor_pct])
        return Table(
            "CPU while the program sleeps, mean of the whole run",
            ["tool", "10 Hz [% of a core]", "100 Hz [% of a core]"],
            rows,
            "Nothing taken off. Zeus has no sampling interval; Carbontracker sleeps a second in "
            "each reading of a counter, so it reads about once a second whatever it is told.",
        )

    def _without_sensors(self) -> Table:
        def take(task: str, *numbers: float) -> dict[str, Any]:
            return self._each(
                self._peers,
                1,
                lambda tool: self._laboratory.probe(tool, task, *numbers, sensors=False),
                whole=task == "setup",
            )

        # Without sensors some tools start and others fail.
        failures, self._failures = (
            self._failures,
            {t: why for t, why in self._failures.items() if why.startswith("not installed")},
        )
        setup = take("setup", SLOW_S)
        windows = take("windows", SLOW_S, 500)
        cpu = take("sleep", SLOW_S, min(self._seconds, 10.0))
        self._failures = failures
        rows = []
        for tool in self._peers:
            reads = setup[tool][0]["reads"] if isinstance(setup[tool], list) else ""
            figures = [
                _value(setup[tool], "ms"),
                _value(windows[tool], "us"),
                _value(cpu[tool], "mean_pct"),
            ]
            rows.append([tool, *figures, reads])
        return Table(
            "The others on this machine as it is, without sensors",
            ["tool", "set-up [ms]", "window [us]", "CPU at 10 Hz [%]", "said to read"],
            rows,
        )


def _bar(
    name: str, unit: str, limit: float | None, results: dict[str, Any], key: str, note: str
) -> Bar:
    others = {t: _value(r, key) for t, r in results.items() if t not in OWN}
    ours = _value(results[OURS], key)
    assert not isinstance(ours, str), ours
    return Bar(name, ours, unit, limit, others, note=note)


def _cpu_bar(name: str, limit: float, results: dict[str, Any]) -> Bar:
    """Bar of a tool as installed, at the requested rate."""
    figures = _above_idle(results)
    ours = figures[OURS]
    others = {t: v for t, v in figures.items() if t not in (*OWN, "none")}
    assert isinstance(ours, float), ours
    return Bar(name, ours, "% of a core", limit, others, note="the measured process, as installed")


def _above_idle(results: dict[str, Any]) -> dict[str, Baseline]:
    """Return tool -> CPU share above that of the program alone."""
    idle_pct = _median_slice(results["none"])
    assert isinstance(idle_pct, float)
    shares = {tool: _median_slice(found) for tool, found in results.items()}
    return {t: max(0.0, v - idle_pct) if isinstance(v, float) else v for t, v in shares.items()}


def _median_slice(found: Any) -> Baseline:
    if isinstance(found, str):
        return found
    return statistics.median(value for result in found for value in result["slices_pct"])


def _value(found: Any, key: str) -> Any:
    """Return the median of one figure, or the reason why there is none."""
    if isinstance(found, str):
        return found
    return statistics.median(result[key] for result in found)


def _named(tool: str) -> str:
    return "no tool" if tool == "none" else tool


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
