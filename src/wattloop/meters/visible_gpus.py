"""Visible GPUs: those that the environment gives to a program, and those that it hides.

CUDA, ROCm, Slurm and container runtimes each name a program's GPUs in a variable. NVML and the
kernel show all of the machine's cards whatever these variables say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from wattloop.core.errors import MeterUnavailable

if TYPE_CHECKING:
    from wattloop.meters.base import Context
    from wattloop.meters.registry import Inventory


CUDA = "CUDA_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
OPENCL = "GPU_DEVICE_ORDINAL"
SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
CONTAINER = "NVIDIA_VISIBLE_DEVICES"
VARIABLES = (CUDA, ROCR, HIP, OPENCL, *SLURM, CONTAINER)


class HiddenGpus(NamedTuple):
    """Cards that the program cannot use, and the variable that hides them."""

    names: tuple[str, ...]
    because: str

    @property
    def text(self) -> str:
        """Describe for people which cards are not counted, why, and how to count them."""
        verb = "is" if len(self.names) == 1 else "are"
        return (
            f"{', '.join(self.names)} {verb} not counted: {self.because}; "
            "devices 'all' (--devices all) counts every GPU"
        )


class _Card(NamedTuple):
    """One card, with the numbers and names that a variable may use for it."""

    name: str
    uuid: str = ""
    minor: int | None = None


Mig = Callable[[str], str | None]
"""The UUID of the card that a MIG instance is a part of; None where the driver does not say."""


def gpus_left_out(
    context: Context, inventory: Inventory, environment: Mapping[str, str], *, ranks: bool = False
) -> list[HiddenGpus]:
    """Return the machine's GPUs that are hidden from the program, by maker.

    Args:
        context: machine and settings.
        inventory: the meters found; a machine without GPUs is not asked for their names.
        environment: of the program.
        ranks: whether this process counts for several ranks on its node. Slurm's variables name
            the GPUs of all of them, CUDA's those of one.
    """
    if not any(variable in environment for variable in VARIABLES):
        return []
    makers = {_maker(name) for name, _ in _gpu_names(inventory)}
    found: list[HiddenGpus | None] = []
    if "nvidia" in makers:
        found.append(_nvidia(context, environment, ranks=ranks))
    if "amd" in makers:
        found.append(_amd(context, environment, ranks=ranks))
    if makers == {"virtual"}:  # next to real cards the variables mean those
        cards = [_Card(name) for _, name in _gpu_names(inventory)]
        found.append(_left_out(cards, *_nvidia_choice(cards, environment, ranks=ranks)))
    return [each for each in found if each is not None]


def _nvidia(context: Context, environment: Mapping[str, str], *, ranks: bool) -> HiddenGpus | None:
    from wattloop.meters import nvidia

    try:
        nvml = nvidia.open_nvml(context.host)
    except MeterUnavailable:
        return None
    try:
        cards = [_nvidia_card(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        choice = _nvidia_choice(
            cards, environment, ranks=ranks, mig=lambda word: mig_card(nvml, word)
        )
    finally:
        nvidia.shut_down(nvml)
    return _left_out(cards, *choice)


def _nvidia_choice(
    cards: Sequence[_Card],
    environment: Mapping[str, str],
    *,
    ranks: bool,
    mig: Mig = lambda word: None,
) -> tuple[list[_Card] | None, str]:
    """Return the visible cards and the variable that selects them; None where no variable does."""
    by_slurm = _slurm_choice(cards, environment)
    if ranks and by_slurm[0] is not None:
        return by_slurm
    text = environment.get(CUDA)
    if text is not None:
        return _listed(cards, text, mig), f"{CUDA} is '{text}'"
    if by_slurm[0] is not None:
        return by_slurm
    text = environment.get(CONTAINER, "")
    if text in ("", "all", "void"):  # with `void` the runtime gave the cards in another way
        return None, ""
    because = f"{CONTAINER} is '{text}'"
    if text == "none":
        return [], because
    words = [word.strip().partition(":")[0] for word in text.split(",")]  # `0:1` is MIG 1 of GPU 0
    if all(word.isdecimal() for word in words) and (
        len(set(words)) == len(cards) or any(int(word) >= len(cards) for word in words)
    ):
        return None, ""  # the host's numbers: the container shows these cards only, from 0 on
    return _listed(cards, ",".join(words), mig), because


def _amd(context: Context, environment: Mapping[str, str], *, ranks: bool) -> HiddenGpus | None:
    from wattloop.hardware.host import read_text
    from wattloop.meters.amd_gpu import find_cards

    cards = [
        _Card(card.name, f"GPU-{read_text(card.device / 'unique_id') or card.pci_address}")
        for card in find_cards(context.host)
    ]
    by_slurm = _slurm_choice(cards, environment)
    if ranks and by_slurm[0] is not None:
        return _left_out(cards, *by_slurm)
    chosen: list[_Card] | None = None
    reasons = []
    if (text := environment.get(ROCR)) is not None:
        chosen = _listed(cards, text)
        reasons.append(f"{ROCR} is '{text}'")
    # HIP reads CUDA's variable where its own is not set; both count among ROCr's devices.
    for name in (HIP if HIP in environment else CUDA, OPENCL):
        text = environment.get(name)
        if text is None or chosen == []:
            continue
        narrowed = _listed(cards if chosen is None else chosen, text)
        if not narrowed and chosen is not None and _numbers(text):
            continue  # Slurm gives every variable the machine's numbers
        chosen = narrowed
        reasons.append(f"{name} is '{text}'")
    if chosen is None:
        return _left_out(cards, *by_slurm)
    return _left_out(cards, chosen, " and ".join(reasons))


def _slurm_choice(
    cards: Sequence[_Card], environment: Mapping[str, str]
) -> tuple[list[_Card] | None, str]:
    """Slurm numbers GPUs by their device files, which is the driver's minor number."""
    for variable in SLURM:
        text = environment.get(variable)
        numbers = _numbers(text or "")
        if not numbers:
            continue
        known = all(card.minor is not None for card in cards)
        own = [
            card for index, card in enumerate(cards) if (card.minor if known else index) in numbers
        ]
        if own:
            return own, f"{variable} is '{text}'"
    return None, ""


