"""ADEPT, the analytical model of thesis 4.3, as far as its text determines it (ADR 0028).

features      what it reads off a workload: seconds at the peaks, weighted mean dimensions
sizes         dimensions of operations in tiles, blocks and pixels
saturation    five functions for how efficiency grows with size
equations     4.4 to 4.15, over rows and candidates at once
parameters    the 28 parameters with their bounds, and the stages S1 to S7
calibration   4.16 to 4.18: differential evolution, polished
shipped       parameters that come with the package
model         the interface of all models
"""

from wattloop.predict.models.adept.model import Adept

__all__ = ["Adept"]
