"""Loads and calls the Lua scripts, one for each transition.

A script's text is the shared pieces named in its line `-- uses:`, and then its own file in `middleware/brokers/redis/lua/`.
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
    """The whole text of a script. Raises `FileNotFoundError` if no script has this name."""
    text = _file(name)
    for line in text.splitlines():
        if line.startswith("-- uses:"):
            return "".join(_file(piece) for piece in line.removeprefix("-- uses:").split()) + text
    return text


def _file(name: str) -> str:
    return files("redelivery.middleware.brokers.redis.lua").joinpath(f"{name}.lua").read_text("utf-8")


#: Scripts that do not wait for replicas: lost writes are repeated from the remaining data, or the script writes nothing.
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

#: Sent before a producer's script. Without it, Redis answers the producer before it notifies the waiting worker.
PING = b"*1\r\n$4\r\nPING\r\n"


class Script:
    """One script, called by its digest. `answers_last`: the server notifies waiting workers before it answers the caller."""

    def __init__(self, name: str, *, answers_last: bool = False) -> None:
        self.name = name
        self._first = (PING,) if answers_last else ()

    @cached_property
    def text(self) -> str:
        """The whole text, read at the first call, because producers call few scripts."""
        return source(self.name)

    @cached_property
    def sha(self) -> str:
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: Redis, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run the script. Raises what redis-py raises. A script that the server refuses changes nothing."""
        replicas = None if self.name in UNCONFIRMED else getattr(client, "replicas", None)
        commands = [*self._first, packed(self.sha, keys, args)]
        if replicas is not None:  # `WAIT` counts the replicas that have the writes of its own connection
            commands.append(replicas.command)
        answers = _answers(client, commands)
        if isinstance(answers[len(self._first)], NoScriptError):
            client.script_load(self.text)
            answers = _answers(client, commands)
        answer = answers[len(self._first)]
        if isinstance(answer, ResponseError):
            raise answer
        if replicas is not None:
            replicas.check(answers[-1])
        return answer

    def begin(self, client: Redis, keys: Sequence[str], args: Sequence[Any]) -> Callable[[], Any]:
        """Send the call. The returned function must be called: it reads the answer. Raises what redis-py raises.

        If no answer comes, the call is repeated: the script must carry a repeated call out only once.
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
        """Make several calls, each with its keys and arguments, in one round trip. Returns their answers, errors as exceptions."""
        replicas = getattr(client, "replicas", None)
        commands = [command(b"SCRIPT", b"LOAD", self.text.encode()), *(packed(self.sha, keys, args) for keys, args in calls)]
        if replicas is not None:
            commands.append(replicas.command)
        _, *answers = _answers(client, commands)
        if replicas is not None:
            replicas.check(answers.pop())
        return answers


#: An empty argument in Redis's protocol: half of an event's fields are empty.
EMPTY = b"$0\r\n\r\n"


def packed(sha: str, keys: Sequence[str], args: Sequence[Any]) -> bytes:
    """The call of a script in Redis's protocol.

    For some thirty arguments, redis-py would take longer than the server takes to run the script. Packed keys are cached, because
    most calls have the same ones.
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
    """A command in Redis's protocol."""
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])


def _answers(client: Redis, commands: list[bytes]) -> list[Any]:
    """Send packed commands together, and read all answers, with the client's own retries."""
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
    """Read the next answers; a refusal is an answer."""
    answers = []
    for _ in range(number):
        try:
            answers.append(connection.read_response())
        except ResponseError as exc:
            answers.append(exc)
    return answers


def encoded(event: Event) -> list[bytes]:
    """An event's values as bytes, with `?` for characters that UTF-8 cannot encode."""
    return [str(value).encode("utf-8", "replace") if value else b"" for value in event.to_entry()]


def answer_of(value: Any) -> Answer:
    """A script's answer. Raises `ValueError` if it is not an `Answer`."""
    return Answer(text_of(value))


def text_of(value: Any) -> str:
    """A value from the server as text; redis-py returns bytes or text."""
    return value.decode() if isinstance(value, bytes) else str(value)
