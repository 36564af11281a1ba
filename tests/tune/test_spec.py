"""Promises of `spec`: what people write is understood, and faults name line, field and remedy."""

from pathlib import Path

import numpy as np
import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.tune.segment import CapRequest
from wattloop.tune.space import Choice, Fixed, Integer, Linked, Real
from wattloop.tune.spec import SearchSpec, read_spec, spec_from

WHOLE = """\
name: cifar
command: python train.py ${args}
method: race
metric: {name: accuracy, goal: maximize, target: 0.8}
parameters:
  batch_size: {values: [32, 64, 128]}
  eval_batch_size: {same_as: batch_size}
  lr: {distribution: log_uniform_values, min: 1e-4, max: 1e-1}
  optimizer: {values: [sgd, adam]}
  momentum: {min: 0.5, max: 0.99, when: {optimizer: sgd}}
  layers: {min: 1, max: 9, q: 2}
  amp: {values: [true, false]}
  dropout: {value: 0.1}
hardware:
  power_limit: [60%, 80%, 100%]
  sm_clock: {from: 900, to: 1500, step: 300}
  gpus: [1, 2]
objective: {name: eds, k: 1.5}
limits: {energy: 2 kWh, deadline: 3 h, trials: 20, epochs: 30, trial_timeout: 10 min}
default: {batch_size: 64, lr: 1e-3, optimizer: adam, layers: 3, amp: true, gpus: 1}
seed: 7
scope: gpu
checkpoint: true
metrics_file: metrics.jsonl
"""


def read(tmp_path: Path, text: str) -> SearchSpec:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return read_spec(str(path))


def test_hardware_is_varied_one_at_a_time_when_asked() -> None:
    """With `combine: each`, three lists of 4, 3 and 2 make 1 + 3 + 2 + 1 configurations."""
    hardware = {"power_limit": ["100%", "85%", "70%", "50%"], "sm_clock": ["100%", "85%", "70%"]}
    written = {"parameters": {"x": [1, 2]}, "hardware": {**hardware, "gpus": [1, 2]}}
    assert spec_from(written).space().size == 2 * 4 * 3 * 2
    written["hardware"] = {**written["hardware"], "combine": "each"}
    spec = spec_from(written)
    assert spec_from(spec.to_dict()) == spec
    points = [spec.space().split(found)[1] for found in spec.space().grid()]
    assert spec.space().size == len(points) == 2 * (1 + 3 + 2 + 1)
    firsts = {"power_limit": "100%", "sm_clock": "100%", "gpus": 1}
    for point in points:
        assert sum(value != firsts[name] for name, value in point.items()) <= 1
    assert {"power_limit": "50%"} in points  # the clock is left as it is


def test_a_whole_file_is_understood(tmp_path: Path) -> None:
    """Every field, with units; and it comes back the same from its stored form."""
    spec = read(tmp_path, WHOLE)
    assert spec_from(spec.to_dict()) == spec
    problem = spec.problem()
    parameters = problem.space.parameters
    assert parameters["batch_size"] == Choice(values=(32, 64, 128))
    assert parameters["eval_batch_size"] == Linked(same_as="batch_size")
    assert parameters["lr"] == Real(low=1e-4, high=0.1, log=True)
    assert parameters["momentum"] == Real(low=0.5, high=0.99, when={"optimizer": ("sgd",)})
    assert parameters["layers"] == Integer(low=1, high=9, step=2)
    assert parameters["dropout"] == Fixed(value=0.1)
    assert parameters["sm_clock"] == Choice(values=(900.0, 1200.0, 1500.0), lever="gpu/sm_clock")
    assert problem.space.hardware == ("power_limit", "sm_clock", "gpus")
    assert problem.quality.maximize and problem.quality.target == 0.8
    assert (problem.limits.energy_j, problem.limits.time_s) == (7.2e6, 10_800.0)
    assert (problem.limits.candidates, problem.limits.epochs) == (20, 30)
    assert (problem.limits.trial_time_s, problem.seed) == (600.0, 7)
    assert problem.objective.names == ("eds",) and problem.objective.k == 1.5
    assert problem.cap is None  # caps are listed, so they are an ordinary parameter


