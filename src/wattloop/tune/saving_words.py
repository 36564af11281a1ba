"""What the winner of a search saves, in a sentence."""

from wattloop.core.units import format_energy
from wattloop.tune.saving import NOTHING_SAVED, FinalResult

__all__ = ["saving_in_words"]


def saving_in_words(result: FinalResult) -> str:
    """What was spent, what is saved, and after how many runs that has paid."""
    search = result.search
    spent = "an unknown amount" if search.energy_j is None else format_energy(search.energy_j)
    scope = f"{search.scope or 'unknown'} energy, {search.provenance}"
    if result.saved_j is None:
        return f"spent {spent} searching; what it saves is not known: {result.why} ({scope})"
    if result.saved_j <= 0:
        why = "" if result.why == NOTHING_SAVED else f": {result.why}"
        return f"spent {spent} searching; nothing is saved{why} ({scope})"
    saved = format_energy(result.saved_j)
    within = format_energy(result.saved_uncertainty_j)
    share = 100 * result.saved_j / (result.default.energy_j or 1) if result.default else 0.0
    text = f"spent {spent} searching, saves {saved} ± {within} a run ({share:.0f}%)"
    if not result.certain:
        text += ": a tie, within the noise of single runs; repeat it to be sure"
    elif result.break_even_runs is not None:
        text += f", pays back after {_runs(result)}"
    return f"{text} ({scope})"


def _runs(result: FinalResult) -> str:
    """Runs until it has paid, as a range where the saving is uncertain."""
    assert result.break_even_runs is not None
    assert result.saved_j is not None
    middle = result.break_even_runs
    low = middle * result.saved_j / (result.saved_j + result.saved_uncertainty_j)
    text = _count(middle)
    if result.certain:
        high = middle * result.saved_j / (result.saved_j - result.saved_uncertainty_j)
        if _count(low) != _count(high):
            text += f" ({_count(low)} to {_count(high)})"
    return f"{text} run{'s' if text != '1' else ''}"


def _count(runs: float) -> str:
    return f"{runs:.1f}" if runs < 10 and round(runs, 1) != round(runs) else f"{runs:.0f}"
