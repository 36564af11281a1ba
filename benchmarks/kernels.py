"""The six kernels on a real GPU: how near `wattloop bench` comes to plain torch, and table 3.17.

    python benchmarks/kernels.py [--json FILE]
    python benchmarks/kernels.py --from-json GPU.json CPU.json

It only reads: no power limit, clock or mode is ever set. About four minutes on a GPU. Without one
it runs the CPU table, and says that the bars, which are about a GPU, were not run. What one
machine wrote with `--json` becomes the page on another with `--from-json`; of several files, each
adds its tables.

1. gemm in bf16 and triad in fp32, by plain torch (a dozen lines below, nothing of ours), by us, and
   by plain torch again: the better of the two is the baseline.
2. All kernels on torch, jax and cupy in fp32, as in the thesis, with joules of GPU and host.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bars import Bar, Page, Table, arguments, machine, publish
from wattloop.characterize.bench.bench import Bench
from wattloop.characterize.bench.choice import Choice
from wattloop.characterize.bench.idle_power import idle_line
from wattloop.characterize.bench.plan import planned
from wattloop.characterize.bench.result import KernelResult
from wattloop.characterize.bench.roofline import peaks_of
from wattloop.characterize.bench.session_record import BenchRecord
from wattloop.characterize.bench.tables import frameworks_table, kernels_table, speedups_table
from wattloop.core.errors import ConfigError
from wattloop.core.settings import settings_from
from wattloop.hardware.host import Host
from wattloop.kernels.place import gpu_count
from wattloop.measure.session import Session

GEMM_BAR_TFLOPS, TRIAD_BAR_TB_S, RATIO_BAR = 700.0, 4.0, 0.9
GEMM_SIZES = (8_192, 16_384)
TRIAD_SIZES = (2**29, 2**30)
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


# -- finding -------------------------------------------------------------------------------


def gpu_findings(chosen: argparse.Namespace) -> dict[str, Any]:
    """Everything, as data that makes the page here or elsewhere."""
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
    """The CPU's table."""
    print("kernels: no GPU here; the bars are not run, the CPU's table is", file=sys.stderr)
    quick = {"kernels": "gemm,triad", "backends": "numpy"} if chosen.quick else {}
    return _findings([bench_record(chosen=chosen, device="cpu", **quick)], [])


def bench_record(*, chosen: argparse.Namespace, device: str = "gpu", **words: str) -> BenchRecord:
    """What `wattloop bench` does, without its printing."""
    settings = settings_from(os.environ)
    seconds = chosen.seconds if device == "gpu" else min(chosen.seconds, 1.0)
    choice = Choice.of(device=device, seconds=seconds, **words)
    session = Session.open(settings, name="bench", in_process=False, keep=False)
    try:
        plan = planned(choice, session.host)
        idle = idle_line(session, "auto", choice.device.kind, lambda: None)
        bench = Bench(plan, session, idle, _progress)
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
    """The baseline: what anybody writes to see how fast a GPU is."""
    import torch

    def rate(run: Callable[[], Any], amount: float) -> float:
        for _ in range(10):
            run()
        torch.cuda.synchronize()
        begin_s, runs = time.monotonic(), 0
        while time.monotonic() - begin_s < seconds:
            for _ in range(20):
                run()
            torch.cuda.synchronize()
            runs += 20
        return amount * runs / (time.monotonic() - begin_s) / 1e12

    found: dict[str, float] = {"gemm_bf16_tflops": 0.0, "triad_tb_s": 0.0}
    for n in GEMM_SIZES:
        a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
        b, c = torch.randn_like(a), torch.empty_like(a)
        reached = rate(lambda a=a, b=b, c=c: torch.matmul(a, b, out=c), 2 * n**3)
        found["gemm_bf16_tflops"] = max(found["gemm_bf16_tflops"], reached)
    for n in TRIAD_SIZES:
        a = torch.randn(n, device="cuda")
        b, c = torch.randn_like(a), torch.empty_like(a)
        reached = rate(lambda a=a, b=b, c=c: torch.add(a, b, alpha=0.75, out=c), 12 * n)
        found["triad_tb_s"] = max(found["triad_tb_s"], reached)
    return found


def _plain_in_a_process(seconds: float) -> dict[str, float]:
    """A process of its own, as the kernels have: its memory is free afterwards."""
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
    """Bars and tables of what one or several machines found."""
    groups = [(f, [BenchRecord.from_dict(r) for r in f["records"]]) for f in findings]
    results = [r for _, records in groups for record in records for r in record.results]
    if not results:
        raise ConfigError("kernels: these files hold no result")
    plain = [rates for found in findings for rates in found["plain_torch"]]
    versions = {r.backend: r.version for r in results if r.version}
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
                ("gemm_to_plain_torch", "ratio", RATIO_BAR),
                ("triad_to_plain_torch", "ratio", RATIO_BAR),
            )
        ]
    gemm = _best(on_gpu, "gemm", "bf16", lambda r: r.gflops, 1e-3)
    triad = _best(on_gpu, "triad", None, lambda r: r.gb_s, 1e-3)
    of_torch = [r for r in on_gpu if r.backend == "torch"]
    ours = {
        "gemm_bf16_tflops": _best(of_torch, "gemm", "bf16", lambda r: r.gflops, 1e-3),
        "triad_tb_s": _best(of_torch, "triad", "fp32", lambda r: r.gb_s, 1e-3),
    }
    best_plain = {name: max((p[name] for p in plain), default=None) for name in ours}
    ratios = {
        name: ours[name][0] / peer if ours[name][0] is not None and peer else None
        for name, peer in best_plain.items()
    }
    return [
        Bar("gemm_bf16_tflops", gemm[0], "TFLOPS", GEMM_BAR_TFLOPS, at_least=True,
            baselines={"plain torch": best_plain["gemm_bf16_tflops"]}, note=gemm[1]),
        Bar("triad_tb_s", triad[0], "TB/s", TRIAD_BAR_TB_S, at_least=True,
            baselines={"plain torch": best_plain["triad_tb_s"]}, note=triad[1]),
        Bar("gemm_to_plain_torch", ratios["gemm_bf16_tflops"], "ratio", RATIO_BAR, at_least=True,
            note=f"torch in both, {ours['gemm_bf16_tflops'][1]}"),
        Bar("triad_to_plain_torch", ratios["triad_tb_s"], "ratio", RATIO_BAR, at_least=True,
            note=f"torch in both, {ours['triad_tb_s'][1]}"),
    ]  # fmt: skip


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
                f"{p['gemm_bf16_tflops']:.0f} TFLOPS and {p['triad_tb_s']:.2f} TB/s" for p in plain
            )
            + ". Nothing was set on the GPU."
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
    scale: float,
) -> tuple[float | None, str]:
    """The highest rate, and whose it is."""
    found = [
        (value * scale, f"{r.backend} {r.style}, size {r.size}, {r.dtype}")
        for r in results
        if r.ok and r.kernel == kernel and dtype in (None, r.dtype) and (value := rate(r))
    ]
    return max(found, default=(None, "no result"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"kernels: {error}")
