"""Predictions for the H200 without a calibration of it or of a similar GPU."""

from dataclasses import replace
from statistics import fmean

from bars import Table
from predict_points import measured_points, steps_file
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.kernels.constants import reference_constants
from wattloop.predict.models.kernels.datasheet import spec_constants
from wattloop.predict.prediction import Placement

__all__ = ["h200_tables"]

NETWORKS = ("distilbert_base@256", "gpt2@1024", "resnet50@224", "vit_b_16@224")


def h200_tables() -> list[Table]:
    """Tables of errors by precision; none without the measured steps."""
    path = steps_file()
    if path is None:
        return []
    reference, calibrated = reference_constants()
    gpu = replace(calibrated, architecture="of its own")
    model = KernelModel(spec_constants(gpu, reference, calibrated))
    errors: dict[str, list[tuple[float, float, float]]] = {}
    for measured in measured_points(path, NETWORKS):
        row = measured.row
        found = model.predict(measured.point.workload, Placement(gpu))
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
            "The H200, as if it were not calibrated",
            ("precision", "steps", "time error %", "bias %", "power error %", "bias %",
             "energy error %", "bias %"),
            rows,
            text=f"Training steps of {', '.join(NETWORKS)}, with its data sheet alone, as a GPU of "
            "another architecture gets it. Dispatch by the host and the size of energies come from "
            "an H200 all the same, and the shares that no row above tells of (norms in half "
            "precision, products and attention in TF32, odd sizes, pooling) were settled after "
            "these steps were seen: it is not a blind trial. It goes wrong where libraries "
            "choose badly on so quick a GPU: convolutions in fp32, batch norm in bf16, products of "
            "odd sizes.",
        )
    ]  # fmt: skip
