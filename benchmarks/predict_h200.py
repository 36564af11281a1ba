"""Accuracy of predicted training steps on an H200, by constants that never saw their model.

    python benchmarks/predict_h200.py [--quick] [--json FILE] [--models kernels,adept,roofline]

Reads h200_train_steps.jsonl from the folder gpu/ of WATTLOOP_SHARED_DATA, or from
benchmarks/data/h200. Networks are traced once and kept on disk (see predict_points).
"""

import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bars import Page, arguments, publish
from predict_base import KeptAdept
from predict_errors import Outcome, mean_error
from predict_fits import Judged, leave_one_out
from predict_h200_fresh import fresh_bars, fresh_table, judge_fresh, newest_networks
from predict_h200_intervals import coverages, hindsight_table, nested, origin_table
from predict_h200_page import TEXT, bars_of, draw, prototype_table
from predict_h200_repeats import repeat_table
from predict_h200_tables import by_model, by_part, compared, of_memory, worst
from predict_h200_unsteady import UNSTEADY, judge_unsteady, unsteady_bars, unsteady_table
from predict_hosts import moved_points
from predict_points import Measured, measured_points, own_points, steps_file, suite_files
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import MeasuredStep, Model
from wattloop.predict.models.roofline import Roofline

QUICK_MODELS = ("lstm_household@60", "mlp_4096x6", "resnet18@32")


def main() -> int:
    parser = arguments("how well steps of unseen models on an H200 are predicted")
    parser.add_argument("--models", default="kernels,adept,roofline", help="which models to judge")
    args = parser.parse_args()
    path = steps_file()
    if path is None:
        print(
            "predict_h200: neither gpu/h200_train_steps.jsonl of WATTLOOP_SHARED_DATA nor "
            "benchmarks/data/h200/train_steps.jsonl is here; nothing judged"
        )
        return 0
    measured = measured_points(path, QUICK_MODELS if args.quick else None)
    own = [] if args.quick else own_points(suite_files())
    publish(_page(args, measured, own), args)
    return 0


@dataclass(frozen=True)
class Verdict:
    """One model's predictions of all rows, out of sample."""

    judged: list[Judged]
    took_s: float


def _page(args: Namespace, measured: Sequence[Measured], own: Sequence[Measured]) -> Page:
    first, *_ = chosen = args.models.split(",")
    models = {name: _model(name, args.quick) for name in chosen}
    verdicts = {name: _left_out(model, measured, own) for name, model in models.items()}
    outcomes = _outcomes(verdicts, measured)
    ours = outcomes[first]
    second: dict[str, list[Outcome]] = {}
    if own:
        second = _outcomes({n: _unseen(m, measured, own) for n, m in models.items()}, own)
    others = _as_shipped(models[first], measured, own, second.get(first, ()))
    known = nested([o.judged for o in ours], [o.judged for o in others])
    covered = coverages(ours, known)
    in_sample = _in_sample(measured, args.quick) if "adept" in chosen else None
    tables = [
        by_part(ours, f"Errors of {first} by regime"),
        compared(outcomes, "All models, out of sample"),
        prototype_table(outcomes),
        by_model(ours, f"Errors of {first} by network and precision"),
        worst(ours, f"Where {first} is most wrong"),
        repeat_table(ours),
        hindsight_table(ours, covered),
    ]
    bars = bars_of(outcomes, second, first, covered, in_sample)
    if own:
        fresh = judge_fresh(models, measured, own)
        bars += fresh_bars(fresh)
        tables += [
            fresh_table(fresh),
            by_part(fresh.outcomes[first], "The same by regime"),
            origin_table(ours, others, known),
            by_part(second[first], "Networks of the suite, which the constants never saw"),
            compared(second, "The same by all models"),
            by_model(second[first], "The same by network and precision"),
        ]
        everything = [m.point for m in (*measured, *own)]
        unsteady = judge_unsteady(models[first], everything, UNSTEADY)
        if unsteady is not None:
            bars += unsteady_bars(unsteady)
            tables.append(unsteady_table(unsteady))
    tables.append(of_memory(ours, "Peak memory as traced"))
    if not args.quick:
        draw([*ours, *second.get(first, ())], args.docs)
    return Page(
        "predict_h200",
        "Training steps of unseen networks on an H200",
        bars,
        tables,
        text=_text(ours, own),
        packages=("wattloop", "torch", "transformers", "numpy"),
        details={
            "rows": [
                {"step": o.label, **{q: o.error(q) for q in ("time", "power", "energy")}}
                for o in (*ours, *second.get(first, ()))
            ],
            "took_s": {name: verdict.took_s for name, verdict in verdicts.items()},
        },
    )


