"""The kernels model: time and energy of a step as a sum over its operations."""

from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.model import KernelModel

__all__ = ["KernelConstants", "KernelModel"]
