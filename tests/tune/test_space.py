"""Promises of `space`: conditions and links hold in every configuration, and each is there once."""

import numpy as np
import pytest

from wattloop.core.errors import ConfigError
from wattloop.tune.space import Choice, Fixed, Integer, Linked, Real, Space, configuration_key

CHAIN = Space(
    {
        "eval_batch": Linked(same_as="batch"),
        "nesterov": Choice(values=(True, False), when={"momentum": (0.9,)}),
        "momentum": Choice(values=(0.0, 0.9), when={"optimizer": ("sgd",)}),
        "same_momentum": Linked(same_as="momentum"),
        "optimizer": Choice(values=("sgd", "adam")),
        "beta": Choice(values=(1, 2, 3), when={"optimizer": ("adam",)}),
        "batch": Choice(values=(32, 64)),
        "layers": Fixed(value=18),
    }
)


def by_hand() -> set[str]:
    found = set()
    for batch in (32, 64):
        base = {"batch": batch, "eval_batch": batch, "layers": 18}
        for beta in (1, 2, 3):
            found.add(configuration_key({**base, "optimizer": "adam", "beta": beta}))
        sgd = {**base, "optimizer": "sgd"}
        found.add(configuration_key({**sgd, "momentum": 0.0, "same_momentum": 0.0}))
        for nesterov in (True, False):
            own = {"momentum": 0.9, "same_momentum": 0.9, "nesterov": nesterov}
            found.add(configuration_key({**sgd, **own}))
    return found


def test_conditions_of_conditions_and_links_to_them_hold() -> None:
    """Chains of conditions, links to conditional parameters, in any order of writing."""
    grid = [configuration_key(c) for c in CHAIN.grid()]
    assert len(grid) == len(set(grid)) == CHAIN.size == 12
    assert set(grid) == by_hand()


def test_samples_are_configurations_of_the_grid() -> None:
    """And all of them are drawn sooner or later; keys are in the order of the space."""
    rng = np.random.default_rng(0)
    drawn = [CHAIN.sample(rng) for _ in range(500)]
    assert {configuration_key(c) for c in drawn} == by_hand()
    order = list(CHAIN.parameters)
    for found in drawn:
        assert list(found) == [name for name in order if name in found]
        assert CHAIN.complete(found) == found and CHAIN.contains(found)


def test_a_grid_without_conditions_is_a_product_with_the_last_fastest() -> None:
    """As nested loops in the order of writing."""
    space = Space({"a": Choice(values=(1, 2)), "b": Choice(values=("x", "y"))})
    assert [(c["a"], c["b"]) for c in space.grid()] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_a_large_space_is_counted_without_being_listed() -> None:
    """Twelve parameters with ten values each, one of them conditional."""
    parameters = {f"p{i}": Choice(values=tuple(range(10))) for i in range(11)}
    space = Space({**parameters, "q": Choice(values=tuple(range(10)), when={"p0": (0, 1)})})
    assert space.size == 10**10 * (8 + 2 * 10)
    assert Space({**parameters, "lr": Real(low=0.1, high=1.0)}).size is None


def test_conditions_tell_true_from_one() -> None:
    """`when: {amp: true}` is not met by the number 1."""
    space = Space(
        {"amp": Choice(values=(1, True)), "scale": Choice(values=(2, 4), when={"amp": (True,)})}
    )
    assert [len(c) for c in space.grid()] == [1, 2, 2]


def test_complete_fills_in_and_leaves_out() -> None:
    """Links and fixed values are added, inactive parameters dropped, numbers normalised."""
    given = {"batch": 32.0, "optimizer": "adam", "beta": 2, "momentum": 0.9, "nesterov": True}
    found = CHAIN.complete(given)
    assert found == {
        **{"eval_batch": 32, "optimizer": "adam", "beta": 2, "batch": 32, "layers": 18}
    }
    assert isinstance(found["batch"], int)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"btach": 32}, "btach: no parameter of this space; it has eval_batch"),
        ({"batch": 32, "optimizer": "adam"}, "beta: no value"),
        ({"batch": 33, "optimizer": "adam", "beta": 1}, "batch: 33 is none of 32, 64"),
        (
            {"batch": 32, "eval_batch": 64, "optimizer": "adam", "beta": 1},
            "eval_batch: it is 64, but always the same as batch, which is 32",
        ),
    ],
)
def test_a_wrong_configuration_is_refused(given: dict[str, object], said: str) -> None:
    """With the parameter that is wrong."""
    with pytest.raises(ConfigError, match=said):
        CHAIN.complete(given)  # type: ignore[arg-type]  # wrong on purpose
    assert not CHAIN.contains(given)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"a": Linked(same_as="b")}, "a: it depends on 'b', which is not in this space"),
        ({"a": Linked(same_as="a")}, "in a circle: a"),
        (
            {
                "a": Choice(values=(1, 2), when={"b": (1,)}),
                "b": Choice(values=(1, 2), when={"a": (1,)}),
            },
            "in a circle: a, b",
        ),
        (
            {"a": Integer(low=1, high=5), "b": Choice(values=(1, 2), when={"a": (9,)})},
            "b: when a is 9, which it never is",
        ),
        (
            {
                "c": Choice(values=(1, 2)),
                "b": Choice(values=(1, 2), when={"c": (1,)}),
                "a": Choice(values=(1, 2), when={"b": (1,), "c": (2,)}),
            },
            "a: it never exists: its conditions never hold together",
        ),
        (
            {
                "x": Choice(values=(1, 2)),
                "y": Linked(same_as="x"),
                "z": Choice(values=(1, 2), when={"y": (3,)}),
            },
            "z: when y is 3, which it never is",
        ),
    ],
)
def test_a_contradictory_space_is_refused(parameters: dict[str, object], said: str) -> None:
    """Circles, conditions on nothing, conditions that never hold."""
    with pytest.raises(ConfigError, match=said):
        Space(parameters)  # type: ignore[arg-type]  # a mapping of parameters


def test_hardware_is_kept_apart() -> None:
    """Levers are set on devices, the rest is given to the training."""
    space = Space(
        {
            "batch": Choice(values=(32, 64)),
            "power_limit": Choice(values=("60%", 250.0), lever="gpu/power_limit"),
            "gpus": Choice(values=(1, 2), lever="gpus"),
        }
    )
    assert space.hardware == ("power_limit", "gpus")
    own, levers = space.split({"batch": 32, "power_limit": "60%", "gpus": 2})
    assert own == {"batch": 32} and levers == {"power_limit": "60%", "gpus": 2}


def test_what_is_varied_has_several_values() -> None:
    """Links, fixed parameters and ranges of one value are not searched."""
    space = Space(
        {
            "a": Choice(values=(1,)),
            "b": Fixed(value=1),
            "c": Linked(same_as="d"),
            "d": Choice(values=(1, 2)),
            "e": Integer(low=2, high=2),
            "f": Real(low=0.1, high=0.2),
        }
    )
    assert space.varied == ("d", "f")
