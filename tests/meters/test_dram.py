"""Promises of the DRAM model: it reads modules and use, is marked modelled, and yields to
sensors.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.support.powercap_tree import PowercapTree
from tests.support.smbios import memory_device, write_table

from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.records import DomainKind, Gap, Provenance, Scope
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters import dram
from wattloop.meters.base import Context


class Machine:
    def __init__(self, root: Path) -> None:
        self.sysfs, self.procfs = root / "sys", root / "proc"
        self.sysfs.mkdir()
        self.procfs.mkdir()
        self.use(0.10)

    def use(self, fraction: float) -> None:
        available = round(100_000 * (1 - fraction))
        (self.procfs / "meminfo").write_text(
            f"MemTotal:   100000 kB\nMemFree:      1000 kB\nMemAvailable:  {available} kB\n"
        )

    def context(self, dimms: str = "") -> Context:
        return Context(Host(sysfs=self.sysfs, procfs=self.procfs), Settings(dimms=dimms))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_power_follows_modules_and_use(machine: Machine) -> None:
    """8 modules of 16 GiB: 32 W times the tier of the memory in use."""
    write_table(machine.sysfs, *[memory_device(16 * 1024)] * 8)
    (meter,) = dram.detect(machine.context())
    for fraction, power_w in ((0.02, 9.6), (0.10, 19.2), (0.20, 22.4), (0.40, 24.0), (0.90, 25.6)):
        machine.use(fraction)
        assert list(meter.read()) == [pytest.approx(power_w)]


def test_says_that_it_is_a_model_and_of_what(machine: Machine) -> None:
    """Provenance, stated error and the modules are part of the domain."""
    write_table(machine.sysfs, *[memory_device(16 * 1024)] * 8)
    (meter,) = dram.detect(machine.context())
    (domain,) = meter.domains
    assert (domain.name, domain.kind, domain.scope) == ("dram", DomainKind.GAUGE, Scope.DRAM)
    assert domain.provenance is Provenance.MODELLED
    assert domain.known_error == 0.7
    assert domain.source == "model of 8 x 16 GiB DDR4 (from SMBIOS)"


def test_laptop_memory_has_a_larger_error(machine: Machine) -> None:
    """No measurement exists to compare it with, and the domain says so."""
    write_table(machine.sysfs, memory_device(16 * 1024, type_code=0x23, form_code=0x0B))
    (meter,) = dram.detect(machine.context())
    assert meter.domains[0].known_error == 0.8


def test_users_setting_takes_precedence_over_the_firmware(machine: Machine) -> None:
    """The setting `dimms` is used unchanged; a wrong one is an error, not ignored."""
    write_table(machine.sysfs, memory_device(16 * 1024))
    (meter,) = dram.detect(machine.context(dimms="2x32"))
    assert list(meter.read()) == [pytest.approx(6.0)]
    assert "setting" in meter.domains[0].source
    with pytest.raises(ConfigError, match="8x32"):
        dram.detect(machine.context(dimms="lots"))


def test_dmidecode_runs_on_request(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dimms: dmidecode` starts that program, and its failure is the reason for a missing
    figure.
    """
    program = tmp_path / "bin" / "dmidecode"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf 'Handle 1\\nMemory Device\\n\\tSize: 32 GB\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (meter,) = dram.detect(machine.context(dimms="dmidecode"))
    assert meter.domains[0].source == "model of 1 x 32 GiB (from dmidecode)"
    program.write_text("#!/bin/sh\necho '/dev/mem: Permission denied' >&2; exit 1\n")
    with pytest.raises(MeterUnavailable, match="Permission denied") as caught:
        dram.detect(machine.context(dimms="dmidecode"))
    assert caught.value.parts == ("dram",)
    (machine.procfs / "cpuinfo").write_text("flags : fpu hypervisor\n")
    with pytest.raises(MeterUnavailable, match="virtual machine"):
        dram.detect(machine.context(dimms="dmidecode"))


