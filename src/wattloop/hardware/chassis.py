"""Power of the rest of a node: power-supply efficiencies, board, disk, adapter card and fans."""

from typing import NamedTuple


class Fact(NamedTuple):
    """A value and its source. The half-width is our estimate of how far machines differ."""

    value: float
    half_width: float
    source: str


EIGHTY_PLUS: dict[str, dict[float, float]] = {
    "bronze": {0.2: 0.81, 0.5: 0.85, 1.0: 0.81},
    "silver": {0.2: 0.85, 0.5: 0.89, 1.0: 0.85},
    "gold": {0.2: 0.88, 0.5: 0.92, 1.0: 0.88},
    "platinum": {0.2: 0.90, 0.5: 0.94, 1.0: 0.91},
    "titanium": {0.1: 0.90, 0.2: 0.94, 0.5: 0.96, 1.0: 0.91},
}
"""Least efficiency by share of rated load; 80 PLUS programme, 230 V internal redundant."""

PSU_EFFICIENCY = Fact(
    0.92,
    0.04,
    "80 PLUS, 230 V redundant: from Gold at 20% load (0.88) to Titanium at 50% (0.96)",
)

_FAN_2007 = (
    "Fan, Weber, Barroso, Power Provisioning for a Warehouse-sized Computer, 2007, table 1: peak "
    "power of components, 213 W in all"
)

BOARD_W = Fact(25.0, 15.0, _FAN_2007)
DISK_W = Fact(12.0, 9.0, _FAN_2007)
ADAPTER_W = Fact(25.0, 15.0, _FAN_2007 + " (one of its two PCI slots: a network card)")

FAN_SHARE = Fact(
    0.10,
    0.05,
    "of the power to be cooled: 10 W of 213 W (5%) in Fan et al. 2007, 10 to 15% in dense 1U "
    "servers (eWeek, How to Optimize the Energy Efficiency of Your Server)",
)
