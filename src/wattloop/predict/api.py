"""Python API of a prediction: `wattloop.predict.predict()`."""

from collections.abc import Callable
from typing import Any

from wattloop.core.settings import Settings
from wattloop.predict.forecast import Forecast, RunLength
from wattloop.predict.forecaster import Forecaster
from wattloop.predict.request import Question


def predict(  # noqa: PLR0913 - most have a default
    model: Any,
    *,
    gpu: str = "h200",
    gpus: int = 1,
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
    batch: int | None = None,
    seq: int | None = None,
    image: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    style: str | None = None,
    accumulate: int | None = None,
    training: bool = True,
    cap_w: float | None = None,
    clock_mhz: float | None = None,
    samples_s: float | None = None,
    network_bytes_s: float | None = None,
    host_speed: float | None = None,
    head: str | None = None,
    estimator: str = "kernels",
    calibration: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    node: bool = False,
    settings: Settings | None = None,
) -> Forecast:
    """Predict time, power, energy and memory of one training step, without running it.

        forecast = predict(model, inputs=images, precision="bf16", gpu="h200")
        print(forecast.prediction.step_s, forecast.prediction.power_w, forecast.fits)

    Args:
        model: an `nn.Module`, a `Workload`, or a name: `hf:gpt2`, `torch:package.module:factory`,
            `file.py:factory`, `FILE.json` (a saved workload).
        gpu: name of the GPU, such as `h200`, or a YAML file that describes one.
        gpus: how many train together, data parallel; `batch` is that of each.
        inputs: of a module: a tensor, a tuple or a dict of them, best on the `meta` device.
            Guessed from its layers unless given.
        loss: of a module: takes its output; guessed from the output unless given.
        batch: samples of one pass, where `inputs` does not say it.
        seq: tokens of a sample.
        image: height and width in pixels.
        precision: `fp32` (the default), `tf32`, `bf16` or `fp16`.
        optimizer: `adamw` unless given.
        style: of the optimizer: `loop`, `foreach` (the default) or `fused`.
        accumulate: passes per optimizer step.
        training: False for the forward pass alone.
        cap_w: power limit of each GPU.
        clock_mhz: locked SM clock of each GPU.
        samples_s: the most samples a second that the data loader brings to a GPU.
        network_bytes_s: of a node towards the next, for more GPUs than the 8 of one node.
        host_speed: dispatch speed of the host, relative to the calibrated one (1, the default);
            `wattloop calibrate host` measures it.
        head: of a model named `hf:NAME`, such as `masked-lm`.
        estimator: `kernels`, `adept` or `roofline`.
        calibration: a file of constants, instead of those known for the GPU.
        steps: of the run, whose time, energy, cost and carbon are then in `run`.
        epochs: passes over the data, instead of `steps`; with `samples`.
        samples: of the data set.
        node: count host, memory, fans and power supply as well, in `node` and `run`.
        settings: tariff, carbon intensity and PUE for `run`; none unless given.

    Raises:
        ConfigError: a part of the question is wrong; the message names it and the remedy.
    """
    extent = RunLength(steps, epochs, samples, node, settings or Settings())
    question = Question(
        model=model,
        gpu=gpu,
        gpus=gpus,
        batch=batch,
        seq=seq,
        image=image,
        precision=precision,
        optimizer=optimizer,
        style=style,
        accumulate=accumulate,
        training=training,
        cap_w=cap_w,
        clock_mhz=clock_mhz,
        samples_s=samples_s,
        network_bytes_s=network_bytes_s,
        host_speed=host_speed,
        head=head,
        inputs=inputs,
        loss=loss,
        estimator=estimator,
        calibration=calibration,
    )
    return extent.of(Forecaster().answer(question))
