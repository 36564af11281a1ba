"""Tables of the Zeus form become workloads, or an error that says where."""

import math

import pytest

from tests.tune.replay.small_tables import POWER, PROBLEMS, TRAIN, write_tables
from wattloop.core.errors import ConfigError
from wattloop.tune.replay.tables import read_workloads


def read(folder, **texts):
    tables = write_tables(folder, **texts)
    return read_workloads([tables.power], tables.train, tables.problems)


def test_only_batch_sizes_of_both_tables_are_replayed(tmp_path):
    """16 has no power rows and 256 no trainings; 128 has trainings that all fail."""
    (workload,), left_out = read(tmp_path)
    assert workload.batch_sizes == (32, 64, 128)
    assert workload.gpu == "x1"
    assert not left_out
    assert math.isinf(workload.epochs(128))


def test_default_and_oracle_are_means_over_seeds(tmp_path):
    """D is the default at the highest cap; the oracle the least over batch sizes and caps."""
    (workload,), _ = read(tmp_path)
    assert workload.default == 32
    assert workload.default_energy_j == pytest.approx(5 * 100 * 150)
    assert workload.oracle_energy_j == pytest.approx(6 * 60 * 95)


def test_failed_trainings_count_in_the_mean(tmp_path):
    """A training that must be started again costs all its epochs."""
    (workload,), _ = read(tmp_path, problems=PROBLEMS.replace(",20,", ",5,"))
    assert workload.epochs(32) == pytest.approx(4 + 5)


def test_default_is_at_most_the_largest_measured(tmp_path):
    """A default of 1024 becomes the largest that has rows in both tables."""
    train = TRAIN.replace("0.8,nan", "0.8,9")
    (workload,), _ = read(tmp_path, train=train, problems=PROBLEMS.replace(",32", ",1024"))
    assert workload.default == 128


def test_lower_may_be_better(tmp_path):
    """With an error rate the hardest level is the lowest."""
    train = TRAIN.replace(",0.5,", ",60,").replace(",0.8,", ",40,")
    problems = PROBLEMS.replace("0.8,1,", "40,0,")
    (workload,), _ = read(tmp_path, train=train, problems=problems)
    training = workload.trainings[32][0]
    assert training.levels == ((60.0, 1), (40.0, 4))
    assert training.quality(0.5) is None
    assert training.quality(3) == 60.0
    assert workload.epochs(32) == pytest.approx(5)


def test_a_target_between_levels_is_reached_at_the_next(tmp_path):
    """Nothing is interpolated."""
    (workload,), _ = read(tmp_path, problems=PROBLEMS.replace("0.8,1", "0.7,1"))
    assert workload.trainings[32][0].epochs_to(workload.wanted) == 4


def test_one_cap_is_enough(tmp_path):
    """A table with a single power limit can be replayed."""
    power = "\n".join(line for line in POWER.splitlines() if ",200," not in line)
    (workload,), _ = read(tmp_path, power=power)
    assert workload.curves[32].caps_w == (100.0,)


def test_the_same_problem_twice_counts_once(tmp_path):
    """Else it would count twice in the medians; another target is another problem."""
    row = PROBLEMS.splitlines()[1]
    found, _ = read(tmp_path, problems=f"{PROBLEMS}{row}\n{row.replace('0.8', '0.5')}\n")
    assert [workload.wanted.target for workload in found] == [0.8, 0.5]


@pytest.mark.parametrize(("text", "maximize"), [("1.0", True), ("True", True), ("0.0", False)])
def test_directions_as_other_programs_write_them(tmp_path, text, maximize):
    """A column that has passed through floats is still 1 or 0."""
    target = "0.8" if maximize else "0.5"
    (workload,), _ = read(tmp_path, problems=PROBLEMS.replace("0.8,1,", f"{target},{text},"))
    assert workload.wanted.maximize is maximize


def test_what_is_left_out_is_named_with_its_optimizer(tmp_path):
    """Two problems of one network may differ in nothing else."""
    _, (left,) = read(tmp_path, problems=PROBLEMS + "d,n,sgd,0.8,1,20,32\n")
    assert left.name == "d/n (sgd) on x1"


def test_a_problem_without_rows_is_left_out(tmp_path):
    """It is named with the reason; the others are replayed."""
    found, left_out = read(tmp_path, problems=PROBLEMS + "e,m,sgd,0.5,1,10,8\n")
    assert len(found) == 1
    assert (left_out[0].dataset, left_out[0].reason) == ("e", "no rows of it in the power table")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"train": TRAIN.replace("target_epoch", "epoch")}, "column target_epoch missing"),
        ({"power": POWER.replace("average_power", "power")}, "column average_power missing"),
        ({"train": TRAIN.replace("0.8,4", "0.8,soon")}, "train.csv, line 3: target_epoch is"),
        ({"problems": PROBLEMS.replace(",1,20", ",maybe,20")}, "line 2: higher_is_better is"),
        ({"problems": PROBLEMS.replace(",20,", ",2.5,")}, "max_epochs is '2.5'"),
        ({"problems": PROBLEMS.splitlines()[0] + "\n"}, "no rows below the header"),
        ({"problems": PROBLEMS.replace("d,n", "x,y")}, "nothing to replay"),
        ({"train": TRAIN.replace(",32,", ",16,").replace(",64,", ",16,")}, "default batch size"),
    ],
)
def test_bad_tables_are_refused_with_their_place(tmp_path, texts, said):
    """The error has the file, and the line where possible."""
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, **texts)


def test_a_missing_file_is_named(tmp_path):
    """With the columns it should have."""
    tables = write_tables(tmp_path)
    with pytest.raises(ConfigError, match="no such file; give a CSV with dataset"):
        read_workloads([tables.power], tmp_path / "none.csv", tables.problems)
