"""Units: quantities as users write them, SI inside (joules, watts, seconds), and printing."""

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

J_PER_WH = 3_600.0
J_PER_KWH = 3_600_000.0
SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
"""Units that users write after a time."""
NO_EXPONENT_BELOW = 1e9


def wh_from_joules(energy_j: float) -> float:
    return energy_j / J_PER_WH


def kwh_from_joules(energy_j: float) -> float:
    return energy_j / J_PER_KWH


ENERGY_UNITS: tuple[tuple[str, float], ...] = (
    *(("nJ", 1e-9), ("µJ", 1e-6), ("mJ", 1e-3), ("J", 1.0), ("kJ", 1e3)),
    *(("Wh", J_PER_WH), ("kWh", J_PER_KWH), ("MWh", 1e3 * J_PER_KWH)),
)
"""Units in which people read an energy: joules below a watt-hour, above it those of a bill."""


def energy_unit(energy_j: float) -> tuple[str, float]:
    """Return the unit for an energy of this size, and its joules."""
    size = abs(energy_j)
    if size >= 1_000:
        return next(each for each in reversed(ENERGY_UNITS[4:]) if size >= each[1])
    fits = (each for each in ENERGY_UNITS[3::-1] if size >= 0.1 * each[1])
    return next(fits, ENERGY_UNITS[0]) if size else ENERGY_UNITS[3]


def short_energy(energy_j: float, like_j: float | None = None) -> str:
    """An energy in one unit, for tables: `12.3 J`, `1.27 Wh`, `2.19 kWh`.

    Args:
        energy_j: what to show.
        like_j: an energy next to it, such as the whole that it is a part or the uncertainty of:
            its unit is used for a tenth to a thousand of it, else one of the same family, joules or
            watt-hours.
    """
    size, unit = abs(energy_j), energy_unit(energy_j)
    if like_j is not None:
        like = energy_unit(like_j)
        if 0.1 <= size / like[1] < 1_000:
            unit = like
        elif (size < J_PER_WH) != (abs(like_j) < J_PER_WH):
            unit = ENERGY_UNITS[5 if size < J_PER_WH else 4]
    return _in_unit(energy_j, unit)


def energy_range(low_j: float, high_j: float, like_j: float | None = None) -> str:
    """An interval in the unit of `like_j`, or of its upper end: `238 to 595 Wh`."""
    unit = energy_unit(high_j if like_j is None else like_j)
    return f"{_in_unit(low_j, unit).partition(' ')[0]} to {_in_unit(high_j, unit)}"


def _in_unit(energy_j: float, unit: tuple[str, float]) -> str:
    return f"{_three(energy_j / unit[1])} {unit[0]}"


def format_energy(energy_j: float) -> str:
    """An energy in the unit of `short_energy`, and from 1 kJ on in the other one, too:
    `0.817 mJ`, `12.3 J`, `1.43 kJ (0.398 Wh)`, `1.27 Wh (4.56 kJ)`, `2.19 kWh (7.89 MJ)`.
    """
    size, short = abs(energy_j), short_energy(energy_j)
    other = f"{_three(wh_from_joules(energy_j))} Wh" if size < J_PER_WH else _joules(energy_j)
    return short if size < 1_000 else f"{short} ({other})"


def _joules(energy_j: float) -> str:
    size = abs(energy_j)
    if size < 1_000:
        return short_energy(energy_j)
    steps = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"))
    scale, unit = next(each for each in steps if size >= each[0])
    return f"{_three(energy_j / scale)} {unit}"


def format_power(power_w: float) -> str:
    """Watts for people: `20.0 mW`, `5.20 W`, `1.40 kW`."""
    if abs(power_w) < 1_000:
        return _scaled(power_w, "W")
    return f"{_three(power_w / 1_000)} kW"


def format_edp(edp_js: float) -> str:
    """Energy x time for people: `4.56 kJ s`."""
    return f"{_joules(edp_js)} s"


def format_mass(mass_g: float) -> str:
    """Grams for people: `8.10 mg`, `0.420 g`, `1.30 kg`."""
    if abs(mass_g) < 1_000:
        return _scaled(mass_g, "g")
    return f"{_three(mass_g / 1_000)} kg"


def format_money(amount: float) -> str:
    """An amount for people: `1,234.50`, `0.042`; `< 0.001` where even that says nothing."""
    size = abs(amount)
    if 0 < size < 0.001:
        return "< 0.001" if amount > 0 else "> -0.001"
    return f"{amount:#.2g}" if 0 < size < 0.0995 else f"{amount:,.2f}"


