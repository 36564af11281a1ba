"""Figures: Altair definitions, rendered to one self-contained HTML page, SVG and PNG (ADR 0006).

- `style`        colours, fonts and sizes of all figures
- `sweep`        gains, EDP, EDS and times of a sweep against its settings and GPU counts
- `techniques`   EDP against time, power by setting, synthesis over workloads
- `roofline`     kernels against what their device can do
- `predicted`    predicted against measured steps
- `scaling`      time and speed-up against the number of GPUs
- `sm2`          loss over learning rates, and the course of a search by `sm2`
- `power`        power over time against the TDP
- `regression`   coefficients with intervals; importances
- `clusters`     families of runs in two and three main components and in any two columns
- `pareto`       the front and its knee; energy gain against time loss
- `quotient`     accuracy against energy; top runs
- `matrix`, `correlation`  levels by run; a grid of correlations
- `scatter`      what figures of runs share
- `rows`         data behind charts, out of their definitions until they are written
- `render`       files from definitions, without network
"""
