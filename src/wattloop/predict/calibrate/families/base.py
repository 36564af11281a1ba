"""Family of operations: the cases to measure, the calls that run one, and its traced operations."""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wattloop.predict.calibrate.machine import CalibrationDevice, KernelCalls
from wattloop.predict.workload.operation import Operation

SECTIONS = ("host", "kernels", "power", "steps", "waiting", "profile")
BOTH = ("forward", "backward")
Row = dict[str, object]
"""Parameters of a case."""


@dataclass(frozen=True, slots=True)
class CalibrationCase:
    """Kernel, host call, power run, training step or profile to measure.

    Attributes:
        section: which part of the suite it belongs to, one of `SECTIONS`.
        family: that builds it, such as `gemm` or `conv`.
        params: plain values that decide what runs; nothing else does.
        key: names the case in files; equal cases have equal keys.
    """

    section: str
    family: str
    params: Mapping[str, object]
    key: str = field(init=False)

    def __post_init__(self) -> None:
        params = json.dumps(self.params, sort_keys=True)
        object.__setattr__(self, "key", f"{self.section}/{self.family}/{params}")


class Params:
    """Typed access to a case's plain values."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values: Mapping[str, Any] = values

    def number(self, name: str, default: int | None = None) -> int:
        return int(self._values[name] if default is None else self._values.get(name, default))

    def numbers(self, *names: str) -> tuple[int, ...]:
        return tuple(self.number(name) for name in names)

    def text(self, name: str, default: str | None = None) -> str:
        return str(self._values[name] if default is None else self._values.get(name, default))

    def flag(self, name: str) -> bool:
        """Return True or False; absent is False."""
        return bool(self._values.get(name, False))

    def sizes(self, name: str) -> list[int]:
        return [int(value) for value in self._values[name]]

    @property
    def dtype(self) -> str:
        return self.text("dtype", "fp32")

    @property
    def backward(self) -> bool:
        return self.text("direction") == "backward"


class Family(ABC):
    """Operations of one kind, named as in the files of a collection."""

    name: ClassVar[str]

    @abstractmethod
    def rows(self) -> Iterable[Iterable[Row]]:
        """Return the parameters of its cases, in lists that are collected side by side."""

    @abstractmethod
    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        """Build the calls of a case."""

    @abstractmethod
    def operations(self, p: Params) -> Sequence[Operation]:
        """Return the operations of one call, as a trace has them; none where it has others."""

    def cases(self) -> list[list[CalibrationCase]]:
        """Return the lists of cases without repeats, each in a random but repeatable order."""
        return [shuffled(CalibrationCase("kernels", self.name, row) for row in rows)
                for rows in self.rows()]  # fmt: skip


def shuffled(cases: Iterable[CalibrationCase]) -> list[CalibrationCase]:
    """Shuffle distinct cases with a fixed seed."""
    ordered = sorted({case.key: case for case in cases}.values(), key=lambda case: case.key)
    random.Random(len(ordered)).shuffle(ordered)
    return ordered


def interleaved(families: Sequence[Sequence[CalibrationCase]]) -> Iterator[CalibrationCase]:
    """Interleave families at the same share of their length; a case of two families comes once."""
    ranked = (
        ((position + 0.5) / len(family), number, case)
        for number, family in enumerate(families)
        for position, case in enumerate(family)
    )
    seen: set[str] = set()
    for _, _, case in sorted(ranked, key=lambda item: item[:2]):
        if case.key not in seen:
            seen.add(case.key)
            yield case


def row(**params: object) -> Row:
    return params


def directed(*rows: Row, directions: Sequence[str] = BOTH, **params: object) -> Iterator[Row]:
    """Yield each row, or the row of `params`, once per direction."""
    for each in rows or (params,):
        yield from ({**each, "direction": direction} for direction in directions)


def gradient_calls(
    device: CalibrationDevice,
    backward: bool,
    function: Callable[..., Any],
    inputs: Callable[[], Sequence[Any]],
    set_bytes: float,
) -> KernelCalls:
    """Return calls of the function on fresh inputs, or of its gradient with a retained graph.

    All floating-point inputs get a gradient except those with an attribute `constant`.
    """
    torch = device.torch

    def forward(values: Sequence[Any]) -> Any:
        with torch.no_grad():
            return function(*values)

    def leaf(value: Any) -> Any:
        if not value.dtype.is_floating_point or getattr(value, "constant", False):
            return value
        return value.detach().requires_grad_()

    def make() -> Callable[[], Any]:
        values = inputs()
        if not backward:
            return lambda: forward(values)
        leaves = [leaf(value) for value in values]
        wanted = [each for each in leaves if each.requires_grad]
        with torch.enable_grad():
            result = function(*leaves)
        gradient = device.normal(tuple(result.shape), result.dtype)
        return lambda: torch.autograd.grad(result, wanted, gradient, retain_graph=True)

    return device.sets(make, set_bytes, most=6 if backward else 24)
