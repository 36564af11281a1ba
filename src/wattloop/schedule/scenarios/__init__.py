"""Everything that a campaign needs to know but its policies' code: machines, jobs, rules.

- `scenario`  what a scenario is, and the worlds it makes, one per seed
- `file`      scenarios from YAML, and those that are shipped
- `spec`      the fields of such a file
"""

from wattloop.schedule.scenarios.scenario import Scenario, World

__all__ = ["Scenario", "World"]
