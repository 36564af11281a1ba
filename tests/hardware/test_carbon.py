import csv
import os
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.carbon import ALIASES, annual_intensities, annual_intensity

SHARED = Path(os.environ.get("WATTLOOP_SHARED_DATA") or Path(__file__).parents[3] / "shared/data")


@pytest.mark.parametrize("zone", ["FRA", "fra", "FR", "fr", "France", " FRANCE "])
def test_a_country_is_found_by_code_or_name_in_any_case(zone):
    """Alpha-3, alpha-2 and English names mean the same country."""
    assert annual_intensity(zone).iso3 == "FRA"


@pytest.mark.parametrize(
    ("zone", "iso3"),
    [("UK", "GBR"), ("Türkiye", "TUR"), ("Côte d'Ivoire", "CIV"), ("NA", "NAM"), ("usa", "USA")],
)
def test_other_spellings_are_understood(zone, iso3):
    """Accents, apostrophes and everyday names do not matter."""
    assert annual_intensity(zone).iso3 == iso3


@pytest.mark.parametrize(("zone", "near"), [("Germny", "DEU (Germany)"), ("Swedn", "SWE")])
def test_a_wrong_name_is_answered_with_near_matches(zone, near):
    """The error suggests near names."""
    with pytest.raises(ConfigError, match="did you mean") as error:
        annual_intensity(zone)
    assert near in str(error.value)


@pytest.mark.parametrize("zone", ["XQZ", "", "1234567"])
def test_a_name_near_nothing_is_answered_with_what_to_write(zone):
    """Without a near match the error lists the accepted forms."""
    with pytest.raises(ConfigError, match="ISO 3166"):
        annual_intensity(zone)


def test_every_entry_is_plausible_and_names_source_and_year():
    """No zero (a rounded-off value is not a clean grid), no duplicate, each with its source."""
    entries = annual_intensities()
    assert len(entries) > 200
    assert len({e.iso3 for e in entries}) == len({e.iso2 for e in entries}) == len(entries)
    for entry in entries:
        assert 10 < entry.g_co2e_per_kwh < 1_500, entry
        assert 2000 < entry.year < 2100
        assert str(entry.year) in entry.source
    assert set(ALIASES.values()) <= {e.iso3 for e in entries}


def test_entries_agree_with_the_published_statistics():
    """The table equals Our World in Data, to the stored decimal."""
    path = SHARED / "reference" / "carbon_intensity.csv"
    if not path.exists():
        pytest.skip("reference data is not on this machine (WATTLOOP_SHARED_DATA)")
    ours = {e.iso3: e for e in annual_intensities()}
    with path.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if float(row["g_co2e_per_kwh"]) > 0]
    for row in rows:
        assert ours[row["iso3"]].g_co2e_per_kwh == pytest.approx(
            float(row["g_co2e_per_kwh"]), abs=0.051
        )
        assert ours[row["iso3"]].year == int(row["year"])
