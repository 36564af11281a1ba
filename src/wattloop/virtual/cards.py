"""Parameters of the virtual cards, shipped or from the user's file."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.virtual.gpu import CardModel

# Peak rates, limits and highest clocks are the maker's. Idle power and the split between
# arithmetic and memory of the H200 are set so that a full matrix product meets what was measured
# on a real one; those of A100, A40 and V100 are assumptions that nothing was compared with. So
# are all voltages and the clock of the knee, which no maker publishes; that voltage is constant
# up to a knee and linear above is the form of Guerreiro et al., "GPGPU Power Modeling for Multi-
# Domain Voltage-Frequency Scaling" (HPCA 2018). Lower memory clocks and the part of idle power
# that follows them are assumed, too. The RTX 6000 was fitted to a published table
# (docs/benchmarks/document_004.md).

CARDS: dict[str, CardModel] = {
    "h200": CardModel(
        name="virtual H200",
        flops_per_s=989e12,
        bytes_per_s=4.8e12,
        memory_b=141e9,
        idle_w=80.0,
        compute_w=925.0,
        memory_w=140.0,
        default_limit_w=700.0,
        min_limit_w=200.0,
        min_clock_mhz=345.0,
        max_clock_mhz=1980.0,
        memory_clock_mhz=3201.0,
        lower_memory_clocks_mhz=(1593.0, 810.0),
        memory_idle_w=15.0,
        knee_mhz=1200.0,
        min_volt=0.70,
        max_volt=1.05,
        source=(
            "NVIDIA H200 datasheet (bf16 dense 989 TFLOPS, 4.8 TB/s, 700 W); measured by this "
            "project: limits 200 to 700 W, 80 W idle with a context, 1660 MHz at the limit"
        ),
    ),
    "a100": CardModel(
        name="virtual A100",
        flops_per_s=312e12,
        bytes_per_s=2.039e12,
        memory_b=80e9,
        idle_w=55.0,
        compute_w=390.0,
        memory_w=90.0,
        default_limit_w=400.0,
        min_limit_w=100.0,
        min_clock_mhz=210.0,
        max_clock_mhz=1410.0,
        memory_clock_mhz=1593.0,
        lower_memory_clocks_mhz=(1215.0, 810.0),
        memory_idle_w=10.0,
        knee_mhz=900.0,
        min_volt=0.70,
        max_volt=1.00,
        source=(
            "NVIDIA A100 80GB SXM datasheet (bf16 dense 312 TFLOPS, 2039 GB/s, 400 W); power "
            "split, idle power and voltages assumed"
        ),
    ),
    "v100": CardModel(
        name="virtual V100",
        flops_per_s=125e12,
        bytes_per_s=0.9e12,
        memory_b=32e9,
        idle_w=40.0,
        compute_w=320.0,
        memory_w=60.0,
        default_limit_w=300.0,
        min_limit_w=100.0,
        min_clock_mhz=135.0,
        max_clock_mhz=1530.0,
        memory_clock_mhz=877.0,
        lower_memory_clocks_mhz=(810.0,),
        memory_idle_w=5.0,
        knee_mhz=950.0,
        min_volt=0.70,
        max_volt=1.05,
        sensor_period_s=0.02,
        sensor_window_s=0.01,
        source=(
            "NVIDIA V100 SXM2 datasheet (tensor 125 TFLOPS, 900 GB/s, 300 W); power split, idle "
            "power and voltages assumed; sensor of 20 ms as "
            "Lang and Ruenger (Euro-Par 2013) found on earlier cards, its window assumed"
        ),
    ),
    "a40": CardModel(
        name="virtual A40",
        flops_per_s=149.7e12,
        bytes_per_s=0.696e12,
        memory_b=48e9,
        idle_w=30.0,
        compute_w=330.0,
        memory_w=85.0,
        default_limit_w=300.0,
        min_limit_w=100.0,
        min_clock_mhz=210.0,
        max_clock_mhz=1740.0,
        memory_clock_mhz=7251.0,
        lower_memory_clocks_mhz=(6251.0, 5001.0, 405.0),
        memory_idle_w=10.0,
        knee_mhz=1000.0,
        min_volt=0.70,
        max_volt=1.05,
        overshoot=0.01,
        cap_floor_mhz=500.0,
        source=(
            "NVIDIA A40 datasheet (bf16 dense 149.7 TFLOPS, 696 GB/s, 300 W); power split, idle "
            "power and voltages assumed. Zeus's published runs show real A40s up to 1% above their "
            "cap and up to 21% above the lowest one, which sets overshoot and lowest capped clock"
        ),
    ),
    "rtx6000": CardModel(
        name="virtual Quadro RTX 6000",
        flops_per_s=130.5e12,
        bytes_per_s=0.672e12,
        memory_b=24e9,
        idle_w=20.0,
        compute_w=589.4,
        memory_w=40.0,
        default_limit_w=260.0,
        min_limit_w=100.0,
        min_clock_mhz=300.0,
        max_clock_mhz=2100.0,
        memory_clock_mhz=7001.0,
        lower_memory_clocks_mhz=(6501.0, 5001.0, 810.0),
        memory_idle_w=8.0,
        knee_mhz=1350.0,
        min_volt=0.70,
        max_volt=1.09,
        volt_exponent=3.0,
        ramp_s=0.01,
        source=(
            "NVIDIA Quadro RTX 6000 datasheet (tensor 130.5 TFLOPS, 672 GB/s, 24 GB); limits of "
            "100 to 260 W from Koszczal et al. (Euro-Par 2023 Workshops); dynamic power and the "
            "steepness of the voltage fitted to their figures by benchmarks/document_004.py; idle "
            "power, memory power and voltages assumed"
        ),
    ),
}


def card_named(name: str) -> CardModel:
    """The card called `name`, such as `h200`. Raises ConfigError: there is none."""
    card = CARDS.get(name.lower())
    if card is None:
        raise ConfigError(f"no virtual GPU called '{name}'; known are {', '.join(CARDS)}")
    return card


# A virtual card of one's own, from a file: one that ships, with some of its figures changed.
#
# {"like": "a100", "name": "virtual H100", "idle_w": 70, "default_limit_w": 700}

_FIELDS = {each.name: each.type for each in fields(CardModel)}


def read_card(path: Path) -> CardModel:
    """Read a card from a file. Raises ConfigError: unreadable, or an impossible value."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise ConfigError(f"virtual GPU: {path}: {problem}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"virtual GPU: {path}: write an object such as {{'like': 'a100'}}")
    card = card_named(str(data.pop("like", "h200")))
    changes: dict[str, Any] = {}
    for name, value in data.items():
        if name not in _FIELDS:
            raise ConfigError(
                f"virtual GPU: {path}: no field '{name}'; known: {', '.join(_FIELDS)}"
            )
        is_text = isinstance(getattr(card, name), str)
        if isinstance(value, bool) or not isinstance(value, str if is_text else int | float):
            raise ConfigError(f"virtual GPU: {path}: {name}: {value!r} is not a valid value")
        changes[name] = value if is_text else float(value)
    return replace(card, **changes)


def write_card(path: Path, like: str, **changes: float | str) -> CardModel:
    """Write a file for `read_card`; returns the card."""
    card = replace(card_named(like), **changes)  # type: ignore[arg-type]  # `read_card` checks
    said = {name: value for name, value in asdict(card).items() if name in changes}
    path.write_text(json.dumps({"like": like, **said}) + "\n", "utf-8")
    return read_card(path)
