"""Promises of step detection: which optimizer calls are the steps of a program."""

import gc
from typing import Any

from wattloop.integrations.step_hook.torch_steps import OptimizerSteps


class Recorder:
    def __init__(self) -> None:
        self.count = 0
        self.evaluations: list[str] = []

    def step(self, time_s: float | None = None, device: int | None = None) -> None:
        self.count += 1

    def begin_evaluation(self) -> None:
        self.evaluations.append("begin")

    def end_evaluation(self) -> None:
        self.evaluations.append("end")


class Optimizer:
    def __init__(self, *parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters)}]


def stepped(*order: Optimizer) -> int:
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    for optimizer in order:
        steps.after_step(optimizer, (), {})
    return recorder.count


def test_two_networks_that_train_each_other() -> None:
    """The steps of a GAN are those of its first optimizer."""
    first, second = Optimizer(), Optimizer()
    assert stepped(*[first, second] * 50) == 50
    assert stepped(*[first, *[second] * 4] * 50) == 50


def test_an_optimizer_for_each_parameter() -> None:
    """Optimizers that step in the backward pass are one step together."""
    many = [Optimizer() for _ in range(300)]
    assert stepped(*many[:1] * 2, *many * 10) == 12


def test_models_trained_one_after_the_other() -> None:
    """The next model's optimizer takes over, whether or not the first one still exists."""
    first, second = Optimizer(), Optimizer()
    assert stepped(*[first] * 30, *[second] * 30) == 60
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    for _ in range(3):
        optimizer = Optimizer()
        for _ in range(10):
            steps.after_step(optimizer, (), {})
        del optimizer
        gc.collect()
    assert recorder.count == 30


class Module:
    def __init__(self, *parameters: Any) -> None:
        self._parameters = parameters

    def parameters(self) -> tuple[Any, ...]:
        return self._parameters


def test_only_the_trained_model_evaluates() -> None:
    """A frozen teacher that is put into eval mode does not begin an evaluation."""
    weight, frozen = object(), object()
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    steps.after_mode(Module(weight), False)
    assert recorder.evaluations == [], "before the first step nothing is trained"
    steps.after_step(Optimizer(weight), (), {})
    recorder.evaluations.clear()
    steps.after_mode(Module(frozen), False)
    assert recorder.evaluations == []
    steps.after_mode(Module(weight), False)
    assert recorder.evaluations == ["begin"]


def test_a_program_that_updates_its_weights_by_hand() -> None:
    """Its backward passes are its steps, as soon as they cannot be accumulated gradients."""
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    for _ in range(10):
        steps.after_backward()
    assert recorder.count == 0, "an optimizer may still step"
    steps.finish()
    assert recorder.count == 10
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    for _ in range(400):
        steps.after_backward()
    steps.finish()
    assert recorder.count == 400


def test_accumulated_gradients_are_one_step() -> None:
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    optimizer = Optimizer()
    for _ in range(5):
        for _ in range(8):
            steps.after_backward()
        steps.after_step(optimizer, (), {})
    steps.finish()
    assert recorder.count == 5


def call(steps: OptimizerSteps, optimizer: Optimizer, levels: int, *, fails: bool = False) -> None:
    """Call `step` as torch does, with the calls of base classes inside."""
    before = steps.before_step
    [before(optimizer, (), {}) for _ in range(1)]  # a frame between, as the guard is
    if levels > 1:
        call(steps, optimizer, levels - 1)
    if not fails:
        steps.after_step(optimizer, (), {})


def test_a_subclass_that_calls_the_step_of_its_base_class() -> None:
    """One step, not two; a step that raised is not counted."""
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    optimizer = Optimizer()
    for _ in range(5):
        call(steps, optimizer, 3)
    assert recorder.count == 5
    call(steps, optimizer, 1, fails=True)
    call(steps, optimizer, 2)
    assert recorder.count == 6


def test_short_models_in_sequence_are_all_counted() -> None:
    """This includes models with too few steps to take over, and the last one."""
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    models = [Optimizer() for _ in range(5)]
    for model, count in zip(models, (3, 2, 4, 1, 3), strict=True):
        for _ in range(count):
            steps.after_step(model, (), {})
    steps.finish()
    assert recorder.count == 13


def test_a_frozen_layer_in_eval_mode_is_not_an_evaluation() -> None:
    """A batch norm that stays in eval mode is a small part of the trained model."""
    weights = [object() for _ in range(20)]
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    steps.after_step(Optimizer(*weights), (), {})
    recorder.evaluations.clear()
    steps.after_mode(Module(*weights[:2]), False)
    assert recorder.evaluations == []
    steps.after_mode(Module(*weights), False)
    assert recorder.evaluations == ["begin"]


def test_backward_passes_of_a_program_with_an_optimizer_are_not_steps() -> None:
    """Neither the passes of accumulated gradients nor those of an explanation in eval mode
    count.
    """
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    steps.exist = True
    for _ in range(600):
        steps.after_backward()
    steps.finish()
    assert recorder.count == 0
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    steps.after_mode(Module(), False)
    for _ in range(20):
        steps.after_backward()
    steps.finish()
    assert recorder.count == 0


def test_backward_passes_of_another_framework_are_not_steps() -> None:
    """Keras calls torch's backward pass and counts its batches itself."""
    recorder = Recorder()
    steps = OptimizerSteps(recorder)  # type: ignore[arg-type]
    for _ in range(400):
        steps.after_backward()
        recorder.step()
    steps.finish()
    assert recorder.count == 400