def test_a_default_is_made_whole(tmp_path: Path) -> None:
    """Links are filled in, and a cap that it does not name is the highest."""
    default = read(tmp_path, WHOLE).problem().default
    assert default["eval_batch_size"] == 64 and default["dropout"] == 0.1
    assert default["power_limit"] == "100%" and default["sm_clock"] == 1500.0
    assert "momentum" not in default


def test_an_empty_field_is_as_if_it_were_not_given(tmp_path: Path) -> None:
    """Promise: `time:` without a value sets no limit, and `target:` no target."""
    text = X + "metric: {name: loss, target: }\nlimits: {time: , energy: , trial_timeout: }"
    spec = read(tmp_path, text)
    assert spec.metric is not None and spec.metric.target is None
    limits = spec.limits
    assert (limits.time_s, limits.energy_j, limits.trial_timeout_s) == (None, None, None)


def test_a_sweep_of_wandb_is_understood(tmp_path: Path) -> None:
    """Program, project, run_cap, bayes, distributions by their names there."""
    spec = read(
        tmp_path,
        "program: train.py\nproject: p\nmethod: bayes\nrun_cap: 5\n"
        "metric: {name: val_loss}\nparameters:\n"
        "  a: {distribution: log_uniform, min: -4.605170185988091, max: 0}\n"
        "  b: {distribution: q_uniform, min: 0, max: 1, q: 0.25}\n"
        "  c: {distribution: int_uniform, min: 1, max: 4}\n"
        "  d: {distribution: constant, value: x}\n  e: {distribution: categorical, values: [1]}\n"
        "  f: {distribution: q_uniform, min: 8, max: 32, q: 8}\n"
        "  g: {distribution: q_log_uniform_values, min: 32, max: 256, q: 8}\n",
    )
    assert spec.command == ["/usr/bin/env", "python", "train.py", "${args}"]
    assert (spec.strategy.name, spec.limits.trials) == ("tpe", 5)
    assert spec.notes == ["project: not used here"]
    parameters = spec.space().parameters
    low = parameters["a"]
    assert isinstance(low, Real) and low.log and low.low == pytest.approx(0.01)
    assert parameters["b"].listed() == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert parameters["c"] == Integer(low=1, high=4)
    drawn = [parameters[name].draw(np.random.default_rng(0)) for name in "fg"]
    assert [type(value) for value in (*parameters["f"].listed(), *drawn)] == [int] * 6
    assert not spec.quality.maximize


def test_early_stopping_of_wandb_becomes_successive_halving(tmp_path: Path) -> None:
    """With random it is `asha` with the same rungs; with a strategy of its own it is refused."""
    base = "metric: {name: loss}\nparameters: {x: [1, 2]}\n"
    spec = read(
        tmp_path, base + "method: random\nearly_terminate: {type: hyperband, min_iter: 3, eta: 2}\n"
    )
    assert (spec.strategy.name, spec.strategy.options) == ("asha", {"eta": 2.0, "rung_epochs": 3})
    assert spec_from(spec.to_dict()) == spec
    bracket = "early_terminate: {type: hyperband, max_iter: 27, s: 2}\n"
    assert read(tmp_path, base + bracket).strategy.options == {
        "eta": 3,
        "rung_epochs": 3,
        "rungs": 3,
    }
    with pytest.raises(ConfigError, match=r":4: early_terminate: .* race decides by itself"):
        read(tmp_path, base + "method: race\n" + bracket)


