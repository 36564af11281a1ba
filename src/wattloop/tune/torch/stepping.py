"""Steps of a training, and the watch for losses that are no numbers."""

from typing import Any

from wattloop.tune.torch.candidate import Candidate
from wattloop.tune.torch.training import Training

__all__ = ["FiniteWatch", "Stepper"]

LOOK_EVERY = 50


class Stepper:
    """Runs single steps of one candidate. Nothing here waits for the device."""

    def __init__(self, training: Training, candidate: Candidate) -> None:
        self._training = training
        self._candidate = candidate

    def step(self, batch: Any) -> Any:
        """Forward, backward, update; the loss before the update, still on the device."""
        import torch

        candidate, training = self._candidate, self._training
        loss = self.loss(batch)
        candidate.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(candidate.model.parameters(), training.clip)
        candidate.optimizer.step()
        return loss.detach()

    def loss(self, batch: Any) -> Any:
        """Of one batch."""
        import torch

        if not self._training.bf16:
            return self._training.loss(self._candidate.model, batch)
        with torch.autocast(self._candidate.device.type, dtype=torch.bfloat16):
            return self._training.loss(self._candidate.model, batch)

    def forward_only(self, batch: Any) -> Any:
        """The loss of a batch that nothing is learned from."""
        import torch

        with torch.no_grad():
            return self.loss(batch)


class FiniteWatch:
    """Notices a loss that is no finite number, some steps late, without waiting for the device.

    The sum of all losses is on the device; every `LOOK_EVERY` steps a copy of it sets out to the
    host and is read when it has arrived.
    """

    def __init__(self, device: Any) -> None:
        self._cuda = device.type == "cuda"
        self._sum: Any = None
        self._count = 0
        self._sent: Any = None
        self._event: Any = None

    def add(self, loss: Any) -> bool:
        """Whether all losses were finite, as far as is known by now."""
        self._sum = loss.float() if self._sum is None else self._sum + loss
        self._count += 1
        if self._count % LOOK_EVERY:
            return True
        if not self._cuda:
            return self.finite()
        return self._look()

    def finite(self) -> bool:
        """Whether all were; waits for the device."""
        import torch

        return self._sum is None or bool(torch.isfinite(self._sum).item())

    @property
    def mean(self) -> float | None:
        """The mean loss; waits for the device."""
        return None if self._sum is None else float(self._sum.item()) / self._count

    def _look(self) -> bool:
        import torch

        arrived = self._event is not None and self._event.query()
        good = not arrived or bool(torch.isfinite(self._sent).item())
        if arrived or self._event is None:
            self._sent = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._sent.copy_(self._sum, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        return good
