"""The Spark session of the job, and Spark's errors in one line for its user.

Under `spark-submit` the cluster's settings hold, and only settings that all books need are added. Started as a command, the job has
a quiet local session: all cores, no web page, no port beyond the loopback, and Spark's messages in a log file.
"""

from __future__ import annotations

import locale
import os
import re
import signal
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from redelivery.errors import InputError

from .java import ClassArchive, ensure_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_GIB = 2**30
#: Bytes that the temporary folder must be able to take.
_NEEDED_BYTES: Final = 2**20

#: Days are in UTC. The settings of partitions let folding and joining by task share one shuffle.
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_LOCAL = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.task.maxFailures": "1",
}

#: A session with less input than this (bytes) is a short one: about 400,000 events.
_MAX_SHORT_BYTES: Final = 32 * 2**20

#: Settings for a short session. Compilation (by Java or of queries) and planning after each stage take longer than they save. The
#: heap and the space for classes begin at the needed size, because their growth would cost a dozen collections. Java's default of
#: 48 MiB for compiled code with one compiler is too small for several runs.
_SMALL = {
    "spark.driver.extraJavaOptions": (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
        " -Xms768m -Xmn512m -XX:MetaspaceSize=192m -XX:-UsePerfData"
    ),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

#: Settings for large inputs: the cheapest collector; no compression of kept tables, which are read once or twice; small partitions
#: of a shuffle, so that no core is idle at its end; a large cache of compiled queries for the next run in this session.
_LARGE = {
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.sql.codegen.cache.maxEntries": "1000",
}

#: A setting for queries over many events: the first hash table of an aggregation is large enough for the tasks of one partition. A
#: full table would be searched without a result for each further event.
LOOKING = {"spark.sql.codegen.aggregate.fastHashMap.capacityBit": "20"}


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session while the block runs."""
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@contextmanager
def session(*, input_bytes: int | None = None, log: Path | None = None) -> Iterator[SparkSession]:
    """The active session, or a new one that is stopped at the end.

    `input_bytes` is the size of the input, None if unknown: below 32 MiB Java is started for a short session. Spark's messages are
    appended to the file `log`. Raises `InputError` if there is no Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    archive = None if "PYSPARK_GATEWAY_PORT" in os.environ else ClassArchive.of(ensure_java())
    had_archive = archive is not None and archive.exists
    with _delay_signals():
        started = _started(input_bytes, log, archive)
    try:
        yield started
        if archive is not None:
            jvm: Any = started.sparkContext._jvm  # noqa: SLF001 - Spark has no public way to Java's properties
            known = jvm.java.lang.System.getProperty
            archive.keep(str(known("java.class.path")), is_refused=had_archive and "sharing" not in str(known("java.vm.info")))
    finally:
        started.stop()


def _started(input_bytes: int | None, log: Path | None, archive: ClassArchive | None) -> SparkSession:
    builder = SparkSession.builder.appName("redelivery reconcile").config(map=dict(_ALWAYS))
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # `spark-submit` has set everything
        return builder.getOrCreate()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if locale.getencoding().lower().replace("-", "") != "utf8":  # otherwise Java finds no file with a name beyond ASCII
        os.environ["LC_ALL"] = "C.UTF-8"
    # Without SPARK_HOME, Spark's scripts start a Python to find it. The launcher's Java is short-lived and gets cheap options.
    home = os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    if not (Path(home) / "bin" / "spark-submit").exists():
        msg = f"SPARK_HOME names {home}, and there is no bin/spark-submit in it: unset it, or set it to the folder of a Spark"
        raise InputError(msg)
    _check_space()
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    small = input_bytes is not None and input_bytes < _MAX_SHORT_BYTES
    options: dict[str, bool | float | int | str | None] = {**_LOCAL, **(_SMALL if small else _LARGE)}
    options["spark.driver.memory"] = _heap(2 * _GIB if small else 6 * _GIB)
    if archive is not None:
        options["spark.driver.extraJavaOptions"] = f"{options['spark.driver.extraJavaOptions']} {archive.options}"
    options["spark.sql.shuffle.partitions"] = (os.cpu_count() or 1) * (1 if small else 16)
    with _redirect_output(log):
        started = builder.config(map=options).getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    return started


@contextmanager
def _delay_signals() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block ends: if PySpark is interrupted while it starts Java, that Java never ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {each: signal.signal(each, lambda number, _: received.append(number)) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if received:
            signal.raise_signal(received[0])


def _check_space() -> None:
    """Raise `InputError` if the temporary folder is full: Java could not write its port there, and Spark would wait forever."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(_NEEDED_BYTES))
    except OSError as exc:
        msg = (
            f"{tempfile.gettempdir()} has no room for Spark's temporary files ({exc.strerror}): free space, set TMPDIR to another "
            "folder, or raise the limit on the size of files (ulimit -f)"
        )
        raise InputError(msg) from exc


def _heap(limit: int) -> str:
    """Half of the memory, from 1 GiB to `limit`, for the driver, which does all the work in local mode."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(max(memory // 2, _GIB), limit) // 2**20}m"


@contextmanager
def _redirect_output(log: Path | None) -> Iterator[None]:
    """Redirect stdout and stderr of processes that start in this block to the file, until they end."""
    path = Path(os.devnull) if log is None else log
    kept = [os.dup(stream) for stream in (1, 2)]
    try:
        with path.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        yield
    finally:
        for stream, before in zip((1, 2), kept, strict=True):
            os.dup2(before, stream)
            os.close(before)


#: Exceptions that the job may raise besides `RedeliveryError`.
FAULTS: Final = (PySparkException, Py4JError, ConnectionError, OSError)

_FILE: Final = re.compile(r"(?:file|path)[ :]+'?((?:[a-z0-9]+:)?/[^\s'\"]+)", re.IGNORECASE)
_UNWRITABLE: Final = re.compile(r"Mkdirs failed to create (?:file:)?(.+?)(?:/_temporary| \(exists=)")
_UNREADABLE: Final = {
    "FAILED_READ_FILE": "cannot be read",
    "is not a Parquet file": "is not a whole Parquet file: it was cut off, or is another kind of file",
    "CANNOT_MERGE_INCOMPATIBLE": "has columns of another type than the other files",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH": "has a column of an unexpected type",
    "MALFORMED_RECORD_IN_PARSING": "has a line that is not a JSON object of redelivery",
    "Permission denied": "cannot be opened: permission denied",
    "AccessControlException": "cannot be opened: permission denied",
    **dict.fromkeys(
        ("No FileSystem for scheme", "FileSystem not found"), "names a file system that this Spark does not know: add its connector"
    ),
    "OutOfMemoryError": "needs more memory: give the driver more (spark.driver.memory), or run the job on a cluster",
    "no snappyjava in": (
        "cannot be written: Java cannot load a library from its temporary folder. The folder may be full or mounted noexec, or a "
        "file may not become large enough (ulimit -f)"
    ),
    "File too large": "needs a larger file than this process may write: raise its limit (ulimit -f)",
    "Disk quota exceeded": "does not fit into the disk quota",
    "No space left on device": "does not fit on the disk: free space, or set SPARK_LOCAL_DIRS to a larger one",
}

_ENDED: Final = (
    "the Java process of Spark has ended: there may be too little memory for it, SPARK_LOCAL_DIRS may name no folder that it can "
    "write, or JAVA_TOOL_OPTIONS or PYSPARK_SUBMIT_ARGS may be wrong"
)


def explain(exc: BaseException) -> str:
    """The error in one line."""
    if isinstance(exc, socket.gaierror):
        return "Spark needs the name localhost, and this machine does not know it: add the line `127.0.0.1 localhost` to /etc/hosts"
    if isinstance(exc, ConnectionError) or (isinstance(exc, PySparkException) and exc.getCondition() == "JAVA_GATEWAY_EXITED"):
        return _ENDED
    messages = _messages(exc)
    if (folder := _UNWRITABLE.search(messages)) is not None:
        return f"{folder[1]} cannot be made: look at the rights of its folder, or name another place"
    named = _FILE.findall(messages)
    subject = named[-1].rstrip(".,)") if named else "the input"
    reasons = [reason for sign, reason in _UNREADABLE.items() if sign in messages]
    if reasons:
        return f"{subject} {reasons[-1]}"
    if isinstance(exc, Py4JError) and not isinstance(exc, Py4JJavaError):
        return _ENDED
    lines = [" ".join(line.lstrip(": ").split()) for line in messages.splitlines() if line.strip()]
    lines = lines[1:] if isinstance(exc, Py4JJavaError) else lines  # its first line only names the call
    return lines[0] if lines else type(exc).__name__


def _messages(exc: BaseException) -> str:
    """The messages of the exception and of its causes in Java, without the stack."""
    lines = [str(exc)]
    cause = exc.java_exception if isinstance(exc, Py4JJavaError) else None
    while cause is not None and len(lines) < 20:  # noqa: PLR2004 - a longer chain repeats itself
        lines.append(str(cause.getMessage()))
        cause = cause.getCause()
    return "\n".join(lines)
