"""A search of a function, as a program that can be killed: STORE LOG [checkpoint] [die-after N]."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.tune.small import Halving, small_problem
from wattloop.core.settings import settings_from
from wattloop.store.database import open_store
from wattloop.tune.executors.function import FunctionExecutor
from wattloop.tune.search_loop import Search
from wattloop.tune.search_store import SearchRecord, open_search


def main(store_path, log_path, mode, die_after):
    log = Path(log_path)
    trained = len(log.read_text().splitlines()) if log.exists() else 0

    def train(trial):
        saved = trial.checkpoint / "epoch.json"
        if trial.resumed:
            assert json.loads(saved.read_text())["epoch"] == trial.epochs_done
        for epoch in trial.epochs(8):
            time.sleep(0.03)
            nonlocal trained
            trained += 1
            with log.open("a") as file:
                file.write(f"{trial['width']} {epoch}\n")
            if trained == die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            if mode == "checkpoint":
                saved.write_text(json.dumps({"epoch": epoch + 1}))
            trial.report(accuracy=1 - 1 / (1 + (epoch + 1) * trial["width"]))

    settings = settings_from(os.environ).overridden({"store": store_path}, "test")
    problem = small_problem()
    with open_store(store_path) as store:
        record = SearchRecord(store, open_search(store, {}, "killed")[0])
        bench = FunctionExecutor(train, problem, settings, folder=record.folder, tags=record.tags)
        strategy = Halving(problem)
        Search(record, problem, strategy, bench).run()
    sys.stdout.write(json.dumps({"best": strategy.best().candidate}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