def test_yields_to_rapl_but_serves_the_cross_check(machine: Machine) -> None:
    """Memory that RAPL measures is not modelled in addition; a package alone changes nothing."""
    tree = PowercapTree(machine.sysfs)
    package = tree.add_package(0)
    assert dram.detect(machine.context(dimms="8x16"))
    tree.add_child(package, "dram")
    with pytest.raises(MeterUnavailable, match=r"RAPL .* measures the memory") as caught:
        dram.detect(machine.context(dimms="8x16"))
    assert caught.value.parts == ()
    assert dram.detect_second_source(machine.context(dimms="8x16"))


def test_unreadable_rapl_dram_is_modelled(machine: Machine) -> None:
    """A dram zone that cannot be read does not leave the memory without a figure."""
    tree = PowercapTree(machine.sysfs)
    zone = tree.add_child(tree.add_package(0), "dram")
    zone.energy_file.unlink()
    zone.energy_file.mkdir()
    assert dram.detect(machine.context(dimms="8x16"))


def test_yields_to_grace(machine: Machine) -> None:
    """A Grace socket's power contains its memory."""
    chip = machine.sysfs / "class" / "hwmon" / "hwmon0"
    chip.mkdir(parents=True)
    for name, text in {
        "name": "power_meter", "power1_oem_info": "Grace Power Socket 0", "power1_average": "1",
    }.items():  # fmt: skip
        (chip / name).write_text(text + "\n")
    with pytest.raises(MeterUnavailable, match="Grace"):
        dram.detect(machine.context(dimms="8x16"))


def test_modules_of_a_virtual_machine_are_ignored(machine: Machine) -> None:
    """Hypervisors invent modules, so only the user's setting counts."""
    write_table(machine.sysfs, memory_device(16 * 1024, type_code=0x07))
    (machine.procfs / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu sse hypervisor\n")
    with pytest.raises(MeterUnavailable, match="virtual machine") as caught:
        dram.detect(machine.context())
    assert "share of the host" in caught.value.remedy
    assert dram.detect(machine.context(dimms="1x16"))


def test_no_modules_known_is_missing_with_remedy(machine: Machine) -> None:
    """Without any source of modules the memory is missing, with the setting that would help."""
    with pytest.raises(MeterUnavailable, match="no memory module is listed") as caught:
        dram.detect(machine.context())
    assert caught.value.parts == ("dram",)
    assert "WATTLOOP_DIMMS" in caught.value.remedy


def test_table_for_root_only_gives_the_command(machine: Machine) -> None:
    """As an ordinary user: the unreadable file is named with its chmod."""
    table = write_table(machine.sysfs, memory_device(16 * 1024))
    table.chmod(0o400)
    if os.getuid() == 0:
        temporary = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir())
        for folder in table.parents:
            if temporary in folder.parents:
                folder.chmod(folder.stat().st_mode | 0o055)
    else:
        table.chmod(0o000)
    program = f"""
import json, os
from pathlib import Path
from wattloop.core.errors import MeterUnavailable
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.meters import dram
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
host = Host(sysfs=Path({str(machine.sysfs)!r}), procfs=Path({str(machine.procfs)!r}))
try:
    dram.detect(Context(host))
except MeterUnavailable as error:
    print(json.dumps([error.reason, error.remedy]))
"""
    source = str(Path(dram.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    reason, remedy = json.loads(done.stdout)
    assert "is for root only" in reason
    assert f"sudo chmod a+r {table}" in remedy


def test_unreadable_use_is_a_gap(machine: Machine) -> None:
    """Without meminfo the power is missing, not that of an empty memory."""
    (meter,) = dram.detect(machine.context(dimms="8x16"))
    (machine.procfs / "meminfo").unlink()
    (reading,) = meter.read()
    assert isinstance(reading, Gap)
    with pytest.raises(MeterUnavailable, match="meminfo"):
        dram.detect(machine.context(dimms="8x16"))
