"""The bootstep that serves a worker's own metrics, if the setting `metrics_listen` names an address.

It begins when the consumer has connected for the first time. If the address is taken, or prometheus_client cannot write its files,
a warning is logged, and the worker runs without metrics.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from redelivery.middleware.logs import log
from redelivery.settings.values import host_and_port

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from ..operations.metrics.server import MetricsServer

#: Names the folder in which prometheus_client keeps a process's values, if it is set.
SHARED = "PROMETHEUS_MULTIPROC_DIR"


def _require_shared_folder() -> None:
    """Raise `OSError` if prometheus_client cannot write to its folder: each count would fail."""
    folder = os.environ.get(SHARED)
    if folder is not None and not (Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        msg = f"{SHARED} is {folder!r}, which is not a folder that can be written: make it, or unset the variable"
        raise OSError(msg)


class ServedMetrics(bootsteps.StartStopStep):
    """The bootstep of the metrics."""

    requires = ("redelivery.middleware.worker.bootstep:Ingress",)
    label = "redelivery metrics"

    def __init__(self, consumer: Consumer, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._server: MetricsServer | None = None

    def include_if(self, consumer: Consumer) -> bool:
        """Whether an address is set."""
        return consumer.app.redelivery.settings.metrics_listen is not None

    def start(self, consumer: Consumer) -> None:
        """Begin to count and to serve; a lost connection does not end it."""
        if self._server is not None:
            return
        from ..operations.metrics.collector import page_of  # noqa: PLC0415 - prometheus_client is an extra
        from ..operations.metrics.server import MetricsServer  # noqa: PLC0415 - only if it serves
        from ..operations.metrics.worker import WorkerMetrics  # noqa: PLC0415 - as above

        runtime = consumer.app.redelivery
        metrics = WorkerMetrics(runtime.app.tasks)
        host, port = host_and_port(runtime.settings.metrics_listen)
        try:
            _require_shared_folder()
            self._server = MetricsServer(host, port, lambda accept: page_of(metrics.registry, accept))
        except OSError as exc:
            log.warning("metrics.not_served", address=runtime.settings.metrics_listen, error=str(exc.strerror or exc))
            return
        runtime.listener = metrics.count
        self._server.begin()
        log.info("metrics.served", url=self._server.url)

    def stop(self, consumer: Consumer) -> None:
        """Do nothing: tasks that still run are counted when they end."""

    def shutdown(self, consumer: Consumer) -> None:  # noqa: ARG002 - Celery's signature
        """End with the worker."""
        server, self._server = self._server, None
        if server is not None:
            server.end()
