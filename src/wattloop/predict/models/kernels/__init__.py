"""The kernels model: time and energy of a step as a sum over its operations.

table, features    operations as arrays; where one lies among its like
tiles, products    matrix products and convolutions by tiles and waves
attention, recurrent, depthwise, streams
                   attention as one kernel, cuDNN's recurrent layers, what moves bytes
operations         all of them, corrected by `residuals` of microbenchmarks
host, work         dispatch time, work that energy is charged for
profile, batch, step
                   a workload reduced to a few numbers; placements; time, power and clock
constants, find, fitting
                   the numbers as a file; whose serve a GPU; fit to measured steps
spec_only, spec_shares, spec_rules
                   numbers of a GPU that nobody calibrated, from its data sheet
"""

from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.model import KernelModel

__all__ = ["KernelConstants", "KernelModel"]
