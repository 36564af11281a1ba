"""Promises of gauge files: sensors are found, read in SI units, and refused with a reason."""

from pathlib import Path

import pytest

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters import gauge_files
from wattloop.meters.base import Context


class Sysfs:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Host(sysfs=root)

    def put(self, directory: str, **files: object) -> Path:
        path = self.root / directory
        path.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (path / name).write_text(f"{text}\n")
        return path

    def meter(self, *gauges: dict[str, object]) -> gauge_files.FileGauge:
        context = Context(host=self.host, settings=Settings(gauges=gauges))
        (meter,) = gauge_files.detect(context)
        return meter


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def readings(meter: gauge_files.FileGauge) -> dict[str, object]:
    return {d.name: v for d, v in zip(meter.domains, meter.read(), strict=True)}


def domains(meter: gauge_files.FileGauge) -> dict[str, Domain]:
    return {d.name: d for d in meter.domains}


def test_intel_gpu_counts_the_card_once(sysfs: Sysfs) -> None:
    """xe shows card and package: the card contains the package, so only the card is offered."""
    sysfs.put(
        "class/hwmon/hwmon4", name="xe",
        energy1_label="card", energy1_input=5_000_000,
        energy2_label="pkg", energy2_input=3_000_000,
        power1_max=150_000_000, power1_rated_max=190_000_000,
    )  # fmt: skip
    sysfs.put("class/hwmon/hwmon5", name="i915", energy1_input=7_000_000)
    meter = sysfs.meter()
    assert readings(meter) == {
        "gpu:intel0": pytest.approx(5.0),
        "gpu:intel1": pytest.approx(7.0),
    }
    domain = domains(meter)["gpu:intel0"]
    assert (domain.kind, domain.scope) == (DomainKind.COUNTER, Scope.GPU)
    assert domain.tdp_w == pytest.approx(150)
    assert domain.tdp_note == "enforced power limit 150 W of 190 W"


@pytest.mark.parametrize("below", ["", "/device"])
def test_grace_parts_lie_inside_their_socket(sysfs: Sysfs, below: str) -> None:
    """Rails of socket, CPU, SysIO and module are recognised by their label, in any place."""
    parts = (
        "Module Power Socket 0",
        "Grace Power Socket 0",
        "CPU Power Socket 0",
        "SysIO Power Socket 0",
    )
    for number, label in enumerate(parts):
        directory = f"class/hwmon/hwmon{number + 1}"
        sysfs.put(directory, name="power_meter")
        sysfs.put(
            directory + below, power1_oem_info=label, power1_average=(number + 1) * 10_000_000,
            power1_average_interval=100,
        )  # fmt: skip
    meter = sysfs.meter()
    assert readings(meter) == {
        "module:0": pytest.approx(10.0),
        "cpu:0/package": pytest.approx(20.0),
        "cpu:0/core": pytest.approx(30.0),
        "cpu:0/uncore": pytest.approx(40.0),
    }
    found = domains(meter)
    assert found["cpu:0/core"].inside == found["cpu:0/uncore"].inside == "cpu:0/package"
    assert found["module:0"].scope is Scope.NODE
    assert found["cpu:0/package"].averaging_s == pytest.approx(0.1)
    assert gauge_files.has_grace(sysfs.host)


def test_jetson_rail_is_voltage_times_current(sysfs: Sysfs) -> None:
    """mV x mA are microwatts; rails of the module lie inside its input; unused channels are left
    out.
    """
    sysfs.put(
        "class/hwmon/hwmon1", name="ina3221",
        in1_label="VDD_IN", in1_input=5_000, curr1_input=2_000, shunt1_resistor=2_000,
        in2_label="VDD_CPU_GPU_CV", in2_input=5_000, curr2_input=400,
        in3_label="NC", in3_input=5_000, curr3_input=0,
        in7_label="sum of shunt voltages", in7_input=12, curr4_input=2_400,
    )  # fmt: skip
    meter = sysfs.meter()
    assert readings(meter) == {
        "rail/vdd_in": pytest.approx(10.0),
        "rail/vdd_cpu_gpu_cv": pytest.approx(2.0),
    }
    found = domains(meter)
    assert found["rail/vdd_in"].scope is Scope.NODE
    assert found["rail/vdd_cpu_gpu_cv"].inside == "rail/vdd_in"
    assert found["rail/vdd_in"].resolution == pytest.approx(0.1)
    assert found["rail/vdd_cpu_gpu_cv"].resolution == pytest.approx(0.04)


def test_jetson_agx_rails_stand_side_by_side(sysfs: Sysfs) -> None:
    """Without an input rail no rail contains the others, except the 5 V rail its memory."""
    sysfs.put(
        "class/hwmon/hwmon1", name="ina3221",
        in1_label="VDD_GPU_SOC", in1_input=5_000, curr1_input=1_000,
        in2_label="VDD_CPU_CV", in2_input=5_000, curr2_input=400,
        in3_label="VIN_SYS_5V0", in3_input=5_000, curr3_input=600,
    )  # fmt: skip
    sysfs.put(
        "class/hwmon/hwmon2", name="ina3221",
        in2_label="VDDQ_VDD2_1V8AO", in2_input=5_000, curr2_input=200,
    )  # fmt: skip
    found = domains(sysfs.meter())
    assert {name: d.scope for name, d in found.items()} == {
        "rail/vdd_gpu_soc": Scope.GPU,
        "rail/vdd_cpu_cv": Scope.CPU,
        "rail/vin_sys_5v0": Scope.OTHER,
        "rail/vddq_vdd2_1v8ao": Scope.DRAM,
    }
    assert found["rail/vddq_vdd2_1v8ao"].inside == "rail/vin_sys_5v0"
    assert found["rail/vdd_gpu_soc"].inside is None


