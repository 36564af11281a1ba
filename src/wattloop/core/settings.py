"""Settings: defaults, then the file `wattloop.yaml`, then the environment, then flags."""

import itertools
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.files import config_folder, data_folder, home_folder, user_id, user_path

MIN_INTERVAL_S = 0.001
MAX_INTERVAL_S = 3_600.0
SAMPLERS = ("auto", "thread", "process")
SHARES = ("device", "process", "none")
"""`none` is the former name of `device`."""
STORE = frozenset(("store",))
"""Settings of a command that only reads the store."""
GRID = frozenset(
    (
        *("pue", "zone", "carbon_g_per_kwh", "carbon_url", "carbon_file", "carbon_provider"),
        *("tariff_per_kwh", "currency"),
    )
)
"""Settings that turn the energy of a node into carbon and cost."""
SENSORS = frozenset(
    (
        *("interval_s", "devices", "meters", "cpu_tdp_w", "dimms", "gauges", "redfish_url"),
        *("ipmi", "visa_resource", "replay_file", "virtual_gpus", "sampler", "share"),
    )
)
"""Settings of a command that reads sensors or sets levers and does no accounting."""


class Settings(NamedTuple):
    """Values for one process.

    Attributes:
        interval_s: seconds between samples.
        devices: which domains to read (`cpu`, `gpu:0`, `dram`, ...), `-gpu:1` for all but that
            one; empty means all but the GPUs that the environment hides, `all` means those, too.
        meters: which meters may be used, by name; empty means all that can be detected.
        pue: power usage effectiveness of the room the machine stands in.
        zone: ISO 3166 alpha-3 country code, or the name of a zone in `carbon_file`.
        carbon_g_per_kwh: the user's own carbon intensity; overrides `zone`.
        carbon_url: URL of a live provider that returns JSON with a carbon intensity.
        carbon_file: CSV with the user's own intensities by time.
        carbon_provider: provider and zone of live intensities, such as `electricity-maps:DE`.
        tariff_per_kwh: price of a kilowatt-hour.
        currency: what the tariff is in.
        store: path of the SQLite file, or a `postgresql://` URL.
        cpu_tdp_w: TDP of one CPU package, where we do not know it.
        dimms: installed memory modules as `COUNTxCAPACITY` in GiB, such as `8x32`; or
            `dmidecode`, to ask that program.
        node_overhead_w: power of parts without a sensor (fans, disks), if the user knows it.
        node_share: the part of the node that is accounted for; below 1 for a job on a shared one,
            None where it is unknown.
        psu_efficiency: efficiency of the power supply, if the user knows it.
        sampler: reader of the sensors while a program measures itself: a `thread` of the program,
            a separate `process`, or `auto`: a process once the measurement has lasted a second.
        share: what a run on shared devices states: all of their energy (`device`), or its own part
            by CPU time and GPU utilisation (`process`).
        retain: what a server drops when it is old, such as `samples=30d,levels=1y,runs=forever`.
        sources: where each value came from: `default`, `file PATH:LINE`, `environment NAME`,
            `flag`.
        faults: values that were given and could not be taken, with the reason. Such a setting
            has the value it had before.
    """

    interval_s: float = 0.1
    devices: tuple[str, ...] = ()
    meters: tuple[str, ...] = ()
    pue: float = 1.0
    zone: str = ""
    carbon_g_per_kwh: float | None = None
    carbon_url: str = ""
    carbon_file: str = ""
    carbon_provider: str = ""
    tariff_per_kwh: float | None = None
    currency: str = "EUR"
    store: str = ""
    cpu_tdp_w: float | None = None
    dimms: str = ""
    node_overhead_w: float | None = None
    node_share: float | None = 1.0
    psu_efficiency: float | None = None
    gauges: tuple[Mapping[str, Any], ...] = ()
    redfish_url: str = ""
    ipmi: bool = False
    visa_resource: str = ""
    replay_file: str = ""
    virtual_gpus: int = 0
    sampler: str = "auto"
    share: str = "device"
    retain: str = ""
    sources: Mapping[str, str] = {}
    faults: Mapping[str, str] = {}

    def overridden(self, values: Mapping[str, Any], source: str) -> "Settings":
        """Return a copy with `values` (None means "not given") checked and attributed to
        `source`.
        """
        given = {name: value for name, value in values.items() if value is not None}
        known = set(self._fields) - {"sources", "faults"}
        for name in given:
            if name not in known:
                from difflib import get_close_matches  # only for who made a mistake

                near = get_close_matches(name, known, 1)
                hint = f"did you mean '{near[0]}'? " if near else ""
                raise ConfigError(
                    f"{source}: unknown setting '{name}'; {hint}known are "
                    f"{', '.join(sorted(known))}"
                )
        checked = {}
        for name, value in given.items():
            checked[name] = _checked(name, value, source)
            if name == "tariff_per_kwh":
                checked[name], currency = checked[name]
                if currency and "currency" not in given:
                    checked["currency"] = currency
        sources = {**self.sources, **dict.fromkeys(checked, source)}
        faults = {name: fault for name, fault in self.faults.items() if name not in checked}
        return self._replace(**checked, sources=sources, faults=faults)

    def of_part(self, part: float | None) -> "Settings":
        """Return the settings of a run that has this part of the node; None: unknown."""
        whole = self.node_share
        return self._replace(node_share=None if whole is None or part is None else whole * part)

    def with_fault(self, name: str, fault: str) -> "Settings":
        """Return a copy that records why a value of `name` was refused."""
        return self._replace(faults={**self.faults, name: fault})

    def checked(self, needs: Collection[str] | None = None) -> "Settings":
        """Return these settings, if all that are in `needs` (None: all) are valid.

        Raises:
            ConfigError: the first fault among them.
        """
        for name, fault in self.faults.items():
            if needs is None or name in needs:
                raise ConfigError(fault)
        return self

    @property
    def store_location(self) -> str:
        """Return path or URL of the store, `~/.local/share/wattloop/runs.db` unless configured."""
        return self.store or str(data_folder() / "runs.db")


