"""Training loops: one step and epoch hook, one file per framework.

- `hook`            the framework-neutral meter of a training: steps, epochs, live values
- `records`         what is known of a step and of an epoch
- `resolver`        finished steps turned into joules, in the background
- `timelines`       where the edges of steps lie: on the host's clock
- `cuda_timeline`, `clock_map`, `cuda_scalars`   the same on a GPU's own time line, without
  synchronising
- `torch_loop`, `huggingface`, `lightning`, `keras_callback`, `sklearn_fit`   the ways in
- `loggers`, `reporting`   MLflow, Weights & Biases, TensorBoard
- `step_energy`, `step_events`   joules of steps, and steps in the journal
- `distributed`, `ranks`, `job_table`   processes of one job: start and stop together, one table

Nothing here imports a framework before it is used.
"""
