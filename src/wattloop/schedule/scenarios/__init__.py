"""Everything that a campaign needs to know but its policies' code: machines, jobs, rules."""

from wattloop.schedule.scenarios.scenario import Scenario, World

__all__ = ["Scenario", "World"]
