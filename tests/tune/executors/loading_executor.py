"""A bench that really loads the virtual GPU it was given, and really measures it."""

import os
import time
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.measure.session import Session
from wattloop.tune.executors.base import TrainedSoFar
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import this_process

EPOCH_S = 0.2


class LoadingExecutor:
    """Trains one candidate: `load` of a card for an epoch; quality is the number of epochs.

    The parameter `fault` makes it fail in a way of its own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._epochs = 0.0

    def recall(self, pasts: dict[str, TrainedSoFar]) -> None:
        self._epochs = next(iter(pasts.values())).epochs

    def run(self, segment: Segment) -> Progress:
        self._fail(segment.parameters.get("fault"))
        card = shared_gpus(4)[int(os.environ["CUDA_VISIBLE_DEVICES"])]
        session = Session.open(self._settings, in_process=False, keep=False)
        # Loaded before the window begins and until it has ended: else its mean power would depend
        # on how long this process waits for a processor.
        card.load(segment.parameters["load"], owner=this_process())
        with session.begin("segment") as window:
            before = self._epochs
            while self._epochs < segment.until.epochs:
                time.sleep(EPOCH_S)
                self._epochs += 1
        card.load(0.0)
        session.close()
        return Progress(
            status=Status.PAUSED,
            time_s=window.result.duration_s,
            energy_j=window.result.gpu_energy_j,
            epochs=self._epochs,
            quality=self._epochs,
            best=self._epochs,
            metrics={
                "pid": os.getpid(),
                "devices": len(self._settings.devices),
                "trained": self._epochs - before,
            },
            provenance="simulated",
            run_id="on the worker",
        )

    def release(self, candidate: str) -> None:
        pass

    def close(self) -> None:
        folder = os.environ.get("LOADING_BENCH_ENDED")
        if folder:
            (Path(folder) / str(os.getpid())).touch()

    def _fail(self, fault: object) -> None:
        if fault == "mistake":
            raise ValueError("two axes, three labels")
        if fault == "refusal":
            raise ConfigError("no such data set; download it with 'make data'")