def _text(ours: Sequence[Outcome], own: Sequence[Measured]) -> str:
    fresh = newest_networks(own) if own else []
    return TEXT.format(
        rows=len(ours),
        own=len(own),
        nets=len({m.point.group for m in own}),
        fresh=len(fresh),
        fresh_nets=len({m.point.group for m in fresh}),
    )


def _model(name: str, quick: bool) -> Model:
    """Return a model before it is fitted to steps; `kernels` has its microbenchmarks."""
    if name == "kernels":
        # a fit starts from the microbenchmarks, independent of earlier fits
        return KernelModel() if quick else KernelModel.for_gpu(gpu_named("h200"))
    if name == "adept":
        from wattloop.predict.models.adept.model import AdeptSearch

        return KeptAdept(search=AdeptSearch(iterations=5 if quick else 150))
    if name == "roofline":
        return Roofline()
    raise SystemExit(f"--models {name}: unknown; choose of kernels, adept, roofline")


def _left_out(model: Model, measured: Sequence[Measured], own: Sequence[Measured]) -> Verdict:
    """Predict every group by constants from the others, and from the suite's networks."""
    began = time.perf_counter()

    def tell(group: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{model.name}: without {group:<20}", end="", file=sys.stderr, flush=True)

    suite = [m.point for m in own]
    judged = leave_one_out(model, [m.point for m in measured], tell, lambda _: suite)
    return Verdict(judged, time.perf_counter() - began)


def _unseen(model: Model, measured: Sequence[Measured], own: Sequence[Measured]) -> Verdict:
    """Predict the suite's networks by constants from the twelve, at the speed of the suite's
    hosts.
    """
    began = time.perf_counter()
    fitted = model.fit([m.point for m in measured])
    points = [m.point for m in own]
    if isinstance(fitted, KernelModel):
        points = moved_points(fitted, own)
    return Verdict(_predicted(fitted, points), time.perf_counter() - began)


def _as_shipped(
    model: Model, measured: Sequence[Measured], own: Sequence[Measured], second: Sequence[Outcome]
) -> list[Outcome]:
    """Predict each of the suite's networks by constants from all others, as for shipped
    intervals.
    """
    if not isinstance(model, KernelModel) or not own:
        return list(second)
    twelve = [m.point for m in measured]
    judged = leave_one_out(model, [m.point for m in own], None, lambda _: twelve)
    return _outcomes({model.name: Verdict(judged, 0.0)}, own)[model.name]


def _predicted(fitted: Model, points: Sequence[MeasuredStep]) -> list[Judged]:
    return [Judged(p, fitted.predict(p.workload, p.placement)) for p in points]


def _outcomes(
    verdicts: Mapping[str, Verdict], measured: Sequence[Measured]
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


def _in_sample(measured: Sequence[Measured], quick: bool) -> dict[str, float]:
    """Return mean errors of adept on the rows it was fitted to, as the thesis reports them."""
    points = [m.point for m in measured]
    judged = _predicted(_model("adept", quick).fit(points), points)
    outcomes = [Outcome(m.row, m.family, j, 0) for m, j in zip(measured, judged, strict=True)]
    return {q: mean_error(outcomes, q) or 0.0 for q in ("time", "power", "energy")}


if __name__ == "__main__":
    raise SystemExit(main())
