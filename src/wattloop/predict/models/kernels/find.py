"""Which constants serve a GPU: the user's calibration, the shipped one, or its data sheet."""

import os
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.constants import KernelConstants

__all__ = ["constants_for", "user_constants_path"]

SHIPPED = Path(__file__).parents[2] / "calibrate" / "constants"


def constants_for(gpu: Gpu) -> tuple[KernelConstants, str]:
    """Constants for `gpu` and where they are from: `calibrated`, `shipped` or `spec-only`.

    Raises:
        ConfigError: the user's file is not readable, or holds for another GPU.
    """
    own = user_constants_path(gpu.name)
    if own.exists():
        constants = KernelConstants.load(own)
        if constants.gpu != gpu.name:
            raise ConfigError(
                f"{own}: field 'gpu' is '{constants.gpu}', but the file is taken for '{gpu.name}'; "
                f"rename it to {constants.gpu}.json.gz or calibrate a {gpu.name}"
            )
        return constants, "calibrated"
    shipped = SHIPPED / f"{gpu.name}.json.gz"
    if shipped.exists():
        return KernelConstants.load(shipped), "shipped"
    return KernelConstants(), "spec-only"


def user_constants_path(gpu_name: str) -> Path:
    """Where `calibrate fit` keeps a user's constants of a GPU."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "wattloop" / "calibration" / f"{gpu_name}.json.gz"
