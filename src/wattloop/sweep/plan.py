"""The axes of a sweep in values this machine accepts, its points, and their order."""

import hashlib
import itertools
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.control.lever import Lever, Setting, format_setting, parse_setting
from wattloop.control.registry import levers_named
from wattloop.core.errors import ConfigError
from wattloop.core.units import Values
from wattloop.sweep.spec import SweepSpec, SweepWorkload
from wattloop.trials.trial import Trial

DEFAULT = "default"
TECHNIQUES = (
    ("power_limit", "power cap"),
    ("clock", "clock"),
    ("frequency", "clock"),
    ("governor", "governor"),
)
"""End of a lever's name -> how the literature calls setting it."""


@dataclass(frozen=True, slots=True)
class AxisLevel:
    """One value of an axis.

    Attributes:
        label: for people and keys: `170 W`, `powersave`.
        number: for drawing; None for a choice, or a clock that is not locked.
    """

    label: str
    number: float | None
    settings: Mapping[str, Setting]
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """A lever, or all levers of a kind, as the user named it, with its levels."""

    name: str
    unit: str
    levels: tuple[AxisLevel, ...]
    levers: tuple[Lever, ...]

    @property
    def default(self) -> AxisLevel:
        return next(level for level in self.levels if level.is_default)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "technique": technique_name(self.name),
            "default": self.default.label,
            "levels": [{"label": level.label, "number": level.number} for level in self.levels],
        }


def make_axis(name: str, values: Values, levers: Sequence[Lever], where: str = "") -> SweepAxis:
    """Return the levels of one line of a specification. Raises ConfigError for a lever or value."""
    try:
        mine = levers_named(levers, name)
        for refusal in filter(None, (lever.state().refusal for lever in mine)):
            raise ConfigError(refusal)
        settings = [{lever.name: parse_setting(v, lever) for lever in mine} for v in values]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None
    default = {lever.name: _default_of(lever) for lever in mine}
    unit = mine[0].state().unit
    chosen: list[dict[str, Setting]] = []
    for candidate in [*settings, default]:
        if candidate not in chosen:
            chosen.append(candidate)
    levels = tuple(_level(s, unit, is_default=s == default) for s in chosen)
    return SweepAxis(name, unit, levels, tuple(mine))


def technique_name(lever: str) -> str:
    """Return `power cap`, `clock` or `governor`; otherwise the lever's own name."""
    leaf = lever.rpartition("/")[2]
    return next((name for end, name in TECHNIQUES if end in leaf), leaf)


def _default_of(lever: Lever) -> Setting:
    """Return the factory value of a lever; where it is unknown, the present one."""
    try:
        return parse_setting(DEFAULT, lever)
    except ConfigError:
        return lever.read()


