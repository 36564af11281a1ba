"""Loss of a training, inferred from the output of the module."""

from collections.abc import Mapping
from typing import Any

from wattloop.core.errors import ConfigError

STATE_IT = "return (module, inputs, loss) from the factory, where loss takes the output"


class GuessedLoss:
    """Function from output to loss; `note` then describes the choice."""

    def __init__(self, name: str, inputs: Any = ()) -> None:
        self._name = name
        self._inputs = inputs
        self.note = ""

    def __call__(self, output: Any) -> Any:
        """Return the loss against unknown targets, which cost nothing to make."""
        own = _own_loss(output)
        if own is not None:
            self.note = "loss: the module's own"
            return own
        scores = _scores(output)
        if scores is None:
            kind = type(output).__name__
            raise ConfigError(
                f"model {self._name}: no loss can be guessed for an output of type {kind}; "
                f"{STATE_IT}"
            )
        if not scores.is_floating_point():
            raise ConfigError(
                f"model {self._name}: its output is of whole numbers, which cannot be trained; "
                f"{STATE_IT}"
            )
        return self._of(scores)

    def _of(self, scores: Any) -> Any:
        import torch
        from torch.nn import functional

        shape = tuple(scores.shape)
        said = "x".join(map(str, shape))
        first = _first(self._inputs)
        tokens = first is not None and not first.is_floating_point()
        same = first is not None and tuple(first.shape) == shape
        classes = {
            2: shape[-1],
            3: shape[-1] if tokens else 1,
            4: shape[1] if len(shape) == 4 else 1,
        }
        if same or classes.get(len(shape), 1) <= 1:
            self.note = f"loss: mean squared error of the {said} output, guessed"
            return functional.mse_loss(scores, torch.empty_like(scores))
        if len(shape) == 3:
            scores = scores.flatten(0, 1)
        if len(shape) == 4:
            targets = scores.new_empty((shape[0], *shape[2:]), dtype=torch.long)
        else:
            targets = scores.new_empty(scores.shape[0], dtype=torch.long)
        what = {2: "classes", 3: "tokens", 4: "pixels"}[len(shape)]
        self.note = f"loss: cross entropy over {what} of the {said} output, guessed"
        return functional.cross_entropy(scores, targets)


def guessed_loss(name: str, inputs: Any = ()) -> GuessedLoss:
    """Return the module's own loss, cross entropy of scores, or mean squared error."""
    return GuessedLoss(name, inputs)


def _own_loss(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output.get("loss")
    return getattr(output, "loss", None)


def _scores(output: Any) -> Any:
    """Return the tensor that is compared with the targets."""
    import torch

    if isinstance(output, torch.Tensor):
        return output
    for name in ("logits", "out", "last_hidden_state", "prediction", "output"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, torch.Tensor):
            return found
    values = list(output.values()) if isinstance(output, Mapping) else output
    if isinstance(values, tuple | list):
        return next((_scores(v) for v in values if isinstance(v, torch.Tensor)), None)
    return None


def _first(inputs: Any) -> Any:
    import torch

    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    return next((v for v in values if isinstance(v, torch.Tensor)), None)
