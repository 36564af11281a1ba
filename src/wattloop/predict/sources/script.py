"""Source of a training program: it runs until its first training step, which is traced instead.

`script_workload` starts the program in a process of its own; `python -m` this module runs there. It
watches for the first call of a model after an optimizer was made, lets everything from there be
fake, and ends the program when its optimizers have stepped. The model itself is never run.
"""

import gc
import json
import os
import runpy
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.process import ProcessGroup, last_lines
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.sources.source import needs_torch
from wattloop.predict.workload.files import load_workload, save_workload
from wattloop.predict.workload.workload import Workload

LIMIT_S = 600.0
"""How long a program may take until its first step, unless stated."""
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MOST_TRIES = 4


@dataclass(frozen=True)
class ScriptRun:
    """One run of a program, as its process reads it.

    Attributes:
        script, arguments: the program.
        folder: for results.
        gpu: that the program finds where the machine has none; empty for none.
        precision, compile: as asked for; empty where the program decides.
        merge, guess: as the tracer tries them.
        is_rank: whether the program finds the variables of torchrun.
    """

    script: str
    arguments: tuple[str, ...]
    folder: str
    gpu: str
    precision: str = ""
    compile: str = ""
    merge: bool = True
    guess: int = 0
    is_rank: bool = False


def script_workload(
    script: str,
    arguments: Sequence[str] = (),
    *,
    gpu: str = "h200",
    precision: str | None = None,
    compile: str | None = None,  # noqa: A002 - as torch calls it
    limit_s: float = LIMIT_S,
) -> Workload:
    """Trace the first training step of a program.

    The program runs as it is until its first call of a model, with its own side effects: files that
    it writes, data that it loads. Where this machine has no GPU, it finds one like `gpu`.

    Args:
        script: a Python file.
        arguments: of the program.
        gpu: that is predicted.
        precision: of a program without autocast; its own unless given.
        compile: mode of `torch.compile`; the program's own unless given.
        limit_s: how long it may take until its first step.

    Raises:
        ConfigError: the program ended before a step, took too long or cannot be traced; the message
            says why and what to do.
    """
    needs_torch("tracing a program")
    path = _checked(script)
    if not limit_s > 0:
        raise ConfigError(f"limit {limit_s:g}: must be above 0 seconds")
    with tempfile.TemporaryDirectory(prefix="wattloop-script-") as folder:
        run = ScriptRun(str(path), tuple(arguments), folder, gpu, precision or "", compile or "")
        begin_s = time.monotonic()
        for _ in range(MOST_TRIES):
            answer = _run(run, path.name, limit_s)
            change = answer.get("try_again")
            if not change:
                break
            run = replace(run, **change)
        if "error" in answer:
            raise ConfigError(f"script {path.name}: {answer['error']}")
        workload = load_workload(Path(folder, "workload.json"))
    took_s = time.monotonic() - begin_s
    notes = [f"script: {path.name} ran for {took_s:.0f} s", *answer["notes"]]
    if run.is_rank:
        notes.append(
            "script: it expects torchrun and ran as the only process; --gpus says how many train "
            "together"
        )
    return replace(workload, notes=(*notes, *workload.notes))


def _checked(script: str) -> Path:
    path = user_path(script)
    if path.is_file() and path.suffix == ".py":
        return path.resolve()
    words = script.split()
    if words and words[0] in LAUNCHERS:
        raise ConfigError(
            f"script {script}: name the Python file alone, such as --script train.py -- --epochs "
            f"3; {words[0]} is not needed, one process is enough"
        )
    if path.is_dir():
        raise ConfigError(f"script {script}: is a folder; name the Python file that trains")
    if not path.exists():
        where = "" if len(words) < 2 else "; arguments of the program come after --"
        raise ConfigError(f"script {script}: no such file{where}")
    raise ConfigError(f"script {script}: is not a Python file (.py)")


def _run(run: ScriptRun, name: str, limit_s: float) -> dict[str, Any]:
    """Run the program once; return its answer."""
    folder = Path(run.folder)
    folder.joinpath("run.json").write_text(json.dumps(asdict(run)))
    folder.joinpath("answer.json").unlink(missing_ok=True)
    environment = dict(os.environ)
    environment.setdefault("WANDB_MODE", "disabled")  # no run in a tracker for a prediction
    if run.is_rank:
        environment.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
        environment["MASTER_PORT"] = str(_free_port())
    command = [sys.executable, "-m", __name__, str(folder / "run.json")]
    output = folder / "output.txt"
    group = ProcessGroup(command, environment, output=output)
    try:
        if not group.wait(limit_s):
            group.stop()
            last = "".join(last_lines(output, 1))
            return {
                "error": f"no training step within {limit_s:g} s; allow more with --limit, or give "
                "the program less data to prepare" + (f"; it printed last: {last}" if last else "")
            }
    finally:
        group.stop()
    try:
        return dict(json.loads(folder.joinpath("answer.json").read_text()))
    except (OSError, ValueError):
        last = " | ".join(last_lines(output, 2))
        how = f"signal {group.signal}" if group.signal else f"exit code {group.exit_code}"
        return {
            "error": f"ended with {how} before a training step"
            + (f"; it printed last: {last}" if last else "")
        }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# In the process of the program.


