"""Callback for the Hugging Face `Trainer`.

from wattloop.tune.callbacks.huggingface import TuneCallback

def train(trial):
    arguments = TrainingArguments(..., eval_strategy="epoch", learning_rate=trial["lr"])
    Trainer(..., args=arguments, callbacks=[TuneCallback(trial)]).train()

The search's metric is one of the trainer's names, such as `eval_loss` or `eval_accuracy`.
"""

from typing import Any

from transformers import TrainerCallback

from wattloop.tune.trial import Trial, current_trial


class TuneCallback(TrainerCallback):  # type: ignore[misc] # transformers is not typed here
    """Reports every evaluation to `trial`, or `current_trial()`, in the first process of a job."""

    def __init__(self, trial: Trial | None = None) -> None:
        self.trial = current_trial() if trial is None else trial

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.max_steps and state.num_train_epochs:
            self.trial.expect_steps(state.max_steps / state.num_train_epochs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trial.step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Report the training loss; `on_evaluate` reports evaluations."""
        numbers = _numbers(logs)
        if state.is_world_process_zero and not any(n.startswith("eval_") for n in numbers):
            self.trial.report(**numbers)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            self.trial.report(epoch=float(state.epoch or 0.0), **_numbers(metrics))


def _numbers(logs: Any) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in (logs or {}).items()
        if name != "epoch" and isinstance(value, int | float)
    }
