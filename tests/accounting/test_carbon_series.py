import pytest

from wattloop.accounting.carbon import IntensityPoint, load_series, mean_intensity
from wattloop.core.errors import ConfigError

HOUR_S = 3_600
SERIES = (IntensityPoint(0, 100), IntensityPoint(HOUR_S, 200), IntensityPoint(3 * HOUR_S, 400))


@pytest.mark.parametrize(
    ("begin_h", "end_h", "mean", "covered"),
    [
        (0, 1, 100, 1.0),
        (0.5, 1.5, 150, 1.0),
        (0, 5, (100 + 2 * 200 + 2 * 400) / 5, 1.0),
        (4, 6, 400, 0.5),
        (-1, 1, 100, 0.5),
        (2, 2, 200, 1.0),
    ],
)
def test_each_interval_weighs_by_the_time_it_shares_with_the_run(begin_h, end_h, mean, covered):
    """Step function; the last value holds as long as the one before; gaps are reported."""
    found = mean_intensity(SERIES, begin_h * HOUR_S, end_h * HOUR_S)
    assert found == pytest.approx((mean, covered))


@pytest.mark.parametrize(("begin_h", "end_h"), [(5, 6), (-2, -1)])
def test_a_run_outside_the_series_has_no_mean(begin_h, end_h):
    """The series is not extrapolated."""
    assert mean_intensity(SERIES, begin_h * HOUR_S, end_h * HOUR_S) is None


def test_times_may_be_iso_or_seconds_in_any_order(tmp_path):
    """ISO times without a zone are UTC."""
    path = tmp_path / "grid.csv"
    path.write_text("time,g_co2e_per_kwh\n1970-01-01T02:00:00+01:00,2\n0,1\n1970-01-01T02:00,3\n")
    assert load_series(path) == (
        IntensityPoint(0, 1),
        IntensityPoint(HOUR_S, 2),
        IntensityPoint(2 * HOUR_S, 3),
    )


def test_a_file_with_zones_gives_those_of_the_users_zone(tmp_path):
    """One file may serve several sites."""
    path = tmp_path / "grid.csv"
    path.write_text("time,zone,g_co2e_per_kwh\n0,lyon,50\n0,oslo,20\n")
    assert load_series(path, "Oslo") == (IntensityPoint(0, 20),)
    with pytest.raises(ConfigError, match="it has lyon, oslo"):
        load_series(path, "bonn")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must have the columns"),
        ("time,g_co2e_per_kwh\n", "has no values"),
        ("time,g_co2e_per_kwh\nyesterday,3\n", ":2: time 'yesterday'"),
        ("time,g_co2e_per_kwh\n0,3\n1,lots\n", ":3: g_co2e_per_kwh 'lots'"),
        ("time,g_co2e_per_kwh\n0,-3\n", "must be a number from 0"),
        ("time,g_co2e_per_kwh\n0,nan\n", "must be a number from 0"),
        ("time,g_co2e_per_kwh\n0\n", "must be a number from 0"),
        ("time,g_co2e_per_kwh\ninf,3\n", "not finite"),
        ("time,g_co2e_per_kwh\n0,3\n0,4\n", "a second value"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, says):
    """The error names the file, the line and the remedy."""
    path = tmp_path / "grid.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match="carbon_file") as error:
        load_series(path)
    assert says in str(error.value)


def test_a_binary_file_is_refused(tmp_path):
    """The error shows no traceback of the decoder."""
    path = tmp_path / "grid.csv"
    path.write_bytes(b"time,g_co2e_per_kwh\n\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a CSV text file"):
        load_series(path)
