"""The configuration file `wattloop.yaml`, with errors that name line and field."""

import itertools
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.files import distrust, is_trusted
from wattloop.core.paths import config_folder, home_folder, user_path
from wattloop.core.settings import FIELDS, Settings, settings_from

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
        return directory.stat().st_uid == os.geteuid()
    except OSError:
        return False
