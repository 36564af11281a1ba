"""What rules mean on this machine, in words, before a daemon is started with them."""

from wattloop.control.daemon.ranges import Range
from wattloop.control.daemon.rules import Rule, Rules, matches
from wattloop.control.lever import Lever, shown
from wattloop.control.owner import user_name
from wattloop.control.registry import inventory

__all__ = ["checked"]


def checked(rules: Rules) -> list[str]:
    """One line per thing that holds, or does not, on this machine. Sets nothing."""
    levers = inventory(remote=False).levers
    lines = [f"{rules.path}: {len(rules.rules)} rule(s), {len(levers)} lever(s) on this machine"]
    for lever in levers:
        cap = rules.default_cap_for(lever.name)
        if cap is not None:
            lines.append(f"default: {lever.name} at most {_amount(lever, cap.on)} ({cap})")
        low_power = next((a for p, a in rules.low_power.items() if matches(p, lever.name)), None)
        if low_power is not None:
            lines.append(f"low_power: {lever.name} at {_amount(lever, low_power.on)} ({low_power})")
    for rule in rules.rules:
        lines += _rule(rules, rule, levers)
    patterns = [*rules.default_caps, *rules.low_power]
    patterns += [pattern for rule in rules.rules for pattern in rule.levers]
    for pattern in dict.fromkeys(patterns):
        if not any(matches(pattern, lever.name) for lever in levers):
            lines.append(f"warning: {pattern} fits no lever of this machine")
    return lines


def _rule(rules: Rules, rule: Rule, levers: list[Lever]) -> list[str]:
    who = ["everyone who may open the socket"] if rule.everyone else []
    who += [user_name(uid) for uid in sorted(rule.uids)]
    who += [f"group {gid}" for gid in sorted(rule.gids)]
    marks = [
        word
        for word, holds in (
            ("acts for jobs", rule.trusted),
            ("low_power", rule.low_power),
            ("only GPUs of own jobs", rule.only_own_gpus),
        )
        if holds
    ]
    head = f"line {rule.line}: {', '.join(who)}" + (f" ({'; '.join(marks)})" if marks else "")
    lines = [head]
    for lever in levers:
        own = rule.range_for(lever.name)
        if own is not None:
            lines.append(f"  {lever.name}: {_range(lever, own)}")
    patterns = [pattern for pattern in rules.low_power if rule.low_power and rule.levers]
    for pattern in patterns:
        if any(matches(pattern, x.name) and rule.range_for(x.name) is None for x in levers):
            lines.append(f"  warning: low_power of {pattern} is outside its levers, so not given")
    return lines


def _range(lever: Lever, own: Range) -> str:
    state = lever.state()
    text = own.text(state if state.unit != "name" else None)
    return text if state.available else f"{text}, but it cannot be set: {state.reason}"


def _amount(lever: Lever, of: object) -> str:
    assert callable(of)
    state = lever.state()
    try:
        return shown(of(state), state.unit)
    except ValueError as error:
        return f"nothing: {error}"
