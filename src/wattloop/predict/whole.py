"""A forecast of a step, widened to the whole node and to the whole run."""

from dataclasses import dataclass, field, replace

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.dimms import dimms_from_setting
from wattloop.hardware.gpus import Gpu
from wattloop.predict.forecast import Forecast
from wattloop.predict.node import node_prediction
from wattloop.predict.node_parts import NodeParts, typical_node
from wattloop.predict.run_total import check_extent, run_total, steps_of

__all__ = ["Extent"]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is asked for: a step, a run of so many, GPUs alone or their nodes.

    Attributes:
        steps: optimizer steps of the run; or
        epochs, samples: passes over a data set of so many samples.
        node: whether the whole node counts, not only its GPUs.
        settings: tariff, carbon, PUE, and what is known of the node.
    """

    steps: int | None = None
    epochs: float | None = None
    samples: int | None = None
    node: bool = False
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        check_extent(steps=self.steps, epochs=self.epochs, samples=self.samples)
        if self.steps is not None and (self.epochs is not None or self.samples is not None):
            raise ConfigError(
                f"steps {self.steps}: give the number of steps, or epochs and samples, not both"
            )
        for name, other in (("epochs", "samples"), ("samples", "epochs")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise ConfigError(
                    f"{name} {getattr(self, name):g}: give {other} as well: steps are epochs x "
                    "samples / batch"
                )

    def of(self, forecast: Forecast) -> Forecast:
        """The forecast with node and run, as far as they are asked for."""
        node = None
        if self.node:
            parts = _parts(forecast.placement.gpu, self.settings)
            node = node_prediction(forecast.prediction, parts)
        if self.steps is None and self.epochs is None:
            return replace(forecast, node=node)
        steps = steps_of(
            steps=self.steps,
            epochs=self.epochs,
            samples=self.samples,
            global_batch=forecast.samples,
        )
        run = run_total(forecast.prediction, steps, self.settings, node=node)
        return replace(forecast, node=node, run=run)


def _parts(gpu: Gpu, settings: Settings) -> NodeParts:
    """A usual server of that GPU, with what the settings say of theirs."""
    parts = replace(
        typical_node(gpu),
        overhead_w=settings.node_overhead_w,
        psu_efficiency=settings.psu_efficiency,
    )
    if settings.dimms:
        parts = replace(parts, dimms=dimms_from_setting(settings.dimms))
    return parts