class _Program:
    """The program, from its start to its first step."""

    def __init__(self, run: ScriptRun) -> None:
        import torch

        from wattloop.predict.workload.trace import TraceRequest
        from wattloop.predict.workload.tracing.constant_tracking import Guesses
        from wattloop.predict.workload.tracing.user_step import StepCapture

        self._run = run
        self._torch = torch
        self._made: list[weakref.ref[Any]] = []
        self.guesses = Guesses(run.guess)
        request = TraceRequest(
            model=None, inputs=None, targets=None, loss=None, precision=run.precision or "fp32",
            optimizer=None, style="foreach", training=True, accumulate=1,
            name=Path(run.script).name, merge=run.merge,
            compile="" if run.compile == "none" else run.compile, step=_nothing,
        )  # fmt: skip
        self.capture = StepCapture(request, self.guesses)
        self.capture.is_waiting = self._is_waiting
        self.capture.on_end = self._end
        self.capture.on_real_backward = self._differentiated
        self.has_begun = False
        self.notes: list[str] = []

    def run(self) -> None:
        """Run the program; the process ends with its first step."""
        run = self._run
        sys.argv = [run.script, *run.arguments]
        sys.path[0] = str(Path(run.script).parent)
        with ExitStack() as stack:
            gpu = gpu_named(run.gpu)
            if not self._torch.cuda.is_available():
                self.notes.append(f"script: no GPU here; it saw a pretended {gpu.product}")
                stack.enter_context(pretended_cuda(self._torch, gpu))
            for owner, name, replacement in (
                (self._torch.optim.Optimizer, "__init__", self._optimizer_made),
                (self._torch.utils.data.DataLoader, "__init__", _loader_made),
            ):
                stack.enter_context(_replaced(owner, name, replacement))
            stack.enter_context(_one_process(self._torch))
            stack.enter_context(self.capture.installed())
            runpy.run_path(run.script, run_name="__main__")

    def _optimizer_made(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._made.append(weakref.ref(optimizer))

    def _is_waiting(self) -> bool:
        """Return whether no optimizer was made yet, and weights are not updated by hand."""
        found = [each for ref in self._made if (each := ref()) is not None]
        self.capture.expected = [each for each in found if _trains(each)]
        self.has_begun = self.has_begun or bool(self.capture.expected) or self.capture.by_hand
        return not self.has_begun

    def _differentiated(self) -> None:
        """Learn from a backward pass without an optimizer that weights are updated by hand."""
        if not self.has_begun and not self.capture.by_hand:
            self.capture.by_hand = True
            self.notes.append(
                "script: it makes no optimizer of torch; its first step ran for real, and its "
                "second one was traced, from one call of the model to the next"
            )

    def _end(self) -> None:
        workload = self.capture.workload()
        save_workload(workload, Path(self._run.folder, "workload.json"))
        if not self.capture.by_hand:
            self.notes.insert(
                0,
                "script: its first training step was traced; nothing was trained or run",
            )
        self.answer(notes=self.notes)

    def answer(self, **answer: Any) -> None:
        """Write the answer and end the process at once: nothing more of the program runs."""
        Path(self._run.folder, "answer.json").write_text(json.dumps(answer))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def explain(self, problem: BaseException) -> dict[str, Any]:
        """Return the answer to an error of the program."""
        from wattloop.predict.workload.tracing.step import NotWhenSkipping
        from wattloop.predict.workload.tracing.user_step import user_line

        run, text = self._run, f"{type(problem).__name__}: {problem}"
        text = text.strip().splitlines()[0][:300]
        place = user_line(problem)
        at = f" at {place}" if place else ""
        if isinstance(problem, SystemExit):
            return {"error": self._exited(problem)}
        if not run.is_rank and any(name in str(problem) for name in RANK_VARIABLES):
            return {"try_again": {"is_rank": True}}
        if isinstance(problem, ModuleNotFoundError):
            return {"error": f"needs {problem.name}, which is not installed here: pip install it"}
        if not self.has_begun:
            return {"error": f"failed before a training step{at}: {text}{_hint(text)}"}
        if run.merge and (isinstance(problem, NotWhenSkipping) or self.capture.has_skipped):
            return {"try_again": {"merge": False}}
        if self.guesses.guessed and not run.guess:
            return {"try_again": {"guess": 1}}
        if isinstance(problem, ConfigError):
            return {"error": str(problem)}
        return {"error": f"its step cannot be traced: {self.capture.explain(problem)}{_hint(text)}"}

    def _exited(self, problem: SystemExit | None) -> str:
        code = None if problem is None else problem.code
        said = last_lines(Path(self._run.folder, "output.txt"), 1)
        last = f"; it printed last: {said[0]}" if said else ""
        if code == 2:
            return f"did not accept its arguments{last}; give them after --"
        if self.capture.passes:
            return (
                f"ended without a step of an optimizer of torch{last}; a step that updates weights "
                "by other means can be given to predict(step=...) in Python"
            )
        if not self.has_begun:
            return (
                f"ended without making an optimizer{last}; does it train, and only under other "
                "arguments? Give them after --"
            )
        return f"ended before a training step{last}; check its arguments and its data"

    def ended(self) -> dict[str, Any]:
        return {"error": self._exited(None)}


def _nothing() -> None:
    return None


def _trains(optimizer: Any) -> bool:
    return any(each.requires_grad for group in optimizer.param_groups for each in group["params"])


def _hint(text: str) -> str:
    if "CUDA" in text or "NVIDIA" in text or "nccl" in text.lower():
        return "; it needs a real GPU before its first step: run this where there is one"
    if "out of memory" in text or "MemoryError" in text:
        return "; its weights do not fit into this machine's memory: build them on the meta device"
    if "ConnectionError" in text or "offline" in text.lower() or "resolve" in text:
        return "; it needs the network, for data or a model, before its first step"
    return ""


def _loader_made(original: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
    """Make a data loader without worker processes: one batch is enough."""
    kwargs.update(num_workers=0, pin_memory=False, persistent_workers=False, prefetch_factor=None)
    kwargs.pop("multiprocessing_context", None)
    original(loader, *args[:5], **kwargs)


@contextmanager
def _replaced(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _one_process(torch: Any) -> Iterator[None]:
    """Let a program of several processes be the only one, on the CPU."""
    distributed = torch.distributed
    if not distributed.is_available():
        yield
        return

    def group_made(original: Any, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return original("gloo", *args, **kwargs)

    def wrapped(original: Any, wrapper: Any, module: Any, *_: Any, **kwargs: Any) -> None:
        kept = {key: kwargs[key] for key in ("find_unused_parameters",) if key in kwargs}
        original(wrapper, module, **kept)

    with (
        _replaced(distributed, "init_process_group", group_made),
        _replaced(torch.nn.parallel.DistributedDataParallel, "__init__", wrapped),
    ):
        yield


CAPABILITIES = {
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
}


class _Idle:
    """Stream or event of a GPU that is not there."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> "_Idle":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def elapsed_time(self, _: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


@contextmanager
def pretended_cuda(torch: Any, gpu: Gpu) -> Iterator[None]:
    """Let a program find one GPU; its tensors are on the CPU."""
    from wattloop.predict.workload.tracing.torch_state import OneDevice

    major, minor = CAPABILITIES.get(gpu.architecture, (10, 0))
    memory = int(gpu.memory_bytes)
    facts = SimpleNamespace(
        name=gpu.product, major=major, minor=minor, total_memory=memory,
        multi_processor_count=gpu.sms, is_integrated=False,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": gpu.product,
        "get_device_capability": (major, minor),
        "get_device_properties": facts,
        "get_arch_list": [f"sm_{major}{minor}"],
        "is_bf16_supported": major >= 8,
        "mem_get_info": (memory, memory),
        "memory_stats": {},
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "memory_summary": "",
    }
    zero = "memory_allocated memory_reserved max_memory_allocated max_memory_reserved utilization"
    nothing = (
        "synchronize empty_cache set_device reset_peak_memory_stats reset_max_memory_allocated "
        "manual_seed manual_seed_all seed seed_all init _lazy_init ipc_collect set_rng_state "
        "set_rng_state_all set_per_process_memory_fraction set_stream"
    )
    answers.update(dict.fromkeys(zero.split(), 0), **dict.fromkeys(nothing.split()))
    with ExitStack() as stack:
        for name, value in answers.items():
            if hasattr(torch.cuda, name):
                given = lambda _original, *_, _value=value, **__: _value  # noqa: E731
                stack.enter_context(_replaced(torch.cuda, name, given))
        for name in ("Stream", "Event", "current_stream", "default_stream", "stream", "device"):
            stack.callback(setattr, torch.cuda, name, getattr(torch.cuda, name))
            setattr(torch.cuda, name, _Idle)  # a class: some appear in annotations
        random = lambda _original, *_, **__: torch.get_rng_state()  # noqa: E731
        stack.enter_context(_replaced(torch.cuda, "get_rng_state", random))
        stack.enter_context(OneDevice())
        yield


def _main() -> None:
    data = json.loads(Path(sys.argv[1]).read_text())
    program = _Program(ScriptRun(**{**data, "arguments": tuple(data["arguments"])}))
    try:
        program.run()
    except BaseException as problem:  # noqa: BLE001 - the program may raise anything
        program.answer(**program.explain(problem))
    program.answer(**program.ended())


if __name__ == "__main__":
    gc.collect()
    _main()
