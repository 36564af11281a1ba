"""Drives the stub library: load, waveforms, faults, and the truth to compare with."""

import ctypes
import itertools
import mmap
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from wattloop.testing.nvml_stub.build import build
from wattloop.testing.nvml_stub.state import Call, GpuState, State, Wave, fresh_state

__all__ = ["StubNvml"]

_numbers = itertools.count()


class StubNvml:
    """A machine with `gpus` stub cards for the time of a `with` block.

    Inside it nvidia-ml-py, and with it every meter and lever, talks to the stub; so do child
    processes, which see the same cards. Idle until told otherwise.

    Args:
        folder: where the library is built and the state kept; reuse one folder to build once.
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
        """Variables that make another process use this stub, even one without Wattloop."""
        folders = [str(self.library_path.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "WATTLOOP_NVML_LIBRARY": str(self.library_path),
            "WATTLOOP_NVML_STUB_STATE": str(self.state_path),
            "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
        }

    def __enter__(self) -> "StubNvml":
        state = fresh_state(self._gpus, time.monotonic())
        for index in range(self._gpus):
            _assign(state.gpus[index], self._settings)
        self.state_path.write_bytes(bytes(state))
        with self.state_path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(State))
        self._state = State.from_buffer(self._map)
        for name, value in self.environment.items():
            self._saved_environment[name] = os.environ.get(name)
            os.environ[name] = value
        self._library = _load(self.library_path)
        if self._library.stub_state_size() != ctypes.sizeof(State):
            raise AssertionError("state.py and nvml_stub.h disagree")
        self._attach()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, value in self._saved_environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _point_nvidia_ml_py_at(None)
        self.state_path.unlink(missing_ok=True)

    def gpu(self, index: int) -> GpuState:
        """The card's fields, shared with all processes: assign to them to change the card."""
        card: GpuState = self._state.gpus[index]
        return card

    @property
    def state(self) -> State:
        """Fields of the machine: `gpu_count`, `init_error`, `shutdown_delay_s`."""
        return self._state

    def set_load(self, gpu: int, load: float) -> None:
        """Constant work: 0 is idle, 1 draws the default power limit."""
        card = self.gpu(gpu)
        power_w = card.idle_w + load * (card.default_limit_w - card.idle_w)
        self._wave(gpu, Wave.CONSTANT, power_w, power_w, utilisation=load)

    def constant(self, gpu: int, power_w: float) -> None:
        """Constant demand from now on."""
        self._wave(gpu, Wave.CONSTANT, power_w, power_w)

    def step(self, gpu: int, low_w: float, high_w: float, after_s: float) -> None:
        """`low_w` now, `high_w` after `after_s`."""
        self._wave(gpu, Wave.STEP, low_w, high_w, period_s=after_s)

    def ramp(self, gpu: int, low_w: float, high_w: float, over_s: float) -> None:
        """A straight line from `low_w` to `high_w`, then `high_w`."""
        self._wave(gpu, Wave.RAMP, low_w, high_w, period_s=over_s)

    def square(
        self, gpu: int, low_w: float, high_w: float, period_s: float, duty: float = 0.5
    ) -> None:
        """`high_w` for `duty` of every period, then `low_w`."""
        self._wave(gpu, Wave.SQUARE, low_w, high_w, period_s=period_s, duty=duty)

    def spikes(
        self, gpu: int, base_w: float, spike_w: float, period_s: float, width_s: float
    ) -> None:
        """One spike of `width_s` somewhere in every period."""
        duty = width_s / period_s
        self._wave(gpu, Wave.SPIKES, base_w, spike_w, period_s=period_s, duty=duty)

    def inject(self, gpu: int, fault: str, **options: Any) -> None:
        """Break a card.

        `lost`, `no_permission`, `reset_required`, `counter_reset` take `at_s` (monotonic; now if
        left out); `unsupported` and `forbidden` take `calls`, a `Call`; `unknown_error` takes
        `probability`; `mig`, `vgpu` and `heal` take nothing.
        """
        card = self.gpu(gpu)
        at_s = options.get("at_s", time.monotonic())
        match fault:
            case "lost":
                card.lost_at_s = at_s
            case "no_permission":
                card.forbidden_at_s = at_s
            case "reset_required":
                card.reset_required_at_s = at_s
            case "counter_reset":
                card.counter_reset_at_s = at_s
            case "unsupported":
                card.unsupported_calls = float(options["calls"])
            case "forbidden":
                card.forbidden_calls = float(options["calls"])
            case "unknown_error":
                card.error_probability = options["probability"]
            case "mig":
                card.mig_mode = 1
            case "vgpu":
                card.virtualization_mode = 2
            case "heal":
                card.lost_at_s = card.forbidden_at_s = card.reset_required_at_s = 0
                card.unsupported_calls = card.forbidden_calls = float(Call(0))
                card.error_probability = card.mig_mode = card.virtualization_mode = 0
            case _:
                raise ValueError(f"unknown fault {fault!r}")

    def true_energy_j(self, gpu: int, begin_s: float, end_s: float) -> float:
        """Joules the card really drew between two moments of `time.monotonic()`."""
        self._attach()
        end_j: float = self._library.stub_energy_j(gpu, end_s)
        return end_j - float(self._library.stub_energy_j(gpu, begin_s))

    def true_power_w(self, gpu: int, at_s: float) -> float:
        """Watts the card really drew at a moment of `time.monotonic()`."""
        self._attach()
        return float(self._library.stub_power_w(gpu, at_s))

    def _attach(self) -> None:
        if self._library.stub_attach(str(self.state_path).encode()) != 0:
            raise OSError(f"the stub cannot map {self.state_path}")

    def _wave(
        self,
        gpu: int,
        kind: Wave,
        low_w: float,
        high_w: float,
        *,
        period_s: float = 1.0,
        duty: float = 1.0,
        utilisation: float = 1.0,
    ) -> None:
        self._attach()
        values = (ctypes.c_double * 6)(kind, low_w, high_w, period_s, duty, utilisation)
        if self._library.stub_set_wave(gpu, values) != 0:
            raise OSError(f"the stub cannot lock {self.state_path}")


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.stub_state_size.restype = ctypes.c_size_t
    for name in ("stub_energy_j", "stub_power_w"):
        function = getattr(library, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_uint, ctypes.c_double]
    _point_nvidia_ml_py_at(library)
    return library


def _point_nvidia_ml_py_at(library: ctypes.CDLL | None) -> None:
    """Make nvidia-ml-py, if it is loaded, forget the library it found before."""
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
    first = gpu.segments[0]
    first.low_w = first.high_w = gpu.idle_w
    first.limit_w = gpu.default_limit_w
    first.clock_mhz = gpu.max_clock_mhz
    first.memory_clock_mhz = gpu.memory_clock_mhz
