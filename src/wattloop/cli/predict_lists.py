"""`wattloop predict models` and `predict gpus`: what can be named."""

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, print_table, write_json
from wattloop.core.units import format_bytes, format_power
from wattloop.hardware.gpus import Gpu

__all__ = ["gpus_command", "models_command"]


def models_command(*, json_file: JsonFile = None) -> None:
    """List the architectures that hf:NAME knows without any file."""
    from wattloop.predict.sources.huggingface import architecture, architecture_names

    check_target(json_file, "--json")
    entries = {name: architecture(name) or {} for name in architecture_names()}
    if json_file is not None:
        write_json(entries, json_file)
    if json_file != "-":
        rows = [(f"hf:{name}", str(entry["model_type"])) for name, entry in entries.items()]
        print_table(("model", "kind"), rows)


def gpus_command(*, json_file: JsonFile = None) -> None:
    """List the GPUs that --gpu knows, and which of them are calibrated."""
    from wattloop.hardware.gpus import known_gpus
    from wattloop.predict.models.kernels.lookup import constants_for

    check_target(json_file, "--json")
    found = [(gpu, constants_for(gpu)[1]) for gpu in known_gpus()]
    if json_file is not None:
        data = [
            {
                "name": gpu.name,
                "product": gpu.product,
                "memory_bytes": gpu.memory_bytes,
                "memory_bytes_s": gpu.memory_bytes_s,
                "matrix_flops": dict(gpu.matrix_flops),
                "vector_flops": dict(gpu.vector_flops),
                "tdp_w": gpu.tdp_w,
                "cap_w": [gpu.cap_min_w, gpu.cap_max_w],
                "constants": source,
            }
            for gpu, source in found
        ]
        write_json(data, json_file)
    if json_file != "-":
        rows = [
            (
                gpu.name,
                gpu.product,
                format_bytes(gpu.memory_bytes),
                f"{gpu.memory_bytes_s / 1e12:.2f} TB/s",
                f"{_peak_flops(gpu) / 1e12:.0f}",
                format_power(gpu.tdp_w),
                f"{gpu.cap_min_w:g} to {gpu.cap_max_w:g} W",
                source,
            )
            for gpu, source in found
        ]
        headers = ("gpu", "product", "memory", "bandwidth", "TFLOPS", "power", "caps", "constants")
        print_table(headers, rows, spare=("caps", "TFLOPS", "bandwidth", "product"))


def _peak_flops(gpu: Gpu) -> float:
    """The most in a precision that can be asked for: fp8 would flatter GPUs that have it."""
    from wattloop.predict.workload.tracing.request import PRECISIONS

    peaks = (*gpu.matrix_flops.items(), *gpu.vector_flops.items())
    return max(flops for precision, flops in peaks if precision in PRECISIONS)
