"""The thesis's tables of ADEPT next to ours."""

from collections.abc import Callable, Sequence

import numpy as np

from bars import Table
from predict_adept_fits import NO_ALBERT, Fits, errors_of
from wattloop.predict.models.adept.equations import PARAMETERS, SATURATIONS, STAGES
from wattloop.predict.models.model import MeasuredStep

__all__ = ["ablation", "by_part", "parameters", "refinement", "saturations", "thesis_rows"]

Points = Sequence[MeasuredStep]

STAGE_NAMES = {
    "S1": "global parameters only",
    "S2": "+ ALBERT GEMM",
    "S3": "+ ALBERT ALU",
    "S4": "+ ALBERT memory",
    "S5": "+ BF16 GEMM",
    "S6": "+ BF16 conv",
    "S7": "+ BF16 ALU",
}
THESIS_STAGES = {
    "S1": (22.47, 4.73, 15.37),
    "S2": (21.55, 4.81, 14.85),
    "S3": (28.48, 5.93, 19.46),
    "S4": (18.30, 4.50, 12.78),
    "S5": (3.76, 5.60, 4.50),
    "S6": (3.60, 5.70, 4.44),
    "S7": (3.05, 5.78, 4.14),
}
THESIS_GROUPS = {
    "albert": 7.51,
    "distilbert": 3.05,
    "resnet50": 2.30,
    "tinyllama": 8.03,
    "vgg16": 3.82,
    "vit": 2.60,
}
THESIS_PRECISIONS = {"fp32": 2.99, "tf32": 2.81, "bf16": 6.21}
THESIS_PARAMETERS = {
    "bf16_gemm": 0.037,
    "albert_memory": 2.82,
    "alu_time": 10.4,
    "r_conv_channels": 2840,
    "r_conv_pixels": 22860,
}
"""What the text of 4.3.7 and 4.3.8 tells of the fitted values (sigmoid)."""


def refinement(points: Points, fits: Fits) -> Table:
    """The thesis's table 4.2."""
    rows = []
    for stage, name in STAGE_NAMES.items():
        inside = errors_of(points, fits.inside[stage])
        cells: list[object] = [stage, name, inside.time, inside.power, inside.combined]
        if stage in fits.outside:
            outside = errors_of(points, fits.outside[stage])
            cells += [outside.time, outside.power, outside.combined]
        else:
            cells += ["", "", ""]
        rows.append([*cells, *THESIS_STAGES[stage]])
    return Table(
        "Progressive refinement (table 4.2)",
        ["stage", "", "time %", "power %", "combined %",
         "out of sample: time %", "power %", "combined %",
         "thesis: time %", "power %", "combined %"],
        rows,
        text="Each stage starts from the one before, so none is worse in sample. In the thesis S3 "
        "is worse than S2, although one parameter more can only help: its search had not "
        "converged, or its stages were not all fitted again.",
    )  # fmt: skip


def thesis_rows(points: Points, fits: Fits) -> Table:
    """Return the thesis's own selection: as many parameters as steps."""
    rows = []
    for stage in STAGES:
        inside = errors_of(points, fits.inside[stage])
        outside = fits.outside.get(stage)
        combined = "" if outside is None else errors_of(points, outside).combined
        rows.append(
            [stage, inside.time, inside.power, inside.combined, combined, THESIS_STAGES[stage][2]]
        )
    return Table(
        f"The thesis's selection: six networks at one batch size ({len(points)} steps)",
        ["stage", "time %", "power %", "combined %", "out of sample: combined %",
         "thesis: combined %"],
        rows,
        text="Fitted to nothing but the networks, batch sizes and precisions of table 4.1 (one "
        "GPU), the form has more parameters than there are steps.",
    )  # fmt: skip


