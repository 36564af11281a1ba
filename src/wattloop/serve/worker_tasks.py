"""Tasks of the server's worker process; `worker` starts it and sends lines of JSON.

The process limits itself before it reads anything: its memory, the time of each task, and what a
name may mean. Models are names of the table or saved workloads, never Python code.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.user_code import forbid_user_code

NICENESS = 5
"""Pages and deliveries come first."""
SLACK_S = 5
"""The server ends a task that takes too long; by itself the process ends a little later."""


def forecast(
    steps: int | None = None, grid: dict[str, Any] | None = None, **question: Any
) -> dict[str, Any]:
    """Predict a step, and a run of many: as the API returns it, and as parts of a page."""
    from wattloop.core.settings import Settings
    from wattloop.predict.forecaster import Forecaster
    from wattloop.predict.request import Question
    from wattloop.predict.run_total import RunLength
    from wattloop.report.forecast import forecast_blocks
    from wattloop.serve.blocks import blocks_html

    forecaster: Forecaster = _kept.setdefault("forecaster", Forecaster(cache=True))
    length = RunLength(steps, settings=Settings(**(grid or {})))
    found = length.of(forecaster.answer(Question(**question)))
    return {"answer": found.to_dict(), "html": str(blocks_html(forecast_blocks(found)))}


def serving(**question: Any) -> dict[str, Any]:
    """Predict a served model, and the power limit with the least energy."""
    from dataclasses import replace

    from wattloop.hardware.gpus import gpu_named
    from wattloop.predict.serving import ServingQuestion, least_energy, predict_serving
    from wattloop.report.forecast import serving_blocks
    from wattloop.serve.blocks import blocks_html

    asked = ServingQuestion(**question)
    found, best = predict_serving(asked), None
    if asked.cap_w is None:
        gpu = gpu_named(asked.gpu)
        best = least_energy(gpu, lambda cap_w: predict_serving(replace(asked, cap_w=cap_w)))
    return {"answer": found.to_dict(), "html": str(blocks_html(serving_blocks(found, best)))}


def layouts(**question: Any) -> dict[str, Any]:
    """Search layouts of a training over many GPUs."""
    from wattloop.predict.parallel.plan import PlanQuestion, plan
    from wattloop.report.forecast import plan_blocks
    from wattloop.serve.blocks import blocks_html

    found = plan(PlanQuestion(**question))
    return {"answer": found.to_dict(), "html": str(blocks_html(plan_blocks(found)))}


def workload(model: str, precision: str, sequence: int | None, batch: int) -> dict[str, Any]:
    from wattloop.predict.workload.files import workload_values
    from wattloop.schedule.estimates.analytic import kind_workload
    from wattloop.schedule.jobs.kind import JobKind

    kind = JobKind(model, precision, sequence=sequence)
    return dict(workload_values(kind_workload(kind, batch)))


def over_time(
    spec: dict[str, Any], outcome: dict[str, Any], given: str, policy: str, seed: int
) -> dict[str, Any]:
    """Simulate one policy on one seed of a stored campaign again."""
    from wattloop.report.simulated_power import over_time as simulated_again
    from wattloop.report.simulated_power import over_time_blocks
    from wattloop.serve.blocks import blocks_html

    shown = simulated_again(spec, outcome, given, policy, seed)
    return {
        "times_s": shown.times_s,
        "mean_w": shown.mean_w,
        "budget_w": shown.budget_w,
        "same_as_stored": shown.same,
        "html": str(blocks_html(over_time_blocks(shown))),
    }


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task for task in (forecast, serving, layouts, workload, over_time)
}
_kept: dict[str, Any] = {}


def main() -> None:
    """Answer tasks until the server closes the pipe."""
    limit_s, memory_b = float(sys.argv[1]), int(sys.argv[2])
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not an answer
    _limit(memory_b)
    forbid_user_code("a server runs no code that a stored text names")
    for line in iter(questions.readline, b""):
        signal.alarm(int(limit_s) + SLACK_S)  # by default its signal ends the process
        _answer(json.loads(line), answers)
        signal.alarm(0)


def _limit(memory_b: int) -> None:
    import resource

    for limit, value in ((resource.RLIMIT_DATA, memory_b), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):  # a lower one is in force already
            resource.setrlimit(limit, (value, value))
    with suppress(OSError):
        os.nice(NICENESS)


def _answer(question: dict[str, Any], answers: BinaryIO) -> None:
    try:
        found = {"result": TASKS[question.pop("task")](**question)}
        text = json.dumps(found)
    except MemoryError:
        raise SystemExit(1) from None  # the server says so; this process has no room to
    except ConfigError as error:
        text = json.dumps({"refused": str(error)})
    except (Exception, RecursionError) as error:  # noqa: BLE001 - stored text may be anything
        said = str(error) if isinstance(error, WattloopError) else type(error).__name__
        text = json.dumps({"refused": f"it cannot be computed from what is stored ({said})"})
    answers.write(text.encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
