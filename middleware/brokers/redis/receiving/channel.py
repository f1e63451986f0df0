"""Receiving on Redis: kombu's transport, with a channel that receives task messages in batches, by one script.

kombu pops a message (BRPOP), and then records it as held (HSET): a worker that dies in between loses the message. Here both are one
step. A waiting worker does not pop. If a receive finds nothing, the worker looks at the lists, and the server then pushes a notice
to the worker when one of them changes (client-side caching).

Only the channel of the worker's task consumer receives like this, after `arm`. Remote control, events, mingle, `basic_get`, other
connections of the app and other apps in the process use kombu's own code, except for `_put`, which publishes a task and records it
in one step. Nothing global is patched.
"""

from __future__ import annotations

import time
from collections import deque
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import loads
from kombu.utils.scheduling import priority_cycle
from redis import ConnectionPool, Redis
from redis.exceptions import ConnectionError as BrokerGone
from redis.exceptions import NoScriptError, ResponseError

from ....known import is_known
from ....logs import log
from ....ports import Held
from ..keys import Keys, split_unacked, unacked_suffix
from ..leases import priority_of
from ..publishing.producer import Publishing
from ..scripts import command, packed
from .poller import Wakeful
from .receiver import FIRST_POLL, MAX_POLL, REST, Receiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from .owner import Owner

MAX_MESSAGES = 64
MAX_BYTES = 8 * 1024 * 1024
MAX_NAMES = 1000
#: The most messages that a producer publishes in one script: it blocks the server for one or two milliseconds.
MAX_TOGETHER = 100
#: Seconds after which the rest of a batch waits for the event loop's next turn. The second limit is for kombu 5.6, whose loop
#: cannot be woken, and may sleep for a second before that turn.
MAX_HAND_OVER, UNWOKEN = 0.02, 1.0
#: Seconds that an idle worker waits for the answer when a push has made it ask; then its event loop goes on.
AT_ONCE = 0.001


class Message(virtual.Message):
    """A kombu message. `held` is None if kombu holds the message itself. `queue` is set if kombu's own receive took it."""

    held: Held | None = None
    queue: str | None = None


