"""State of one candidate: model, optimizer, random states and counts, in memory and on disk."""

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_path
from wattloop.tune.executors.base import random_states, seed_everything, set_random_states
from wattloop.tune.executors.torch.training import Training
from wattloop.tune.segment import Segment


@dataclass(slots=True)
class Counts:
    """Progress counts of a training.

    Attributes:
        epochs: trained and kept.
        steps: of the unfinished epoch; 0 at its end.
        quality, best: the metric at the end, and the best of all epochs.
        since_gain: epochs since the best counted as a gain.
    """

    epochs: int = 0
    steps: int = 0
    rate: float = 0.0
    quality: float | None = None
    best: float | None = None
    gained: float | None = None
    since_gain: int = 0
    time_s: float = 0.0
    energy_j: float | None = 0.0


@dataclass(frozen=True, slots=True)
class CandidateSnapshot:
    """Copy of everything that training changes."""

    tensors: tuple[Any, ...]
    optimizer: Mapping[str, Any]
    randomness: Mapping[str, Any]
    training_mode: bool
    counts: Counts


@dataclass(slots=True)
class TorchCandidate:
    """Training that can be paused, resumed and restored.

    Random numbers (dropout, augmentation) are its own: other trainings in between do not change
    them, and it does not change those of the program.
    """

    name: str
    training: Training
    batch_size: int
    seed: int
    device: Any
    model: Any
    optimizer: Any
    randomness: dict[str, Any]
    counts: Counts = field(default_factory=Counts)

    @classmethod
    def begin(cls, training: Training, segment: Segment, device: Any) -> "TorchCandidate":
        import torch

        before = random_states(device)
        try:
            seed_everything(segment.seed)
            if isinstance(training.model, torch.nn.Module):
                model = copy.deepcopy(training.model)
            else:
                model = training.model(segment.parameters)
            model = model.to(device)
            rate = training.rate_of(segment)
            rate = training.default_rate if rate is None else rate
            optimizer = training.optimizer(model.parameters(), rate)
            states = random_states(device)
        finally:
            set_random_states(before, device)
        return cls(
            name=segment.candidate,
            training=training,
            batch_size=training.batch_of(segment),
            seed=segment.seed,
            device=device,
            model=model,
            optimizer=optimizer,
            randomness=states,
            counts=Counts(rate=rate),
        )

    @contextmanager
    def own_randomness(self) -> Iterator[None]:
        """Use the candidate's random states within this context."""
        before = random_states(self.device)
        set_random_states(self.randomness, self.device)
        try:
            yield
        finally:
            self.randomness = random_states(self.device)
            set_random_states(before, self.device)

    @property
    def epoch_steps(self) -> int:
        return self.training.data.steps(self.batch_size)

    @property
    def epochs(self) -> float:
        """Return the epochs trained and kept, with the fraction of an unfinished one."""
        return self.counts.epochs + self.counts.steps / self.epoch_steps

    # No step waits for the device.

    def step(self, batch: Any) -> Any:
        """Run one step; return the loss before the update, still on the device."""
        import torch

        loss = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
        self.optimizer.step()
        return loss.detach()

    def loss(self, batch: Any) -> Any:
        with self._precision():
            return self.training.loss(self.model, batch)

    def loss_without_step(self, batch: Any) -> Any:
        import torch

        with torch.no_grad():
            return self.loss(batch)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the model; waits for the device."""
        import torch

        self.model.eval()
        with torch.no_grad(), self._precision():
            metrics = self.training.evaluate(self.model)
        return {name: float(value) for name, value in metrics.items()}

    def _precision(self) -> AbstractContextManager[Any]:
        import torch

        if not self.training.bf16:
            return nullcontext()
        precision: AbstractContextManager[Any] = torch.autocast(
            self.device.type, dtype=torch.bfloat16
        )
        return precision

    def set_rate(self, rate: float) -> None:
        self.counts.rate = rate
        for group in self.optimizer.param_groups:
            if hasattr(group["lr"], "fill_"):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def snapshot(self) -> CandidateSnapshot:
        """Copy the state that training changes; call it within `own_randomness`."""
        return CandidateSnapshot(
            tensors=tuple(tensor.detach().clone() for tensor in self._tensors()),
            optimizer=copy.deepcopy(self.optimizer.state_dict()),
            randomness=random_states(self.device),
            training_mode=bool(self.model.training),
            counts=copy.copy(self.counts),
        )

    def restore(self, snapshot: CandidateSnapshot) -> None:
        """Restore a snapshot bit by bit; within `own_randomness`. The snapshot stays valid."""
        import torch

        with torch.no_grad():
            for tensor, saved in zip(self._tensors(), snapshot.tensors, strict=True):
                tensor.copy_(saved)
        self.optimizer.load_state_dict(copy.deepcopy(snapshot.optimizer))
        self.optimizer.zero_grad(set_to_none=True)
        self.model.train(snapshot.training_mode)
        set_random_states(snapshot.randomness, self.device)
        self.counts = copy.copy(snapshot.counts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seed": self.seed,
            "tensors": [tensor.detach() for tensor in self._tensors()],
            "optimizer": self.optimizer.state_dict(),
            "randomness": self.randomness,
            "counts": {name: getattr(self.counts, name) for name in Counts.__slots__},
        }

    def load_dict(self, data: Mapping[str, Any]) -> None:
        import torch

        with torch.no_grad():
            for tensor, saved in zip(self._tensors(), data["tensors"], strict=True):
                tensor.copy_(saved)
        self.optimizer.load_state_dict(data["optimizer"])
        self.randomness = dict(data["randomness"])
        self.counts = Counts(**data["counts"])

    def _tensors(self) -> Iterator[Any]:
        """Return parameters and all buffers, also those that a state_dict leaves out."""
        yield from self.model.parameters()
        yield from self.model.buffers()


KEPT = 2
"""Checkpoints per candidate; the last one may be ahead of the store."""


class Checkpoints:
    """Files `NAME-EPOCHS.pt` in one folder, the last two of each candidate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder}: no checkpoints can be written there ({error.strerror or error}); "
                "name another folder"
            ) from None

    def save(self, candidate: str, epochs: float, data: dict[str, Any]) -> None:
        """Write a checkpoint atomically: a kill leaves the earlier ones."""
        import torch

        path = self._path(candidate, epochs)
        try:
            with atomic_path(path) as partly:
                torch.save(data, partly)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            raise ConfigError(
                f"{path}: cannot be written ({error}); make room or name another folder"
            ) from error
        for old in self._all(candidate)[:-KEPT]:
            old.unlink(missing_ok=True)

    def load(self, candidate: str, epochs: float) -> dict[str, Any]:
        """Load the checkpoint after so many epochs."""
        import torch

        path = self._path(candidate, epochs)
        try:
            # Random states of Python and numpy are tuples and arrays; the executor wrote this file
            # itself.
            found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: no checkpoint of {candidate!r} after {epochs:g} epochs; begin "
                "the search again, or name the folder that it was started with"
            ) from None
        except Exception as error:  # noqa: BLE001 - a damaged file raises anything
            raise ConfigError(f"{path}: cannot be read ({error}); start the search again") from None
        return found

    def forget(self, candidate: str) -> None:
        for path in self._all(candidate):
            path.unlink(missing_ok=True)

    def _path(self, candidate: str, epochs: float) -> Path:
        return self._folder / f"{_file_name(candidate)}-{epochs:013.6f}.pt"

    def _all(self, candidate: str) -> list[Path]:
        return sorted(self._folder.glob(f"{_file_name(candidate)}-??????.??????.pt"))


def _file_name(candidate: str) -> str:
    plain = re.sub(r"[^\w.]+", "_", candidate)[:40]
    return f"{plain}-{sha256(candidate.encode()).hexdigest()[:8]}"
