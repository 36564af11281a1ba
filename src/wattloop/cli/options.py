"""Options: their declaration, those that several verbs share, and the settings that they change.
`cli.app.Verb` hands options to typer; `wattloop run` reads its own without loading it.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings, load_settings
from wattloop.core.units import Dimension, quantity

NAMES = {
    "interval": "interval_s",
    "devices": "devices",
    "meters": "meters",
    "pue": "pue",
    "zone": "zone",
    "store": "store",
    "tariff": "tariff_per_kwh",
    "currency": "currency",
    "retain": "retain",
    "share": "share",
}
"""Option -> setting."""


def settings_of(
    config: str | None = None, *, needs: Collection[str] | None = None, **flags: Any
) -> Settings:
    """Merge defaults, file, environment and `flags` (by option name; None means not given).

    Args:
        config: the file that the user names.
        needs: settings that the verb uses, None for all: a wrong value of another one does not
            stop it.
        flags: a wrong one is refused in any case.
    """
    settings = load_settings(config=config, needs=needs)
    for option, value in flags.items():
        name = NAMES[option]
        source = f"flag --{option}"
        try:
            settings = settings.overridden({name: value}, source)
        except ConfigError as error:
            detail = str(error).removeprefix(f"{source}: {name}")
            raise ConfigError(f"--{option}{detail}") from None
    return settings


class OptionSpec(NamedTuple):
    """Declaration of an option, or of a positional argument, which has no names."""

    names: tuple[str, ...]
    metavar: str | None
    text: str
    default: Any
    is_file: bool = False
    more: Mapping[str, Any] = {}


def option(names: str, text: str, default: Any = ..., **more: Any) -> Any:
    """Return an option such as `--name -n TEXT`: its names, then how its value is shown.

    Without a default a flag is off, an option that may be None is not given, and others are
    required. An `Annotated` type leaves the default to the command.
    """
    words = names.split(" ")
    count = sum(word.startswith("-") for word in words)
    return OptionSpec(
        tuple(words[:count]), " ".join(words[count:]) or None, text, default, more=more
    )


def file_option(names: str, text: str, default: Any = ...) -> Any:
    """Return an option that names a file to write; one that cannot be written is refused first."""
    return option(names, text, default)._replace(is_file=True)


def argument(metavar: str | None, text: str, default: Any = ...) -> Any:
    return OptionSpec((), metavar, text, default)


def option_amount(text: str, name: str, dimension: Dimension, what: str) -> float:
    """Parse the amount of the option `name` in SI units; `what` tells how to write it."""
    try:
        return quantity(text, dimension, what=what).value
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


# Numbers are taken as text: Settings checks them, and names the allowed range.
Interval = Annotated[
    str | None, option("--interval -i SECONDS", "Seconds between samples (default: 0.1).")
]

Devices = Annotated[
    str | None,
    option(
        "--devices LIST",
        "Read only these, such as cpu,gpu:0 (default: CPUs, memory and the GPUs that "
        "CUDA_VISIBLE_DEVICES and the like show; all: every GPU).",
    ),
]

Meters = Annotated[
    str | None, option("--meters LIST", "Use only these meters, such as rapl (default: all).")
]
Pue = Annotated[
    str | None, option("--pue FACTOR", "Power usage effectiveness of the room (default: 1).")
]
Zone = Annotated[str | None, option("--zone CODE", "Country (FRA) or zone, for carbon.")]
Tariff = Annotated[
    str | None, option("--tariff PRICE", "Price of a kWh, such as 0.25 or '0.25 CHF'.")
]
Price = Annotated[
    str | None,
    option("--price PRICE", "Price of a GPU hour: 2.50, '2.50 USD' or a100=1.50,h200=3.50."),
]
StorePlace = Annotated[
    str | None, option("--store PLACE", "SQLite file or postgresql:// URL for runs.")
]
JsonFile = Annotated[
    str | None, file_option("--json FILE", "Write the result as JSON; - is standard output.")
]
Config = Annotated[str | None, option("--config FILE", "Use this wattloop.yaml.")]
