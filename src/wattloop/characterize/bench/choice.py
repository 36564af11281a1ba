"""What a person asks of `bench`, checked before anything runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host
from wattloop.kernels.dtypes import dtype_named
from wattloop.kernels.kernel import Kernel
from wattloop.kernels.place import Device, chosen_device
from wattloop.kernels.registry import BACKENDS, KERNELS, backend_named, kernel_named, size_of

__all__ = ["Choice", "problems_of", "words"]

DEFAULT_SIZE = {"cpu": "small", "gpu": "large"}
DEFAULT_SECONDS = {"cpu": 0.6, "gpu": 2.0}
"""Long against the sensor's update, short enough for a first look in two minutes."""
SHORTEST_S, LONGEST_S = 0.05, 3_600.0


@dataclass(frozen=True)
class Choice:
    """A checked request.

    Attributes:
        kernels: in order.
        backends: named by the person; empty means all that are installed.
        styles: named by the person; empty means all of a framework's.
        threads: CPU threads; empty means the framework's habit: all of them.
        sizes: words such as `small`, `gemm=4096`, or a number where there is one kernel.
        dtype: number format.
        device: where.
        seconds: measured per kernel.
    """

    kernels: tuple[str, ...]
    backends: tuple[str, ...]
    styles: tuple[str, ...]
    threads: tuple[int, ...]
    sizes: tuple[str, ...]
    dtype: str
    device: Device
    seconds: float

    @classmethod
    def of(
        cls,
        *,
        kernels: str = "",
        backends: str = "",
        styles: str = "",
        threads: str = "",
        sizes: str = "",
        dtype: str = "fp32",
        device: str = "",
        seconds: float | None = None,
        host: Host | None = None,
    ) -> "Choice":
        """From words of a command line.

        Raises:
            ConfigError: an unknown word, or a number out of range; the message lists known ones.
        """
        place = chosen_device(device, host or Host.from_environment())
        dtype_named(dtype)
        named = tuple(words(backends))
        for backend in named:
            backend_named(backend)
        for style in words(styles):
            _check_style(style)
        choice = cls(
            kernels=tuple(words(kernels)) or tuple(KERNELS),
            backends=named,
            styles=tuple(words(styles)),
            threads=tuple(_threads(threads)),
            sizes=tuple(words(sizes)),
            dtype=dtype,
            device=place,
            seconds=_seconds(DEFAULT_SECONDS[place.kind] if seconds is None else seconds),
        )
        problems_of(choice)
        return choice


def problems_of(choice: Choice) -> dict[str, list[Kernel]]:
    """Every kernel at the sizes asked for.

    Raises:
        ConfigError: unknown kernel or size, or one out of range.
    """
    kinds = {name: kernel_named(name) for name in choice.kernels}
    asked: dict[str, list[str]] = {name: [] for name in kinds}
    for word in choice.sizes:
        name, given, size = word.rpartition("=")
        if given and name not in kinds:
            raise ConfigError(f"--sizes {word}: '{name}' is not among {', '.join(kinds)}")
        for target in [name] if given else kinds:
            asked[target].append(size)
    dtype = dtype_named(choice.dtype)
    return {
        name: [
            kind(size_of(kind, size), dtype)
            for size in asked[name] or [DEFAULT_SIZE[choice.device.kind]]
        ]
        for name, kind in kinds.items()
    }


def words(text: str) -> list[str]:
    """A list written with commas, each word once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _check_style(style: str) -> None:
    known = dict.fromkeys(s for name in BACKENDS for s in backend_named(name).styles)
    if style not in known:
        raise ConfigError(f"unknown style '{style}'; known are {', '.join(known)}")


def _threads(text: str) -> Sequence[int]:
    numbers = []
    for word in words(text):
        if not word.isdecimal() or int(word) < 1:
            raise ConfigError(f"--threads {text}: write numbers from 1 with commas, such as 1,2,4")
        numbers.append(int(word))
    return sorted(set(numbers))


def _seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and SHORTEST_S <= seconds <= LONGEST_S):
        raise ConfigError(f"--seconds {seconds:g}: use {SHORTEST_S:g} to {LONGEST_S:g}")
    return seconds