def format_bytes(size_b: float) -> str:
    """Bytes for people: `512 B`, `1.50 KiB`, `3.00 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_b) < 1_024:
            return f"{_three(size_b)} {unit}"
        size_b /= 1_024
    return f"{_three(size_b)} TiB"


def format_number(value: float, digits: int = 4) -> str:
    """Format with this many significant digits, everyday sizes in full: `20,000`, not `2e+04`."""
    text = f"{value:,.{digits}g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < NO_EXPONENT_BELOW else text


def format_share(share: float, decimals: int = 1) -> str:
    """A part of a whole for people: `12.5%`; `< 0.1%` where it would be rounded to nothing."""
    least = 10 ** -(decimals + 2)
    if 0 < abs(share) < least / 2:
        return f"< {least:.{decimals}%}"
    return f"{share:.{decimals}%}"


def format_error(error: float, value: float) -> str:
    """An uncertainty relative to its value: `0.3%`, `69%`."""
    share = abs(error / value) if value else math.nan
    return "?" if math.isnan(share) else format_share(share, 1 if share < 0.1 else 0)


def format_change(change: float, spread: float = 0.0) -> str:
    """A relative change for people: `-20.0% ± 1.3%`, `< ±0.1%`, from tenfold on `x 1,234 ± 17`."""
    factor = 1 + change
    largest = max(abs(factor), spread)
    if largest < 10:
        small = 0 < abs(change) < 0.0005 and spread < 0.0005
        text = "< ±0.1%" if small else f"{change:+.1%}"
        return text + (f" ± {format_share(spread)}" if spread and not small else "")
    if largest >= 1e6:
        return "> x 1,000,000" if factor >= 1e6 else f"x {factor:,.1f}, ± more than 1,000,000"
    decimals = 1 if largest < 100 else 0
    is_small = spread < 0.5 * 10**-decimals
    return f"x {factor:,.{decimals}f}" + ("" if is_small else f" ± {spread:,.{decimals}f}")


def format_duration(duration_s: float) -> str:
    """Seconds for people: `12.3 ms`, `4.56 s`, `3 min 05 s`, `2 h 07 min`."""
    # below what rounds to the next unit: 1.00 ms, not 1000 us
    if duration_s < 999.5e-6:
        return f"{_three(duration_s * 1e6)} us"
    if duration_s < 999.5e-3:
        return f"{_three(duration_s * 1e3)} ms"
    if duration_s < 59.95:
        return f"{_three(duration_s)} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def iso_time(wall_s: float | None) -> str | None:
    """Format a time as `2026-01-31T12:00:00.123Z`; None when it is unknown or out of range."""
    from datetime import UTC, datetime  # slow to import, and not needed to measure

    if wall_s is None:
        return None
    try:
        moment = datetime.fromtimestamp(wall_s, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _scaled(value: float, unit: str) -> str:
    """Format with the prefix that leaves no run of zeros: `0.500 J`, `50.0 mJ`, `0.817 mJ`."""
    size = abs(value)
    for prefix, scale in (("", 1.0), ("m", 1e-3), ("µ", 1e-6)):
        if size >= 0.1 * scale or size == 0:
            return f"{_three(value / scale)} {prefix}{unit}"
    return f"{_three(value / 1e-9)} n{unit}"


def _three(value: float) -> str:
    """Three significant digits without an exponent for everyday sizes."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    if size >= 0.001:
        return f"{value:#.3g}"
    return f"{value:.2e}"


# Syntax of quantities: `5 mJ`, `20 kJ`, `4.5 kW`, `1.4 GHz`, `10 min`, `25 GB/s`.
#
# The case of a unit decides where SI requires it: `mJ` is a millijoule, `MJ` a megajoule, `Gb/s`
# counts bits and `GB/s` bytes. An ambiguous spelling (`mj`) is refused. Elsewhere case is free:
# `kwh`, `KW` and `mhz` have one meaning.

NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
WRITTEN = re.compile(rf"\s*({NUMBER})\s*([^\d\s.,:;-][^\s]*|)\s*")


class Dimension(StrEnum):
    """Dimension of a quantity; the value names its SI unit."""

    ENERGY = "J"
    POWER = "W"
    TIME = "s"
    FREQUENCY = "Hz"
    BANDWIDTH = "B/s"
    COUNT = "instructions"
    SHARE = "1"


class Quantity(NamedTuple):
    """A value in the SI unit of its dimension; `unit` as it was written, empty without one."""

    value: float
    dimension: Dimension
    unit: str


