"""The GPUs of a job: the caps that all of them accept, and their energy."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattloop.control.lever import Lever, parse_setting
from wattloop.control.registry import levers_named
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.units import expanded
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.meters.registry import detect

if TYPE_CHECKING:
    from wattloop.measure.session import Session
    from wattloop.trials.trial import TrialOutcome

VARIABLE = "CUDA_VISIBLE_DEVICES"


def job_gpus(levers: Sequence[Lever]) -> str | None:
    """Numbers of the GPUs in CUDA_VISIBLE_DEVICES, such as `0,3`; None for all where it is not set.

    Numbers there are taken as NVML's, which they are with CUDA_DEVICE_ORDER=PCI_BUS_ID and on
    machines with one kind of card. As for CUDA, what follows an entry that names no GPU is ignored.

    Raises:
        ConfigError: it hides every GPU, or names none that is known: the caps of other people's
            cards are not ours to set.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    numbers: list[str] = []
    for word in text.split(","):
        number = _number(word.strip(), levers)
        if number is None:
            break
        numbers.append(number)
    if not numbers:
        raise ConfigError(
            f"{VARIABLE} is '{text}', which names no GPU with a power limit; say which GPUs "
            "are the job's (--gpus, or gpus= of a CapTuner)"
        )
    return ",".join(numbers)


def _number(word: str, levers: Sequence[Lever]) -> str | None:
    names = [x.name.partition("/")[0].removeprefix("gpu:") for x in levers]
    if word.isdigit():
        return word if word in names else None
    if not word:
        return None
    found = {n for n, x in zip(names, levers, strict=True) if x.device.startswith(f"nvidia:{word}")}
    return found.pop() if len(found) == 1 else None


MOST_CAPS = 13
STEPS_W = (5.0, 10.0, 20.0, 25.0, 50.0, 100.0, 200.0)


