"""What is to be run: kinds of jobs, tables of jobs, and where they come from.

- `poisson.py`: made by dice, as in the thesis; `template.py`, `arrivals.py`, `people.py`,
  `deadlines.py` and `rigid.py` are its parts, `draws.py` the dice.
- `traces/`: read from the logs of real clusters; `scale.py` takes a part or makes them larger.
- `completion.py`: what a trace does not say of its jobs.
- `table_file.py`: tables of jobs as CSV files.
- `spec.py`: the `jobs` section of a scenario file.
"""

from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable

__all__ = ["JobKind", "JobTable"]
