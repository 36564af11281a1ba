"""Annual carbon intensities of electricity by country, from `carbon_intensity.csv`.

Each entry names its source and year. The file is read on the first lookup, not at import.
"""

import csv
import os
import unicodedata
from functools import cache
from pathlib import Path
from typing import NamedTuple

from wattloop.core.errors import ConfigError

DATA_FILE = Path(__file__).with_name("carbon_intensity.csv")
ALIASES = {
    "america": "USA",
    "bosnia": "BIH",
    "brunei darussalam": "BRN",
    "burma": "MMR",
    "cabo verde": "CPV",
    "congo": "COG",
    "cote d ivoire": "CIV",
    "czech republic": "CZE",
    "dr congo": "COD",
    "east timor": "TLS",
    "england": "GBR",
    "great britain": "GBR",
    "holland": "NLD",
    "korea": "KOR",
    "lao pdr": "LAO",
    "macau": "MAC",
    "macedonia": "MKD",
    "republic of korea": "KOR",
    "russian federation": "RUS",
    "scotland": "GBR",
    "swaziland": "SWZ",
    "the netherlands": "NLD",
    "turkiye": "TUR",
    "uae": "ARE",
    "uk": "GBR",
    "united states of america": "USA",
    "viet nam": "VNM",
    "wales": "GBR",
}
"""Other English names people type."""


class AnnualIntensity(NamedTuple):
    """Grams of CO2-equivalent per kilowatt-hour generated in a country in one year."""

    iso3: str
    iso2: str
    country: str
    g_co2e_per_kwh: float
    year: int
    source: str


def annual_intensity(zone: str) -> AnnualIntensity:
    """Return the entry for an ISO 3166 alpha-3 or alpha-2 code or an English country name, in any
    case.

    Raises:
        ConfigError: no such country; the message lists near matches.
    """
    by_key = _index()
    key = _key(zone)
    if key in by_key:
        return by_key[key]
    raise ConfigError(f"no carbon intensity for zone {zone!r}: {_advice(key)}")


def guess_country(root: Path = Path("/")) -> tuple[str, str]:
    """Return the country of the machine's time zone, and a sentence that says so.

    Raises:
        ConfigError: the time zone names no country, such as UTC.
    """
    zone = os.environ.get("TZ", "").removeprefix(":")
    if not zone:
        link = root / "etc/localtime"
        zone = str(link.resolve()).partition("zoneinfo/")[2] if link.is_symlink() else ""
    table = root / "usr/share/zoneinfo/zone.tab"
    try:
        lines = table.read_text("utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        fields = line.split("\t")
        if len(fields) > 2 and fields[2] == zone and not line.startswith("#"):
            return fields[0], f"; country guessed from the time zone {zone}"
    raise ConfigError(
        f"zone guess: the time zone {zone or 'of this machine'} names no country; give the country "
        "itself, such as zone: FRA"
    )


@cache
def annual_intensities() -> tuple[AnnualIntensity, ...]:
    """Return every entry of the data file, by alpha-3 code."""
    with DATA_FILE.open(newline="", encoding="utf-8") as lines:
        return tuple(
            AnnualIntensity(
                iso3=row["iso3"],
                iso2=row["iso2"],
                country=row["country"],
                g_co2e_per_kwh=float(row["g_co2e_per_kwh"]),
                year=int(row["year"]),
                source=row["source"],
            )
            for row in csv.DictReader(lines)
        )


@cache
def _index() -> dict[str, AnnualIntensity]:
    entries = annual_intensities()
    by_iso3 = {entry.iso3: entry for entry in entries}
    index = {alias: by_iso3[iso3] for alias, iso3 in ALIASES.items()}
    for entry in entries:
        for name in (entry.country, entry.iso2, entry.iso3):
            index[_key(name)] = entry
    return index


def _key(name: str) -> str:
    """Lower case, without accents and punctuation."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return " ".join("".join(c if c.isalnum() else " " for c in plain).split())


def _advice(key: str) -> str:
    import difflib  # only a wrong name needs it

    # Codes are too short to be near anything: only names of countries are compared.
    names = [name for name in _index() if len(name) > 3]
    near = difflib.get_close_matches(key, names, n=3, cutoff=0.6)
    entries = dict.fromkeys(_index()[name] for name in near)
    if entries:
        return "did you mean " + " or ".join(f"{e.iso3} ({e.country})" for e in entries) + "?"
    return "use an ISO 3166 code such as FRA or US, or give the value itself with carbon_g_per_kwh"
