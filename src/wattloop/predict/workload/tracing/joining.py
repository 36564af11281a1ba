"""Operations as written down, by call of a block -> operations of the whole step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from wattloop.predict.workload.operation import Operation
from wattloop.predict.workload.tracing.blocks import Blocks

__all__ = ["joined", "whole_step"]

Written = tuple[Operation, int]
"""An operation and the call of a block that it belongs to."""


def whole_step(written: Sequence[Written], blocks: Blocks) -> Iterator[Operation]:
    """Each operation with its count and the modules it stands for, neighbours joined."""
    _absorb(written, blocks)
    labels = {number: _label(blocks, number) for number in range(len(blocks.calls))}
    gone = blocks.absorbed
    kept = (
        _labelled(operation, block, blocks, labels)
        for operation, block in written
        if not any(each in gone for each in blocks.chain(block))
    )
    return joined(kept)


def joined(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Neighbours that are alike become one with a count."""
    last: Operation | None = None
    for each in operations:
        if last is not None and replace(each, count=last.count) == last:
            last = replace(last, count=last.count + each.count)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _labelled(
    operation: Operation, block: int, blocks: Blocks, labels: dict[int, str]
) -> Operation:
    if block < 0:
        return operation
    path = blocks.calls[block].path
    rest = operation.module[len(path) :] if operation.module.startswith(path) else ""
    return replace(
        operation,
        module=labels[block] + rest,
        count=operation.count * blocks.times(block),
    )


def _absorb(written: Sequence[Written], blocks: Blocks) -> None:
    """First and last of alike calls join the second where they did exactly the same."""
    done: dict[int, list[Written]] = {}
    for operation, block in written:
        for each in blocks.chain(block):
            done.setdefault(each, []).append((operation, block))
    for ran in blocks.groups():
        second = ran[1]
        if not blocks.calls[second].others:
            continue
        model = _relative(done.get(second, []), second, blocks)
        for each in (ran[0], *ran[2:]):
            if _relative(done.get(each, []), each, blocks) == model:
                blocks.absorb(each, second)


def _relative(
    written: Sequence[Written], block: int, blocks: Blocks
) -> list[tuple[Operation, int]]:
    """Operations of a call with paths inside of it, so that two calls can be compared."""
    path = len(blocks.calls[block].path)
    own = blocks.times(block)
    return [
        (replace(each, module=each.module[path:]), blocks.times(inner) // own)
        for each, inner in written
    ]


def _label(blocks: Blocks, number: int) -> str:
    """`layers.0-31` for a call that stands for many, with what it is inside of labelled too."""
    call = blocks.calls[number]
    path = call.path
    if call.outer >= 0:
        outer = blocks.calls[call.outer].path
        if path.startswith(f"{outer}."):
            path = _label(blocks, call.outer) + path[len(outer) :]
    if not call.others:
        return path
    parent = path.rpartition(".")[0]
    names = {each.rpartition(".")[2] for each in (call.path, *call.others)}
    if not all(each.isdigit() for each in names):
        return path
    shown = _ranges(sorted(int(each) for each in names))
    return f"{parent}.{shown}" if parent else shown


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 -> `0-2,5`."""
    parts: list[list[int]] = []
    for each in numbers:
        if parts and each == parts[-1][-1] + 1:
            parts[-1].append(each)
        else:
            parts.append([each])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
