"""How constants of the kernels model follow from a data sheet: a few numbers, as a file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["FITTED", "SpecRules", "shipped_rules"]

SHIPPED = Path(__file__).with_name("spec_rules.yaml")

FITTED: Mapping[str, float] = {
    "products": 0.06,
    "spare_issue": 0.04,
    "streams": 0.08,
    "joules": 0.20,
}
"""What measured steps of other GPUs may change, with its standard deviation in logarithms. The
rest is physics that so few GPUs cannot tell apart."""


@dataclass(frozen=True, slots=True)
class SpecRules:
    """What is known beyond general shares (`spec_shares`) and data sheets.

    Attributes:
        products: factor on the share of the peak that products reach.
        spare_issue: another for fp32 on the ordinary units, where a scheduler has 16 lanes: one
            instruction keeps them busy for two cycles, so loads and integers go in between. With
            32 lanes (Pascal, Ada, Hopper) every cycle that issues something else is lost.
        streams: factor on the share of the memory's bandwidth.
        joules: factor on the energy of a FLOP beyond what process and clock say.
        process_exponent: of the feature size, in energy per FLOP.
        clock_exponent: of the boost clock, in energy per FLOP: it takes voltage to be quick.
        gddr_joules: energy of a byte of GDDR against one of HBM, most of which is spent on chip.
        intervals: residuals of GPUs that were left out, for intervals.
        made: what the numbers were fitted to.
    """

    products: float = 1.0
    spare_issue: float = 1.15
    streams: float = 1.0
    joules: float = 1.0
    process_exponent: float = 0.8
    clock_exponent: float = 1.2
    gddr_joules: float = 1.3
    intervals: Mapping[str, Any] = field(default_factory=dict, compare=False)
    made: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def changed(self, **numbers: float) -> "SpecRules":
        """These rules with other numbers."""
        return replace(self, **numbers)  # type: ignore[arg-type]  # every number is a float

    def save(self, path: Path) -> None:
        """Writes the file that `load` reads."""
        import yaml

        plain = {
            name: float(f"{value:.4g}") if isinstance(value, float) else dict(value)
            for name, value in asdict(self).items()
        }
        path.write_text(yaml.safe_dump(plain, sort_keys=False, width=96), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "SpecRules":
        """Reads the file that `save` wrote."""
        import yaml

        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        return cls(**{f.name: plain[f.name] for f in fields(cls) if f.name in plain})


@lru_cache(maxsize=1)
def shipped_rules() -> SpecRules:
    """The rules that come with the package, fitted to every GPU of public measurements."""
    return SpecRules.load(SHIPPED)
