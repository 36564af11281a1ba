"""Stand-in for torchvision in `step_programs.py`: generated images, and the few names it needs."""

from torchvision import datasets, models, ops, transforms, utils

__version__ = "0.0.0"
__all__ = ["datasets", "models", "ops", "transforms", "utils"]