def _level(settings: Mapping[str, Setting], unit: str, *, is_default: bool) -> AxisLevel:
    values = list(dict.fromkeys(settings.values()))
    first = values[0]
    labels = ["not locked" if v is None else format_setting(v, unit) for v in values]
    number = float(first) if isinstance(first, int | float) else None
    return AxisLevel(" / ".join(labels), number, dict(settings), is_default)


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
GPU_SIGNS = ("{gpus}", "{gpu_list}")
"""Replaced in a command by the number of GPUs of a point, and by their names."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination: a workload, a number of GPUs, a level on each axis."""

    workload: str
    library: str
    gpus: int | None
    levels: Mapping[str, str]
    is_default: bool
    settings: Mapping[str, Setting] = field(compare=False, repr=False)

    @property
    def key(self) -> str:
        parts = [self.workload] if self.workload else []
        parts += [self.library] if self.library else []
        parts += [f"gpus={self.gpus}"] if self.gpus is not None else []
        parts += [f"{name}={label}" for name, label in self.levels.items()]
        return " ".join(parts) or "default"

    @property
    def group(self) -> tuple[str, str, int | None]:
        return self.workload, self.library, self.gpus

    def to_dict(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "library": self.library,
            "gpus": self.gpus,
            "levels": dict(self.levels),
            "is_default": self.is_default,
        }


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A specification on this machine."""

    spec: SweepSpec
    axes: tuple[SweepAxis, ...]
    points: tuple[SweepPoint, ...]

    @property
    def references(self) -> tuple[SweepPoint, ...]:
        return tuple(point for point in self.points if point.is_default)

    def block(self, number: int) -> list[SweepPoint]:
        """Every point once, in the order of one round.

        Each round has an order of its own, drawn from the seed: what drifts over hours (warmth of
        the room, dust, a neighbour) falls on all points alike instead of on the last ones.
        """
        points = list(self.points)
        if self.spec.order == "random":
            random.Random(f"{self.spec.seed}/{number}").shuffle(points)
        return points

    def trial(self, point: SweepPoint, label: str) -> Trial:
        return Trial(
            key=f"{point.key} #{label}",
            settings=point.settings,
            command=_command(self.spec, point),
            environment=_environment(point.gpus),
            timeout_s=self.spec.timeout_s,
            facts={"point": point.to_dict(), "repeat": label},
            name=f"{self.spec.name or 'sweep'}: {point.key}",
            window=self.spec.window,
        )


def make_plan(spec: SweepSpec, axes: Sequence[SweepAxis], gpus_here: int | None) -> SweepPlan:
    """Return all points; `gpus_here` is the number of GPUs, None if unknown. Raises ConfigError."""
    if not spec.command and not spec.workloads:
        raise ConfigError(
            "no command to sweep; write it after --, such as 'wattloop sweep SPEC.yaml -- python "
            "train.py', or as 'command:' in the file"
        )
    if spec.command and spec.workloads:
        raise ConfigError("give either a command or workloads, not both")
    _check_gpus(spec.gpus, gpus_here)
    words = [word for _, work in _workloads(spec) for word in work.command]
    asked = next((sign for sign in GPU_SIGNS for word in words if sign in word), None)
    if asked is not None and not spec.gpus:
        raise ConfigError(
            f"the command has {asked}, and no numbers of GPUs are given; add --gpus 1,2,4, or "
            "'gpus: [1, 2, 4]' in the file"
        )
    counts: list[int | None] = [*spec.gpus] or [None]
    points = [
        _point(name, work, gpus, axes, levels)
        for (name, work), gpus in itertools.product(_workloads(spec), counts)
        for levels in _combinations(axes, spec.combine)
    ]
    return SweepPlan(spec, tuple(axes), tuple({p.key: p for p in points}.values()))


def fingerprint(plan: SweepPlan) -> str:
    """Return a hash of points, commands and rules, which finds the sweep to resume."""
    rules = plan.spec.to_dict()
    for name in ("name", "metric", "k", "scope"):
        rules.pop(name)  # how results are read does not change what is run
    data = {"rules": rules, "points": [[p.key, dict(p.settings)] for p in plan.points]}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _check_gpus(wanted: Sequence[int], here: int | None) -> None:
    if not wanted:
        return
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"gpus: {', '.join(map(str, wanted))}: a number is given twice")
    if here is not None and max(wanted) > here:
        raise ConfigError(
            f"gpus: {max(wanted)} asked for, but there {'is' if here == 1 else 'are'} {here} here; "
            "'wattloop devices' lists them"
        )


def _workloads(spec: SweepSpec) -> list[tuple[str, SweepWorkload]]:
    if spec.workloads:
        return [_split(name, work) for name, work in spec.workloads.items()]
    return [("", SweepWorkload(command=spec.command))]


def _split(name: str, work: SweepWorkload) -> tuple[str, SweepWorkload]:
    """`gemm/jax` is the kernel gemm of the library jax."""
    kernel, _, library = name.partition("/")
    if library and not work.library:
        return kernel, SweepWorkload(command=work.command, library=library)
    return name, work


def _combinations(axes: Sequence[SweepAxis], combine: str) -> Iterator[tuple[AxisLevel, ...]]:
    if combine == "grid":
        yield from itertools.product(*(axis.levels for axis in axes))
        return
    defaults = tuple(axis.default for axis in axes)
    yield defaults
    for number, axis in enumerate(axes):
        for level in axis.levels:
            if not level.is_default:
                yield (*defaults[:number], level, *defaults[number + 1 :])


def _point(
    name: str,
    work: SweepWorkload,
    gpus: int | None,
    axes: Sequence[SweepAxis],
    levels: Sequence[AxisLevel],
) -> SweepPoint:
    settings: dict[str, Setting] = {}
    for level in levels:
        settings |= level.settings
    return SweepPoint(
        workload=name,
        library=work.library,
        gpus=gpus,
        levels={axis.name: level.label for axis, level in zip(axes, levels, strict=True)},
        is_default=all(level.is_default for level in levels),
        settings=settings,
    )


def _command(spec: SweepSpec, point: SweepPoint) -> list[str]:
    words = spec.command
    for name, work in _workloads(spec) if spec.workloads else ():
        if (name, work.library) == (point.workload, point.library):
            words = work.command
    if point.gpus is None:
        return list(words)
    listed = ",".join(_visible(point.gpus))
    count, names = GPU_SIGNS
    return [w.replace(count, str(point.gpus)).replace(names, listed) for w in words]


def _environment(gpus: int | None) -> dict[str, str]:
    """The first GPUs only; the others stay idle, and are measured all the same."""
    if gpus is None:
        return {}
    shown = ",".join(_visible(gpus))
    return {"WATTLOOP_GPUS": str(gpus), **dict.fromkeys(VISIBLE, shown)}


def _visible(gpus: int) -> list[str]:
    """Of those that the user left us, when the choice is already narrowed."""
    for name in VISIBLE:
        given = [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]
        if len(given) >= gpus:
            return given[:gpus]
    return [str(number) for number in range(gpus)]
