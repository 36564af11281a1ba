"""Trainings of frameworks as trials: one file each, loaded only where that framework is used.

- `keras`        `model.fit(..., callbacks=[TuneCallback()])`
- `huggingface`  `Trainer(..., callbacks=[TuneCallback()])`
- `lightning`    `Trainer(callbacks=[TuneCallback()])`
- `torch_loop`   a plain loop, with its checkpoint

Each reports the metrics of every epoch under the framework's own names, and its steps, to the trial
it is given, or to `current_trial()`: the same script runs in a search and by itself.
"""
