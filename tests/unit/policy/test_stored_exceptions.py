"""Exceptions in a result backend: they name `redelivery`, and exceptions that earlier versions stored can be read."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import pytest
from celery import Celery

from redelivery import DeadLetter, RedeliverAfter

#: What the version at d1c2e7f pickled: a `DeadLetter` with its decision attached, and a `RedeliverAfter`.
OLD_LETTER = (
    "gASVHgEAAAAAAACMHHJlZGVsaXZlcnkubWlkZGxld2FyZS5yYWlzZWSUjApEZWFkTGV0dGVylJOUjAtjYXJkIHN0b2xlbpSFlFKUfZQojAZkZXRhaWyUaAOMDl9fcmVk"
    "ZWxpdmVyeV9flIwecmVkZWxpdmVyeS5taWRkbGV3YXJlLmRlY2lzaW9ulGgBk5QpgZRdlCiMHnJlZGVsaXZlcnkubWlkZGxld2FyZS5vdXRjb21lc5SMBlJlYXNvbpSTlIwN"
    "bm9uX3JldHJ5YWJsZZSFlFKUaANlYowccmVkZWxpdmVyeS5taWRkbGV3YXJlLmhlYWRlcpSMBkZhaWxlZJSTlCmBlF2UKIwDeC5ZlGgDjACUjANhYmOUZWKMBXRhZy0xlIeU"
    "dWIu"
)
OLD_AFTER = (
    "gASVXgAAAAAAAACMHHJlZGVsaXZlcnkubWlkZGxld2FyZS5yYWlzZWSUjBBfcmVkZWxpdmVyX2FmdGVylJOUaACMDlJlZGVsaXZlckFmdGVylJOUR0A+AAAAAAAAjARidXN5"
    "lIeUUpQu"
)
READ = "import base64, pickle, sys; each = pickle.loads(base64.b64decode(sys.argv[1])); print(type(each), each.args, each.detail)"


def stored(serializer: str, exc: Exception) -> Any:
    """The exception as a result backend reads what it has stored."""
    app = Celery(set_as_current=False, backend="cache+memory://", accept_content=["json", "pickle"])
    app.conf.update(result_serializer=serializer, result_accept_content=["json", "pickle"])
    backend, task_id = app.backend, f"{serializer}-{type(exc).__name__}"
    backend.store_result(task_id, exc, "FAILURE", traceback="")
    return app.AsyncResult(task_id).result


@pytest.mark.parametrize("exc", [DeadLetter("card stolen"), RedeliverAfter(30, "busy")], ids=["DeadLetter", "RedeliverAfter"])
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_stored_exception_names_the_package_and_comes_back_as_its_class(serializer: str, exc: Exception) -> None:
    """Its internal module is not part of its name, and may change."""
    assert type(exc).__module__ == "redelivery"
    read = stored(serializer, exc)
    assert (type(read), read.args, vars(read)) == (type(exc), exc.args, vars(exc))


@pytest.mark.parametrize(("old", "said"), [(OLD_LETTER, "('card stolen',) card stolen"), (OLD_AFTER, "(30.0, 'busy') busy")])
def test_a_result_that_an_earlier_version_pickled_is_read(old: str, said: str) -> None:
    """The reading process has not imported redelivery before."""
    done = subprocess.run([sys.executable, "-c", READ, old], check=True, capture_output=True, text=True)
    assert done.stdout.strip().endswith(said)
    assert "redelivery." in done.stdout
    assert base64.b64decode(old).count(b"redelivery.middleware.raised") == 1


@pytest.mark.parametrize("cls", [DeadLetter, RedeliverAfter])
def test_a_result_that_an_earlier_version_stored_as_json_is_its_class(cls: type[Exception]) -> None:
    """Celery looks for the module under its old name."""
    args = ["busy"] if cls is DeadLetter else [30, "busy"]
    old = {"exc_type": cls.__name__, "exc_message": args, "exc_module": "redelivery.middleware.raised"}
    read = Celery(set_as_current=False, backend="cache+memory://").backend.exception_to_python(json.loads(json.dumps(old)))
    assert (type(read), str(read.detail)) == (cls, "busy")
