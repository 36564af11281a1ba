"""The kernels model: time and energy of a step as a sum over its operations.

classes, features, table
                   what shares constants; where an operation lies among its like; all as arrays
tiles, alignment, products
                   matrix products and convolutions by tiles and waves
attention, recurrent, depthwise, streams
                   attention as one kernel, cuDNN's recurrent layers, what moves bytes
operations         all of them, corrected by `residuals` of microbenchmarks
host, work         dispatch time, work that energy is charged for
profile, batch, step
                   a workload reduced to a few numbers; placements; time, power and clock
defaults, values, constants, find
                   the numbers: before calibration, by name, as a file, whose serve a GPU
fitting, power_fit, least_squares
                   fit to measured steps, of time and of power
spec_only, spec_shares, spec_rules
                   numbers of a GPU that nobody calibrated, from its data sheet
"""

from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.model import KernelModel

__all__ = ["KernelConstants", "KernelModel"]
