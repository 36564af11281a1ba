"""Wattloop: measure, understand and cut the energy of deep-learning training.

    import wattloop

    with wattloop.measure("training") as m:
        train()
    print(m.energy_j)

Packages and modules are listed in docs/map.md.
"""

from typing import TYPE_CHECKING

from wattloop.core.errors import ConfigError, MeterUnavailable, StoreError, WattloopError
from wattloop.core.records import Provenance
from wattloop.core.results import DomainEnergy, Missing, WindowResult
from wattloop.core.settings import Settings
from wattloop.moved import install as _keep_earlier_paths
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.measure.api import Measurement, measure

__all__ = [
    "ConfigError",
    "DomainEnergy",
    "Measurement",
    "MeterUnavailable",
    "Missing",
    "Provenance",
    "Settings",
    "StoreError",
    "WattloopError",
    "WindowResult",
    "__version__",
    "measure",
]

_keep_earlier_paths()


def load_ipython_extension(shell: object) -> None:
    """Add the magic `%%wattloop` to a notebook or to IPython, after `%load_ext wattloop`."""
    import importlib

    importlib.import_module("wattloop.integrations.notebook").register_magic(shell)


def __getattr__(name: str) -> object:
    """What measures is loaded when it is first used; importing Wattloop costs little."""
    import importlib

    if name == "measure":
        return importlib.import_module("wattloop.measure")
    if name == "Measurement":
        return importlib.import_module("wattloop.measure.api").Measurement
    raise AttributeError(f"module 'wattloop' has no attribute '{name}'")
