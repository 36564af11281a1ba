"""Test double of the amdgpu driver's sysfs tree."""

from pathlib import Path

SCLK_MHZ = (500, 800, 1100, 1400, 1700, 2100)
MCLK_MHZ = (400, 700, 900, 1600)


class AmdgpuCard:
    """One card: `device` is its directory."""

    def __init__(self, device: Path) -> None:
        self.device = device
        self.hwmon = device / "hwmon" / "hwmon3"

    def read(self, leaf: str) -> str:
        """Return the content of a file of the card; `power1_...` are in its hwmon directory."""
        return self._path(leaf).read_text().strip()

    def put(self, leaf: str, text: object) -> None:
        """Change a file, as another process would."""
        self._path(leaf).write_text(f"{text}\n")

    def render(self) -> None:
        """Do as the driver after a write: list all levels, with the highest allowed one in use."""
        for leaf, clocks_mhz in (("pp_dpm_sclk", SCLK_MHZ), ("pp_dpm_mclk", MCLK_MHZ)):
            text = self.read(leaf)
            if "Mhz" not in text:
                self.put(leaf, _levels(clocks_mhz, max(map(int, text.split()))))

    def _path(self, leaf: str) -> Path:
        return (self.hwmon if leaf.startswith("power1_") else self.device) / leaf


class AmdgpuTree:
    """Builder of `ROOT/class/drm/cardN`; give `ROOT` to `Host(sysfs=...)`."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.cards: list[AmdgpuCard] = []

    def add_card(
        self, *, cap_w: float = 300, limits_w: tuple[float, float] = (150, 350), mode: str = "auto"
    ) -> AmdgpuCard:
        """Add a discrete card."""
        number = len(self.cards)
        home = self.root / f"devices/pci0000:00/0000:{number + 3:02x}:00.0"
        (self.root / "class/drm" / f"card{number}").mkdir(parents=True)
        card = AmdgpuCard(home)
        card.hwmon.mkdir(parents=True)
        (self.root / "class/drm" / f"card{number}" / "device").symlink_to(home)
        card.put("vendor", "0x1002")
        for leaf, value_w in (
            ("", cap_w),
            ("_min", limits_w[0]),
            ("_max", limits_w[1]),
            ("_default", cap_w),
        ):
            card.put(f"power1_cap{leaf}", round(value_w * 1e6))
        card.put("power_dpm_force_performance_level", mode)
        card.put("pp_dpm_sclk", _levels(SCLK_MHZ, 1))
        card.put("pp_dpm_mclk", _levels(MCLK_MHZ, 0))
        self.cards.append(card)
        return card


def _levels(clocks_mhz: tuple[int, ...], in_use: int) -> str:
    return "\n".join(
        f"{number}: {mhz}Mhz{' *' if number == in_use else ''}"
        for number, mhz in enumerate(clocks_mhz)
    )
