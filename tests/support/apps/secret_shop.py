"""The tests' app with tasks that leak their arguments into every text that a task can produce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Task, signals

from redelivery import DeadLetter
from tests.support.shop import app

if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["app"]


class Telling(Task):
    """A task whose hook raises, too."""

    abstract = True

    def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> NoReturn:  # noqa: ARG002 - Celery's signature
        message = f"on_retry of {args}"
        raise RuntimeError(message)


@app.task(bind=True, max_retries=1)
def gives_up(self: Any, card: str) -> None:  # noqa: ARG001 - Celery's exception has it
    """Retries up to its limit. Celery's exception then has the arguments."""
    raise self.retry(countdown=0.1)


@app.task(base=Telling)
def tells(card: str) -> None:
    """Raises two chained exceptions that have its argument."""
    message = f"no money on {card}"
    try:
        raise KeyError(card)  # noqa: TRY301 - a chained exception must have been raised
    except KeyError as exc:
        raise ValueError(message) from exc


@app.task
def dies(card: str) -> None:
    """Raises `DeadLetter` with its argument."""
    message = f"stolen: {card}"
    raise DeadLetter(message)


@app.task
def total(values: list[str]) -> str:
    """The body of a chord."""
    return ",".join(values)


@signals.task_failure.connect
def hears(exception: BaseException | None = None, **_: Any) -> NoReturn:
    """A signal receiver that raises, with the task's exception in its text."""
    message = f"the receiver was told {exception}"
    raise RuntimeError(message)


@app.task
def exits(card: str) -> None:
    """Ends its process, with its argument."""
    raise SystemExit(card)
