"""Wattloop: measure, understand and cut the energy of deep-learning training.

    import wattloop

    with wattloop.measure("training") as m:
        train()
    print(m.energy_j)

The house, ground floor first; each room uses only what stands above it in this list:

- `core`          units, clock, errors, records, results, provenance
- `hardware`      facts about machines, each with its source
- `store`         journals and the database of runs
- `measure`       meters, sampler, windows, accounting
- `control`       levers (power caps, clocks, governor), set safely and put back
- `virtual`       a GPU with a physical model
- `fleet`         many nodes: energy per job, and its way to one store
- `analyze`       statistics over tables of runs
- `kernels`       six kernels on every framework that is installed
- `integrations`  training loops of torch, Hugging Face, Lightning, Keras, scikit-learn
- `trials`        the one resumable runner of sweeps, cap finder and searches
- `characterize`  which setting saves what: sweeps, the cap finder, the bench
- `predict`       what a training will cost on a GPU, before it runs
- `tune`          searches over hyper-parameters and power caps
- `schedule`      a GPU cluster and its policies, simulated or on Slurm
- `advise`        what a run wasted, and what to do about it
- `check`         energy as a test
- `report`        figures, HTML and PDF reports, energy cards
- `study`         six steps from a need to a proven saving
- `serve`         the dashboard and its API
- `cli`           the `wattloop` command
- `testing`       contracts that every meter, lever, store, strategy and policy must keep
"""

from typing import TYPE_CHECKING

from wattloop.core.errors import ConfigError, MeterUnavailable, StoreError, WattloopError
from wattloop.core.records import Provenance
from wattloop.core.results import DomainEnergy, Missing, WindowResult
from wattloop.core.settings import Settings
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


def __getattr__(name: str) -> object:
    """What measures is loaded when it is first used; importing Wattloop costs little."""
    import importlib

    if name == "measure":
        return importlib.import_module("wattloop.measure")
    if name == "Measurement":
        return importlib.import_module("wattloop.measure.api").Measurement
    raise AttributeError(f"module 'wattloop' has no attribute '{name}'")
