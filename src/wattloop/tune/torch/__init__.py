"""Trainings in PyTorch: data that stays on the device, and a bench that runs segments of them.

- `flexible_batches`  batches of any size from data that was put on the device once
- `chunk_queue`       the same for data that does not fit: chunks come and go, first in, first out
- `tensor_tree`       tensors, and tuples, lists and dicts of them
- `training`          what a training is made of
- `candidate`         one training: model, optimizer, random states, and going back
- `rate_sweep`        learning rates tried one after the other
- `energy`            joules of stretches of time, and how sure they are
- `bench`             segments of trainings

Nothing here imports torch before it is used.
"""
