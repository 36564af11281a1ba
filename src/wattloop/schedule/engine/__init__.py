"""What happens when a policy's actions are carried out: events, machines, watts."""

from wattloop.schedule.engine.result import Ended, Result
from wattloop.schedule.engine.settings import Keeps, NodeEvent, Preemption, Settings
from wattloop.schedule.engine.simulation import Simulation

__all__ = ["Ended", "Keeps", "NodeEvent", "Preemption", "Result", "Settings", "Simulation"]
