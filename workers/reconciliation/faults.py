"""What went wrong in Spark, in one line for the person who started the job.

Enters: an exception of Spark's, of the bridge to Java, or of a file system. Leaves: a sentence that names the file where there is
one.
"""

from __future__ import annotations

import re
import socket
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

#: What the job may raise besides our own errors.
FAULTS: Final = (PySparkException, Py4JError, ConnectionError, OSError)

_FILE: Final = re.compile(r"(?:file|path)[ :]+'?((?:[a-z0-9]+:)?/[^\s'\"]+)", re.IGNORECASE)
_UNREADABLE: Final = {
    "FAILED_READ_FILE": "cannot be read",
    "is not a Parquet file": "is no whole Parquet file: it was cut off, or is something else",
    "CANNOT_MERGE_INCOMPATIBLE": "has columns of another type than the other files",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH": "has a column of another type than ours",
    "MALFORMED_RECORD_IN_PARSING": "has a line that is no JSON object of ours",
    "Permission denied": "cannot be opened: permission denied",
    "AccessControlException": "cannot be opened: permission denied",
    "No FileSystem for scheme": "names a file system that this Spark does not know: add its connector",
    "OutOfMemoryError": "needs more memory: give the driver more (spark.driver.memory), or run the job on a cluster",
    "No space left on device": "does not fit on the disk: make room, or set SPARK_LOCAL_DIRS to a larger one",
}


def explain(exc: BaseException) -> str:
    """One line."""
    if isinstance(exc, socket.gaierror):
        return "Spark needs the name localhost, and this machine does not know it: add the line `127.0.0.1 localhost` to /etc/hosts"
    told = _told(exc)
    named = _FILE.findall(told)
    subject = named[-1].rstrip(".,)") if named else "the input"
    reasons = [reason for sign, reason in _UNREADABLE.items() if sign in told]
    if reasons:
        return f"{subject} {reasons[-1]}"
    if isinstance(exc, Py4JError) and not isinstance(exc, Py4JJavaError):
        return "the Java process of Spark has ended: there may be too little memory for it"
    return " ".join(told.splitlines()[0].split()) if told else type(exc).__name__


def _told(exc: BaseException) -> str:
    """Everything that the exception and its causes in Java say, but for the stack."""
    lines = [str(exc)]
    cause = exc.java_exception if isinstance(exc, Py4JJavaError) else None
    while cause is not None and len(lines) < 20:  # noqa: PLR2004 - a chain that is longer repeats itself
        lines.append(str(cause.getMessage()))
        cause = cause.getCause()
    return "\n".join(lines)
