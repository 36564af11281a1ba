"""Constants of a GPU without calibration, derived from its data sheet."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from wattloop.hardware.gpus import Gpu
from wattloop.predict.cap_curve import static_power
from wattloop.predict.models.kernels.constants import DEFAULTS, KernelConstants, Residuals, Values

SHIPPED = Path(__file__).with_name("spec_rules.yaml")
FITTED: Mapping[str, float] = {
    "products": 0.06,
    "spare_issue": 0.04,
    "streams": 0.08,
    "joules": 0.20,
}
"""Numbers that a fit to measured steps of other GPUs may change, with their standard deviation in
logarithms. The rest is physics that few GPUs cannot determine.
"""


@dataclass(frozen=True, slots=True)
class SpecRules:
    """Rules in addition to general shares (`spec_shares`) and data sheets.

    Attributes:
        products: factor on the share of the peak that products reach.
        spare_issue: another for fp32 on the ordinary units, where a scheduler has 16 lanes: one
            instruction keeps them busy for two cycles, so loads and integers go in between. With
            32 lanes (Pascal, Ada, Hopper) every cycle that issues something else is lost.
        streams: factor on the share of the memory's bandwidth.
        joules: factor on the energy of a FLOP beyond what process and clock say.
        process_exponent: of the feature size, in energy per FLOP.
        clock_exponent: of the boost clock, in energy per FLOP: a high clock needs voltage.
        gddr_joules: energy of a byte of GDDR against one of HBM, most of which is spent on chip.
        intervals: residuals of GPUs that were left out, for intervals.
        made: data of the fit.
    """

    products: float = 1.0
    spare_issue: float = 1.15
    streams: float = 1.0
    joules: float = 1.0
    process_exponent: float = 0.8
    clock_exponent: float = 1.2
    gddr_joules: float = 1.3
    intervals: Mapping[str, Any] = field(default_factory=dict, compare=False)
    made: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def changed(self, **numbers: float) -> "SpecRules":
        return replace(self, **numbers)  # type: ignore[arg-type]  # every number is a float

    def save(self, path: Path) -> None:
        import yaml

        plain = {
            name: float(f"{value:.4g}") if isinstance(value, float) else dict(value)
            for name, value in asdict(self).items()
        }
        path.write_text(yaml.safe_dump(plain, sort_keys=False, width=96), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "SpecRules":
        import yaml

        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        return cls(**{f.name: plain[f.name] for f in fields(cls) if f.name in plain})


@lru_cache(maxsize=1)
def shipped_rules() -> SpecRules:
    """Return the rules of the package, fitted to every GPU of public measurements."""
    return SpecRules.load(SHIPPED)


# Shares of a data sheet's figures that large operations reach on any GPU, and their power. A
# calibration's own numbers do not transfer: they describe the libraries' choices on a GPU of its
# size (an H200 convolves at half of its fp32 peak, a V100 at three quarters). These are round
# figures for operations that fill the GPU. Watts and joules are those of a GPU like the H200 (4 nm,
# 1980 MHz, 700 W).

SHARES: Mapping[str, float] = {
    **{
        name: value
        for name, value in DEFAULTS.items()
        if name.startswith(("product.", "depthwise.", "attention.", "rnn.", "stream."))
    },
    "product.efficiency.gemm.tf32": 0.62,
    "product.misaligned": 3.0,
    "attention.efficiency.efficient.forward.fp32": 0.50,
    "attention.efficiency.efficient.backward.fp32": 0.40,
    "attention.efficiency.efficient.forward.tf32": 0.08,  # on the ordinary units, too
    "attention.efficiency.efficient.backward.tf32": 0.06,
    "stream.efficiency.norm.batch.forward.bf16": 0.25,  # torch's own kernels, not cuDNN's
    "stream.efficiency.norm.batch.backward.bf16": 0.25,
    "stream.efficiency.pool.max_pool2d_with_indices_backward": 0.20,
    "power.static_w": 35.0,
    "power.busy_w": 90.0,
    **{f"power.busy_w.{part}": 90.0 for part in ("product", "rnn", "norm", "stream")},
    "power.joule_per_flop.bf16": 1.0e-12,
    "power.joule_per_flop.fp16": 1.0e-12,
    "power.joule_per_flop.tf32": 2.2e-12,
    "power.joule_per_flop.fp32": 7.5e-12,
    "power.joule_per_flop.fp64": 1.2e-11,
    "power.joule_per_flop.vector": 5.0e-12,
    "power.joule_per_byte": 8.0e-11,
}


# Constants of an uncalibrated GPU, from its data sheet.
#
# A GPU of the calibrated architecture gets those constants. Any other gets general shares of peaks
# and of bandwidth, and the calibrated host. Watts follow the size of a GPU, joules its process,
# clock and memory: #
#     joules per FLOP = known x (nm / nm_known)^p x (boost / boost_known)^c

PROCESS_NM = {
    "kepler": 28.0,
    "pascal": 16.0,
    "volta": 12.0,
    "turing": 12.0,
    "ampere": 7.0,
    "ada": 4.0,
    "hopper": 4.0,
    "blackwell": 4.0,
    "cdna": 7.0,
    "cdna2": 6.0,
    "cdna3": 5.0,
    "cdna4": 3.0,
    "gaudi3": 5.0,
}
"""Feature size by the foundry's name (the makers' white papers)."""
SUCCESSORS = {"hopper": "blackwell"}
"""Architecture -> the one with the same process and multiprocessors of the same make."""
GA102_NM = 8.0
"""Feature size of Ampere with GDDR memory, made by Samsung, not TSMC."""
GDDR_QUICKER = 1.4
"""Ada, and Blackwell with GDDR memory, need the voltage of others for so much higher a clock: the
RTX 4090 boosts to 2520 MHz, the RTX 3090 before it to 1695."""
SCHEDULERS = 4
"""Of a multiprocessor since Kepler; GP100 has two, each with 32 lanes."""
SPARE_LANES, FULL_LANES = 16.0, 32.0
CLOCKED_S = ("product.tile_s", "attention.block_s", "rnn.step_s", "depthwise.start_s",
             "stream.start_s")  # fmt: skip
HIGHEST_SHARE = 0.97
"""No kernel reaches more of a peak or of a bandwidth."""
LEAST_ROOM = 0.1
"""Least share of the power limit for memory traffic, whatever the idle power."""


def spec_constants(
    gpu: Gpu, reference: KernelConstants, calibrated: Gpu, rules: SpecRules | None = None
) -> KernelConstants:
    """Return constants for `gpu`, where `reference` are those of the `calibrated` one."""
    rules = shipped_rules() if rules is None else rules
    intervals = _intervals(reference, gpu, rules)
    made = {"calibrated": calibrated.name, **rules.made}
    if _is_like(gpu, calibrated):
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


def _is_like(gpu: Gpu, calibrated: Gpu) -> bool:
    """Return whether a GPU has the calibrated architecture, or the one made from it."""
    if gpu.architecture == calibrated.architecture:
        return True
    follows = SUCCESSORS.get(calibrated.architecture) == gpu.architecture
    return follows and gpu.memory_type.startswith("hbm") == calibrated.memory_type.startswith("hbm")


def _general(values: Values) -> Values:
    host = {name: value for name, value in values.numbers.items() if name.startswith("host.")}
    # A more specific default would override the general value of its kind.
    rest = {n: v for n, v in DEFAULTS.items() if not any(n.startswith(f"{k}.") for k in SHARES)}
    return Values({**rest, **SHARES, **host})


def _intervals(reference: KernelConstants, gpu: Gpu, rules: SpecRules) -> dict[str, Any]:
    """Return residuals of GPUs that were left out; the reference defines the known operations."""
    if not rules.intervals:
        return {}
    scope = reference.intervals.get("scope")
    return {**rules.intervals, "scope": {**scope, "gpu": gpu.name} if scope else None}


def _shares(values: Values, gpu: Gpu, calibrated: Gpu, rules: SpecRules) -> dict[str, float]:
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
    """Return constants that are a number of cycles."""
    slower = calibrated.boost_clock_mhz / gpu.boost_clock_mhz
    return {
        name: value * slower for name, value in values.numbers.items() if name.startswith(CLOCKED_S)
    }


def _power(values: Values, gpu: Gpu, calibrated: Gpu, rules: SpecRules) -> dict[str, float]:
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
            # Clocks and schedulers of busy multiprocessors, by their number and clock.
            changes[name] = value * units * joules
    for dtype in ("tf32", "bf16", "fp16"):
        if dtype not in gpu.matrix_flops:  # the ordinary units do it
            quicker = gpu.vector_flops.get(dtype, 0.0) / gpu.vector_flops.get("fp32", 1.0)
            ordinary = changes["power.joule_per_flop.fp32"] / max(quicker, 1.0)
            changes[f"power.joule_per_flop.{dtype}"] = ordinary
    byte_j = values["power.joule_per_byte"]
    # A card can use its full memory bandwidth: streaming takes no larger share of the power limit
    # than on the calibrated GPU.
    share = (_fixed_w(values) + byte_j * calibrated.memory_bytes_s) / calibrated.tdp_w
    room_w = max(share * gpu.tdp_w - _fixed_w(Values(changes)), LEAST_ROOM * gpu.tdp_w)
    byte_j *= _memory(gpu, rules) / _memory(calibrated, rules)
    changes["power.joule_per_byte"] = min(byte_j, room_w / gpu.memory_bytes_s)
    return changes


def _fixed_w(values: Values) -> float:
    busy_w = values.find("power.busy_w", "stream")
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
    """Return lanes of the whole GPU; a multiprocessor has 64 or a multiple."""
    if gpu.vendor == "amd":  # CDNA 3 counts two instructions at once
        return gpu.sms * 64
    return gpu.sms * 64 * max(round(_fp32_per_cycle(gpu) / 64), 1)


def _fp32_per_cycle(gpu: Gpu) -> float:
    return gpu.vector_flops.get("fp32", 0.0) / (2 * gpu.sms * gpu.boost_clock_mhz * 1e6)


def _l2_ratio(gpu: Gpu) -> float:
    """Return the bandwidth of L2 (bytes per cycle and multiprocessor) over that of memory."""
    return gpu.sms * gpu.boost_clock_mhz * 1e6 / gpu.memory_bytes_s


def _process_nm(gpu: Gpu) -> float:
    if gpu.architecture == "ampere" and gpu.memory_type.startswith("gddr"):
        return GA102_NM
    # For an unknown architecture, the newest is assumed.
    return PROCESS_NM.get(gpu.architecture, min(PROCESS_NM.values()))


def _voltage_mhz(gpu: Gpu) -> float:
    is_gddr = gpu.memory_type.startswith("gddr")
    quick = gpu.architecture == "ada" or (gpu.architecture == "blackwell" and is_gddr)
    return gpu.boost_clock_mhz / (GDDR_QUICKER if quick else 1.0)


def _memory(gpu: Gpu, rules: SpecRules) -> float:
    return rules.gddr_joules if gpu.memory_type.startswith("gddr") else 1.0
