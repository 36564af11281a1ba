"""Isolation of tests: each has the machine for itself, and concurrent runs are not seen."""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch is imported, here or in a program that a test starts: the threads of its small
# operations wait for each other in a loop, at a multiple of the processor time where other tests
# run as well (4 times in tests/predict/calibrate/test_host_speed.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Keras would look for TensorFlow, which is not installed, and its tests would be skipped.
os.environ.setdefault("KERAS_BACKEND", "torch")

# Tests start thousands of programs. Where compiled modules are not written, each program compiles
# the package again, at twice the processor time of `wattloop run`.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def _memory() -> str | None:
    """Return the folder in memory, where it is large and programs in it can be started."""
    with contextlib.suppress(OSError):
        found = os.statvfs("/dev/shm")
        is_large = found.f_bavail * found.f_frsize >= 4 << 30
        if is_large and not found.f_flag & os.ST_NOEXEC and os.access("/dev/shm", os.W_OK):
            return "/dev/shm"
    return None


# Folders of tests are made there: a new store on a disk waits ten times as long for it.
if (memory := _memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory)

# Until the tests are collected: importing modules leaves hardly any garbage.
gc.disable()

# A shell ignores Ctrl-C in its background processes, and every program that a test starts and
# interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST_FIRST = (
    *("tests/cap/saver/test_saving_hook.py", "tests/serve/test_browser.py"),
    *("tests/serve/test_contract.py", "tests/test_transcripts.py", "tests/test_sources.py"),
    *("tests/cli/test_terminals.py", "tests/integrations/step_hook/test_program_steps.py"),
    *("tests/integrations/test_each_joule_once.py", "tests/test_doc_outputs.py"),
    *("tests/serve/test_pages.py", "tests/serve/test_first_look.py", "tests/cli/test_tune.py"),
    *("tests/benchmarks/test_tune_h200.py", "tests/predict/sources/test_script.py"),
    *("tests/benchmarks/test_measure_overhead.py", "tests/serve/test_journal_fuzz.py"),
    *("tests/test_readme.py", "tests/schedule/slurm/test_driver_on_slurm.py"),
    *("tests/fleet/delivery/test_outages.py", "tests/tune/executors/test_ray.py"),
    *("tests/cli/test_predict.py", "tests/test_examples.py"),
    *("tests/benchmarks/test_measure_faults.py", "tests/measure/test_process_share.py"),
    *("tests/cli/test_cap.py", "tests/sweep/test_runner.py", "tests/predict/test_serving.py"),
    *("tests/test_known_faults.py", "tests/test_docs_site.py"),
    *("tests/predict/calibrate/test_h200_data.py", "tests/integrations/test_notebook.py"),
    *("tests/cli/test_sweep.py", "tests/fleet/agent/test_real_slurm.py"),
    *("tests/measure/test_sampler_process.py", "tests/cli/test_agent.py"),
    *("tests/test_other_systems.py", "tests/predict/sources/test_training_step.py"),
    *("tests/test_doc_shapes.py", "tests/schedule/kubernetes/test_driver.py"),
    *("tests/schedule/campaigns/test_runner.py", "tests/schedule/policies/test_helios.py"),
    *("tests/serve/test_stored_text.py", "tests/tune/test_faults.py"),
    *("tests/examples/test_greenscreen.py", "tests/cli/test_runs.py", "tests/tune/test_api.py"),
    *("tests/serve/test_oracle.py", "tests/measure/test_command.py"),
    *("tests/cli/test_run_full_disk.py", "tests/serve/test_nodes.py", "tests/cli/test_run.py"),
    *("tests/test_public_api.py", "tests/schedule/engine/test_properties.py"),
    *("tests/tune/test_optuna_export.py", "tests/cli/test_serve.py"),
    *("tests/integrations/test_distributed.py", "tests/tune/executors/test_command.py"),
    *("tests/cli/test_bad_machine.py", "tests/examples/test_denergium.py"),
    *("tests/cli/test_slurm_replay.py", "tests/measure/test_node_reader.py"),
    *("tests/cap/test_callback.py", "tests/cli/test_simulate.py"),
    *("tests/cap/test_finder_stop.py", "tests/predict/parallel/test_parallel_plan.py"),
    *("tests/tune/strategies/test_race.py", "tests/benchmarks/test_estimate_accuracy.py"),
    "tests/integrations/step_hook/test_hard_processes.py",
)
"""Files that take longest. One that begins last would leave the other workers idle."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = {config.rootpath / path: rank for rank, path in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the modules out of every collection of garbage from now on: there are a million
    objects, and a full collection takes half a second.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Share a cache folder among workers: traces and predictions do not depend on the test."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@pytest.fixture(scope="session", autouse=True)
def _runs_of_shared_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make a folder in which runs list themselves, for a machine that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATTLOOP_NODE_RUNS", str(tmp_path_factory.mktemp("node")))
        yield


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of its own in which runs list themselves."""
    folder = tmp_path_factory.mktemp("node")
    monkeypatch.setenv("WATTLOOP_NODE_RUNS", str(folder))
    return folder