UNITS: dict[Dimension, dict[str, float]] = {
    Dimension.ENERGY: {
        **{"uJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9},
        **{"mWh": 3.6, "Wh": 3_600.0, "kWh": 3.6e6, "MWh": 3.6e9, "GWh": 3.6e12},
    },
    Dimension.POWER: {"uW": 1e-6, "mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6, "GW": 1e9},
    Dimension.TIME: {
        **{"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0},
        **{"min": 60.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0},
    },
    Dimension.FREQUENCY: {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    Dimension.BANDWIDTH: {
        **{"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
        **{"b/s": 1 / 8, "kb/s": 1e3 / 8, "Mb/s": 1e6 / 8, "Gb/s": 1e9 / 8, "Tb/s": 1e12 / 8},
        **{"kbit/s": 1e3 / 8, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8, "Tbit/s": 1e12 / 8},
        **{"Mbps": 1e6 / 8, "Gbps": 1e9 / 8},
    },
    Dimension.COUNT: {
        **{"instructions": 1.0, "instr": 1.0},
        **{"kinstr": 1e3, "Minstr": 1e6, "Ginstr": 1e9},
    },
    Dimension.SHARE: {"%": 0.01},
}


def quantity(text: str, *dimensions: Dimension, what: str) -> Quantity:
    """Parse a quantity in one of `dimensions`; without a unit, in the first.

    Args:
        text: a number, and usually a unit.
        dimensions: which of them are accepted here.
        what: what it should be and how to write it, for the message: "an energy; write '20 kJ'".

    Raises:
        ValueError: not such a quantity, or a unit that could be two.
    """
    written = number_and_unit(text)
    if written is None:
        raise ValueError(f"{text!r} is not {what}")
    number, unit = written
    if not unit:
        return Quantity(number, dimensions[0], "")
    known = {name: (d, scale) for d in dimensions for name, scale in UNITS[d].items()}
    spelled = unit.replace("\u00b5", "u").replace("\u03bc", "u")
    if spelled not in known:
        alike = [name for name in known if name.lower() == spelled.lower()]
        if len({known[name] for name in alike}) > 1:
            meanings = " or ".join(f"{n} ({known[n][1]:,.10g} {known[n][0]})" for n in alike)
            raise ValueError(f"{text!r}: the case of {unit!r} decides what it is; write {meanings}")
        if not alike:
            raise ValueError(f"{text!r} is not {what}")
        spelled = alike[0]
    dimension, scale = known[spelled]
    # a division by 1,000 is exact to the last digit where a product with 0.001 is not
    value = number * scale if scale >= 1 else number / round(1 / scale)
    return Quantity(value, dimension, unit)


def number_and_unit(text: str) -> tuple[float, str] | None:
    """Split `1.5 kWh` into (1.5, "kWh"), `70%` into (70, "%"); None where a text does not begin
    so.
    """
    match = WRITTEN.fullmatch(text)
    number = float(match.group(1)) if match else math.nan
    return (number, match.group(2)) if match and math.isfinite(number) else None


Values = list[float | str]
"""Settings of one lever before the machine's limits are known: `170.0`, `70%`, `performance`."""
MOST_VALUES = 1_000
RANGE_KEYS = ("from", "to", "step")


def expanded(value: Any) -> Values:
    """Expand `[100, 150]`, `{from: 100, to: 260, step: 10}`, `100:260:10` or a single value to a
    list.

    Raises:
        ValueError: the text is invalid; the message shows the syntax.
    """
    if isinstance(value, Mapping):
        return _from_mapping(value)
    if isinstance(value, str) and value.count(":") == 2:
        return range_from_text(value)
    if isinstance(value, str) and "," in value:
        value = [part.strip() for part in value.split(",") if part.strip()]
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("no value; write a list such as [200, 250]")
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | float | str):
            raise ValueError(f"{item!r} is neither a number nor a word")
    return [float(item) if isinstance(item, int | float) else item for item in items]


def range_from_text(text: str) -> Values:
    """Parse `100:260:10`, or with a unit, `50%:100%:10%`."""
    return _from_mapping(dict(zip(RANGE_KEYS, text.split(":"), strict=True)))


def seconds(value: Any) -> Any:
    """Parse `90`, `90 s`, `1.5 min` or `2 h` as seconds; anything else is returned unchanged."""
    if not isinstance(value, str):
        return value
    what = "a time; write seconds, '10 min' or '2 h'"
    if value.strip().startswith("-"):
        raise ValueError(f"{value!r} is not {what}")
    return quantity(value, Dimension.TIME, what=what).value


def command_words(value: Any) -> Any:
    """Split a command line; of a list of words, numbers among them become words, too."""
    if isinstance(value, str):
        try:
            import shlex

            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"not a command line: {error}") from None
    if isinstance(value, list | tuple):
        return [str(word) if isinstance(word, int | float) else word for word in value]
    return value


def counts(value: Any) -> Any:
    """Return a single count as a list; anything else is returned unchanged."""
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


def _from_mapping(value: Mapping[str, Any]) -> Values:
    missing = [key for key in RANGE_KEYS if key not in value]
    strange = [str(key) for key in value if key not in RANGE_KEYS]
    if missing or strange:
        raise ValueError(
            "a range has from, to and step"
            + (f"; {', '.join(missing)} missing" if missing else "")
            + (f"; '{strange[0]}' is unknown" if strange else "")
        )
    parts = [_number(value[key]) for key in RANGE_KEYS]
    units = {unit for _, unit in parts if unit} or {""}
    if len(units) > 1:
        raise ValueError(f"from, to and step have different units: {sorted(units)}")
    unit = units.pop()
    low, high, step = (number for number, _ in parts)
    if step == 0 or not all(map(math.isfinite, (low, high, step))):
        raise ValueError(f"the step of a range must not be {step:g}")
    step = math.copysign(step, high - low)
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > MOST_VALUES:
        raise ValueError(f"{count} values; at most {MOST_VALUES} make sense")
    numbers = [round(low + i * step, 9) for i in range(count)]
    return [f"{n:g} {unit}".strip() if unit else n for n in numbers]


def _number(value: Any) -> tuple[float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), ""
    found = number_and_unit(str(value))
    if found is None:
        raise ValueError(f"{value!r} is not a number")
    return found