class QoS(kombu_redis.QoS):
    """The prefetch window. Messages of an armed channel are held, ended and moved by scripts, not here."""

    def append(self, message: Message, delivery_tag: str) -> None:
        if getattr(message, "held", None) is None:
            super().append(message, delivery_tag)
        else:
            virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """End the message without an event, because Celery itself acknowledges it."""
        owner = self._owner_of(delivery_tag)
        if owner is None:
            super().ack(delivery_tag)
        else:
            owner.transport.acknowledge(delivery_tag, None)
            owner.drop(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        owner = self._owner_of(delivery_tag)
        if owner is None:
            super().reject(delivery_tag, requeue=requeue)
        elif requeue:
            owner.transport.release([owner.held[delivery_tag]])
            owner.drop(delivery_tag)
        else:
            self.ack(delivery_tag)

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """As kombu's, for the messages of plain workers. If the server refuses writes, the worker goes on."""
        try:
            super().restore_visible(*args, **kwargs)
        except ResponseError as exc:
            log.warning("restore.refused", error=str(exc))

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Restore nothing for an armed channel: when it has connected again, the owner gives back what it does not keep."""
        if self.channel.receiver is None:
            super().restore_unacked_once(stderr)

    def _owner_of(self, delivery_tag: str) -> Owner | None:
        receiver = self.channel.receiver
        return receiver.owner if receiver is not None and delivery_tag in receiver.owner.held else None


class Receiving:
    """The receiving half of a channel: a mixin, because kombu has one channel for Redis and one for Sentinel."""

    QoS = QoS
    Message = Message
    receiver: Receiver | None = None
    _receive_pool: ConnectionPool | None = None

    def arm(self: Any, receiver: Receiver) -> None:
        """Make this channel receive for this receiver's owner."""
        self.receiver = receiver
        pool = self._get_pool(asynchronous=True)
        kwargs = pool.connection_kwargs
        kwargs["protocol"] = 3
        kwargs["redis_connect_func"] = self._on_receive_connect
        kwargs.pop("maint_notifications_config", None)
        kwargs.pop("maint_notifications_pool_handler", None)
        previous = self.__dict__.pop("client", None)
        self._receive_pool = pool
        self.client = Redis(connection_pool=pool)
        if previous is not None and previous.connection is not None:
            self.connection.cycle.leave(self)  # mingle has used it
            previous.connection.disconnect()

    def _on_receive_connect(self: Any, connection: Any) -> None:
        try:
            connection.on_connect()
            connection.send_command("SCRIPT", "LOAD", self.receiver.script.text)
            connection.read_response()
            refusal = self._track(connection)
        except ResponseError as exc:
            if not self.receiver.owner.transport.is_transient(exc):
                raise
            raise BrokerGone(str(exc)) from exc  # Celery's consumer connects again at this error
        if refusal and self.receiver.is_tracking:
            log.warning("receiver.tracking_refused", error=refusal, polling=f"{FIRST_POLL}-{MAX_POLL}s")
        self.receiver.is_tracking = not refusal
        self.receiver.connected()

    def _track(self: Any, connection: Any) -> str:
        """Make the server push changes of keys that are read. Returns '', or why it does not."""
        set_handler = getattr(getattr(connection, "_parser", None), "set_invalidation_push_handler", None)
        if set_handler is None or not is_known("redis"):
            return "this redis-py has no handler of pushes that we know of"
        set_handler(self.receiver.pushed)
        connection.send_command("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
        connection.send_command("CLIENT", "CACHING", "YES")
        connection.send_command("EXISTS", Keys.of(self).leases)
        refused = []
        for _ in range(3):
            try:
                connection.read_response()
            except ResponseError as exc:
                if self.receiver.owner.transport.is_transient(exc):
                    raise  # a new connection is made
                refused.append(str(exc))
        return refused[0] if refused else ""

    # kombu's poller calls these for the connection that fetches messages

    def _brpop_start(self: Any, timeout: float | None = None) -> None:
        receiver: Receiver | None = self.receiver
        if receiver is None:
            super()._brpop_start(timeout)  # type: ignore[misc]
            return
        if receiver.pending:
            self._continue(receiver)
            if receiver.pending:
                return
        if receiver.must_look() and not receiver.is_woken:  # a woken receiver asks first, and looks after the answer
            self._send(self._looks(receiver.watched, "watched"))
            return
        budget = self._budget()
        if receiver.seconds_to_wait() > 0 or (budget <= 0 and not receiver.must_hand_on()):
            return
        rest = receiver.seconds_to_rest()
        if rest > 0:
            if rest == REST:  # the rest begins: one timer is enough
                self.connection.wake_in(rest)
            return
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        receiver.queues = queues
        owner = receiver.owner
        receiver.asked_as = token = owner.token  # another thread may change it before the answer comes
        names, suffixes = self._names_of(tuple(queues), token)
        bounds = [budget, MAX_BYTES, len(queues), receiver.free() if receiver.is_tracking else -1, int(not receiver.is_woken)]
        args = [token, owner.calls + 1, *bounds, *suffixes, self._turn()]
        receiver.asked()
        commands = [packed(receiver.script.sha, names, args)]
        receiver.wake_key = names[4].encode()
        if receiver.is_tracking and receiver.wake_key not in receiver.tracked:  # another worker may wake it as soon as it waits
            commands = [*self._looks(frozenset((receiver.wake_key,)), "own"), *commands]
        receiver.under_way.append("batch")
        self._send(commands)

    def _continue(self: Any, receiver: Receiver) -> None:
        """Hand over the rest of a batch. The loop has already chosen how long it sleeps, so a timer would not wake it."""
        if receiver.was_cut_short and self.connection.look_around():
            receiver.was_cut_short = False
            return
        self._hand_over(UNWOKEN if receiver.was_cut_short else MAX_HAND_OVER)
        if receiver.pending:
            receiver.was_cut_short = not self.connection.look_around()

    def _send(self: Any, commands: list[bytes]) -> None:
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        self._in_poll.send_packed_command([b"".join(commands)])

    def _looks(self: Any, keys: frozenset[bytes], kind: str) -> list[bytes]:
        """The commands that ask whether any of these keys exists, and make the server report each key's next change."""
        receiver: Receiver = self.receiver
        receiver.under_way += ["", kind]
        receiver.tracked |= keys
        return [command(b"CLIENT", b"CACHING", b"YES"), command(b"EXISTS", *keys)]

    def _names_of(self: Any, queues: tuple[str, ...], token: str) -> tuple[list[str], list[str]]:
        """The script's keys and suffixes for these queues, in this order. They are cached, because the order only rotates."""
        known = self.receiver.names.get((queues, token))
        if known is None:
            keys = Keys.of(self)
            lists = [keys.list(keys.list_name(queue, step)) for step in keys.priority_steps for queue in queues]
            fixed = [keys.unacked, keys.unacked_index, keys.received(token), keys.leases, keys.woken(token)]
            known = [*fixed, *map(keys.watch, queues), *map(keys.idle, queues), *lists], [unacked_suffix(queue) for queue in queues]
            self.receiver.names = {**self.receiver.names, (queues, token): known} if len(self.receiver.names) < MAX_NAMES else {}
        return known  # type: ignore[no-any-return]

    def _lists_of(self: Any, at: int) -> list[bytes]:
        """The lists of the queue with this index in the last call of the script."""
        queues = self.receiver.queues
        names, _ = self._names_of(tuple(queues), self.receiver.asked_as)
        return [name.encode() for name in names[5 + 2 * len(queues) + at :: len(queues)]]

    def _turn(self: Any) -> int:
        """How many messages one queue gives before the next queue's turn: one, unless the app's queues have priorities."""
        return MAX_MESSAGES if isinstance(self._queue_cycle, priority_cycle) else 1

    def _budget(self: Any) -> int:
        prefetch = self.qos.prefetch_count
        outstanding = len(self.qos._delivered) - len(self.qos._dirty)  # noqa: SLF001 - kombu has no public name for it
        room = MAX_MESSAGES if not prefetch else min(prefetch - outstanding, MAX_MESSAGES)
        if not self.qos.can_consume():
            return 0
        return int(min(room, self.receiver.limit()))

    def _brpop_read(self: Any, **options: Any) -> bool:
        receiver: Receiver | None = self.receiver
        if receiver is None:
            return bool(super()._brpop_read(**options))  # type: ignore[misc]
        connection = self.client.connection
        try:
            self._read(connection)
            if (receiver.is_woken or receiver.must_look()) and not receiver.pending and not self._in_poll:
                self._brpop_start()  # at once, not at the next turn of the event loop
                if self._in_poll and connection.can_read(AT_ONCE):
                    self._read(connection)
        except NoScriptError:
            self._in_poll = None
            self.connection.cycle.leave(self)
            connection.disconnect()
            raise Empty from None
        except ResponseError as exc:
            self._in_poll = None
            log.error("receive.refused", error=str(exc))
            receiver.hold_off(1.0)
            raise Empty from None
        except self.connection_errors:
            self._in_poll = None
            connection.disconnect()
            raise
        self.connection.wake_in(receiver.seconds_to_wait())
        if not self._hand_over():
            raise Empty
        return True

    def _read(self: Any, connection: Any) -> None:
        """Read the awaited answers, and then pushes, until there are no more, or one is a reason to ask."""
        if self._in_poll:
            self._read_answers(connection)
        else:
            connection.read_response(**self._as_push())
        while not self.receiver.is_woken and not self.receiver.must_look() and connection.can_read(0):
            connection.read_response(**self._as_push())

    def _read_answers(self: Any, connection: Any) -> None:
        """Read the awaited answers, and take a batch in at once: the pushes behind it are newer."""
        receiver, refused = self.receiver, None
        while receiver.under_way:
            kind = receiver.under_way.popleft()
            try:
                reply = connection.read_response()
            except NoScriptError:
                raise
            except ResponseError as exc:
                refused = exc
                continue
            if kind == "batch":
                self._take_in(reply)
            elif kind == "watched" and reply:
                receiver.wake()
        self._in_poll = None
        if refused is not None:
            raise refused

    def _as_push(self: Any) -> dict[str, bool]:
        """The argument that makes redis-py read a push, if the server pushes."""
        return {"push_request": True} if self.receiver.is_tracking else {}

    def _take_in(self: Any, reply: list[Any]) -> None:
        """Add the whole batch to `pending` before any message of it is handed over."""
        receiver: Receiver = self.receiver
        owner = receiver.owner
        state, now_ms, look_ms, watches = reply[0], int(reply[1]), int(reply[2]), reply[3]
        owner.saw_server_time(now_ms)
        if state != b"ok":
            self._lost_claim(state)
            return
        if receiver.asked_as == owner.token:
            owner.calls += 1
        is_empty = len(reply) == 4  # noqa: PLR2004 - the four values read above, and no message
        receiver.watched = frozenset(each for at, flag in enumerate(watches) if flag == ord("1") for each in self._lists_of(at))
        waits = receiver.is_tracking and look_ms and watches == b"0"
        receiver.waits_for = frozenset(self._lists_of(0)) if waits else frozenset()
        if waits:
            names, _ = self._names_of(tuple(receiver.queues), receiver.asked_as)
            receiver.place = (names[2], *names[5:])
        if not is_empty:
            receiver.tracked &= {receiver.wake_key}  # the script changed the lists, which ends the tracking without a push
        if receiver.is_tracking and look_ms:
            receiver.waits(look_ms)
        elif is_empty and not receiver.is_tracking:
            receiver.polls()
        else:
            receiver.found()
        base = 6 + 2 * len(receiver.queues)
        for at in range(4, len(reply), 3):
            tag, index, raw = reply[at].decode(), int(reply[at + 1]), reply[at + 2]
            if index:
                queue = receiver.queues[(index - base) % len(receiver.queues)]
                step = self.priority_steps[(index - base) // len(receiver.queues)]
                list_name = self._q_for_pri(queue, step)
            else:
                raw, queue = split_unacked(raw)
                list_name = Keys.of(self).list_name(queue, priority_of(raw))
            held = Held(tag, queue, list_name, raw, now_ms)
            owner.held[tag] = held
            receiver.pending.append(held)
            if len(receiver.queues) > 1:
                self._queue_cycle.rotate(queue)  # a queue that gave a message goes to the end

    def _lost_claim(self: Any, state: bytes) -> None:
        receiver: Receiver = self.receiver
        log.warning("owner.fenced", worker=receiver.owner.worker, state=state.decode())
        receiver.owner.begin(receiver.asked_as)
        receiver.wake()

    def _hand_over(self: Any, seconds: float = MAX_HAND_OVER) -> int:
        """Give pending messages to their consumers for this long; return how many. A bad message does not stop the others."""
        receiver: Receiver = self.receiver
        count, began = 0, time.monotonic()
        while receiver.pending:
            if time.monotonic() - began > seconds:
                # The pool runs tasks in this thread, or is full: the loop must handle a shutdown or a revoke between messages.
                receiver.was_cut_short = True
                self.connection.wake_in(0.001)
                break
            held = receiver.pending[0]
            callback = self.connection._callbacks.get(held.queue)  # noqa: SLF001 - as kombu's `_deliver`
            if callback is None:
                self._give_back(held.list_name)
                continue
            receiver.pending.popleft()
            try:
                message = self._message(held)
            except Exception as exc:  # noqa: BLE001 - any client may have written the bytes
                receiver.on_garbage(held, exc)
                continue
            count += 1
            receiver.handed_over += 1
            self.qos.append(message, held.tag)
            callback(message)
        return count

    def _give_back(self: Any, list_name: str) -> None:
        """Give back all pending messages of a list that is no longer consumed, in one call, which keeps their order."""
        receiver: Receiver = self.receiver
        back = [held for held in receiver.pending if held.list_name == list_name]
        receiver.pending = deque(held for held in receiver.pending if held.list_name != list_name)
        try:
            receiver.owner.transport.release(back)
        except ResponseError as exc:
            log.error("release.refused", error=str(exc), why="these messages stay held until the lease ends")
            return
        for held in back:
            receiver.owner.held.pop(held.tag, None)

    def _message(self: Any, held: Held) -> Any:
        payload = loads(held.raw)
        properties = {**payload["properties"], "delivery_tag": held.tag}
        message = self.Message({**payload, "properties": properties}, channel=self)
        message.held = held
        held.release_credit = self._credit(held.tag)
        return message

    def _credit(self: Any, tag: str) -> Callable[[], None]:
        qos, hub_wake = self.qos, self.connection.wake

        def release_credit() -> None:
            virtual.QoS.ack(qos, tag)
            hub_wake()

        return release_credit

    def basic_consume(self: Any, queue: str, no_ack: bool, callback: Callable[..., Any], consumer_tag: str, **kwargs: Any) -> Any:
        """As kombu's. An armed channel calls `callback` with complete messages, and holds messages even with `no_ack`."""
        if self.receiver is None and not no_ack:
            callback = _named(callback, queue)
        answer = super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)  # type: ignore[misc]
        if self.receiver is not None and queue not in self._fanout_queues:
            self.connection._callbacks[queue] = callback  # noqa: SLF001 - as kombu's `basic_consume`
            self.receiver.wake()
        return answer

    def basic_cancel(self: Any, consumer_tag: str) -> Any:
        if self.receiver is not None:
            self.receiver.leaves()
        return super().basic_cancel(consumer_tag)  # type: ignore[misc]

    def close(self: Any) -> None:
        """As kombu's. An awaited answer is not read: the owner gives its messages back."""
        if self.receiver is not None:
            self.receiver.leaves()
            self._in_poll = None
        super().close()  # type: ignore[misc]
        if self._receive_pool is not None:
            self._receive_pool.disconnect()


class Channel(Publishing, Receiving, kombu_redis.Channel):  # type: ignore[misc]
    """The channel for Redis."""


class SentinelChannel(Publishing, Receiving, kombu_redis.SentinelChannel):  # type: ignore[misc]
    """The channel for Redis behind Sentinel."""


def _named(callback: Callable[..., Any], queue: str) -> Callable[..., Any]:
    """Give each message of kombu's own receive the name of its queue, which its routing key does not tell."""

    def named(message: Message) -> Any:
        message.queue = queue
        return callback(message)

    return named


class ReceivingTransport(Wakeful, kombu_redis.Transport):  # type: ignore[misc]
    """kombu's Redis transport, with our channel."""

    Channel = Channel
    #: How many messages its channels publish in one batch (`publish_together`).
    publishes_together = MAX_TOGETHER


class SentinelReceivingTransport(Wakeful, kombu_redis.SentinelTransport):  # type: ignore[misc]
    """kombu's Sentinel transport, with our channel."""

    Channel = SentinelChannel
    publishes_together = MAX_TOGETHER
