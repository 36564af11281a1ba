"""Energy you can trust: meters, sampling, windows, accounting.

- `meter`, `meters/`   the contract, and one file per source
- `registry`           which meters can be used here, and why not the others
- `counter_track`, `gauge_track`, `spans`, `ticks`, `fusion`   readings turned into an energy curve
- `feeds`, `channels`, `pace`   meters being read: who offers which domain, how often it is asked
- `sampler`, `sampling_plan`    the thread that reads them; `sampler_process`, `sampler_launch` and
  `sampler_child` the same in a process beside the program
- `node_reader`        which of the two, and whether we count the devices of this node
- `windows`, `resolve` regions of time and their energy
- `session`, `api`, `decorating`   a run from beginning to end; `wattloop.measure()`
- `run_id`, `header`, `logbook`, `run_journal`, `run_end`, `run_result`  what a run writes and finds
- `command`, `launch`, `supervise`, `processes`   a program measured from beside it
- `live`, `live_readings`       power now and energy so far
- `job`, `claims`, `followers`  several processes of one job count each device once
- `jobs`, `merging`    the total of a job: readings of all its processes as those of one watcher
- `closing`, `bequest` the end of a run whose measurer died
- `verify`             two sources of one domain, compared
- `configfile`         the user's `wattloop.yaml`
- `gauges/`            sensors that are just files
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
