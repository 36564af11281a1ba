"""Figures: Altair definitions, rendered to one self-contained HTML page, SVG and PNG (ADR 0006).

- `style`        colours, fonts and sizes of all figures
- `sweep`        gains, EDP, EDS and times of a sweep against its settings and GPU counts
- `techniques`   EDP against time, power by setting, synthesis over workloads
- `roofline`, `scaling`   kernels against what the device can do, and over threads or processes
- `power`        power over time against the TDP
- `render`       files from definitions, without network
"""