def test_old_jetson_shows_milliwatts(sysfs: Sysfs) -> None:
    """TX2: iio files with rail names; the carrier's rails lie inside the carrier's input."""
    sysfs.put(
        "bus/i2c/drivers/ina3221x/0-0041/iio:device1",
        rail_name_0="VDD_IN", in_power0_input=7_500, rail_name_1="VDD_SYS_CPU", in_power1_input=900,
    )  # fmt: skip
    sysfs.put(
        "bus/i2c/drivers/ina3221x/0-0042/iio:device2",
        rail_name_0="VDD_MUX", in_power0_input=9_000,
        rail_name_1="VDD_3V3_SYS", in_power1_input=800,
    )  # fmt: skip
    meter = sysfs.meter()
    assert readings(meter)["rail/vdd_in"] == pytest.approx(7.5)
    found = domains(meter)
    assert found["rail/vdd_sys_cpu"].inside == "rail/vdd_in"
    assert found["rail/vdd_3v3_sys"].inside == "rail/vdd_mux"
    assert found["rail/vdd_mux"].inside is None


@pytest.mark.parametrize(
    "files",
    [
        {"power_now": 12_500_000},
        {"current_now": 1_000_000, "voltage_now": 12_500_000},
        {"current_now": -1_000_000, "voltage_now": 12_500_000},
    ],
)
def test_battery_shows_power_only_while_discharging(sysfs: Sysfs, files: dict[str, int]) -> None:
    """Plugged in during a run it becomes a gap with that reason, and returns when unplugged."""
    directory = sysfs.put("class/power_supply/BAT0", type="Battery", status="Discharging", **files)
    meter = sysfs.meter()
    assert readings(meter) == {"battery:BAT0": pytest.approx(12.5)}
    assert meter.domains[0].scope is Scope.NODE
    (directory / "status").write_text("Charging\n")
    (reading,) = meter.read()
    assert isinstance(reading, Gap)
    assert "BAT0 is 'Charging'" in reading.reason
    (directory / "status").write_text("Discharging\n")
    assert readings(meter) == {"battery:BAT0": pytest.approx(12.5)}


def test_battery_on_mains_is_not_a_missing_part(sysfs: Sysfs) -> None:
    """On a plugged-in laptop the message explains the missing battery reading, with a remedy."""
    sysfs.put("class/power_supply/BAT0", type="Battery", status="Full", power_now=0)
    with pytest.raises(MeterUnavailable) as caught:
        sysfs.meter()
    assert "BAT0 is 'Full'" in caught.value.reason
    assert "unplug" in caught.value.remedy
    assert caught.value.parts == ()


def test_battery_of_a_mouse_is_not_the_machine(sysfs: Sysfs) -> None:
    """Peripherals have batteries too."""
    sysfs.put(
        "class/power_supply/hidpp_battery_0", type="Battery", scope="Device",
        status="Discharging", power_now=1_000,
    )  # fmt: skip
    with pytest.raises(MeterUnavailable, match="no gauge is set"):
        sysfs.meter()


def test_configured_gauge_is_read_in_addition_to_known_ones(sysfs: Sysfs) -> None:
    """A user's gauge is added, and takes precedence over a known one of the same name."""
    sysfs.put("class/hwmon/hwmon0", name="i915", energy1_input=7_000_000)
    sysfs.put("class/hwmon/hwmon1", name="fan", power1_input=2_500)
    meter = sysfs.meter(
        {"name": "fan", "path": "class/hwmon/hwmon1/power1_input", "unit": "mW"},
        {
            "name": "gpu:intel0",
            "path": "class/hwmon/hwmon0/energy1_input",
            "unit": "uJ",
            "scale": 2,
        },
    )
    assert readings(meter) == {"fan": pytest.approx(2.5), "gpu:intel0": pytest.approx(14.0)}


def test_gauge_without_a_file_is_reported(sysfs: Sysfs) -> None:
    """A path that matches nothing is a missing part with the remedy; the other gauges work."""
    sysfs.put("class/hwmon/hwmon1", power1_input=2_500)
    meter = sysfs.meter(
        {"name": "fan", "path": "class/hwmon/hwmon1/power1_input", "unit": "mW"},
        {"name": "disk", "path": "class/hwmon/hwmon9/power*_input", "unit": "mW"},
    )
    assert [m.name for m in meter.refused] == ["disk"]
    assert "no file matches" in meter.refused[0].reason
    assert "'disk'" in meter.refused[0].remedy
    with pytest.raises(MeterUnavailable, match="no file matches"):
        sysfs.meter({"name": "disk", "path": "nowhere", "unit": "W"})


def test_unreadable_gauge_is_reported(sysfs: Sysfs) -> None:
    """A directory in place of the file is refused with its path, and not read as zero."""
    sysfs.put("class/hwmon/hwmon1", power1_input=2_500)
    (sysfs.root / "class/hwmon/hwmon1/power2_input").mkdir()
    meter = sysfs.meter({"name": "fan", "path": "class/hwmon/hwmon1/power*_input", "unit": "mW"})
    assert readings(meter) == {"fan:0": pytest.approx(2.5)}
    assert [m.name for m in meter.refused] == ["fan:1"]
    assert "power2_input" in meter.refused[0].reason


def test_lost_sensor_is_a_gap(sysfs: Sysfs) -> None:
    """A sensor that disappears during a run is lost, and the others are still read."""
    directory = sysfs.put("class/hwmon/hwmon1", a=1, b=2)
    meter = sysfs.meter({"name": "x", "path": "class/hwmon/hwmon1/*", "unit": "W"})
    (directory / "a").unlink()
    gone, kept = meter.read()
    assert isinstance(gone, Gap)
    assert kept == pytest.approx(2.0)
    meter.close()
