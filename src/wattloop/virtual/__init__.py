"""The virtual GPU: a physical model that is meter, lever and workload where there is no hardware.

Its numbers are marked `simulated` wherever they appear.
"""
