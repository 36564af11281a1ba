"""Stand-in for ROCm's amdsmi 7.0: same names, signatures, units, errors and type checks."""

import time
from enum import IntEnum


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code):
        super().__init__(err_code)
        self.err_code = err_code
        self.err_info = {
            2: "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported",
            10: "AMDSMI_STATUS_NO_PERM - Permission Denied",
            31: "AMDSMI_STATUS_NOT_FOUND - Device Not found",
            34: "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded",
            32: "AMDSMI_STATUS_NOT_INIT - Device not initialized",
        }.get(err_code, "AMDSMI_STATUS_UNKNOWN_ERROR - An unknown error occurred")


class AmdSmiParameterException(AmdSmiException):
    pass


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiClkType(IntEnum):
    SYS = 0
    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


class Handle:
    def __init__(self, number):
        self.number = number


class World:
    """State of the cards; tests change it."""

    def __init__(self):
        self.addresses = ["0000:c1:00.0", "0000:c6:00.0"]
        self.power_w = [310, 95]
        self.errors = {}
        self.init_error = 0
        self.started = 0
        self.begin_s = time.monotonic()


world = World()


def _check(handle, call):
    if not isinstance(handle, Handle):
        raise AmdSmiParameterException
    if world.started <= 0:
        raise AmdSmiLibraryException(32)
    code = world.errors.get((handle.number, call)) or world.errors.get((handle.number, "*"))
    if code:
        raise AmdSmiLibraryException(code)
    return handle.number


def amdsmi_init(flag=AmdSmiInitFlags.INIT_AMD_GPUS):
    if world.init_error:
        raise AmdSmiLibraryException(world.init_error)
    world.started += 1


def amdsmi_shut_down():
    world.started -= 1


def amdsmi_get_processor_handles():
    return [Handle(number) for number in range(len(world.addresses))]


def amdsmi_get_gpu_device_bdf(processor_handle):
    return world.addresses[_check(processor_handle, "bdf")]


def amdsmi_get_energy_count(processor_handle):
    number = _check(processor_handle, "energy")
    energy_j = 5_000 + world.power_w[number] * (time.monotonic() - world.begin_s)
    return {
        "energy_accumulator": int(energy_j / 15.259e-6),
        "counter_resolution": 15.259,
        "timestamp": time.monotonic_ns(),
    }


def amdsmi_get_power_info(processor_handle):
    number = _check(processor_handle, "power")
    return {
        "socket_power": world.power_w[number],
        "current_socket_power": "N/A",
        "average_socket_power": world.power_w[number],
        "gfx_voltage": 800,
        "soc_voltage": "N/A",
        "mem_voltage": "N/A",
        "power_limit": 500,
    }


def amdsmi_get_power_cap_info(processor_handle):
    _check(processor_handle, "cap")
    watt = 1_000_000
    return {
        "power_cap": 400 * watt,
        "default_power_cap": 560 * watt,
        "dpm_cap": 0,
        "min_power_cap": 0,
        "max_power_cap": 560 * watt,
    }


def amdsmi_get_gpu_activity(processor_handle):
    _check(processor_handle, "activity")
    return {"gfx_activity": 87, "umc_activity": "N/A", "mm_activity": "N/A"}


def amdsmi_get_clock_info(processor_handle, clock_type):
    _check(processor_handle, "clock")
    if not isinstance(clock_type, AmdSmiClkType):
        raise AmdSmiParameterException
    clk = 1600 if clock_type is AmdSmiClkType.MEM else 1700
    return {"clk": clk, "min_clk": 500, "max_clk": 1700, "clk_locked": False, "clk_deep_sleep": 0}


def amdsmi_get_temp_metric(processor_handle, sensor_type, metric):
    _check(processor_handle, "temperature")
    if not isinstance(sensor_type, AmdSmiTemperatureType):
        raise AmdSmiParameterException
    return 56


def amdsmi_get_gpu_memory_usage(processor_handle, mem_type):
    _check(processor_handle, "memory")
    if not isinstance(mem_type, AmdSmiMemoryType):
        raise AmdSmiParameterException
    return 12_000_000_000


def amdsmi_get_gpu_asic_info(processor_handle):
    _check(processor_handle, "asic")
    return {"market_name": "AMD Instinct MI250X", "vendor_id": "0x1002"}
