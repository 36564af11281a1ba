"""Figures of statistics: correlations, regression coefficients, importances."""

from wattloop.analyze.correlation import Correlations
from wattloop.analyze.importance import METHODS, Importances
from wattloop.analyze.ols import Regression
from wattloop.report.figures.chart import (
    BEST,
    GREY,
    PALETTE,
    TICKS,
    WIDTH,
    Spec,
    channel,
    layers,
    mark,
    styled,
    titled,
)

CELL_PX = 46
FEW = 16
"""With more columns numbers are too small to read."""


def correlation_figures(found: Correlations) -> dict[str, Spec]:
    """Draw Pearson's r of all compared pairs."""
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
    scale = {"domain": [-1, 0, 1], "range": ["#b2182b", "#f7f7f7", "#2166ac"]}
    parts = [mark("rect", color=channel("r:Q", "Pearson r", scale=scale))]
    if len(names) <= FEW:
        dark = {"condition": {"test": "abs(datum.r) > 0.6", "value": "#ffffff"}, "value": BEST}
        parts.append(mark("text", {"fontSize": 11}, text="shown:N", color=dark))
    wide = 1 if found.target is not None else len(names)
    tall = len(names) - (found.target is not None)
    chart = layers(
        *parts,
        rows=rows,
        size=(max(side * wide, 60), side * tall),
        x=channel("one:N", None, sort=names, axis={"labelLimit": 200, "labelAngle": -40}),
        y=channel("other:N", None, sort=names, axis={"labelLimit": 200}),
        tooltip=[
            "one:N",
            "other:N",
            channel("r:Q", "Pearson r", format="+.3f"),
            channel("p:Q", format=".3~g"),
            channel("rho:Q", "Spearman rho", format="+.3f"),
        ],
    )
    hint = "point at a cell for p"
    return {"correlation": styled(chart, "Correlation", "Pearson's r", hint=hint)}


ROW_PX = 17


def regression_figures(found: Regression) -> dict[str, Spec]:
    """Draw every level with its 95% interval; significant ones are coloured."""
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
    x_title = f"Distance from the mean over levels, {titled(found.target)}"
    kinds = {"domain": ["p < 0.05", "p >= 0.05"], "range": [PALETTE[0], TICKS]}
    terms = layers(
        mark("rule", {"strokeWidth": 2}, x=channel("low:Q", x_title), x2={"field": "high"}),
        mark("point", {"size": 45, "filled": True, "opacity": 1}, x="coef:Q"),
        rows=rows,
        y=channel("term:N", None, sort=None, axis={"labelLimit": 260}),
        color=channel("kind:N", None, scale=kinds),
        tooltip=[
            "term:N",
            *(channel(f"{name}:Q", format=".4~g") for name in ("coef", "low", "high")),
            channel("p:Q", format=".3~g"),
        ],
    )
    zero = mark("rule", {"color": GREY}, rows=[{"x": 0}], x="x:Q")
    chart = layers(zero, terms, size=(WIDTH, ROW_PX * len(rows)))
    kept = "" if found.cv_r2 is None else f", {found.cv_r2:.3f} on rows left out"
    said = f"OLS over {found.facts['rows']} runs, R2 {found.r2:.3f}{kept}; bars: 95% interval"
    return {"coefficients": styled(chart, f"What each level adds to {titled(found.target)}", said)}


def importance_figures(found: Importances) -> dict[str, Spec]:
    rows = [
        {
            "parameter": r["parameter"],
            "importance": r["importance"],
            "shown": f"{r['importance']:.1%}",
        }
        for r in found.rows
    ]
    chart = layers(
        mark("bar", {"color": PALETTE[0]}),
        mark("text", {"align": "left", "dx": 5, "fontSize": 11}, text="shown:N"),
        rows=rows,
        size=(WIDTH, max(24 * len(rows), 60)),
        y=channel("parameter:N", None, sort=None, axis={"labelLimit": 260}),
        x=channel("importance:Q", "Importance", axis={"format": "%"}),
    )
    said = f"{METHODS[found.method]}; {found.facts['rows']} runs"
    return {"importance": styled(chart, f"What {titled(found.target)} depends on", said)}
