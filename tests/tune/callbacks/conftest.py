"""A trial that records its reports."""

import pytest

from wattloop.tune.trial import Trial


class Recorded(Trial):
    def __init__(self, folder):
        self.params, self.seed, self.checkpoint = {}, 0, folder
        self.resumed, self.epochs_done = False, 0.0
        self.reports, self.steps_seen, self.expected, self.ended = [], 0, None, 0

    def step(self, units=1.0):
        self.steps_seen += units

    def expect_steps(self, count):
        self.expected = count

    def _report(self, metrics, epoch):
        self.reports.append((epoch, dict(metrics)))

    def _count_epochs(self): ...

    def _end_epoch(self):
        self.ended += 1


@pytest.fixture
def trial(tmp_path):
    return Recorded(tmp_path)
