"""Publications, and batches of them, without a broker."""

from __future__ import annotations

from typing import Any

from redelivery.middleware.messages.publication import OVERHEAD, Batch, Publication


def publication(number: int, **fields: Any) -> Publication:
    """One message."""
    facts: dict[str, Any] = {"headers": {"id": f"t{number}"}, "properties": {}, "how": {}, **fields}
    return Publication(b"x" * number, 0, "application/json", "utf-8", **facts)


def test_a_publication_knows_its_task_and_about_how_large_it_is() -> None:
    """The size counts towards the maximum size of a batch."""
    assert (publication(7).task_id, publication(7).size) == ("t7", 7 + OVERHEAD)


def test_a_batch_knows_what_is_left_of_it() -> None:
    """It sends only unconfirmed messages again, in order."""
    first, second, third = (publication(number) for number in range(3))
    batch = Batch([first, second, third])
    second.is_published = True
    assert batch.left == [first, third]


def test_what_must_be_there_before_is_named_once() -> None:
    """Only for messages that are not yet confirmed."""
    queue, other, third = object(), object(), object()
    gone = publication(2, declare=(third,))
    gone.is_published = True
    batch = Batch([publication(0, declare=(queue,)), publication(1, declare=(queue, other)), gone])
    assert batch.entities == [queue, other]
