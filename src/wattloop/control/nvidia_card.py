"""An NVIDIA card and how NVML is asked and told about it."""

import weakref
from collections.abc import Callable
from typing import Any

from wattloop.core.errors import LeverError
from wattloop.measure.meters.nvml_library import NO_PERMISSION, error_code, explain, shut_down

__all__ = ["ROOT_REMEDY", "Card", "Library"]

ROOT_REMEDY = "run as root, or let an administrator set it with 'sudo nvidia-smi {option}'"


class Library:
    """NVML, open for as long as any of its levers lives."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        weakref.finalize(self, shut_down, nvml)


class Card:
    """One card and how it is asked."""

    def __init__(self, library: Library, handle: Any, index: int, uuid: str) -> None:
        self.library = library
        self.nvml = library.nvml
        self.handle = handle
        self.name = f"gpu:{index}"
        self.device = f"nvidia:{uuid}"

    def asked(self, getter: str, *arguments: Any) -> tuple[Any, str]:
        """(answer, "") or (None, why the card does not answer)."""
        try:
            return getattr(self.nvml, getter)(self.handle, *arguments), ""
        except self.nvml.NVMLError as error:
            reason, remedy = explain(error)
            return None, f"{reason}; {remedy}" if remedy else reason
        except AttributeError:
            return None, "this version of nvidia-ml-py does not know it; update it"

    def told(self, lever: str, option: str, setter: str, *arguments: Any) -> None:
        """Call a setter.

        Raises:
            LeverError: with what the driver answered and what to do.
        """
        call: Callable[..., Any] | None = getattr(self.nvml, setter, None)
        if call is None:
            raise LeverError(f"{lever}: nvidia-ml-py lacks {setter}; update nvidia-ml-py")
        try:
            call(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            reason, remedy = explain(error)
            if error_code(error) == NO_PERMISSION:
                reason, remedy = "permission denied", ROOT_REMEDY.format(option=option)
            raise LeverError(f"{lever}: {reason}" + (f"; {remedy}" if remedy else "")) from None
