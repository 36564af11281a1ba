"""What happens when a policy's actions are carried out: events, machines, watts."""

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
