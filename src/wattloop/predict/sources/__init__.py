"""Sources of models: resolve a name on a command line to a module with inputs and a loss."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.predict.sources.model_name import find_source
    from wattloop.predict.sources.source import Sizes, Source

__all__ = ["Sizes", "Source", "find_source"]

_WHERE = {"find_source": "model_name", "Sizes": "source", "Source": "source"}


def __getattr__(name: str) -> object:
    """Import on first use: modules need torch, and a saved workload does not."""
    import importlib

    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
