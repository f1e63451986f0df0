"""The operations on Redis: a hash for each, and a set of the operations that have not ended.

Every change is one script, which first checks the operation's state and token. The scripts that move a message for an operation
check both, too, and count the message. So an aborted operation moves no more messages, and the counts are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.errors import BrokerError
from redelivery.middleware.brokers.redis.keys import SEPARATOR
from redelivery.middleware.brokers.redis.scripts import Script, answer_of
from redelivery.middleware.brokers.redis.stores import life_text
from redelivery.middleware.ports import Answer

from ...ports import Life, StoredOperation
from .audit import MAX_RECORDS
from .delay_store import RedisDelayStore
from .letters import RedisLetterStore
from .transport import OnRedis

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...ports import Claim

#: The maximum number of stored operations.
MAX_OPERATIONS = 1_000
#: The maximum number of lives in one call of a script.
PAGE = 5_000
#: The prefix of the fields that count an operation's messages for each target.
TO = "to:"

_BEGIN, _TURN, _REPORT = Script("operation_begin"), Script("operation_turn"), Script("operation_report")


class RedisOperationStore(OnRedis):
    """The operations that the broker keeps. Every method raises the errors of the broker's driver."""

    def lead(self, token: str, seconds: float) -> bool:
        """Take or keep the lead among the operation runners for `seconds`; False if another process leads."""
        return self._transport.leases.lead(self._keys.operator, token, seconds)

    def resign(self, token: str) -> None:
        self._transport.leases.resign(self._keys.operator, token)

    def begin(self, operation_id: str, about: str, record: str) -> StoredOperation:
        """Store and record a new operation, which waits. Then remove the oldest ended operations."""
        keys = self._keys
        names = [keys.operation(operation_id), keys.operations, keys.open_operations, keys.audit]
        _BEGIN(self._client, names, [operation_id, about, record, MAX_RECORDS])
        self._forget()
        found = self.stored(operation_id)
        if found is None:
            msg = "the operation was stored, and something else removed it: begin it again"
            raise BrokerError(msg)
        return found

    def _forget(self) -> None:
        old: Any = self._client.zrange(self._keys.operations, 0, -(MAX_OPERATIONS + 1))
        if not old:
            return
        still: Any = self._client.smembers(self._keys.open_operations)
        for each in (each.decode("utf-8", "replace") for each in old if each not in still):
            with self._client.pipeline() as pipe:
                pipe.delete(self._keys.operation(each), self._keys.followed(each))
                pipe.zrem(self._keys.operations, each)
                pipe.execute()

    def stored(self, operation_id: str) -> StoredOperation | None:
        return next(iter(self._read([operation_id])), None)

    def newest(self, limit: int) -> list[StoredOperation]:
        """The newest operations, the newest first."""
        return self._read(self.ids()[:limit])

    def ids(self) -> list[str]:
        found: Any = self._client.zrevrange(self._keys.operations, 0, -1)
        return [each.decode("utf-8", "replace") for each in found]

    def has_unended(self) -> bool:
        return bool(self._client.exists(self._keys.open_operations))

    def unended(self) -> list[StoredOperation]:
        """The operations that have not ended, the oldest first."""
        found: Any = self._client.smembers(self._keys.open_operations)
        if not found:
            return []
        read = self._read([each.decode("utf-8", "replace") for each in found])
        kept = {each.operation_id for each in read}
        gone = [each for each in found if each.decode("utf-8", "replace") not in kept]
        if gone:  # an id without an operation would stay for ever
            self._client.srem(self._keys.open_operations, *gone)
        return sorted(read, key=lambda each: (each.created_ms, each.operation_id))

    def _read(self, ids: Collection[str]) -> list[StoredOperation]:
        """The operations with these ids; missing ones are left out."""
        with self._client.pipeline(transaction=False) as pipe:
            for each in ids:
                pipe.hgetall(self._keys.operation(each))
            answers: list[Any] = pipe.execute(raise_on_error=False) if ids else []
        return [_stored(each, answer) for each, answer in zip(ids, answers, strict=True) if answer and isinstance(answer, dict)]

    def turn(
        self,
        operation_id: str,
        state: str,
        *,
        states: Collection[str],
        held: str = "",
        token: str = "",
        message: str = "",
        record: str = "",
        has_ended: bool = False,
    ) -> Answer:
        """Change an operation from one of `states` to `state`, and record that. If `held` is given, it must be the current token.

        Returns `REFUSED` if the operation has another state or another token, and `MISSING` if it does not exist.
        """
        keys = self._keys
        names = [keys.operation(operation_id), keys.open_operations, keys.audit]
        expected, ended = f",{','.join(states)},", "ended" if has_ended else ""
        args = [operation_id, expected, held, state, token, message, record, MAX_RECORDS, ended]
        answer = answer_of(_TURN(self._client, names, args))
        if answer is Answer.DONE and has_ended:
            self._client.delete(keys.followed(operation_id))
        return answer

    def report(self, claim: Claim, progress: str, message: str, ended: Collection[Life] = ()) -> bool:
        """Store an operation's progress, and which of its lives have ended. Returns False if another process carries it out."""
        names = [self._keys.operation(claim.operation_id), self._keys.followed(claim.operation_id)]
        lives = list(ended)
        is_ours = True
        for at in range(0, max(len(lives), 1), PAGE):
            args = [claim.token, progress, message, *map(life_text, lives[at : at + PAGE])]
            is_ours = answer_of(_REPORT(self._client, names, args)) is Answer.DONE
        return is_ours

    def followed(self, operation_id: str) -> list[Life]:
        """The lives that the operation opened, except lives that were reported as ended."""
        found: Any = self._client.smembers(self._keys.followed(operation_id))
        return sorted(life for each in found if (life := _life(each.decode("utf-8", "replace"))) is not None)

    def letters(self, claim: Claim) -> RedisLetterStore:
        return RedisLetterStore(self._transport, claim)

    def delayed(self, claim: Claim) -> RedisDelayStore:
        return RedisDelayStore(self._transport, claim)


def _stored(operation_id: str, values: dict[bytes, bytes]) -> StoredOperation:
    read = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in values.items()}
    fields: dict[str, Any] = {name: read.get(name, "") for name in ("about", "state", "message", "progress")}
    numbers = ("moved", "created_ms", "started_ms", "ended_ms", "heartbeat_ms", "reported_ms")
    fields |= {name: _number(read.get(name)) for name in numbers}
    by_target = {name.removeprefix(TO): _number(value) for name, value in read.items() if name.startswith(TO)}
    return StoredOperation(operation_id=operation_id, by_target=by_target, **fields)


def _number(value: str | None) -> int:
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 19 else 0  # noqa: PLR2004 - 64 bits


def _life(text: str) -> Life | None:
    generation, _, rest = text.partition(SEPARATOR)
    queue, separator, task_id = rest.partition(SEPARATOR)
    return Life(task_id, int(generation), queue) if separator and generation.isascii() and generation.isdigit() else None
