"""A user's file: `@redeliver` above and below `@app.task`, with the untyped Celery.

Mypy treats Celery as Any, so a task is Any, with or without `@redeliver`. Pyright reads Celery's source.
"""

from celery import Celery, shared_task
from redelivery import Redelivery, redeliver

app = Celery("shop")
Redelivery(app, {"queues": {"#": {"max_delivery_attempts": 5}}})


@app.task
def plain(order_id: int) -> str:
    return str(order_id)


@app.task
@redeliver(max_delivery_attempts=3)
def below(order_id: int) -> str:
    return str(order_id)


@redeliver(max_delivery_attempts=3)
@app.task
def above(order_id: int) -> str:
    return str(order_id)


@redeliver
@shared_task
def shared(order_id: int) -> str:
    return str(order_id)


# seen by mypy: Any
# seen by pyright: (order_id: int) -> str
reveal_type(plain)

# seen by mypy: Any
# seen by pyright: (order_id: int) -> str
reveal_type(below)

# seen by mypy: Any
# seen by pyright: (order_id: int) -> str
reveal_type(above)

# seen by mypy: Any
# seen by pyright: (order_id: int) -> str
reveal_type(shared)
