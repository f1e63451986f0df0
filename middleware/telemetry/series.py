"""Bounded sets of labels. Each set is a series, and a metrics server may keep every series for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.display import safe

if TYPE_CHECKING:
    from collections.abc import Collection

#: Label sets of one metric.
MAX_SERIES = 2000
#: The labels for names that get no series of their own.
UNKNOWN, OTHER = "(unknown)", "(other)"

Labels = tuple[str, ...]


class Series:
    """The label sets of one metric: a queue, a task, and further labels with few values.

    A task that is not one of the app's `tasks` is `UNKNOWN`. After `most` sets, queue and task of a new set are `OTHER`.
    """

    def __init__(self, tasks: Collection[str], most: int = MAX_SERIES) -> None:
        self._tasks, self._most = tasks, most
        #: Given names → labels. Unknown tasks may have any name, so this is bounded, too.
        self._asked: dict[Labels, Labels] = {}
        self._known: set[Labels] = set()

    def of(self, queue: str, task: str, *kinds: str) -> Labels:
        """The labels of the series for these names."""
        asked = (queue, task, *kinds)
        known = self._asked.get(asked)
        if known is not None:
            return known
        labels = (safe(queue), task if task in self._tasks else UNKNOWN, *kinds)
        if labels not in self._known:
            if len(self._known) >= self._most:
                return (OTHER, OTHER, *kinds)
            self._known.add(labels)
        if len(self._asked) < self._most:
            self._asked[asked] = labels
        return labels
