"""Energy you can trust: meters, sampling, windows, accounting.

- `meter`, `meters/`   the contract, and one file per source
- `registry`           which meters can be used here, and why not the others
- `counter_track`, `gauge_track`, `spans`, `ticks`, `fusion`   readings turned into an energy curve
- `feeds`, `sampler`   meters being read in the background
- `windows`, `resolve` regions of time and their energy
- `session`, `api`     a run from beginning to end; `wattloop.measure()`
- `job`, `claims`, `followers`  several processes of one job count each device once
- `closing`            the end of a run whose measurer died
- `jobs`, `merging`    the total of a job: readings of all its processes as those of one watcher
- `accounting/`        idle, node, carbon, cost, efficiency

The package carries the name of its verb, so it can be called: `wattloop.measure("training")` is
`wattloop.measure.api.measure("training")`.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from wattloop.measure import api

        return api.measure(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
