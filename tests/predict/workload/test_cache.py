"""Promises of stored traces: found again when none of their determinants has changed."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from wattloop.predict import trace  # noqa: E402 - after the skip
from wattloop.predict.workload.files import load_workload, save_workload  # noqa: E402 - after the skip
from wattloop.predict.workload.trace import TraceRequest  # noqa: E402 - after the skip
from wattloop.predict.workload.tracing.identity import identity_of  # noqa: E402 - after the skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "wattloop" / "workloads"


class Net(torch.nn.Module):
    def __init__(self, power=2.0):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.power = power

    def forward(self, x):
        return self.layer(x) ** self.power


def test_the_second_time_it_comes_from_the_file(folder):
    """A changed file is what is loaded; a broken one is written again."""
    first = trace(Net, torch.empty(2, 4), cache=True)
    (path,) = folder.iterdir()
    save_workload(first.accumulating(7), path)
    assert trace(Net, torch.empty(2, 4), cache=True).accumulate == 7
    path.write_bytes(b"broken")
    assert trace(Net, torch.empty(2, 4), cache=True) == first
    assert load_workload(path) == first


def test_without_cache_nothing_is_written(folder):
    """The cache is used on request only."""
    trace(Net, torch.empty(2, 4))
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_does_not_matter(folder):
    """The trace is still made."""
    folder.parent.mkdir(parents=True)
    folder.write_text("a file is in the way")
    assert trace(Net, torch.empty(2, 4), cache=True).parameters == 20


def key(model=None, inputs=None, **options):
    request = TraceRequest(
        model=Net() if model is None else model,
        inputs=torch.empty(2, 4) if inputs is None else inputs,
        **(
            {
                "targets": None,
                "loss": None,
                "precision": "fp32",
                "optimizer": "adamw",
                "style": "foreach",
                "training": True,
                "accumulate": 1,
                "name": "",
            }
            | options
        ),
    )
    return identity_of(request)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": Net(power=3.0)},
        {"model": torch.nn.Linear(4, 4)},
        {"inputs": torch.empty(3, 4)},
        {"inputs": torch.empty(2, 4, dtype=torch.float64)},
        {"precision": "bf16"},
        {"optimizer": "sgd"},
        {"optimizer": torch.optim.SGD},
        {"style": "fused"},
        {"training": False},
        {"loss": lambda y: y.sum()},
        {"accumulate": 2},
    ],
    ids=lambda each: next(iter(each)),
)
def test_another_of_anything_has_another_key(changed):
    """Model, settings, shapes, types, precision, optimizer, loss."""
    assert key(**changed) != key()
    assert key(**changed) == key(**changed)


def test_what_a_function_closes_over_is_part_of_the_key():
    """The same source with another value is another model."""

    def factory(power):
        return lambda: Net(power)

    assert key(model=factory(1.0)) != key(model=factory(2.0))


def test_a_model_without_source_is_not_cached():
    """A class without source could do anything."""
    scope = {"torch": torch}
    exec("class Typed(torch.nn.Linear): pass", scope)
    assert key(model=scope["Typed"](4, 4)) is None
