"""Parts of `measure_overhead.py`: the probe in the measured process, and its laboratory."""
