"""Registry of cost rules, to which users can add their own."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.costs import convolution, product, rows, sequence, stream
from wattloop.predict.workload.costs.call import Call, ModuleCall
from wattloop.predict.workload.operation import Operation

Rule = Callable[[Call], Operation | Sequence[Operation]]
ModuleRule = Callable[[ModuleCall], Operation | Sequence[Operation]]


def register_rule(target: str | type, rule: Callable[[Any], Any]) -> None:
    """Register a rule for an operation (`"aten.my_op"`, `"mylib.scan"`) or a module class.

    The rule of an operation gets a `Call`, that of a module a `ModuleCall` for its forward and
    another for its backward; both give operations, best made by `wattloop.predict.workload.costs`.
    What a module with a rule does inside is then not counted.
    """
    if not callable(rule):
        raise ConfigError(f"rule of {target!r}: expected a function, got {type(rule).__name__}")
    if isinstance(target, str):
        if "." not in target:
            raise ConfigError(
                f"rule of '{target}': name the operation with its namespace, such as 'aten.mm'"
            )
        _user_rules[target] = rule
    elif inspect.isclass(target):
        _module_rules[target] = rule
    else:
        raise ConfigError(f"rule of {target!r}: expected the name of an operation or a class")


def unregister_rule(target: str | type) -> None:
    _user_rules.pop(target, None)  # type: ignore[arg-type]  # a class is simply not found
    _module_rules.pop(target, None)  # type: ignore[arg-type]  # a name is simply not found


def registered() -> tuple[str, ...]:
    """Return the user's rules, by name and source, for a key of the cache."""
    return tuple(
        f"{target}:{_source(rule)}"
        for target, rule in sorted(
            {
                **_user_rules,
                **{each.__qualname__: _module_rules[each] for each in _module_rules},
            }.items()
        )
    )


def module_rule(module: Any) -> ModuleRule | None:
    """Return the rule of a module's class or of one it inherits from."""
    if not _module_rules:
        return None
    for each in type(module).__mro__:
        if each in _module_rules:
            return _module_rules[each]
    return None


def operations_of(call: Call) -> Sequence[Operation]:
    """Return the operations of a call; by its bytes when no rule is known."""
    rule = _user_rules.get(call.name) or _RULES.get(call.name) or stream.rule_of(call)
    made = rule(call)
    return (made,) if isinstance(made, Operation) else made


def _source(rule: Any) -> str:
    try:
        return inspect.getsource(rule)
    except (OSError, TypeError):
        return repr(rule)


_RULES: dict[str, Rule] = {
    **product.RULES,
    **convolution.RULES,
    **sequence.RULES,
    **rows.RULES,
}
_user_rules: dict[str, Rule] = {}
_module_rules: dict[type, ModuleRule] = {}