NAMES: tuple[tuple[str, str, str], ...] = (
    ("interval_s", "WATTLOOP_INTERVAL", "interval"),
    ("devices", "WATTLOOP_DEVICES", "devices"),
    ("meters", "WATTLOOP_METERS", "meters"),
    ("pue", "WATTLOOP_PUE", "pue"),
    ("zone", "WATTLOOP_ZONE", "zone"),
    ("carbon_g_per_kwh", "WATTLOOP_CARBON_G_PER_KWH", "carbon.g_per_kwh"),
    ("carbon_url", "WATTLOOP_CARBON_URL", "carbon.url"),
    ("carbon_file", "WATTLOOP_CARBON_FILE", "carbon.file"),
    ("carbon_provider", "WATTLOOP_CARBON_PROVIDER", "carbon.provider"),
    # A currency within the tariff belongs to its number, so it comes last and wins.
    ("currency", "WATTLOOP_CURRENCY", "tariff.currency"),
    ("tariff_per_kwh", "WATTLOOP_TARIFF", "tariff.per_kwh"),
    ("store", "WATTLOOP_STORE", "store"),
    ("cpu_tdp_w", "WATTLOOP_CPU_TDP", "cpu_tdp_w"),
    ("dimms", "WATTLOOP_DIMMS", "dimms"),
    ("node_overhead_w", "WATTLOOP_NODE_OVERHEAD", "node.overhead_w"),
    ("psu_efficiency", "WATTLOOP_PSU_EFFICIENCY", "node.psu_efficiency"),
    ("redfish_url", "WATTLOOP_REDFISH_URL", "redfish_url"),
    ("ipmi", "WATTLOOP_IPMI", "ipmi"),
    ("visa_resource", "WATTLOOP_VISA", "visa"),
    ("replay_file", "WATTLOOP_REPLAY", "replay"),
    ("virtual_gpus", "WATTLOOP_VIRTUAL_GPUS", "virtual_gpus"),
    ("sampler", "WATTLOOP_SAMPLER", "sampler"),
    ("share", "WATTLOOP_SHARE", "share"),
    ("retain", "WATTLOOP_RETAIN", "retain"),
    ("gauges", "", "gauges"),
)
"""Setting, its environment variable, and its key in the file."""
ENVIRONMENT = {variable: name for name, variable, _ in NAMES if variable}
FIELDS = {key: name for name, _, key in NAMES}


