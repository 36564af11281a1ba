"""Scenarios: cluster, jobs, oracle and simulation settings of a campaign."""

from wattloop.schedule.scenarios.scenario import Scenario, World

__all__ = ["Scenario", "World"]
