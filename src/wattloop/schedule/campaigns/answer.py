"""The answer to a what-if question in a sentence."""

from wattloop.schedule.campaigns.summary import Summary
from wattloop.schedule.metrics.comparison import Difference

__all__ = ["AS_IT_IS", "CHANGED", "answer"]

AS_IT_IS, CHANGED = "as it is", "changed"
WORDS = {
    "throughput_per_h": "throughput",
    "energy_kwh": "energy",
    "energy_per_job_kwh": "energy per job",
    "jct_mean_s": "mean completion time",
    "peak_power_w": "peak power",
    "carbon_kg": "carbon",
    "cost": "cost",
}
POINTS = {"miss_rate": "missed deadlines"}


def answer(summary: Summary, label: str) -> str:
    """`With h100 in place of a100: +12.0% throughput (95%: +10.1 to +14.0), ...`.

    Args:
        summary: of two worlds, `AS_IT_IS` and `CHANGED`, as if they were policies.
        label: what was changed, in words.
    """
    differences = summary.differences[CHANGED]
    parts = [
        _percent(found, words)
        for name, words in WORDS.items()
        if (found := differences.get(name)) is not None and found.relative is not None
    ]
    for name, words in POINTS.items():
        found = differences.get(name)
        if found is not None:
            parts.append(_points(found, words))
    return f"{label}: {', '.join(parts)}."


def _percent(found: Difference, words: str) -> str:
    assert found.relative is not None
    half = found.relative_half_width
    return _said(100 * found.relative, None if half is None else 100 * half, "%", words)


def _points(found: Difference, words: str) -> str:
    half = None if found.half_width is None else 100 * found.half_width
    return _said(100 * found.mean, half, " points", words)


def _said(mean: float, half: float | None, unit: str, words: str) -> str:
    """What is within chance is called so, whatever its mean."""
    if half is None:
        return f"{mean:+.1f}{unit} {words}" if abs(mean) >= 0.05 else f"the same {words}"
    if abs(mean) + half < 0.05:
        return f"the same {words}"
    interval = f"95%: {mean - half:+.1f} to {mean + half:+.1f}"
    if abs(mean) <= half:
        return f"no clear change of {words} ({interval}{unit})"
    return f"{mean:+.1f}{unit} {words} ({interval})"
