"""The 24 tasks of the application."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import chain, group, shared_task
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, SoftTimeLimitExceeded

from store.app import Audited, Connected, Counting, app
from store.models import Order


class OutOfStockError(Exception):
    """The item is sold out."""


class BankError(Exception):
    """The bank did not answer."""


def tries(name: str) -> int:
    """Count a call, over all processes."""
    path = Path(os.environ["STORE_FOLDER"], f"tries-{name}")
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size


@shared_task
def price(item: str, count: int = 1) -> int:
    return len(item) * count


@shared_task
def add(a: int, b: int) -> int:
    return a + b


@shared_task
def total(prices: list[int]) -> int:
    return sum(prices)


@shared_task
def discount(amount: int, percent: int) -> int:
    return amount * (100 - percent) // 100


@shared_task(bind=True, base=Audited)
def place(self: Any, item: str, count: int = 1) -> int:
    self.write("placing")
    return int(Order.objects.create(item=item, count=count).pk)


@shared_task(base=Audited)
def pay(order_id: int) -> str:
    Order.objects.filter(pk=order_id).update(status="paid")
    return "paid"


@shared_task(base=Audited)
def refuse(order_id: int) -> None:
    message = f"order {order_id} is for nothing"
    raise OutOfStockError(message)


@shared_task
def status(order_id: int) -> str:
    return str(Order.objects.get(pk=order_id).status)


@shared_task(bind=True, max_retries=3, default_retry_delay=0.05)
def ask_bank(self: Any, name: str, answers_at: int) -> int:
    """Retries by itself. Returns the number of the try."""
    count = tries(name)
    if count < answers_at:
        raise self.retry(exc=BankError(f"try {count}"))
    return count


@shared_task(autoretry_for=(BankError,), max_retries=2, retry_backoff=False, default_retry_delay=0.05)
def ask_bank_kindly(name: str, answers_at: int) -> int:
    count = tries(name)
    if count < answers_at:
        message = f"try {count}"
        raise BankError(message)
    return count


@shared_task(bind=True, max_retries=1, default_retry_delay=0.05)
def give_up(self: Any) -> None:
    """Retries without an exception."""
    raise self.retry()


@shared_task(bind=True, max_retries=2)
def fall_back(self: Any, name: str) -> str:
    """Has a result when the retries are used up."""
    try:
        raise self.retry(countdown=0.05)
    except MaxRetriesExceededError:
        return f"{name} by hand, after {self.request.retries} retries"


@shared_task(bind=True, max_retries=3)
def count_down(self: Any, number: int) -> str:
    if number:
        raise self.retry(args=(number - 1,), countdown=0.02)
    return f"lift off after {self.request.retries} retries"


@shared_task(bind=True, base=Connected)
def connected(self: Any, *, is_shut: bool = False) -> str | None:
    """Uses what its base opened."""
    if is_shut:
        raise PermissionError
    found: str | None = self.connection
    return found


@shared_task(bind=True, base=Counting)
def counted(self: Any) -> int:
    """The number of runs in this process."""
    return int(self.calls)


@shared_task(bind=True)
def mail(self: Any, to: str) -> str:
    return f"{to} by {self.request.delivery_info['routing_key']}"


@shared_task(bind=True)
def reject(self: Any) -> None:  # noqa: ARG001 - bound as its neighbours are
    reason = "no"
    raise Reject(reason, requeue=False)


@shared_task(bind=True)
def ignore(self: Any) -> None:
    self.update_state(state="ARCHIVED", meta={"by": "hand"})
    raise Ignore


@shared_task(soft_time_limit=1)
def patient() -> str:
    """Catches its soft time limit."""
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        return "in time"
    return "too late"


@shared_task(bind=True)
def progress(self: Any) -> str:
    self.update_state(state="PROGRESS", meta={"done": 50})
    return str(self.request.id)


@shared_task(bind=True)
def expand(self: Any, items: list[str]) -> Any:
    """Is replaced by a group of tasks and their sum."""
    return self.replace(chain(group(price.s(item) for item in items), total.s()))


@app.task(bind=True)
def headers(self: Any) -> dict[str, Any]:
    return {"tenant": self.request.headers.get("tenant") if self.request.headers else None, "root": self.request.root_id}


@app.task(throws=(OutOfStockError,))
def expected_failure() -> None:
    message = "sold out"
    raise OutOfStockError(message)


@app.task(bind=True)
def tell(self: Any, *parts: Any) -> str:
    """A callback: writes its arguments to a file."""
    Path(os.environ["STORE_FOLDER"], "told").open("a").write(f"{self.request.root_id} {parts[-1] if parts else ''}\n")  # noqa: SIM115 - one line
    return "told"
