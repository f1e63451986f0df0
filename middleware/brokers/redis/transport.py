"""The transitions on Redis and Valkey. Each is one script (`lua/`), which runs completely or, if the server refuses it, not at all.

Limits: an asynchronous replica that becomes the master may lack the last answered transitions.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Protocol, Self

from kombu.exceptions import OperationalError
from redis import exceptions
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from redelivery.errors import BrokerError

from ...ports import ACCEPTED, Answer, Capability
from ..broker_url import unanswered
from .keys import SEPARATOR, Keys
from .leases import Leases
from .replicas import ConfirmedRedis
from .scripts import Script, answer_of, encoded, text_of
from .stores import Stores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery
    from redis import ConnectionPool, Redis

    from ...messages.events import Event
    from ...policy.resolver import Pace
    from ...ports import Held, TaskResult

#: Seconds after which a call counts as not answered; the outbox then repeats it.
SOCKET_TIMEOUT = 5.0
#: Temporary errors of the server: the same step may succeed a little later.
NOT_NOW = (
    OSError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.MasterDownError,
)
#: The first words of the server's answers for temporary errors; redis-py has no class for some of them.
NOT_NOW_CODES = ("BUSY", "LOADING", "READONLY", "OOM", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "NOTREADY")

_ACKNOWLEDGE = Script("acknowledge")
_DEFER = Script("defer")
_DEAD_LETTER = Script("dead_letter")
_START = Script("start")
_RELEASE = Script("release")
_TRY_RESULT = Script("try_result")


class Waiting(Protocol):
    """What a transition needs of the worker's `Receiver`."""

    def place_of(self, tag: str) -> tuple[tuple[str, ...], str]: ...

    def waits_as_free(self, number: int) -> None: ...


