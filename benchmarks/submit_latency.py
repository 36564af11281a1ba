"""Latency that job_submit.lua adds to a submission, in a real slurmctld.

    python benchmarks/submit_latency.py [--json FILE] [--quick]

Needs Slurm and root (see docs/slurm.md). `sbatch` of held jobs, one after the other, with stock
Slurm, with the plugin, and with the plugin while its service hangs or is gone.
"""

import json
import os
import signal
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from bars import Bar, Page, arguments, publish
from oracle_service import serving
from support.slurm_lab import SlurmLab, why_no_slurm

PLUGIN = Path(__file__).parents[1] / "examples" / "slurm" / "job_submit.lua"
TAG = "wattloop:model=resnet-50,precision=tf32,batch=64,samples={}"
BOUND_MS = 700.0
"""Of one submission while the service hangs: the plugin's bound, and what ends curl after it."""
SLACK_MS = 100.0
WITHOUT_SOCKET = 'package.preload["socket"] = function() error("not here") end\n'
TEXT = """
`sbatch` from its start to its end, held jobs, one after the other, on one machine with everything
else: slurmctld, the service, and sbatch share its cores. `stock` is Slurm without a plugin.

`asked` are jobs with samples that no job had before: each is a question to the service, by curl
or, where it is installed, by LuaSocket.
`known` are jobs that were asked about within a minute: the plugin has the answer. `no GPU` asks
nothing. When the service hangs, the first job waits for the bound of 0.5 s, and the others of the
next minute do not.

Processes ran with nice {nice}, next to whatever else the machine did.
"""


def main() -> None:
    args = arguments(__doc__.splitlines()[0]).parse_args()
    if why_no_slurm():
        raise SystemExit(f"cannot run here: {why_no_slurm()}")
    count = 10 if args.quick else 100
    with SlurmLab(nodes=1, gpus=4) as lab:
        stock = [submitted_ms(lab, n) for n in range(count)]
    with (
        tempfile.TemporaryDirectory(prefix="wattloop-submit-") as folder,
        serving(Path(folder)) as (url, service),
    ):
        wait_until_warm(url)
        text = PLUGIN.read_text("utf-8").replace("http://127.0.0.1:8765", url)
        with SlurmLab(nodes=1, gpus=4, lua=WITHOUT_SOCKET + text) as lab:
            curl = [submitted_ms(lab, n) for n in range(count)]
            known = [submitted_ms(lab, 0) for _ in range(count)]
            none = [submitted_ms(lab, n, gpus=0) for n in range(count)]
        with SlurmLab(nodes=1, gpus=4, lua=text) as lab:
            by_socket = "LuaSocket" in (lab.folder / "log" / "slurmctld.log").read_text()
            socket = [submitted_ms(lab, n) for n in range(count)]
            service.send_signal(signal.SIGSTOP)
            hangs = submitted_ms(lab, 10_000)
            after = [submitted_ms(lab, 20_000 + n) for n in range(count)]
            service.send_signal(signal.SIGCONT)
    publish(_page(stock, curl, socket if by_socket else None, known, none, hangs, after), args)


def wait_until_warm(url: str) -> None:
    """Wait until the service knows the jobs' model."""
    body = json.dumps({"gpus": 2, "comment": TAG.format(1)}).encode()
    for _ in range(300):
        with urllib.request.urlopen(f"{url}/api/v1/predict/submit", body, timeout=60) as found:
            if json.load(found)["energy_j"]:
                return
        time.sleep(0.1)
    raise SystemExit("the service does not come to an answer")


def submitted_ms(lab: SlurmLab, number: int, gpus: int = 2) -> float:
    """Return the time of one sbatch; each number has samples of its own."""
    wanted = [f"--gpus={gpus}"] if gpus else []
    began = time.perf_counter()
    lab.submit("true", "--hold", *wanted, f"--comment={TAG.format(1_000_000 + number)}")
    return 1e3 * (time.perf_counter() - began)


def _page(
    stock: list[float],
    curl: list[float],
    socket: list[float] | None,
    known: list[float],
    none: list[float],
    hangs: float,
    after: list[float],
) -> Page:
    def bars_of(name: str, values: list[float] | None, note: str = "") -> list[Bar]:
        if values is None:
            return [Bar(f"{name}, p50", None, "ms", note="LuaSocket is not installed")]
        baselines = {"stock Slurm": statistics.median(stock)}, {"stock Slurm": _p95(stock)}
        return [
            Bar(f"{name}, p50", statistics.median(values), "ms", None, baselines[0], note=note),
            Bar(f"{name}, p95", _p95(values), "ms", None, baselines[1]),
        ]

    bars = [
        *bars_of("asked by curl", curl, "a question to the service for every job"),
        *bars_of("asked by LuaSocket", socket, "the same without starting a process"),
        *bars_of("known", known, "the same question within a minute"),
        *bars_of("no GPU", none),
        Bar("the service hangs, first job", hangs, "ms",
            BOUND_MS + statistics.median(stock) + SLACK_MS,
            note="the bound is that of the plugin, what ends curl, and a submission with slack for "
            "a busy machine; the job is accepted"),
        *bars_of("the service hangs, next jobs", after, "left alone for a minute"),
    ]  # fmt: skip
    text = TEXT.format(nice=os.nice(0))
    return Page("submit_latency", "What job_submit.lua adds to a submission", bars, text=text)


def _p95(values: list[float]) -> float:
    return sorted(values)[min(int(0.95 * len(values)), len(values) - 1)]


if __name__ == "__main__":
    main()
