"""What the H200 would be told without what only its calibration knows."""

from dataclasses import replace
from statistics import fmean

from bars import Table
from predict_points import measured_points, steps_file
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.kernels.find import reference_constants
from wattloop.predict.models.kernels.residuals import Residuals
from wattloop.predict.models.kernels.values import Values

__all__ = ["h200_tables"]

NETWORKS = ("distilbert_base@256", "gpt2@1024", "resnet50@224", "vit_b_16@224")


def h200_tables() -> list[Table]:
    """Errors of time, power and energy by precision; nothing without the measured steps."""
    path = steps_file()
    if path is None:
        return []
    model = _formulas_alone()
    errors: dict[str, list[tuple[float, float, float]]] = {}
    for measured in measured_points(path, NETWORKS):
        row = measured.row
        found = model.predict(measured.point.workload, measured.point.placement)
        errors.setdefault(row.precision, []).append(
            (
                100 * (found.step_s / row.step_s - 1),
                100 * (found.power_w / row.power_w - 1),
                100 * (found.energy_j / row.energy_j - 1),
            )
        )
    rows = []
    for precision, found in errors.items():
        parts = [(fmean(map(abs, part)), fmean(part)) for part in zip(*found, strict=True)]
        rows.append((precision, len(found), *(figure for pair in parts for figure in pair)))
    return [
        Table(
            "The H200 itself, by formulas alone",
            ("precision", "steps", "time error %", "bias %", "power error %", "bias %",
             "energy error %", "bias %"),
            rows,
            text=f"Training steps of {', '.join(NETWORKS)} with the constants that other GPUs get, "
            "that is without the corrections of single kernels and without the factors of training "
            "steps. The efficiencies come from an H200, so this is no test on an unseen GPU; it "
            "shows what is lost where a calibration's corrections cannot be used.",
        )
    ]  # fmt: skip


def _formulas_alone() -> KernelModel:
    constants, _ = reference_constants()
    numbers = constants.values.numbers
    return KernelModel(
        replace(
            constants,
            values=Values({n: v for n, v in numbers.items() if not n.startswith("scale.")}),
            residuals=Residuals(),
            intervals={},
        )
    )
