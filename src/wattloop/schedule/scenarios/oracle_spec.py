"""The `oracle` section of a scenario: where time and power come from, and how well known."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from wattloop.schedule.amounts import Strict, number
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["OracleSpec"]


class OracleSpec(Strict):
    """`analytic` predicts, `table` looks up what others measured; `noise` is what policies see."""

    kind: Literal["analytic", "table"] = "analytic"
    noise: Annotated[float, BeforeValidator(number), Field(ge=0, lt=1)] = 0.0
    estimator: Literal["kernels", "adept", "roofline"] = "kernels"
    calibrations: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    def truth(self, cluster: Cluster) -> Oracle:
        """What jobs truly take and draw."""
        from wattloop.schedule.oracle.analytic import AnalyticOracle

        return AnalyticOracle(cluster, estimator=self.estimator, calibrations=self.calibrations)

    def seen(self, truth: Oracle, seed: int) -> Oracle:
        """What policies are told."""
        if not self.noise:
            return truth
        from wattloop.schedule.oracle.noisy import NoisyOracle

        return NoisyOracle(truth, seed=seed, share=self.noise)

    def located(self, folder: Path) -> "OracleSpec":
        """With files found from `folder`, the scenario's own."""
        found = {name: str(folder / path) for name, path in self.calibrations.items()}
        return self.model_copy(update={"calibrations": found})

    def files(self) -> list[Path]:
        """Files it reads."""
        return [Path(path) for path in self.calibrations.values()]
