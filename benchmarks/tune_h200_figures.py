"""Figures 1 and 2 of Geißler et al. from the results of `tune_h200.py`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["save_figures"]


def save_figures(data: Mapping[str, Any], folder: Path) -> None:
    """Write a page, SVG and PNG of each scenario's search by sm2 at alpha 0.75."""
    from wattloop.report.figures.render import save
    from wattloop.report.figures.search import course_figure, rate_figure

    charts = {}
    for name, found in data["scenarios"].items():
        done = next((t for t in found["trainings"] if t["kind"] == "sm2-0.75"), None)
        if done is None:
            continue
        said = f"{found['facts']['title']}, energy of the GPU, {done['provenance']}"
        moments = [{**m, "label": f"batch {m['label']}"} for m in done["moments"]]
        charts[f"{name}-course"] = course_figure(moments, found["facts"]["metric"], said=said)
        best = str(done["parameters"].get("batch_size"))
        for sweep in done["sweeps"]:
            if sweep["label"] == best:
                charts[f"{name}-rates"] = rate_figure(_swept(sweep), said=said)
    drawn = {name: chart for name, chart in charts.items() if chart is not None}
    save(drawn, folder, title="SM2 on real trainings")


def _swept(sweep: Mapping[str, Any]) -> Any:
    from wattloop.report.figures.search import SweptRates

    pick = sweep["pick"]
    window = None if pick is None else (pick["window"]["low"], pick["window"]["high"])
    return SweptRates(
        label=f"batch {sweep['label']}",
        # JSON has no infinity: a rate that broke the model has no loss there.
        losses=[(r["rate"], math.inf if r["loss"] is None else r["loss"]) for r in sweep["rates"]],
        window=window,
        rate=None if pick is None else pick["rate"],
    )
