"""A publication: one message that its producer has handed over, until the broker has it; and a batch of them.

What kombu would have published at once is kept here as kombu prepared it: the body is bytes already, so that its caller may go on
and change what it was made of. The broker makes its own message of it when the batch goes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What a message takes beside its body, roughly: headers and properties, where nobody has put more into them.
OVERHEAD = 1024


@dataclass(slots=True, eq=False)
class Publication:
    """One message on its way to the broker.

    `how` is what kombu's channels call it with: exchange, routing key and the like. `declare` is what must be there before.
    `event_id` is the id of its outcome event, where the broker gives events none.
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
        """A new message of this channel's kind."""
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
    """Publications that go out together, in their order. `stamp` is what the broker knows the batch by when it is asked again."""

    publications: list[Publication]
    stamp: Any = None

    @property
    def left(self) -> list[Publication]:
        """Those that the broker is not known to have."""
        return [each for each in self.publications if not each.is_published]

    @property
    def entities(self) -> list[Any]:
        """What must be there before, each once."""
        return list({id(entity): entity for each in self.left for entity in each.declare}.values())
