"""Energy of the GPUs under a cap, from the session that measures."""

from collections.abc import Sequence

from wattloop.core.errors import ConfigError
from wattloop.measure.session import Session

__all__ = ["devices_energy", "metered"]


def metered(session: Session, devices: Sequence[str]) -> str:
    """Provenance of the devices' energy; all of them must be read."""
    read = {channel.domain.name: channel.domain for channel in session.channels}
    missing = [name for name in devices if name not in read]
    if missing:
        raise ConfigError(
            f"the energy of {', '.join(missing)} is not read here; 'wattloop devices' says why"
        )
    return ", ".join(sorted({read[name].provenance.value for name in devices}))


def devices_energy(
    session: Session, devices: Sequence[str], begin_s: float, end_s: float
) -> tuple[float, float] | None:
    """Joules of the devices, and their relative uncertainty."""
    domains = {d.name: d for d in session.between(begin_s, end_s).domains}
    found = [domains[name] for name in devices if name in domains]
    joules = [d.energy_j for d in found if d.energy_j is not None]
    if len(joules) < len(devices) or sum(joules) <= 0:
        return None
    spread_j = sum(d.uncertainty_j**2 for d in found) ** 0.5
    # The half-width holds every case, so a standard deviation is about half of it.
    return sum(joules), spread_j / sum(joules) / 2
