"""Names that torchmetrics imports from here; no program of the benchmark uses one."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"the stand-in for torchvision has no {name}")

    return missing
