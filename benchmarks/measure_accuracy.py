"""Accuracy of the joules, and coverage of the stated uncertainty.

A powercap tree of files and stub GPUs follow power curves whose energy is known exactly: steps,
ramps, spikes, a 10 Hz square wave, a sine. Counters wrap every few seconds and 3% of all reads
fail. 1,000 windows of 2 to 12 s begin at random moments, many of them at once. Next to Wattloop's
result stand two other ways to compute energy from the same sensors:

- EA2P's: poll every interval; sum power x nominal interval for GPUs, last minus first reading
  of the counter for CPUs;
- CodeCarbon's: the counter at the end minus the counter at the beginning (its background
  reading comes every 15 s, so a window of up to 12 s sees none).
"""

import heapq
import itertools
import multiprocessing
import os
import random
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from support.nvml_stub import Call, StubNvml
from support.power_curves import PowerCurve, Ramp, SineWave, Spikes, SquareWave, Steps
from support.powercap_driver import Driver
from support.powercap_tree import PowercapTree, Writing
from wattloop.core.records import Gap
from wattloop.core.results import DomainEnergy
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.session import Session
from wattloop.meters.base import Context
from wattloop.meters.registry import detect

LOST_SHARE = 0.03
WRAP_J = 600.0
INTERVAL_S = 0.1


@dataclass
class Outcome:
    """Errors of one method, in percent of the true energy."""

    errors_pct: list[float] = field(default_factory=list)
    widths_pct: list[float] = field(default_factory=list)
    covered: int = 0

    def add(self, energy_j: float, true_j: float, uncertainty_j: float = 0.0) -> None:
        self.errors_pct.append(100 * abs(energy_j - true_j) / true_j)
        self.widths_pct.append(100 * 2 * uncertainty_j / true_j)
        self.covered += abs(energy_j - true_j) <= uncertainty_j

    @property
    def mean_pct(self) -> float:
        return statistics.fmean(self.errors_pct)

    @property
    def coverage_pct(self) -> float:
        return 100 * self.covered / len(self.errors_pct)

    def percentile(self, share: float) -> float:
        return sorted(self.errors_pct)[int(share * (len(self.errors_pct) - 1))]


def cpu_curves(rng: random.Random) -> dict[str, PowerCurve]:
    levels = tuple((rng.uniform(0.2, 2.0), rng.uniform(40, 220)) for _ in range(200))
    return {
        "steps": Steps(levels),
        "ramp": Ramp(50.0, 200.0, 5.0),
        "spikes": Spikes(60.0, 300.0, 0.9, 0.02),
        "square 10 Hz": SquareWave(60.0, 220.0, 0.1),
        "sine": SineWave(130.0, 80.0, 0.77),
    }


def drive_tree(root: Path, curves: dict[str, PowerCurve], ready: object, stop: object) -> None:
    """Run the tree's counters in a process of its own."""
    driver, _ = make_driver(root, curves)
    with driver:
        ready.put(driver.start_s)  # type: ignore[attr-defined]  # a multiprocessing queue
        stop.wait()  # type: ignore[attr-defined]  # a multiprocessing event


def make_driver(root: Path, curves: dict[str, PowerCurve]) -> tuple[Driver, list[str]]:
    tree = PowercapTree(root)
    zones = {
        tree.add_package(i, range_uj=int(WRAP_J * 1e6)): curve
        for i, curve in enumerate(curves.values())
    }
    driver = Driver(zones, writing=Writing.IN_PLACE, lost_share=LOST_SHARE, seed=7)
    return driver, list(curves)


GPU_KINDS = ("steps", "ramp", "spikes", "square 10 Hz", "constant", "gauge only: steps")


