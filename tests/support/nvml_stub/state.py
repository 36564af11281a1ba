"""The state file shared by all processes that use the stub; mirrors `nvml_stub.h`."""

import ctypes
from enum import IntEnum, IntFlag
from typing import Any

MAGIC = 0x574C4E564D4C3033
MAX_GPUS = 16
SEGMENTS = 1024
TEXT = 96
MEMORY_CLOCKS = 4
PROCESSES = 8
INSTANCES = 7
BASE_ENERGY_J = 1_000_000.0
"""The counter of a card that has run for a while is not zero."""


class Wave(IntEnum):
    """Shapes of the power that a card demands."""

    CONSTANT = 0
    STEP = 1
    RAMP = 2
    SQUARE = 3
    SPIKES = 4


class Call(IntFlag):
    """Groups of calls that can be made unsupported, forbidden or without effect.

    `SET` is every setter; `SET_LIMIT`, `SET_CLOCK` and `SET_MEMORY_CLOCK` are one each.
    """

    POWER = 1
    INSTANT = 2
    ENERGY = 4
    UTILISATION = 8
    CLOCK = 16
    TEMPERATURE = 32
    MEMORY = 64
    LIMIT = 128
    SET = 256
    SET_LIMIT = 512
    SET_CLOCK = 1024
    SET_MEMORY_CLOCK = 2048


def _doubles(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_double) for name in names]


class Segment(ctypes.Structure):
    """An interval with one waveform and one set of limits."""

    _fields_ = _doubles(
        "start_s",
        "energy_j",
        "origin_s",
        "kind",
        "low_w",
        "high_w",
        "period_s",
        "duty",
        "utilisation",
        "limit_w",
        "clock_mhz",
        "memory_clock_mhz",
        "clock_locked",
        "clock_low_mhz",
        "memory_clock_locked",
        "memory_clock_low_mhz",
    )


class GpuState(ctypes.Structure):
    """One card."""

    _fields_ = [
        ("segment_count", ctypes.c_uint64),
        ("draws", ctypes.c_uint64),
        *_doubles("idle_w", "default_limit_w", "min_limit_w", "max_limit_w"),
        *_doubles("min_clock_mhz", "max_clock_mhz", "memory_clock_mhz", "clock_exponent"),
        *_doubles("memory_share", "cap_overshoot"),
        ("memory_clocks_mhz", ctypes.c_double * MEMORY_CLOCKS),
        *_doubles("sensor_period_s", "sensor_window_s", "averaging_s", "noise_w", "counter_gain"),
        *_doubles("energy_read_cost_s", "set_cost_s", "memory_total_b", "memory_used_b"),
        *_doubles("compute_major", "compute_minor", "architecture"),
        *_doubles("mig_mode", "virtualization_mode", "handle_error"),
        *_doubles("unsupported_calls", "forbidden_calls", "ignored_calls"),
        *_doubles("lost_at_s", "forbidden_at_s", "reset_required_at_s", "counter_reset_at_s"),
        *_doubles("error_probability"),
        ("process_pids", ctypes.c_double * PROCESSES),
        ("process_sm", ctypes.c_double * PROCESSES),
        ("mig_slices", ctypes.c_double * INSTANCES),
        ("mig_pids", ctypes.c_double * INSTANCES),
        ("mig_sm", ctypes.c_double * INSTANCES),
        *_doubles("seed"),
        ("name", ctypes.c_char * TEXT),
        ("uuid", ctypes.c_char * TEXT),
        ("segments", Segment * SEGMENTS),
    ]


class State(ctypes.Structure):
    """The whole file."""

    _fields_ = [
        ("magic", ctypes.c_uint64),
        *_doubles("gpu_count", "init_error", "shutdown_delay_s"),
        ("driver_version", ctypes.c_char * TEXT),
        ("gpus", GpuState * MAX_GPUS),
    ]


H200 = {
    "idle_w": 75.0,
    "default_limit_w": 700.0,
    "min_limit_w": 200.0,
    "max_limit_w": 700.0,
    "min_clock_mhz": 345.0,
    "max_clock_mhz": 1980.0,
    "memory_clock_mhz": 3201.0,
    "memory_clocks_mhz": (3201.0, 1593.0, 810.0, 345.0),
    "memory_share": 0.15,
    "clock_exponent": 3.0,
    "sensor_period_s": 0.1,
    # arXiv 2312.02741: the sensor of A100 and H100 averages 25 ms of every 100 ms.
    "sensor_window_s": 0.025,
    "averaging_s": 1.0,
    "counter_gain": 1.0,
    "memory_total_b": 141e9,
    "memory_used_b": 2e9,
    "compute_major": 9.0,
    "compute_minor": 0.0,
    "architecture": 9.0,
}


def fresh_state(gpus: int, now_s: float) -> State:
    """Return `gpus` idle H200-like cards."""
    if not 0 <= gpus <= MAX_GPUS:
        raise ValueError(f"the stub has 0 to {MAX_GPUS} GPUs, not {gpus}")
    state = State(magic=MAGIC, gpu_count=gpus, driver_version=b"580.00.stub")
    for index in range(MAX_GPUS):
        gpu = state.gpus[index]
        for name, value in H200.items():
            setattr(gpu, name, value)
        gpu.seed = index + 1
        gpu.name = b"NVIDIA H200 (stub)"
        gpu.uuid = f"GPU-00000000-0000-0000-0000-{index:012d}".encode()
        gpu.segment_count = 1
        gpu.segments[0] = Segment(
            start_s=now_s,
            energy_j=BASE_ENERGY_J,
            origin_s=now_s,
            kind=Wave.CONSTANT,
            low_w=gpu.idle_w,
            high_w=gpu.idle_w,
            period_s=1.0,
            duty=1.0,
            limit_w=gpu.default_limit_w,
            clock_mhz=gpu.max_clock_mhz,
            memory_clock_mhz=gpu.memory_clock_mhz,
        )
    return state
