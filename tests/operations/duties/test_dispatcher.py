"""The dispatcher: one leads, the others stand by, and nothing that is due waits for long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kombu import Queue

from redelivery.middleware.messages.steps import sealed
from redelivery.workers.duties.dispatcher import Dispatcher
from tests.support.desk import QUEUE, Desk, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from tests.support.servers import Server


def test_a_standby_takes_the_lead_when_the_leader_is_gone(any_server: Server) -> None:
    """While another one leads it moves nothing; when the leader's lease has ended, it does."""
    desk = Desk(any_server)
    task_id = desk.delay(task_message("due"), 1)
    began = time.monotonic()
    assert desk.transport.leases.lead(desk.keys.dispatcher, "another", 2)
    standby = Dispatcher(desk.transport)
    standby.start()
    try:
        until(lambda: desk.ids() == [task_id], 60, "the standby to move it")
        assert time.monotonic() - began >= 1.9
        assert desk.client.get(desk.keys.dispatcher) != b"another"
    finally:
        standby.stop()
    assert not desk.client.exists(desk.keys.dispatcher)


def test_of_many_dispatchers_one_leads_and_each_message_moves_once(any_server: Server) -> None:
    """Each worker of a fleet has a dispatcher; due messages are in their queues once, in the order of their due times."""
    desk = Desk(any_server)
    due_ms = desk.transport.now_ms() + 1000
    ids = [desk.publish(task_message(f"m{number}")) for number in range(50)]
    for at, task_id in enumerate(ids):
        message = sealed(task_message(task_id))
        desk.transport.defer(desk.hold(), QUEUE, message, task_id=task_id, event=None, due_ms=due_ms + at)
    fleet = [Dispatcher(desk.transport) for _ in range(4)]
    for each in fleet:
        each.start()
    try:
        until(lambda: len(desk.ids()) >= 50, 60, "all to be moved")
    finally:
        for each in fleet:
            each.stop()
    assert desk.ids() == ids
    assert not desk.client.keys("redelivery:delayed*")


def test_a_queue_that_expires_does_so_from_its_last_publication_on(any_server: Server) -> None:
    """`Queue(expires=…)` works as it does when kombu publishes."""
    desk = Desk(any_server)
    desk.app.conf.task_queues = [Queue("brief", expires=60)]
    desk.app.send_task("desk.pack", queue="brief")
    assert 0 < desk.client.pttl(desk.keys.list("brief")) <= 60_000
    assert [event.outcome for event in desk.events] == ["published"]
