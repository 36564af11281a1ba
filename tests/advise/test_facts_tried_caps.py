"""Promises of earlier experiments: the newest sweep of the same command decides on caps."""

from typing import Any

from tests.advise.conftest import MEMORY, Written, busy
from wattloop.advise.advisor import advice_on
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, create_experiment

AXIS = "gpu:0/power_limit"


def sweep(store: Store, name: str, points: dict[str, tuple[float, float]], **facts: Any) -> None:
    """Store a finished sweep: cap -> (energy gain, time gain) in percent, with a default of 700
    W.
    """
    levels = [{"label": f"{cap} W", "number": float(cap)} for cap in (*points, "700")]
    summary = {
        "provenance": "measured",
        "points": [
            {
                "levels": {AXIS: f"{cap} W"},
                "gains": {
                    "energy": {"value_pct": energy, "beyond_noise": True},
                    "time": {"value_pct": time},
                },
            }
            for cap, (energy, time) in points.items()
        ],
    }
    axes = [{"name": AXIS, "default": "700 W", "levels": levels}]
    create_experiment(
        store,
        Experiment(
            experiment_id=name,
            kind="sweep",
            status="finished",
            created_wall_s=1_778_572_800.0,
            spec={"command": ["/usr/bin/python", "train.py"], **facts.pop("spec", {})},
            facts={"host": "node1", "axes": axes, "summary": summary, **facts},
        ),
    )


def test_a_sweep_of_the_same_command_is_cited(store: Store, written: Written) -> None:
    """Promise: its best cap within 5% of the time is named with its date; no search is
    suggested.
    """
    sweep(store, "sweep-a", {"400": (31.0, -12.0), "500": (17.0, -3.0), "600": (9.0, -1.0)})
    (advice,) = advice_on(store, written(busy(MEMORY)))
    assert advice.title == "A cap of 500 W would do"
    assert advice.time_change_share == 0.03
    assert advice.source.startswith("by the sweep of 12 May 2026 (sweep-a, measured)")
    assert advice.command == (
        "wattloop set gpu:0/power_limit=500 -- wattloop run -- python train.py"
    )


def test_a_sweep_without_a_better_cap_ends_the_advice(store: Store, written: Written) -> None:
    """Promise: a measured result takes precedence over a prediction."""
    sweep(store, "sweep-a", {"400": (31.0, -12.0), "600": (1.0, -1.0)})
    assert advice_on(store, written(busy(MEMORY))) == []


def test_sweeps_of_other_commands_and_machines_say_nothing(store: Store, written: Written) -> None:
    """Promise: only the same command on the same machine is evidence."""
    sweep(store, "sweep-a", {"600": (1.0, -1.0)}, spec={"command": ["python", "other.py"]})
    sweep(store, "sweep-b", {"600": (1.0, -1.0)}, host="node2")
    (advice,) = advice_on(store, written(busy(MEMORY)))
    assert advice.source.startswith("by prediction")


def test_a_cap_search_is_cited_by_its_interval(store: Store, written: Written) -> None:
    """Promise: the cap that `wattloop cap find` chose counts when its saving is beyond doubt."""
    choice = {
        "cap_w": 450.0,
        "energy_gain_pct": {"value": 22.3, "low": 17.7, "high": 27.4},
        "time_loss_pct": {"value": 2.0, "low": 0.5, "high": 4.0},
    }
    create_experiment(
        store,
        Experiment(
            experiment_id="cap-a",
            kind="cap",
            status="finished",
            spec={"command": ["python", "train.py"]},
            facts={"host": "node1", "choice": choice},
        ),
    )
    (advice,) = advice_on(store, written(busy(MEMORY)))
    assert "the cap search of" in advice.source
    assert advice.title == "A cap of 450 W would do"
