"""Settings merged from defaults, file, environment and command line."""

from collections.abc import Collection
from typing import Any

from wattloop.core.config_file import load_settings
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings

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
