"""Parameters of three virtual cards.

Peak rates, limits and highest clocks are the maker's. Idle power and the split between arithmetic
and memory of the H200 are set so that a full matrix product meets what was measured on a real one;
those of A100 and V100 are assumptions that nothing was compared with. So are all voltages and the
clock of the knee, which no maker publishes; that voltage is constant up to a knee and linear above
is the form of Guerreiro et al., "GPGPU Power Modeling for Multi-Domain Voltage-Frequency Scaling"
(HPCA 2018).
"""

from wattloop.core.errors import ConfigError
from wattloop.virtual.physics import CardModel

__all__ = ["CARDS", "card_named"]

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
}


def card_named(name: str) -> CardModel:
    """The card called `h200`, `a100` or `v100`."""
    card = CARDS.get(name.lower())
    if card is None:
        raise ConfigError(f"no virtual GPU called '{name}'; known are {', '.join(CARDS)}")
    return card
