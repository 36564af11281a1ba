"""Energy of a run by component, those of one kind in one colour."""

from typing import Any

from wattloop.core.results import WindowResult
from wattloop.core.units import format_energy
from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.style import GREY, WIDTH, styled

__all__ = ["components_figure"]

ROW_PX = 34


def components_figure(result: WindowResult) -> Any:
    """A bar per domain that counts in the total, with its uncertainty; None without any."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "domain": domain.name,
            "scope": domain.scope.value,
            "energy_j": domain.energy_j,
            "low": max(0.0, domain.energy_j - domain.uncertainty_j),
            "high": domain.energy_j + domain.uncertainty_j,
            "shown": format_energy(domain.energy_j).partition(" (")[0],
        }
        for domain in result.domains
        if domain.energy_j is not None and domain.in_total
    ]
    if not rows:
        return None
    base = alt.Chart(rows_data(rows))
    y = alt.Y("domain:N", sort=[row["domain"] for row in rows], title=None)
    # room for the text behind the longest bar
    scale = alt.Scale(domain=[0, 1.25 * max(row["high"] for row in rows)], nice=False)
    x = alt.X("energy_j:Q", title="Energy (J)", scale=scale)
    color = alt.Color("scope:N", title=None)
    bars = base.mark_bar().encode(x=x, y=y, color=color)
    ends = base.mark_rule(color=GREY).encode(
        x=alt.X("low:Q", title="Energy (J)"), x2=alt.X2("high:Q"), y=y
    )
    text = base.mark_text(align="left", dx=5, fontSize=11, color=GREY).encode(
        x=alt.X("high:Q", title="Energy (J)"), y=y, text=alt.Text("shown:N")
    )
    chart = alt.layer(bars, ends, text).properties(width=WIDTH, height=ROW_PX * len(rows))
    missing = f"; missing: {', '.join(part.name for part in result.missing)}"
    kinds = sorted({d.provenance.value for d in result.domains if d.energy_j is not None})
    said = f"{', '.join(kinds)}; lines: uncertainty{missing if result.missing else ''}"
    return styled(chart, "Energy by component", said)
