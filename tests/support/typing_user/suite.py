"""A user's test: the fixtures of `redelivery.testing`, typed."""

from redelivery.testing import Clock, DeadLetters, Letter, Outcomes, RunningWorker


def test_it(redelivery_worker: RunningWorker, dead_letters: DeadLetters, outcomes: Outcomes, advance_time: Clock) -> None:
    redelivery_worker.settle(timeout=5.0)
    advance_time(60)

    # refused by mypy: arg-type
    # refused by pyright: reportArgumentType
    advance_time("an hour")

    # seen by mypy: Letter
    # seen by pyright: Letter
    reveal_type(dead_letters[0])

    # seen by mypy: list[Letter]
    # seen by pyright: list[Letter]
    reveal_type(dead_letters.of("id"))

    # seen by mypy: tuple[Any, ...] | None
    # seen by pyright: tuple[Any, ...] | None
    reveal_type(dead_letters[0].args)

    # seen by mypy: Event
    # seen by pyright: Event
    reveal_type(outcomes.wait_for("id"))


def first(letters: DeadLetters) -> Letter:
    return letters[0]
