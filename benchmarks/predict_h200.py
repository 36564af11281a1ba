"""How well a training step on an H200 is predicted by constants that never saw its model.

    python benchmarks/predict_h200.py [--quick] [--json FILE] [--models kernels,adept,roofline]

Reads h200_train_steps.jsonl from the folder gpu/ of WATTLOOP_SHARED_DATA, or from
benchmarks/data/h200. Networks are traced once and kept on disk (see predict_points).
"""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

from bars import Page, arguments, publish
from predict_errors import Outcome, mean_error
from predict_h200_page import TEXT, bars_of, draw, prototype_table
from predict_h200_tables import by_model, by_part, compared, coverages, of_memory, worst
from predict_points import Measured, measured_points, steps_file
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.intervals import Intervals
from wattloop.predict.leave_one_out import Judged, leave_one_out
from wattloop.predict.models.adept import Adept
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import Model
from wattloop.predict.models.roofline import Roofline
from wattloop.predict.scope import Scope

QUICK_MODELS = ("lstm_household@60", "mlp_4096x6", "resnet18@32")


def main() -> int:
    parser = arguments("how well steps of unseen models on an H200 are predicted")
    parser.add_argument("--models", default="kernels,adept,roofline", help="which models to judge")
    args = parser.parse_args()
    path = steps_file()
    if path is None:
        print(
            "predict_h200: h200_train_steps.jsonl is neither in gpu/ of WATTLOOP_SHARED_DATA "
            "nor in benchmarks/data/h200; nothing judged"
        )
        return 0
    publish(_page(args, measured_points(path, QUICK_MODELS if args.quick else None)), args)
    return 0


@dataclass(frozen=True)
class Verdict:
    """One model's predictions of all rows, out of sample."""

    judged: list[Judged]
    fit_s: float


def _page(args: Namespace, measured: Sequence[Measured]) -> Page:
    chosen = args.models.split(",")
    verdicts = {name: _judge(_model(name, args.quick), measured) for name in chosen}
    outcomes = _outcomes(verdicts, measured)
    first = chosen[0]
    ours = outcomes[first]
    nested = _nested([o.judged for o in ours])
    covered = coverages(ours, nested)
    in_sample = _in_sample(measured, args.quick) if "adept" in chosen else None
    tables = [
        by_part(ours, f"Errors of {first} by regime"),
        compared(outcomes, "All models, out of sample"),
        prototype_table(outcomes),
        by_model(ours, f"Errors of {first} by model and precision"),
        worst(ours, f"Where {first} is most wrong"),
        of_memory(ours, "Peak memory as traced"),
    ]
    if not args.quick:
        draw(ours, args.docs)
    return Page(
        "predict_h200",
        "Training steps of unseen models on an H200",
        bars_of(outcomes, first, covered, in_sample),
        tables,
        text=TEXT.format(rows=len(ours), groups=len(nested)),
        packages=("wattloop", "torch", "transformers", "numpy"),
        details={
            "rows": [
                {"step": o.label, **{q: o.error(q) for q in ("time", "power", "energy")}}
                for o in ours
            ],
            "fit_s": {name: verdict.fit_s for name, verdict in verdicts.items()},
        },
    )


def _model(name: str, quick: bool) -> Model:
    if name == "kernels":
        return KernelModel.for_gpu(gpu_named("h200"))
    if name == "adept":
        from wattloop.predict.models.adept.calibration import Search

        return Adept(search=Search(iterations=20 if quick else 300))
    if name == "roofline":
        return Roofline()
    raise SystemExit(f"--models {name}: unknown; choose of kernels, adept, roofline")


def _judge(model: Model, measured: Sequence[Measured]) -> Verdict:
    """Every group by constants from the others."""
    began = time.perf_counter()
    said = sys.stderr.isatty()

    def tell(group: str) -> None:
        if said:
            print(f"\r{model.name}: without {group:<20}", end="", file=sys.stderr, flush=True)

    judged = leave_one_out(model, [m.point for m in measured], tell)
    if said:
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return Verdict(judged, time.perf_counter() - began)


def _outcomes(
    verdicts: dict[str, Verdict], measured: Sequence[Measured]
) -> dict[str, list[Outcome]]:
    by = verdicts.get("kernels") or next(iter(verdicts.values()))
    hosts = [judged.prediction.host_s or 0.0 for judged in by.judged]
    return {
        name: [
            Outcome(m.row, m.family, judged, host_s)
            for m, judged, host_s in zip(measured, verdict.judged, hosts, strict=True)
        ]
        for name, verdict in verdicts.items()
    }


def _nested(judged: Sequence[Judged]) -> dict[str, Intervals]:
    """Group -> intervals from the residuals and the range of the other groups."""
    found = {}
    for group in dict.fromkeys(j.point.group for j in judged):
        others = [j for j in judged if j.point.group != group]
        scope = Scope.of("h200", [j.point.workload for j in others])
        found[group] = Intervals.by_parts([j.residual for j in others], scope)
    return found


def _in_sample(measured: Sequence[Measured], quick: bool) -> dict[str, float]:
    """Mean errors of adept on the rows it was fitted to, as the thesis reports them."""
    fitted = _model("adept", quick).fit([m.point for m in measured])
    outcomes = [
        Outcome(
            m.row, m.family, Judged(m.point, fitted.predict(m.point.workload, m.point.placement)), 0
        )
        for m in measured
    ]
    return {q: mean_error(outcomes, q) or 0.0 for q in ("time", "power", "energy")}


if __name__ == "__main__":
    raise SystemExit(main())
