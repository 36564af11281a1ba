"""What a column is: its unit, whether it was chosen or came out, and which way is better.

Names decide, because that is all a CSV has. Whatever is inferred is said, and may be declared
instead.
"""

import difflib
import re
from collections.abc import Sequence

__all__ = [
    "UNITS",
    "is_identifier",
    "is_parameter_name",
    "is_result_name",
    "larger_is_better",
    "nearest",
    "unit_of",
    "unit_word",
    "words_of",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNITS: dict[str, tuple[str, float]] = {
    "j": ("J", 1.0),
    "kj": ("J", 1e3),
    "wh": ("J", 3_600.0),
    "kwh": ("J", 3_600_000.0),
    "s": ("s", 1.0),
    "sec": ("s", 1.0),
    "seconds": ("s", 1.0),
    "ms": ("s", 1e-3),
    "minutes": ("s", 60.0),
    "hours": ("s", 3_600.0),
    "w": ("W", 1.0),
    "kw": ("W", 1e3),
    "pct": ("1", 0.01),
    "%": ("1", 0.01),
}
"""Last word of a name -> SI unit and factor."""

IDENTIFIERS = _words(
    "id run run_id trial candidate number key name status state message index row started "
    "ended created begun host segments provenance reason is_default warm_up outlier best_at"
)
RESULT_WORDS = _words(
    "accuracy acc loss error f1 auc auroc score quality bleu rouge perplexity ppl r2 rmse mae mse "
    "energy joules runtime duration elapsed time power watts efficiency quotient edp ed2p eds "
    "throughput utilisation utilization temperature carbon co2 cost gain reached epochs "
    "speedup peak average emissions"
)
PARAMETER_WORDS = _words(
    "batch batchsize lr rate optimizer momentum decay dropout precision fp16 bf16 workers cores "
    "seed layers depth width size steps accumulation schedule warmup cap limit clock frequency "
    "governor gpus gpu_count partitioning augmentation preprocessing quantization compile"
)
LARGER_IS_BETTER = _words(
    "accuracy acc f1 auc auroc score quality bleu rouge r2 efficiency quotient throughput gain "
    "speedup"
)
PARAMETER_PREFIX = re.compile(r"^(param|params|parameter|config|hp)[_./]", re.IGNORECASE)
UNIT = r"(?<![a-zA-Z])[kmunKMGT](?:Wh|J|W)(?![a-zA-Z])"
"""A unit with its prefix, which is one word."""
SPREADS = ("_sd", "_half_width", "_uncertainty", "_uncertainty_j")


def words_of(name: str) -> list[str]:
    """`Eval loss (Wh)` and `evalLoss_wh` as eval, loss, wh."""
    split = re.sub(rf"(?!{UNIT})([a-z])([A-Z])", r"\1 \2", name)
    return [word for word in re.split(r"[^0-9a-zA-Z%]+", split.lower()) if word]


def unit_of(name: str) -> tuple[str, float] | None:
    """SI unit and factor: `energy_wh` is 3,600 J each; None when the name has no unit.

    A unit alone is none, and `_mean` after one is taken off.
    """
    return UNITS.get(unit_word(name))


def unit_word(name: str) -> str:
    """The word that would be its unit, before a `_mean`; empty where there is no other."""
    words = words_of(name)
    if words and words[-1] == "mean":
        words.pop()
    return words[-1] if len(words) > 1 else ""


def is_identifier(name: str) -> bool:
    """Whether it names a row instead of describing it."""
    plain = name.lower()
    return plain in IDENTIFIERS or plain.endswith(("_id", "_provenance", *SPREADS))


def is_parameter_name(name: str) -> bool:
    """Whether the name says that somebody chose the value."""
    return bool(PARAMETER_PREFIX.match(name)) or bool(PARAMETER_WORDS & set(words_of(name)))


def is_result_name(name: str) -> bool:
    """Whether the name says that the value came out."""
    if PARAMETER_PREFIX.match(name):
        return False
    words = set(words_of(name))
    if {"power", "clock"} & words and {"limit", "cap", "capping"} & words:
        return False
    return bool(RESULT_WORDS & words) or unit_of(name) is not None


def larger_is_better(name: str) -> bool:
    """By its name: more accuracy is better, less of everything else."""
    words = set(words_of(name))
    return bool(LARGER_IS_BETTER & words) and not {"loss", "error"} & words


def nearest(word: str, known: Sequence[str]) -> str:
    """What to say of a word that is not known."""
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(lower), n=1, cutoff=0.5)
    return f"did you mean '{lower[near[0]]}'?" if near else f"known are {', '.join(known)}"
