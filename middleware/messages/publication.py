"""Publications: messages of a producer that the broker does not have yet, and batches of them.

A message is kept as kombu has prepared it: the body is bytes already, and the headers are copied, so the caller may change its own
objects. A message with an unusual header or property, which the channel may be unable to write, is published by its own call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Estimated bytes: of an ordinary message's headers and properties, and of a value in addition to its text.
OVERHEAD, EACH = 1024, 8
#: Immutable types that every channel can write.
PLAIN = (str, int, float, type(None))
_SCALARS = frozenset({int, float, bool, type(None)})
_WRITABLE = _SCALARS | {str}


@dataclass(slots=True, eq=False)
class Publication:
    """One message to publish.

    `how` has the keyword arguments for kombu's channel: exchange, routing key and others. `declare` lists the queues and exchanges
    that must exist first. `event_id` is the id of its outcome event, if the broker gives events none.
    """

    body: Any
    priority: int
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    how: Mapping[str, Any]
    declare: Sequence[Any] = ()
    event_id: str = ""
    is_published: bool = False
    #: Estimated bytes.
    size: int = field(init=False)
    #: Whether it must be sent alone: the channel may be unable to write it, or the broker may return it.
    is_alone: bool = field(init=False)

    def __post_init__(self) -> None:
        self.headers, size, is_plain = _copied(self.headers)
        self.size = len(self.body) + max(OVERHEAD, size)
        self.is_alone = bool(self.how.get("mandatory")) or not (is_plain and _copied(self.properties)[2])

    @property
    def task_id(self) -> str:
        """The id of its task."""
        return str(self.headers.get("id"))

    def message(self, channel: Any) -> Any:
        """A new message in this channel's form."""
        return channel.prepare_message(
            self.body, self.priority, self.content_type, self.content_encoding, self.headers, self.properties
        )


def _copied(header: Any) -> tuple[Any, int, bool]:
    """Copy a header, or all headers; return the copy, its estimated bytes, and whether all its types are usual.

    It is one pass, because it runs for each message.
    """
    if isinstance(header, dict):
        copy, size, is_plain = {}, len(header) * EACH, True
        for name, value in header.items():
            kept, kind = value, type(value)
            if kind is str:
                size += len(value)
            elif kind not in _SCALARS:
                kept, more, is_usual = _copied(value)
                size, is_plain = size + more, is_plain and is_usual
            copy[name] = kept
        return copy, size, is_plain and _WRITABLE.issuperset(map(type, header))
    if isinstance(header, (list, tuple)):
        parts = [_copied(each) for each in header]
        return [copy for copy, _, _ in parts], sum(size for _, size, _ in parts), all(is_plain for _, _, is_plain in parts)
    return header, EACH + (len(header) if isinstance(header, (str, bytes)) else 0), isinstance(header, PLAIN)


@dataclass(slots=True, eq=False)
class Batch:
    """Publications that are sent together, in their order. `stamp` identifies the batch for the broker if it is sent again.

    `are_published` is set from the sending until the answer. It waits for the answer; false: publish them one by one. If the batch
    `is_bound`, the answer comes through the connection that has sent it.
    """

    publications: list[Publication]
    stamp: Any = None
    are_published: Callable[[], bool] | None = None
    is_bound: bool = False

    @property
    def left(self) -> list[Publication]:
        """The publications that the broker may not have yet."""
        return [each for each in self.publications if not each.is_published]

    @property
    def entities(self) -> list[Any]:
        """The queues and exchanges that must exist first, each once."""
        return list({id(entity): entity for each in self.left for entity in each.declare}.values())
