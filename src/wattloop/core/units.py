"""Units: SI inside (joules, watts, seconds); conversions and printing here."""

J_PER_WH = 3_600.0
J_PER_KWH = 3_600_000.0
SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
"""Units that users write after a time."""
NO_EXPONENT_BELOW = 1e9


def wh_from_joules(energy_j: float) -> float:
    return energy_j / J_PER_WH


def kwh_from_joules(energy_j: float) -> float:
    return energy_j / J_PER_KWH


def format_energy(energy_j: float) -> str:
    """Joules for people: `0.817 mJ`, `12.3 J`, `4.56 kJ (1.27 Wh)`, `7.89 MJ (2.19 kWh)`."""
    if abs(energy_j) < 1_000:
        return _scaled(energy_j, "J")
    wh = wh_from_joules(energy_j)
    as_wh = f"{_three(wh)} Wh" if abs(wh) < 1_000 else f"{_three(wh / 1_000)} kWh"
    for limit, scale, unit in ((1e6, 1e3, "kJ"), (1e9, 1e6, "MJ"), (float("inf"), 1e9, "GJ")):
        if abs(energy_j) < limit:
            return f"{_three(energy_j / scale)} {unit} ({as_wh})"
    raise AssertionError("unreachable")


def format_power(power_w: float) -> str:
    """Watts for people: `20.0 mW`, `5.20 W`, `1.40 kW`."""
    if abs(power_w) < 1_000:
        return _scaled(power_w, "W")
    return f"{_three(power_w / 1_000)} kW"


def format_edp(edp_js: float) -> str:
    """Energy x time for people: `4.56 kJ s`."""
    return f"{format_energy(edp_js).partition(' (')[0]} s"


def format_mass(mass_g: float) -> str:
    """Grams for people: `8.10 mg`, `0.42 g`, `1.30 kg`."""
    if abs(mass_g) < 1_000:
        return _scaled(mass_g, "g")
    return f"{_three(mass_g / 1_000)} kg"


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
    """Format with the prefix that leaves no run of zeros: `0.5 J`, `50.0 mJ`, `0.817 mJ`."""
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
        return f"{value:.3g}"
    return f"{value:.2e}"
