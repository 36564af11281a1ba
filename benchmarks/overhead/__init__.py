"""Parts of `measure_overhead.py`: what runs in the measured process, and what surrounds it."""
