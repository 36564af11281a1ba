"""Energy over runtime per device, over the stored runs."""

from collections.abc import Iterable
from typing import Any

from wattloop.accounting.energy_slope import slopes
from wattloop.cli.output import print_table, say
from wattloop.core.units import format_energy, format_power
from wattloop.store.runs import RunRecord

__all__ = ["print_slopes", "slopes_of"]


def slopes_of(records: Iterable[RunRecord]) -> dict[str, Any]:
    """The slope of every device that was read in these runs, and why others have none."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if record.result is None or not record.counted:
            continue
        for domain in record.result.counted:
            if domain.energy_j is not None:
                device = f"{domain.name} {domain.device}".strip()
                pairs.setdefault(device, []).append((record.result.duration_s, domain.energy_j))
    found, missing = slopes(pairs)
    return {
        "slopes": [slope._asdict() for slope in found],
        "missing": [{"device": m.name, "reason": m.reason, "remedy": m.remedy} for m in missing],
    }


def print_slopes(data: dict[str, Any]) -> None:
    """A row per device: joules per further second, and how well the runs lie on the line."""
    rows = [
        (
            slope["device"],
            format_power(slope["slope_w"]),
            format_energy(slope["intercept_j"]).partition(" (")[0],
            f"{slope['r2']:.3f}",
            str(slope["runs"]),
        )
        for slope in data["slopes"]
    ]
    if rows:
        print_table(("device", "slope", "at 0 s", "R2", "runs"), rows)
    for missing in data["missing"]:
        say(f"{missing['device']}: {missing['reason']}; {missing['remedy']}")
    if not rows and not data["missing"]:
        say("no run with a reading yet; try: wattloop run -- python train.py")
