"""Promises of compiled code: scalar code is scalar (SIMD: see `test_backends`)."""

import json
import os
import platform
import subprocess
import sys

import pytest

from wattloop.kernels.worker import KernelCase, KernelJob, worker_environment

pytest.importorskip("numba", reason="pip install 'wattloop[numba]'")
if platform.machine() not in ("x86_64", "aarch64"):
    pytest.skip("only x86 and ARM assembly is understood", allow_module_level=True)

from wattloop.kernels.backend import Unsupported
from wattloop.kernels.backends.numba_backend import NumbaBackend, packed_instructions

SIZES = {"gemm": 40, "triad": 500, "stencil": 12, "montecarlo": 2_000, "dist": 500, "spmv": 64}
PROGRAM = """
import json, sys
from wattloop.kernels.backends.numba_backend import NumbaBackend, packed_instructions
from wattloop.kernels.kernel import DTYPES
from wattloop.kernels.loaded_kernel import LoadedKernel
from wattloop.kernels.registry import KERNELS
style, sizes = sys.argv[1], json.loads(sys.argv[2])
backend = NumbaBackend("cpu", style)
found = {}
for name, size in sizes.items():
    loaded = LoadedKernel(KERNELS[name](size, DTYPES["fp32"]), backend)
    assert loaded.check().ok, name
    assembly = "".join(backend.compiled[name].inspect_asm().values())
    found[name] = sorted(set(packed_instructions(assembly)))
    found[name + " widths"] = sorted(w for w in ("xmm", "ymm", "zmm") if "%" + w in assembly)
print(json.dumps(found))
"""


def packed(style: str) -> dict[str, list[str]]:
    """Return the packed floating-point instructions of every kernel, compiled as in `bench`."""
    job = KernelJob("numba", style, 1, "cpu", (KernelCase("triad", 500, "fp32"),), 0.1, 0.0)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, style, json.dumps(SIZES)],
        env=worker_environment(job, os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_scalar_code_has_no_packed_arithmetic() -> None:
    """With LLVM's vectorisers off not one instruction computes on several floats."""
    found = packed("scalar")
    assert {name: found[name] for name in SIZES} == {name: [] for name in SIZES}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="SSE and AVX are of x86")
def test_sse_has_registers_of_128_bits_and_avx_of_256() -> None:
    """Widths are those of the thesis's SIMD versions, also on a processor with wider registers."""
    features = pytest.importorskip("llvmlite.binding").get_host_cpu_features()
    sse = packed("sse")
    assert "addps" in sse["triad"]
    assert sse["triad widths"] == ["xmm"]
    if features.get("avx"):
        avx = packed("avx")
        assert "vaddps" in avx["triad"]
        assert avx["triad widths"] == ["xmm", "ymm"]
    with pytest.raises(Unsupported, match="NUMBA_CPU_NAME=nehalem"):
        NumbaBackend("cpu", "sse")


def test_scalar_is_refused_where_vectorisers_are_on() -> None:
    """In a process that imported Numba as usual, code of the scalar style would be vectorised."""
    with pytest.raises(Unsupported, match="NUMBA_LOOP_VECTORIZE=0"):
        NumbaBackend("cpu", "scalar")


def test_packed_instructions_are_distinguished_from_scalar_ones() -> None:
    """addps, vmulpd and fmla count; addss, moves and bit operations do not."""
    x86 = (
        "\tvaddps\t%ymm0\n\tvfmadd213ps\t%ymm1\n\taddss\t%xmm0\n\tvmovups\t%ymm0\n\txorps\t%xmm0\n"
    )
    assert packed_instructions(x86) == ["vaddps", "vfmadd213ps"]
    arm = "\tfmla\tv0.4s, v1.4s\n\tfadd\ts0, s1, s2\n\tldr\tq0, [x0]\n"
    assert packed_instructions(arm) == ["fmla"]
