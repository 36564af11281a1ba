"""Energy of the GPUs under a cap, from the session that measures or the outcome of a trial."""

import math
from collections.abc import Iterable, Sequence

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.domain_source import domain_sources
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.session import Session
from wattloop.meters.base import Context
from wattloop.meters.registry import detect
from wattloop.trials.outcome import TrialOutcome

LEAST_COVERED = 0.95
"""Share of the time for which each GPU must have been read; what is missing is not zero."""
MOST_NOISE = 0.3


def check_metered(settings: Settings, devices: Sequence[str]) -> None:
    """Raise `ConfigError` where some device's energy cannot be read, before anything is run."""
    context = Context(Host.from_environment(), settings)
    inventory = detect(context, explain=False)
    try:
        feeds = [MeterStream(m, context.clock, i) for i, m in enumerate(inventory.meters)]
        _check(devices, (c.domain.name for c in domain_sources(feeds, settings.devices)))
    finally:
        inventory.close()


def metered(session: Session, devices: Sequence[str]) -> str:
    """Provenance of the devices' energy; all of them must be read."""
    read = {channel.domain.name: channel.domain for channel in session.channels}
    _check(devices, read)
    return ", ".join(sorted({read[name].provenance.value for name in devices}))


def devices_energy(
    session: Session, devices: Sequence[str], begin_s: float, end_s: float
) -> tuple[float, float] | None:
    """Joules of the devices, and their relative uncertainty; None unless all of them were read."""
    domains = {d.name: d for d in session.between(begin_s, end_s).domains}
    readings = [
        (d.energy_j, d.uncertainty_j, d.covered)
        for d in (domains.get(name) for name in devices)
        if d is not None and d.energy_j is not None and d.covered >= LEAST_COVERED
    ]
    return _summed(readings) if len(readings) == len(devices) else None


def job_energy_j(outcome: TrialOutcome, devices: Sequence[str]) -> tuple[float, float]:
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
            + "; probes so far are kept and the same command goes on with them"
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
