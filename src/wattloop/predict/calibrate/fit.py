"""Fit of a GPU's constants to the records of a collection (`calibrate fit`)."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.calibrate.collection import records
from wattloop.predict.calibrate.host import is_dispatch
from wattloop.predict.calibrate.kernel_fit import (
    KernelFit,
    Sample,
    fitted_to_samples,
)
from wattloop.predict.calibrate.suite import operations_of
from wattloop.predict.intervals import CalibrationRange, Intervals, Residual
from wattloop.predict.models.kernels.constants import KernelConstants, Values, reference_constants
from wattloop.predict.models.kernels.datasheet import spec_constants
from wattloop.predict.models.kernels.fit import QUEUE, PowerSample, minimise, with_power
from wattloop.predict.models.kernels.kernel_cost import WORK, work_of
from wattloop.predict.models.kernels.model import KernelModel
from wattloop.predict.models.kernels.operation_table import OperationTable
from wattloop.predict.models.kernels.step import of_operation
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.operation import Operation, Phase

if TYPE_CHECKING:
    from wattloop.predict.models.adept.model import AdeptSearch

KINDS: Mapping[str, str] = {
    "linear": "gemm", "bmm": "gemm", "add": "elementwise", "relu": "elementwise",
    "gelu": "elementwise", "view": "view", "transpose": "view", "layer_norm": "norm",
    "batch_norm": "norm", "conv": "conv", "softmax": "softmax", "dropout": "random",
    "sdpa": "attention", "embedding": "embedding", "cat": "copy", "contiguous": "copy",
    "to_bf16": "copy", "mean": "reduction", "max_pool": "pool",
}  # fmt: skip
"""Function of a host record -> kind of operation."""
PASSES = 12
"""Passes of a foreach AdamW over its lists; each costs the host time per tensor."""
LEAST_S = 5e-7


def with_host(values: Values, rows: Sequence[Mapping[str, Any]]) -> Values:
    """Add costs of calls by kind, of a tensor in a list, of a module, of RNN kernels.

    Backward calls are the additional time of autograd's engine. A record of one function alone
    includes the start of the engine, so backward costs keep their defaults, scaled like the forward
    calls.
    """
    hosts = [row for row in rows if row["record"] == "host"]
    calls: dict[str, list[float]] = defaultdict(list)
    for row in hosts:
        params = row["params"]
        if row["family"] == "call" and params.get("mode") in ("forward", "autocast"):
            calls[KINDS.get(params["function"], "elementwise")].append(float(row["seconds"]))
    changes = {
        f"host.call_s.forward.{kind}": statistics.median(found) for kind, found in calls.items()
    }
    if changes:
        changes["host.call_s.forward"] = statistics.median(changes.values())
        ratio = changes["host.call_s.forward"] / values["host.call_s.forward"]
        for name, value in values.numbers.items():
            if name.startswith(("host.call_s.backward", "host.call_s.optimizer")):
                changes[name] = ratio * value
    module = [
        float(row["seconds"]) for row in hosts
        if row["family"] == "module" and row["params"].get("module") == "identity"
    ]  # fmt: skip
    if module:
        changes["host.module_s"] = max(statistics.median(module), LEAST_S)
    return values.with_changes({**changes, **_lists(hosts), **_recurrent(values, rows)})


def _lists(hosts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    times = [
        (int(row["params"]["tensors"]), float(row["seconds"])) for row in hosts
        if row["family"] == "optimizer" and row["params"].get("optimizer") == "adamw"
        and row["params"].get("style") == "foreach"
    ]  # fmt: skip
    if len(times) < 2:
        return {}
    (few, short_s), (many, long_s) = min(times), max(times)
    return {"host.tensor_s": max((long_s - short_s) / (many - few) / PASSES, LEAST_S / 10)}


def _recurrent(values: Values, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return costs of a recurrent call, of each of its layers and of a time step's kernels.

    The dispatch time of a gradient includes that of the layer itself.
    """
    counts, host_s = [], []
    for row in rows:
        if row["record"] != "kernel" or row["family"] != "rnn" or not row.get("host_s"):
            continue
        made = [
            operation
            for direction in {"forward", str(row["params"]["direction"])}
            for operation in operations_of("rnn", {**row["params"], "direction": direction})
        ]
        if not any(_outran_the_queue(each, 1) for each in made):
            counts.append(Counter[str]())
            for each in made:
                counts[-1].update(of_operation(each))
            host_s.append(float(row["host_s"]))
    names = sorted({name for each in counts for name in each})
    if not names:
        return {}
    table = np.array([[each[name] for name in names] for each in counts])
    start = np.log([values.find(name) for name in names])
    found = minimise(
        lambda x: np.log(table @ np.exp(x) / np.array(host_s)), start, np.full(len(names), 1.0)
    )
    return dict(zip(names, np.exp(found).tolist(), strict=True))