def test_objects_and_short_forms_do_in_python() -> None:
    """The same from Python: lists, plain values and parameter objects."""
    spec = spec_from(
        {
            "metric": {"name": "acc", "goal": "maximize"},
            "parameters": {
                "lr": Real(low=1e-5, high=1e-1, log=True),
                "width": Integer(low=1, high=1024, log=True),
                "batch": [16, 32],
                "name": "resnet",
                "momentum": Real(low=0.0, high=0.9, step=0.3, when={"batch": (16,)}),
            },
            "objective": ["energy", "time"],
            "limits": {"trials": 20},
        }
    )
    parameters = spec.space().parameters
    assert parameters["lr"] == Real(low=1e-5, high=1e-1, log=True)
    assert parameters["width"] == Integer(low=1, high=1024, log=True)
    assert parameters["batch"] == Choice(values=(16, 32))
    assert parameters["name"] == Fixed(value="resnet")
    assert parameters["momentum"].listed() == (0.0, 0.3, 0.6, 0.9)
    assert spec_from(spec.to_dict()) == spec
    assert spec.strategy.name == "nsga2"  # a front, and no strategy was named


def test_levers_of_objects_are_kept() -> None:
    """A hardware parameter that is made in Python is one, also after it was stored."""
    caps = Choice(values=(150.0, 250.0), lever="gpu/power_limit")
    spec = spec_from({"parameters": {"cap": caps, "x": [1, 2]}})
    assert spec_from(spec.to_dict()).space().hardware == ("cap",)
    with pytest.raises(ConfigError, match=r"parameters\.cap\.lever: 'governor' is not a lever"):
        spec_from({"parameters": {"cap": {"values": [1], "lever": "governor"}}})


def test_types_are_kept() -> None:
    """True is not 1 and 1e-3 is a number, though YAML 1.1 says it is a text."""
    spec = spec_from({"parameters": {"a": {"values": [True, 1, "1e-3", "x", None]}}})
    assert spec.space().parameters["a"] == Choice(values=(True, 1, 0.001, "x", None))
    assert [type(v) for v in spec.parameters["a"].values or []][:3] == [bool, int, float]
    again = spec_from(spec.to_dict())
    assert [type(v) for v in again.parameters["a"].values or []][:3] == [bool, int, float]


@pytest.mark.parametrize(
    ("written", "search"),
    [
        ("auto", CapRequest(metric="edp")),
        ("{auto: [100, 150, 200]}", CapRequest(metric="edp", caps_w=(100.0, 150.0, 200.0))),
        ("{metric: eds, k: 1.5, longest: 1 min}", CapRequest(metric="eds", k=1.5, longest_s=60.0)),
    ],
)
def test_a_cap_can_be_searched_inside_trainings(
    tmp_path: Path, written: str, search: CapRequest
) -> None:
    """It follows the objective by default, and needs no other parameter."""
    text = f"metric: {{name: loss}}\nobjective: edp\nhardware: {{power_limit: {written}}}"
    assert read(tmp_path, text).problem().cap == search


def test_prices_and_carbon_come_from_the_settings() -> None:
    """The user's configuration is used; without it the message says what to give."""
    x = {"x": [1, 2]}
    settings = Settings(tariff_per_kwh=0.25, carbon_g_per_kwh=56.0)
    cost = spec_from({"parameters": x, "objective": "cost"})
    carbon = spec_from({"parameters": x, "objective": {"name": "carbon"}})
    assert cost.problem(settings).objective.options == {"price_per_kwh": 0.25}
    assert carbon.problem(settings).objective.options == {"carbon_g_per_kwh": 56.0}
    with pytest.raises(ConfigError, match="give price_per_kwh, or set tariff"):
        cost.problem(Settings())
    with pytest.raises(ConfigError, match="give carbon_g_per_kwh; or set zone"):
        carbon.problem(Settings())


