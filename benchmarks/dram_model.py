"""Comparison of the model of memory power with RAPL's DRAM domain, over memory footprints.

    python benchmarks/dram_model.py [--seconds S] [--quick] [--json FILE]

Figure 4.1 of the thesis. Needs a processor whose powercap tree has a DRAM domain and memory modules
that can be listed (docs/meters/dram.md); elsewhere it names the missing part and ends.
"""

import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bars import Bar, Page, Table, arguments, publish
from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap, Scope
from wattloop.core.settings import load_settings
from wattloop.core.units import wh_from_joules
from wattloop.hardware.host import Host
from wattloop.meters import dram, rapl
from wattloop.meters.base import Context, Meter

FOOTPRINTS_GIB = (4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 450)
"""Those of figure 4.1 and between them, as far as they fit."""
QUICK_GIB = (1 / 64, 1 / 16)
LEAVE = 0.15
"""Of the memory that is free, for everything else."""
SAMPLE_S = 0.05
BLOCK = 2**22
"""Numbers touched at a time: 32 MiB, more than any cache keeps."""

TEXT = """
An array of each size is filled, then read and written over and over for {seconds:g} s. RAPL's DRAM
domains ({domains}) are read before and after; the model ({model}) is sampled every {sample:g} ms
and summed (equations 4.1 and 4.2). The thesis shows both curves on one another from 4 to 450 GB on
a Xeon E5-2698 v4 with 512 GB (figure 4.1), and gives no numbers; the model sees how much memory is
in use, not how much traffic there is.
"""


class Point(NamedTuple):
    """Measurements at one footprint."""

    footprint_gib: float
    seconds: float
    model_j: float
    rapl_j: float


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each footprint")
    args = parser.parse_args()
    if args.quick:
        args.seconds = min(args.seconds, 0.4)
    host = Host.from_environment()
    context = Context(host=host, settings=load_settings())
    try:
        counters, model = meters(context)
    except MeterUnavailable as missing:
        args.quick = True  # no results for a page
        bar = Bar("dram_model_error", None, "%", note=str(missing))
        print(f"skipped: {missing}", file=sys.stderr)
        publish(Page("dram_model", "Skipped: no DRAM domain to compare with", [bar]), args)
        return 0
    free_gib = available_gib(host)
    wanted = QUICK_GIB if args.quick else FOOTPRINTS_GIB
    sizes = [gib for gib in wanted if gib <= (1 - LEAVE) * free_gib]
    points = []
    for gib in sizes:
        print(f"{gib:g} GiB ...", file=sys.stderr)
        points.append(measured(gib, args.seconds, counters, model))
    publish(page(points, counters, model, args.seconds), args)
    return 0


def meters(context: Context) -> tuple["DramCounters", dram.Dram]:
    """Open RAPL's DRAM domains and the model.

    Raises:
        MeterUnavailable: one of them is missing, with the reason.
    """
    (found,) = rapl.detect(context)
    counters = DramCounters(found)
    if not counters.names:
        raise MeterUnavailable(
            "rapl", "this processor's powercap tree has no DRAM domain, or it may not be read"
        )
    (model,) = dram.detect_second_source(context)
    return counters, model


class DramCounters:
    """The DRAM domains of all sockets together."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        domains = enumerate(meter.domains)
        self._which = [(i, d) for i, d in domains if d.scope is Scope.DRAM]
        self.names = [domain.name for _, domain in self._which]

    def read(self) -> list[float | Gap]:
        """Return the joules of each counter."""
        readings = self._meter.read()
        return [readings[i] for i, _ in self._which]

    def gained_j(self, before: Sequence[float | Gap], after: Sequence[float | Gap]) -> float:
        """Return the joules between two readings that are less than a wrap apart."""
        total = 0.0
        for (_, domain), first, last in zip(self._which, before, after, strict=True):
            if isinstance(first, Gap) or isinstance(last, Gap):
                raise SystemExit(f"{domain.name} could not be read: {first} {last}")
            wrapped = domain.wrap_j if last < first and domain.wrap_j else 0.0
            total += last - first + wrapped
        return total


def measured(
    footprint_gib: float, seconds: float, counters: DramCounters, model: dram.Dram
) -> Point:
    """Measure one footprint, filled and then streamed through."""
    numbers = np.ones(max(1, int(footprint_gib * 2**30 / 8)))
    watts: list[float] = []
    ended = threading.Event()

    def sample() -> None:
        while True:
            (reading,) = model.read()
            if not isinstance(reading, Gap):
                watts.append(reading)
            if ended.wait(SAMPLE_S):
                return

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    before, begin_s = counters.read(), time.monotonic()
    while time.monotonic() - begin_s < seconds:
        for start in range(0, len(numbers), BLOCK):
            numbers[start : start + BLOCK] *= 1.000001
            if time.monotonic() - begin_s >= seconds:
                break
    after, end_s = counters.read(), time.monotonic()
    ended.set()
    sampler.join()
    took_s = end_s - begin_s
    return Point(
        footprint_gib, took_s, float(np.mean(watts)) * took_s, counters.gained_j(before, after)
    )


def page(points: Sequence[Point], counters: DramCounters, model: dram.Dram, seconds: float) -> Page:
    error = [100 * (point.model_j / point.rapl_j - 1) for point in points if point.rapl_j > 0]
    rows = [
        (
            f"{point.footprint_gib:g} GiB",
            f"{wh_from_joules(point.model_j):.4f}",
            f"{wh_from_joules(point.rapl_j):.4f}",
            f"{point.model_j / point.seconds:.1f}",
            f"{point.rapl_j / point.seconds:.1f}",
            f"{100 * (point.model_j / point.rapl_j - 1):+.0f}%" if point.rapl_j > 0 else "-",
        )
        for point in points
    ]
    return Page(
        "dram_model",
        "The memory's power: model and RAPL",
        [
            Bar("dram_model_error", float(np.mean(np.abs(error))) if error else None, "%"),
            Bar("dram_model_bias", float(np.mean(error)) if error else None, "%"),
        ],
        [
            Table(
                "Figure 4.1 here",
                ("footprint", "model (Wh)", "RAPL (Wh)", "model (W)", "RAPL (W)", "error"),
                rows,
            ),
            Table(
                "Expected on the thesis's Intel-2 (16 x 32 GiB)",
                ("footprint", "model (W)", "RAPL as printed (W)"),
                expected(),
            ),
        ],
        TEXT.format(
            seconds=seconds,
            domains=", ".join(counters.names),
            model=model.domains[0].source,
            sample=1e3 * SAMPLE_S,
        ),
        packages=("wattloop", "numpy"),
        details={"points": [point._asdict() for point in points]},
    )


def expected() -> list[tuple[str, str, str]]:
    """Return the model's power on the machine of figure 4.1, and RAPL's from its tables."""
    modules = [dram.Dimm(32.0)] * 16
    known = {4: "25.4 idle, 39.6 training on the CPU (table 3.3)"}
    return [
        (
            f"{gib} GiB",
            f"{dram.dram_power_w(modules, gib / 512):.0f}",
            known.get(gib, "on the model's curve"),
        )
        for gib in FOOTPRINTS_GIB
    ]


def available_gib(host: Host) -> float:
    """Return the memory that may be used."""
    for line in (host.read_text("proc", "meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) / 2**20
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
