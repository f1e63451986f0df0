"""The inputs of one run: the events and the inventory. With a state, only files that no earlier run has read.

A run without new files, with the options and inventory of the last run, repeats that run: it begins with the same state, and has
the same result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError

from ..lives.plain import ANNOUNCED, NOTHING_TOLD, announced
from ..report.wording import counted
from ..spark.few_rows import side_by_side
from ..spark.sql import row_of
from .reading import (
    Listing,
    Taken,
    check_all_have_one,
    date_of,
    find,
    listing,
    not_noted,
    paths_of,
    read_events,
    read_gaps,
    read_inventory,
    read_taken,
    root_of,
    sizes_of,
)
from .state import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from ..spark.files import File, Files
    from .state import State


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tables of one run. `base` is the run before it; None without a state. `description` says what is read.

    If plain tasks were sorted out, `events` has the events of the other tasks, and `events_of_all` the events of all tasks.
    """

    spark: SparkSession
    files: Files
    events: DataFrame
    inventory: DataFrame
    gaps: list[dict[str, Any]]
    all_gaps: list[dict[str, Any]]
    taken: Taken
    listed: Listing
    base: Run | None
    given: dict[str, Any]
    source: dict[str, str]
    description: str
    events_of_all: DataFrame | None = None

    @property
    def watermark_ms(self) -> int | None:
        """The time up to which earlier runs have read events."""
        return None if self.base is None else self.base.watermark_ms

    @property
    def open_before(self) -> int:
        """The number of lives that the last run left open."""
        return 0 if self.base is None else self.base.lives

    def known(self, state: State | None) -> DataFrame:
        """For `sort_out`: the tasks in the broker, and those that earlier runs left open. A task may have several rows."""
        held = self.inventory.selectExpr(*NOTHING_TOLD)
        if state is None or self.base is None:
            return held
        return held.unionByName(announced(state.lives(self.base, ANNOUNCED)))

    def earlier(self) -> tuple[DataFrame, int]:
        """The events of earlier runs whose files still exist, and the time (ms) after which no file is missing."""
        paths, missing = self._paths("")
        latest = max((date_of(key) or "9999-12-30" for key in missing), default="")
        base_ms = 0 if self.base is None else self.base.forgotten_ms
        if latest:
            after = datetime.fromisoformat(f"{latest}T00:00:00+00:00").timestamp() * 1000 + 86_400_000
            base_ms = max(base_ms, round(after))
        return read_events(self.spark, paths), base_ms

    def all_events(self, of: DataFrame) -> DataFrame:
        """The events of this run, and of earlier runs since the day on which the oldest of these lives began."""
        if self.base is None or not self.base.read:
            return self.events
        first_ms = row_of(of, {"first_ms": "min(first_ms)"})["first_ms"]
        if first_ms is None:
            return self.events
        paths, _ = self._paths(datetime.fromtimestamp(first_ms / 1000, UTC).strftime("%Y-%m-%d"))
        return self.events.unionByName(read_events(self.spark, paths)) if paths else self.events

    def next_run(self, watermark_ms: int | None) -> Run:
        """The record of this run for the next one, without its lives."""
        base = Run() if self.base is None else self.base
        known = [each for each in (watermark_ms, base.watermark_ms) if each is not None]
        return replace(
            base,
            version=base.version + 1,
            read={**base.read, **{key: file.path for key, file in self.listed.files.items()}},
            sizes={**base.sizes, **sizes_of(self.listed.files)},
            commits=sorted({*base.commits, *self.listed.commits}),
            gaps=self.all_gaps,
            watermark_ms=max(known, default=None),
            fresh=sorted(self.listed.files),
            given=self.given,
            source=self.source,
        )

    def _paths(self, since: str) -> tuple[list[str], list[str]]:
        """The files of earlier runs that still exist, and the keys of missing ones."""
        paths, missing = [], []
        for key, uri in ({} if self.base is None else self.base.read).items():
            if (date_of(key) or "9") < since:
                continue
            if self.files.exists(uri):
                paths.append(uri)
            else:
                missing.append(key)
        return paths, missing


def gather(  # noqa: PLR0917 - all inputs of a run
    spark: SparkSession, files: Files, outcomes: str, inventory: str, state: State | None, options: dict[str, Any]
) -> Inputs:
    """List, select and open the inputs. Raises `InputError`."""
    found = find(files, outcomes, "outcome events")
    held = find(files, inventory, "inventory")
    gaps, taken = read_gaps(files, outcomes), read_taken(files, inventory, held)
    given = {**options, "taken_ms": taken.seen_ms, "inventory": sorted([each.name, each.size] for each in held)}
    source = {"app": taken.app, "broker": taken.broker, "export": files.absolute(root_of(outcomes))}
    base = None if state is None else state.last
    if state is not None:
        state.check_source(source)
    listed = _listed(files, outcomes, found, base)
    is_same = base is not None and base.version > 0 and base.given == given and all(each in base.gaps for each in gaps)
    if state is not None and base is not None and is_same and not listed.files:
        base = state.before(base)
        listed = _listed(files, outcomes, found, base, only=set(state.last.fresh))
    if state is None and not listed.files:
        msg = f"{outcomes} holds {len(found)} files with outcome events, and no commit names one: export them first"
        raise InputError(msg)
    check_all_have_one({*listed.commits, *([] if base is None else base.commits)}, taken, inventory)
    paths = paths_of(listed.files.values())
    # An export may have overwritten the gaps that another export noted at the same time. Each commit also has its own gaps.
    gaps += not_noted(gaps, listed.gaps)
    known = [] if base is None else base.gaps
    read: list[Callable[[], DataFrame]] = [
        lambda: read_events(spark, paths, outcomes if len(paths) == len(found) else ""),
        lambda: read_inventory(spark, files, inventory),
    ]
    events, held_now = side_by_side(spark, read)
    return Inputs(
        spark=spark,
        files=files,
        events=events,
        inventory=held_now,
        gaps=[each for each in gaps if each not in known],
        all_gaps=gaps,
        taken=taken,
        listed=listed,
        base=base,
        given=given,
        source=source,
        description=_description(base, listed, len(found)),
    )


def _listed(files: Files, uri: str, found: list[File], base: Run | None, *, only: set[str] | None = None) -> Listing:
    if base is None:
        return listing(files, uri, found)
    listed = listing(files, uri, found, known={*base.read, *base.commits}, read=base.sizes, since=base.forgotten)
    if only is not None:
        listed.files = {key: file for key, file in listed.files.items() if key in only}
    return listed


def _description(base: Run | None, listed: Listing, found: int) -> str:
    events = "the events" if listed.events is None else counted(listed.events, "event", "events")
    aside = f"; {listed.uncommitted} files are of exports that did not finish, and are left aside" if listed.uncommitted else ""
    again = "" if base is None else f"; {found - len(listed.files) - listed.uncommitted} were read before"
    return f"{events} of {counted(len(listed.files), 'file', 'files')}{again}{aside}"
