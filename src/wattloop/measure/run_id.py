"""How runs are told apart."""

import os
import time

__all__ = ["new_run_id"]


def new_run_id(wall_s: float) -> str:
    """Sortable by time and unique: `20261115-031500-3f9a1c`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(wall_s))
    return f"{stamp}-{os.urandom(3).hex()}"
