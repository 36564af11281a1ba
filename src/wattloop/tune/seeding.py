"""Random numbers of one training apart from those of others in the same process."""

import random
import sys
from typing import Any

__all__ = ["RandomState", "seed_everything"]


def seed_everything(seed: int) -> None:
    """Python's generator, and numpy's and torch's where the program has loaded them."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed)  # of all devices


class RandomState:
    """The generators as they are now, to put back when the training goes on."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        self._numpy: Any = None if numpy is None else numpy.random.get_state()
        self._torch: Any = None if torch is None else torch.get_rng_state()
        self._cuda: Any = None
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            self._cuda = torch.cuda.get_rng_state_all()

    def restore(self) -> None:
        """Put them back."""
        random.setstate(self._python)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if self._numpy is not None and numpy is not None:
            numpy.random.set_state(self._numpy)
        if self._torch is not None and torch is not None:
            torch.set_rng_state(self._torch)
        if self._cuda is not None and torch is not None:
            torch.cuda.set_rng_state_all(self._cuda)
