"""The figures of the broker: which of them a page shows live, and the resulting alarms."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redelivery.display import harmless

from ...operations.doctor.dead_letters import UNREAD
from ...operations.metrics.rates import KINDS
from ...operations.words.numbers import span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...operations.metrics.metrics import Family
    from ...operations.metrics.rates import Rates
    from ...ports import Condition, Gauge

#: A due message is late after these seconds; from this part of its cap on, the outcome log counts as full.
LATE, FULL = 30, 0.8
#: Figures are old after these seconds.
OLD = 5.0
#: From this part of its memory on, a broker is nearly full.
NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures at one moment. `rates` are of the last hour; None if the outcome log cannot be read without consuming it.

    `condition` is what the broker reports about itself. `began` is the beginning of the measurement, by the monotonic clock.
    """

    families: dict[str, Family]
    now_ms: int
    rates: Rates | None
    condition: Condition | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def caveat(self) -> str:
        """A warning if the figures are old; otherwise empty."""
        age = time.monotonic() - self.began
        return f"The broker answers slowly: these figures are {span(int(age))} old." if age >= OLD else ""

    def total(self, name: str) -> float:
        """The sum of a metric over its labels."""
        return sum(each.value for each in self._samples(name))

    def most(self, name: str) -> float:
        """The greatest value of a metric."""
        return max((each.value for each in self._samples(name)), default=0)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric by one of its labels."""
        return {each.labels.get(label, ""): each.value for each in self._samples(name)}

    def _samples(self, name: str) -> Sequence[Gauge]:
        return self.families[f"redelivery_{name}"].samples if self.has(name) else ()

    def has(self, name: str) -> bool:
        """Whether the broker has this metric."""
        return f"redelivery_{name}" in self.families


def live(figures: Figures) -> dict[str, str]:
    """Return the figures that change while a screen is open, as texts."""
    oldest = figures.most("oldest_dead_letter_age_seconds")
    shown = {
        "waiting": f"{figures.total('queue_messages'):,.0f}",
        "delayed": f"{figures.total('delayed_messages'):,.0f}",
        "letters": f"{figures.total('dead_letters'):,.0f}",
        "held": f"{figures.total('held_messages'):,.0f}",
        "overdue": span(figures.most("overdue_seconds")) if figures.most("overdue_seconds") else "none",
        "oldest": span(round(oldest)) if oldest else "none",
    }
    if figures.has("workers"):
        shown["workers"] = f"{figures.total('workers'):,.0f}"
    if figures.rates is not None:
        shown |= {kind: f"{figures.rates.total(kind):,}" for kind in KINDS}
    return shown


def alarms(figures: Figures) -> list[tuple[str, str]]:
    """Return what needs an operator, and what to do."""
    found = list(_of_broker(figures.condition))
    late, delayed = figures.most("overdue_seconds"), figures.total("delayed_messages")
    if late > LATE:
        todo = "A worker or `redelivery dispatcher` must run and reach the broker."
        found.append((f"Delayed messages are overdue by {span(late)}.", todo))
    elif figures.has("dispatchers") and delayed and not figures.total("dispatchers"):
        found.append(("No dispatcher leads, and messages wait for their time.", "Start a worker, or `redelivery dispatcher`."))
    if figures.has("workers") and not figures.total("workers"):
        found.append(("No worker renews its lease.", "Start a worker; waiting messages are kept."))
    ages = figures.by("oldest_dead_letter_age_seconds", "dead_letter_queue")
    longest = max(ages, key=lambda name: ages[name], default="")
    if ages and ages[longest] >= UNREAD.total_seconds():
        todo = "Each dead letter is a task that did not happen: redrive them, or purge them."
        found.append((f"Dead letters wait in {harmless(longest)}, the oldest for {span(round(ages[longest]))}.", todo))
    lost = figures.total("outcome_log_lost_events")
    most, taken = figures.total("outcome_log_max_bytes"), figures.total("outcome_log_bytes")
    if lost:
        todo = "Set `outcome_export`, or raise `outcome_log_max_bytes`."
        found.append((f"{lost:,.0f} events left the full outcome log before an export.", todo))
    elif most and taken >= FULL * most:
        found.append((f"The outcome log is {taken / most:.0%} full.", "Run `redelivery outcomes export`, or set `outcome_export`."))
    return found


def _of_broker(condition: Condition | None) -> Iterator[tuple[str, str]]:
    """Yield the alarms of a broker that accepts no publications, or soon will not."""
    used, most = (condition and condition.memory) or (0, 0)
    if most and used >= most:
        todo = "It refuses publications, or deletes messages: raise its `maxmemory`. Dead letters can still be redriven and purged."
        yield "The broker is full: it uses all of its memory.", todo
    elif most and used >= NEARLY_FULL * most:
        todo = "A full broker refuses publications, or deletes messages: raise its `maxmemory`."
        yield f"The broker is nearly full: it uses {used / most:.0%} of its memory.", todo
    if condition is not None and condition.alarm:
        todo = "Producers wait, and workers cannot acknowledge: free what `rabbitmq-diagnostics alarms` names."
        yield f"The broker is full, and takes no publications: {harmless(condition.alarm)}.", todo
