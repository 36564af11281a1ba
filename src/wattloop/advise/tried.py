"""What sweeps and cap searches of the same command found: the best evidence there is on caps."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, list_experiments
from wattloop.store.runs import RunRecord

__all__ = ["SLOWER", "TriedCap", "tried_caps"]

SLOWER = 0.05
"""A cap that costs more time than this is a trade, not waste: whoever runs the program decides."""


class TriedCap(NamedTuple):
    """The cap with the least energy among those that cost little time, by one experiment.

    Attributes:
        cap_w: the cap; the limit it was compared with when no cap saves anything.
        saving_share, time_change_share: against that limit.
        beyond_noise: whether repeats allow to say so.
        source: `by the sweep of 12 May 2026 (sweep-..., simulated)`.
    """

    cap_w: float
    saving_share: float
    time_change_share: float
    beyond_noise: bool
    source: str


def tried_caps(store: Store, record: RunRecord) -> tuple[TriedCap, ...]:
    """One entry per finished sweep or cap search of this run's command, newest first."""
    if not record.command:
        return ()
    found = []
    for experiment in list_experiments(store, "sweep", "cap"):
        if experiment.status != "finished" or not _same_work(experiment, record):
            continue
        of = _of_sweep if experiment.kind == "sweep" else _of_search
        tried = of(experiment)
        if tried is not None:
            found.append(tried)
    return tuple(found)


def _same_work(experiment: Experiment, record: RunRecord) -> bool:
    """The same command, on the same machine as far as that is known."""
    host = experiment.facts.get("host")
    if host and record.host and host != record.host:
        return False
    return _words(experiment.spec.get("command") or ()) == _words(record.command or ())


def _words(command: Sequence[str]) -> list[str]:
    """Without the folder of the program: `/usr/bin/python3` is `python3`."""
    return [str(command[0]).rpartition("/")[2], *map(str, command[1:])] if command else []


def _of_sweep(experiment: Experiment) -> TriedCap | None:
    """From the summary that the sweep stored when it ended."""
    summary = experiment.facts.get("summary") or {}
    axes = {str(axis["name"]): axis for axis in experiment.facts.get("axes") or ()}
    caps = [name for name in axes if name.endswith("power_limit")]
    if len(caps) != 1:
        return None
    points = [p for p in summary.get("points") or () if _only_capped(p, caps[0], axes)]
    default_w = _cap_w(axes[caps[0]], str(axes[caps[0]].get("default")))
    best = TriedCap(default_w or 0.0, 0.0, 0.0, False, _source(experiment, "sweep", summary))
    seen = False
    for point in points:
        gains = point.get("gains") or {}
        cap_w = _cap_w(axes[caps[0]], str(point["levels"][caps[0]]))
        if cap_w is None or "energy" not in gains or "time" not in gains:
            continue
        seen = True
        saving = float(gains["energy"]["value_pct"]) / 100
        slower = -float(gains["time"]["value_pct"]) / 100
        if saving > best.saving_share and slower <= SLOWER:
            noise = bool(gains["energy"].get("beyond_noise"))
            best = best._replace(
                cap_w=cap_w, saving_share=saving, time_change_share=slower, beyond_noise=noise
            )
    return best if seen else None


def _only_capped(point: Mapping[str, Any], cap: str, axes: Mapping[str, Any]) -> bool:
    """Whether every other lever stands at its default."""
    levels = point.get("levels") or {}
    others = (name for name in levels if name != cap)
    return cap in levels and all(levels[n] == axes.get(n, {}).get("default") for n in others)


def _cap_w(axis: Mapping[str, Any], label: str) -> float | None:
    for level in axis.get("levels") or ():
        if level["label"] == label and level["number"] is not None:
            return float(level["number"])
    return None


def _of_search(experiment: Experiment) -> TriedCap | None:
    """From the cap that `wattloop cap find` chose, by the metric that was asked of it."""
    choice = experiment.facts.get("choice") or {}
    gain, loss = choice.get("energy_gain_pct"), choice.get("time_loss_pct")
    if not choice.get("cap_w") or gain is None or loss is None:
        return None
    mean, low, _ = _interval(gain)
    return TriedCap(
        cap_w=float(choice["cap_w"]),
        saving_share=mean / 100,
        time_change_share=_interval(loss)[0] / 100,
        beyond_noise=low > 0,
        source=_source(experiment, "cap search", {}),
    )


def _interval(value: Any) -> tuple[float, float, float]:
    """Mean, low and high, as a list or with names."""
    if isinstance(value, Mapping):
        numbers = [float(v) for v in value.values()]
    else:
        numbers = [float(v) for v in value]
    return numbers[0], numbers[1], numbers[2]


def _source(experiment: Experiment, what: str, summary: Mapping[str, Any]) -> str:
    day = datetime.fromtimestamp(experiment.created_wall_s).astimezone()
    kind = f", {summary['provenance']}" if summary.get("provenance") else ""
    return f"by the {what} of {day:%d %B %Y} ({experiment.experiment_id}{kind})"
