"""Effect of the sampling interval on the result, from 1 ms to 32 s (figure 3.3 of the EA2P thesis).

    python benchmarks/sampling_interval.py [--quick] [--json FILE]

The same window of a known, varying power is measured at each interval: a powercap counter, a GPU
with an energy counter, and a GPU that reports only its power. EA2P's method is measured for
comparison.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from powercap_counters import package_curve
from support.nvml_stub import Call, NoCompiler, StubNvml
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.meter_stream import DomainSource
from wattloop.measure.session import Session
from wattloop.meters.base import Context

HERE = Path(__file__).resolve().parent
WAVE_S = 0.73
"""Not a divisor of any interval: a sampler that falls into step with the load would lie."""
INTERVALS_S = (0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 4.0, 32.0)
QUICK_INTERVALS_S = (0.01, 0.25, 4.0)
COUNTER, GPU_COUNTER, GPU_GAUGE = "cpu:0/package", "gpu:0", "gpu:1"
TITLES = {
    COUNTER: "CPU counter (powercap)",
    GPU_COUNTER: "GPU with an energy counter",
    GPU_GAUGE: "GPU that only tells its power",
}

TEXT = """
One window of {window_s:g} s at each interval over a square wave of {wave_s:g} s (40 and 120 W for
the CPU, 120 and 600 W for the GPUs, which are stubs of NVML with the sensor of an H200: new every
100 ms). Errors are against the exact integral of the power.

EA2P's way is computed on the same signal: counters as the sum of differences from the first to the
last reading, GPU power as the sum of samples times the interval, with one sample before and one
after the loop, and a stop that waits for the sampling thread to wake up. Its readings are taken to
be exact and to cost no time, which flatters it: starting nvidia-smi for each one takes tens of
milliseconds, which its sum does not know of.

