"""Promise: GPU seconds of users are right at every moment, with running jobs included."""

from wattloop.schedule.view import UserUsage


def test_use_grows_while_a_job_runs_and_stays_when_it_ends() -> None:
    """Two GPUs from 10 s to 40 s, and one from 20 s on, of two users."""
    use = UserUsage(2)
    use.start(0, 2, 10.0)
    use.start(1, 1, 20.0)
    assert use.gpu_s(30.0).tolist() == [40, 10]
    assert use.gpus().tolist() == [2, 1]
    use.stop(0, 2, 40.0)
    assert use.gpu_s(100.0).tolist() == [60, 80]
    assert use.gpus().tolist() == [0, 1]
