"""Promises of every kernel on every installed framework, element by element."""

import platform
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from wattloop.kernels.backend import Backend, BackendUnavailable, Unsupported
from wattloop.kernels.kernel import DTYPES, Kernel
from wattloop.kernels.loaded_kernel import LoadedKernel
from wattloop.kernels.registry import BACKENDS, FURTHER, KERNELS, backend_named

SIZES = {"gemm": 33, "spmv": 200, "triad": 1_001, "stencil": 11, "montecarlo": 30_001, "dist": 777}
CPU = [name for name in BACKENDS if "cpu" in backend_named(name).devices]


def plain_spmv(k: Any) -> Any:
    dense = np.zeros((k.size, k.size))
    values = k.values.whole().reshape(k.size, -1)
    for row, columns in enumerate(k.columns(np.arange(k.size))):
        assert len(set(columns)) == len(columns)
        dense[row, columns] = values[row]
    return dense @ k.x.whole()


def plain_stencil(k: Any) -> Any:
    u = k.u.whole()
    total = 0.25 * u
    for axis in range(3):
        total += 0.125 * (np.roll(u, 1, axis) + np.roll(u, -1, axis))
    return total[1:-1, 1:-1, 1:-1]


PLAIN: dict[str, Callable[[Any], Any]] = {
    "gemm": lambda k: k.a.whole() @ k.b.whole(),
    "spmv": plain_spmv,
    "triad": lambda k: k.b.whole() + 0.75 * k.c.whole(),
    "stencil": plain_stencil,
    "montecarlo": lambda k: np.array([np.pi]),
    "dist": lambda k: np.linalg.norm(k.x.whole(), axis=0),
}
"""The same maths, written a second time."""


@cache
def backend_here(name: str) -> Backend:
    kind = backend_named(name)
    if kind.missing():
        pytest.skip(kind.missing())
    # one thread and no prange: Numba takes three times as long to compile its loops for threads
    return kind("cpu", "simd" if name == "numba" else "")


def kernel_of(name: str, dtype: str = "fp32") -> Kernel:
    return KERNELS[name](SIZES[name], DTYPES[dtype])


def whole_result(loaded: LoadedKernel) -> Any:
    loaded.run()
    loaded.synchronise()
    everything = np.arange(loaded.kernel.result_length)
    return loaded.backend.elements(loaded._result, everything)


@pytest.fixture(params=CPU)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield backend_here(request.param)


@pytest.mark.parametrize("name", list(KERNELS))
def test_results_are_right(backend: Backend, name: str) -> None:
    """Every element of every kernel is mathematically right, and the built-in check agrees."""
    kernel = kernel_of(name)
    loaded = LoadedKernel(kernel, backend)
    found = whole_result(loaded)
    right = PLAIN[name](kernel).reshape(-1)
    _, allowed = kernel.expected(np.arange(kernel.result_length))
    assert (np.abs(found - right) <= allowed).all()
    assert loaded.check().ok


@pytest.mark.parametrize(("dtype", "name"), [("fp64", "gemm"), ("bf16", "triad"), ("fp16", "dist")])
def test_formats_are_respected(backend: Backend, dtype: str, name: str) -> None:
    """fp64 is as precise as fp64, half precision is right to its own step, or the format is
    refused.
    """
    kernel = kernel_of(name, dtype)
    if dtype not in backend.dtypes:
        with pytest.raises(Unsupported, match=f"{backend.name} has no {dtype}"):
            backend.prepare(kernel)
        return
    found = whole_result(LoadedKernel(kernel, backend))
    right = PLAIN[name](kernel).reshape(-1)
    error = np.abs(found - right).max()
    assert error <= 8 * DTYPES[dtype].epsilon * np.abs(right).max()
    if dtype != "fp64":
        # a result that is better than its format was not computed in it
        assert error > 1e-6


