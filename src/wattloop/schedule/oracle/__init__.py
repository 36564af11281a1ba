"""Time and power of a job on every placement it may take.

oracle, options, placements
            what every oracle answers, for all placements of a kind of job at once
analytic, step_figures, workloads
            from `predict`; the thesis's models are shipped as traces
table, throughputs, cap_curves (and their files)
            from measured tables, one's own or published
noisy       estimates that are off by a known measure
cached, fingerprint
            tables computed before
spec        the `oracle` section of a scenario file
"""

from wattloop.schedule.oracle.options import Options
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["Options", "Oracle"]
