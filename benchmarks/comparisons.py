"""The table of all comparisons: what is measured, on which sides, with how much work, and the aims."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.figures import Figure

__all__ = ["BROKERS", "COMPARISONS", "Amount", "Comparison", "chosen"]

BROKERS = ("valkey", "rabbitmq")

TWO = ("plain", "redelivery")
THREE = (*TWO, "dramatiq")
FOUR = (*THREE, "rq")
OURS = ("redelivery",)
#: RQ forks for each job, and is about ten times slower, so fewer tasks are enough.
FEWER = {"rq": 0.1}


@dataclass(frozen=True, slots=True)
class Amount:
    """The amount of work: the standard, which `--scale` multiplies, and the minimum for a useful measurement."""

    standard: int
    least: int

    def scaled(self, scale: float) -> int:
        """The standard times `scale`, at least `least`."""
        return max(round(self.standard * scale), self.least)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison. `measure` is `module:function`, called with a side's name, the amounts and the options.

    `aims` by figure: a ratio to the base, or a value if redelivery is measured alone. `fewer` scales the amounts of a slow side.
    With `beside`, the sides run in parallel, and take turns message by message (`turns.py`). Otherwise each side runs alone.
    """

    name: str
    title: str
    measure: str
    sides: tuple[str, ...] = TWO
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    aims: Mapping[str, float] = field(default_factory=dict)
    fewer: Mapping[str, float] = field(default_factory=dict)
    beside: bool = False

    @property
    def broker(self) -> str:
        return str(self.options.get("broker", BROKERS[0]))

    def scaled(self, scale: float) -> dict[str, int]:
        """The amounts of work at this scale."""
        return {name: each.scaled(scale) for name, each in self.amounts.items()}

    def run(self, side: str, scale: float) -> dict[str, Figure]:
        module, _, function = self.measure.partition(":")
        amounts = self.scaled(scale * self.fewer.get(side, 1.0))
        figures: dict[str, Figure] = getattr(importlib.import_module(module), function)(side, **amounts, **self.options)
        return figures


def _ordinary(name: str, title: str, sides: tuple[str, ...], aim: float, tasks: int = 6000, **options: Any) -> Comparison:
    return Comparison(
        name,
        title,
        "benchmarks.throughput:ordinary",
        sides,
        {"tasks": Amount(tasks, 200)},
        {"pool": "prefork", **options},
        {"tasks_per_second": aim},
        FEWER,
    )


def _on_rabbitmq(name: str, title: str, **options: Any) -> Comparison:
    return _ordinary(f"rabbitmq-{name}", f"RabbitMQ: {title}", TWO, 1.3, broker="rabbitmq", **options)


def _idle(workers: int, sides: tuple[str, ...]) -> Comparison:
    title = f"{workers} idle worker{'s' if workers > 1 else ''}"
    amounts, aims = {"seconds": Amount(15, 3)}, {"broker_processor": 1.5, "broker_commands": 1.5}
    return Comparison(f"idle-{workers}", title, "benchmarks.idle:idle", sides, amounts, {"workers": workers}, aims)


def _fleet(workers: int) -> Comparison:
    title = f"250 tasks a second for {workers} worker{'s' if workers > 1 else ''} of one process"
    options = {"workers": workers, "per_second": 250}
    aims = {"broker_us_per_task": 1.3, "idle_broker_processor": 1.5, "idle_broker_commands": 1.5}
    return Comparison(f"fleet-{workers}", title, "benchmarks.fleet:fleet", TWO, {"seconds": Amount(15, 3)}, options, aims)


def _delays(name: str, title: str, sides: tuple[str, ...], tasks: int, per_second: int) -> Comparison:
    amounts, options, aims = {"tasks": Amount(tasks, 50)}, {"per_second": per_second}, {"late_p50": 1.5, "late_p99": 1.0}
    return Comparison(name, title, "benchmarks.delays:lateness", sides, amounts, options, aims)


def _start(name: str, title: str, tasks: int, per_second: int, aim: str, *, beside: bool = False) -> Comparison:
    amounts, options = {"tasks": Amount(tasks, 50)}, {"per_second": per_second}
    return Comparison(name, title, "benchmarks.start:start", THREE, amounts, options, {aim: 1.0}, beside=beside)


