"""Results as tables: what was found, the frameworks side by side (thesis, 3.17), speed-ups
(3.15, 3.16), idle by threads (3.14).
"""

from collections.abc import Sequence

from wattloop.accounting.energy_delay import swap
from wattloop.bench.idle import IdleByThreads
from wattloop.bench.result import KernelResult
from wattloop.bench.roofline import roofline
from wattloop.bench.speedups import Speedup, speedups
from wattloop.core.table import UNKNOWN, Table
from wattloop.core.units import format_duration, format_number
from wattloop.store.formats.table_files import ExportTable

SPARE = ("how", "of roof", "EDP J s", "FLOP/B", "size", "against", "less RAM J")
"""Columns that a narrow terminal loses first."""
COUNTED = ("IPC", "memory MB", "memory GB/s")
"""Columns of what hardware counted."""


def kernels_table(results: Sequence[KernelResult]) -> Table:
    """Everything about each kernel, per run; energy of the scope at work."""
    _, points = roofline(results)
    rows = []
    for point in points:
        r = point.result
        rows.append(
            (
                r.kernel,
                str(r.size),
                r.backend,
                r.style,
                str(r.threads) if r.scope == "cpu" else UNKNOWN,
                _time(r),
                _number(r.gflops),
                _number(r.burst_gflops),
                _number(r.gb_s),
                _number(r.power_w()),
                UNKNOWN if r.clock_mhz is None else f"{r.clock_mhz:.0f}",
                _joules(r.energy_j()),
                _joules(r.application_j()),
                _joules(r.edp_js()),
                _number(r.intensity),
                _number(r.ipc),
                _number(None if r.memory_b is None else r.memory_b / 1e6),
                _number(None if not r.memory_b or not r.time_s else r.memory_b / r.time_s / 1e9),
                UNKNOWN if point.share is None else f"{100 * point.share:.0f}%",
                _provenance(r),
            )
        )
    scope = points[0].result.scope if points else "cpu"
    dtype = points[0].result.dtype if points else ""
    headers = (
        "kernel", "size", "backend", "style", "thr", "time", "GFLOPS", "burst", "GB/s",
        f"{scope} W", "MHz", f"{scope} J", "J app", "EDP J s", "FLOP/B", *COUNTED, "of roof", "how",
    )  # fmt: skip
    unknown = [
        name
        for name, value in (("IPC", "ipc"), (COUNTED[1], "memory_b"), (COUNTED[2], "memory_b"))
        if all(getattr(p.result, value) is None for p in points)
    ]
    device = points[0].result.device_name if points else ""
    where = f"{points[0].result.device} {device}".strip() if points else ""
    table = Table.of(headers, rows, f"Per run, {dtype} on {where}", spare=SPARE)
    return table.without(*unknown, *(() if scope == "gpu" else ("burst", "MHz")))


def frameworks_table(results: Sequence[KernelResult], space: float | None = None) -> Table:
    """Table 3.17 of the thesis: time, energy and power of GPU and host, by framework.

    With the `space` of the machine in rack units or square metres also its SWaP (eq. 2.3).

    The thesis gives whole programs; these are per run, so that frameworks with different numbers
    of runs can be compared.
    """
    rows = [
        (
            r.backend,
            r.kernel,
            r.style if r.scope == "gpu" else f"{r.style} {r.threads}",
            _time(r),
            _joules(r.energy_j("gpu")),
            _joules(r.energy_j("cpu")),
            _number(r.power_w("gpu")),
            _number(r.power_w("cpu")),
            _number(r.gflops),
            _number(r.gb_s),
            _number(r.gflops_per_w()),
            _swap(r, space),
        )
        for r in sorted(results, key=lambda r: (r.backend, r.style, r.threads))
        if r.ok
    ]
    headers = (
        "framework", "bench", "style", "time", "GPU J", "CPU J", "GPU W", "CPU W", "GFLOPS",
        "GB/s", "GFLOPS/W", "SWaP",
    )  # fmt: skip
    table = Table.of(headers, rows, "Frameworks side by side, per run (thesis, table 3.17)")
    return table if space else table.without("SWaP")


