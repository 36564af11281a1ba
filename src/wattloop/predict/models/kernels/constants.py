"""What the kernels model knows of one GPU, as a file."""

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.predict.models.kernels.defaults import DEFAULTS
from wattloop.predict.models.kernels.residuals import ResidualGroup, Residuals
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Phase

__all__ = ["KernelConstants"]

FORMAT = "wattloop kernels constants"
VERSION = 1
REMEDY = "make it again with 'wattloop calibrate fit'"


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Constants of one GPU and where they come from.

    Attributes:
        gpu: short name of the GPU they hold for; empty for the data-sheet guess.
        values: the numbers.
        residuals: what microbenchmarks say beyond the formulas.
        intervals: relative residuals of models that the constants had not seen, for intervals.
        made: what they were fitted to, when, with which versions.
        before: what numbers were (None: absent) before training steps moved them; a fit starts
            from there, so that a model fitted to other steps has seen none of the former ones.
    """

    gpu: str = ""
    values: Values = field(default_factory=lambda: Values(DEFAULTS))
    residuals: Residuals = field(default_factory=Residuals)
    intervals: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, float | None] = field(default_factory=dict)

    def unfitted(self) -> "KernelConstants":
        """The constants as microbenchmarks gave them, without what training steps added."""
        numbers: dict[str, float] = dict(self.values.numbers)
        for name, value in self.before.items():
            if value is None:
                numbers.pop(name, None)
            else:
                numbers[name] = value
        return replace(self, values=Values(numbers), before={}, intervals={})

    def fitted(self, values: Values) -> "KernelConstants":
        """These constants with `values` that a fit to training steps found."""
        old = self.values.numbers
        before = {
            name: old.get(name) for name, value in values.numbers.items() if old.get(name) != value
        }
        return replace(self, values=values, before=before)

    def with_values(self, changes: Mapping[str, float]) -> "KernelConstants":
        """These constants with some numbers replaced."""
        return replace(self, values=self.values.with_changes(changes))

    def to_plain(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "gpu": self.gpu,
            "made": dict(self.made),
            "values": {name: _short(value) for name, value in self.values.numbers.items()},
            "before": {
                name: None if value is None else _short(value)
                for name, value in self.before.items()
            },
            "intervals": dict(self.intervals),
            "residuals": {
                name: {
                    "reach": [_short(length) for length in group.reach.tolist()],
                    "weights": [_short(w) for w in group.weights.tolist()],
                    "places": [[round(x, 3) for x in place] for place in group.places.tolist()],
                }
                for name, group in self.residuals.groups.items()
            },
        }

    def save(self, path: Path) -> None:
        """Writes the file, packed when its name ends in `.gz`."""
        text = json.dumps(self.to_plain(), separators=(",", ":"))
        data = text.encode("utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        # mtime 0: the same constants are the same bytes
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)

    @classmethod
    def load(cls, path: Path) -> "KernelConstants":
        """Reads a file that `save` wrote.

        Raises:
            ConfigError: the file and the field that is wrong, and how to make it again.
        """
        try:
            data = path.read_bytes()
            plain = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        except (OSError, EOFError, ValueError) as fault:
            raise ConfigError(
                f"{path}: not a readable constants file ({fault}); {REMEDY}"
            ) from None
        return cls.from_plain(plain, str(path))

    @classmethod
    def from_plain(cls, plain: Any, where: str) -> "KernelConstants":
        """Constants from a file's content; `where` names it in errors."""
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise _fault(where, "format", f"is not '{FORMAT}'")
        if plain.get("version") != VERSION:
            raise _fault(
                where, "version", f"is {plain.get('version')!r}, this version reads {VERSION}"
            )
        if not isinstance(plain.get("gpu"), str) or not plain["gpu"]:
            raise _fault(where, "gpu", "does not name a GPU")
        numbers = plain.get("values")
        if not isinstance(numbers, dict):
            raise _fault(where, "values", "is missing")
        for name, value in numbers.items():
            if not _finite(value):
                raise _fault(where, f"values.{name}", f"is no number: {value!r}")
        known = _by_phase(numbers)
        residuals = plain.get("residuals", {})
        if not isinstance(residuals, dict):
            raise _fault(where, "residuals", "is no mapping")
        groups = {name: _group(where, name, group) for name, group in residuals.items()}
        return cls(
            gpu=plain["gpu"],
            values=Values({**DEFAULTS, **{name: float(v) for name, v in known.items()}}),
            residuals=Residuals(groups),
            intervals=_mapping(where, plain, "intervals"),
            made=_mapping(where, plain, "made"),
            before=_by_phase(_before(where, plain)),
        )


def _by_phase(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Older files have the fixed time of a whole step, `host.step_s`: a third is each phase's."""
    found = dict(numbers)
    whole_s = found.pop("host.step_s", None)
    thirds = {} if whole_s is None else {f"host.step_s.{phase}": whole_s / 3 for phase in Phase}
    return {**thirds, **found}


def _group(where: str, name: str, group: Any) -> ResidualGroup:
    field_name = f"residuals.{name}"
    if not isinstance(group, dict):
        raise _fault(where, field_name, "is no mapping")
    try:
        places = np.array(group["places"], dtype=np.float64)
        weights = np.array(group["weights"], dtype=np.float64)
        reach = np.array(group["reach"], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as fault:
        raise _fault(where, field_name, f"is incomplete ({fault})") from None
    matching = places.ndim == 2 and weights.shape == (len(places),)
    if not matching or reach.shape != places.shape[1:] or not (reach > 0).all():
        raise _fault(where, field_name, "has places, weights and reach that do not match")
    if not (np.isfinite(places).all() and np.isfinite(weights).all()):
        raise _fault(where, field_name, "has values that are no numbers")
    return ResidualGroup(places, weights, reach)


def _mapping(where: str, plain: dict[str, Any], name: str) -> dict[str, Any]:
    value = plain.get(name, {})
    if not isinstance(value, dict):
        raise _fault(where, name, "is no mapping")
    return value


def _before(where: str, plain: dict[str, Any]) -> dict[str, float | None]:
    before = _mapping(where, plain, "before")
    for name, value in before.items():
        if value is not None and not _finite(value):
            raise _fault(where, f"before.{name}", f"is no number: {value!r}")
    return before


def _fault(where: str, field_name: str, what: str) -> ConfigError:
    return ConfigError(f"{where}: field '{field_name}' {what}; {REMEDY}")


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
