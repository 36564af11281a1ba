import pickle
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from tests.support.libraries import library

numpy = library("numpy", reason="NumPy is not installed")
datasets = library("sklearn.datasets", reason="scikit-learn is not installed")
linear_model = library("sklearn.linear_model", reason="scikit-learn is not installed")
model_selection = library("sklearn.model_selection", reason="scikit-learn is not installed")
pipeline = library("sklearn.pipeline", reason="scikit-learn is not installed")
preprocessing = library("sklearn.preprocessing", reason="scikit-learn is not installed")
sklearn_fit = library("wattloop.integrations.sklearn_fit", reason="")


def test_a_fit_is_a_run(machine: Machine) -> None:
    """Promise: `fit` is measured, and the estimator learns and predicts as without Wattloop."""
    x, y = datasets.load_digits(return_X_y=True)
    plain = pipeline.make_pipeline(
        preprocessing.StandardScaler(), linear_model.SGDClassifier(random_state=0)
    ).fit(x, y)
    model = sklearn_fit.measured(
        pipeline.make_pipeline(
            preprocessing.StandardScaler(), linear_model.SGDClassifier(random_state=0)
        ),
        "digits",
    )
    assert model.fit(x, y) is model
    assert numpy.array_equal(model.predict(x), plain.predict(x))
    assert model.score(x, y) > 0.9
    assert model.meter.run is not None
    assert (model.meter.run.energy_j or 0) > 0
    (journal,) = machine.journals()
    assert journal.header["name"] == "digits"


def test_partial_fits_are_epochs_of_one_run(machine: Machine) -> None:
    """Promise: inside `with`, every partial fit is an epoch."""
    x, y = datasets.load_digits(return_X_y=True)
    with sklearn_fit.measured(linear_model.SGDClassifier(random_state=0)) as model:
        for _ in range(3):
            model.partial_fit(x, y, classes=range(10))
            last = model.meter.last_epoch
            assert last is not None
            assert last.duration_s > 0
    assert len(model.meter.epochs) == 3
    assert len(machine.journals()) == 1


def test_the_users_error_passes(machine: Machine) -> None:
    """Promise: a failing fit raises its own exception, and its run says so."""
    model = sklearn_fit.measured(linear_model.SGDClassifier())
    with pytest.raises(ValueError, match="sample"):
        model.fit([[1.0], [2.0]], [1])
    assert model.meter.run is not None
    assert model.meter.run.status == "failed"
    assert pickle.loads(pickle.dumps(model.estimator)) is not None


def test_it_replaces_its_estimator_everywhere(machine: Machine) -> None:
    """Promise: a pipeline, a cross-validation and a grid search accept it, with the same result."""
    x, y = datasets.load_digits(return_X_y=True)
    x, y = x[:300], y[:300]

    def model() -> Any:
        return linear_model.SGDClassifier(random_state=0)

    joined = pipeline.make_pipeline(
        sklearn_fit.measured(preprocessing.StandardScaler()), sklearn_fit.measured(model())
    ).fit(x, y)
    plain = pipeline.make_pipeline(preprocessing.StandardScaler(), model()).fit(x, y)
    assert numpy.array_equal(joined.predict(x), plain.predict(x))
    assert joined[-1].meter.run is not None
    found = model_selection.cross_val_score(sklearn_fit.measured(model()), x, y, cv=3)
    assert numpy.array_equal(found, model_selection.cross_val_score(model(), x, y, cv=3))
    grid = {"alpha": [1e-4, 1.0]}
    search = model_selection.GridSearchCV(sklearn_fit.measured(model()), grid, cv=2).fit(x, y)
    assert (
        search.best_params_
        == model_selection.GridSearchCV(model(), grid, cv=2).fit(x, y).best_params_
    )
    assert search.best_estimator_.meter.run is not None
    assert (search.best_estimator_.meter.run.energy_j or 0) > 0
    assert len(machine.journals()) == 2 + 3 + (2 * 2 + 1)


def test_it_can_be_sent_to_another_process(machine: Machine) -> None:
    """Promise: it is pickled with its fitted state, for joblib, and measured where it arrives."""
    x, y = datasets.load_digits(return_X_y=True)
    model = sklearn_fit.measured(linear_model.SGDClassifier(random_state=0), "digits").fit(x, y)
    there = pickle.loads(pickle.dumps(model))
    assert numpy.array_equal(there.predict(x), model.predict(x))
    assert there.fit(x, y).meter.run is not None


def test_it_has_only_the_methods_of_its_estimator() -> None:
    """Promise: `hasattr` for `transform` or `fit_transform` gives the estimator's answer."""
    assert not hasattr(sklearn_fit.measured(linear_model.SGDClassifier()), "fit_transform")
    assert hasattr(sklearn_fit.measured(preprocessing.StandardScaler()), "fit_transform")
