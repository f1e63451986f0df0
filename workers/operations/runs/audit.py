"""The audit: who did what, when, why, and with what result.

The event of each letter in the outcome log has an `actor`. In addition, each act has records in a stream (`redelivery:audit` on
Redis, `redelivery.audit` on RabbitMQ, about the newest 10,000): an operation was begun, paused, resumed or aborted, and how it
ended; a command changed letters or messages, and with what result. `audit_export` copies the records, and `audit_history` reads
them.

Limits: any client that can write to the broker may have written a record. A record that cannot be read is left out.
"""

from __future__ import annotations

import getpass
import json
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from redelivery.middleware.brokers.errors import ANY_BROKER_ERRORS
from redelivery.middleware.messages.envelope import json_mapping

from ...brokers.broker import broker_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from redelivery.middleware.ports import Transport

    from ...ports import Record
    from ..letters.filter import Filter
    from ..letters.walk import Walked

#: The maximum number of tasks in one record, and of characters of its message.
MAX_NAMED, MAX_SAID = 20, 500
#: The maximum number of records that are searched: more than the broker keeps.
MAX_READ = 20_000


class Act(StrEnum):
    """The kind of an act."""

    REDRIVE = "redrive"
    MOVE = "move"
    PURGE = "purge"
    CANCEL = "cancel"
    PROMOTE = "promote"
    RESCHEDULE = "reschedule"
    IMPORT = "import"
    LOOK = "look"
    LEAVE = "leave"


class Acted(StrEnum):
    """The state of an act when its record was written."""

    BEGUN = "begun"
    PAUSED = "paused"
    RESUMED = "resumed"
    ABORTED = "aborted"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record of the audit.

    - `operation`: the id of the operation; empty if a command or the page did the act itself.
    - `queue`: the dead-letter queue, or the queue of delayed messages.
    - `filter`, `options`: the request; the option `edited` names the changed fields.
    - `tasks`: the first ids of the named tasks; `result`: the counts.
    """

    record_id: str
    at_ms: int
    actor: str
    act: str
    acted: str
    queue: str
    operation: str = ""
    why: str = ""
    filter: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tasks: Sequence[str] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def chosen(self) -> str:
        """The filter in words; empty if the record has none; `all` if an act was begun without a filter."""
        return in_words(self.filter) or ("all" if self.acted == Acted.BEGUN and not self.tasks else "")

    @property
    def edited(self) -> list[str]:
        """The fields of a dead letter that were changed before its redrive."""
        given = self.options.get("edited")
        return [str(each) for each in given] if isinstance(given, list) else []

    def is_of(self, actor: str, operation: str) -> bool:
        """Whether the record has this actor, and an operation whose id begins with `operation`. An empty text matches all."""
        return (not actor or self.actor == actor) and self.operation.startswith(operation)

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """Parse a record of the broker; None if redelivery did not write it."""
        return cls.from_values(json_mapping(record.said), record.record_id, record.at_ms, record.moved)

    @classmethod
    def from_values(cls, read: Any, record_id: str, at_ms: int, moved: int | None = None) -> Self | None:
        """Return the entry with these values; None if they are not an entry. `moved` is as in `Record`."""
        if not isinstance(read, dict) or any(not isinstance(read.get(name), str) for name in ("actor", "act", "acted", "queue")):
            return None
        texts = {name: str(read.get(name) or "") for name in ("actor", "act", "acted", "queue", "operation", "why", "message")}
        parts: dict[str, Any] = {name: read[name] for name in ("filter", "options", "result") if isinstance(read.get(name), dict)}
        tasks = [str(each) for each in read["tasks"]] if isinstance(read.get("tasks"), list) else []
        if texts["operation"] and moved is not None and texts["acted"] != Acted.BEGUN:
            parts["result"] = {**parts.get("result", {}), "moved": moved}
        return cls(record_id=record_id, at_ms=at_ms, tasks=tasks, **{**texts, **parts})


def in_words(values: Mapping[str, Any]) -> str:
    """Return the names with their values as text."""
    return "; ".join(f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in values.items())


def acted(
    act: Act,
    done: Acted,
    queue: str,
    *,
    actor: str,
    why: str = "",
    operation: str = "",
    chosen: Filter | None = None,
    options: Mapping[str, Any] | None = None,
    tasks: Sequence[str] = (),
    result: Mapping[str, Any] | None = None,
    message: str = "",
) -> str:
    """Return a record as JSON for the broker, without empty values."""
    words = {} if chosen is None else chosen.to_dict()
    if len(words.get("task_ids", ())) > MAX_NAMED:
        words = {**words, "task_ids": words["task_ids"][:MAX_NAMED], "task_ids_more": len(words["task_ids"]) - MAX_NAMED}
    said = {
        "actor": actor,
        "act": act,
        "acted": done,
        "queue": queue,
        "operation": operation,
        "why": why,
        "filter": words,
        "options": dict(options or {}),
        "tasks": list(tasks)[:MAX_NAMED],
        "result": dict(result or {}),
        "message": message,
    }
    needed = {"actor", "act", "acted", "queue"}
    return json.dumps({name: value for name, value in said.items() if value or name in needed})


def record(transport: Transport, said: str) -> None:
    """Store a record (see `acted`) of an act without an operation."""
    broker_of(transport).audit.record(said)


def entries(transport: Transport, limit: int, *, actor: str = "", operation: str = "") -> list[Entry]:
    """Return the newest records, the newest first, of this actor and operation if given."""
    store = broker_of(transport).audit
    kept = store.records(MAX_READ if actor or operation else limit)
    read = [Entry.of(each) for each in kept]
    if None in read and len(kept) == limit:
        read = [Entry.of(each) for each in store.records(MAX_READ)]
    return [each for each in read if each is not None and each.is_of(actor, operation)][:limit]


def os_user() -> str:
    """The operating system's name for the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, for example in a container
        return f"uid {os.getuid()}"