def _swap(result: KernelResult, space: float | None) -> str:
    power_w = result.power_w()
    if not space or not result.gflops or not power_w:
        return UNKNOWN
    return _number(swap(result.gflops, power_w, space))


def csv_table(results: Sequence[KernelResult]) -> ExportTable:
    """One row per result with plain numbers, SI units, for spreadsheets."""
    facts = (
        "kernel", "size", "dtype", "backend", "style", "threads", "device", "device_name", "status",
        "reason", "runs", "duration_s", "time_s", "time_low_s", "time_high_s", "flops",
        "bytes_moved", "intensity", "gflops", "gb_s", "burst_time_s", "burst_gflops",
        "clock_mhz", "ipc", "memory_b",
        "peak_memory_b", "version",
    )  # fmt: skip
    of_scope = ("energy_j", "application_j", "power_w", "edp_js", "gflops_per_w")
    scopes = ("gpu", "cpu", "dram", "node")
    columns = [*facts, *(f"{s}_{name}" for s in scopes for name in (*of_scope, "provenance"))]
    rows = []
    for result in results:
        row = [getattr(result, name) for name in facts]
        for scope in scopes:
            part = result.scopes.get(scope)
            row += [getattr(result, name)(scope) for name in of_scope]
            row.append(None if part is None else part.provenance)
        rows.append(tuple(row))
    texts = {"kernel", "dtype", "backend", "style", "device", "device_name", "status", "reason"}
    kinds: dict[str, type] = {
        name: str if name in texts or "provenance" in name else float for name in columns
    }
    return ExportTable(columns=kinds, rows=iter(rows))


def speedups_table(results: Sequence[KernelResult]) -> Table:
    """Tables 3.15 and 3.16 of the thesis."""
    rows = [
        (
            s.result.kernel,
            s.result.backend,
            s.result.style,
            str(s.result.threads),
            _time(s.result),
            f"x{s.time:.2f}",
            _factor(s.energy),
            _factor(s.application),
            _factor(s.dram),
            _against(s),
        )
        for s in speedups(results)
    ]
    headers = ("kernel", "backend", "style", "thr", "time", "faster", "less J", "less J app",
               "less RAM J", "against")  # fmt: skip
    title = "Speed-ups in time and energy (thesis, tables 3.15 and 3.16)"
    return Table.of(headers, rows, title, spare=SPARE)


def idle_table(rows: Sequence[IdleByThreads]) -> Table:
    """Table 3.14 of the thesis."""
    return Table.of(
        ("sleep s", "threads", "domain", "J", "W", "how"),
        [
            (f"{r.sleep_s:g}", str(r.threads), r.domain, _number(r.energy_j), _number(r.power_w),
             r.provenance)
            for r in sorted(rows, key=lambda r: (r.domain, r.sleep_s, r.threads))
        ],
        "Idle by sleeping threads (thesis, tables 3.13 and 3.14)",
        spare=SPARE,
    )  # fmt: skip


def _against(speedup: Speedup) -> str:
    if speedup.result is speedup.reference:
        return "itself"
    return f"{speedup.reference.style}, {speedup.reference.threads} thread"


def _time(result: KernelResult) -> str:
    """Median, and half the width of its interval where that matters."""
    if result.time_s is None:
        return UNKNOWN
    text = format_duration(result.time_s)
    if result.time_low_s is None or result.time_high_s is None:
        return text
    spread = (result.time_high_s - result.time_low_s) / 2 / result.time_s
    return f"{text} ±{100 * spread:.0f}%" if spread >= 0.01 else text


def _provenance(result: KernelResult) -> str:
    part = result.scopes.get(result.scope)
    return UNKNOWN if part is None else part.provenance


def _factor(value: float | None) -> str:
    return UNKNOWN if value is None else f"x{value:.2f}"


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _joules(value: float | None) -> str:
    return UNKNOWN if value is None else format_number(value, 3)