def settings_from(
    environment: Mapping[str, str],
    base: Settings | None = None,
    needs: Collection[str] | None = None,
) -> Settings:
    """Return `base` (or the defaults) with the `WATTLOOP_*` variables of `environment` applied.

    Args:
        environment: variables by name.
        base: settings that the variables override.
        needs: names of the settings that the caller uses, None for all. A wrong value of another
            one is kept in `Settings.faults` and stops nothing.
    """
    settings = base or Settings()
    for variable, name in ENVIRONMENT.items():
        text = environment.get(variable)
        if text:
            try:
                settings = settings.overridden({name: text}, f"environment {variable}")
            except ConfigError as error:
                settings = settings.with_fault(name, str(error))
    return settings.checked(needs)


def _checked(name: str, value: Any, source: str) -> Any:
    """Return `value` in the type of setting `name`, or raise a ConfigError that says what is
    allowed.
    """
    where = f"{source}: {name}"
    if name == "tariff_per_kwh":
        return parse_price(value, where, _NUMBERS[name], {"kwh": 1.0, "mwh": 1_000.0})
    if name in _NUMBERS:
        low, high, what = _NUMBERS[name]
        number = _number(value, where, what)
        if not low <= number <= high:
            raise ConfigError(f"{where} is {value!r}; {what}")
        return int(number) if name == "virtual_gpus" else number
    if name in ("devices", "meters"):
        return _names(value, where)
    if name == "ipmi":
        return _yes(value, where)
    if name == "gauges":
        if not isinstance(value, list | tuple) or not all(isinstance(g, Mapping) for g in value):
            raise ConfigError(f"{where} must be a list of gauges, each with name and path")
        return tuple(value)
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be text, not {value!r}")
    if name == "store" and value in _NOWHERE:
        raise ConfigError(
            f"{where} is {value!r}, which would forget every run as the program ends; name a file "
            "such as runs.db, or a URL such as postgresql://user@host/wattloop"
        )
    if name == "share" and value not in SHARES:
        raise ConfigError(f"{where} is {value!r}; use one of {', '.join(SHARES[:2])}")
    if name == "sampler" and value not in SAMPLERS:
        raise ConfigError(f"{where} is {value!r}; use one of {', '.join(SAMPLERS)}")
    return value


_NOWHERE = (":memory:", "sqlite://", "sqlite:///:memory:")
"""SQLite's names for memory; a live journal cannot be there, so it made a folder of that name."""
_NUMBERS: dict[str, tuple[float, float, str]] = {
    "interval_s": (
        MIN_INTERVAL_S,
        MAX_INTERVAL_S,
        f"use seconds between {MIN_INTERVAL_S:g} and {MAX_INTERVAL_S:g}, such as 0.1",
    ),
    "pue": (1.0, 5.0, "a PUE lies between 1 (no cooling) and 5"),
    "carbon_g_per_kwh": (0.0, 5_000.0, "use grams of CO2e per kWh between 0 and 5000"),
    "tariff_per_kwh": (0.0, 1_000.0, "use a price per kWh between 0 and 1000"),
    "cpu_tdp_w": (1.0, 2_000.0, "use watts between 1 and 2000"),
    "node_overhead_w": (0.0, 20_000.0, "use watts between 0 and 20000"),
    "node_share": (0.0, 1.0, "use a part between 0 and 1"),
    "psu_efficiency": (0.3, 1.0, "use a fraction between 0.3 and 1"),
    "virtual_gpus": (0, 64, "use a whole number between 0 and 64"),
}


