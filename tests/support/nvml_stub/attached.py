"""The cards of another process's `StubNvml`."""

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

from .faults import inject
from .state import SEGMENTS, GpuState, Segment, State, Wave

LIBRARY_VARIABLE = "WATTLOOP_NVML_LIBRARY"
STATE_VARIABLE = "WATTLOOP_NVML_STUB_STATE"


class CardSettings(NamedTuple):
    """Settings of a card that setters wrote; NVML itself has no getter for locked clocks.

    Locks are (lowest, highest) MHz, or None.
    """

    limit_w: float
    sm_clock_mhz: tuple[float, float] | None
    memory_clock_mhz: tuple[float, float] | None


class StubCards:
    """Cards in a state file: load them, break them, and read their settings.

    Args:
        library_path, state_path: of the stub; those of the environment unless given.
    """

    def __init__(self, library_path: Path | None = None, state_path: Path | None = None) -> None:
        self.library_path = library_path or Path(os.environ[LIBRARY_VARIABLE])
        self.state_path = state_path or Path(os.environ[STATE_VARIABLE])
        with self.state_path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(State))
        self._state = State.from_buffer(self._map)
        self._library = load_library(self.library_path)
        if self._library.stub_state_size() != ctypes.sizeof(State):
            raise AssertionError("state.py and nvml_stub.h disagree")
        self._attach()

    @property
    def state(self) -> State:
        """Return the fields of the machine: `gpu_count`, `init_error`, `shutdown_delay_s`."""
        return self._state

    def gpu(self, index: int) -> GpuState:
        """Return the card's fields, shared with all processes: assign to them to change the
        card.
        """
        card: GpuState = self._state.gpus[index]
        return card

    def settings(self, index: int) -> CardSettings:
        """Return the power limit and locks that the card has now."""
        card = self.gpu(index)
        now: Segment = card.segments[(card.segment_count - 1) % SEGMENTS]
        return CardSettings(
            now.limit_w,
            (now.clock_low_mhz, now.clock_mhz) if now.clock_locked else None,
            (now.memory_clock_low_mhz, now.memory_clock_mhz) if now.memory_clock_locked else None,
        )

    def inject(self, gpu: int, fault: str, **options: Any) -> None:
        """Break a card; see `faults.inject` for the names."""
        inject(self.gpu(gpu), fault, **options)

    def set_load(self, gpu: int, load: float) -> None:
        """Set constant work: 0 is idle, 1 draws the default power limit."""
        card = self.gpu(gpu)
        power_w = card.idle_w + load * (card.default_limit_w - card.idle_w)
        self._wave(gpu, Wave.CONSTANT, power_w, power_w, utilisation=load)

    def constant(self, gpu: int, power_w: float) -> None:
        """Set a constant demand from now on."""
        self._wave(gpu, Wave.CONSTANT, power_w, power_w)

    def step(self, gpu: int, low_w: float, high_w: float, after_s: float) -> None:
        """Draw `low_w` now and `high_w` after `after_s`."""
        self._wave(gpu, Wave.STEP, low_w, high_w, period_s=after_s)

    def ramp(self, gpu: int, low_w: float, high_w: float, over_s: float) -> None:
        """Draw a straight line from `low_w` to `high_w`, then `high_w`."""
        self._wave(gpu, Wave.RAMP, low_w, high_w, period_s=over_s)

    def square(
        self, gpu: int, low_w: float, high_w: float, period_s: float, duty: float = 0.5
    ) -> None:
        """Draw `high_w` for `duty` of every period, then `low_w`."""
        self._wave(gpu, Wave.SQUARE, low_w, high_w, period_s=period_s, duty=duty)

    def spikes(
        self, gpu: int, base_w: float, spike_w: float, period_s: float, width_s: float
    ) -> None:
        """Draw one spike of `width_s` somewhere in every period."""
        duty = width_s / period_s
        self._wave(gpu, Wave.SPIKES, base_w, spike_w, period_s=period_s, duty=duty)

    def true_energy_j(self, gpu: int, begin_s: float, end_s: float) -> float:
        """Return the joules that the card really drew between two moments of `time.monotonic()`."""
        self._attach()
        end_j: float = self._library.stub_energy_j(gpu, end_s)
        return end_j - float(self._library.stub_energy_j(gpu, begin_s))

    def true_power_w(self, gpu: int, at_s: float) -> float:
        """Return the watts that the card really drew at a moment of `time.monotonic()`."""
        self._attach()
        return float(self._library.stub_power_w(gpu, at_s))

    def speed(self, gpu: int, at_s: float) -> float:
        """Return the work per second under limit and clocks, relative to a loaded card without
        any.
        """
        self._attach()
        return float(self._library.stub_speed(gpu, at_s))

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


def load_library(path: Path) -> ctypes.CDLL:
    """Load the stub with its functions for the controller declared."""
    library = ctypes.CDLL(str(path))
    library.stub_state_size.restype = ctypes.c_size_t
    for name in ("stub_energy_j", "stub_power_w", "stub_speed"):
        function = getattr(library, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_uint, ctypes.c_double]
    return library
