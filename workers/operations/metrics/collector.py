"""Gives the families of samples to Prometheus' client library, which writes the page in the format that a scrape asks for.

Labels are written with `safe`, because a stranger may have chosen a queue's name. `prometheus_client` is an optional dependency
(the extra `metrics`); of these modules, only this one and `worker` need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from redelivery.display import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .metrics import Family


class Families(Collector):
    """A collector that calls `look` for each page. `collect` raises what `look` raises."""

    def __init__(self, look: Callable[[], Iterable[Family]]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """As `Collector.collect`."""
        for family in self._look():
            metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
            for sample in family.samples:
                metric.add_sample(family.name, {name: safe(value) for name, value in sample.labels.items()}, sample.value)
            yield metric


def page_of(collector: Collector, accept: str = "") -> tuple[bytes, str]:
    """A page in the format that a scrape accepts, and the format's content type; plain text by default."""
    encode, content_type = choose_encoder(accept)
    return encode(collector), content_type
