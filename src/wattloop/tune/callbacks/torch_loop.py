"""Epoch loop for plain PyTorch, with a checkpoint after every epoch.

from wattloop.tune.callbacks.torch_loop import TrialLoop

def train(trial):
    model, optimizer = build(trial["width"]), ...
    loop = TrialLoop(trial, model=model, optimizer=optimizer)
    for epoch in loop.epochs(20):
        for batch in loop.steps(loader):
            ...
        loop.report(accuracy=evaluate(model))

A killed search resumes from the last finished epoch, not from the beginning.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from wattloop.core.files import atomic_path
from wattloop.tune.trial import Trial, current_trial

T = TypeVar("T")
FILE = "loop.pt"


class TrialLoop:
    """The epochs of a training, saved in the trial's checkpoint folder.

    Args:
        parts: objects with `state_dict()` and `load_state_dict()`: model, optimizer, scheduler,
            scaler.
    """

    def __init__(self, trial: Trial | None = None, *, save: bool = True, **parts: Any) -> None:
        self.trial = current_trial() if trial is None else trial
        self._save, self._parts = save and bool(parts), parts
        if self._save and self.trial.resumed:
            self._load()

    def epochs(self, count: int | None = None) -> Iterator[int]:
        for epoch in self.trial.epochs(count):
            yield epoch
            if self._save:
                self.save()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        return self.trial.steps(batches)

    def report(self, **metrics: Any) -> None:
        self.trial.report(**metrics)

    def save(self) -> None:
        """Save all parts and the random states atomically."""
        import torch

        state = {name: part.state_dict() for name, part in self._parts.items()}
        with atomic_path(self.trial.checkpoint / FILE) as path:
            torch.save({"parts": state, "random": torch.get_rng_state()}, path)

    def _load(self) -> None:
        import torch

        path = self.trial.checkpoint / FILE
        if not path.exists():
            return
        saved = torch.load(path, map_location="cpu", weights_only=True)
        for name, part in self._parts.items():
            part.load_state_dict(saved["parts"][name])
        torch.set_rng_state(saved["random"])
