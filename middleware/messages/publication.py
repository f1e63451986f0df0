"""A publication: one message of a producer that the broker does not have yet; and a batch of publications.

kombu would publish the message at once. Here it is kept as kombu has prepared it: the body is already bytes, so the caller may
change the objects that it was made of. The channel makes its own message when the batch is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: About how many bytes the headers and properties of an ordinary message take, beside its body.
OVERHEAD = 1024


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
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.body) + max(OVERHEAD, sum(map(_size, self.headers.values())))

    def message(self, channel: Any) -> Any:
        """A new message in this channel's form."""
        return channel.prepare_message(
            self.body, self.priority, self.content_type, self.content_encoding, self.headers, self.properties
        )


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