@pytest.mark.parametrize("name", list(KERNELS))
def test_the_reference_is_right(name: str) -> None:
    """The reference for results agrees with the same maths written a second time."""
    kernel = kernel_of(name, "fp64")
    right, allowed = kernel.expected(np.arange(kernel.result_length))
    if name == "montecarlo":
        assert right[0] == np.pi
        # 5 x 4 sqrt(p (1 - p) / n) for n = 30001
        assert allowed[0] == pytest.approx(0.0474, rel=0.01)
        return
    assert np.allclose(right, PLAIN[name](kernel).reshape(-1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", list(KERNELS))
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_wrong_results_are_found(name: str, dtype: str) -> None:
    """It finds one sampled element some steps of its format off, a missing one, or a NaN."""
    kernel = kernel_of(name, dtype)
    indices = kernel.sample()
    right, _ = kernel.expected(indices)
    assert kernel.judge(right, indices).ok
    biggest = int(np.argmax(np.abs(right)))
    off = right.copy()
    off[biggest] *= 1.05 if name == "montecarlo" else 1 + 40 * DTYPES[dtype].epsilon
    assert not kernel.judge(off, indices).ok
    assert not kernel.judge(np.zeros_like(right), indices).ok
    assert not kernel.judge(np.full_like(right, np.nan), indices).ok
    if len(right) > 1:
        assert not kernel.judge(right[:-1], indices).ok


def test_points_differ_between_runs(backend: Backend) -> None:
    """A Monte Carlo kernel that draws the same points again would measure a cache."""
    loaded = LoadedKernel(kernel_of("montecarlo"), backend)
    assert len({float(whole_result(loaded)[0]) for _ in range(4)}) > 1


def test_simd_code_has_packed_arithmetic() -> None:
    """With LLVM's vectorisers on every kernel computes on several floats at once."""
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("only x86 and ARM assembly is understood")
    numba = backend_here("numba")
    from wattloop.kernels.backends.numba_backend import NumbaBackend, packed_instructions

    assert isinstance(numba, NumbaBackend)
    for name in KERNELS:
        LoadedKernel(kernel_of(name), numba).check()
        assembly = "".join(numba.compiled[name].inspect_asm().values())
        assert packed_instructions(assembly), name


@pytest.mark.parametrize("name", list(BACKENDS))
def test_missing_frameworks_name_their_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the command that installs a missing framework, and the extra exists."""
    import tomllib
    from pathlib import Path

    kind = backend_named(name)
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    if kind.extra:
        assert f"pip install 'wattloop[{kind.extra}]'" in kind.missing()
        assert kind.extra in project["project"]["optional-dependencies"]


def test_every_backend_names_its_function_for_each_kernel() -> None:
    """A table of frameworks names the function that was called."""
    for name in BACKENDS:
        assert set(backend_named(name).methods) - set(FURTHER) == set(KERNELS)


@pytest.mark.parametrize("name", ["numpy", "numba", "torch"])
def test_the_coordinate_form_gives_the_same_vector(name: str) -> None:
    """SPMV_COO of the thesis: checked against float64 as every kernel, 4 bytes more per
    non-zero.
    """
    pytest.importorskip(name, reason=f"{name} is not installed")
    kernel, rows = FURTHER["spmv_coo"](640, DTYPES["fp32"]), KERNELS["spmv"](640, DTYPES["fp32"])
    assert LoadedKernel(kernel, backend_named(name)("cpu")).check().ok
    assert kernel.bytes_moved - rows.bytes_moved == 640 * 16 * 4 - 641 * 4
    with pytest.raises(Unsupported, match="does not run spmv_coo"):
        backend_named("jax").accepts_on(kernel, "cpu")


def test_tensorflow_places_kernels_on_the_gpu_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: without a GPU the remedy is named; with one, inputs and runs are placed on it."""
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    kind = backend_named("tensorflow")
    if not tf.config.list_physical_devices("GPU"):
        with pytest.raises(BackendUnavailable, match=r"sees no GPU; pip install .*and-cuda"):
            kind("gpu")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    places = []
    real = tf.device

    def device(place: str) -> Any:
        places.append(place)
        return real("/CPU:0")

    monkeypatch.setattr(tf, "device", device)
    loaded = LoadedKernel(kernel_of("triad"), kind("gpu"))
    assert places == ["/GPU:0"]
    loaded.run()
    assert places == ["/GPU:0"] * 2
    kind("cpu").prepare(kernel_of("triad"))
    assert places[-1] == "/CPU:0"
