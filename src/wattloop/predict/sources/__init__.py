"""How a model named on a command line becomes a module with inputs and a loss.

- `source`         what all ways of naming a model lead to
- `finding`        which way is meant: `hf:gpt2`, `torch:package.module:factory`, `file.py:factory`
- `architectures`  the table of well-known configurations, from `architectures.yaml`
- `huggingface`    a configuration of Transformers, from the table, a file or a folder
- `factories`      a function of the user's, in a package or a file
- `guessed_inputs` what a module seems to take, from its first layers
- `guessed_loss`   what a training of it would minimise, from its output
- `stated_inputs`  `x=float32[B,3,224,224]`, where guessing is not enough
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.predict.sources.model_name import find_source
    from wattloop.predict.sources.source import Sizes, Source

__all__ = ["Sizes", "Source", "find_source"]

_WHERE = {"find_source": "model_name", "Sizes": "source", "Source": "source"}


def __getattr__(name: str) -> object:
    """Loaded when it is first used: modules need torch, and a saved workload does not."""
    import importlib

    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