X = "parameters: {x: [1, 2]}\n"
FAULTS = [
    (
        "metric: {name: acc, goal: maximize, target: .nan}",
        r"metric.target: .* finite number, not nan",
    ),
    ("metod: race", r"s\.yaml:1: metod: unknown field; did you mean 'method'\?"),
    ("", r"parameters: the space is empty"),
    ("parameters:\n  x: 3", r":1: parameters: nothing to search"),
    ("parameters:\n  x: {vals: [1]}", r":2: parameters\.x\.vals: unknown field; .*'values'"),
    ("parameters:\n  x: {values: []}", r":2: parameters\.x: no values"),
    ("parameters:\n  x: {values: [1, 1]}", r":2: parameters\.x: .*given twice"),
    ("parameters:\n  x: {min: 1}", r":2: parameters\.x: max is missing"),
    ("parameters:\n  x: {min: 3, max: 1}", r":2: parameters\.x: min 3 is above max 1"),
    ("parameters:\n  x: {min: 0, max: 1, log: true}", r":2: .*logarithmic scale begins above 0"),
    ("parameters:\n  x: {min: 0, max: 1, values: [1]}", r":2: .*contradict each other"),
    ("parameters:\n  x: {min: a, max: 1}", r":2: parameters\.x\.min: .*number.*'a'"),
    ("parameters:\n  x: {q: 1, values: [1]}", r":2: parameters\.x: q goes with min and max"),
    ("parameters:\n  x: {distribution: normal, mu: 0}", r":2: .*needs bounds"),
    ("parameters:\n  x: {distribution: unifrm, min: 0, max: 1}", r":2: .*'uniform'"),
    ("parameters:\n  x: {distribution: uniform, values: [1]}", r":2: .*does not go with values"),
    ("parameters:\n  x: {distribution: q_uniform, min: 0, max: 1}", r":2: .*needs q"),
    ("parameters:\n  x: {parameters: {y: 1}}", r":2: parameters\.x: .*write them flat"),
    ("parameters:\n  x: {values: [[1], 2]}", r":2: parameters\.x\.values\.0"),
    ("parameters:\n  x: {same_as: y}", r":2: parameters\.x: it depends on 'y', which is no"),
    (
        "parameters:\n  x: [1, 2]\n  y: {values: [1, 2], when: {x: 3}}",
        r":3: parameters\.y: when x is 3, which it never is",
    ),
    (
        "parameters:\n  a: {same_as: b}\n  b: {same_as: a}",
        r":2: parameters\.a: .*in a circle: a, b",
    ),
    (X + "metric: accuracy", r":2: metric: is more of 'accuracy' better\? Give goal"),
    (X + "metric: {goal: maximize, target: 1}", r":2: metric\.name: it is missing"),
    (X + "metric: {name: loss, target: good}", r":2: metric\.target: .*number.*'good'"),
    (X + "objective: quality", r":2: objective: quality needs a metric"),
    (X + "objective: enrgy", r":2: objective\.name: unknown objective 'enrgy'; .*'energy'"),
    (X + "objective: {name: eds, k: 1}", r":2: objective\.k: .*greater than 1"),
    (X + "objective: [energy, energy]", r":2: objective\.name: .*given twice"),
    (
        X + "metric: loss\nobjective: [energy, time]\nmethod: race",
        r":3: objective: race follows one objective; for a front of energy and time use nsga2",
    ),
    (X + "method: asha", r":2: method: asha compares trainings by their quality"),
    (X + "method: rase", r":2: method\.name: unknown strategy 'rase'; did you mean 'race'"),
    (X + "method: race\nstrategy: race", r":2: method: it is the same as strategy; keep one"),
    (X + "limits: {trials: 3}\nrun_cap: 5", r":3: run_cap: it is the same as limits\.trials"),
    (X + "limits: {energy: 0}", r":2: limits\.energy: .*greater than 0"),
    (X + "limits: {energy: much}", r":2: limits\.energy: 'much' is not an energy"),
    (X + "limits:\n  time: -3 h", r":3: limits\.time"),
    (X + "limits: {time: 3 h, deadline: 2 h}", r":2: limits: time and deadline are the same"),
    (X + "limits: {trials: 0}", r":2: limits\.trials: .*greater than 0"),
    (X + "limits: {trails: 5}", r":2: limits\.trails: unknown field; did you mean 'trials'"),
    (X + "default: {x: 3}", r":2: default\.x: 3 is none of 1, 2"),
    (X + "default: {y: 3}", r":2: default\.y: no parameter of this space; it has x"),
    ("parameters: {x: [1, 2], y: [1]}\ndefault: {x: 1}", r":2: default\.y: no value"),
    (
        "parameters:\n  x: {min: 0.0, max: 1}\nmethod: grid",
        r":2: parameters\.x: a grid needs values to list",
    ),
    (
        "parameters: {x: {min: 0.0, max: 1}}\nmethod: random",
        r"limits: random never ends by itself over a range: give trials",
    ),
    (
        X + "metric: loss\nobjective: sm2\nmethod: tpe",
        r":3: objective: tpe scores each training by itself",
    ),
    (X + "rate: lr", r":2: rate: 'lr' is not a parameter of this space; it has x"),
    ("parameters: {x: [a, b]}\nrate: x", r":2: rate: 'x' must be a parameter with numbers"),
    (
        X + "command: python t.py ${args}\nmethod: race\nmetric: {name: loss, target: 1}\nrate: x",
        r":5: rate: race sweeps .* a command does not allow: leave rate out, and 'x' is searched",
    ),
    (
        X + "hardware: {power_limit: auto}\nobjective: time",
        r":2: hardware\.power_limit: with least time .* leave it out",
    ),
    (X + "hardware: {power_limit: [a%]\n", r"not valid YAML"),
    (
        X + "hardware: {powerlimit: [100]}",
        r":2: hardware\.powerlimit: unknown field; .*power_limit",
    ),
    (X + "hardware: {gpus: [0]}", r":2: hardware\.gpus\.0: .*greater than or equal to 1"),
    (X + "hardware: {power_limit: {auto: [50%, 60%]}}", r":2: hardware\.power_limit.*watts"),
    (X + "hardware: {levers: {governor: [a]}}", r":2: hardware: .*write it as cpu/governor"),
    (
        "parameters: {gpus: [1, 2]}\nhardware: {gpus: [1, 2]}",
        r":1: parameters\.gpus: the hardware section has it, too",
    ),
    (X + "early_terminate: {type: envelope}", r":2: early_terminate\.type: .*'hyperband'"),
    (X + "early_terminate: {type: hyperband}", r":2: early_terminate: give min_iter"),
    (X + "command: 'python \"x'", r":2: command: not a command line"),
    (X + "command: {a: 1}", r":2: command: write a list"),
    (X + "command: python ${agrs}", r":2: command: unknown \$\{agrs\}; known are \$\{args\}"),
    (X + "command: [python, '${program}']", r":2: command: .*give program: train\.py"),
    (X + "scope: cpus", r":2: scope: .*'gpu'.*'cpus'"),
    (X + "metric: {name: acc, gaol: maximize}", r":2: metric\.gaol: .*did you mean 'goal'"),
    (X + "seed: 1\nseed: 2", r":3: 'seed' is given twice"),
]


