import pickle

import pytest

from tests.integrations.conftest import Machine

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.datasets import load_digits  # noqa: E402 - after the skips
from sklearn.linear_model import SGDClassifier  # noqa: E402 - after the skips
from sklearn.pipeline import make_pipeline  # noqa: E402 - after the skips
from sklearn.preprocessing import StandardScaler  # noqa: E402 - after the skips

from wattloop.integrations.sklearn_fit import measured  # noqa: E402 - after the skips


def test_a_fit_is_a_run(machine: Machine) -> None:
    """Promise: `fit` is measured, and the estimator learns and answers as without us."""
    x, y = load_digits(return_X_y=True)
    plain = make_pipeline(StandardScaler(), SGDClassifier(random_state=0)).fit(x, y)
    model = measured(make_pipeline(StandardScaler(), SGDClassifier(random_state=0)), "digits")
    assert model.fit(x, y) is model
    assert numpy.array_equal(model.predict(x), plain.predict(x))
    assert model.score(x, y) > 0.9
    assert model.meter.run is not None
    assert (model.meter.run.energy_j or 0) > 0
    (journal,) = machine.journals()
    assert journal.header["name"] == "digits"


def test_partial_fits_are_epochs_of_one_run(machine: Machine) -> None:
    """Promise: inside `with`, every partial fit is an epoch."""
    x, y = load_digits(return_X_y=True)
    with measured(SGDClassifier(random_state=0)) as model:
        for _ in range(3):
            model.partial_fit(x, y, classes=range(10))
            last = model.meter.last_epoch
            assert last is not None
            assert last.duration_s > 0
    assert len(model.meter.epochs) == 3
    assert len(machine.journals()) == 1


def test_the_users_error_passes(machine: Machine) -> None:
    """Promise: a fit that fails raises what it always raised, and its run says so."""
    model = measured(SGDClassifier())
    with pytest.raises(ValueError, match="sample"):
        model.fit([[1.0], [2.0]], [1])
    assert model.meter.run is not None
    assert model.meter.run.status == "failed"
    assert pickle.loads(pickle.dumps(model.estimator)) is not None