FEWEST_GROUPS = 3
"""Fewer models say nothing about a model left out."""
Progress = Callable[[str], None]
_STEP = ("model", "batch", "precision", "gpus")


def points_of(
    rows: Sequence[Mapping[str, Any]],
    gpu: Gpu,
    progress: Progress = lambda _: None,
    cap_w: float | None = None,
) -> list[MeasuredStep]:
    """Convert step records to points: each model is built without weights and traced.

    `cap_w` is the power limit during the measurement; None is the factory's. Several rounds of a
    step are one point.
    """
    if not rows:
        return []
    try:
        import torch  # noqa: F401 - tracing needs it
    except ImportError:
        raise ConfigError(
            "the collection has training steps, and fitting them needs torch to trace their "
            "models; run `pip install 'wattloop[torch,hf]'`, or leave them out with --no-steps"
        ) from None
    from wattloop.predict.calibrate.steps import subject_workload

    points = []
    for row in once_each(rows):
        name, batch, precision = str(row["model"]), int(row["batch"]), str(row["precision"])
        progress(f"tracing {name}, batch {batch}, {precision}")
        workload = subject_workload(name, batch, precision)
        group = name.partition("@")[0]
        placement = Placement(gpu, gpus=int(row.get("gpus") or 1), cap_w=cap_w)
        points.append(
            MeasuredStep(
                workload, placement, row["step_s"], row["avg_power_w"], group,
                host=str(row.get("sitting", "")), host_s=row.get("host_s") or {},
            )
        )  # fmt: skip
    return points


