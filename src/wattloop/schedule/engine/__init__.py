"""What happens when a policy's actions are carried out: events, machines, watts."""

from wattloop.schedule.engine.result import Result
from wattloop.schedule.engine.settings import Preemption, Settings
from wattloop.schedule.engine.simulation import Simulation

__all__ = ["Preemption", "Result", "Settings", "Simulation"]
