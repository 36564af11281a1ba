"""`python -m wattloop.kernels gemm torch --runs 500`: a fixed amount of work, and its check.

Nothing is measured here but time, unless `--window` names it: put `wattloop run --` or
`wattloop sweep ... --` before it.
"""

import argparse
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext

from wattloop.core.errors import WattloopError
from wattloop.hardware.host import Host
from wattloop.kernels.device import chosen_device
from wattloop.kernels.kernel import DTYPES
from wattloop.kernels.loaded_kernel import load
from wattloop.kernels.registry import BACKENDS, DEFAULT_SIZE, KERNELS, SECONDS, nominal_runs

WRONG, BAD_INPUT = 1, 2
AHEAD = 16
"""Runs started before waiting: enough to keep a GPU busy, few enough to hold few results."""


def main(words: list[str] | None = None) -> int:
    asked = _parsed(words)
    try:
        device = chosen_device(asked.device, Host.from_environment()).kind
        size = asked.size or DEFAULT_SIZE[device]
        loaded = load(asked.kernel, asked.backend, size, dtype=asked.dtype, device=device)
    except WattloopError as error:
        sys.stderr.write(f"wattloop.kernels: {error}\n")
        return BAD_INPUT
    runs = asked.runs or nominal_runs(loaded.kernel, device, SECONDS)
    loaded.check()  # compiles, where a framework does that
    with _window(asked.window):
        begin_s = time.monotonic()
        for number in range(runs):
            loaded.run()
            if device == "cpu" or number % AHEAD == AHEAD - 1:
                loaded.synchronise()
        loaded.synchronise()
        time_s = time.monotonic() - begin_s
    check = loaded.check()
    found = {
        "kernel": asked.kernel,
        "backend": asked.backend,
        "size": loaded.kernel.size,
        "runs": runs,
        "time_s": time_s,
        "gflops": loaded.flops * runs / time_s / 1e9,
        "gb_s": loaded.bytes_moved * runs / time_s / 1e9,
        "right": check.ok,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if check.ok else WRONG


def _window(name: str | None) -> AbstractContextManager[object]:
    if name is None:
        return nullcontext()
    from wattloop.measure.api import measure

    return measure(name)


def _parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m wattloop.kernels", description="Run a kernel a fixed number of times."
    )
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--size", help="a number, or small, medium, large, huge")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--device", default="", help="cpu or gpu (default: a GPU if there is one)")
    parser.add_argument("--runs", type=_positive, help="how often (default: about 10 s of work)")
    parser.add_argument(
        "--window", metavar="NAME", help="measure the runs alone, without loading, under this name"
    )
    return parser.parse_args(words)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
