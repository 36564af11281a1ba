"""A training that occupies the virtual GPU it sees, where worker processes find it."""

import os
import time

from wattloop.virtual.node import shared_gpus


def train(trial):
    number = int(os.environ["CUDA_VISIBLE_DEVICES"])
    gpu = shared_gpus(2)[number]
    if trial["width"] == 13 and number == 0:
        os.kill(os.getpid(), 9)
    for epoch in trial.epochs(8):
        until_s = time.monotonic() + 0.15
        while time.monotonic() < until_s:
            gpu.load(1.0, memory=0.3)
            time.sleep(0.01)
        trial.report(accuracy=1 - 1 / (1 + (epoch + 1) * trial["width"]), gpu=number)
