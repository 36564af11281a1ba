"""The virtual GPU: a physical model that is meter, lever and workload without hardware.

Its numbers are marked `simulated` wherever they appear.
"""
