"""Promises of `load`: a kernel that runs, checks and counts, or a reason."""

from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host
from wattloop.kernels import load
from wattloop.kernels.backend import BackendUnavailable, Unsupported
from wattloop.kernels.device import Device, chosen_device
from wattloop.kernels.kernel import DTYPES
from wattloop.kernels.loaded_kernel import available_b, forget_peak, peak_b
from wattloop.kernels.registry import KERNELS


def test_a_loaded_kernel_runs_checks_and_counts() -> None:
    """It offers the interface that sweeps use."""
    kernel = load("triad", "numpy", 1_000)
    kernel.run()
    kernel.synchronise()
    assert kernel.check().ok
    assert (kernel.flops, kernel.bytes_moved) == (2_000, 12_000)
    kernel.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gem", "numpy"), "unknown kernel 'gem'"),
        (("gemm", "numppy"), "unknown backend 'numppy'; known are numpy"),
        (("gemm", "numpy", "tiny"), "unknown size 'tiny'"),
        (("gemm", "numpy", 0), "out of range"),
    ],
)
def test_unknown_names_are_answered_with_the_known_ones(
    words: tuple[str, ...], message: str
) -> None:
    """The error lists the known names."""
    with pytest.raises(ConfigError, match=message):
        load(*words)


def test_an_impossible_kernel_says_why() -> None:
    """Wrong device, style or format."""
    with pytest.raises(Unsupported, match="runs on cpu, not on gpu"):
        load("gemm", "numpy", device="gpu")
    with pytest.raises(ConfigError, match="has no style 'simd'; it has library"):
        load("gemm", "numpy", style="simd")
    with pytest.raises(Unsupported, match="too few numbers"):
        load("montecarlo", "numpy", dtype="bf16")


def test_a_missing_gpu_is_explained() -> None:
    """The error for torch without a GPU says what to check."""
    torch = pytest.importorskip("torch", reason="torch explains its own GPU")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(BackendUnavailable, match="sees no GPU"):
        load("gemm", "torch", device="gpu")


def test_too_large_is_refused_before_anything_is_allocated() -> None:
    """Terabytes are refused at once and without allocating."""
    forget_peak()
    before_b = peak_b()
    with pytest.raises(
        ConfigError, match=r"needs about 18\.0 TiB of memory.*use a smaller --sizes"
    ):
        load("triad", "numpy", 2**40)
    after_b = peak_b()
    assert before_b is not None
    assert after_b is not None
    assert after_b - before_b < 100e6


def test_memory_is_asked_for_with_room_for_temporaries() -> None:
    """Frameworks allocate more than the arrays, so a kernel whose arrays just fit does not fit."""
    kernel = KERNELS["triad"](10**9, DTYPES["fp32"])
    kernel.check_memory(None, "gpu")  # unknown
    kernel.check_memory(20 * 10**9, "gpu")
    with pytest.raises(ConfigError, match="free on the gpu"):
        kernel.check_memory(12 * 10**9, "gpu")


def test_memory_is_read_from_the_kernel(tmp_path: Path) -> None:
    """Bytes from meminfo; None where it has no figure."""
    assert available_b(tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2048 kB\n")
    assert available_b(tmp_path) == 2_097_152


def test_devices_are_named_as_the_driver_numbers_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU the CPU is the default; a requested GPU or an invalid name is refused."""
    monkeypatch.setenv("WATTLOOP_NVML_LIBRARY", str(tmp_path / "none.so"))
    host = Host(tmp_path, tmp_path)
    assert chosen_device("", host) == Device("cpu")
    assert chosen_device("cpu", host) == Device("cpu")
    for wrong in ("gpu", "gpu:1"):
        with pytest.raises(ConfigError, match="no GPU was found here"):
            chosen_device(wrong, host)
    for wrong in ("tpu", "cpu:1", "gpu:x", "gpu:-1"):
        with pytest.raises(ConfigError, match="use cpu, gpu or a number"):
            chosen_device(wrong, host)