def once_each(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge rounds of one step in one session into one record with the medians."""
    same: dict[tuple[object, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        same[tuple(row.get(name) for name in (*_STEP, "sitting"))].append(row)
    return [_middle(rounds) for rounds in same.values()]


def _middle(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = dict(rounds[0])
    for name in ("step_s", "avg_power_w", "energy_j_per_step"):
        known = [row[name] for row in rounds if row.get(name) is not None]
        found[name] = statistics.median(known) if known else None
    asked = [row["host_s"] for row in rounds if row.get("host_s")]
    if asked:
        found["host_s"] = {
            name: statistics.median(each[name] for each in asked) for name in asked[0]
        }
    return found


def fitted_to_steps(constants: KernelConstants, points: Sequence[MeasuredStep]) -> KernelConstants:
    """Fit `constants` to all points, with intervals from leaving out each model in turn."""
    if not points:
        return constants
    start = KernelModel(constants, source="calibrated")
    model = start.fit(points)
    groups = sorted({point.group for point in points})
    if len(groups) >= FEWEST_GROUPS:
        scope = CalibrationRange.of(constants.gpu, [point.workload for point in points])
        model = model.with_intervals(Intervals.by_traits(left_out_residuals(start, points), scope))
    found = model.kernel_constants
    return replace(found, made={**found.made, "steps": len(points), "models": groups})


def left_out_residuals(model: KernelModel, points: Sequence[MeasuredStep]) -> list[Residual]:
    """Return the residuals of `model` on each group, fitted to all other groups."""
    residuals = []
    for group in sorted({point.group for point in points}):
        fitted = model.fit([point for point in points if point.group != group])
        for point in points:
            if point.group == group:
                placement = fitted.placed(point)
                step = fitted.predict(point.workload, placement)
                residuals.append(Residual.of(group, step, point.step_s, point.power_w, placement))
    return residuals


# Inputs of the fit:
# kernel records   constants of each class of operations, and residuals (kernel_fit)
# power records    idle watts, joules of work
# host records     cost of operator calls, tensors and modules (with_host)
# step records     small models: factors of families, host costs, joules together

NO_GPU = "cpu"
"""GPU name in the machine record of `collect --gpu cpu`."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Constants, and the number of records of each kind behind them.

    Attributes:
        constants: for `KernelModel`.
        gpu: the GPU of the files.
        used, failed, unknown: records used, by kind; that the GPU refused; of no known family.
        errors: family -> samples, median and mean error of each predicted by the others.
    """

    constants: KernelConstants
    gpu: Gpu
    used: Mapping[str, int]
    failed: int
    unknown: int
    errors: Mapping[str, tuple[int, float, float]]


def fit_files(
    paths: Sequence[Path], *, steps: bool = True, progress: Progress = lambda _: None
) -> FitReport:
    """Fit all records of the files, which must be of one GPU type.

    `steps` False leaves training steps out, which need torch.

    Raises:
        ConfigError: a file is damaged, names no GPU or another one than the rest, was collected on
            a CPU, or no kernel was measured.
    """
    rows, gpu = _of_one_gpu(paths)
    made = next(row for row in rows if row["record"] == "machine")
    progress(f"{len(rows)} records of {gpu.product}")
    report = constants_from(rows, gpu)
    if not report.used["kernel"]:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no kernel was measured, so there is nothing to fit; go "
            "on with 'wattloop calibrate collect --resume', with all sections or with kernels"
        )
    if not report.used["power"]:
        report = replace(report, constants=_with_specified_power(report.constants, gpu))
    if steps:
        taken = _with_sittings(rows)
        fitted = fitted_to_steps(
            report.constants, points_of(taken, gpu, progress, cap_in_force(rows, gpu))
        )
        report = replace(report, constants=fitted, used={**report.used, "step": len(taken)})
    kept = {
        key: made.get(key) for key in ("gpu", "time", "torch", "cuda", "cudnn", "driver", "cpu")
    }
    constants = report.constants
    return replace(report, constants=replace(constants, made={**constants.made, **kept}))


def _of_one_gpu(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], Gpu]:
    """Read the records of the files and their GPU."""
    rows = [row for path in paths for row in _checked(path)]
    products = {str(row["gpu"]) for row in rows if row["record"] == "machine"}
    if not products:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no record of a machine in it; make a file with "
            "'wattloop calibrate collect'"
        )
    if len(products) > 1:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: field 'gpu' of the machine records names "
            f"{', '.join(sorted(products))}; fit the files of one GPU type at a time"
        )
    if products == {NO_GPU}:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: collected with --gpu cpu, which tries the program: its "
            "times are of no GPU, so there is nothing to fit; run 'wattloop calibrate collect' on "
            "a machine with one"
        )
    return rows, gpu_named(products.pop())


def fit_adept(
    paths: Sequence[Path],
    progress: Progress = lambda _: None,
    search: "AdeptSearch | None" = None,
) -> tuple[dict[str, Any], list[float]]:
    """Fit ADEPT to the training steps of the files, on one GPU or several (`gpus` of a record).

    Returns:
        The content of a file of constants, and the error of the time of each step.

    Raises:
        ConfigError: as `fit_files`, or no step was measured.
    """
    from wattloop.predict.models.adept.model import Adept

    rows, gpu = _of_one_gpu(paths)
    points = points_of(_with_sittings(rows), gpu, progress, cap_in_force(rows, gpu))
    if not points:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no training step was measured, and adept is fitted to "
            "those; run 'wattloop calibrate collect' with steps"
        )
    model = Adept(search=search).fit(points)
    errors = [
        abs(model.predict(each.workload, each.placement).step_s / each.step_s - 1)
        for each in points
    ]
    many = sum(each.placement.gpus > 1 for each in points)
    fitted_to = f"{len(points)} steps, {many} of them on several GPUs"
    content = {"model": "adept", "gpu": gpu.name, "fitted_to": fitted_to}
    return {**content, "constants": dict(model.constants())}, errors


def _with_sittings(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mark steps with their session, each of which may have had another host.

    The one with most steps has no name: the constants refer to its host.
    """
    sitting, taken = 0, []
    for row in rows:
        sitting += row["record"] == "machine"
        if row["record"] == "step" and not row.get("error"):
            taken.append({**row, "sitting": f"sitting {sitting}"})
    most = Counter(row["sitting"] for row in taken).most_common(1)
    return [{**row, "sitting": ""} if row["sitting"] == most[0][0] else row for row in taken]


def constants_from(rows: Sequence[Mapping[str, Any]], gpu: Gpu) -> FitReport:
    """Fit constants of `gpu` to records in memory; the caller fits traced steps."""
    good = [row for row in rows if not row.get("error")]
    samples = samples_of(row for row in good if row["record"] == "kernel")
    known = sum(1 for row in good if row["record"] == "kernel")
    kernels = fitted_to_samples(KernelConstants(gpu=gpu.name), samples, gpu)
    constants = kernels.constants
    hosts = sum(1 for row in good if row["record"] == "host")
    values = _with_idle(constants, good)
    cap_w = cap_in_force(rows, gpu) or gpu.tdp_w
    draws = _draws([row for row in good if row["record"] == "power"], values, gpu, cap_w)
    values = with_power(values, draws)
    constants = replace(constants, values=with_host(values, good))
    return FitReport(
        constants,
        gpu,
        used={"kernel": len(samples), "power": len(draws), "host": hosts},
        failed=sum(1 for row in rows if row.get("error")),
        unknown=known - len(samples),
        errors=_errors(kernels),
    )


def _with_specified_power(constants: KernelConstants, gpu: Gpu) -> KernelConstants:
    """Take watts and joules from the data sheet: the start values belong to another GPU."""
    specified = spec_constants(gpu, *reference_constants()).values.numbers
    power = {name: value for name, value in specified.items() if name.startswith("power.")}
    made = {**constants.made, "power": "data sheet"}
    return replace(constants, values=constants.values.with_changes(power), made=made)


def samples_of(rows: Iterable[Mapping[str, Any]]) -> list[Sample]:
    samples = []
    for row in rows:
        params = dict(row["params"])
        if row.get("algorithm") == "math":
            # in fused kernels a trace cannot tell to which one it belongs
            params["algorithm"] = "math"
        operations = operations_of(str(row["family"]), params)
        seconds = row.get("seconds")
        if len(operations) != 1 or _outran_the_queue(operations[0], int(row.get("repeats", 1))):
            continue
        if isinstance(seconds, float) and seconds > 0:
            samples.append(Sample(operations[0], seconds, bool(params.get("resident"))))
    return samples


def _outran_the_queue(op: Operation, repeats: int) -> bool:
    """Return whether the GPU had to wait: more kernels were dispatched than its queue holds.

    Only recurrent layers launch so many in one call; a gradient is timed with its layer.
    """
    launches = of_operation(op).get(f"host.launch_s.rnn.{op.phase}", 0.0)
    calls = 3 if op.phase is Phase.BACKWARD else 1
    return launches * calls * repeats > QUEUE


def _errors(kernels: KernelFit) -> dict[str, tuple[int, float, float]]:
    families: dict[str, list[float]] = {}
    for name, errors in kernels.left_out.items():
        if ".*." not in name:
            wrong = np.abs(np.exp(-errors) - 1)
            families.setdefault(name.partition(".")[0], []).extend(wrong.tolist())
    return {
        name: (len(e), float(np.median(e)), float(np.mean(e)))
        for name, e in sorted(families.items())
    }


_FIELDS = {
    "machine": ("gpu",),
    "kernel": ("family", "params", "seconds"),
    "host": ("family", "params"),
    "power": ("family", "params", "power_w", "seconds"),
    "step": ("model", "batch", "precision", "step_s", "avg_power_w"),
}
"""Record -> required fields."""


def _checked(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; make one with 'wattloop calibrate collect'")
    rows = list(records(path))
    for number, row in enumerate(rows, start=1):
        wanted = _FIELDS.get(row["record"], ())
        missing = [name for name in wanted if name not in row] if not row.get("error") else []
        if missing:
            raise ConfigError(f"{path}:{number}: field '{missing[0]}' is missing; collect again")
        asked = row.get("host_s") if row["record"] == "step" else None
        if asked is not None and not is_dispatch(asked):
            raise ConfigError(
                f"{path}:{number}: field 'host_s' lacks a time for each phase: {asked!r}; "
                "collect again, or remove the field: it is optional"
            )
    return rows


def _with_idle(constants: KernelConstants, rows: Sequence[Mapping[str, Any]]) -> Values:
    """Return the measured idle power without the static power of a ready GPU."""
    idle = [
        float(row["power_w"])
        for row in rows
        if row["record"] == "power" and row["family"] == "idle" and row.get("power_w")
    ]
    if not idle:
        return constants.values
    static_w = constants.values["power.static_w"]
    # An idle GPU at its working clock draws idle and static power together.
    changes = {"power.idle_w": max(sum(idle) / len(idle) - static_w, 0.0)}
    return constants.values.with_changes(changes)


def cap_in_force(rows: Sequence[Mapping[str, Any]], gpu: Gpu) -> float | None:
    """Return the lowest limit that was set; None where it was the factory's."""
    limits = [row.get("power_limit_w") for row in rows if row["record"] == "machine"]
    return min((limit for limit in limits if limit and limit < gpu.tdp_w), default=None)


def _draws(
    rows: Sequence[Mapping[str, Any]], values: Values, gpu: Gpu, cap_w: float
) -> list[PowerSample]:
    draws = []
    for row in rows:
        operations = operations_of(str(row["family"]), row["params"])
        power_w, seconds = row.get("power_w"), row.get("seconds")
        if not operations or not power_w or not seconds:
            continue
        table = OperationTable.of(operations)
        busy_s = float(seconds) * float(row.get("busy_share") or 1.0)
        work = work_of(table, table.count * busy_s / len(table), values, gpu)
        amounts = {name: float(w.sum()) for name, w in zip(WORK, work, strict=True)}
        clock = float(row.get("clock_mhz") or gpu.boost_clock_mhz)
        share = min(clock / gpu.boost_clock_mhz, 1.0)
        draws.append(PowerSample(amounts, float(seconds), float(power_w), share, cap_w))
    return draws
