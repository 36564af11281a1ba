"""Promises of `settings`: invalid values are refused with the valid ones, and sources are
recorded.
"""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.settings import ENVIRONMENT, Settings, settings_from


def test_environment_overrides_and_is_recorded() -> None:
    """Each value has its source."""
    settings = settings_from({"WATTLOOP_INTERVAL": "0.5", "WATTLOOP_DEVICES": "cpu, gpu:0"})
    assert settings.interval_s == 0.5
    assert settings.devices == ("cpu", "gpu:0")
    assert settings.sources["interval_s"] == "environment WATTLOOP_INTERVAL"
    assert "pue" not in settings.sources


def test_later_sources_take_precedence() -> None:
    """A flag takes precedence over the environment, and the environment over the file."""
    from_file = Settings().overridden({"pue": 1.2, "zone": "FRA"}, "file x:1")
    from_env = settings_from({"WATTLOOP_PUE": "1.3"}, from_file)
    from_flag = from_env.overridden({"pue": 1.4, "zone": None}, "flag")
    assert (from_flag.pue, from_flag.zone) == (1.4, "FRA")
    assert from_flag.sources["pue"] == "flag"
    assert from_flag.sources["zone"] == "file x:1"


@pytest.mark.parametrize("value", [0, 1e-9, 1e9, -1, "nan", "inf", "quick", True, None.__class__])
def test_absurd_interval_is_refused_with_the_allowed_range(value: object) -> None:
    """0, a nanosecond, thirty years and text are refused."""
    with pytest.raises(ConfigError, match="interval_s"):
        Settings().overridden({"interval_s": value}, "flag")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pue", 0.9),
        ("tariff_per_kwh", -0.1),
        ("carbon_g_per_kwh", 1e6),
        ("psu_efficiency", 1.5),
        ("virtual_gpus", 1_000),
        ("devices", 7),
        ("ipmi", "perhaps"),
        ("sampler", "nobody"),
        ("gauges", "x"),
        ("zone", 33),
    ],
)
def test_value_out_of_range_names_setting_and_source(name: str, value: object) -> None:
    """The message names the setting and its source."""
    with pytest.raises(ConfigError, match=rf"file a:3: {name}"):
        Settings().overridden({name: value}, "file a:3")


def test_unknown_setting_is_refused_with_the_known_ones() -> None:
    """A typing error is reported."""
    with pytest.raises(ConfigError, match=r"unknown setting 'intervall'.*interval_s"):
        Settings().overridden({"intervall": 1}, "flag")


def test_every_variable_names_a_setting() -> None:
    """The table of variables and the class agree."""
    assert set(ENVIRONMENT.values()) <= set(Settings._fields)


def test_empty_variable_is_ignored() -> None:
    """`WATTLOOP_PUE=` in a shell means nothing."""
    assert settings_from({"WATTLOOP_PUE": ""}) == Settings()


def test_store_is_in_the_users_data_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the XDG rules."""
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert Settings().store_location == "/data/wattloop/runs.db"
    assert Settings(store="x.db").store_location == "x.db"


@pytest.mark.parametrize("store", [":memory:", "sqlite://", "sqlite:///:memory:"])
def test_a_store_in_memory_is_refused_before_it_becomes_a_folder(store: str) -> None:
    """Otherwise runs would be lost, with their journals in a folder named `:memory:`."""
    with pytest.raises(ConfigError, match="name a file"):
        Settings().overridden({"store": store}, "flag --store")


@pytest.mark.parametrize(
    ("text", "currency"),
    [
        ("0.30", "EUR"),
        ("0.30 USD", "USD"),
        ("USD 0.30", "USD"),
        ("0.30 USD/kWh", "USD"),
        ("0.30 CHF per kWh", "CHF"),
        ("0,30 CHF", "CHF"),
        ("300 CHF/MWh", "CHF"),
        ("$0.30", "USD"),
        ("0.30€/kWh", "EUR"),
    ],
)
def test_a_tariff_may_name_its_currency(text: str, currency: str) -> None:
    """Promise: common notations of a price are understood."""
    settings = settings_from({"WATTLOOP_TARIFF": text})
    assert settings.tariff_per_kwh == pytest.approx(0.30)
    assert settings.currency == currency


def test_the_currency_next_to_the_number_wins() -> None:
    """Promise: 0.30 EUR never becomes 0.30 CHF."""
    both = settings_from({"WATTLOOP_TARIFF": "0.30 EUR", "WATTLOOP_CURRENCY": "CHF"})
    assert both.currency == "EUR"
    assert settings_from({"WATTLOOP_TARIFF": "1", "WATTLOOP_CURRENCY": "CHF"}).currency == "CHF"


@pytest.mark.parametrize("text", ["cheap", "0.30 EUR 5", "EUR 0.30 USD", "0.3.0", "30 EUR/day"])
def test_a_tariff_that_is_not_a_price_is_refused_where_it_is_needed(text: str) -> None:
    """Promise: a caller that needs the tariff gets the reason; another caller gets its settings."""
    with pytest.raises(ConfigError, match="environment WATTLOOP_TARIFF"):
        settings_from({"WATTLOOP_TARIFF": text})
    settings = settings_from({"WATTLOOP_TARIFF": text, "WATTLOOP_PUE": "1.4"}, needs=("store",))
    assert (settings.tariff_per_kwh, settings.pue) == (None, 1.4)
    assert "WATTLOOP_TARIFF" in settings.faults["tariff_per_kwh"]
