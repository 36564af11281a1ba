"""Promises of the plan: a request becomes workers, or a reason."""

import importlib.util
import os
from pathlib import Path

import pytest

from wattloop.bench.plan import BenchRequest, choose_cpus, make_plan, selected_kernels, usable_cpus
from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host
from wattloop.kernels.backend import Backend

HOST = Host()


def choice(**words: object) -> BenchRequest:
    return BenchRequest.of(**{"device": "cpu", **words})  # type: ignore[arg-type]  # words of a person


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kernels": "gemm,gem"}, "unknown kernel 'gem'; known are gemm, spmv"),
        ({"backends": "numpi"}, "unknown backend 'numpi'; known are numpy, numba"),
        ({"sizes": "tiny"}, r"unknown size 'tiny'; known are small \(512\)"),
        ({"sizes": "gem=4"}, "'gem' is not among gemm"),
        ({"kernels": "triad", "sizes": "gemm=4"}, "'gemm' is not among triad"),
        ({"kernels": "gemm", "sizes": "1"}, "out of range"),
        ({"dtype": "float"}, "unknown dtype 'float'"),
        ({"styles": "fast"}, "unknown style 'fast'; known are library, parallel, simd, scalar"),
        ({"threads": "0"}, "write numbers from 1"),
        ({"threads": "two"}, "write numbers from 1"),
        ({"device": "tpu"}, "use cpu, gpu"),
        ({"seconds": 0.0}, "use 0.05 to 3600"),
        ({"seconds": float("nan")}, "use 0.05 to 3600"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(
    words: dict[str, object], message: str
) -> None:
    """The error lists the known names before any worker starts."""
    with pytest.raises(ConfigError, match=message):
        choice(**words)


def test_sizes_per_kernel_and_for_all() -> None:
    """`medium` applies to every kernel; `gemm=1e3` replaces the default of gemm only."""
    asked = choice(kernels="gemm,triad", sizes="medium")
    assert {n: [p.size for p in g] for n, g in selected_kernels(asked).items()} == {
        "gemm": [2_048], "triad": [2**26],
    }  # fmt: skip
    asked = choice(kernels="gemm,triad", sizes="gemm=1e3,gemm=64")
    assert [p.size for p in selected_kernels(asked)["gemm"]] == [1_000, 64]
    assert [p.size for p in selected_kernels(asked)["triad"]] == [2**24]


def test_numba_has_its_styles_and_threads() -> None:
    """Scalar and SIMD on one thread, parallel on each requested number of threads, pinned."""
    if importlib.util.find_spec("numba") is None:
        pytest.skip("pip install 'wattloop[numba]'")
    most = len(usable_cpus())
    plan = make_plan(choice(backends="numba", kernels="triad", threads=f"1,{most}"), HOST)
    assert [(j.style, j.threads) for j in plan.jobs] == [
        ("scalar", 1), ("simd", 1), *(("parallel", t) for t in sorted({1, most})),
    ]  # fmt: skip
    assert all(len(j.cpus) == j.threads for j in plan.jobs)


def test_torch_is_compiled_only_when_asked() -> None:
    """The default style is eager."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("pip install 'wattloop[torch]'")
    words = {"backends": "torch", "kernels": "triad"}
    assert [j.style for j in make_plan(choice(**words), HOST).jobs] == ["eager"]
    both = make_plan(choice(**words, styles="eager,compiled"), HOST)
    assert {j.style for j in both.jobs} == {"eager", "compiled"}


def test_each_omission_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not installed, not on this device, or not in this format."""
    plan = make_plan(choice(backends="numpy,cupy", kernels="triad"), HOST)
    assert [(o.what, o.reason) for o in plan.left_out] == [
        ("cupy", "runs on the gpu, not on the cpu")
    ]
    monkeypatch.setattr(
        Backend, "missing", classmethod(lambda cls: "" if cls.name == "numpy" else cls.remedy())
    )
    plan = make_plan(choice(kernels="triad"), HOST)
    assert {o.what: o.reason for o in plan.left_out} == {
        "numba": "pip install 'wattloop[numba]'",
        "torch": "pip install 'wattloop[torch]'",
        "jax": "pip install 'wattloop[jax]'",
        "tensorflow": "pip install 'wattloop[tensorflow]'",
    }
    with pytest.raises(ConfigError, match=r"nothing to run on the cpu .*numpy has no bf16"):
        make_plan(choice(backends="numpy", dtype="bf16", kernels="triad"), HOST)


def test_too_large_is_refused(tmp_path: Path) -> None:
    """Available memory sets the limit, before a worker is started."""
    (tmp_path / "meminfo").write_text("MemAvailable: 1000000 kB\n")
    host = Host(procfs=tmp_path)
    asked = choice(backends="numpy", kernels="triad", sizes="1e9")
    with pytest.raises(ConfigError, match=r"needs about 16\.\d GiB of memory, 977 MiB are free"):
        make_plan(asked, host)


def test_threads_go_to_cores_first(tmp_path: Path) -> None:
    """Two threads of one core share its units, so second threads are used last."""
    for cpu in range(4):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    host = Host(sysfs=tmp_path)
    assert choose_cpus(2, host, [0, 1, 2, 3]) == (0, 1)
    assert choose_cpus(3, host, [0, 1, 2, 3]) == (0, 1, 2)
    assert choose_cpus(2, host, [0, 2]) == (0, 2)
    with pytest.raises(ConfigError, match=r"may use 4 CPU\(s\); give 1 to 4"):
        choose_cpus(5, host, [0, 1, 2, 3])


def test_more_threads_than_cpus_are_refused() -> None:
    """Threads that share a CPU would not measure scaling."""
    too_many = len(os.sched_getaffinity(0)) + 1
    with pytest.raises(ConfigError, match=f"--threads {too_many}"):
        make_plan(choice(backends="numpy", kernels="triad", threads=str(too_many)), HOST)
