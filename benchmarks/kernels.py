"""The six kernels on a real GPU: `wattloop bench` against plain torch, and table 3.17.

    python benchmarks/kernels.py [--json FILE]
    python benchmarks/kernels.py --from-json GPU.json CPU.json

It only reads: no power limit, clock or mode is ever set. About four minutes on a GPU. Without one
it runs the CPU table, and says that the bars, which are about a GPU, were not run. The `--json`
file of one machine becomes the page on another with `--from-json`; of several files, each adds its
tables.

1. gemm in bf16 and triad in fp32, by plain torch (a few lines below), by Wattloop, and by plain
   torch again: the better of the two is the baseline. A big GEMM draws more than a card may: it is
   fastest in a burst of some 30 ms, before the power limit takes hold, and slower from then on.
   Both are reported; the bar is about the burst, which short benchmarks measure.
2. All kernels on torch, jax and cupy in fp32, as in the thesis, with joules of GPU and host.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bars import Bar, Page, Table, arguments, machine, publish
from wattloop.bench.idle import idle_line
from wattloop.bench.plan import BenchRequest, make_plan
from wattloop.bench.record import BenchRecord
from wattloop.bench.result import KernelResult
from wattloop.bench.roofline import peaks_of
from wattloop.bench.runner import KernelBench
from wattloop.bench.tables import frameworks_table, kernels_table, speedups_table
from wattloop.core.errors import ConfigError
from wattloop.core.settings import settings_from
from wattloop.hardware.host import Host
from wattloop.kernels.device import gpu_count
from wattloop.measure.session import Session

GEMM_BAR_TFLOPS, TRIAD_BAR_TB_S, RATIO_BAR = 700.0, 4.0, 0.9
GEMM_SIZES = (8_192, 16_384)
TRIAD_SIZES = (2**29, 2**30)
PLAIN_NAMES = ("gemm_bf16_tflops", "gemm_bf16_sustained_tflops", "triad_tb_s")
NOT_RUN = "not run: no GPU on this machine"


def main() -> int:
    chosen = parsed()
    if chosen.plain:
        print(json.dumps(plain_torch(chosen.seconds)))
        return 0
    if chosen.from_json:
        publish(page_of([json.loads(Path(f).read_text()) for f in chosen.from_json]), chosen)
        return 0
    on_gpu = bool(gpu_count(Host.from_environment()))
    found = gpu_findings(chosen) if on_gpu else cpu_findings(chosen)
    publish(page_of([found]), chosen)
    return 0


def parsed() -> argparse.Namespace:
    parser = arguments("the six kernels: bars on a GPU, and the thesis's table of frameworks")
    parser.add_argument("--from-json", nargs="+", metavar="FILE", help="make the page from these")
    parser.add_argument("--seconds", type=float, help="measured per kernel")
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.seconds = chosen.seconds or (0.5 if chosen.quick else 2.0)
    return chosen


# -- measuring -----------------------------------------------------------------------------


def gpu_findings(chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure everything, as data for the page here or elsewhere."""
    gemms = ",".join(f"gemm={n}" for n in GEMM_SIZES[: 1 if chosen.quick else None])
    triads = ",".join(f"triad={n}" for n in TRIAD_SIZES[: 1 if chosen.quick else None])
    plain = [_plain_in_a_process(chosen.seconds)]
    records = [
        bench_record(
            kernels="gemm", sizes=gemms, backends="torch,jax", dtype="bf16", chosen=chosen
        ),
        bench_record(kernels="triad", sizes=triads, backends="torch,jax,cupy", chosen=chosen),
    ]
    plain.append(_plain_in_a_process(chosen.seconds))
    records.append(bench_record(backends="torch,jax,cupy", chosen=chosen))
    return _findings(records, plain)


