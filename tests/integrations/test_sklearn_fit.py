import pickle

import pytest

from tests.integrations.conftest import Machine

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.datasets import load_digits  # noqa: E402 - after the skips
from sklearn.linear_model import SGDClassifier  # noqa: E402 - after the skips
from sklearn.model_selection import (  # noqa: E402 - after the skips
    GridSearchCV,
    cross_val_score,
)
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


def test_it_stands_in_for_its_estimator_everywhere(machine: Machine) -> None:
    """Promise: a pipeline, a cross-validation and a grid search take it, and find the same."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:300], y[:300]

    def model() -> SGDClassifier:
        return SGDClassifier(random_state=0)

    pipeline = make_pipeline(measured(StandardScaler()), measured(model())).fit(x, y)
    plain = make_pipeline(StandardScaler(), model()).fit(x, y)
    assert numpy.array_equal(pipeline.predict(x), plain.predict(x))
    assert pipeline[-1].meter.run is not None
    found = cross_val_score(measured(model()), x, y, cv=3)
    assert numpy.array_equal(found, cross_val_score(model(), x, y, cv=3))
    grid = {"alpha": [1e-4, 1.0]}
    search = GridSearchCV(measured(model()), grid, cv=2).fit(x, y)
    assert search.best_params_ == GridSearchCV(model(), grid, cv=2).fit(x, y).best_params_
    assert search.best_estimator_.meter.run is not None
    assert (search.best_estimator_.meter.run.energy_j or 0) > 0
    assert len(machine.journals()) == 2 + 3 + (2 * 2 + 1)


def test_it_can_be_sent_to_another_process(machine: Machine) -> None:
    """Promise: pickled with what it learned, for joblib; measured where it arrives."""
    x, y = load_digits(return_X_y=True)
    model = measured(SGDClassifier(random_state=0), "digits").fit(x, y)
    there = pickle.loads(pickle.dumps(model))
    assert numpy.array_equal(there.predict(x), model.predict(x))
    assert there.fit(x, y).meter.run is not None


def test_it_has_only_the_methods_of_its_estimator() -> None:
    """Promise: what asks whether there is a `transform` or `fit_transform` is told the truth."""
    assert not hasattr(measured(SGDClassifier()), "fit_transform")
    assert hasattr(measured(StandardScaler()), "fit_transform")
