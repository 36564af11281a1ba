"""Traces of real clusters: CSV files of many makes, read by column mappings.

- `formats/`: the mappings that ship, one YAML file each.
- `format.py`, `format_files.py`, `detection.py`: what a mapping says, and which one a file needs.
- `reading.py`, `rows.py`, `cells.py`, `gathering.py`: from a file to a `Trace`.
"""

from wattloop.schedule.jobs.traces.reading import read_trace
from wattloop.schedule.jobs.traces.trace import Coded, Trace

__all__ = ["Coded", "Trace", "read_trace"]
