"""The result of a success: the child sends it to the worker, which stores it in the step that acknowledges the message.

Celery's child asks the backend what it has stored for the task, stores the result, and waits for both answers. If backend and
broker are one server, the worker writes there anyway. So the child only makes the bytes, and the worker's script stores them: an
acknowledged message has its result, and a message that is delivered again has none.

The child still stores the result itself if the result may be read before the acknowledgement: by code that runs after the task
(`on_success`, `after_return`, receivers of `task_success` and `task_postrun`), a chord, the next task of a chain, or a listener to
events. It also stores large results, which should not go through the pool's pipe, and those of a task with its own backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from celery import signals
from celery.app.trace import task_has_custom
from celery.states import SUCCESS
from kombu.utils.encoding import bytes_to_str, str_to_bytes

from ..ports import TaskResult
from .attempt import DELIVERY, Attempt

if TYPE_CHECKING:
    from celery import Task
    from celery.utils.dispatch import Signal

#: The child stores results of this many bytes or more.
MAX_SIZE = 64 * 1024
#: Packages whose signal receivers do not read results.
WELL_KNOWN = ("celery.", "opentelemetry.", "redelivery.")
_STORE = "_store_result"


class Carried(str):
    """The text of a result, as Celery reports it, with the result to store."""

    __slots__ = ("result",)

    result: TaskResult

    @classmethod
    def of(cls, text: str, result: TaskResult) -> Self:
        """The report."""
        made = cls(text)
        made.result = result
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _carried, (str(self), *self.result)


def _carried(text: str, *result: Any) -> Carried:
    return Carried.of(text, TaskResult(*result))


def leave_to_worker(task: Task) -> None:
    """Make the app's backend, in this thread, leave results to the worker; a task's own backend is not changed."""
    backend: Any = task.backend
    if _STORE not in vars(backend) and backend is task.app.backend:
        setattr(backend, _STORE, _Storing(backend))


class _Storing:
    """Replaces the backend's `_store_result`."""

    def __init__(self, backend: Any) -> None:
        self._backend, self._store = backend, getattr(backend, _STORE)

    def __call__(self, task_id: Any, result: Any, state: str, traceback: Any = None, request: Any = None, **more: Any) -> Any:
        attempt = None if request is None else getattr(request, DELIVERY, None)
        if state == SUCCESS and isinstance(attempt, Attempt) and attempt.facts.carries_result:
            kept = None if _is_awaited(attempt.task, request) else self._result(task_id, result, request)
            if kept is not None and len(kept.stored) < MAX_SIZE:
                attempt.result = kept
                return result
        return self._store(task_id, result, state, traceback, request=request, **more)

    def _result(self, task_id: Any, result: Any, request: Any) -> TaskResult:
        backend = self._backend
        meta = backend._get_result_meta(result=result, state=SUCCESS, traceback=None, request=request)  # noqa: SLF001 - Celery's
        stored = str_to_bytes(backend.encode({**meta, "task_id": bytes_to_str(task_id)}))  # a serializer may give bytes
        return TaskResult(backend.get_key_for_task(task_id), stored, backend.expires, backend.connparams["db"])


def _is_awaited(task: Task, request: Any) -> bool:
    """Whether the result may be read before the message is acknowledged."""
    if request.chord or request.chain or request.callbacks:
        return True
    if task_has_custom(task, "on_success") or task_has_custom(task, "after_return"):
        return True
    return any(_has_unknown_receiver(signal, task) for signal in (signals.task_success, signals.task_postrun))


def _has_unknown_receiver(signal: Signal, task: Task) -> bool:
    if not signal.receivers:
        return False
    receivers = signal._live_receivers(task)  # noqa: SLF001 - Celery's
    return any(not str(getattr(each, "__module__", "")).startswith(WELL_KNOWN) for each in receivers)
