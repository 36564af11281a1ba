"""Make the pictures of the dashboard in docs/images, on a store of virtual GPUs.

    python scripts/make_pictures.py FOLDER [PREFIX]

FOLDER keeps the store of an earlier call. Runs of nine weeks are copies of a few that went through
meters, journal and accounting on a virtual clock; every figure is marked `simulated`. With PREFIX
(`before`) only the three pictures of docs/dashboard.md's comparison are made, under that name.
"""

import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import uvicorn
from playwright.sync_api import sync_playwright

from tests.cap.saver.test_totals import OBSERVED, saving
from tests.support.virtual_runs import CardScript, RunScript, Work, write_run
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.schedule.campaigns.campaign import Campaign, PolicyChoice, seeds_from
from wattloop.schedule.campaigns.runner import run_campaign
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import Experiment, create_experiment, list_experiments
from wattloop.store.runs import RunRecord, insert_run_in
from wattloop.virtual.gpu import IDLE, Activity

IMAGES = ROOT / "docs" / "images"
DAY_S = 86_400.0
RUNS, DAYS = 600, 64
SETTINGS = Settings(pue=1.25, carbon_g_per_kwh=211.0, tariff_per_kwh=0.28, currency="EUR")
BUSY = Activity(0.96, 0.5, 0.9)
PROJECTS = {
    **{"gpt2-finetune": "language", "bert-large": "language", "resnet50": "vision"},
    **{"vit-base": "vision", "llama-lora": "assistant", "unet-seg": "medical"},
}
USERS = ("ada", "grace", "linus", "mei")
SUMMARY = {"metric": "energy", "point": "400 W", "value_pct": 29.7, "beyond_noise": True}
LIVE = "llama-lora-live"
PROGRAM = """
import time
import torch
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import this_process

gpu = shared_gpus(1)[0]
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
while True:
    for load, memory, lasts_s in ((0.2, 0.1, 0.1), (0.95, 0.5, 0.5)):
        gpu.load(load, memory=memory, owner=this_process())
        time.sleep(lasts_s)
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""A training without end: the virtual GPU waits for data, then works, and torch takes a step."""


def scripts() -> dict[str, list[CardScript]]:
    """Return the scripts of the templates' cards: healthy, starved of data, one GPU idle."""
    starved = [Work(10 + 4 * n, BUSY if n % 2 else IDLE) for n in range(145)]
    idle = [CardScript([Work(12, BUSY)])] * 3 + [CardScript()]
    healthy = CardScript([Work(20, BUSY), Work(560, Activity(0.5, 0.2, 0.5))])
    return {"": [healthy] * 2, "resnet50": [CardScript(starved)] * 2, "unet-seg": idle}


def make_store(path: Path) -> None:
    """Nine weeks of four users, a sweep with its trials, and a campaign."""
    now_s, draw = time.time(), random.Random(7)
    with open_store(path) as store:
        templates = {
            name: write_run(
                store,
                RunScript(
                    run_id=f"20260101-000000-{name or 'well'}",
                    duration_s=600.0,
                    cards=cards,
                    interval_s=0.5,
                    settings=SETTINGS,
                    started_wall_s=now_s - (DAYS + 30) * DAY_S,
                ),
            )
            for name, cards in scripts().items()
        }
        with store.writing() as connection:
            for number in range(RUNS):
                name = draw.choice(list(PROJECTS))
                template = templates.get(name, templates[""])
                record = copied(template, name, number, now_s, draw)
                insert_run_in(connection, record)
        add_sweep(store, templates[""], now_s - 5_400)
        chosen = tuple(PolicyChoice.named(name) for name in ("pollux", "zeus", "helios"))
        run_campaign(Campaign(load_scenario("thesis-pareto"), chosen, seeds_from("5")), store)


