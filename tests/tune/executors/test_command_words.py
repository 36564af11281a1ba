"""Commands for one configuration."""

import json

from wattloop.tune.executors.command import command_words, parameter_variables

PARAMETERS = {"lr": 0.1, "layers": 3, "bias": True, "act": "relu"}


def words(command, folder, **options):
    return command_words(command, PARAMETERS, folder=folder, **options)


def test_placeholders_become_values(tmp_path):
    """Promise: everywhere in a word; braces that name no parameter stay."""
    found = words(["train", "--lr={lr}", "{layers}x", "{other}", '{"a": {lr}}'], tmp_path)
    assert found == ["train", "--lr=0.1", "3x", "{other}", '{"a": 0.1}']


def test_a_parameter_that_is_not_there_takes_its_word_along(tmp_path):
    """Promise: an inactive conditional parameter leaves no half argument."""
    found = words(["train", "--momentum={momentum}", "--lr={lr}"], tmp_path, inactive=["momentum"])
    assert found == ["train", "--lr=0.1"]


def test_the_macros_of_wandb(tmp_path):
    """Promise: a command from a W&B sweep means the same here."""
    assert words(["t", "${args}"], tmp_path) == [
        *("t", "--lr=0.1", "--layers=3", "--bias=True", "--act=relu")
    ]
    assert words(["${args_no_hyphens}"], tmp_path)[0] == "lr=0.1"
    assert "--bias" in words(["${args_no_boolean_flags}"], tmp_path)
    assert json.loads(words(["${args_json}"], tmp_path)[0]) == PARAMETERS
    (path,) = words(["${args_json_file}"], tmp_path)
    assert json.loads((tmp_path / "parameters.json").read_text()) == PARAMETERS
    assert path == str(tmp_path / "parameters.json")


def test_variables_carry_all_of_them():
    """Promise: a program may read its parameters from the environment."""
    variables = parameter_variables({"batch size": 32, "lr": 1e-05})
    assert variables["WATTLOOP_PARAM_BATCH_SIZE"] == "32"
    assert variables["WATTLOOP_PARAM_LR"] == "1e-05"
    assert json.loads(variables["WATTLOOP_PARAMS"]) == {"batch size": 32, "lr": 1e-05}
