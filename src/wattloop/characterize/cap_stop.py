"""When a search for a cap has read enough.

Where readings are exact, four probes are. Where they are further off than the 2% that the choice
is to be within, another probe is weighed: it has to lower the expected regret by its price.
"""

from wattloop.characterize.cap_choice import CLOSE, Choice
from wattloop.characterize.cap_probe import Further

__all__ = ["CERTAINTY", "FEWEST", "USUAL", "enough", "most_allowed", "spent", "why_on"]

USUAL = 4
"""Probes that do for exact readings, the reference included."""
FEWEST = 3
"""Fewer only where no cap changes anything."""
CERTAINTY = 0.9999
"""With this probability to be within 2% of the best cap, more probes would not pay. Real curves
deviate more than is believed: on measured ones 0.98 was right nine times in ten."""
NOISY = CLOSE
"""One reading that is off by more than this does not tell which caps are within 2%. As people are
shown it: two runs that are stated 2% apart stay so with the small error of the energy beside."""
ENOUGH = CLOSE / 2
"""Expected regret at which the search ends: half of what is allowed, so that most are within."""
PRICE = 0.001
"""A further probe is to lower the expected regret by so much: that repays a probe whose work is
thrown away in a job of a thousand times its length."""


def most_allowed(caps: int, asked: int | None, noise: float) -> int:
    """Probes at most: `asked`, else the usual number; with noisy readings one per cap.

    Never more than `caps`, which is what trying every cap takes.
    """
    if asked is not None:
        return min(asked, caps)
    return caps if round(noise, 3) > NOISY else min(USUAL, caps)


def spent(caps: int, asked: int | None, probes: int) -> str:
    """Why a search that has made so many probes may make no more."""
    if asked is not None and probes >= asked:
        return f"{asked} {'was' if asked == 1 else 'were'} allowed"
    if probes >= caps:
        return "as many as there are caps"
    return f"the usual number where readings are within {100 * NOISY:g}%"


def enough(choice: Choice, further: Further | None, noise: float) -> str:
    """After the usual probes: why another would not pay; empty where it does."""
    if choice.expected_regret_pct <= 100 * ENOUGH:
        return f"expected within {100 * ENOUGH:g}% of the best cap"
    if further is None or further.gain < PRICE:
        return f"one more reading, {_per_cent(noise)} off, would teach too little"
    return ""


def why_on(choice: Choice, noise: float) -> str:
    """Said when a search goes on after the usual probes."""
    return (
        f"readings are {_per_cent(noise)} apart and the choice is "
        f"{choice.expected_regret_pct:.1f}% from the best cap on average: probing on"
    )


def _per_cent(noise: float) -> str:
    return f"{100 * noise:.0f}%" if noise >= 0.1 else f"{100 * noise:.2g}%"
