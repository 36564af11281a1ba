"""Facts about machines: where their files are, and what their parts draw.

- `host`     roots of /sys and /proc (containers and tests name others), identity of the machine
"""
