import pytest

from tests.accounting.windows import domain, window
from wattloop.accounting.energy_slope import Line
from wattloop.accounting.idle import IdleLine, application_energy, fit_idle
from wattloop.core.records import Provenance


def idle_line(name, alpha=4.44, beta=47.95, rmse=6.36, **over):
    line = Line(alpha, beta, 1.0, rmse, 7, 127 / 7, 5461 - 127**2 / 7)
    return IdleLine(name, line, over.get("source", f"sensor of {name}"), Provenance.MEASURED)


def test_application_energy_is_measured_minus_idle_per_domain():
    """Eq. 3.2 on the thesis's Intel row (SPMV sequential, 9.91 s, 991.37 J, DRAM 164.17 J)."""
    lines = {
        "cpu:0/package": idle_line("cpu:0/package"),
        "dram": idle_line("dram", 0.63, 9.41, 0.49),
    }
    found = application_energy(
        window(9.91, domain("cpu:0/package", 991.37), domain("dram", 164.17)), lines
    )
    by_name = {d.name: d.energy_j for d in found.domains}
    assert by_name["cpu:0/package"] == pytest.approx(991.37 - 4.44 - 47.95 * 9.91)
    assert by_name["dram"] == pytest.approx(70.02, abs=0.3)  # the thesis's own figure
    assert found.energy_j == pytest.approx(sum(by_name.values()))
    assert found.complete


def test_uncertainty_holds_both_parts():
    """The half-width combines the window's and the line's."""
    line = idle_line("gpu:0")
    found = application_energy(
        window(10, domain("gpu:0", 900, uncertainty_j=30.0)), {"gpu:0": line}
    )
    assert found.domains[0].uncertainty_j == pytest.approx(
        (30.0**2 + line.uncertainty_j(10) ** 2) ** 0.5
    )


def test_a_domain_without_a_line_is_none_with_a_reason_and_the_total_says_so():
    """Missing is not zero: the result is neither the whole measured energy nor 0 J."""
    found = application_energy(
        window(10, domain("cpu:0/package", 900), domain("gpu:0", 500)),
        {"cpu:0/package": idle_line("cpu:0/package")},
    )
    gpu = found.domains[1]
    assert gpu.energy_j is None
    assert "wattloop idle" in gpu.reason
    assert not found.complete
    assert found.energy_j == pytest.approx(900 - 4.44 - 479.5)


def test_without_any_line_the_total_is_none():
    """Without a line there is no application energy."""
    found = application_energy(window(10, domain("gpu:0", 500)), {})
    assert found.energy_j is None
    assert not found.complete


def test_a_negative_application_energy_is_reported_as_it_is_with_a_warning():
    """A machine that draws less than its idle line is reported, not clipped to zero."""
    found = application_energy(
        window(10, domain("cpu:0/package", 300)), {"cpu:0/package": idle_line("cpu:0/package")}
    )
    assert found.energy_j == pytest.approx(300 - 4.44 - 479.5)
    assert "quieter than when its idle line was fitted" in found.warnings[0]


def test_overlapping_domains_are_not_added_twice():
    """Cores get their own application energy but stay out of the total."""
    lines = {name: idle_line(name) for name in ("cpu:0/package", "cpu:0/core")}
    found = application_energy(
        window(10, domain("cpu:0/package", 900), domain("cpu:0/core", 700, in_total=False)), lines
    )
    assert found.energy_j == found.domains[0].energy_j
    assert found.domains[1].energy_j is not None


def test_time_without_readings_costs_no_idle_energy():
    """A GPU lost half-way is charged idle energy only for the half that was read."""
    found = application_energy(
        window(10, domain("gpu:0", 400, covered=0.5)), {"gpu:0": idle_line("gpu:0")}
    )
    assert found.energy_j == pytest.approx(400 - 4.44 - 47.95 * 5)


def test_a_line_from_another_sensor_is_warned_about():
    """Powercap's idle line does not correct perf's readings without a warning."""
    found = application_energy(
        window(10, domain("dram", 900)), {"dram": idle_line("dram", source="perf")}
    )
    assert "its idle line comes from perf" in found.warnings[0]


def test_fit_idle_measures_the_asked_windows_and_fits_each_domain():
    """Lines come from the windows' own durations and energies, and progress is reported."""
    seen = []

    def measure_sleep(duration_s):
        length_s = duration_s + 0.01
        return window(length_s, domain("cpu:0/package", 2 + 50 * length_s), domain("gpu:0", None))

    fit = fit_idle(measure_sleep, (1, 2, 4, 8), on_window=seen.append)
    assert fit.lines["cpu:0/package"].alpha_j == pytest.approx(2)
    assert fit.lines["cpu:0/package"].beta_w == pytest.approx(50)
    assert len(seen) == 4
    assert "gpu:0" not in fit.lines
    assert "at least 3 points" in fit.skipped[0].reason


def test_fit_idle_warns_when_the_machine_was_not_idle():
    """Idle energy that is not linear in time is reported, since every later subtraction uses it."""
    energies = iter([50, 300, 120, 400])
    fit = fit_idle(lambda s: window(s, domain("cpu:0/package", next(energies))), (1, 2, 3, 4))
    assert "something else was running" in fit.warnings[0]


def test_the_fit_reports_unreadable_domains():
    """Domains that were missing while idling are listed with their reasons."""
    fit = fit_idle(lambda s: window(s, domain("gpu:0", 30 * s), missing=("dram",)), (1, 2, 3))
    assert [m.name for m in fit.skipped] == ["dram"]
