"""Find the constants of a GPU: the user's calibration, the shipped one, or its data sheet."""

import os
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.ownership import is_trusted
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.datasheet import spec_constants

SHIPPED = Path(__file__).parents[2] / "calibrate" / "constants"


REFERENCE = "h200"
"""The GPU whose constants serve where a GPU has none of its own."""


def constants_for(gpu: Gpu) -> tuple[KernelConstants, str]:
    """Constants for `gpu` and where they are from: `calibrated`, `shipped` or `spec-only`.

    Raises:
        ConfigError: the user's file is not readable, or holds for another GPU.
    """
    own = user_constants_path(gpu.name)
    if own.exists() and is_trusted(own):
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
    reference, calibrated = reference_constants()
    return spec_constants(gpu, reference, calibrated), "spec-only"


def reference_constants() -> tuple[KernelConstants, Gpu]:
    """What constants without a calibration are carried over from, and its GPU."""
    shipped = SHIPPED / f"{REFERENCE}.json.gz"
    constants = KernelConstants.load(shipped) if shipped.exists() else KernelConstants()
    return constants, gpu_named(REFERENCE)


def user_constants_path(gpu_name: str) -> Path:
    """Where `calibrate fit` keeps a user's constants of a GPU."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "wattloop" / "calibration" / f"{gpu_name}.json.gz"
