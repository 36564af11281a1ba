"""Promises of the tensors a case gets, and of its timer."""

import weakref

import pytest

torch = pytest.importorskip("torch", reason="the suite measures torch")

from wattloop.predict.calibrate.collection import Timer  # noqa: E402 - after the skip
from wattloop.predict.calibrate.machine import CalibrationDevice  # noqa: E402 - after the skip
from wattloop.predict.calibrate.suite import build  # noqa: E402 - after the skip


@pytest.fixture
def bench():
    return CalibrationDevice("cpu", pool_bytes=4096, rotate_bytes=1000)


def test_tensors_are_random_and_aligned(bench):
    """Zeros run faster, and unaligned inputs slower, than a network's tensors."""
    first, second = bench.normal((3, 5), torch.float32), bench.normal((3, 5), torch.float32)
    assert first.std() > 0.3
    assert second.data_ptr() - first.data_ptr() == 256
    assert not torch.equal(first, second)


def test_a_tensor_larger_than_the_pool_is_made(bench):
    """The pool is a convenience, not a limit."""
    assert bench.normal((2000,), torch.float32).shape == (2000,)


def test_inputs_are_spread_beyond_the_cache(bench):
    """As many sets as necessary, but not more than requested."""
    made = []

    def make():
        made.append(len(made))
        return lambda: None

    assert len(bench.sets(make, set_bytes=300).calls) == 4
    assert len(bench.sets(make, set_bytes=1, most=7).calls) == 7
    assert len(bench.sets(make, set_bytes=5000).calls) == 1


def test_every_set_is_called_before_the_clock_runs(bench):
    """Memory for results, and cuDNN's choice of algorithm, are settled in the warm-up."""
    called = []
    calls = [lambda n=n: called.append(n) for n in range(5)]
    timed = Timer(bench, rounds=3, most_repeats=10).time(calls)
    assert called[:5] == [0, 1, 2, 3, 4]
    assert len(called) == 5 + 2 + 2 + timed.rounds * timed.repeats
    assert timed.seconds > 0


def test_tf32_is_on_only_where_it_is_asked_for(bench):
    """fp32 means fp32."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        bench.precision("tf32")
        assert torch.backends.cudnn.allow_tf32
        bench.precision("fp32")
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


def test_a_closed_bench_leaves_nothing_behind():
    """Neither its pools nor torch's precision settings outlive the bench."""
    backends = torch.backends
    kept = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
    try:
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = False, True
        with CalibrationDevice("cpu", pool_bytes=4096, rotate_bytes=0) as bench:
            pool = weakref.ref(bench.normal((4,), torch.float32)._base)
            bench.precision("tf32")
        assert (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32) == (False, True)
        assert pool() is None
    finally:
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = kept


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_a_layout_is_how_operands_lie_in_memory(bench, layout):
    """The result is the same M x N; what is read transposed differs."""
    params = {"dtype": "fp32", "b": 1, "m": 4, "n": 6, "k": 5, "layout": layout, "bias": False}
    assert build("gemm", params, bench).calls[0]().shape == (4, 6)


def test_directions_of_a_convolution_are_apart(bench):
    """One gradient each: the other is not computed, and its time not counted."""
    params = {"dtype": "fp32", "n": 2, "c_in": 4, "c_out": 6, "k": 3, "stride": 1, "side": 5,
              "padding": 1, "groups": 1, "transposed": False, "line": False,
              "channels_last": False}  # fmt: skip
    data, weight, _ = build("conv", {**params, "direction": "data"}, bench).calls[0]()
    assert data.shape == (2, 4, 5, 5)
    assert weight is None
    data, weight, _ = build("conv", {**params, "direction": "weight"}, bench).calls[0]()
    assert data is None
    assert weight.shape == (6, 4, 3, 3)


def test_the_backward_of_a_recurrent_layer_is_without_its_forward(bench):
    """The forward of the same layer is subtracted."""
    params = {"dtype": "fp32", "cell": "gru", "layers": 1, "input": 4, "hidden": 8, "batch": 2,
              "seq": 3, "bidirectional": False, "direction": "backward"}  # fmt: skip
    work = build("rnn", params, bench)
    assert work.less[0]().shape == (2, 3, 8)
    assert work.calls[0]()[0].shape == (2, 3, 4)


def test_workspace_is_unknown_on_the_cpu(bench):
    """On the CPU no library counts memory by calls: unknown, not zero."""
    assert bench.workspace_bytes(lambda: torch.ones(3)) is None
