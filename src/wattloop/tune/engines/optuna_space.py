"""Our spaces in the words of Optuna."""

from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.tune.parameters import Choice, Integer, Linked, Parameter, Real
from wattloop.tune.segment import Value
from wattloop.tune.space import Configuration, Space

__all__ = ["REMEDY", "distributions", "frozen", "library", "new_study", "suggested"]

REMEDY = "pip install 'wattloop[tune]'"


def library(what: str) -> Any:
    """Optuna itself.

    Raises:
        ConfigError: it is not installed; the message has the command that installs it.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"{what} needs optuna, which is not installed: {REMEDY}") from None
    return optuna


def new_study(directions: Sequence[str], **more: Any) -> Any:
    """A study; in memory unless `more` has a storage. Nothing is printed about it."""
    optuna = library("optuna")
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(directions=list(directions), **more)
    finally:
        optuna.logging.set_verbosity(level)


def distributions(space: Space) -> dict[str, Any]:
    """Name -> distribution, of all parameters with several values of their own."""
    return {name: _distribution(space.parameters[name]) for name in space.varied}


def suggested(space: Space, known: Mapping[str, Any], trial: Any) -> Configuration:
    """The configuration that a trial suggests, conditions and links kept."""
    found: dict[str, Value] = {}
    for name in space.order:
        if not space.active(name, found):
            continue
        parameter = space.parameters[name]
        if isinstance(parameter, Linked):
            found[name] = found[parameter.same_as]
        elif name in known:
            value = _suggest(trial, name, known[name])
            rounds = isinstance(parameter, Real) and parameter.log
            found[name] = parameter.nearest(value) if rounds else value  # type: ignore[attr-defined]  # a Real, as `rounds` says
        else:
            found[name] = (parameter.listed() or (None,))[0]
    return space.complete(found)


def frozen(
    configuration: Mapping[str, Value],
    known: Mapping[str, Any],
    values: Sequence[float],
    *,
    short_by: float = 0.0,
    **more: Any,
) -> Any:
    """A finished trial; `short_by` above 0 says that it misses its target."""
    optuna = library("optuna")
    own = {name: value for name, value in configuration.items() if name in known}
    attributes = {"constraints": (float(short_by),)}
    return optuna.trial.create_trial(
        params=own,
        distributions={name: known[name] for name in own},
        values=[float(value) for value in values],
        system_attrs={**attributes, **more.pop("system_attrs", {})},
        **more,
    )


def _suggest(trial: Any, name: str, distribution: Any) -> Any:
    optuna = library("optuna")
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    ends = {"low": distribution.low, "high": distribution.high, "log": distribution.log}
    if isinstance(distribution, optuna.distributions.IntDistribution):
        return trial.suggest_int(name, step=distribution.step, **ends)
    return trial.suggest_float(name, step=distribution.step, **ends)


def _distribution(parameter: Parameter) -> Any:
    kinds = library("optuna").distributions
    if isinstance(parameter, Choice):
        return kinds.CategoricalDistribution(parameter.values)
    if isinstance(parameter, Integer):
        return kinds.IntDistribution(
            parameter.low, parameter.high, log=parameter.log, step=parameter.step
        )
    if isinstance(parameter, Real):
        # Optuna has no steps on a logarithmic scale; those are rounded afterwards
        step = None if parameter.log else parameter.step
        return kinds.FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=step)
    raise AssertionError(f"{type(parameter).__name__} has one value only")
