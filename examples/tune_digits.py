"""Find the batch size, learning rate and width that learn handwritten digits for least energy."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from wattloop.tune import Trial, search

x, y = load_digits(return_X_y=True)
x = x / 16


def train(trial: Trial) -> None:
    model = MLPClassifier(
        (trial["hidden"],), learning_rate_init=trial["lr"], random_state=trial.seed
    )
    for _ in trial.epochs(60):
        for rows in np.array_split(np.random.permutation(1400), 1400 // trial["batch_size"]):
            model.partial_fit(x[rows], y[rows], classes=range(10))
        trial.report(accuracy=model.score(x[1400:], y[1400:]))


space = {"batch_size": [16, 64, 256], "lr": [1e-3, 3e-3, 1e-2], "hidden": [64, 512]}
default = {"batch_size": 16, "lr": 1e-3, "hidden": 512}
found = search(train, space=space, default=default, metric="accuracy", goal="maximize", target=0.92)
print(found.best.parameters if found.best else "none was good enough", "-", found.summary.why)
