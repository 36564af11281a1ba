"""A machine with stub cards, as a context manager."""

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

from .attached import LIBRARY_VARIABLE, STATE_VARIABLE, StubCards
from .build import build
from .state import GpuState, fresh_state

_numbers = itertools.count()


class StubNvml(StubCards):
    """A machine with `gpus` stub cards for the time of a `with` block.

    Inside it nvidia-ml-py, and with it every meter and lever, talks to the stub; so do child
    processes, which see the same cards (`StubCards()` there drives them). The cards are idle at
    first.

    Args:
        folder: folder of the library and the state; reuse one folder to build once.
        gpus: number of cards.
        settings: fields of `GpuState` for every card, such as `noise_w=2.0`.
    """

    def __init__(self, folder: Path, gpus: int = 1, **settings: Any) -> None:
        self.library_path = build(folder)
        self.state_path = folder / f"nvml-{os.getpid()}-{next(_numbers)}.state"
        self._gpus = gpus
        self._settings = settings
        self._saved_environment: dict[str, str | None] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that make another process use this stub, even one without
        Wattloop.
        """
        folders = [str(self.library_path.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            LIBRARY_VARIABLE: str(self.library_path),
            STATE_VARIABLE: str(self.state_path),
            "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
        }

    def __enter__(self) -> "StubNvml":
        state = fresh_state(self._gpus, time.monotonic())
        for index in range(self._gpus):
            _assign(state.gpus[index], self._settings)
        self.state_path.write_bytes(bytes(state))
        for name, value in self.environment.items():
            self._saved_environment[name] = os.environ.get(name)
            os.environ[name] = value
        super().__init__(self.library_path, self.state_path)
        _point_nvidia_ml_py_at(self._library)
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._saved_environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _point_nvidia_ml_py_at(None)
        self.state_path.unlink(missing_ok=True)


def _point_nvidia_ml_py_at(library: Any) -> None:
    """Make nvidia-ml-py, if it is loaded, forget the library that it found before."""
    pynvml: Any = sys.modules.get("pynvml")
    if pynvml is not None:
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()


def _assign(gpu: GpuState, settings: dict[str, Any]) -> None:
    names = {name for name, *_ in GpuState._fields_}
    for name, value in settings.items():
        if name not in names:
            raise ValueError(f"the stub's GPU has no field {name!r}")
        setattr(gpu, name, value)
    if "memory_clock_mhz" in settings and "memory_clocks_mhz" not in settings:
        gpu.memory_clocks_mhz = (settings["memory_clock_mhz"], 0, 0, 0)
    first = gpu.segments[0]
    first.low_w = first.high_w = gpu.idle_w
    first.limit_w = gpu.default_limit_w
    first.clock_mhz = gpu.max_clock_mhz
    first.memory_clock_mhz = gpu.memory_clock_mhz
