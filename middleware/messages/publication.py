"""A publication: one message of a producer that the broker does not have yet; and a batch of publications.

kombu would publish the message at once. Here it is kept as kombu has prepared it: the body is already bytes, and the headers are
copied, so the caller may change the objects that they were made of. The channel makes its own message when the batch is sent. It
might not be able to write every header and property: a message with an unusual one is published by its own call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: About how many bytes the headers and properties of an ordinary message take, beside its body.
OVERHEAD = 1024
#: The types that every channel can write, and that nobody can change.
PLAIN = (str, int, float, type(None))


@dataclass(slots=True, eq=False)
class Publication:
    """One message that is to be published.

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

    @property
    def task_id(self) -> str:
        """The id of its task."""
        return str(self.headers.get("id"))

    @property
    def is_alone(self) -> bool:
        """Whether it must go in no batch with others: a channel may be unable to write it, or the broker may return it."""
        return bool(self.how.get("mandatory")) or not (_is_plain(self.headers) and _is_plain(self.properties))

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.body) + max(OVERHEAD, sum(map(_size, self.headers.values())))

    def message(self, channel: Any) -> Any:
        """A new message in this channel's form."""
        return channel.prepare_message(
            self.body, self.priority, self.content_type, self.content_encoding, self.headers, self.properties
        )


def kept(header: Any) -> Any:
    """A copy of a header, or of all headers: what its caller changes later does not change it."""
    if isinstance(header, dict):
        return {name: value if isinstance(value, PLAIN) else kept(value) for name, value in header.items()}
    return [kept(each) for each in header] if isinstance(header, (list, tuple)) else header


def _is_plain(header: object) -> bool:
    """Whether nothing in this header, or in all headers, is unusual."""
    if isinstance(header, (list, tuple, dict)):
        parts = (*header, *header.values()) if isinstance(header, dict) else header
        return all(isinstance(each, PLAIN) or _is_plain(each) for each in parts)
    return isinstance(header, PLAIN)


def _size(header: object) -> int:
    """About how many bytes a header takes."""
    if isinstance(header, (list, tuple, dict)):
        return len(repr(header))
    return len(header) if isinstance(header, (str, bytes)) else 0


@dataclass(slots=True, eq=False)
class Batch:
    """Publications that are sent together, in their order. `stamp` identifies the batch for the broker if it is sent again."""

    publications: list[Publication]
    stamp: Any = None

    @property
    def left(self) -> list[Publication]:
        """The publications that the broker may not have yet."""
        return [each for each in self.publications if not each.is_published]

    @property
    def entities(self) -> list[Any]:
        """The queues and exchanges that must exist first, each once."""
        return list({id(entity): entity for each in self.left for entity in each.declare}.values())
