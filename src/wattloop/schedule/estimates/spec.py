"""Schema of a scenario's `oracle` section: source of time and power, and their noise."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from wattloop.core.files import user_path
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.yaml_model import StrictModel, number, one_or_many

Files = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(one_or_many)]


OTHERS = {
    "analytic": ("throughputs", "cap_curves", "nearest"),
    "table": ("estimator", "calibrations"),
}
"""Kind of oracle -> settings that only the other kind has."""


class OracleSpec(StrictModel):
    """Settings of an oracle: `analytic` predicts, `table` uses measurements.

    `noise` is the error of the estimates that policies see. A table without `throughputs` is the
    shipped one, which is predicted.
    """

    kind: Literal["analytic", "table"] = "analytic"
    noise: Annotated[float, BeforeValidator(number), Field(ge=0, lt=1)] = 0.0
    estimator: Literal["kernels", "adept", "roofline"] = "kernels"
    calibrations: dict[str, str] = Field(default_factory=dict)
    throughputs: Files = Field(default_factory=list)
    cap_curves: Files = Field(default_factory=list)
    nearest: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _of_its_kind(self) -> "OracleSpec":
        for name in OTHERS[self.kind]:
            if name in self.model_fields_set and getattr(self, name):
                other = "table" if self.kind == "analytic" else "analytic"
                raise ValueError(f"{name} is for kind: {other}; leave it out, or change the kind")
        if self.cap_curves and not self.throughputs:
            raise ValueError("cap_curves go with throughputs; give those as well")
        if self.nearest and not self.cap_curves:
            raise ValueError("nearest chooses among cap_curves; give those as well")
        return self

    def truth(self, cluster: Cluster) -> Oracle:
        if self.kind == "table":
            return self._table(cluster)
        from wattloop.schedule.estimates.analytic import AnalyticOracle
        from wattloop.schedule.estimates.oracle import CachedOracle

        exact = AnalyticOracle(cluster, estimator=self.estimator, calibrations=self.calibrations)
        return CachedOracle(exact)

    def seen(self, truth: Oracle, seed: int) -> Oracle:
        if not self.noise:
            return truth
        from wattloop.schedule.estimates.noisy import NoisyOracle

        return NoisyOracle(truth, seed=seed, share=self.noise)

    def located(self, folder: Path) -> "OracleSpec":
        """Resolve files relative to `folder`, the scenario's folder."""

        def found(name: str) -> str:
            return str(folder / user_path(name))

        return self.model_copy(
            update={
                "calibrations": {name: found(path) for name, path in self.calibrations.items()},
                "throughputs": [found(path) for path in self.throughputs],
                "cap_curves": [found(path) for path in self.cap_curves],
            }
        )

    def files(self) -> list[Path]:
        """Return the files that it reads, with folders expanded."""
        from wattloop.schedule.estimates.cap_curves import curve_files

        curves = curve_files(self.cap_curves)
        named = [*self.calibrations.values(), *self.throughputs, *curves]
        return [user_path(name) for name in named]

    def _table(self, cluster: Cluster) -> Oracle:
        from wattloop.schedule.estimates.cap_curves import load_cap_curves
        from wattloop.schedule.estimates.table import TableOracle
        from wattloop.schedule.estimates.throughputs import CAPS, THROUGHPUTS, load_throughputs

        throughputs, cap_curves = self.throughputs, self.cap_curves
        if not throughputs:
            throughputs, cap_curves = [str(THROUGHPUTS)], [str(CAPS)]
        curves = load_cap_curves(cap_curves, self.nearest) if cap_curves else None
        return TableOracle(cluster, load_throughputs(throughputs), curves)
