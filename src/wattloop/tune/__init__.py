"""Tuning: search for settings that reach the same quality with less energy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.tune.api import Best, SearchResult, search
    from wattloop.tune.space import Choice, Fixed, Integer, Linked, Real
    from wattloop.tune.trial import Trial, TrialStopped, current_trial

__all__ = [
    "Best",
    "Choice",
    "Fixed",
    "Integer",
    "Linked",
    "Real",
    "SearchResult",
    "Trial",
    "TrialStopped",
    "current_trial",
    "search",
]
_WHERE = {
    "Best": "api",
    "SearchResult": "api",
    "search": "api",
    "current_trial": "trial",
    "Trial": "trial",
    "TrialStopped": "trial",
    **dict.fromkeys(("Choice", "Fixed", "Integer", "Linked", "Real"), "space"),
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that a training that only reports stays light."""
    import importlib

    if name in _WHERE:
        return getattr(importlib.import_module(f"wattloop.tune.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'wattloop.tune' has no attribute '{name}'")
