"""What happens when a policy's actions are carried out: events, machines, watts.

- `simulation`  the heap of events; `decisions` asks the policy
- `execution`   jobs on machines, the only place that changes what is true; `stretch` is one of them
- `machines`, `neighbours`, `outages`   which GPUs are free, who shares a node, which are away
- `ledger`, `accounts`       every watt of the cluster, and what each job has had
- `choices`, `runnable`      what jobs of a kind take on each option, and which can never run
- `settings`, `input`        how this world behaves, and what cannot be simulated
- `log`, `invariants`        what happened, and what must always hold
- `result`, `outcome`, `saved`   what a simulation leaves behind; a simulation as a file
"""

from wattloop.schedule.engine.result import FinishedJob, SimulationResult
from wattloop.schedule.engine.settings import EngineSettings, Keeps, NodeEvent, Preemption
from wattloop.schedule.engine.simulation import Simulation

__all__ = [
    "EngineSettings",
    "FinishedJob",
    "Keeps",
    "NodeEvent",
    "Preemption",
    "Simulation",
    "SimulationResult",
]
