"""The input of all analyses: rows of parameters and results, with the meaning of each column."""

import difflib
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError

# What a column is: its unit, whether it was chosen or came out, and which way is better.
#
# Names decide, because that is all a CSV has. Whatever is inferred is said, and may be declared
# instead.


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


def split_words(name: str) -> list[str]:
    """Split `Eval loss (Wh)` and `evalLoss_wh` into eval, loss, wh."""
    split = re.sub(rf"(?!{UNIT})([a-z])([A-Z])", r"\1 \2", name)
    return [word for word in re.split(r"[^0-9a-zA-Z%]+", split.lower()) if word]


def column_unit(name: str) -> tuple[str, float] | None:
    """Return SI unit and factor: `energy_wh` is 3,600 J each; None when the name has no unit.

    A unit alone is none, and `_mean` after one is taken off.
    """
    return UNITS.get(unit_word(name))


def unit_word(name: str) -> str:
    """Return the word that may be its unit, before a `_mean`; empty without one."""
    words = split_words(name)
    if words and words[-1] == "mean":
        words.pop()
    return words[-1] if len(words) > 1 else ""


def is_identifier(name: str) -> bool:
    """Return True when a column names a row instead of describing it."""
    plain = name.lower()
    return plain in IDENTIFIERS or plain.endswith(("_id", "_provenance", *SPREADS))


def is_parameter_name(name: str) -> bool:
    """Return True when the name is that of a chosen value, not of a result."""
    return bool(PARAMETER_PREFIX.match(name)) or bool(PARAMETER_WORDS & set(split_words(name)))


def is_result_name(name: str) -> bool:
    if PARAMETER_PREFIX.match(name):
        return False
    words = set(split_words(name))
    if {"power", "clock"} & words and {"limit", "cap", "capping"} & words:
        return False
    return bool(RESULT_WORDS & words) or column_unit(name) is not None


def larger_is_better(name: str) -> bool:
    """Judge by the name: more accuracy is better, less of everything else."""
    words = set(split_words(name))
    return bool(LARGER_IS_BETTER & words) and not {"loss", "error"} & words


def nearest(word: str, known: Sequence[str]) -> str:
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(lower), n=1, cutoff=0.5)
    return f"did you mean '{lower[near[0]]}'?" if near else f"known are {', '.join(known)}"


# table = read_csv("runs.csv")
# table = table_of(rows, name="search-...", parameters=["lr", "batch_size"])