@contextmanager
def recording(
    transport: Transport,
    act: Act,
    queue: str,
    *,
    actor: str,
    why: str,
    chosen: Filter | None = None,
    options: Mapping[str, Any] | None = None,
    dry_run: bool,
    only_changes: bool = False,
) -> Iterator[dict[str, Any]]:
    """Record that an act was begun, and after the block how it ended. The block puts the result into the dictionary.

    `stopped` in the dictionary says why the act was stopped. A dry run leaves no record. With `only_changes`, for commands that run
    every minute, there is only a record of the end, and none if nothing was moved. Raises the errors of the broker's driver: an act
    that cannot be recorded is not begun.
    """
    if dry_run:
        yield {}
        return
    asked: dict[str, Any] = {"actor": actor, "why": why, "chosen": chosen, "options": options}
    if not only_changes:
        record(transport, acted(act, Acted.BEGUN, queue, **asked))
        asked = {"actor": actor}
    result: dict[str, Any] = {}
    try:
        yield result
    except BaseException as exc:
        said = str(exc) or type(exc).__name__
        with suppress(*ANY_BROKER_ERRORS):
            record(transport, acted(act, Acted.FAILED, queue, **asked, result=result, message=said[:MAX_SAID]))
        raise
    stopped = str(result.pop("stopped", ""))
    done = Acted.STOPPED if stopped else Acted.DONE
    if not only_changes or result.get("moved"):
        record(transport, acted(act, done, queue, **asked, result=result, message=stopped[:MAX_SAID]))


def result_of(walked: Walked) -> dict[str, Any]:
    """Return the result of a walk for the record of its end."""
    left = dict(walked.left.most_common(MAX_NAMED))
    facts = {"matched": walked.matched, "moved": walked.moved, "gone": walked.gone, "left": left}
    return {**{name: value for name, value in facts.items() if value}, "stopped": getattr(walked, "stopped", "")}