def _number(value: Any, where: str, what: str) -> float:
    if isinstance(value, bool):
        raise ConfigError(f"{where} must be a number, not {value!r}; {what}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{where} must be a number, not {value!r}; {what}") from None
    if not math.isfinite(number):
        raise ConfigError(f"{where} must be a finite number, not {value!r}; {what}")
    return number


def parse_price(
    value: Any, where: str, allowed: tuple[float, float, str], units: Mapping[str, float]
) -> tuple[float, str]:
    """Parse a price and its currency, empty where none is named.

    `0.30`, `0.30 EUR`, `EUR 0.30`, `0,30 EUR/kWh` and `300 EUR/MWh` mean the same.

    Args:
        value: a number, or text.
        where: the option or file, for errors.
        allowed: lowest and highest price, and what an error recommends.
        units: unit in lower case -> number that the price is divided by; the first is assumed.
    """
    low, high, what = allowed
    if not isinstance(value, str):
        price, currency = _number(value, where, what), ""
    else:
        match = _PRICE.fullmatch(value.strip())
        unit = next(iter(units)) if match is None else (match["unit"] or next(iter(units))).lower()
        if match is None or (match["before"] and match["after"]) or unit not in units:
            raise ConfigError(f"{where} must be a number, not {value!r}; {what}, or '0.30 EUR'")
        word = match["before"] or match["after"] or ""
        currency = _CURRENCIES.get(word, word)
        price = _number(match["number"].replace(",", "."), where, what) / units[unit]
    if not low <= price <= high:
        raise ConfigError(f"{where} is {value!r}; {what}")
    return price, currency


_PRICE = re.compile(
    r"(?P<before>[^\W\d_]+|[€$£¥])?\s*(?P<number>[-+]?[\d.,]+(?:e[-+]?\d+)?)"
    r"\s*(?P<after>(?!per\b)[^\W\d_]+|[€$£¥])?\s*"
    r"(?:(?:/|per\b)\s*(?P<unit>[kM]Wh|(?:GPU[ -]?)?(?:hour|h)))?",
    re.I,
)
_CURRENCIES = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY"}


