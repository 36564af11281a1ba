"""Constants of a GPU that nobody calibrated, by its data sheet.

A GPU of the calibrated one's architecture gets its constants. Any other gets shares of peaks and of
bandwidth that hold in general (`spec_shares`) and the calibrated one's host. Watts follow the size
of a GPU, joules its process, clock and memory:

    joules per FLOP = known x (nm / nm_known)^p x (boost / boost_known)^c
"""

from dataclasses import replace
from typing import Any

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.defaults import DEFAULTS
from wattloop.predict.models.kernels.residuals import Residuals
from wattloop.predict.models.kernels.spec_rules import SpecRules, shipped_rules
from wattloop.predict.models.kernels.spec_shares import SHARES
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.static_power import static_power

__all__ = ["spec_constants"]

PROCESS_NM = {
    "kepler": 28.0,
    "pascal": 16.0,
    "volta": 12.0,
    "turing": 12.0,
    "ampere": 7.0,
    "ada": 4.0,
    "hopper": 4.0,
    "cdna": 7.0,
    "cdna2": 6.0,
    "cdna3": 5.0,
}
"""Feature size by the name that the foundry gives it (the makers' white papers)."""
GA102_NM = 8.0
"""Ampere with GDDR memory is made by Samsung, not TSMC."""

ADA_QUICKER = 1.4
"""Ada needs the voltage of others for so much higher a clock: the RTX 4090 boosts to 2520 MHz, the
RTX 3090 before it to 1695."""

SCHEDULERS = 4
"""Of a multiprocessor since Kepler; GP100 has two, each with 32 lanes."""
SPARE_LANES, FULL_LANES = 16.0, 32.0
CLOCKED_S = ("product.tile_s", "attention.block_s", "rnn.step_s", "depthwise.start_s",
             "stream.start_s")  # fmt: skip
HIGHEST_SHARE = 0.97
"""No kernel reaches more of a peak or of a bandwidth."""
LEAST_ROOM = 0.1
"""Of the power limit, for memory traffic, however much a card is said to draw when idle."""


def spec_constants(
    gpu: Gpu, reference: KernelConstants, calibrated: Gpu, rules: SpecRules | None = None
) -> KernelConstants:
    """Constants for `gpu`, where `reference` are those of the `calibrated` one."""
    rules = shipped_rules() if rules is None else rules
    intervals = _intervals(reference, gpu, rules)
    made = {"calibrated": calibrated.name, **rules.made}
    if gpu.architecture == calibrated.architecture:
        start, rules = reference, SpecRules()
    else:
        start = replace(reference, values=_general(reference.values), residuals=Residuals())
    values = start.values
    changes = {
        **_shares(values, gpu, calibrated, rules),
        **_clocked(values, gpu, calibrated),
        **_power(values, gpu, calibrated, rules),
    }
    return replace(
        start,
        gpu=gpu.name,
        values=values.with_changes(changes),
        intervals=intervals,
        made=made,
        before={},  # a fit starts from these, not from the calibrated GPU's
    )


def _general(values: Values) -> Values:
    """What holds for any GPU, with what was measured of a host."""
    host = {name: value for name, value in values.numbers.items() if name.startswith("host.")}
    # A finer name among the defaults would win over what is said here of its kind.
    rest = {n: v for n, v in DEFAULTS.items() if not any(n.startswith(f"{k}.") for k in SHARES)}
    return Values({**rest, **SHARES, **host})


def _intervals(reference: KernelConstants, gpu: Gpu, rules: SpecRules) -> dict[str, Any]:
    """Residuals of GPUs that were left out; what operations are known, the reference says."""
    if not rules.intervals:
        return {}
    scope = reference.intervals.get("scope")
    return {**rules.intervals, "scope": {**scope, "gpu": gpu.name} if scope else None}


def _shares(values: Values, gpu: Gpu, calibrated: Gpu, rules: SpecRules) -> dict[str, float]:
    """Shares of peaks and of bandwidth."""
    spare = _issue(gpu, rules) / _issue(calibrated, rules)
    cache = _l2_ratio(gpu) / _l2_ratio(calibrated)
    changes = {}
    for name, value in values.numbers.items():
        if name.startswith(("product.efficiency", "attention.efficiency", "rnn.efficiency")):
            factor = rules.products * (spare if name.endswith(".fp32") else 1.0)
            changes[name] = min(value * factor, HIGHEST_SHARE)
        elif name.startswith(("stream.efficiency", "depthwise.efficiency")):
            changes[name] = min(value * rules.streams, HIGHEST_SHARE)
        elif name.startswith("product.l2_share"):
            changes[name] = value * cache
    changes["stream.l2_speed"] = max(values["stream.l2_speed"] * cache, 1.0)
    return changes


