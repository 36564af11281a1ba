"""Which model answers: `kernels` unless another is asked for, with the constants it has."""

import json
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path
from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.model import Model

__all__ = ["ESTIMATORS", "estimator_for"]

ESTIMATORS = ("kernels", "adept", "roofline")


def estimator_for(gpu: Gpu, name: str = "kernels", calibration: str | None = None) -> Model:
    """The model called `name` for `gpu`.

    Args:
        gpu: what it is to predict for.
        name: one of `ESTIMATORS`.
        calibration: a file of constants; unless given, the user's own calibration of that GPU,
            the one shipped with the package, or what its data sheet says.

    Raises:
        ConfigError: no such model, or a file that is corrupted or of another GPU.
    """
    if name not in ESTIMATORS:
        raise ConfigError(f"estimator {name}: unknown; choose one of {', '.join(ESTIMATORS)}")
    path = None if calibration is None else user_path(calibration)
    if path is not None and not path.is_file():
        raise ConfigError(
            f"calibration {path}: no such file; make one with 'wattloop calibrate fit', or leave "
            "it out"
        )
    if name == "kernels":
        return _kernels(gpu, path)
    return _roofline(path) if name == "roofline" else _adept(gpu, path)


def _kernels(gpu: Gpu, path: Path | None) -> Model:
    from wattloop.predict.models.kernels import KernelConstants, KernelModel

    if path is None:
        return KernelModel.for_gpu(gpu)
    constants = KernelConstants.load(path)
    if constants.gpu != gpu.name:
        raise ConfigError(
            f"calibration {path}: its field gpu says {constants.gpu}, but {gpu.name} is asked "
            f"for; predict for {constants.gpu}, or leave the calibration out"
        )
    return KernelModel(constants, source="calibrated")


def _roofline(path: Path | None) -> Model:
    from wattloop.predict.models.roofline import Roofline

    return Roofline.of_peaks() if path is None else Roofline.from_constants(_read(path))


def _adept(gpu: Gpu, path: Path | None) -> Model:
    from wattloop.predict.models.adept.model import Adept

    return Adept.for_gpu(gpu) if path is None else Adept.from_constants(_read(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"calibration {path}: cannot be read: {error}; make it again with "
            "'wattloop calibrate fit'"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"calibration {path}: holds no constants; make it again")
    return data
