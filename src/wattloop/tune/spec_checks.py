"""What is right field by field and wrong together."""

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wattloop.hardware.yaml_faults import Fault
from wattloop.tune.cap_metric import wants_no_cap
from wattloop.tune.parameters import Choice, Integer, Real
from wattloop.tune.space import Space, SpaceError
from wattloop.tune.spec_default import whole_default

if TYPE_CHECKING:
    from wattloop.tune.spec import SearchSpec

__all__ = ["contradictions"]

ONE_OBJECTIVE = ("race", "sm2", "asha", "hyperband")
"""Strategies that follow a single objective."""
BY_QUALITY = ("sm2", "asha", "hyperband")
"""Strategies that compare unfinished trainings by their metric."""

ONE_BY_ONE = ("tpe", "nsga2", "gp")
"""Strategies whose sampler scores each training by itself."""
DRAWING = ("random", *ONE_BY_ONE, "asha", "hyperband")
"""Strategies that draw configurations as long as they may."""
SWEEPING = ("race", "sm2")
"""Strategies that find the learning rate of a configuration by themselves, where they can."""

PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")
FILLED_IN = ("trial_dir", "checkpoint", "seed")
"""What a command may name beside parameters."""


def contradictions(spec: "SearchSpec") -> Iterator[Fault]:
    """Everything that cannot be meant."""
    twice = [name for name in spec.parameters if name in spec.hardware.parameters()]
    for name in twice:
        yield ("parameters", name), "the hardware section has it, too; keep one"
    yield from _about_command(spec)
    yield from _about_metric(spec)
    yield from _about_strategy(spec)
    if twice:
        return
    try:
        space = spec.space()
    except SpaceError as error:
        yield ("parameters", error.parameter), error.message
        return
    yield from _about_space(spec, space)


def _about_command(spec: "SearchSpec") -> Iterator[Fault]:
    """A placeholder that is nearly a parameter; other braces, such as awk's, are the command's."""
    known = [*spec.parameters, *spec.hardware.parameters()]
    for word in spec.command or ():
        for name in PLACEHOLDER.findall(word):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            if near and name not in (*known, *FILLED_IN):
                yield ("command",), f"{{{name}}} is no parameter; did you mean {{{near[0]}}}?"


def _about_metric(spec: "SearchSpec") -> Iterator[Fault]:
    if spec.metric is not None:
        return
    needing = spec.objective.needs_quality
    if needing:
        yield ("objective",), f"{needing} needs a metric: what does a training report?"
    if spec.strategy.name in BY_QUALITY:
        yield (
            ("strategy",),
            f"{spec.strategy.name} compares trainings by their quality: give a metric",
        )


def _about_strategy(spec: "SearchSpec") -> Iterator[Fault]:
    name, objectives = spec.strategy.name, spec.objective.name
    if len(objectives) > 1 and name in ONE_OBJECTIVE:
        yield (
            ("objective",),
            f"{name} follows one objective; for a front of {' and '.join(objectives)} use nsga2, "
            "tpe, gp, random or grid",
        )
    if spec.early_terminate is not None:
        yield (
            ("early_terminate",),
            f"it goes with method random; {name} decides by itself how long a training goes on: "
            "leave it out",
        )
    if "sm2" in objectives and name in ONE_BY_ONE:
        yield (
            ("objective",),
            f"{name} scores each training by itself, and sm2 only compares several: use the "
            "strategy sm2, grid or random",
        )
    if spec.hardware.cap is not None and wants_no_cap(objectives):
        yield (
            ("hardware", "power_limit"),
            "with least time as the objective the highest cap is best: leave it out",
        )


def _about_space(spec: "SearchSpec", space: Space) -> Iterator[Fault]:
    if not space.parameters and spec.hardware.cap is None:
        yield ("parameters",), "the space is empty: give at least one parameter"
    elif not space.varied and spec.hardware.cap is None:
        yield (
            ("parameters",),
            "nothing to search: every parameter has a single value; give one several, or "
            "hardware: {power_limit: auto}",
        )
    limits = spec.limits
    ends = (limits.trials, limits.energy_j, limits.time_s)
    if spec.strategy.name in DRAWING and space.size is None and all(e is None for e in ends):
        yield (
            ("limits",),
            f"{spec.strategy.name} never ends by itself over a range: give trials, energy or time",
        )
    if spec.strategy.name == "grid":
        try:
            space.grid()
        except SpaceError as error:
            yield ("parameters", error.parameter), error.message
    yield from _about_rate(spec, space)
    for name in spec.default:
        if name not in space.parameters:
            known = ", ".join(space.parameters)
            yield ("default", name), f"no parameter of this space; it has {known}"
            return
    try:
        whole_default(space, spec.default)
    except SpaceError as error:
        yield ("default", error.parameter), error.message


def _about_rate(spec: "SearchSpec", space: Space) -> Iterator[Fault]:
    if spec.rate is None:
        return
    if spec.rate not in space.parameters:
        known = ", ".join(space.parameters)
        yield ("rate",), f"'{spec.rate}' is no parameter of this space; it has {known}"
        return
    parameter = space.parameters[spec.rate]
    numbers = isinstance(parameter, Real | Integer) or (
        isinstance(parameter, Choice)
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in parameter.values)
    )
    if not numbers or parameter.lever:
        yield ("rate",), f"'{spec.rate}' must be a parameter with numbers to choose among"
    elif spec.command and spec.strategy.name in SWEEPING:
        yield (
            ("rate",),
            f"{spec.strategy.name} sweeps rates inside a training, which a command does not "
            f"allow: leave rate out, and '{spec.rate}' is searched as any other parameter",
        )