@dataclass(frozen=True, slots=True)
class CapPlan:
    """Power limits of one or more GPUs, all set to the same cap.

    Attributes:
        caps_w: from the lowest to the highest, which is the reference.
    """

    levers: tuple[Lever, ...]
    caps_w: tuple[float, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(lever.name.partition("/")[0] for lever in self.levers)

    def settings(self, cap_w: float) -> dict[str, float]:
        return {lever.name: cap_w for lever in self.levers}

    def writes(self, cap_w: float) -> list[str]:
        return [line for x in self.levers for line in x.write_text(cap_w).splitlines()]

    def to_dict(self) -> dict[str, Any]:
        return {"levers": [lever.name for lever in self.levers], "caps_w": list(self.caps_w)}


def cap_plan(
    levers: Sequence[Lever],
    gpus: str | None = None,
    caps: str | None = None,
    *,
    named: str = "--caps",
) -> CapPlan:
    """Return caps that every chosen GPU accepts: `100:250:25`, or values with commas, in W or %.

    Without `caps` they are round numbers from the lowest the cards allow up to the present limit:
    a limit that was lowered before is not raised. `named` is the option's name in messages.

    Raises:
        ConfigError: no GPU with a power limit that may be set, or caps outside its limits.
    """
    chosen = levers_named(
        levers, "gpu/power_limit" if gpus is None else f"gpu:{_numbers(gpus)}/power_limit"
    )
    states = [lever.state() for lever in chosen]
    for state in states:
        if state.refusal:
            raise ConfigError(state.refusal)
    if caps is not None:
        try:
            values = expanded(caps)
        except ValueError as error:
            raise ConfigError(f"{named}: {error}") from None
        numbers = sorted({_accepted(value, chosen) for value in values})
    else:
        low_w = max(state.low or 0.0 for state in states)
        high_w = min(
            state.value if isinstance(state.value, int | float) else state.high or 0.0
            for state in states
        )
        if not 0 < low_w < high_w:
            raise ConfigError(
                f"{', '.join(s.name for s in states)}: the limit is {high_w:g} W and cannot be set "
                f"lower than {low_w:g} W, so there is nothing to choose; give {named}"
            )
        numbers = round_caps(low_w, high_w)
        for cap_w in numbers:
            _accepted(cap_w, chosen)
    if len(numbers) < 2:
        raise ConfigError(f"{named} {caps}: give at least two different caps")
    return CapPlan(tuple(chosen), tuple(numbers))


def _numbers(gpus: str) -> str:
    words = [word.strip().removeprefix("gpu:") for word in gpus.split(",") if word.strip()]
    if not words or not all(word.isdigit() for word in words):
        raise ConfigError(f"--gpus {gpus}: write numbers with commas, such as 0,1")
    return ",".join(words)


def _accepted(value: str | float, levers: Sequence[Lever]) -> float:
    taken = {parse_setting(value, lever) for lever in levers}
    numbers = [number for number in taken if isinstance(number, int | float)]
    if len(numbers) != 1:
        raise ConfigError(
            f"{value} means different caps on these GPUs ({', '.join(f'{n:g} W' for n in numbers)})"
            "; give watts, or choose GPUs of one kind with --gpus"
        )
    return float(numbers[0])


def round_caps(low_w: float, high_w: float) -> list[float]:
    """Steps of a round number of watts below the highest, both ends included."""
    step_w = next((s for s in STEPS_W if (high_w - low_w) / s < MOST_CAPS), STEPS_W[-1])
    inner = math.floor((high_w - 0.4 * step_w) / step_w) * step_w
    caps = [high_w]
    while inner > low_w + 0.4 * step_w:
        caps.append(inner)
        inner -= step_w
    return sorted({*caps, low_w})


LEAST_COVERED = 0.95
"""Share of the time for which each GPU must have been read; what is missing is not zero."""
MOST_NOISE = 0.3


def check_metered(settings: Settings, devices: Sequence[str]) -> None:
    """Raise `ConfigError` where some device's energy cannot be read, before anything is run."""
    from wattloop.measure.meter_stream import MeterStream, domain_sources

    context = Context(Host.from_environment(), settings)
    inventory = detect(context, explain=False)
    try:
        feeds = [MeterStream(m, context.clock, i) for i, m in enumerate(inventory.meters)]
        _check(devices, (c.domain.name for c in domain_sources(feeds, settings.devices)))
    finally:
        inventory.close()


def energy_provenance(session: "Session", devices: Sequence[str]) -> str:
    """Provenance of the devices' energy; all of them must be read."""
    read = {channel.domain.name: channel.domain for channel in session.channels}
    _check(devices, read)
    return ", ".join(sorted({read[name].provenance.value for name in devices}))


def devices_energy(
    session: "Session", devices: Sequence[str], begin_s: float, end_s: float
) -> tuple[float, float] | None:
    """Joules of the devices, and their relative uncertainty; None unless all of them were read."""
    domains = {d.name: d for d in session.between(begin_s, end_s).domains}
    readings = [
        (d.energy_j, d.uncertainty_j, d.covered)
        for d in (domains.get(name) for name in devices)
        if d is not None and d.energy_j is not None and d.covered >= LEAST_COVERED
    ]
    return _summed(readings) if len(readings) == len(devices) else None


def job_energy_j(outcome: "TrialOutcome", devices: Sequence[str]) -> tuple[float, float]:
    """Return joules of the devices over a trial and their relative sigma. Raises ConfigError."""
    domains = {str(d["name"]): d for d in outcome.domains}
    missing = [name for name in devices if domains.get(name, {}).get("energy_j") is None]
    if missing:
        known = ", ".join(domains) or "none"
        raise ConfigError(
            f"the energy of {', '.join(missing)} was not read (read were: {known}); "
            "'wattloop devices' says why, or choose other GPUs with --gpus"
        )
    partly = [name for name in devices if float(domains[name]["covered"]) < LEAST_COVERED]
    if partly:
        why = [f"{m['name']}: {m['reason']}" for m in outcome.missing if m["name"] in partly]
        raise ConfigError(
            f"the energy of {', '.join(partly)} was not read for the whole run"
            + (f" ({'; '.join(why)})" if why else "")
            + "; finished probes are stored, and the same command continues with them"
        )
    readings = [
        (float(d["energy_j"]), float(d["uncertainty_j"] or 0.0), float(d["covered"]))
        for d in (domains[name] for name in devices)
    ]
    known_j = _summed(readings)
    if known_j is None:
        raise ConfigError("the GPUs' meter shows no energy at all over the run; is it long enough?")
    return known_j[0], min(MOST_NOISE, known_j[1])


def _check(devices: Sequence[str], read: Iterable[str]) -> None:
    known = set(read)
    missing = [name for name in devices if name not in known]
    if missing:
        raise ConfigError(
            f"the energy of {', '.join(missing)} is not read here; 'wattloop devices' says why"
        )


def _summed(readings: Sequence[tuple[float, float, float]]) -> tuple[float, float] | None:
    """(joules, uncertainty, share of the time) of each device -> joules of all for all the time."""
    energy_j = sum(joules / covered for joules, _, covered in readings)
    if energy_j <= 0:
        return None
    # The half-width holds every case, so a standard deviation is about half of it.
    return energy_j, math.hypot(*(spread_j for _, spread_j, _ in readings)) / energy_j / 2