def cpu_findings(chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure the CPU's table."""
    print("kernels: no GPU here; the bars are not run, the CPU's table is", file=sys.stderr)
    quick = {"kernels": "gemm,triad", "backends": "numpy"} if chosen.quick else {}
    return _findings([bench_record(chosen=chosen, device="cpu", **quick)], [])


def bench_record(*, chosen: argparse.Namespace, device: str = "gpu", **words: str) -> BenchRecord:
    """Run `wattloop bench` without its output."""
    settings = settings_from(os.environ)
    seconds = chosen.seconds if device == "gpu" else min(chosen.seconds, 1.0)
    choice = BenchRequest.of(device=device, seconds=seconds, **words)
    session = Session.open(settings, name="bench", in_process=False, keep=False)
    try:
        plan = make_plan(choice, session.host)
        idle = idle_line(session, "auto", choice.device.kind, lambda: None)
        bench = KernelBench(plan, session, idle, _progress)
        bench.run()
        missing = [{"name": m.name, "reason": m.reason} for m in session.missing]
    finally:
        session.close()
    left_out = [{"what": o.what, "reason": o.reason} for o in plan.left_out]
    return BenchRecord(
        results=bench.results, left_out=left_out, idle=idle.to_dict(), missing=missing,
        warnings=idle.warnings,
    )  # fmt: skip


def plain_torch(seconds: float) -> dict[str, float]:
    """Measure the baseline of a short user script, in a burst and sustained."""
    import torch

    def burst(run: Callable[[], Any], amount: float) -> float:
        rates = []
        for _ in range(3):
            torch.cuda.synchronize()
            time.sleep(0.7)
            run()
            torch.cuda.synchronize()
            begin_s = time.monotonic()
            for _ in range(20):
                run()
            torch.cuda.synchronize()
            rates.append(amount * 20 / (time.monotonic() - begin_s) / 1e12)
        return statistics.median(rates)

    def lasting(run: Callable[[], Any], amount: float) -> float:
        begin_s, runs = time.monotonic(), 0
        while (spent_s := time.monotonic() - begin_s) < 0.5 + seconds:
            if spent_s < 0.5:  # warming up
                start_s, runs = time.monotonic(), 0
            for _ in range(20):
                run()
            torch.cuda.synchronize()
            runs += 20
        return amount * runs / (time.monotonic() - start_s) / 1e12

    found: dict[str, float] = dict.fromkeys(PLAIN_NAMES, 0.0)

    def keep(name: str, rate: float) -> None:
        found[name] = max(found[name], rate)

    for n in GEMM_SIZES:
        a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
        b, c = torch.randn_like(a), torch.empty_like(a)
        run = partial(torch.matmul, a, b, out=c)
        keep("gemm_bf16_tflops", burst(run, 2 * n**3))
        keep("gemm_bf16_sustained_tflops", lasting(run, 2 * n**3))
    for n in TRIAD_SIZES:
        a = torch.randn(n, device="cuda")
        b, c = torch.randn_like(a), torch.empty_like(a)
        keep("triad_tb_s", lasting(partial(torch.add, a, b, alpha=0.75, out=c), 12 * n))
    return found


def _plain_in_a_process(seconds: float) -> dict[str, float]:
    """Measure in a process of its own, as for kernels, so that its memory is free afterwards."""
    command = [sys.executable, __file__, "--plain", "--seconds", str(seconds)]
    print("kernels: plain torch", file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"kernels: plain torch failed: {done.stderr.strip()[-500:]}")
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def _findings(
    records: Sequence[BenchRecord], plain: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    return {
        "machine": machine(),
        "made": f"{datetime.now(UTC):%Y-%m-%d}",
        "plain_torch": list(plain),
        "records": [record.to_dict() for record in records],
    }


def _progress(text: str, result: KernelResult | None) -> None:
    if result is not None:
        rate = f"{result.gflops:,.1f} GFLOPS" if result.gflops else result.reason
        print(f"kernels: {result.key}: {rate}", file=sys.stderr)


# -- the page ------------------------------------------------------------------------------


def page_of(findings: Sequence[Mapping[str, Any]]) -> Page:
    """Make the page from the results of one or several machines."""
    groups = [(f, [BenchRecord.from_dict(r) for r in f["records"]]) for f in findings]
    results = [r for _, records in groups for record in records for r in record.results]
    if not results:
        raise ConfigError("kernels: these files hold no result")
    plain = [rates for found in findings for rates in found["plain_torch"]]
    versions: dict[str, str] = {}
    for name in dict.fromkeys(r.backend for r in results):
        found = dict.fromkeys(r.version for r in results if r.backend == name and r.version)
        versions[name] = " and ".join(found)
    gpus = dict.fromkeys(r.device_name for r in results if r.device_name)
    machines = "; ".join(dict.fromkeys(str(f["machine"]) for f in findings))
    details: dict[str, Any] = dict(findings[0]) if len(findings) == 1 else {}
    return Page(
        name="kernels",
        title="Six kernels: GFLOPS, GB/s and joules, framework by framework",
        bars=bars_of(results, plain),
        tables=[table for _, records in groups for table in tables_of(records)],
        text=text_of(results, plain, list(gpus)),
        versions=versions,
        machine=", ".join(filter(None, (machines, *gpus))),
        made=max(str(f["made"]) for f in findings),
        details=details,
    )


def bars_of(results: Sequence[KernelResult], plain: Sequence[Mapping[str, float]]) -> list[Bar]:
    on_gpu = [r for r in results if r.scope == "gpu"]
    if not on_gpu:
        return [
            Bar(name, None, unit, note=f"{NOT_RUN} (the bar is {bar:g} {unit})")
            for name, unit, bar in (
                ("gemm_bf16_tflops", "TFLOPS", GEMM_BAR_TFLOPS),
                ("triad_tb_s", "TB/s", TRIAD_BAR_TB_S),
                ("gemm_bf16_to_plain_torch", "ratio", RATIO_BAR),
                ("triad_to_plain_torch", "ratio", RATIO_BAR),
            )
        ]
    of_torch = [r for r in on_gpu if r.backend == "torch"]
    rates: dict[str, tuple[str, str | None, Callable[[KernelResult], float | None]]] = {
        "gemm_bf16_tflops": ("gemm", "bf16", lambda r: r.burst_gflops),
        "gemm_bf16_sustained_tflops": ("gemm", "bf16", lambda r: r.gflops),
        "triad_tb_s": ("triad", "fp32", lambda r: r.gb_s),
    }
    best = {name: _best(on_gpu, *how) for name, how in rates.items()}
    peers = {name: max((p[name] for p in plain), default=None) for name in rates}
    limits = {"gemm_bf16_tflops": GEMM_BAR_TFLOPS, "triad_tb_s": TRIAD_BAR_TB_S}
    bars = [
        Bar(name, value, "TB/s" if "triad" in name else "TFLOPS", limits.get(name), at_least=True,
            baselines={"plain torch": peers[name]}, note=f"{NOTES[name]} all: {whose}")
        for name, (value, whose) in best.items()
    ]  # fmt: skip
    for name, how in rates.items():
        ours, whose = _best(of_torch, *how)
        peer = peers[name]
        ratio = ours / peer if ours is not None and peer else None
        short = name.removesuffix("_tflops").removesuffix("_tb_s")
        note = f"ours, {whose}, to the better of two runs of plain torch"
        bars.append(
            Bar(f"{short}_to_plain_torch", ratio, "ratio", RATIO_BAR, at_least=True, note=note)
        )
    return bars


NOTES = {
    "gemm_bf16_tflops": "in bursts of 30 ms, before the power limit takes hold; best of",
    "gemm_bf16_sustained_tflops": "over seconds, at the power limit; best of",
    "triad_tb_s": "over seconds, read and written both counted; best of",
}


def tables_of(records: Sequence[BenchRecord]) -> list[Table]:
    tables = []
    for record in records:
        if not any(r.ok for r in record.results):
            continue
        first = next(r for r in record.results if r.ok)
        peaks = peaks_of(record.results, first.device, first.dtype)
        kernels = {r.kernel for r in record.results}
        wanted = [kernels_table]
        if len(kernels) > 1:
            wanted.append(frameworks_table if first.scope == "gpu" else speedups_table)
        made = [maker(record.results) for maker in wanted]
        text = str(record.idle.get("note", ""))
        if peaks.gflops and peaks.gb_s:
            text += (
                f". Roof: {peaks.gflops:,.0f} GFLOPS ({peaks.gflops_from}) and "
                f"{peaks.gb_s:,.0f} GB/s ({peaks.gb_s_from})"
            )
        tables += [
            Table(t.title, t.headers, t.rows, text=f"{text}." if t is made[0] and text else "")
            for t in made
            if t.rows
        ]
        failed = [r for r in record.results if not r.ok]
        rows = [(r.kernel, r.backend, r.style, r.status, r.reason) for r in failed]
        rows += [(o["what"], "", "", "left out", o["reason"]) for o in record.left_out]
        if rows:
            tables.append(Table("Not measured", ("kernel", "backend", "style", "", "why"), rows))
    return tables


def text_of(
    results: Sequence[KernelResult], plain: Sequence[Mapping[str, float]], gpus: Sequence[str]
) -> str:
    parts = [
        "Every result was checked against float64 before and after it was timed; counts are those "
        "of the algorithm, each datum moved once, read and written both counted. Times are medians "
        "of batches with a synchronisation each (± half the 95% interval where it is 1% or more); "
        "energy is read by another process over the same stretch. `J app` is without idling."
    ]
    if gpus:
        parts.append(
            "Plain torch ran before and after, in a process of its own: "
            + "; ".join(
                f"{p['gemm_bf16_tflops']:.0f} TFLOPS in a burst, "
                f"{p['gemm_bf16_sustained_tflops']:.0f} sustained, {p['triad_tb_s']:.2f} TB/s"
                for p in plain
            )
            + ". Nothing was set on the GPU. Plain torch multiplies normally distributed numbers, "
            "we uniform ones in [-1, 1): with torch alone the two differ by 1%."
        )
        lasting, _ = _best(results, "gemm", "bf16", lambda r: r.gflops)
        if lasting is not None and lasting < GEMM_BAR_TFLOPS:
            parts.append(
                f"The bar of {GEMM_BAR_TFLOPS:g} TFLOPS is met in bursts, not over seconds: there "
                f"the card runs at its power limit and reaches {lasting:.0f}, plain torch "
                f"{max(p['gemm_bf16_sustained_tflops'] for p in plain):.0f}."
            )
    else:
        parts.append(f"The bars are about a GPU: {NOT_RUN}.")
    if any(s.provenance == "estimated" for r in results for s in r.scopes.values()):
        parts.append("Joules marked `estimated` are utilisation x TDP: no sensor could be read.")
    return "\n\n".join(parts)


def _best(
    results: Sequence[KernelResult],
    kernel: str,
    dtype: str | None,
    rate: Callable[[KernelResult], float | None],
) -> tuple[float | None, str]:
    """Return the highest rate in 10^12 a second, and its framework."""
    found = [
        (value / 1e3, f"{r.backend} {r.style}, size {r.size}, {r.dtype}")
        for r in results
        if r.ok and r.kernel == kernel and dtype in (None, r.dtype) and (value := rate(r))
    ]
    return max(found, default=(None, "no result"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"kernels: {error}")
