"""A store as a group has it after two weeks: a starved training, a pair of runs, seven nodes."""

import time
from datetime import datetime, timedelta
from typing import Any

from tests.support.virtual_runs import CardScript, RunScript, Work, write_run
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.fleet.delivery.node_status import NodeStatus
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord
from wattloop.virtual.gpu import IDLE, Activity

SETTINGS = Settings(pue=1.25, carbon_g_per_kwh=211.0, tariff_per_kwh=0.28, currency="EUR")
BUSY = Activity(0.96, 0.5, 0.9)
DURATION_S = 120.0
STEPS = 4_000
FAULT = "gpu:2: no energy reading since 07:41"
BARE_NODE = "node8"
"""A host without an agent, on which a run failed."""


def last_monday_s() -> float:
    """Return noon of Monday of last week."""
    today = datetime.now().date()
    monday = today - timedelta(days=today.weekday() + 7)
    return datetime(monday.year, monday.month, monday.day, 12).timestamp()


def fill(store: Store) -> dict[str, RunRecord]:
    """Write three runs of last week and three of the last hours; the starved one costs most."""
    starved = [Work(4 + 4 * n, BUSY if n % 2 else IDLE) for n in range(29)]
    well = CardScript([Work(4, BUSY), Work(114, Activity(0.5, 0.2, 0.5))])
    week_s, now_s = last_monday_s(), time.time()
    plans = {
        "unet-seg": (week_s, [CardScript(starved)] * 4, ()),
        "bert-large": (week_s + 3_600, [well], ()),
        "vit-base": (week_s + 7_200, [well], ()),
        "gpt2": (now_s - 7_200, [CardScript(starved)] * 2, ("--batch-size", "8")),
        "gpt2-capped": (now_s - 3_600, [CardScript([Work(4, BUSY)], limit_share=0.6)], ()),
        "resnet50": (now_s - 5_400, [well], ()),
    }
    found = {}
    ends = {"resnet50": (BARE_NODE, RunStatus.FAILED)}
    for number, (name, (started_s, cards, more)) in enumerate(plans.items()):
        host, status = ends.get(name, (f"node{number + 1}", RunStatus.FINISHED))
        found[name] = write_run(
            store,
            RunScript(
                name=name,
                host=host,
                status=status,
                run_id=f"20260101-00000{number}-{number:06x}",
                duration_s=DURATION_S,
                cards=cards,
                interval_s=0.5,
                command=("python", "train.py", "--model", name, *more),
                settings=SETTINGS,
                started_wall_s=started_s,
                events=[{"type": "phases", "steps": STEPS, "step_j": 12.0 * len(cards)}],
            ),
        )
    return found


def node_reports() -> dict[str, tuple[float, dict[str, Any]]]:
    """Return seven nodes as a server stores them; the last one has a fault, and all are recent."""
    heard_s = time.time() + 3_600
    found = {}
    for number in range(1, 8):
        status = NodeStatus(
            power_w={f"gpu:{gpu}": 400.0 + number for gpu in range(4)},
            limit_w={f"gpu:{gpu}": 700.0 for gpu in range(4)},
            provenance="simulated",
            faults=(FAULT,) if number == 7 else (),
        )
        found[f"node{number}"] = (heard_s, {"status": status.to_dict()})
    return found
