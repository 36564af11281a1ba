"""Constants of `roofline` and `adept` that ship with the package (benchmarks/predict_adept)."""

import json
from collections.abc import Mapping
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu

__all__ = ["FOLDER", "save_constants", "shipped_constants"]

FOLDER = Path(__file__).parent / "constants"


def shipped_constants(model: str, gpu: Gpu) -> Mapping[str, object]:
    """What `constants()` of that model gave for that GPU.

    Raises:
        ConfigError: nobody fitted it; names the GPUs that have constants.
    """
    path = FOLDER / f"{gpu.name}-{model}.json"
    if not path.is_file():
        known = sorted(each.name.split("-")[0] for each in FOLDER.glob(f"*-{model}.json"))
        raise ConfigError(
            f"{model} was fitted for {', '.join(known) or 'no GPU'}, not for {gpu.name}; give a "
            "file of its constants as calibration, or take kernels"
        )
    found: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8"))["constants"]
    return found


def save_constants(
    folder: Path, model: str, gpu: Gpu, constants: Mapping[str, object], fitted_to: str
) -> Path:
    """Write the file, with what the constants were fitted to."""
    path = folder / f"{gpu.name}-{model}.json"
    content = {"model": model, "gpu": gpu.name, "fitted_to": fitted_to, "constants": constants}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