def _clocked(values: Values, gpu: Gpu, calibrated: Gpu) -> dict[str, float]:
    """What takes a number of cycles."""
    slower = calibrated.boost_clock_mhz / gpu.boost_clock_mhz
    return {
        name: value * slower for name, value in values.numbers.items() if name.startswith(CLOCKED_S)
    }


def _power(values: Values, gpu: Gpu, calibrated: Gpu, rules: SpecRules) -> dict[str, float]:
    """Watts and joules."""
    size = gpu.tdp_w / calibrated.tdp_w
    process = (_process_nm(gpu) / _process_nm(calibrated)) ** rules.process_exponent
    clock = (_voltage_mhz(gpu) / _voltage_mhz(calibrated)) ** rules.clock_exponent
    joules = process * clock * rules.joules
    units = _lanes(gpu) / _lanes(calibrated) * gpu.boost_clock_mhz / calibrated.boost_clock_mhz
    changes = {
        "power.idle_w": static_power(gpu).watts,
        "power.static_w": values["power.static_w"] * size,
    }
    for name, value in values.numbers.items():
        if name.startswith("power.joule_per_flop"):
            changes[name] = value * joules
        elif name.startswith("power.busy_w"):
            # Clocks and schedulers of busy multiprocessors, so many of them at such a clock.
            changes[name] = value * units * joules
    for dtype in ("tf32", "bf16", "fp16"):
        if dtype not in gpu.matrix_flops:  # the ordinary units do it
            quicker = gpu.vector_flops.get(dtype, 0.0) / gpu.vector_flops.get("fp32", 1.0)
            ordinary = changes["power.joule_per_flop.fp32"] / max(quicker, 1.0)
            changes[f"power.joule_per_flop.{dtype}"] = ordinary
    byte_j = values["power.joule_per_byte"]
    # A card is made to use its memory in full: streaming takes no more of the power limit than it
    # takes of the calibrated GPU's.
    share = (_fixed_w(values) + byte_j * calibrated.memory_bytes_s) / calibrated.tdp_w
    room_w = max(share * gpu.tdp_w - _fixed_w(Values(changes)), LEAST_ROOM * gpu.tdp_w)
    byte_j *= _memory(gpu, rules) / _memory(calibrated, rules)
    changes["power.joule_per_byte"] = min(byte_j, room_w / gpu.memory_bytes_s)
    return changes


def _fixed_w(values: Values) -> float:
    """What a busy GPU draws whatever it does."""
    busy_w = values.look("power.busy_w", "stream")
    return values["power.idle_w"] + values["power.static_w"] + busy_w


def _issue(gpu: Gpu, rules: SpecRules) -> float:
    """1 where arithmetic needs every issue slot, `spare_issue` where it needs every second."""
    if "fp32" in gpu.matrix_flops:  # AMD's matrix units do fp32 as well
        return 1.0
    lanes = _fp32_per_cycle(gpu)
    lanes /= SCHEDULERS / 2 if gpu.architecture == "pascal" and lanes < 100 else SCHEDULERS
    if lanes > FULL_LANES:  # Kepler has more than it can feed
        return FULL_LANES / lanes
    spare = (FULL_LANES - lanes) / (FULL_LANES - SPARE_LANES)
    return 1.0 + (rules.spare_issue - 1.0) * min(max(spare, 0.0), 1.0)


def _lanes(gpu: Gpu) -> float:
    """Lanes of the whole GPU, of which a multiprocessor has 64 or a multiple."""
    if gpu.vendor == "amd":  # CDNA 3 counts two instructions at once
        return gpu.sms * 64
    return gpu.sms * 64 * max(round(_fp32_per_cycle(gpu) / 64), 1)


def _fp32_per_cycle(gpu: Gpu) -> float:
    """Multiply-adds of a multiprocessor in one cycle."""
    return gpu.vector_flops.get("fp32", 0.0) / (2 * gpu.sms * gpu.boost_clock_mhz * 1e6)


def _l2_ratio(gpu: Gpu) -> float:
    """L2 serves each multiprocessor so many bytes a cycle: against the memory's bandwidth."""
    return gpu.sms * gpu.boost_clock_mhz * 1e6 / gpu.memory_bytes_s


def _process_nm(gpu: Gpu) -> float:
    if gpu.architecture == "ampere" and gpu.memory_type.startswith("gddr"):
        return GA102_NM
    # Of an architecture that nobody has heard of yet, the newest is assumed.
    return PROCESS_NM.get(gpu.architecture, min(PROCESS_NM.values()))


def _voltage_mhz(gpu: Gpu) -> float:
    """The boost clock as far as it asks for voltage."""
    return gpu.boost_clock_mhz / (ADA_QUICKER if gpu.architecture == "ada" else 1.0)


def _memory(gpu: Gpu, rules: SpecRules) -> float:
    return rules.gddr_joules if gpu.memory_type.startswith("gddr") else 1.0