def _names(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{where} must be a list of names or 'a,b', not {value!r}")
    return tuple(v for v in value if v)


def _yes(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ConfigError(f"{where} must be yes or no, not {value!r}")


FILE_NAME = "wattloop.yaml"
SECTIONS = frozenset(key.partition(".")[0] for key in FIELDS if "." in key)
REMEDY = (
    "name it with --config or WATTLOOP_CONFIG if you trust it, or copy it to a file of your own"
)
PATHS = frozenset({"store", "carbon_file", "replay_file"})


def load_settings(
    environment: Mapping[str, str] | None = None,
    config: str | None = None,
    needs: Collection[str] | None = None,
) -> Settings:
    """Load defaults, then the file (`config`, or the one found), then `WATTLOOP_*` variables.

    A wrong value of a setting that is not in `needs` (None: all are) stops nothing and is kept in
    `Settings.faults`.
    """
    env = os.environ if environment is None else environment
    path = find_config(env, config)
    if path is None:
        return settings_from(env, None, needs)
    named = bool(config or env.get("WATTLOOP_CONFIG"))
    return settings_from(env, _read(path, Settings(), named=named), needs)


def find_config(environment: Mapping[str, str], config: str | None = None) -> Path | None:
    """Find the file to use: the named one, else the nearest, else the user's own; None without any.

    Looks in the working directory and its parents up to the root of a git repository or the home
    directory; outside of both, as long as the folders belong to this user. A file that another user
    can have written is ignored with one warning. A named file is used, whichever user it
    belongs to, and is an error if it does not exist.
    """
    for name, source in ((config, "--config"), (environment.get("WATTLOOP_CONFIG"), "")):
        if name:
            path = user_path(name)
            origin = source or "WATTLOOP_CONFIG"
            try:
                is_file = path.is_file()
            except OSError as error:
                raise ConfigError(f"{origin}: {path} cannot be read: {error.strerror}") from None
            if not is_file:
                raise ConfigError(f"{origin}: {path} is not a file; name an existing {FILE_NAME}")
            return path
    from wattloop.core.files import is_trusted  # not needed to import the package

    # Path.is_file would raise where a directory may not be read; what we cannot see is not there
    found = (path for path in _candidates(environment) if os.path.isfile(path))  # noqa: PTH113 - above
    return next((path for path in found if is_trusted(path, REMEDY)), None)


def read_config(path: Path, base: Settings | None = None) -> Settings:
    """Return `base` (or the defaults) with the values of one file.

    Raises:
        ConfigError: `FILE:LINE: field ...`, with what is allowed.
    """
    return _read(path, base or Settings()).checked()


def _read(path: Path, settings: Settings, *, named: bool = True) -> Settings:
    """Return `settings` with the values of a file; wrong ones are among its faults."""
    for entry in _entries(path, named=named):
        name = FIELDS[entry.key]
        source = f"file {path}:{entry.line}"
        value = entry.value
        if isinstance(value, str) and name in PATHS:
            value = _from_file_of(path, value)
        try:
            settings = settings.overridden({name: value}, source)
        except ConfigError as error:
            detail = str(error).removeprefix(f"{source}: {name}")
            hint = "; put it in quotes" if "must be text" in detail else ""
            fault = f"{path}:{entry.line}: {entry.key}{detail}{hint}"
            settings = settings.with_fault(name, fault)
    return settings


class _Entry(NamedTuple):
    key: str
    value: Any
    line: int


def _entries(path: Path, *, named: bool) -> Iterator[_Entry]:
    from wattloop.core.files import distrust
    from wattloop.core.yaml_spec import load_yaml

    try:
        with path.open("rb") as file:
            # another user may have replaced the file since it was found
            if not named and distrust(path, status=os.fstat(file.fileno())):
                return
            text = file.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    found = load_yaml(text, str(path))
    for name, value in found.data.items():
        line = found.line([str(name)])
        if name == "tariff" and not isinstance(value, dict):  # `tariff: 0.25` is plain enough
            yield _Entry("tariff.per_kwh", value, line)
        elif name not in SECTIONS:
            yield _known(path, _Entry(str(name), value, line))
        elif not isinstance(value, dict):
            raise ConfigError(f"{path}:{line}: {name} must be 'key: value' lines, not {value!r}")
        else:
            for inner, part in value.items():
                line = found.line([name, str(inner)])
                yield _known(path, _Entry(f"{name}.{inner}", part, line))


def _known(path: Path, entry: _Entry) -> _Entry:
    if entry.key in FIELDS:
        return entry
    import difflib  # needed for the wrong word only

    section = entry.key.partition(".")[0]
    known = [k for k in FIELDS if k.startswith(f"{section}.")] if "." in entry.key else []
    known = known or sorted({k.partition(".")[0] for k in FIELDS})
    near = difflib.get_close_matches(entry.key, [*known, *FIELDS], n=1, cutoff=0.6)
    advice = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
    raise ConfigError(f"{path}:{entry.line}: unknown key '{entry.key}'; {advice}")


def _from_file_of(path: Path, value: str) -> str:
    """Resolve paths relative to the file, wherever the command is started."""
    if not value or "://" in value:
        return value
    return str(path.resolve().parent / user_path(value))


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    home = home_folder(environment)
    try:
        here = Path.cwd()
    except OSError:  # the working directory was removed, or may not be read
        here = home
    for directory in _folders(here, home):
        yield directory / FILE_NAME
    yield config_folder(environment) / FILE_NAME


def _folders(here: Path, home: Path) -> list[Path]:
    """Return the working directory and the folders above it in which a file applies to it."""
    line = [here, *here.parents]
    for number, directory in enumerate(line):
        if directory == home or os.path.exists(directory / ".git"):  # noqa: PTH110 - never raises
            return line[: number + 1]
    return list(itertools.takewhile(_is_ours, line)) or [here]


def _is_ours(directory: Path) -> bool:
    try:
        return directory.stat().st_uid == user_id()
    except OSError:
        return False