def _listed(cards: Sequence[_Card], text: str, mig: Mig = lambda word: None) -> list[_Card] | None:
    """Return the cards of a list of numbers and UUIDs; as for CUDA, entries after an unknown one
    are ignored.

    None where a MIG instance cannot be assigned to a card.
    """
    chosen: list[_Card] = []
    for word in text.split(","):
        name = word.strip()
        if name.startswith("MIG-"):
            old = re.fullmatch(r"MIG-(GPU-[^/]+)/\d+/\d+", name)
            parent = old.group(1) if old else mig(name)
            if parent is None:
                return None
            name = parent
        if name.isdecimal():
            found = list(cards[int(name) : int(name) + 1])
        else:
            found = [c for c in cards if name and c.uuid.lower().startswith(name.lower())]
        if len(found) != 1:
            break
        chosen += [card for card in found if card not in chosen]
    return chosen


def _left_out(
    cards: Sequence[_Card], chosen: Sequence[_Card] | None, because: str
) -> HiddenGpus | None:
    if chosen is None:
        return None
    names = tuple(card.name for card in cards if card not in chosen)
    return HiddenGpus(names, because) if names else None


def _nvidia_card(nvml: Any, index: int) -> _Card:
    uuid, minor = "", None
    with suppress(nvml.NVMLError):  # a card that is lost keeps its number
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        minor = int(nvml.nvmlDeviceGetMinorNumber(handle))
    return _Card(f"gpu:{index}", uuid, minor)


def mig_card(nvml: Any, word: str) -> str | None:
    try:
        instance = nvml.nvmlDeviceGetHandleByUUID(word)
        card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
        return str(nvml.nvmlDeviceGetUUID(card))
    except (nvml.NVMLError, AttributeError):
        return None


def _gpu_names(inventory: Inventory) -> list[tuple[str, str]]:
    """(meter, card) of every GPU, also of those that cannot be read."""
    read = [(m.name, d.name) for m in inventory.meters for d in m.domains]
    refused = [(m.name, part.name) for m in inventory.meters for part in m.refused]
    refused += [(r.meter, part) for r in inventory.refusals for part in r.parts]
    named = dict.fromkeys(p for p in (*read, *refused) if re.fullmatch(r"gpu:\d+", p[1]))
    return list({name: (meter, name) for meter, name in named}.values())


def _maker(meter: str) -> str:
    if meter.startswith(("nvml", "nvidia")):
        return "nvidia"
    if meter.startswith("amd"):
        return "amd"
    return "virtual" if meter.startswith("virtual") else ""


def _numbers(text: str) -> list[int]:
    """`0,1`, `0-3` or `0,2-3` as numbers; [] where the text is not a list of numbers."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part)
        if match is None:
            return []
        found += range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
    return found