Value = str | float | int | bool | None
Floats = NDArray[np.float64]
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """Columns of equal length; a value that is missing is None.

    Attributes:
        parameters: the columns that were chosen before the run.
        results: the columns that came out.
        source: whose energy it is and where it comes from, as far as known.
        left_out: rows that are not here, by reason.
        directions: columns of which more is better (True) or worse (False); names decide on others.
    """

    name: str
    columns: Mapping[str, tuple[Value, ...]]
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    names: tuple[str, ...]
    source: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    directions: Mapping[str, bool] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str) -> tuple[Value, ...]:
        if name not in self.columns:
            first = [c for c in (*self.parameters, *self.results) if c in self.columns]
            known = list(dict.fromkeys([*first, *self.columns]))
            raise ConfigError(f"{self.name}: no column '{name}'; {nearest(name, known)}")
        return self.columns[name]

    def is_numeric(self, name: str) -> bool:
        kinds = self._kinds(name)
        return bool(kinds) and kinds <= {int, float}

    def numbers(self, name: str) -> Floats:
        """Return the values as floats; missing and infinite ones are NaN."""
        values = self.column(name)
        kinds = self._kinds(name)
        if not kinds:
            raise ConfigError(f"{self.name}: column '{name}' has no values")
        if not kinds <= {int, float}:
            pairs = zip(self.names, values, strict=True)
            row, bad = next((r, v) for r, v in pairs if v is not None and not _is_number(v))
            numeric = [c for c in self.results if self.is_numeric(c)]
            remedy = f"; numbers are in {', '.join(numeric)}" if numeric else ""
            raise ConfigError(
                f"{self.name}: column '{name}' is not a number: '{bad}' in {row}{remedy}"
            )
        found = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
        found[~np.isfinite(found)] = math.nan
        return found

    def labels(self, name: str) -> list[str | None]:
        # 1 and True are one key of a dictionary
        pairs = [(type(value), value) for value in self.column(name)]
        known = {pair: None if pair[1] is None else format_level(pair[1]) for pair in set(pairs)}
        return [known[pair] for pair in pairs]

    def varies(self, name: str) -> bool:
        """Return True when it has two different values; faster than listing them all."""
        return len(set(self.column(name)) - {None}) > 1

    def levels(self, name: str) -> list[str]:
        """Return the different values: numbers by size, then text by name."""
        known = {v for v in self.column(name) if v is not None}
        ordered = sorted(
            known, key=lambda v: (0, float(v), "") if _is_number(v) else (1, 0.0, str(v))
        )
        return list(dict.fromkeys(format_level(value) for value in ordered))

    def more_is_better(self, name: str) -> bool:
        return self.directions.get(name, larger_is_better(name))

    def keep(self, wanted: Sequence[bool] | NDArray[np.bool_], reason: str) -> "RunTable":
        """Keep some of the rows; the others are counted under `reason`."""
        chosen = [bool(want) for want in wanted]
        if all(chosen):
            return self
        gone = Counter(self.left_out) + Counter({reason: chosen.count(False)})
        return replace(
            self,
            columns={c: tuple(compress(v, chosen)) for c, v in self.columns.items()},
            names=tuple(compress(self.names, chosen)),
            left_out=dict(gone),
        )

    def complete(self, names: Iterable[str]) -> "RunTable":
        """Keep the rows that have all of these; others count under the first that they lack."""
        table = self
        for name in names:
            if table.is_numeric(name):
                there = np.isfinite(table.numbers(name))
            else:
                there = np.array([value is not None for value in table.column(name)], dtype=bool)
            table = table.keep(there, f"no {name}")
        return table

    def where(self, condition: str) -> "RunTable":
        """Keep the rows for which `COLUMN>=VALUE` (also =, !=, <=, <, >) holds.

        Raises:
            ConfigError: not a condition, or no row is left.
        """
        found = re.fullmatch(r"\s*(.+?)\s*(>=|<=|!=|=|>|<)=?\s*(.*?)\s*", condition)
        if found is None:
            raise ConfigError(f"'{condition}': write a condition as COLUMN>=VALUE or COLUMN=VALUE")
        name, sign, text = found[1], found[2], found[3]
        compare = COMPARISONS[sign]
        if sign in ("=", "!="):
            wanted = format_level(_number_or_text(text))
            kept = [
                label is not None and bool(compare(label, wanted)) for label in self.labels(name)
            ]
        else:
            limit = _number_or_text(text)
            if not _is_number(limit):
                raise ConfigError(f"'{condition}': '{text}' is not a number")
            with np.errstate(invalid="ignore"):
                kept = list(compare(self.numbers(name), float(limit)))
        table = self.keep(kept, f"not {condition}")
        if not len(table):
            raise ConfigError(f"{self.name}: no row with {condition}; it has {self._range(name)}")
        return table

    def with_column(self, name: str, values: Sequence[Value]) -> "RunTable":
        results = self.results if name in self.results else (*self.results, name)
        return replace(self, columns={**self.columns, name: tuple(values)}, results=results)

    def needs_rows(self, count: int, what: str) -> None:
        if len(self) < count:
            gone = ", ".join(f"{n} {reason}" for reason, n in self.left_out.items())
            left = f" ({gone})" if gone else ""
            raise ConfigError(
                f"{self.name}: {len(self)} rows{left} are too few for {what}; it takes {count}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Describe the table without its values."""
        return {
            "name": self.name,
            "rows": len(self),
            "parameters": list(self.parameters),
            "results": list(self.results),
            "source": self.source,
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
        }

    def _kinds(self, name: str) -> set[type]:
        if name not in self._types:
            self._types[name] = set(map(type, self.column(name))) - {type(None)}
        return self._types[name]

    @cached_property
    def _types(self) -> dict[str, set[type]]:
        return {}

    def _range(self, name: str) -> str:
        if self.is_numeric(name):
            values = self.numbers(name)
            return f"{np.nanmin(values):g} to {np.nanmax(values):g}"
        return ", ".join(self.levels(name)[:10])


def format_level(value: Value) -> str:
    """Format a value as a level: 64.0 is 64."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


def _is_number(value: Value) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_or_text(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text
