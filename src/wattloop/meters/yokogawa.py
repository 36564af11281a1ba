"""Yokogawa power meters (WT series) over VISA; the instrument's settings are restored."""

import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.meters.base import Context, Meter, Reading
from wattloop.meters.polling import Poller

# Changes to the settings of a WT310E, and their restoration.
#
# Commands as in Yokogawa's manual IM WT310E-17EN. A query answers with or without header and in
# long or short form (`:INTEGRATE:STATE RESET`, `RES`), depending on the user's settings.

CHANGED = (
    (":COMMUNICATE:HEADER", "0"),
    (":NUMERIC:FORMAT", "ASCII"),
    (":NUMERIC:NORMAL:NUMBER", "2"),
    (":NUMERIC:NORMAL:ITEM1", "P,1"),
    (":NUMERIC:NORMAL:ITEM2", "WH,1"),
)
"""Communication settings: they change the replies, not the measurement."""
INTEGRATION = ((":INTEGRATE:MODE", "NORMAL"), (":INTEGRATE:TIMER", "0,0,0"))
"""Integrate without end (a timer of 0 is the instrument's limit of 10,000 hours)."""


class Setup:
    """Snapshot, change and restoration of the instrument's settings.

    An integration that a user has running is only read. One that is stopped with a result on the
    display is left alone too: starting it would add to the result, resetting would lose it.
    """

    def __init__(self, query: Callable[[str], object], write: Callable[[str], object]) -> None:
        self._query = query
        self._write = write
        self._before: list[tuple[str, str]] = []
        self._started = False
        self.integration_gap: Gap | None = None

    def prepare(self) -> None:
        """Make the instrument answer with P and WH, integrating if it may."""
        try:
            for command, value in CHANGED:
                self._change(command, value)
            state = self._ask(":INTEGRATE:STATE").upper()
            if state.startswith("RES"):
                for command, value in INTEGRATION:
                    self._change(command, value)
                self._write(":INTEGRATE:START")
                self._started = True
            elif not state.startswith("STAR"):
                self.integration_gap = Gap(
                    f"integration is in state {state}; press RESET on the instrument "
                    "to let Wattloop integrate"
                )
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Restore the changed settings, last change first."""
        if self._started:
            self._started = False
            self._write(":INTEGRATE:STOP")
            self._write(":INTEGRATE:RESET")
        while self._before:
            command, value = self._before[-1]
            self._write(f"{command} {value}")
            self._before.pop()

    def _change(self, command: str, value: str) -> None:
        before = self._ask(command)
        if before.upper() != value:
            self._before.append((command, before))
            self._write(f"{command} {value}")

    def _ask(self, command: str) -> str:
        """The answer without its header, if it has one."""
        return str(self._query(f"{command}?")).strip().rsplit(" ", 1)[-1]


J_PER_WH = 3_600.0
POLL_PERIOD_S = 0.1
STALE_S = 10.0
TIMEOUT_MS = 2_000
NOT_A_NUMBER = 9e37
"""IEEE 488.2 instruments write 9.91E+37 for "no data" and 9.9E+37 for overflow."""


def detect(context: Context) -> Sequence["Yokogawa"]:
    """Only where `visa_resource` names an instrument; it is opened with the first read."""
    address = context.settings.visa_resource
    if not address:
        raise MeterUnavailable(
            "yokogawa", "no instrument named", "set WATTLOOP_VISA=TCPIP::192.0.2.7::INSTR"
        )
    if importlib.util.find_spec("pyvisa") is None:
        raise MeterUnavailable(
            "yokogawa", "PyVISA is not installed", "run pip install 'wattloop[visa]'", ("node",)
        )
    return open_instrument(address, context.clock)


def open_instrument(
    address: str, clock: Clock, *, period_s: float = POLL_PERIOD_S, stale_s: float = STALE_S
) -> tuple["Yokogawa", "Yokogawa"]:
    """Two meters of one instrument: energy, and power to check and shape it."""
    link = _Link(address, clock, period_s, stale_s)
    energy, power = _domains(link.session.resource)
    return Yokogawa(link, energy, 0), Yokogawa(link, power, 1)


class Yokogawa(Meter):
    """One value of the instrument: its own integration (WH) as counter, or its power as gauge."""

    name: ClassVar[str] = "yokogawa"

    def __init__(self, link: "_Link", domain: Domain, index: int) -> None:
        self._link = link
        self._domains = (domain,)
        self._index = index
        self._closed = False
        link.users += 1

    def read(self) -> Sequence[Reading]:
        """Joules since integration began, or watts."""
        if self._closed:
            return [Gap("the meter is closed")]
        latest = self._link.poller.latest()
        return [latest if isinstance(latest, Gap) else latest[self._index]]

    def wait(self, timeout_s: float) -> bool:
        """Wait for the instrument's first answer."""
        return self._link.poller.wait(timeout_s)

    def close(self) -> None:
        """Close; the last of both meters restores the instrument's settings."""
        if not self._closed:
            self._closed = True
            self._link.users -= 1
            if self._link.users == 0:
                self._link.poller.close()

    def after_fork_in_child(self) -> None:
        """The connection belongs to the parent, who also restores; the child has a gap."""
        self._link.session.abandon()
        self._link.poller.forget()


