"""The Lua scripts, one for each transition: how they are loaded, called, and answered.

A script's text is the shared pieces that its line `-- uses:` names, and then its own file in `middleware/brokers/redis/lua/`.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError, TimeoutError  # noqa: A004 - redis-py's

from redelivery.lazily import cached_property

from ...ports import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redis import Redis

    from ...messages.events import Event


@cache
def source(name: str) -> str:
    """The whole text of a script. Raises `FileNotFoundError` if there is no script of this name."""
    text = _file(name)
    for line in text.splitlines():
        if line.startswith("-- uses:"):
            return "".join(_file(piece) for piece in line.removeprefix("-- uses:").split()) + text
    return text


def _file(name: str) -> str:
    return files("redelivery.middleware.brokers.redis.lua").joinpath(f"{name}.lua").read_text("utf-8")


#: These scripts wait for no replica: if their writes are lost, they are done again from the data that is left, or change nothing.
UNCONFIRMED = frozenset(
    {
        "lead",
        "resign",
        "renew",
        "extend",
        "fence",
        "unregister",
        "promote",
        "bound",
        "read_log",
        "read_audit",
        "find_events",
        "try_result",
    }
)


#: Sent before a script that a producer calls. Without this PING, Redis answers the producer before it notifies the waiting worker,
#: which then receives the notice 0.17 ms later.
WORD = b"*1\r\n$4\r\nPING\r\n"


class Script:
    """One script: called by its digest, and loaded if the server does not know it (after a restart, for example).

    `answers_last`: workers that wait for the messages that it adds are notified before its caller is answered.
    """

    def __init__(self, name: str, *, answers_last: bool = False) -> None:
        self.name = name
        self._first = (WORD,) if answers_last else ()

    @cached_property
    def text(self) -> str:
        """Its whole text, read at the first call, because producers call few scripts."""
        return source(self.name)

    @cached_property
    def sha(self) -> str:
        """Its digest, the server's name for it."""
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: Redis, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run it. Raises whatever redis-py raises; a script that the server refused has changed nothing."""
        replicas = None if self.name in UNCONFIRMED else getattr(client, "replicas", None)
        commands = [*self._first, packed(self.sha, keys, args)]
        if replicas is not None:  # `WAIT` asks about the writes of its own connection
            commands.append(replicas.question)
        answers = _answers(client, commands)
        if isinstance(answers[len(self._first)], NoScriptError):
            client.script_load(self.text)
            answers = _answers(client, commands)
        answer = answers[len(self._first)]
        if isinstance(answer, ResponseError):
            raise answer
        if replicas is not None:
            replicas.heard(answers[-1])
        return answer

    def begin(self, client: Redis, keys: Sequence[str], args: Sequence[Any]) -> Callable[[], Any]:
        """Send the call; the returned function reads the answer, and must be called. For scripts that do a repeated call once.

        It raises whatever redis-py raises. If the answer does not come, the call is repeated.
        """
        again = partial(self, client, keys, args)
        if getattr(client, "replicas", None) is not None:
            return again
        pool = client.connection_pool
        connection = pool.get_connection()
        try:
            connection.send_packed_command([b"".join([*self._first, packed(self.sha, keys, args)])])
        except BaseException as exc:
            connection.disconnect()
            pool.release(connection)
            if isinstance(exc, RedisError):
                return again
            raise

        def answer() -> Any:
            try:
                *_, said = _read(connection, len(self._first) + 1)
            except BaseException as exc:
                connection.disconnect()  # its answer may still come
                if isinstance(exc, (ConnectionError, TimeoutError)):
                    return again()
                raise
            finally:
                pool.release(connection)
            if isinstance(said, NoScriptError):
                return again()
            if isinstance(said, ResponseError):
                raise said
            return said

        return answer

    def many(self, client: Redis, calls: Iterable[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
        """Run it for each of these keys and arguments, in one round trip; each has its answer, or its error as an exception."""
        replicas = getattr(client, "replicas", None)
        commands = [command(b"SCRIPT", b"LOAD", self.text.encode()), *(packed(self.sha, keys, args) for keys, args in calls)]
        if replicas is not None:
            commands.append(replicas.question)
        _, *answers = _answers(client, commands)
        if replicas is not None:
            replicas.heard(answers.pop())
        return answers


#: An empty argument in the protocol: half of an event's fields are empty.
EMPTY = b"$0\r\n\r\n"


def packed(sha: str, keys: Sequence[str], args: Sequence[Any]) -> bytes:
    """The call of a script in the protocol.

    A script has some thirty arguments: redis-py would need more time to pack them than the server needs for the call. The keys are
    mostly the same ones, so they are remembered packed.
    """
    parts = [b"*%d\r\n" % (3 + len(keys) + len(args)), _packed_names(sha, tuple(keys))]
    for each in args:
        value = each if isinstance(each, bytes) else str(each).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value) if value else EMPTY)
    return b"".join(parts)


@lru_cache(1024)
def _packed_names(sha: str, keys: tuple[str, ...]) -> bytes:
    values = [each.encode() for each in ("EVALSHA", sha, str(len(keys)), *keys)]
    return b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in values)


def command(*words: bytes) -> bytes:
    """A command in the protocol."""
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])


def _answers(client: Redis, commands: list[bytes]) -> list[Any]:
    """Send packed commands at once, and read all their answers; tried again as the client is configured."""
    pool = client.connection_pool
    connection = pool.get_connection()

    def ask() -> list[Any]:
        connection.send_packed_command([b"".join(commands)])
        return _read(connection, len(commands))

    try:
        return connection.retry.call_with_retry(ask, lambda _: connection.disconnect())
    finally:
        pool.release(connection)


def _read(connection: Any, number: int) -> list[Any]:
    """Read the next answers; a refusal is an answer, too."""
    answers = []
    for _ in range(number):
        try:
            answers.append(connection.read_response())
        except ResponseError as exc:
            answers.append(exc)
    return answers


def encoded(event: Event) -> list[bytes]:
    """An event's values as bytes; characters that UTF-8 cannot encode become `?`."""
    return [str(value).encode("utf-8", "replace") if value else b"" for value in event.to_entry()]


def answer_of(value: Any) -> Answer:
    """A script's answer. Raises `ValueError` if it is no `Answer`."""
    return Answer(text_of(value))


def text_of(value: Any) -> str:
    """A value of the server's as text, whether it came as bytes or as text."""
    return value.decode() if isinstance(value, bytes) else str(value)
