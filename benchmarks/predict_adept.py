"""ADEPT, the thesis's model, on our own H200: its tables computed again, and out of sample.

    python benchmarks/predict_adept.py [--quick] [--json FILE] [--iterations N] [--ship]

Reads h200_train_steps.jsonl from the folder gpu/ of WATTLOOP_SHARED_DATA, or from
benchmarks/data/h200. Networks are traced once and kept on disk (see predict_points). With --ship
the fit to all steps becomes the constants of the package.
"""

import sys
from collections.abc import Sequence

from bars import Bar, Page, arguments, publish
from predict_adept_fits import ROOFLINE, Errors, Fits, all_fits, errors_of
from predict_adept_tables import ablation, by_part, parameters, refinement, saturations, thesis_rows
from predict_points import Measured, measured_points, steps_file
from wattloop.predict.models.adept.equations import save_shipped
from wattloop.predict.models.adept.model import AdeptSearch
from wattloop.predict.models.model import MeasuredStep

ITERATIONS = 300
SEEDS = 4
QUICK_MODELS = ("albert_base_v2@256", "mlp_4096x6", "resnet18@32")
THESIS_MODELS = {
    "albert_base_v2@256": 128,
    "distilbert_base@256": 128,
    "resnet50@32": 256,
    "tinyllama_1b@512": 16,
    "vgg16@224": 128,
    "vit_b_16@224": 256,
}
"""Networks of table 4.1 -> batch nearest to its own (VGG16: 256 there)."""

TEXT = """
The thesis fits about 28 parameters to 32 steps of six networks on A100s, one batch size each, and
reports the error on these same steps. Here the same form ([ADR
0028](../adr/0028-adept-reconstructed.md)) is fitted to {rows} steps of {groups} networks on one
H200, three to five batch sizes each, in three precisions. *In sample* is the thesis's way: every
step was seen. *Out of sample* is ours: each network is predicted by a fit to the others, so that a
scalar of an architecture never seen is 1. There is one GPU: the thesis's column for four has
nothing to be compared with, and the two parameters of the link are not fitted. Power is that of the
GPU by its own counter; the thesis's is of the whole node, of which more is constant.

Errors are means of absolute percentages. Combined is 0.6 time + 0.4 power, the thesis's objective.
Differential evolution ran for {iterations} generations (the thesis: up to 50,000) from seed 0.
"""


def main() -> int:
    parser = arguments("the thesis's model on H200 steps, in and out of sample")
    parser.add_argument("--iterations", type=int, help="generations of each fit")
    parser.add_argument("--ship", action="store_true", help="keep the constants in the package")
    args = parser.parse_args()
    path = steps_file()
    if path is None:
        print(
            "predict_adept: h200_train_steps.jsonl is neither in gpu/ of WATTLOOP_SHARED_DATA nor "
            "in benchmarks/data/h200; nothing fitted"
        )
        return 0
    measured = measured_points(path, QUICK_MODELS if args.quick else None)
    iterations = args.iterations or (5 if args.quick else ITERATIONS)
    points = [each.point for each in measured]
    search = AdeptSearch(iterations=iterations)
    seeds = 2 if args.quick else SEEDS
    fits = all_fits(points, search, seeds)
    if args.ship:
        gpu = points[0].placement.gpu
        to = f"{len(points)} steps of {path.name}"
        save_shipped(gpu, fits.constants["S7"], to)
    publish(_page(measured, fits, search, seeds), args)
    return 0


def _page(measured: Sequence[Measured], fits: Fits, search: AdeptSearch, seeds: int) -> Page:
    points = [each.point for each in measured]
    small = [each.point for each in measured if _in_thesis(each)]
    few = all_fits(small, search, stages_only=True) if len(small) > 3 else None
    return Page(
        "predict_adept",
        "ADEPT on an H200, in sample and out of it",
        _bars(points, fits),
        [
            refinement(points, fits),
            *([thesis_rows(small, few)] if few else []),
            *by_part(points, fits),
            saturations(points, fits),
            ablation(points, fits),
            parameters(points, fits, seeds),
        ],
        text=TEXT.format(
            rows=len(points),
            groups=len({p.group for p in points}),
            iterations=search.iterations,
        ),
        packages=("wattloop", "torch", "transformers", "scipy", "numpy"),
    )


def _in_thesis(measured: Measured) -> bool:
    return THESIS_MODELS.get(measured.row.model) == measured.row.batch


def _bars(points: Sequence[MeasuredStep], fits: Fits) -> list[Bar]:
    inside, outside = errors_of(points, fits.inside["S7"]), errors_of(points, fits.outside["S7"])
    line = errors_of(points, fits.outside[ROOFLINE])
    line_inside = errors_of(points, fits.inside[ROOFLINE])
    thesis = Errors(3.05, 5.78, float("nan"))
    rows = [
        Bar(
            f"{what}, in sample",
            getattr(inside, what),
            "%",
            baselines={
                "thesis (A100)": getattr(thesis, what) if what != "energy" else "not given",
                "roofline": getattr(line_inside, what),
            },
        )
        for what in ("time", "power", "combined", "energy")
    ]
    rows += [
        Bar(
            f"{what}, out of sample",
            getattr(outside, what),
            "%",
            baselines={"thesis (A100)": "not given", "roofline": getattr(line, what)},
        )
        for what in ("time", "power", "combined", "energy")
    ]
    return rows


if __name__ == "__main__":
    sys.exit(main())
