"""Strategies, one module or package each; `base` has their contract."""

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import nearest

if TYPE_CHECKING:
    from wattloop.tune.search_problem import Problem
    from wattloop.tune.spec import SearchSpec
    from wattloop.tune.strategies.base import Strategy

__all__ = ["STRATEGIES", "strategy_for", "strategy_named"]
STRATEGIES: Mapping[str, str] = {
    "race": "wattloop.tune.strategies.race.race:Race",
    "sm2": "wattloop.tune.strategies.sm2.sm2:Sm2",
    "grid": "wattloop.tune.strategies.exhaustive:Grid",
    "random": "wattloop.tune.strategies.exhaustive:Random",
    "tpe": "wattloop.tune.strategies.optuna:Tpe",
    "nsga2": "wattloop.tune.strategies.optuna:Nsga2",
    "gp": "wattloop.tune.strategies.optuna:Gp",
    "asha": "wattloop.tune.strategies.successive_halving:Asha",
    "hyperband": "wattloop.tune.strategies.successive_halving:Hyperband",
}
"""Name -> module and class; imported on first use."""


def strategy_for(spec: "SearchSpec", problem: "Problem") -> "Strategy":
    """Build the strategy that a specification names, with its options."""
    return strategy_named(spec.strategy.name, problem, spec.strategy.options)


def strategy_named(
    name: str, problem: "Problem", options: Mapping[str, Any] | None = None
) -> "Strategy":
    """Build the strategy called `name`; `options` are the keywords of its class.

    Raises:
        ConfigError: unknown strategy, an option is unknown or wrong, or a library is missing.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"unknown strategy '{name}'; {nearest(name, list(STRATEGIES))}")
    module, _, attribute = STRATEGIES[name].partition(":")
    kind: type[Strategy] = getattr(importlib.import_module(module), attribute)
    keywords = [
        parameter.name
        for parameter in inspect.signature(kind.__init__).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    for option in options or {}:
        if option not in keywords:
            known = nearest(option, keywords) if keywords else "it has none"
            raise ConfigError(f"strategy {name}: unknown option '{option}'; {known}")
    try:
        return kind(problem, **(options or {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"strategy {name}: {error}") from None
