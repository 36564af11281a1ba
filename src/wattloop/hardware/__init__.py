"""Facts about machines: where their files are, and what their parts draw.

- `host`     roots of /sys and /proc (containers and tests name others), identity of the machine
- `carbon`   annual carbon intensities of electricity by country, with source and year
- `chassis`  power supplies, fans, board: what the rest of a node draws
"""
