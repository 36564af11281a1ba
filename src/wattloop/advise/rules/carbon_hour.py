"""Rule: an hour in which the same run would have emitted less."""

from datetime import datetime

from wattloop.accounting.carbon import load_series, mean_intensity
from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_mass

WITHIN_S = 24 * 3_600.0
"""How long a run may wait: a day, since grids repeat by the day."""
WORTH = 0.1
"""Share of the carbon that makes waiting worth it."""
COVERED = 0.99


def carbon_hour(facts: RunFacts) -> Advice | None:
    """By the user's own series of intensities: the best start within a day of the real one."""
    file = facts.settings.carbon_file
    grams = (facts.record.accounting or {}).get("carbon_g")
    if not file or not grams:
        return None
    try:
        series = load_series(user_path(file), facts.settings.zone)
    except ConfigError:  # the run's own summary says what is wrong with the file
        return None
    start_s, lasts_s = facts.record.started_wall_s, facts.duration_s
    then = mean_intensity(series, start_s, start_s + lasts_s)
    if then is None or then[1] < COVERED or then[0] <= 0:
        return None
    best_s, best = start_s, then[0]
    for point in series:
        if not start_s < point.wall_s <= start_s + WITHIN_S:
            continue
        other = mean_intensity(series, point.wall_s, point.wall_s + lasts_s)
        if other is not None and other[1] >= COVERED and other[0] < best:
            best_s, best = point.wall_s, other[0]
    share = 1 - best / then[0]
    if share < WORTH:
        return None
    hour = f"{datetime.fromtimestamp(best_s).astimezone():%H:%M}"
    again = facts.run_again()
    return Advice(
        rule="carbon-hour",
        title=f"At {hour} the grid was cleaner",
        text=(
            f"Started {(best_s - start_s) / 3_600:.0f} hours later, at {hour}, the same run would "
            f"have emitted {share:.0%} less, {format_mass(grams * share)} CO2e. Jobs that can "
            "wait are best queued for such hours."
        ),
        saving_j=None,
        saving_share=share,
        saving_g=grams * share,
        time_change_share=0.0,
        evidence=(f"{then[0]:.0f} g/kWh while it ran, {best:.0f} g/kWh from {hour}",),
        source=f"by the carbon series {file}",
        command=f"echo '{again}' | at {hour}" if again and "'" not in again else "",
    )
