"""Test double of the cpufreq sysfs tree."""

from dataclasses import dataclass
from pathlib import Path

GOVERNORS = "performance powersave ondemand conservative schedutil userspace"


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy of the tree."""

    directory: Path

    def read(self, leaf: str) -> str:
        """Return the content of a file."""
        return (self.directory / leaf).read_text().strip()

    def put(self, leaf: str, value: object) -> None:
        """Change a file, as another process would."""
        (self.directory / leaf).write_text(f"{value}\n")


class CpufreqTree:
    """Builder of `ROOT/devices/system/cpu/cpufreq`; give `ROOT` to `Host(sysfs=...)`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.policies: list[Policy] = []

    def add_policy(
        self,
        number: int | None = None,
        *,
        governor: str = "powersave",
        bounds_mhz: tuple[float, float] = (800, 3000),
        limits_mhz: tuple[float, float] = (800, 3500),
        governors: str = GOVERNORS,
    ) -> Policy:
        """Add a group of cores with a clock of its own."""
        index = len(self.policies) if number is None else number
        policy = Policy(self.root / f"devices/system/cpu/cpufreq/policy{index}")
        policy.directory.mkdir(parents=True)
        policy.put("scaling_governor", governor)
        policy.put("scaling_available_governors", governors)
        policy.put("scaling_driver", "acpi-cpufreq")
        for leaf, value_mhz in zip(("min", "max"), bounds_mhz, strict=True):
            policy.put(f"scaling_{leaf}_freq", round(value_mhz * 1e3))
        for leaf, value_mhz in zip(("min", "max"), limits_mhz, strict=True):
            policy.put(f"cpuinfo_{leaf}_freq", round(value_mhz * 1e3))
        self.policies.append(policy)
        return policy

    def all(self, leaf: str) -> list[str]:
        """Return a file's content in every policy."""
        return [policy.read(leaf) for policy in self.policies]