def by_part(points: Points, fits: Fits) -> list[Table]:
    """The thesis's table 4.3: by network, by number of GPUs, by precision."""
    groups = list(dict.fromkeys(point.group for point in points))
    precisions = ("fp32", "tf32", "bf16")

    def rows(
        parts: Sequence[str], part_of: Callable[[MeasuredStep], str], thesis: dict[str, float]
    ) -> list[list[object]]:
        found: list[list[object]] = []
        for part in parts:
            chosen = [i for i, point in enumerate(points) if part_of(point) == part]
            if not chosen:
                continue
            inside = errors_of(points, fits.inside["S7"], chosen)
            outside = errors_of(points, fits.outside["S7"], chosen)
            found.append(
                [part, len(chosen), inside.time, inside.power, inside.combined,
                 outside.time, outside.power, outside.combined, thesis.get(part, "")]
            )  # fmt: skip
        return found

    header = ["", "steps", "time %", "power %", "combined %", "out of sample: time %", "power %",
              "combined %", "thesis: %"]  # fmt: skip
    return [
        Table(
            "Error by network (table 4.3)",
            header,
            rows(groups, lambda point: point.group, THESIS_GROUPS),
        ),
        Table(
            "Error by precision and number of GPUs (table 4.3)",
            header,
            [
                *rows(precisions, lambda point: point.workload.precision, THESIS_PRECISIONS),
                *rows(["1 GPU"], lambda _: "1 GPU", {"1 GPU": 3.21}),
                ["4 GPUs", 0, *[""] * 6, 5.07],
            ],
            text="Four H200s were not measured.",
        ),
    ]


def saturations(points: Points, fits: Fits) -> Table:
    """Table of five saturation functions and their references."""
    rows: list[list[object]] = []
    for name in SATURATIONS:
        fit = "S7" if name == "sigmoid" else name
        inside, outside = (errors_of(points, each[fit]) for each in (fits.inside, fits.outside))
        found = fits.parameters(fit)
        rows.append(
            [name, inside.time, inside.power, inside.combined, outside.combined,
             found["r_conv_channels"], found["r_conv_pixels"]]
        )  # fmt: skip
    return Table(
        "Saturation functions",
        ["", "time %", "power %", "combined %", "out of sample: combined %", "R_C,Conv",
         "R_Spatial,Conv"],
        rows,
        text="In the thesis all five lie between 4.1 and 4.7% combined; R_C,Conv is 2840 blocks "
        "for the sigmoid and 0.001 for arctan, R_Spatial,Conv 22,860 and 214 pixels.",
    )  # fmt: skip


def ablation(points: Points, fits: Fits) -> Table:
    """Figure 4.10: the effect of the scalars where they apply."""
    albert = [i for i, point in enumerate(points) if point.group == "albert"]
    bf16 = [i for i, point in enumerate(points) if point.workload.precision == "bf16"]
    rows: list[list[object]] = []
    for what, without, chosen, measure, thesis in (
        ("ALBERT, combined", NO_ALBERT, albert, "combined", ("7.3", "over 20")),
        ("BF16, time", "S4", bf16, "time", ("6.2", "over 29")),
    ):
        if not chosen:
            continue
        cells = [
            getattr(errors_of(points, part[fit], chosen), measure)
            for part in (fits.inside, fits.outside)
            for fit in ("S7", without)
        ]
        rows.append([what, *cells, *thesis])
    return Table(
        "Without the scalars (figure 4.10)",
        ["", "with them %", "without %", "out of sample: with them %", "without %",
         "thesis: with them %", "without %"],
        rows,
        text="Out of sample ALBERT has no scalars: it was not seen. What differs there is what "
        "they do to the other parameters.",
    )  # fmt: skip


def parameters(points: Points, fits: Fits, seeds: int) -> Table:
    """Table of the fitted values, and their distance from those of other seeds."""
    names = ["S7", *(f"seed {i}" for i in range(1, seeds))]
    errors = [errors_of(points, fits.inside[fit]).combined for fit in names]
    rows: list[list[object]] = []
    for name, each in PARAMETERS.items():
        values = np.array([fits.parameters(fit)[name] for fit in names])
        rows.append(
            [name, values[0], values.min(), values.max(), each.low, each.high,
             THESIS_PARAMETERS.get(name, ""), each.meaning]
        )  # fmt: skip
    return Table(
        "Parameters",
        ["", "fitted", "least", "most", "from", "to", "thesis", "what it is"],
        rows,
        text=f"Fitted to all steps: stage S7, and the least and most of it and {seeds - 1} "
        f"searches from other seeds, which end at {min(errors):.2f} to {max(errors):.2f}% "
        "combined. Beta and C of a class of operations act only through their quotient.",
    )
