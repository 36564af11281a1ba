"""What a program says: in the file of its trial, in what it prints, in a file of its own."""

from collections.abc import Iterator
from pathlib import Path

from wattloop.tune.metric_lines import LineReader, MetricLines, Said

__all__ = ["ProgramNews"]


class ProgramNews:
    """Everything that was said since the last look.

    Args:
        wanted: the metric that tells quality.
        reports: the file that `current_trial()` writes.
        output: what the program prints is added to it.
        metrics_file: that the program writes of its own.
    """

    def __init__(self, wanted: str, reports: Path, output: Path, metrics_file: Path | None) -> None:
        self._sources = [
            (LineReader(reports), MetricLines(wanted), True),
            (LineReader(output, skip=True), MetricLines(wanted), False),
        ]
        if metrics_file is not None:
            reader = LineReader(metrics_file, skip=True)
            self._sources.append((reader, MetricLines(wanted), True))
        self._unread: Iterator[Said] = iter(())
        self.cooperates = False
        """Whether it reports through `current_trial()`; what it prints is then for people."""

    def said(self, *, last: bool) -> Iterator[Said]:
        """In order; what is not taken now comes first the next time."""
        yield from self._unread
        found: list[Said] = []
        for reader, lines, is_file in self._sources:
            for line in reader.lines(last=last):
                said = lines.row(line) if is_file else lines.said(line)
                if said is not None and (is_file or not self.cooperates):
                    found.append(said)
                    self.cooperates = self.cooperates or bool(said.event)
        self._unread = iter(found)
        yield from self._unread
