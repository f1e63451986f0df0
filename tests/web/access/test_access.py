"""Rights are checked by exact names: a right is for the queues that it names, and no others."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request

from redelivery.web import User
from redelivery.workers.web.access import ProxyLogin


@pytest.mark.parametrize("name", ["DLQ.mail.evil", "evil.DLQ.mail", "dlq.mail", "DLQ.mail\n", "DLQ.mail ", "DLQ_mail", ""])
def test_a_right_to_one_queue_is_none_to_another_of_nearly_this_name(name: str) -> None:
    """A part of a name, or the name in another case, is not the name. No name means every queue."""
    user = User("x", {"redrive": ["DLQ.mail"]})
    assert user.may("redrive", ["DLQ.mail"])
    assert not user.may("redrive", [name])
    assert not user.may("purge", ["DLQ.mail"])


@pytest.mark.parametrize(
    ("address", "named"), [("10.0.0.5", "ada"), ("10.0.0.50", None), ("110.0.0.5", None), ("10.0.0.5.evil", None), ("::1", None)]
)
def test_the_header_of_one_address_is_believed_of_that_address_alone(address: str, named: str | None) -> None:
    """A header from an address that only begins or ends like the proxy's is not trusted."""
    login = ProxyLogin("x-user", ["10.0.0.5"], ["redrive"])
    request = Request({"type": "http", "client": (address, 1234), "headers": [(b"x-user", b"ada")]})
    user = asyncio.run(login.user(request))
    assert (None if user is None else user.name) == named
