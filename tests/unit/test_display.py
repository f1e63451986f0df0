"""Output: only credentials are removed from addresses, and a text stays on one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.display import harmless, scrubbed
from tests.support.desk import harmless as moves_nothing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://:secret@host:6379/0", "redis://**@host:6379/0"),
        ("amqp://me:secret@host//", "amqp://**@host//"),
        ("redis://secret@host", "redis://**@host"),
        ("no destination: 's3://KEY:SE/CR+ET=@bucket/x'.", "no destination: 's3://**@bucket/x'."),
        ("redis://:a/b@c#d@host/0", "redis://**@host/0"),
        ("redis://h1/0;redis://me:secret@h2/0", "redis://**@h2/0"),
        ("s3://b/x?region=eu&secret_key=se/cret&access_key=K", "s3://b/x?region=eu&secret_key=**&access_key=**"),
        ("https://a.blob/x?sv=1&SIG=secret'", "https://a.blob/x?sv=1&SIG=**'"),
        ("ABFS://files:secret@account/x", "ABFS://**@account/x"),
    ],
)
def test_credentials_leave_an_address(text: str, expected: str) -> None:
    """Whatever unencoded characters they have. The host, the path and other parameters stay."""
    assert scrubbed(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "redis://host:6379/0",
        "amqp://me:**@host//",
        "abfss://container@account.dfs.core.windows.net/x",
        "s3://bucket/x?region=eu&endpoint_override=a:1",
        "w@host says redis://host/0 is gone, and w@other too",
        "me:secret@host is no address",
        "https://docs.example/a?page=2",
        "",
    ],
)
def test_all_else_stays_as_it_is(text: str) -> None:
    """A masked password, a container, the name of a worker next to an address."""
    assert scrubbed(text) == text


@given(st.text(), st.text(st.characters(exclude_categories=["Z", "C"])), st.sampled_from(["redis", "s3", "amqp"]))
def test_no_password_is_left(before: str, password: str, scheme: str) -> None:
    """Whatever its characters, except spaces. The text before it stays."""
    assert scrubbed(f"{before} {scheme}://user:SECRET{password}SECRET@host/x") == f"{scrubbed(before)} {scheme}://**@host/x"
    assert moves_nothing(harmless(f"{before}{scheme}://user:{password}@host"))


def test_a_long_text_takes_no_longer_than_it_is_long() -> None:
    """The time is linear in the length, for a million of each character with which a pattern could begin."""
    for part in ("a", "://", "a://", "://@", "?a", "&key", "@", "?" + "a" * 39):
        text = part * (1_000_000 // len(part)) + "://"
        assert len(scrubbed(text)) <= len(text) + 2 * text.count("@")
