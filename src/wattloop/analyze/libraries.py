"""Libraries that analyses need, and the command that installs them."""

import importlib.util

from wattloop.core.errors import ConfigError

__all__ = ["has_library", "needs_libraries"]

PACKAGES = {"sklearn": "scikit-learn"}
"""Module -> what pip calls it."""


def has_library(module: str) -> bool:
    """Whether it is installed; does not load it."""
    return importlib.util.find_spec(module) is not None


def needs_libraries(what: str, *modules: str) -> None:
    """Raise ConfigError with the command that installs what is missing."""
    for module in modules:
        if not has_library(module):
            package = PACKAGES.get(module, module)
            raise ConfigError(
                f"{what} needs {package}, which is not installed: pip install 'wattloop[analyze]'"
            )
