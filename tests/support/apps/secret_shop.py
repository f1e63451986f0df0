"""The tests' app with tasks that put their arguments into every text that a task can produce."""

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
        """Say all."""
        message = f"on_retry of {args}"
        raise RuntimeError(message)


@app.task(bind=True, max_retries=1)
def gives_up(self: Any, card: str) -> None:  # noqa: ARG001 - Celery says it
    """Asks for one more attempt until its limit; Celery's own exception then names the arguments."""
    raise self.retry(countdown=0.1)


@app.task(base=Telling)
def tells(card: str) -> None:
    """Raises an exception that holds its argument, chained to another one that does."""
    message = f"no money on {card}"
    try:
        raise KeyError(card)  # noqa: TRY301 - what is chained was raised
    except KeyError as exc:
        raise ValueError(message) from exc


@app.task
def dies(card: str) -> None:
    """Gives up at once, and says why."""
    message = f"stolen: {card}"
    raise DeadLetter(message)


@app.task
def total(values: list[str]) -> str:
    """The body of a chord."""
    return ",".join(values)


@signals.task_failure.connect
def hears(exception: BaseException | None = None, **_: Any) -> NoReturn:
    """A signal receiver that raises, and puts what it was given into the exception."""
    message = f"the receiver was told {exception}"
    raise RuntimeError(message)


@app.task
def exits(card: str) -> None:
    """Ends its process, and says why."""
    raise SystemExit(card)
