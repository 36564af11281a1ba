"""Lookup of the constants of a GPU: the user's calibration, the shipped one, or its data sheet."""

from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.files import is_trusted
from wattloop.core.paths import config_folder
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.datasheet import spec_constants

SHIPPED = Path(__file__).parents[2] / "calibrate" / "constants"
REFERENCE = "h200"
"""GPU whose constants are used for GPUs without their own."""


def constants_for(gpu: Gpu) -> tuple[KernelConstants, str]:
    """Return constants for `gpu` and their origin: `calibrated`, `shipped` or `spec-only`.

    Raises:
        ConfigError: the user's file is not readable, or belongs to another GPU.
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
    """Return the reference constants for uncalibrated GPUs, and their GPU."""
    shipped = SHIPPED / f"{REFERENCE}.json.gz"
    constants = KernelConstants.load(shipped) if shipped.exists() else KernelConstants()
    return constants, gpu_named(REFERENCE)


def user_constants_path(gpu_name: str) -> Path:
    """Return the path of a user's constants of a GPU, written by `calibrate fit`."""
    return config_folder() / "calibration" / f"{gpu_name}.json.gz"
