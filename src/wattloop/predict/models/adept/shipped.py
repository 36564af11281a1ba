"""Parameters that ship with the package: one file per GPU, made by benchmarks/predict_adept."""

import json
from collections.abc import Mapping
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu

__all__ = ["save_shipped", "shipped_constants"]

FOLDER = Path(__file__).parent / "constants"


def shipped_constants(gpu: Gpu) -> Mapping[str, object]:
    """What `Adept.constants()` gave for that GPU.

    Raises:
        ConfigError: nobody fitted it; names the GPUs that have a file.
    """
    path = FOLDER / f"{gpu.name}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in FOLDER.glob("*.json")))
        raise ConfigError(
            f"estimator adept: fitted for {known}, not for {gpu.name}; give a file of its "
            "constants as calibration, or take kernels"
        )
    found: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8"))["constants"]
    return found


def save_shipped(gpu: Gpu, constants: Mapping[str, object], fitted_to: str) -> Path:
    """Write the file of a GPU, with what its constants were fitted to."""
    path = FOLDER / f"{gpu.name}.json"
    content = {"model": "adept", "gpu": gpu.name, "fitted_to": fitted_to, "constants": constants}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
