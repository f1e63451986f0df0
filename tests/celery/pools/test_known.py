"""Untested versions of libraries, and libraries that lack a part that we use: each worker works without it, and says so."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from celery.result import AsyncResult

from redelivery.middleware.known import is_known, version_of
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop, Worker

POLICY = {"queues": {"#": {"redelivery_delay": 0.2, "max_delivery_attempts": 3}}}
OURS = [
    "redelivery.middleware.worker.pool_patches.begun",
    "redelivery.middleware.worker.pool_patches.children",
    "redelivery.middleware.worker.pool_patches.children",
]


def works(here: Shop, worker: Worker) -> None:
    """Check success, redelivery, death, a lost child, a revoked countdown and a new connection."""
    ok, twice, bad, killed = here.send("ok"), here.send("fails", 1), here.send("fails"), here.send("kills", 1)
    revoked = here.send("ok", countdown=3600)
    assert here.ended(ok, "succeeded").attempt == 1
    assert here.ended(twice, "succeeded").attempt == 2
    assert here.ended(bad, "dead_lettered").attempt == 3
    assert here.ended(killed, "succeeded").attempt == 2
    until(lambda: "deferred" in here.outcomes_of(revoked))
    here.app.control.revoke(revoked)
    here.ended(revoked, "revoked")
    until(lambda: AsyncResult(revoked, app=here.app).state == "REVOKED", 10, "the result of a revoked task")
    napping = here.send("naps", 1)
    until(lambda: here.runs(napping))
    here.server.client.client_kill_filter(_type="normal", skipme=True)
    here.ended(napping, "succeeded")
    assert len(here.runs(napping)) == 2
    worker.stop()
    until(lambda: {"celery", "unacked"}.isdisjoint(here.leftovers()), what="nothing to be held")


def unknown(worker: Worker) -> list[str]:
    """The libraries that the worker has warned about."""
    return [line.partition("library=")[2].split()[0] for line in worker.text.splitlines() if "event=library.unknown" in line]


def is_tracked(here: Shop) -> bool:
    """Whether the server sends pushes to any client."""
    return any("t" in client["flags"] for client in here.server.client.client_list())


def around(here: Shop) -> tuple[list[str], bool]:
    """The notes of `tests.support.stops.noted_parts`."""
    (found,) = here.runs("parts")
    return found["around"], found["is_under_way"]


def test_of_what_is_known_every_part_is_used(shop: Callable[..., Shop]) -> None:
    """With tested versions there is no warning, and each part that the other tests look for is ours."""
    here = shop(settings=POLICY, backend=True)
    worker = here.start("-I", "tests.support.stops.noted_parts")
    until(lambda: is_tracked(here), 10, "the server to push")
    works(here, worker)
    assert around(here) == (OURS, True)
    assert unknown(worker) == []


@pytest.mark.parametrize("library", first_quick(["billiard", "celery"]))
def test_an_unknown_celery_has_its_own_pool(shop: Callable[..., Shop], library: str) -> None:
    """One warning; no part of the pool is replaced."""
    here = shop(settings=POLICY, backend=True, versions={library: "99.1.0"}, conf={"worker_lost_wait": 1})
    worker = here.start("-I", "tests.support.stops.noted_parts")
    works(here, worker)
    found, is_under_way = around(here)
    assert set(found).isdisjoint(OURS)
    assert is_under_way
    assert unknown(worker) == [library]
    assert 'event=stop.unknown lacks="a version that is known"' in worker.text


def test_an_unknown_redis_py_polls_and_waits(shop: Callable[..., Shop]) -> None:
    """There is one warning; the server is not asked for pushes, and each transition is waited for."""
    here = shop(settings=POLICY, backend=True, versions={"redis": "99.1.0"})
    worker = here.start("-I", "tests.support.stops.noted_parts")
    here.ended(here.send("ok"), "succeeded")
    assert not is_tracked(here)
    works(here, worker)
    assert around(here) == (OURS, False)
    assert unknown(worker) == ["redis"]


def test_parts_that_are_gone_are_done_without(shop: Callable[..., Shop]) -> None:
    """Celery's pool and redis-py's connection hide their internals, and Celery's request cannot announce a revoke."""
    here = shop(settings=POLICY, backend=True, conf={"worker_lost_wait": 1})
    worker = here.start("-I", "tests.support.stops.without_parts,tests.support.stops.noted_parts")
    here.ended(here.send("ok"), "succeeded")
    assert not is_tracked(here)
    works(here, worker)
    assert set(around(here)[0]).isdisjoint(OURS)
    assert "AttributeError" not in worker.text


@pytest.mark.parametrize(
    ("version", "is_tried"),
    [
        ("5.6.0", True),
        ("5.7.3", True),
        ("5.7.0rc1", True),
        ("5.8.0", False),
        ("5.70", False),
        ("6.0", False),
        ("main", False),
        ("5", False),
    ],
)
def test_versions_are_known_by_how_they_begin(monkeypatch: pytest.MonkeyPatch, version: str, is_tried: Any) -> None:
    """Versions are compared number by number."""
    monkeypatch.setattr(import_module("kombu"), "__version__", version)
    assert is_known("kombu") is is_tried


def test_what_is_installed_is_known() -> None:
    """Every library of this environment is a tested version."""
    assert {each: version_of(each) for each in ("billiard", "celery", "kombu", "redis") if not is_known(each)} == {}
