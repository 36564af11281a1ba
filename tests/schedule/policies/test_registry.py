"""Promises of policies by name: every notation works, and every wrong one has its message."""

from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.policies.pollux import Pollux
from wattloop.schedule.policies.registry import POLICIES, policies_from, policy_cards, policy_from
from wattloop.schedule.policies.zeus import Zeus

MINE = '''
from wattloop.schedule.objectives import ENERGY
from wattloop.schedule.policies.packing import PackingPolicy
from wattloop.schedule.policies.zeus import Zeus

class Mine(PackingPolicy):
    """Least energy first."""
    objective = ENERGY
    def __init__(self, weight: float = 2.0, tries: int = 3, bold: bool = False) -> None:
        self.settings = weight, tries, bold
    def rank(self, view, waiting, cost):
        return cost

class Needy(Mine):
    """Must be told something."""
    def __init__(self, goal: float) -> None:
        self.goal = goal

class MyZeus(Zeus):
    """Inherits a name."""

class Impostor(Zeus):
    """Takes a name."""
    name = "zeus"

class Unfinished(PackingPolicy):
    """Has no rank."""

something = 3
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """A file with a user's own policies."""
    path = tmp_path / "my_policies.py"
    path.write_text(MINE)
    return str(path)


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_gives_a_policy_of_that_name(name: str) -> None:
    """The name in results is the requested one."""
    assert policy_from(name).name == name


@pytest.mark.parametrize(
    "written",
    [
        "pollux{age_weight: 0.2}",
        " pollux { age_weight: 0.2 } ",
        {"pollux": {"age_weight": 0.2}},
        {"name": "pollux", "age_weight": 0.2},
        {"name": "pollux", "age_weight": "2e-1"},
    ],
)
def test_parameters_in_text_and_in_yaml(written: str | dict[str, object]) -> None:
    """All of these are one policy, whose name has its parameters."""
    policy = policy_from(written)
    assert isinstance(policy, Pollux)
    assert policy.age_weight == 0.2
    assert policy.name == "pollux{age_weight: 0.2}"


def test_a_list_in_one_text() -> None:
    """Commas inside braces belong to the policy; two settings of one policy are two policies."""
    found = policies_from("fifo, zeus{age_weight_per_s: 0},zeus")
    assert [policy.name for policy in found] == ["fifo", "zeus{age_weight_per_s: 0.0}", "zeus"]
    assert [type(policy) for policy in policies_from(["zeus", {"pollux": None}])] == [Zeus, Pollux]


def test_a_policy_of_ones_own_by_file_and_by_module(
    mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts parameters; numbers get the type of the default."""
    policy = policy_from(f"{mine}:Mine{{weight: 1, tries: 5, bold: true}}")
    assert policy.settings == (1.0, 5, True)  # type: ignore[attr-defined] # of the file
    assert policy.name == "mine{weight: 1.0, tries: 5, bold: True}"
    monkeypatch.chdir(Path(mine).parent)
    assert policy_from("my_policies:Mine").name == "mine"
    assert policy_from("my_policies.py:Mine").name == "mine"


def test_a_policy_that_derives_from_ours_is_not_taken_for_it(mine: str) -> None:
    """Both can be compared in one campaign."""
    found = policies_from(f"zeus,{mine}:MyZeus,{mine}:MyZeus{{age_weight_per_s: 0}}")
    assert [each.name for each in found] == ["zeus", "myzeus", "myzeus{age_weight_per_s: 0.0}"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("zuse", r"unknown policy 'zuse'; did you mean 'zeus'\? \(one of your own: FILE.py:Class"),
        ("qqqq", "unknown policy 'qqqq'; known are fifo, "),
        ("Zeuss", "did you mean 'zeus'"),
        ("", "no policy is named; known are fifo, "),
        ("zeus,zeus", "policy zeus is given twice"),
        ("pollux{age: 1}", "policy pollux: unknown parameter 'age'; "),
        ("fifo{age: 1}", "policy fifo: unknown parameter 'age'; "),
        ("pollux{sleep: 60}", "sleep is 60; write true or false"),
        ("selene{delay: soon}", "delay is soon; give a time such as 6 h"),
        ("helios{delay: -1 h}", "delay is -1 h; give a time such as 6 h"),
        ("pollux{age_weight: many}", "age_weight is 'many'; give a number"),
        ("pollux{age_weight: true}", "age_weight is True; give a number"),
        ("pollux{age_weight: .nan}", "age_weight is nan; give a number"),
        ("pollux{age_weight: -1}", "policy pollux: age_weight is -1; give a number from 0 up"),
        ("pollux{age_weight", r"parameters are written as pollux\{parameter: value\}"),
        ("pollux{3}", "policy pollux: "),
        ("nowhere.py:Mine", "no file .*nowhere.py"),
        ("nowhere.py", "name the class as well, such as nowhere.py:MyPolicy"),
        ("no.such.module:Mine", "no module no is installed or in this folder"),
        ("json:loads", "loads is not a policy; derive it from PackingPolicy or Policy"),
    ],
)
def test_what_is_said_of_a_wrong_one(written: str, said: str) -> None:
    """The message has the error and the right form."""
    with pytest.raises(ConfigError, match=said):
        policies_from(written)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (":Mime", "no class Mime in .*; did you mean 'Mine'"),
        (":Unfinished", "Unfinished is not a policy"),
        (":Impostor", "is called zeus, as one of ours is"),
        (":something", "something is not a policy"),
        (":Needy", r"give its goal, as .*\{goal: VALUE\}"),
        (":Mine{tries: 2.5}", "tries is 2.5; give a whole number"),
        (":Mine{bold: 1}", "bold is 1; write true or false"),
    ],
)
def test_what_is_said_of_ones_own(mine: str, end: str, said: str) -> None:
    """Files of users get the same checks."""
    with pytest.raises(ConfigError, match=said):
        policy_from(mine + end)


@pytest.mark.parametrize("written", [3, None, {}, {"zeus": {}, "fifo": {}}, {"zeus": [1]}])
def test_what_yaml_may_hold_instead_is_refused_in_words(written: object) -> None:
    """A scenario's list may have any content."""
    with pytest.raises(ConfigError, match="policy"):
        policies_from([written])  # type: ignore[list-item] # the point of the test


@pytest.mark.parametrize("text", ["raise RuntimeError('boom')", "def (", "raise SystemExit(3)"])
def test_a_file_that_fails_is_an_error_in_words(tmp_path: Path, text: str) -> None:
    """The message has no traceback, and the process continues."""
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.py failed with"):
        policy_from(f"{tmp_path}/bad.py:Mine")


def test_the_list_says_what_each_does_and_takes() -> None:
    """The list feeds `wattloop simulate policies` and the documentation."""
    cards = {card.name: card for card in policy_cards()}
    assert list(cards) == list(POLICIES)
    assert cards["zeus"].formula == "score = min(P T^2) / (1 + W_age (now - arrival))."
    assert cards["pollux"].parameters == {"age_weight": 1.0, "sleep": False, "isolate": False}
    assert all(card.summary.endswith(".") and card.formula for card in cards.values())
