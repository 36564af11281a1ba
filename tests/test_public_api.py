"""Promises of the public package: `__all__` lists existing names, and they work."""

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import wattloop


def modules() -> list[str]:
    """Return every module of the package that can be imported without an extra."""
    names = [m.name for m in pkgutil.walk_packages(wattloop.__path__, "wattloop.")]
    return [
        n for n in names if not n.startswith(("wattloop.integrations", "wattloop.tune.callbacks."))
    ]


def test_every_public_name_exists() -> None:
    """Every name in `__all__` exists."""
    for name in wattloop.__all__:
        assert getattr(wattloop, name) is not None


def test_measure_is_callable_and_a_package() -> None:
    """`wattloop.measure()` measures, `wattloop.measure.api` is importable, in either order."""
    import wattloop.measure.api

    assert isinstance(wattloop.measure, ModuleType)
    assert isinstance(wattloop.measure("x"), wattloop.Measurement)
    assert wattloop.measure.api.Measurement is wattloop.Measurement


@pytest.mark.parametrize("package", ["wattloop.tune", "wattloop.predict", "wattloop.kernels"])
def test_no_module_hides_a_public_name(package: str) -> None:
    """Importing `wattloop.tune.x` would replace a function `x` that `wattloop.tune` offers."""
    found = importlib.import_module(package)
    inside = {module.name for module in pkgutil.iter_modules(found.__path__)}
    assert inside & set(found.__all__) == set()


def test_unknown_attribute_is_an_attribute_error() -> None:
    """A typing error is reported as Python does."""
    with pytest.raises(AttributeError, match="mesure"):
        _ = wattloop.mesure


def test_version_is_that_of_the_distribution() -> None:
    """pyproject.toml and version.py agree."""
    import tomllib
    from pathlib import Path

    data = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert wattloop.__version__ == data["project"]["version"]


@pytest.mark.parametrize("name", modules())
def test_all_of_a_module_is_correct(name: str) -> None:
    """Every name in `__all__` exists; every module has a docstring."""
    module = importlib.import_module(name)
    assert inspect.getdoc(module), f"{name} has no docstring"
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name}.__all__ names {public}, which does not exist"
