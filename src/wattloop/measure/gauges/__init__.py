"""Sensors that are just files: how they are read, which ones we know, which ones a user names.

- `gauge`       a domain together with the files it is read from
- `known`       Intel GPUs, NVIDIA Grace, laptop batteries
- `jetson`      the rails of NVIDIA Jetson boards
- `configured`  gauges from the user's settings
"""