What it shows: a counter does not care how often it is read, because windows read it at their own
edges. A gauge does: what happens between two readings is lost, so its error grows with the interval
once that is longer than the load's own rhythm, and so does the uncertainty that is stated with it.
Stopping never waits for the interval. Sensors are not read more often than they change, and
counters not more often than a budget of processor time allows, so a short interval does not cost
more and more.
"""


@dataclass(frozen=True)
class Point:
    """One source at one interval."""

    error_pct: float
    uncertainty_pct: float
    readings: int
    ea2p_error_pct: float


@dataclass(frozen=True)
class Round:
    """One interval."""

    interval_s: float
    points: dict[str, Point]
    cpu_pct: float
    stop_ms: float
    ea2p_stop_ms: float


def main() -> None:
    args = arguments(__doc__.splitlines()[0]).parse_args()
    window_s = 1.5 if args.quick else 10.0
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="wattloop-interval-") as folder:
        root = Path(folder)
        with _counters(root / "sys") as start_s, _gpus(root) as gpus:
            for interval_s in QUICK_INTERVALS_S if args.quick else INTERVALS_S:
                rounds.append(_measured(root, interval_s, window_s, start_s, gpus))
    publish(_page(rounds, window_s), args)


def _measured(
    root: Path, interval_s: float, window_s: float, start_s: float, gpus: StubNvml | None
) -> Round:
    settings = Settings(interval_s=interval_s, store=str(root / "runs.db"))
    session = Session.open(context=Context(Host(sysfs=root / "sys"), settings), keep=False)
    time.sleep(0.1)
    cpu_s = time.process_time()
    window = session.begin("window")
    time.sleep(window_s)
    window.end()
    cpu_s = time.process_time() - cpu_s
    end_s = time.monotonic()
    session.close()
    stop_ms = 1e3 * (time.monotonic() - end_s)
    result = window.result
    points: dict[str, Point] = {}
    for domain in result.domains:
        if domain.name not in TITLES or domain.energy_j is None:
            continue
        power_w, energy_j = _truth(domain.name, start_s, gpus)
        true_j = energy_j(result.begin_s, result.end_s)
        if domain.name == COUNTER:
            ea2p_j = energy_j(result.begin_s, _joined_s(result.begin_s, result.end_s, interval_s))
        else:
            ea2p_j = _ea2p_gpu_j(power_w, result.begin_s, result.end_s, interval_s)
        channel = next(c for c in session.channels if c.domain.name == domain.name)
        inside = [t for t in _times_s(channel) if result.begin_s <= t <= result.end_s]
        points[domain.name] = Point(
            100 * (domain.energy_j / true_j - 1),
            100 * domain.uncertainty_j / true_j,
            len(inside),
            100 * (ea2p_j / true_j - 1),
        )
    joined_s = _joined_s(result.begin_s, result.end_s, interval_s)
    return Round(
        interval_s,
        points,
        100 * cpu_s / window_s,
        stop_ms,
        1e3 * (joined_s - result.end_s),
    )


def _times_s(channel: DomainSource) -> Iterable[float]:
    """Return the moments of the readings that made the curve of a domain."""
    return channel.feed.tracks[channel.index].times_s


def _truth(
    name: str, start_s: float, gpus: StubNvml | None
) -> tuple[Callable[[float], float], Callable[[float, float], float]]:
    """Return power at a moment, and energy between two, on the monotonic clock."""
    if name == COUNTER:
        curve = package_curve(WAVE_S)
        return (
            lambda t_s: curve.power_w(t_s - start_s),
            lambda a_s, b_s: curve.energy_j(b_s - start_s) - curve.energy_j(a_s - start_s),
        )
    assert gpus is not None
    number = int(name.removeprefix("gpu:"))
    return (
        lambda t_s: gpus.true_power_w(number, t_s),
        lambda a_s, b_s: gpus.true_energy_j(number, a_s, b_s),
    )


def _joined_s(begin_s: float, end_s: float, interval_s: float) -> float:
    """Return the time when a thread that sleeps for whole intervals notices its end."""
    sleeps = int((end_s - begin_s) / interval_s) + 1
    return begin_s + sleeps * interval_s


def _ea2p_gpu_j(
    power_w: Callable[[float], float], begin_s: float, end_s: float, interval_s: float
) -> float:
    # EA2P 1.0.1, wrapper.py: one sample before the loop, one per turn, one after it;
    # E = sum(P_i) * interval.
    sleeps = int((end_s - begin_s) / interval_s) + 1
    turns = [begin_s + i * interval_s for i in range(sleeps)]
    moments_s = [begin_s, *turns, begin_s + sleeps * interval_s]
    return sum(power_w(t_s) for t_s in moments_s) * interval_s


@contextlib.contextmanager
def _counters(root: Path) -> Iterator[float]:
    """Run the powercap tree in another process; yield the moment of its curves' 0 s."""
    command = [sys.executable, str(HERE / "powercap_counters.py"), str(root), "3600", str(WAVE_S)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield float(process.stdout.readline().split()[1])
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _gpus(folder: Path) -> Iterator[StubNvml | None]:
    """Return two stub cards, the second without an energy counter; None without a compiler."""
    try:
        stub = StubNvml(folder / "nvml", gpus=2)
    except NoCompiler as reason:
        print(f"no GPUs: {reason}", file=sys.stderr)
        yield None
        return
    with stub:
        stub.inject(1, "unsupported", calls=Call.ENERGY)
        stub.gpu(1).name = b"NVIDIA without counter (stub)"  # models are asked once each
        for gpu in (0, 1):
            stub.square(gpu, 120.0, 600.0, WAVE_S, duty=0.4)
        time.sleep(1.2)  # the sensor's own average has to fill
        yield stub


def _page(rounds: list[Round], window_s: float) -> Page:
    bars = []
    for name, label in ((COUNTER, "counter"), (GPU_COUNTER, "gpu_counter"), (GPU_GAUGE, "gauge")):
        points = [r.points[name] for r in rounds if name in r.points]
        ours = max((abs(p.error_pct) for p in points), default=None)
        theirs = max((abs(p.ea2p_error_pct) for p in points), default=None)
        bars.append(Bar(f"{label}_worst_error_pct", ours, "%", None, {"EA2P's way": theirs}))
    bars.append(Bar("worst_cpu_pct", max(r.cpu_pct for r in rounds), "% of a core"))
    slowest_ms = max(r.ea2p_stop_ms for r in rounds)
    worst_ms = max(r.stop_ms for r in rounds)
    bars.append(Bar("worst_stop_ms", worst_ms, "ms", None, {"EA2P's way": slowest_ms}))
    tables = [_source_table(name, rounds) for name in TITLES]
    cost_rows = [[_shown_s(r.interval_s), r.cpu_pct, r.stop_ms, r.ea2p_stop_ms] for r in rounds]
    tables.append(
        Table(
            "Cost",
            ["interval", "CPU, all sources [% of a core]", "stop [ms]", "EA2P's way: stop [ms]"],
            cost_rows,
        )
    )
    text = TEXT.format(window_s=window_s, wave_s=WAVE_S)
    return Page("sampling_interval", "The effect of the sampling interval", bars, tables, text=text)


def _source_table(name: str, rounds: list[Round]) -> Table:
    rows: list[list[object]] = []
    for r in rounds:
        point = r.points.get(name)
        if point is None:
            rows.append([_shown_s(r.interval_s), "not measured", "", "", ""])
            continue
        figures = [f"{point.error_pct:+.2f}", f"{point.uncertainty_pct:.2f}", point.readings]
        rows.append([_shown_s(r.interval_s), *figures, f"{point.ea2p_error_pct:+.2f}"])
    header = ["interval", "error [%]", "stated uncertainty [±%]", "points in the window"]
    return Table(TITLES[name], [*header, "EA2P's way: error [%]"], rows)


def _shown_s(interval_s: float) -> str:
    return f"{1e3 * interval_s:g} ms" if interval_s < 1 else f"{interval_s:g} s"


if __name__ == "__main__":
    main()