class _Link:
    """Connection and polling thread that both meters share."""

    def __init__(self, address: str, clock: Clock, period_s: float, stale_s: float) -> None:
        self.users = 0
        self.session = _Session(address)
        self.poller: Poller[tuple[Reading, Reading]] = Poller(
            self.session.poll,
            clock,
            period_s=period_s,
            stale_s=stale_s,
            finish=self.session.close,
        )


class _Session:
    """The connection; everything here runs in the polling thread."""

    def __init__(self, address: str) -> None:
        self.resource, self._library = split_address(address)
        self._instrument: Any = None
        self._manager: Any = None
        self._setup: Setup | None = None
        self._abandoned = False

    def poll(self) -> tuple[Reading, Reading] | Gap:
        import pyvisa

        if self._abandoned:
            return Gap("the instrument is read by the parent process")
        try:
            if self._instrument is None:
                self._open(pyvisa)
            power_w, energy_wh = parse_values(self._ask(":NUMERIC:NORMAL:VALUE?"))
        except (pyvisa.errors.Error, OSError, ValueError) as error:
            # ValueError: PyVISA's way to say that a library or an interface is missing.
            return Gap(f"{self.resource}: {_first_line(error)}")
        assert self._setup is not None
        energy: Reading = energy_wh if isinstance(energy_wh, Gap) else energy_wh * J_PER_WH
        return (self._setup.integration_gap or energy, power_w)

    def close(self) -> None:
        if self._instrument is None or self._abandoned:
            return
        import pyvisa

        try:
            if self._setup is not None:
                self._setup.restore()
            self._instrument.close()
        except (pyvisa.errors.Error, OSError):
            pass  # unplugged meanwhile: there is nothing left to restore
        self._instrument = None

    def abandon(self) -> None:
        self._abandoned = True

    def _open(self, pyvisa: Any) -> None:
        self._manager = pyvisa.ResourceManager(self._library)
        instrument = self._manager.open_resource(
            self.resource, timeout=TIMEOUT_MS, read_termination="\n", write_termination="\n"
        )
        try:
            identity = str(instrument.query("*IDN?"))
            if "YOKOGAWA" not in identity.upper() or "WT3" not in identity.upper():
                raise ValueError(f"'{identity.strip()}' is not a Yokogawa WT300 power meter")
            setup = Setup(instrument.query, instrument.write)
            setup.prepare()
        except BaseException:
            instrument.close()
            raise
        self._setup = setup
        self._instrument = instrument

    def _ask(self, command: str) -> str:
        return str(self._instrument.query(command))


def split_address(address: str) -> tuple[str, str]:
    """`TCPIP::192.0.2.7::INSTR@py` -> resource and VISA library (pyvisa-py unless named)."""
    resource, _, library = address.partition("@")
    if "::" not in resource:
        raise ConfigError(
            f"visa_resource '{address}' must look like TCPIP::192.0.2.7::INSTR or "
            "USB0::0x0B21::0x0025::SERIAL::INSTR"
        )
    if not library:
        return resource, "@py"
    plain_name = "@" not in library and "/" not in library
    return resource, f"@{library}" if plain_name else library


def parse_values(answer: str) -> tuple[Reading, Reading]:
    """Power in W and energy in Wh from the answer to `:NUMERIC:NORMAL:VALUE?`."""
    fields = answer.strip().rsplit(" ", 1)[-1].split(",")
    if len(fields) < 2:
        gap = Gap(f"instrument answered '{answer.strip()[:40]}' instead of two numbers")
        return gap, gap
    return _number(fields[0], "power"), _number(fields[1], "integrated energy")


def _number(text: str, what: str) -> Reading:
    try:
        value = float(text)
    except ValueError:
        return Gap(f"instrument gave '{text[:20]}' for {what}")
    if not math.isfinite(value) or abs(value) >= NOT_A_NUMBER:
        return Gap(f"instrument has no data for {what} ({text.strip()})")
    return value


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _domains(resource: str) -> tuple[Domain, Domain]:
    source = f"Yokogawa WT310E {resource}"
    # 45 to 66 Hz, power factor 1: 0.1% of reading + 0.05% of range (manual IM WT310E-02EN, 7.3.2).
    # The range is not known before the instrument is asked: 0.15% holds for a reading near it.
    counter = Domain(
        name="node",
        kind=DomainKind.COUNTER,
        scope=Scope.NODE,
        source=f"{source}, integrated",
        resolution=3.6,
        update_period_s=0.25,
        known_error=0.0015,
        read_cost_s=2e-6,
    )
    gauge = Domain(
        name="node",
        kind=DomainKind.GAUGE,
        scope=Scope.NODE,
        source=f"{source}, power",
        resolution=0.01,
        update_period_s=0.25,
        averaging_s=0.25,
        known_error=0.0015,
        read_cost_s=2e-6,
    )
    return counter, gauge
