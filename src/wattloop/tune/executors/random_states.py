"""Random states of Python, numpy and torch: seeded, copied and restored together."""

import random
import sys
from collections.abc import Mapping
from typing import Any


def seed_everything(seed: int) -> None:
    """Seed Python's generator, and those of numpy and torch where the program has loaded them."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed)  # of all devices


def random_states(device: Any = None) -> dict[str, Any]:
    """Copy the states of all generators; of the GPUs only `device`, where one is given."""
    states: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if device is None and torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda_all"] = torch.cuda.get_rng_state_all()
        elif device is not None and device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Any], device: Any = None) -> None:
    random.setstate(states["python"])
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        if "cuda_all" in states:
            torch.cuda.set_rng_state_all(states["cuda_all"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], device)