class RedisTransport:
    """The transitions of held messages; `leases` and `stores` have all others. Safe to call from any thread."""

    #: The exception: Redis itself never delivers a dead worker's messages again.
    capabilities = frozenset(Capability) - {Capability.REDELIVERY_COUNTS}

    app: Celery | None = None
    #: None if this process does not receive by a script.
    receiver: Waiting | None = None

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client, self.keys = client, keys
        self.leases, self.stores = Leases(client, keys), Stores(client, keys)
        self._held_keys = [keys.unacked, keys.unacked_index, keys.starts, keys.leases]

    @classmethod
    def of(cls, app: Celery) -> Self:
        """The transitions on the app's broker, connected by the app's settings. Raises `BrokerUnavailable`, `BrokerError`."""
        connection = app.connection_for_write()
        try:
            channel = connection.default_channel
        except (AuthenticationError, ResponseError) as exc:
            msg = f"broker {connection.as_uri()} refused the connection: {exc}"
            raise BrokerError(msg) from exc
        except (OperationalError, *connection.connection_errors, RedisError) as exc:
            raise unanswered(connection.as_uri(), exc) from exc
        transport = cls(ConfirmedRedis(_patient(channel._get_pool()), app), Keys.of(channel))  # noqa: SLF001 - the app's own settings
        transport.app = app
        return transport

    @staticmethod
    def is_transient(exc: BaseException) -> bool:
        said = str(exc).rpartition("of pipeline caused error: ")[2]  # redis-py puts this before the server's words
        return isinstance(exc, NOT_NOW) or (isinstance(exc, RedisError) and said.startswith(NOT_NOW_CODES))

    def acknowledge(self, tag: str, event: Event | None, result: TaskResult | None = None) -> Answer:
        more = [] if result is None else self._result_args(result)
        names, number = ((), "") if event is None else self._place_of(tag)
        return self._take(_ACKNOWLEDGE, [self.keys.outcomes, *names], [tag, _token(tag), number], event, more)

    def defer(
        self,
        tag: str,
        list_name: str,
        message: bytes,
        *,
        task_id: str,
        event: Event | None,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        first: bool = False,
        pace: Pace | None = None,
    ) -> Answer:
        """Move the message to the delay store for `delay_ms`, or until `due_ms`, by the server's clock.

        If it need not wait, it goes directly back to its list: with `first` to the head, otherwise to the end. With `pace` it is
        due in its queue's first free slot after that time.
        """
        keys = self.keys
        names = [keys.outcomes, keys.list(list_name), keys.destinations, keys.due(list_name), keys.waiting(list_name)]
        names.append(keys.delayed_tasks)
        args = [
            tag,
            _token(tag),
            message,
            "" if delay_ms is None else delay_ms,
            "" if due_ms is None else due_ms,
            SEPARATOR.join((str(task_id).encode("utf-8", "replace").decode(), uuid.uuid4().hex[:12])),
            list_name,
            SEPARATOR,
            keys.wake,
            "next" if first else "last",
            "" if pace is None else pace.gap,
            "" if pace is None or pace.latest_ms is None else pace.latest_ms,
        ]
        if pace is not None:
            names.append(keys.slots(pace.queue, pace.per_second))
        return self._take(_DEFER, names, args, event)

    def dead_letter(
        self, tag: str, message: bytes, *, dead_letter_queue: str, queue: str, event: Event | None, must_exist: bool = False
    ) -> Answer:
        """Move the message to `dead_letter_queue`. Nothing changes if the queue `must_exist` and does not."""
        names = [self.keys.outcomes, self.keys.list(dead_letter_queue), self.keys.dead_letter_queues]
        if must_exist:
            names.append(self.keys.bindings(dead_letter_queue))
        return self._take(_DEAD_LETTER, names, [tag, _token(tag), message, dead_letter_queue, queue], event)

    def start(self, tag: str) -> Answer:
        """Record that the message is about to run. `REFUSED`: it is no longer held, and must not run."""
        return answer_of(_START(self.client, [self.keys.unacked, self.keys.starts], [tag, ""]))

    def accept(self, tag: str) -> Answer:
        """Record that the message counts as acknowledged: it is still held until its outcome, but never runs again."""
        return answer_of(_START(self.client, [self.keys.unacked, self.keys.starts], [tag, ACCEPTED]))

    def release(self, held: Sequence[Held]) -> int:
        """As the port says, but raises `ResponseError` if a list refused a message, after the others have gone back."""
        if not held:
            return 0
        newest_first = sorted(held, key=lambda each: int(each.tag.rpartition(":")[2]), reverse=True)
        lists = [self.keys.list(each.list_name) for each in newest_first]
        names = [self.keys.unacked, self.keys.unacked_index, self.keys.starts, *lists]
        count, error = _RELEASE(self.client, names, [part for each in newest_first for part in (each.tag, each.raw)])
        if error:
            raise ResponseError(text_of(error))
        return int(count)

    def try_result(self, result: TaskResult) -> None:
        _TRY_RESULT(self.client, [], self._result_args(result))

    def _result_args(self, result: TaskResult) -> list[Any]:
        args = [result.key, result.stored, result.seconds or ""]
        ours = int(self.client.connection_pool.connection_kwargs.get("db") or 0)
        return args if result.database == ours else [*args, result.database, ours]

    def _take(self, script: Script, names: list[str], args: list[Any], event: Event | None, more: Sequence[Any] = ()) -> Answer:
        entry = [] if event is None else encoded(event)
        return self._ask(script, [*self._held_keys, *names], [*args, *entry, *more])

    def _ask(self, script: Script, keys: list[str], args: list[Any]) -> Answer:
        return self.answered(script(self.client, keys, args))

    def _place_of(self, tag: str) -> tuple[tuple[str, ...], str]:
        return ((), "") if self.receiver is None else self.receiver.place_of(tag)

    def answered(self, value: Any) -> Answer:
        """A script's answer about a message that this worker holds, or held."""
        if isinstance(value, int) and self.receiver is not None:
            self.receiver.waits_as_free(value)
            return Answer.DONE
        return answer_of(value)

    def now_ms(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def close(self) -> None:
        self.client.connection_pool.disconnect()


def _patient(pool: ConnectionPool) -> ConnectionPool:
    """Make the pool try a call twice, without a pause. A transition that must not be lost is repeated later (`outbox`)."""
    pool.connection_kwargs["retry"] = Retry(NoBackoff(), 1)
    if pool.connection_kwargs.get("socket_timeout") is None:
        pool.connection_kwargs["socket_timeout"] = SOCKET_TIMEOUT
    if pool.connection_kwargs.get("socket_connect_timeout") is None and "path" not in pool.connection_kwargs:
        pool.connection_kwargs["socket_connect_timeout"] = SOCKET_TIMEOUT
    return pool


def _token(tag: str) -> str:
    return tag.partition(":")[0]
