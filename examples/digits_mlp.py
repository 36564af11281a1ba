"""Train a small network on handwritten digits: a program as people have it, for `wattloop tune`.

    python examples/digits_mlp.py --batch_size 64 --lr 0.01 --hidden 256

It knows nothing of Wattloop: parameters come as arguments, and it prints its accuracy.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices: threads wait for each other

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--hidden", type=int, default=512)
parser.add_argument("--epochs", type=int, default=60)
args = parser.parse_args()

x, y = load_digits(return_X_y=True)
x, rng = x / 16, np.random.default_rng(0)
model = MLPClassifier((args.hidden,), learning_rate_init=args.lr, random_state=0)
for epoch in range(1, args.epochs + 1):
    for rows in np.array_split(rng.permutation(1400), 1400 // args.batch_size):
        model.partial_fit(x[rows], y[rows], classes=range(10))
    print(f"epoch={epoch} accuracy={model.score(x[1400:], y[1400:]):.4f}", flush=True)
