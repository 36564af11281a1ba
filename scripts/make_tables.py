"""Predict the tables of throughput and of caps that come with the package.

python scripts/make_tables.py, from the root of the repository; needs the extras torch and hf.
With them `wattloop simulate` runs traces on clusters of older GPUs without any measured table.
"""

from pathlib import Path

from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.estimates.analytic import AnalyticOracle
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.estimates.throughputs import CAPS, THROUGHPUTS
from wattloop.schedule.jobs import JobKind

GPUS = {
    "k80": "k80",
    "p100": "p100-pcie",
    "v100": "v100-sxm-16",
    "a100": "a100-sxm-40",
    "h100": "h100-sxm",
}
MODELS = {
    "resnet-18": ("hf:resnet-18", None, (64, 128, 256)),
    "resnet-50": ("hf:resnet-50", None, (32, 64, 128)),
    "bert-base": ("hf:bert-base-uncased", 128, (16, 32, 64)),
    "gpt2": ("hf:gpt2", 512, (2, 4, 8)),
}
"""Name in the table -> model, tokens of a sample, batches per GPU."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
COUNTS = (1, 2, 4, 8, 16, 32)
NODE = 8
NOTE = (
    "# Predicted by Wattloop's kernels model from data sheets (scripts/make_tables.py), not\n"
    "# measured: fp32, TF32 on a100 and h100, AdamW; nodes of 8, joined by 12.5 GB/s each.\n"
)


def main() -> None:
    """Write both tables."""
    types = tuple(GpuType(name, gpu_named(gpu), 0.0) for name, gpu in GPUS.items())
    groups = tuple(NodeGroup(name, name, 32, NODE) for name in GPUS)
    oracle = AnalyticOracle(Cluster("all", types, groups, network_bytes_s=12.5e9))
    found = [
        (name, oracle.options(_kind(name, type_name))) for name in MODELS for type_name in GPUS
    ]
    _write(THROUGHPUTS, "model,gpu,gpus,batch,spread,samples_per_s,power_w", found, _throughput)
    _write(CAPS, "model,gpu,batch,cap_w,time_s,power_w", found, _cap)


def _kind(name: str, type_name: str) -> JobKind:
    model, sequence, batches = MODELS[name]
    precision = "tf32" if type_name in ("a100", "h100") else "fp32"
    return JobKind(
        model, precision, COUNTS, batches, SHARES, (type_name,), sequence, may_spread=True
    )


def _throughput(model: str, options: PlacementOptions, row: int) -> str | None:
    type_index, gpus, spread = options.shape(row)
    gpu = list(GPUS)[type_index]
    full = options.cap_w[row] == gpu_named(GPUS[gpu]).tdp_w
    if not full or (not spread and gpus > NODE):  # packing is undefined beyond a node
        return None
    power_w = options.power_w[row] / gpus
    return (
        f"{model},{gpu},{gpus},{options.batch[row]},{int(spread)},"
        f"{1 / options.sample_s[row]:.5g},{power_w:.4g}"
    )


def _cap(model: str, options: PlacementOptions, row: int) -> str | None:
    type_index, gpus, _ = options.shape(row)
    if gpus > 1:
        return None
    return (
        f"{model},{list(GPUS)[type_index]},{options.batch[row]},{options.cap_w[row]:g},"
        f"{options.step_s[row]:.5g},{options.power_w[row]:.4g}"
    )


def _write(path: Path, header: str, found, line) -> None:  # type: ignore[no-untyped-def]
    rows = [
        text
        for model, options in found
        for row in range(len(options))
        if (text := line(model, options, row)) is not None
    ]
    path.write_text("\n".join([NOTE + header, *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
