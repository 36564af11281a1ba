"""Measured steps as points: each network traced once and stored on disk.

Traces are stored in the folder WATTLOOP_BENCHMARK_TRACES, else in the user's cache, under what
determines them: network, batch, precision, optimizer, and the code that traces.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from predict_zoo import ZOO, Row, row_of, rows
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.calibrate.collection import records
from wattloop.predict.calibrate.fit import once_each
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.workload import Workload

__all__ = [
    "Measured",
    "code_hash",
    "kernel_files",
    "measured_points",
    "own_points",
    "same_sittings",
    "steps_file",
    "suite_files",
    "trace_folder",
    "trace_path",
]

ROOT = Path(__file__).resolve().parent.parent
OWN_DATA = ROOT / "benchmarks" / "data" / "h200"
FAMILIES = {
    "depthwise": ("mobilenet", "efficientnet", "shufflenet", "convnext", "xception"),
    "convolutional": (
        "resnet",
        "resnext",
        "regnet",
        "densenet",
        "vgg",
        "unet",
        "alexnet",
        "squeezenet",
        "googlenet",
        "darknet",
        "wide_resnet",
        "edsr",
        "autoencoder",
    ),
    "other": (
        "lstm",
        "gru",
        "mlp",
        "mixer",
        "bilstm",
        "bigru",
        "translator",
        "dlrm",
        "deepfm",
        "tabular",
        "pointnet",
    ),
}
"""Family -> how names of its networks begin; all others are transformers."""

Built = tuple[Any, Any, str | None]
"""Module on the meta device, inputs of a batch, loss of its output (None: it has its own)."""
OPTIMIZERS = {"sgd": "sgd+momentum"}
"""Names of the table that `predict.trace` knows by another one."""


@dataclass(frozen=True)
class Measured:
    """A measured row, its description, its trace, and its file: one sitting, one host."""

    row: Row
    family: str
    point: MeasuredStep
    sitting: str = ""


def steps_file() -> Path | None:
    """Return the file with the rows of the twelve networks."""
    shared = Path(os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data")
    paths = (shared / "gpu" / "h200_train_steps.jsonl", OWN_DATA / "train_steps.jsonl")
    return next((path for path in paths if path.is_file()), None)


def suite_files() -> list[Path]:
    """Return the files of `wattloop calibrate collect`: kernels, host, power, other networks'
    steps.
    """
    return sorted(OWN_DATA.glob("suite_*.jsonl.gz"))


def kernel_files() -> list[Path]:
    """The suite's files, and further kernels that `collect_steps.py` measured."""
    return [*suite_files(), *sorted(OWN_DATA.glob("kernels_*.jsonl.gz"))]


def measured_points(path: Path, only: Sequence[str] | None = None) -> list[Measured]:
    """Return the rows of the twelve networks, traced."""
    found = [row for row in rows(path) if only is None or row.model in only]
    return [_measured(row, ZOO[row.model].group, _zoo_build) for row in found]


def own_points(paths: Sequence[Path], *, by_machine: bool = False) -> list[Measured]:
    """Return the steps of the calibration's own networks, traced.

    Each file is a sitting; `by_machine`, each of the machines in it.
    """
    found, machines = [], 0
    for path in paths:
        taken = []
        for record in records(path):
            machines += record["record"] == "machine"
            if record["record"] == "step" and not record.get("error"):
                sitting = f"{path.name} {machines}" if by_machine else path.name
                taken.append({**record, "sitting": sitting})
        for record in once_each(taken):
            row, sitting = row_of(record), str(record["sitting"])
            measured = _measured(row, row.model.partition("@")[0], _own_build)
            point = replace(measured.point, host=sitting, host_s=record.get("host_s") or {})
            found.append(replace(measured, point=point, sitting=sitting))
    return found


def same_sittings(found: Sequence[Measured]) -> list[list[Measured]]:
    """Return steps by sitting, in order."""
    names = dict.fromkeys(m.sitting for m in found)
    return [[m for m in found if m.sitting == name] for name in names]


def _measured(row: Row, group: str, build: Callable[[Row], Built]) -> Measured:
    workload = _kept(row, build)
    point = MeasuredStep(workload, Placement(gpu_named("h200")), row.step_s, row.power_w, group)
    return Measured(row, _family(row.model), point)


def _family(model: str) -> str:
    for family, starts in FAMILIES.items():
        if model.startswith(starts):
            return family
    return "transformer"


def _zoo_build(row: Row) -> Built:
    entry = ZOO[row.model]
    return entry.factory(), entry.inputs(row.batch), entry.loss


def _own_build(row: Row) -> Built:
    from predict_later_nets import subject

    chosen = subject(row.model)
    return chosen.model, chosen.inputs(row.batch, "meta"), None


def trace_path(row: Row, folder: Path) -> Path:
    """Return the file of a row's trace."""
    code = code_hash("workload", "calibrate/zoo")
    return folder / f"{row.model}-{row.batch}-{row.precision}-{row.optimizer}-{code}.json"


def _kept(row: Row, build: Callable[[Row], Built]) -> Workload:
    """Return the trace on disk, else a new one."""
    from wattloop.predict.workload.files import load_workload, save_workload

    path = trace_path(row, trace_folder())
    if path.is_file():
        return load_workload(path)
    if sys.stderr.isatty():
        print(f"tracing {row.model} x {row.batch} {row.precision}", file=sys.stderr)
    workload = _trace(row, build)
    save_workload(workload, path)
    return workload


def _trace(row: Row, build: Callable[[Row], Built]) -> Workload:
    import torch

    from wattloop.predict import trace

    with torch.device("meta"):
        model, inputs, loss = build(row)
    return trace(
        model, inputs, loss=loss, precision=row.precision,
        optimizer=OPTIMIZERS.get(row.optimizer, row.optimizer), style="foreach", name=row.model,
    )  # fmt: skip


def trace_folder() -> Path:
    """Return the folder of traces and other slow results."""
    given = os.environ.get("WATTLOOP_BENCHMARK_TRACES")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(given) if given else cache / "wattloop" / "benchmark-traces"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@lru_cache
def code_hash(*packages: str) -> str:
    """Return the hash of the code of `wattloop.predict`'s packages and of the networks."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    folders = [ROOT / "src" / "wattloop" / "predict" / name for name in packages]
    code = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    for path in [*code, *(here / f"predict_{name}.py" for name in ("zoo", "nets", "later_nets"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
