"""Figures of statistics: correlations, regression coefficients, importances."""

from typing import Any

from wattloop.analyze.correlation import Correlations
from wattloop.analyze.importance import METHODS, Importances
from wattloop.analyze.ols import Regression
from wattloop.report.figures.chart_data import rows_data
from wattloop.report.figures.scatter import titled
from wattloop.report.figures.style import GREY, PALETTE, WIDTH, styled

CELL_PX = 46
FEW = 16
"""With more columns numbers are too small to read."""


def correlation_figures(found: Correlations) -> dict[str, Any]:
    """Draw Pearson's r of all compared pairs."""
    import altair as alt

    rows = []
    for row in found.rows:
        for one, other in ((row["one"], row["other"]), (row["other"], row["one"])):
            shown = "" if row["r"] is None else f"{row['r']:+.2f}"
            rows.append(
                {
                    "one": one,
                    "other": other,
                    "r": row["r"],
                    "rho": row["rho"],
                    "p": row["r_p"],
                    "shown": shown,
                }
            )
    if found.target is not None:
        rows = [row for row in rows if row["one"] == found.target]
    names = list(found.names)
    side = CELL_PX if len(names) <= FEW else CELL_PX // 2
    label = alt.Axis(labelLimit=200, labelAngle=-40)
    base = alt.Chart(rows_data(rows)).encode(
        x=alt.X("one:N", sort=names, title=None, axis=label),
        y=alt.Y("other:N", sort=names, title=None, axis=alt.Axis(labelLimit=200)),
        tooltip=[
            alt.Tooltip("one:N"),
            alt.Tooltip("other:N"),
            alt.Tooltip("r:Q", title="Pearson r", format="+.3f"),
            alt.Tooltip("p:Q", format=".3~g"),
            alt.Tooltip("rho:Q", title="Spearman rho", format="+.3f"),
        ],
    )
    scale = alt.Scale(domain=[-1, 0, 1], range=["#b2182b", "#f7f7f7", "#2166ac"])
    cells = base.mark_rect().encode(color=alt.Color("r:Q", title="Pearson r", scale=scale))
    layers = [cells]
    if len(names) <= FEW:
        dark = alt.condition("abs(datum.r) > 0.6", alt.value("white"), alt.value("#111827"))
        layers.append(base.mark_text(fontSize=11).encode(text=alt.Text("shown:N"), color=dark))
    wide = 1 if found.target is not None else len(names)
    tall = len(names) - (found.target is not None)
    chart = alt.layer(*layers).properties(width=max(side * wide, 60), height=side * tall)
    hint = "point at a cell for p"
    return {"correlation": styled(chart, "Correlation", "Pearson's r", hint=hint)}


ROW_PX = 17


def regression_figures(found: Regression) -> dict[str, Any]:
    """Draw every level with its 95% interval; significant ones are coloured."""
    import altair as alt

    rows = [
        {
            "term": row["term"],
            "coef": row["coef"],
            "low": row["low"],
            "high": row["high"],
            "p": row["p"],
            "kind": "p < 0.05" if (row["p"] or 0.0) < 0.05 else "p >= 0.05",
        }
        for row in found.rows
        if row["coef"] is not None
    ]
    if not rows:
        return {}
    y = alt.Y("term:N", sort=None, title=None, axis=alt.Axis(labelLimit=260))
    x_title = f"Distance from the mean over levels, {titled(found.target)}"
    base = alt.Chart(rows_data(rows)).encode(
        y=y,
        color=alt.Color(
            "kind:N",
            title=None,
            scale=alt.Scale(domain=["p < 0.05", "p >= 0.05"], range=[PALETTE[0], "#9ca3af"]),
        ),
        tooltip=[
            alt.Tooltip("term:N"),
            alt.Tooltip("coef:Q", format=".4~g"),
            alt.Tooltip("low:Q", format=".4~g"),
            alt.Tooltip("high:Q", format=".4~g"),
            alt.Tooltip("p:Q", format=".3~g"),
        ],
    )
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(color=GREY).encode(x=alt.X("x:Q"))
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title=x_title), x2=alt.X2("high:Q")
    )
    dots = base.mark_point(size=45, filled=True, opacity=1).encode(x=alt.X("coef:Q"))
    chart = alt.layer(zero, alt.layer(bars, dots)).properties(
        width=WIDTH, height=ROW_PX * len(rows)
    )
    kept = "" if found.cv_r2 is None else f", {found.cv_r2:.3f} on rows left out"
    said = f"OLS over {found.facts['rows']} runs, R2 {found.r2:.3f}{kept}; bars: 95% interval"
    return {"coefficients": styled(chart, f"What each level adds to {titled(found.target)}", said)}


def importance_figures(found: Importances) -> dict[str, Any]:
    import altair as alt

    rows = [
        {
            "parameter": r["parameter"],
            "importance": r["importance"],
            "shown": f"{r['importance']:.1%}",
        }
        for r in found.rows
    ]
    base = alt.Chart(rows_data(rows)).encode(
        y=alt.Y("parameter:N", sort=None, title=None, axis=alt.Axis(labelLimit=260)),
        x=alt.X("importance:Q", title="Importance", axis=alt.Axis(format="%")),
    )
    bars = base.mark_bar(color=PALETTE[0])
    names = base.mark_text(align="left", dx=5, fontSize=11).encode(text=alt.Text("shown:N"))
    height = max(24 * len(rows), 60)
    chart = alt.layer(bars, names).properties(width=WIDTH, height=height)
    said = f"{METHODS[found.method]}; {found.facts['rows']} runs"
    return {"importance": styled(chart, f"What {titled(found.target)} depends on", said)}