def copied(
    template: RunRecord, name: str, number: int, now_s: float, draw: random.Random
) -> RunRecord:
    """Copy a run, longer, to another time and one of the users."""
    assert template.result is not None
    factor = draw.choice((6, 12, 30, 40, 90)) * draw.uniform(0.8, 1.2)
    ended_s = now_s - 600 - DAYS * DAY_S * number / RUNS - draw.random() * 6 * 3_600
    started_s = ended_s - 600 * factor
    accounting: dict[str, Any] = dict(template.accounting or {})
    for key in ("node", "facility"):
        accounting[key] = {**accounting[key], "energy_j": accounting[key]["energy_j"] * factor}
    accounting["carbon_g"] *= factor
    accounting["cost"] = {**accounting["cost"], "amount": accounting["cost"]["amount"] * factor}
    result = template.result._replace(
        end_s=template.result.begin_s + 600 * factor,
        domains=tuple(
            d._replace(energy_j=(d.energy_j or 0.0) * factor) for d in template.result.domains
        ),
    )
    used_j = 0.9 * (result.gpu_energy_j or 0.0)
    saved = None
    if name == "vit-base":
        saved = saving(0.12 * used_j, 0.02 * used_j, train_j=used_j, train_s=600 * factor).to_dict()
    elif name == "bert-large" and number % 2:
        saved = replace(OBSERVED, train_j=used_j).to_dict()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started_s))
    return replace(
        template,
        run_id=f"{stamp}-{number:06x}",
        name=name,
        user=draw.choice(USERS),
        host=f"node{1 + number % 9}",
        started_wall_s=started_s,
        tags={"project": PROJECTS[name]},
        command=["python", "train.py", "--model", name],
        status=RunStatus.FINISHED if draw.random() > 0.05 else RunStatus.FAILED,
        result=result,
        accounting=accounting,
        saving=saved,
    )


def add_sweep(store: Store, template: RunRecord, started_wall_s: float) -> None:
    """Add nineteen trials, which filled the first page of the list."""
    sweep = Experiment(
        experiment_id="sweep-20261118-caps",
        kind="sweep",
        name="caps-of-gpt2",
        status="finished",
        created_wall_s=started_wall_s,
        facts={"summary": {"best": [SUMMARY]}},
    )
    create_experiment(store, sweep)
    with store.writing() as connection:
        for number in range(19):
            cap_w = 700 - 100 * (number % 5)
            insert_run_in(
                connection,
                replace(
                    template,
                    run_id=f"20261118-caps-{number:03}",
                    name=f"caps-of-gpt2: gpu/power_limit={cap_w} W",
                    started_wall_s=started_wall_s + 240 * number,
                    user="ada",
                    host="node1",
                    tags={"experiment": sweep.experiment_id, "trial": f"{number}"},
                ),
            )


@contextmanager
def live_run(store: Path) -> Iterator[str]:
    """Run `wattloop run` on a virtual GPU while pictures are taken."""
    environment = {
        **os.environ,
        "WATTLOOP_VIRTUAL_GPUS": "1",
        "WATTLOOP_VIRTUAL_STATE": str(store.parent / "virtual"),
        "WATTLOOP_STATE_DIR": str(store.parent / "state"),
        "WATTLOOP_STORE": str(store),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    program = store.with_name("train.py")
    program.write_text(PROGRAM, "utf-8")
    command = [sys.executable, "-m", "wattloop.cli.main", "run", "--name", LIVE]
    command += ["--tag", "project=assistant", "--", sys.executable, str(program)]
    folder = store.with_name(f"{store.name}.journals")
    earlier = set(folder.glob("*.journal"))
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        while not (found := sorted(set(folder.glob("*.journal")) - earlier)):
            time.sleep(0.5)
        time.sleep(60)  # a minute of curves
        yield found[0].stem
        if process.poll() is not None:
            raise SystemExit("the live run ended before its pictures were taken")
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def serving(store: Path) -> Iterator[str]:
    app = create_app(ServeOptions(store=str(store)))
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


def photograph(browser: Any, address: str, name: str, *, dark: bool, height: int = 900) -> None:
    scheme = "dark" if dark else "light"
    page = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme=scheme)
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_function("() => document.title.indexOf('Being worked out') < 0")
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-chart], [data-curves]')]"
        ".every((place) => place.querySelector('svg.marks'))"
    )
    time.sleep(4)  # figures of live runs
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    store, prefix = folder / "runs.db", sys.argv[2] if len(sys.argv) > 2 else "after"
    if not store.exists():
        make_store(store)
    with open_store(store) as opened:
        campaign = list_experiments(opened, "campaign")[0].experiment_id
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with (
        live_run(store) as live,
        serving(store) as base,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        compared = {"jobs": "/jobs", "live": f"/runs/{live}"}
        for name, path in compared.items():
            photograph(browser, base + path, f"{prefix}-{name}", dark=False)
        simulated = f"{base}/simulate/{campaign}"
        photograph(browser, simulated, f"{prefix}-campaign-dark", dark=True)
        if prefix == "after":
            photograph(browser, base, "dashboard-overview", dark=False, height=1_300)
            photograph(browser, base, "dashboard-overview-dark", dark=True, height=1_300)
            photograph(browser, f"{base}/runs/{live}", "dashboard-live", dark=False, height=1_100)
            photograph(browser, simulated, "dashboard-campaign-dark", dark=True)
        browser.close()


if __name__ == "__main__":
    main()
