import pytest

from tests.accounting.test_carbon_live import provider
from wattloop.accounting.carbon import IntensityKind, carbon_g, find_intensity
from wattloop.core.settings import Settings

WH = 3_600.0


def test_the_example_of_energyscopium():
    """338.00 Wh at 369 g/kWh are 124.72 g."""
    assert carbon_g(338.00 * WH, 369.0) == pytest.approx(124.72, abs=0.005)


def test_without_a_zone_there_is_no_number():
    """None instead of a silent world average, and what to set."""
    search = find_intensity(Settings())
    assert search.found is None
    assert search.reason.startswith("set zone:")


def test_a_zone_gives_the_annual_value_with_its_year_and_source():
    """The number carries its source."""
    found = find_intensity(Settings(zone="fr")).found
    assert (found.zone, found.kind, found.year) == ("FRA", IntensityKind.ANNUAL, 2023)
    assert found.g_co2e_per_kwh == 56.0
    assert "Our World in Data" in found.source


def test_a_wrong_zone_is_a_reason_not_an_error():
    """A typing error in the zone must not cost the user the summary of a finished run."""
    search = find_intensity(Settings(zone="Frnace"))
    assert search.found is None
    assert "FRA (France)" in search.reason


def test_the_users_value_overrides_the_zone():
    """A value of zero counts too."""
    found = find_intensity(Settings(zone="FRA", carbon_g_per_kwh=0.0)).found
    assert (found.g_co2e_per_kwh, found.kind) == (0.0, IntensityKind.STATED)


def test_a_series_is_weighted_over_the_run(tmp_path):
    """A run over two hours, one quarter in the first."""
    path = tmp_path / "grid.csv"
    path.write_text("time,g_co2e_per_kwh\n0,100\n3600,200\n")
    found = find_intensity(Settings(carbon_file=str(path)), 2_700, 2_700 + 3_600).found
    assert found.g_co2e_per_kwh == pytest.approx(0.25 * 100 + 0.75 * 200)
    assert found.kind is IntensityKind.SERIES


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,g_co2e_per_kwh\n0,100\n", "no value for the time of the run"),
        ("when,what\n", "must have the columns"),
        (None, "cannot be read"),
    ],
)
def test_a_series_that_does_not_help_falls_back_and_says_so(tmp_path, text, says):
    """The annual value is used, and the note names both."""
    path = tmp_path / "grid.csv"
    if text is not None:
        path.write_text(text)
    search = find_intensity(Settings(carbon_file=str(path), zone="FRA"), 1e9, 1e9 + 60)
    assert search.found.kind is IntensityKind.ANNUAL
    assert says in search.notes[0]
    assert "annual mean of France" in search.notes[0]


def test_a_series_without_the_time_of_day_falls_back(tmp_path):
    """A window with an unknown start cannot be placed on a series."""
    search = find_intensity(Settings(carbon_file=str(tmp_path / "x.csv"), zone="FRA"))
    assert "time of day" in search.notes[0]


def test_a_live_provider_wins():
    """The provider is asked once and gives both zone and value."""
    with provider('{"zone": "DE", "carbonIntensity": 301}') as url:
        found = find_intensity(Settings(carbon_url=url, zone="FRA")).found
    assert (found.g_co2e_per_kwh, found.zone, found.kind) == (301.0, "DE", IntensityKind.LIVE)


def test_a_live_provider_that_fails_falls_back_to_the_annual_value_and_says_so():
    """A closed port only adds a note."""
    search = find_intensity(Settings(carbon_url="http://127.0.0.1:9/x", zone="FRA"))
    assert search.found.kind is IntensityKind.ANNUAL
    assert "live carbon intensity failed" in search.notes[0]


def test_all_sources_failing_names_all_of_them():
    """Without any number, the notes name every source that failed."""
    search = find_intensity(Settings(carbon_url="http://127.0.0.1:9/x", zone="Atlantis"))
    assert search.found is None
    assert "live carbon intensity failed" in search.reason
    assert "Atlantis" in search.reason


def test_a_file_of_an_unknown_user_is_a_reason_not_an_error():
    """`~nobody-here/x.csv` does not exist; the run is still accounted for."""
    search = find_intensity(Settings(carbon_file="~nobody-here/x.csv", zone="FRA"), 0.0, 1.0)
    assert search.found is not None
    assert "~nobody-here/x.csv cannot be read" in search.notes[0]
