"""Tables of docs/benchmarks/predict_h200.md."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from bars import Table
from predict_errors import QUANTITIES, Outcome, bias, mean_error, median_error, parts
from wattloop.predict.prediction import Prediction

__all__ = [
    "by_model",
    "by_part",
    "compared",
    "memory_error",
    "of_memory",
    "worst",
]

WORST = 15


def by_part(outcomes: Sequence[Outcome], title: str) -> Table:
    """Table by regime and family."""
    rows = [
        [name, len(found), *(cell for q in QUANTITIES for cell in _three(found, q))]
        for name, found in parts(outcomes).items()
        if found
    ]
    header = [
        "rows",
        "n",
        *(f"{q} {what}" for q in QUANTITIES for what in ("mean", "median", "bias")),
    ]
    return Table(title, header, rows, "Errors in percent of what was measured; bias is signed.")


def compared(outcomes: Mapping[str, Sequence[Outcome]], title: str) -> Table:
    """Table of the mean errors of all models."""
    names = list(outcomes)
    split = {name: parts(found) for name, found in outcomes.items()}
    rows = [
        [part, quantity, *(mean_error(split[name][part], quantity) for name in names)]
        for part in split[names[0]]
        for quantity in QUANTITIES
        if split[names[0]][part]
    ]
    return Table(title, ["rows", "mean error of", *names], rows)


def by_model(outcomes: Sequence[Outcome], title: str) -> Table:
    """Table of error and bias of time by precision, and of power and energy, per model."""
    precisions = sorted({o.row.precision for o in outcomes})
    rows = []
    for model in dict.fromkeys(o.row.model for o in outcomes):
        own = [o for o in outcomes if o.row.model == model]
        cells = [_signed([o for o in own if o.row.precision == p], "time") for p in precisions]
        rows.append([model, len(own), *cells, *(_signed(own, q) for q in QUANTITIES)])
    header = ["model", "n", *(f"time {p}" for p in precisions), *QUANTITIES]
    return Table(title, header, rows, "Mean error (bias) in percent.")


def worst(outcomes: Sequence[Outcome], title: str) -> Table:
    """Table of the rows with the largest error of time, and their parts."""
    rows = []
    for o in sorted(outcomes, key=lambda o: -abs(o.error("time")))[:WORST]:
        found = o.judged.prediction
        rows.append(
            [
                o.label,
                1e3 * o.row.step_s,
                1e3 * found.step_s,
                f"{100 * o.error('time'):+.0f}%",
                f"{100 * o.error('power'):+.0f}%",
                "host" if o.host_bound else "GPU",
                _ms(found.gpu_s),
                _ms(found.host_s),
                _largest(found),
            ]
        )
    header = [
        "step", "measured ms", "predicted ms", "time", "power", "bottleneck", "GPU ms", "host ms",
        "largest terms, ms",
    ]  # fmt: skip
    return Table(title, header, rows)


def memory_error(outcomes: Sequence[Outcome]) -> float:
    """Return the mean error in percent of the traced peak: tensors, and cuDNN's workspaces by
    rule.
    """
    return 100 * fmean(abs(_memory(o)) for o in outcomes)


def of_memory(outcomes: Sequence[Outcome], title: str) -> Table:
    """Table of peak memory by model, smallest and largest batch separate."""
    rows = []
    for model in dict.fromkeys(o.row.model for o in outcomes):
        own = [o for o in outcomes if o.row.model == model]
        top = max(o.row.batch for o in own)
        largest = [o for o in own if o.row.batch == top]
        rows.append(
            [
                model,
                100 * fmean(abs(_memory(o)) for o in own),
                100 * fmean(_memory(o) for o in own),
                *(f"{o.row.precision} {100 * _memory(o):+.0f}%" for o in largest),
            ]
        )
    width = max(map(len, rows))
    header = ["model", "mean error %", "bias %", *["largest batch"] * (width - 3)]
    return Table(title, header, [[*row, *[""] * (width - len(row))] for row in rows], MEMORY)


MEMORY = """
Tensors at their most and the workspaces of cuDNN's convolutions, as far as they follow a rule,
against the peak that torch's allocator saw. Too low where cuDNN takes gigabytes for an FFT, or
workspaces of recurrent layers, by no rule that we know.
""".strip().replace("\n", " ")


def _memory(o: Outcome) -> float:
    return o.judged.point.workload.peak_bytes / o.row.peak_bytes - 1


def _three(outcomes: Sequence[Outcome], quantity: str) -> tuple[float | None, ...]:
    return tuple(measure(outcomes, quantity) for measure in (mean_error, median_error, bias))


def _signed(outcomes: Sequence[Outcome], quantity: str) -> str:
    if not outcomes:
        return ""
    return f"{mean_error(outcomes, quantity):.1f} ({bias(outcomes, quantity):+.1f})"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _largest(prediction: Prediction, top: int = 4) -> str:
    found = sorted(prediction.terms_s.items(), key=lambda item: -item[1])[:top]
    return ", ".join(f"{name} {1e3 * value:.2f}" for name, value in found)
