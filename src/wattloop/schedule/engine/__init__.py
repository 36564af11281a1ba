"""Simulation engine: event loop, machines, execution of actions, power and energy."""

from wattloop.schedule.engine.result import SimulationEnd, SimulationResult
from wattloop.schedule.engine.settings import EngineSettings, Keeps, NodeEvent, Preemption
from wattloop.schedule.engine.simulation import Simulation

__all__ = [
    "EngineSettings",
    "Keeps",
    "NodeEvent",
    "Preemption",
    "Simulation",
    "SimulationEnd",
    "SimulationResult",
]
