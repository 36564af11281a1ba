"""Time and speed-up against the number of GPUs: figure 7 of Koszczal et al. (Euro-Par 2023)."""

from typing import Any

from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.style import GREY, HEIGHT, WIDTH, colour, said_of, styled
from wattloop.sweep.result import GAIN_MINUS_LOSS, SweepResult, largest_groups
from wattloop.sweep.tables import scaling_rows

__all__ = ["scaling_figures"]


def scaling_figures(result: SweepResult) -> dict[str, Any]:
    """Times and speed-up for the default and the setting with the best gain minus loss."""
    import altair as alt

    rows = scaling_rows(result)
    counts = sorted({row["gpus"] for row in rows})
    if len(counts) < 2:
        return {}
    largest = largest_groups([g for g in result.groups if g.reference is not None])
    chosen = {p.label for g in largest if (found := g.best(GAIN_MINUS_LOSS)) for p in found[:1]}
    several = len({(row["workload"], row["library"]) for row in rows}) > 1
    data = [
        {
            "gpus": row["gpus"],
            "setting": " ".join(filter(None, (row["workload"], row["library"])) if several else ())
            + (" " if several else "")
            + row["setting"]
            + (" (default)" if row["is_default"] else ""),
            "time_s": row["time_s"].mean,
            "speed_up": row["speed_up"],
            "shown": f"{row['time_s'].mean:#.3g}".rstrip("."),
        }
        for row in rows
        if row["is_default"] or row["setting"] in chosen
    ]
    data.sort(key=lambda row: "(default)" not in row["setting"])
    base = alt.Chart(rows_data(data))
    order = list(dict.fromkeys(row["setting"] for row in data))
    color = colour("setting", order)
    beside = alt.XOffset("setting:N", sort=order)
    gpus = alt.X("gpus:O", title="Number of GPUs", axis=alt.Axis(labelAngle=0))
    bars = base.mark_bar().encode(
        x=gpus, xOffset=beside, y=alt.Y("time_s:Q", title="Time (s)"), color=color
    )
    labels = base.mark_text(dy=-6, fontSize=11, color=GREY).encode(
        x=gpus, xOffset=beside, y=alt.Y("time_s:Q"), text=alt.Text("shown:N")
    )
    times = alt.layer(bars, labels).properties(width=WIDTH, height=HEIGHT)
    ideal = [{"gpus": count, "speed_up": count / counts[0]} for count in counts]
    x = alt.X("gpus:Q", title="Number of GPUs", axis=alt.Axis(values=counts, format="d"))
    y = alt.Y("speed_up:Q", title=f"Speed-up over {counts[0]} GPU{'s' if counts[0] > 1 else ''}")
    line = alt.Chart(alt.Data(values=ideal)).mark_line(strokeDash=[5, 4], color=GREY)
    real = base.mark_line(point=alt.OverlayMarkDef(size=40, filled=True))
    scaling = alt.layer(line.encode(x=x, y=y), real.encode(x=x, y=y, color=color)).properties(
        width=WIDTH, height=HEIGHT
    )
    said = f"mean of the repeats; {said_of(result)}"
    return {
        "times": styled(times, "Time against the number of GPUs", said),
        "speed-up": styled(scaling, "Speed-up with the number of GPUs", f"{said}; dashed: ideal"),
    }