@pytest.mark.parametrize(("text", "said"), FAULTS)
def test_a_fault_names_its_line_and_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    """File, line, field, what is wrong and what is allowed."""
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text)


def test_a_placeholder_that_is_nearly_a_parameter_is_refused() -> None:
    """It would reach the program as it is written; braces of other languages stay."""
    written = {"metric": {"name": "loss"}, "parameters": {"batch_size": [16, 32]}}
    with pytest.raises(
        ConfigError, match=r"command: \{batchsize\} is not a parameter; did you mean"
    ):
        spec_from({**written, "command": "python t.py --b {batchsize}"})
    for command in ("awk '{print}'", "t.py {batch_size} {seed} {trial_dir}", "t.py ${args}"):
        assert spec_from({**written, "command": command}).command


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    """A user can correct all errors of a file at once."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "seed: x\nlimits: {trials: 0}\nparameters: {y: {min: 1}}\n")
    lines = [line.partition(".yaml:")[2][0] for line in str(caught.value).splitlines()]
    assert lines == ["1", "2", "3"]


def test_the_learning_rate_is_told_to_strategies() -> None:
    """A spec for trainings in PyTorch names the parameter that `race` and `sm2` sweep."""
    written = {"parameters": {"lr": {"min": 1e-3, "max": 1.0, "log": True}}, "rate": "lr"}
    metric = {"name": "loss", "goal": "minimize", "target": 0.1}
    assert spec_from({**written, "metric": metric}).problem().rate == "lr"
