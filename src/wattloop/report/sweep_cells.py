"""Numbers of a sweep as cells of a table."""

from collections.abc import Sequence
from typing import Any

from wattloop.analyze.intervals import Estimate
from wattloop.sweep.result import Gain, SweepResult

__all__ = [
    "gain_text",
    "kinds_of",
    "mean_only",
    "noise_text",
    "runs_text",
    "setting_text",
    "title_of",
    "with_interval",
    "with_sd",
]


def title_of(result: SweepResult) -> str:
    """What a table of one sweep is called."""
    name = result.experiment.name or result.experiment.experiment_id
    window = result.experiment.spec.get("window")
    part = f", window '{window}'" if window else ""
    return f"{name}{part}, energy of {result.scope} ({result.provenance})"


def kinds_of(results: Sequence[SweepResult]) -> str:
    """Whose energy, and where it comes from."""
    return ", ".join(dict.fromkeys(f"{r.scope}, {r.provenance}" for r in results))


def setting_text(row: dict[str, Any]) -> str:
    """The setting, marked when it is the default."""
    marked = row["is_default"] and row["setting"] != "default"
    return f"{row['setting']}{' (default)' if marked else ''}"


def runs_text(row: dict[str, Any]) -> str:
    """Runs that are used, of how many."""
    return f"{row['used']}" + (f" of {row['runs']}" if row["used"] != row["runs"] else "")


def with_interval(value: Estimate | None) -> str:
    """Mean and half-width."""
    if value is None:
        return "-"
    if value.half_width is None:
        return _number(value.mean)
    return f"{_number(value.mean)} ± {_digits(value.half_width, value.mean)}"


def mean_only(value: Estimate | None) -> str:
    """The mean."""
    return "-" if value is None else _number(value.mean)


def with_sd(value: Estimate | None) -> str:
    """Mean and standard deviation."""
    if value is None:
        return "-"
    return f"{value.mean:.1f}" + ("" if value.sd is None else f" ± {value.sd:.1f}")


def gain_text(gain: Gain | None, sign: int = 1) -> str:
    """Per cent, with its half-width; `sign` -1 makes a gain of time a loss."""
    if gain is None:
        return "-"
    value = f"{sign * gain.value_pct + 0.0:+.2f}".replace("-0.00", "+0.00")
    if gain.half_width_pct:
        return f"{value} ± {gain.half_width_pct:.2f}"
    return value


def noise_text(gain: Gain, is_default: bool) -> str:
    """A best that could be chance is said to be so."""
    if is_default or gain.half_width_pct is None or gain.beyond_noise:
        return ""
    return " (within noise)"


def _number(value: float) -> str:
    """Four digits, also where the last ones are zeros; joules of large numbers in full."""
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:#.4g}".rstrip(".")


def _digits(half_width: float, mean: float) -> str:
    """As many decimals as the mean shows."""
    shown = _number(mean)
    decimals = len(shown.partition(".")[2])
    return f"{half_width:.{decimals}f}"