class GpuDriver(threading.Thread):
    """A driver that gives the stub GPUs their waves and renews those that end."""

    def __init__(self, stub: StubNvml, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.stub = stub
        self.rng = rng
        self.ended = threading.Event()
        stub.spikes(2, 120.0, 600.0, 0.9, 0.02)
        stub.square(3, 150.0, 500.0, 0.1)
        stub.constant(4, 300.0)
        for index in range(len(GPU_KINDS)):
            stub.inject(index, "unknown_error", probability=LOST_SHARE)

    def run(self) -> None:
        rising = True
        next_ramp_s = 0.0
        while not self.ended.wait(self.rng.uniform(0.3, 1.5)):
            self.stub.constant(0, self.rng.uniform(100, 600))
            self.stub.constant(5, self.rng.uniform(100, 600))
            if time.monotonic() >= next_ramp_s:
                low_w, high_w = (100.0, 600.0) if rising else (600.0, 100.0)
                self.stub.ramp(1, low_w, high_w, 5.0)
                rising = not rising
                next_ramp_s = time.monotonic() + 5.0


class OtherWays(threading.Thread):
    """A reader of the same sensors by the methods of EA2P and CodeCarbon, with handles of its
    own.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(daemon=True)
        import pynvml

        self.nvml = pynvml
        self.cpu = next(m for m in detect(context).meters if m.name == "rapl")
        pynvml.nvmlInit()
        self.gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(len(GPU_KINDS))]
        self.lock = threading.Lock()
        self.polls: list[tuple[float, list[float | Gap], list[float | None]]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(INTERVAL_S):
            with self.lock:
                joules = list(self.cpu.read())
            watts = [self._watts(handle) for handle in self.gpus]
            self.polls.append((time.monotonic(), joules, watts))

    def counters(self) -> tuple[list[float | Gap], list[float | None]]:
        """Read as CodeCarbon does when a window begins or ends."""
        with self.lock:
            joules = list(self.cpu.read())
        return joules, [self._joules(handle) for handle in self.gpus]

    def ea2p_cpu_j(self, index: int, begin_s: float, end_s: float) -> float | None:
        inside = [p[1][index] for p in self.polls if begin_s <= p[0] <= end_s]
        readings = [r for r in inside if not isinstance(r, Gap)]
        if len(readings) < 2:
            return None
        steps = itertools.pairwise(readings)
        return sum(b - a if b >= a else b - a + WRAP_J for a, b in steps)

    def ea2p_gpu_j(self, index: int, begin_s: float, end_s: float) -> float:
        inside = [p[2][index] for p in self.polls if begin_s <= p[0] <= end_s]
        return sum(w * INTERVAL_S for w in inside if w is not None)

    def _watts(self, handle: object) -> float | None:
        try:
            return float(self.nvml.nvmlDeviceGetPowerUsage(handle)) / 1_000
        except self.nvml.NVMLError:
            return None

    def _joules(self, handle: object) -> float | None:
        try:
            return float(self.nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1_000
        except self.nvml.NVMLError:
            return None


def codecarbon_cpu_j(begin: float | Gap, end: float | Gap) -> float:
    if isinstance(begin, Gap) or isinstance(end, Gap):
        return 0.0  # a failed read contributes nothing
    return end - begin if end >= begin else end - begin + WRAP_J


def codecarbon_gpu_j(begin: float | None, end: float | None) -> float:
    return 0.0 if begin is None or end is None else end - begin


def measure(windows: int, span_s: float, seed: int) -> dict[str, dict[str, Outcome]]:
    """Return outcomes by signal and method."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "sys"
        curves = cpu_curves(random.Random(seed))
        spawn = multiprocessing.get_context("spawn")
        ready, stop = spawn.Queue(), spawn.Event()
        driver = spawn.Process(target=drive_tree, args=(root, curves, ready, stop), daemon=True)
        driver.start()
        start_s = ready.get(timeout=30)
        try:
            with StubNvml(Path(folder), gpus=len(GPU_KINDS)) as stub:
                stub.inject(5, "unsupported", calls=Call.ENERGY)
                return run_windows(root, curves, start_s, stub, rng, windows, span_s)
        finally:
            stop.set()
            driver.join(5)


def run_windows(
    root: Path,
    curves: dict[str, PowerCurve],
    start_s: float,
    stub: StubNvml,
    rng: random.Random,
    windows: int,
    span_s: float,
) -> dict[str, dict[str, Outcome]]:
    gpu_driver = GpuDriver(stub, rng)
    gpu_driver.start()
    settings = Settings(meters=("rapl", "nvidia"), interval_s=INTERVAL_S)
    context = Context(Host(sysfs=root), settings)
    others = OtherWays(context)
    others.start()
    session = Session.open(context=context, name="accuracy", keep=False, in_process=False)
    time.sleep(2.0)
    done = open_and_close(session, others, rng, windows, span_s)
    time.sleep(1.0)
    results = [(w.result, begin, end) for w, begin, end in done]
    session.close()
    gpu_driver.ended.set()
    others.ended.set()
    time.sleep(2 * INTERVAL_S)
    outcomes: dict[str, dict[str, Outcome]] = {}
    names = list(curves)
    for result, begin, end in results:
        for energy in result.domains:
            index = int(energy.name.split(":")[1].split("/")[0])
            if energy.name.startswith("cpu"):
                curve = curves[names[index]]
                true_j = curve.energy_j(result.end_s - start_s) - curve.energy_j(
                    result.begin_s - start_s
                )
                row = outcomes.setdefault(f"CPU {names[index]}", new_row())
                ea2p_j = others.ea2p_cpu_j(index, result.begin_s, result.end_s)
                codecarbon_j = codecarbon_cpu_j(begin[0][index], end[0][index])
            else:
                true_j = stub.true_energy_j(index, result.begin_s, result.end_s)
                row = outcomes.setdefault(f"GPU {GPU_KINDS[index]}", new_row())
                ea2p_j = others.ea2p_gpu_j(index, result.begin_s, result.end_s)
                codecarbon_j = codecarbon_gpu_j(begin[1][index], end[1][index])
            add(row, energy, true_j, ea2p_j, codecarbon_j)
    return outcomes


def new_row() -> dict[str, Outcome]:
    return {"wattloop": Outcome(), "EA2P": Outcome(), "CodeCarbon": Outcome()}


def add(
    row: dict[str, Outcome],
    energy: DomainEnergy,
    true_j: float,
    ea2p_j: float | None,
    codecarbon_j: float,
) -> None:
    # A missing result counts as an error of 100%.
    row["wattloop"].add(energy.energy_j or 0.0, true_j, energy.uncertainty_j)
    row["EA2P"].add(ea2p_j or 0.0, true_j)
    row["CodeCarbon"].add(codecarbon_j, true_j)


def open_and_close(
    session: Session, others: OtherWays, rng: random.Random, windows: int, span_s: float
) -> list[tuple]:
    """Begin and end windows at random moments of the next `span_s` seconds."""
    base_s = time.monotonic()
    events = []
    for number in range(windows):
        begin_s = base_s + rng.uniform(0, span_s)
        heapq.heappush(events, (begin_s, number, None))
    open_windows: dict[int, tuple] = {}
    done = []
    while events:
        at_s, number, kind = heapq.heappop(events)
        wait_s = at_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        if kind is None:
            before = others.counters()
            open_windows[number] = (session.begin(f"w{number}"), before)
            heapq.heappush(events, (time.monotonic() + rng.uniform(2, 12), number, "end"))
        else:
            window, before = open_windows.pop(number)
            window.end()
            done.append((window, before, others.counters()))
    return done


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=1_000)
    parser.add_argument("--span", type=float, default=120.0, help="seconds in which they begin")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.quick:
        options.windows, options.span = 40, 5.0
    os.environ.pop("WATTLOOP_JOB", None)
    outcomes = measure(options.windows, options.span, options.seed)
    barred = {n: r for n, r in outcomes.items() if "gauge only" not in n}
    ours = merged(barred, "wattloop")
    others = {f"{way}'s way": merged(barred, way).mean_pct for way in ("EA2P", "CodeCarbon")}
    bars = [
        Bar("energy_error_pct", ours.mean_pct, "%", 0.5, others, note="mean over all windows"),
        Bar("coverage_pct", ours.coverage_pct, "%", 95, at_least=True),
        Bar(
            "interval_width_pct",
            statistics.median(ours.widths_pct),
            "%",
            3,
            note="median full width of the stated interval",
        ),
    ]
    title = f"By signal: {options.windows} windows of 2 to 12 s"
    table = Table(title, HEADER, [row_of(name, row) for name, row in outcomes.items()])
    page = Page("measure_accuracy", "Accuracy against known power", bars, [table], __doc__)
    publish(page, options)


HEADER = (
    "signal",
    "mean error %",
    "95th percentile %",
    "truth inside the interval %",
    "full width % (median)",
    "EA2P's way: mean error %",
    "CodeCarbon's way: mean error %",
)


def row_of(name: str, row: dict[str, Outcome]) -> list[object]:
    ours = row["wattloop"]
    return [
        name,
        ours.mean_pct,
        ours.percentile(0.95),
        ours.coverage_pct,
        statistics.median(ours.widths_pct),
        row["EA2P"].mean_pct,
        row["CodeCarbon"].mean_pct,
    ]


def merged(outcomes: dict[str, dict[str, Outcome]], way: str) -> Outcome:
    total = Outcome()
    for row in outcomes.values():
        total.errors_pct += row[way].errors_pct
        total.widths_pct += row[way].widths_pct
        total.covered += row[way].covered
    return total


if __name__ == "__main__":
    main()
