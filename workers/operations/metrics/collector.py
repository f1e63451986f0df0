"""Passes the metrics to Prometheus' client library, which writes the page in the format that a scrape requests.

Labels are written with `safe`, because any client may choose a queue's name. Only this module and `worker` need the optional
dependency `prometheus_client` (the extra `metrics`).
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
    """A collector that calls `measure` for each page. `collect` raises the errors of `measure`."""

    def __init__(self, measure: Callable[[], Iterable[Family]]) -> None:
        self._measure = measure

    def collect(self) -> Iterator[Metric]:
        """As `Collector.collect`."""
        for family in self._measure():
            metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
            for sample in family.samples:
                metric.add_sample(family.name, {name: safe(value) for name, value in sample.labels.items()}, sample.value)
            yield metric


def page_of(collector: Collector, accept: str = "") -> tuple[bytes, str]:
    """Return a page in the format that a scrape accepts (plain text by default), and its content type."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the version of the format is not a number
        encode, content_type = choose_encoder("")
    return encode(collector), content_type
