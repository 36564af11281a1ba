"""Resolution of a model name: `hf:gpt2`, `torch:MODULE:FACTORY`, `FILE:FACTORY`, saved workload."""

from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.paths import user_path
from wattloop.predict.sources.huggingface import architecture
from wattloop.predict.sources.source import Sizes, Source

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
) -> Source:
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
