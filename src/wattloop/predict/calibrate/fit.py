"""`calibrate fit`: from the files of a collection to the constants of a GPU.

kernel records   constants of each class of operations, and residuals (fit_kernels)
power records    idle watts, joules of work
host records     cost of operator calls, tensors and modules (fit_host)
step records     small models: factors of families, host costs, joules together
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.calibrate.dispatch import is_dispatch
from wattloop.predict.calibrate.fit_cases import operations_of
from wattloop.predict.calibrate.fit_host import with_host
from wattloop.predict.calibrate.fit_kernels import KernelFit, Sample, fitted_to_samples
from wattloop.predict.calibrate.fit_steps import Progress, fitted_to_steps, points_of
from wattloop.predict.calibrate.sample_file import records
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.find import reference_constants
from wattloop.predict.models.kernels.host import of_operation
from wattloop.predict.models.kernels.host_fit import QUEUE
from wattloop.predict.models.kernels.power_fit import Draw, with_power
from wattloop.predict.models.kernels.spec_only import spec_constants
from wattloop.predict.models.kernels.table import OperationTable
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.models.kernels.work import WORK, work_of
from wattloop.predict.workload.operation import Operation, Phase

__all__ = ["FitReport", "cap_in_force", "constants_from", "fit_files", "samples_of"]

NO_GPU = "cpu"
"""What the machine record of `collect --gpu cpu` has for a GPU."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Constants, and how many records of each kind they rest on.

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
    rows = [row for path in paths for row in _checked(path)]
    products = {str(row["gpu"]) for row in rows if row["record"] == "machine"}
    if len(products) != 1:
        named = ", ".join(sorted(products)) or "no GPU"
        raise ConfigError(
            f"{', '.join(map(str, paths))}: field 'gpu' of the machine records names {named}; "
            "fit the files of one GPU type at a time"
        )
    if products == {NO_GPU}:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: collected with --gpu cpu, which tries the program: its "
            "times are of no GPU, so there is nothing to fit; run 'wattloop calibrate collect' on "
            "a machine with one"
        )
    gpu = gpu_named(products.pop())
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


def _with_sittings(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Steps with the sitting they are of, each of which may have had another host.

    The one with most steps has no name: its host is the one that constants hold for.
    """
    sitting, taken = 0, []
    for row in rows:
        sitting += row["record"] == "machine"
        if row["record"] == "step" and not row.get("error"):
            taken.append({**row, "sitting": f"sitting {sitting}"})
    most = Counter(row["sitting"] for row in taken).most_common(1)
    return [{**row, "sitting": ""} if row["sitting"] == most[0][0] else row for row in taken]


def constants_from(rows: Sequence[Mapping[str, Any]], gpu: Gpu) -> FitReport:
    """Constants of `gpu` from records in memory; steps are fitted by whoever has traced them."""
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
    """Watts and joules from the data sheet: those that a fit starts from are another GPU's."""
    specified = spec_constants(gpu, *reference_constants()).values.numbers
    power = {name: value for name, value in specified.items() if name.startswith("power.")}
    made = {**constants.made, "power": "data sheet"}
    return replace(constants, values=constants.values.with_changes(power), made=made)


def samples_of(rows: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """Microbenchmarks of single operations."""
    samples = []
    for row in rows:
        params = dict(row["params"])
        if row.get("algorithm") == "math":
            params["algorithm"] = "math"  # of fused kernels, a trace cannot tell whose it will be
        operations = operations_of(str(row["family"]), params)
        seconds = row.get("seconds")
        if len(operations) != 1 or _outran_the_queue(operations[0], int(row.get("repeats", 1))):
            continue
        if isinstance(seconds, float) and seconds > 0:
            samples.append(Sample(operations[0], seconds, bool(params.get("resident"))))
    return samples


def _outran_the_queue(op: Operation, repeats: int) -> bool:
    """Whether the GPU had to wait: more kernels were asked for than its queue holds.

    Only recurrent layers ask for so many in one call; a gradient is timed with its layer before.
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
"""Record -> fields it cannot do without."""


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
                f"{path}:{number}: field 'host_s' is no time of each phase: {asked!r}; collect "
                "again, or take the field out: it may be missing"
            )
    return rows


def _with_idle(constants: KernelConstants, rows: Sequence[Mapping[str, Any]]) -> Values:
    """Idle power as measured, less what is not drawn by work but by readiness for it."""
    idle = [
        float(row["power_w"])
        for row in rows
        if row["record"] == "power" and row["family"] == "idle" and row.get("power_w")
    ]
    if not idle:
        return constants.values
    static_w = constants.values["power.static_w"]
    # What an idle GPU draws at its working clock is idle and static power together.
    changes = {"power.idle_w": max(sum(idle) / len(idle) - static_w, 0.0)}
    return constants.values.with_changes(changes)


def cap_in_force(rows: Sequence[Mapping[str, Any]], gpu: Gpu) -> float | None:
    """The lowest limit that was in force; None where it was the factory's."""
    limits = [row.get("power_limit_w") for row in rows if row["record"] == "machine"]
    return min((limit for limit in limits if limit and limit < gpu.tdp_w), default=None)


def _draws(rows: Sequence[Mapping[str, Any]], values: Values, gpu: Gpu, cap_w: float) -> list[Draw]:
    """Held kernels as work over time."""
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
        draws.append(Draw(amounts, float(seconds), float(power_w), share, cap_w))
    return draws