def _many(name: str, title: str, measure: str, **options: Any) -> Comparison:
    amounts, aims = {"tasks": Amount(10_000, 500)}, {"publish_mean": 0.4}
    return Comparison(name, title, f"benchmarks.group:{measure}", TWO, amounts, options, aims)


def _reconciliation(name: str, millions: int, aims: Mapping[str, float], **options: Any) -> Comparison:
    title = f"the books of {millions} million events, against a bare groupBy"
    amounts = {"events": Amount(millions * 1_000_000, 10_000)}
    return Comparison(f"reconciliation{name}", title, "benchmarks.reconciliation:reconciliation", OURS, amounts, options, aims)


def _small_day(name: str, title: str, **options: Any) -> Comparison:
    amounts = {"events": Amount(10_000, 1000)}
    return Comparison(name, title, "benchmarks.small_day:small_day", OURS, amounts, options, {"seconds": 8.0})


COMPARISONS: Mapping[str, Comparison] = {
    each.name: each
    for each in (
        _ordinary("noop", "no-op, two processes", FOUR, 3.5),
        _ordinary("noop-threads", "no-op, two threads", THREE, 2.5, pool="threads"),
        _ordinary("noop-10kb", "10 kB of arguments, two processes", FOUR, 2.5, tasks=4000, argument_bytes=10_000),
        _ordinary("noop-results", "results kept, two processes", TWO, 2.5, tasks=4000, results=True),
        _ordinary("noop-results-threads", "results kept, two threads", TWO, 2.5, tasks=4000, results=True, pool="threads"),
        Comparison(
            "failing",
            "five failing attempts, 1 s apart",
            "benchmarks.throughput:failing",
            FOUR,
            {"tasks": Amount(1500, 50)},
            aims={"attempts_per_second": 4.0},
            fewer=FEWER,
        ),
        _on_rabbitmq("noop", "no-op, two processes"),
        _on_rabbitmq("noop-threads", "no-op, two threads", pool="threads"),
        _on_rabbitmq("noop-quorum", "no-op, two processes, a quorum queue", queue_type="quorum"),
        Comparison(
            "rabbitmq-failing",
            "RabbitMQ: five failing attempts, 1 s apart",
            "benchmarks.throughput:failing",
            amounts={"tasks": Amount(1500, 50)},
            options={"broker": "rabbitmq"},
            aims={"attempts_per_second": 3.0},
        ),
        Comparison(
            "rabbitmq-lateness",
            "RabbitMQ: delays of 1, 2, 5 and 61 s, each ten a second",
            "benchmarks.delays:whole_seconds",
            OURS,
            {"tasks": Amount(300, 20)},
            {"per_second": 10, "broker": "rabbitmq"},
            {f"late_p99_{seconds}s": 250.0 for seconds in (1, 2, 5, 61)},
        ),
        _delays("lateness", "due at 250 a second", THREE, 2500, 250),
        _delays("lateness-slow", "due at 10 a second", FOUR, 200, 10),
        Comparison(
            "kill-storm",
            "a worker that is killed 20 times",
            "benchmarks.killing:storm",
            amounts={"tasks": Amount(3000, 300), "kills": Amount(20, 2)},
        ),
        Comparison(
            "healing",
            "a worker that is killed in the middle of a task",
            "benchmarks.killing:healing",
            amounts={"visibility_timeout": Amount(60, 10)},
        ),
        Comparison(
            "delayed-memory",
            "messages that wait an hour",
            "benchmarks.delays:memory",
            amounts={"tasks": Amount(10_000, 500)},
        ),
        Comparison(
            "delayed-million",
            "very many delayed messages",
            "benchmarks.delay_store:delay_store",
            OURS,
            {"messages": Amount(1_000_000, 2000)},
            aims={"promoted_per_second": 10_000.0},
        ),
        Comparison(
            "redrive",
            "dead letters go back",
            "benchmarks.letters:redriven",
            OURS,
            {"letters": Amount(100_000, 1000)},
            aims={"redriven_per_second": 10_000.0},
        ),
        Comparison(
            "first-page",
            "the first page of very many dead letters",
            "benchmarks.letters:first_page",
            OURS,
            {"letters": Amount(1_000_000, 1000)},
            aims={"first_page": 100.0},
        ),
        Comparison(
            "web",
            "the operator's page over very many dead letters",
            "benchmarks.web:page",
            OURS,
            {"letters": Amount(1_000_000, 1000), "delayed": Amount(10_000, 100)},
            aims={"overview": 50.0, "causes": 50.0, "letters": 50.0, "letters_in_the_middle": 100.0, "letters_by_cause": 100.0},
        ),
        Comparison(
            "rabbitmq-web",
            "RabbitMQ: the operator's page",
            "benchmarks.web:page_on_rabbitmq",
            OURS,
            {"letters": Amount(2000, 20), "delayed": Amount(500, 5)},
            {"broker": "rabbitmq"},
            {"overview": 50.0, "causes": 50.0, "letters": 50.0},
        ),
        Comparison(
            "inventory",
            "the inventory of very many waiting messages",
            "benchmarks.inventory:inventory",
            OURS,
            {"messages": Amount(1_000_000, 2000)},
        ),
        Comparison(
            "producer",
            "one `delay()`",
            "benchmarks.producer:producer",
            FOUR,
            {"calls": Amount(10_000, 300)},
            aims={"delay_mean": 1.1},
        ),
        _many("group", "a group, for each task", "group"),
        _many("publishing", "a loop of `delay()` in a `publishing()` block", "loop"),
        _many("rabbitmq-group", "RabbitMQ: a group, for each task", "group", broker="rabbitmq"),
        Comparison(
            "features",
            "no-op with a feature on, against the same with it off",
            "benchmarks.features:features",
            OURS,
            {"tasks": Amount(6000, 200)},
            aims={"metrics_rate": 0.97, "traces_1_in_100_rate": 0.97},
        ),
        _start("start-idle", "from `delay()` to the task, idle (20/s)", 300, 20, "start_p50", beside=True),
        _start("start-loaded", "from `delay()` to the task, at 400/s", 4000, 400, "start_p99"),
        Comparison(
            "broker-bytes",
            "the broker's memory",
            "benchmarks.broker_bytes:broker_bytes",
            amounts={"tasks": Amount(10_000, 500)},
        ),
        _fleet(1),
        _fleet(16),
        _fleet(64),
        _fleet(256),
        _idle(1, FOUR),
        _idle(10, FOUR),
        _idle(100, TWO),
        Comparison(
            "outcome-log-cap",
            "the outcome log without an exporter",
            "benchmarks.log_cap:log_cap",
            OURS,
            {"tasks": Amount(1_000_000, 20_000), "cap": Amount(64 * 2**20, 4 * 2**20)},
            aims={"peak_of_cap": 1.0},
        ),
        _reconciliation("-1m", 1, {}),
        _reconciliation("", 10, {"speed_kept": 0.5}),
        _reconciliation("-100m", 100, {"peak_memory": 8.0, "times_a_tenth": 11.0}, rounds=2, tenth=True),
        Comparison(
            "carrying",
            "the books of a day with a state, against the same without",
            "benchmarks.carrying:carrying",
            OURS,
            {"events": Amount(10_000_000, 10_000)},
            aims={"times_stateless": 1.2},
        ),
        _small_day("small-day", "the books of a small day, from the shell"),
        _small_day("small-day-embedded", "the books of a small day, from the shell, with PyPI's Java", embedded=True),
    )
}


def chosen(patterns: Sequence[str], broker: str | None = None) -> list[Comparison]:
    """The comparisons with these names or shell patterns (default: all), on one broker or on any, in the table's order.

    Raises `ValueError`, with a suggestion, for a pattern without a match.
    """
    for pattern in patterns:
        if not fnmatch.filter(COMPARISONS, pattern):
            near = difflib.get_close_matches(pattern, COMPARISONS)
            hint = f"did you mean {near[0]!r}?" if near else "--list names them all"
            msg = f"there is no comparison {pattern!r}; {hint}"
            raise ValueError(msg)
    there = [each for each in COMPARISONS.values() if broker in {None, each.broker}]
    return [each for each in there if not patterns or any(fnmatch.fnmatchcase(each.name, one) for one in patterns)]
