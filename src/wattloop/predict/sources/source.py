"""Source of a model: resolve `hf:gpt2`, `torch:MODULE:FACTORY` or `FILE:FACTORY` to a module."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path


def needs_torch(what: str, extra: str = "torch") -> ModuleType:
    """Import torch; `what` names the feature in the error."""
    try:
        import torch
    except ImportError:
        raise ConfigError(
            f"{what} needs PyTorch, which is not installed: pip install 'wattloop[{extra}]'; a "
            "workload saved elsewhere with --save-workload predicts without it"
        ) from None
    return torch  # type: ignore[no-any-return]  # torch is skipped by mypy


def needs_transformers(what: str) -> ModuleType:
    """Import transformers, which needs torch as well."""
    needs_torch(what, "hf")
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            f"{what} needs Transformers, which is not installed: pip install 'wattloop[hf]'"
        ) from None
    return transformers  # type: ignore[no-any-return]  # transformers is skipped by mypy


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence advice about training, and tracebacks of errors that we translate."""
    fake_tensors = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, fake_tensors.disabled = fake_tensors.disabled, True
    transformers = sys.modules.get("transformers")
    verbosity = None if transformers is None else transformers.logging.get_verbosity()
    if transformers is not None:
        transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        fake_tensors.disabled = disabled
        if transformers is not None:
            transformers.logging.set_verbosity(verbosity)


DEFAULT_BATCH, DEFAULT_SEQ, DEFAULT_IMAGE = 8, 512, 224
Inputs = tuple[Any, ...] | Mapping[str, Any]
"""Tensors on the meta device: arguments by position, or by name."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of one pass; None takes the model's usual size, with a note.

    Attributes:
        batch: samples of one pass on one GPU.
        seq: tokens of a sample.
        image: height and width of an image in pixels.
    """

    batch: int | None = None
    seq: int | None = None
    image: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "image"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}: must be a whole number of at least 1")

    def named(self) -> dict[str, int]:
        every = {"batch": self.batch, "seq": self.seq, "image": self.image}
        return {name: value for name, value in every.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Module ready to be traced.

    Attributes:
        name: what it is called in results, as it was asked for.
        module: the `nn.Module`; its weights may be on the meta device.
        inputs: of one pass.
        loss: takes the module's output, gives what is minimised; None when the module computes
            its own (an output with `loss`).
        batch: samples of one pass.
        notes: what was assumed, for people.
    """

    name: str
    module: Any
    inputs: Inputs
    loss: Callable[..., Any] | None
    batch: int
    notes: tuple[str, ...] = ()


WAYS = (
    "hf:NAME, hf:PATH/config.json, torch:package.module:factory, file.py:factory or "
    "FILE.json (a saved workload)"
)


def find_source(
    text: str,
    sizes: Sizes,
    *,
    head: str | None = None,
    stated: tuple[str, ...] = (),
    training: bool = True,
) -> ModelSource:
    """Return the module that `text` names, with inputs of the requested sizes.

    Args:
        text: `hf:NAME`, `torch:package.module:factory` or `file.py:factory`.
        sizes: batch, seq and image.
        head: of a model of Transformers, such as `causal-lm`; the usual one unless stated.
        stated: inputs as `x=float32[B,3,224,224]`, instead of guessing them.
        training: False leaves labels and loss away.

    Raises:
        ConfigError: nothing is named so, or it cannot be built; the message says what to do.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "hf":
        from wattloop.predict.sources.huggingface import huggingface_source

        if stated:
            raise ConfigError(
                f"input {stated[0]}: {text} knows its inputs; choose sizes with --batch, --seq "
                "and --image"
            )
        return huggingface_source(rest, sizes, head=head, training=training)
    if head is not None:
        raise ConfigError(f"head {head}: only a model named hf:NAME has heads to choose from")
    if scheme == "torch" or _names_a_file(text):
        from wattloop.predict.sources.torch_factory import factory_source

        place = rest if scheme == "torch" else text
        return factory_source(place, sizes, stated=stated, training=training)
    raise _unknown(text)


def is_saved_workload(text: str) -> bool:
    """Return whether `text` names a file that `--save-workload` has written."""
    return not text.startswith(("hf:", "torch:")) and text.endswith((".json", ".json.gz"))


def _names_a_file(text: str) -> bool:
    return text.endswith(".py") or ".py:" in text


def _unknown(text: str) -> ConfigError:
    from wattloop.predict.sources.huggingface import architecture

    if architecture(text) is not None:
        return ConfigError(f"model {text}: write it as hf:{text}")
    if user_path(text).is_dir() and (user_path(text) / "config.json").is_file():
        return ConfigError(f"model {text}: write it as hf:{text}")
    if Path(text.partition(":")[0] + ".py").is_file():
        place, _, name = text.partition(":")
        return ConfigError(f"model {text}: write it as {place}.py:{name or 'factory'}")
    if "." in text and ":" in text:
        return ConfigError(f"model {text}: write it as torch:{text}")
    return ConfigError(f"model {text}: not understood; write {WAYS}")
