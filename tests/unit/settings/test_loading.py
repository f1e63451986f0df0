"""Loading: three equal sources, precedence for each setting, and the errors for wrong settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.errors import ConfigurationError
from redelivery.settings import FIELDS, AddressPattern, GeneralSettings, RedeliverySettings
from redelivery.settings.loading import MAX_REMEMBERED

if TYPE_CHECKING:
    from pathlib import Path


def load(conf: dict[str, Any] | None = None, **environ: str) -> RedeliverySettings:
    """Settings from a mapping and this environment only."""
    return RedeliverySettings.load(conf, environ)


SAME: dict[str, Any] = {
    "mode": "observe",
    "lease": 5,
    "fast_receive": False,
    "outcome_log_max_bytes": 1000,
    "queues": {"#": {"max_delivery_attempts": 3, "non_retryable": ["ValueError"]}, "orders.*": {"dead_letter_queue": "none"}},
    "tasks": {"shop.charge": {"redelivery_delay": 2.5, "rules": {"OSError": {"redelivery_delay": 30}}}},
    "override": {"queues": {"orders.eu": {"enabled": False}}, "tasks": {"shop.#": {"max_age": 60}}},
}
SAME_TOML = """
mode = "observe"
lease = 5
fast_receive = false
outcome_log_max_bytes = 1000
[queues."#"]
max_delivery_attempts = 3
non_retryable = ["ValueError"]
[queues."orders.*"]
dead_letter_queue = "none"
[tasks."shop.charge"]
redelivery_delay = 2.5
rules.OSError.redelivery_delay = 30
[override.queues."orders.eu"]
enabled = false
[override.tasks."shop.#"]
max_age = 60
"""


def test_all_three_sources_say_the_same(tmp_path: Path) -> None:
    """One set of settings in Python, in TOML and in the environment gives equal general settings and equal policies."""
    file = tmp_path / "redelivery.toml"
    file.write_text(SAME_TOML)
    by_python = load({**SAME, "queues": {**SAME["queues"], "#": {"max_delivery_attempts": 3, "non_retryable": [ValueError]}}})
    by_toml = load(REDELIVERY_CONFIG=str(file))
    by_environment = load(
        REDELIVERY_MODE="observe",
        REDELIVERY_LEASE="5",
        REDELIVERY_FAST_RECEIVE="False",
        REDELIVERY_OUTCOME_LOG_MAX_BYTES="1000",
        REDELIVERY_DEFAULT_MAX_DELIVERY_ATTEMPTS="3",
        REDELIVERY_DEFAULT_NON_RETRYABLE='["ValueError"]',
        REDELIVERY_QUEUES=json.dumps({"orders.*": {"dead_letter_queue": None}}),
        REDELIVERY_TASKS=json.dumps(SAME["tasks"]),
        REDELIVERY_OVERRIDE=json.dumps(SAME["override"]),
    )
    for queue, task in [("orders.eu", "shop.charge"), ("orders.us", "shop.refund"), ("mail", None), ("mail", "x")]:
        policies = [each.policy_for(queue, task).policy for each in (by_python, by_toml, by_environment)]
        assert policies[0] == policies[1] == policies[2]
    for name in ("mode", "lease", "fast_receive", "outcome_log_max_bytes", "eta_threshold"):
        assert getattr(by_python, name) == getattr(by_toml, name) == getattr(by_environment, name)
    assert by_python.policy_for("orders.eu", "shop.charge").policy.dead_letter_queue is None
    assert by_python.policy_for("orders.eu", "shop.charge").policy.max_age == 60


def test_the_environment_beats_the_app_which_beats_the_file(tmp_path: Path) -> None:
    """For each setting the strongest source that has it gives the value."""
    file = tmp_path / "redelivery.toml"
    file.write_text('mode = "observe"\nlease = 3\n[queues."#"]\nmax_delivery_attempts = 2\nredelivery_delay = 2\nmax_age = 2\n')
    settings = load(
        {"lease": 4, "queues": {"#": {"redelivery_delay": 3, "max_age": 3}}},
        REDELIVERY_CONFIG=str(file),
        REDELIVERY_DEFAULT_MAX_AGE="4",
    )
    resolved = settings.policy_for("q")
    assert (resolved.policy.max_delivery_attempts, resolved.policy.redelivery_delay, resolved.policy.max_age) == (2, 3, 4)
    assert resolved.sources["max_delivery_attempts"] == 'queues["#"] (redelivery.toml)'
    assert resolved.sources["redelivery_delay"] == 'queues["#"] (app.conf.redelivery)'
    assert resolved.sources["max_age"] == 'queues["#"] (environment)'
    assert resolved.sources["enabled"] == "built-in"
    assert (settings.mode, settings.lease) == ("observe", 4)
    assert settings.general_sources["mode"] == "redelivery.toml"
    assert settings.general_sources["lease"] == "app.conf.redelivery"
    assert settings.general_sources["redact"] == "built-in"


def test_layers_are_merged_setting_by_setting() -> None:
    """Built-in < queues < tasks < decorator < override's queues < override's tasks."""
    rows = ["max_delivery_attempts", "redelivery_delay", "max_age", "delivery_delay", "max_length"]
    settings = load(
        {
            "queues": {"q": dict.fromkeys(rows, 1)},
            "tasks": {"t": dict.fromkeys(rows[1:], 2)},
            "override": {"tasks": {"t": dict.fromkeys(rows[4:], 5)}, "queues": {"q": dict.fromkeys(rows[3:], 4)}},
        },
    )
    resolved = settings.policy_for("q", "t", decorator=dict.fromkeys(rows[2:], 3))
    assert [getattr(resolved.policy, each) for each in rows] == [1, 2, 3, 4, 5]
    assert [resolved.sources[each] for each in rows] == [
        'queues["q"] (app.conf.redelivery)',
        'tasks["t"] (app.conf.redelivery)',
        "decorator",
        'override.queues["q"] (app.conf.redelivery)',
        'override.tasks["t"] (app.conf.redelivery)',
    ]
    assert settings.policy_for("q").policy.redelivery_delay == 1
    assert settings.policy_for("other").policy.max_delivery_attempts == 10


def test_chords_are_asked_for_without_a_limit_but_one_of_their_own() -> None:
    """Celery's own task has no limit, even if its queue or a pattern has one. A row with its name may set one."""
    limits = {"max_delivery_attempts": 3, "max_age": 60}
    rows: dict[str, Any] = {"queues": {"#": limits}, "tasks": {"celery.*": limits}}
    policy = load(rows).policy_for("q", "celery.chord_unlock").policy
    assert (policy.max_delivery_attempts, policy.max_age) == (-1, None)
    rows["tasks"]["celery.chord_unlock"] = {"max_age": 600}
    policy = load(rows).policy_for("q", "celery.chord_unlock").policy
    assert (policy.max_delivery_attempts, policy.max_age) == (-1, 600)


def test_of_tied_patterns_the_later_wins() -> None:
    """If nothing else decides, the order does."""
    rows = {"a.#": {"max_age": 1}, "a.#.#": {"max_age": 2}}
    assert load({"queues": rows}).policy_for("a.b").policy.max_age == 2
    assert load({"queues": dict(reversed(rows.items()))}).policy_for("a.b").policy.max_age == 1


VALUES = st.integers(1, 5)
ROWS = st.dictionaries(
    st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=3).map(".".join),
    st.dictionaries(st.sampled_from(["max_delivery_attempts", "max_age", "max_length"]), VALUES, max_size=3),
    max_size=5,
)


def _is_stronger(one: str, other: str) -> bool:
    """Artemis's order as its documentation says it: does `one` beat `other`?"""

    def kind(pattern: str) -> str:
        words = pattern.split(".")
        return "any" if "#" in words else "one" if "*" in words else "exact"

    order = ["any", "one", "exact"]
    if kind(one) != kind(other):
        return order.index(kind(one)) > order.index(kind(other))
    literal = [[word not in "*#" for word in pattern.split(".")] for pattern in (one, other)]
    if sum(literal[0]) != sum(literal[1]):
        return sum(literal[0]) > sum(literal[1])
    for mine, theirs in zip(*literal, strict=False):
        if mine != theirs:
            return bool(mine)
    return False


def _strongest(rows: dict[str, dict[str, int]], field: str, address: str) -> int | None:
    """The value of the row that no other row beats."""
    found: str | None = None
    for pattern, given_fields in rows.items():
        if (
            field in given_fields
            and AddressPattern(pattern).matches(address)
            and (found is None or not _is_stronger(found, pattern))
        ):
            found = pattern
    return None if found is None else rows[found][field]


@given(
    tables=st.fixed_dictionaries({"queues": ROWS, "tasks": ROWS, "override.queues": ROWS, "override.tasks": ROWS}),
    decorator=st.none() | st.dictionaries(st.sampled_from(["max_delivery_attempts", "max_age", "max_length"]), VALUES),
    queue=st.sampled_from(["a", "b", "a.b", "b.a", "a.a.b"]),
    task=st.none() | st.sampled_from(["a", "a.b", "b.b.a"]),
)
def test_precedence_agrees_with_brute_force(
    tables: dict[str, dict[str, dict[str, int]]],
    decorator: dict[str, int] | None,
    queue: str,
    task: str | None,
) -> None:
    """For each setting, the strongest row of the strongest table that has it gives the value."""
    override = {"queues": tables["override.queues"], "tasks": tables["override.tasks"]}
    settings = load({"queues": tables["queues"], "tasks": tables["tasks"], "override": override})
    policy = settings.policy_for(queue, task, decorator).policy
    for field, built_in in (("max_delivery_attempts", 10), ("max_age", None), ("max_length", None)):
        candidates = [
            None if task is None else _strongest(tables["override.tasks"], field, task),
            _strongest(tables["override.queues"], field, queue),
            None if decorator is None else decorator.get(field),
            None if task is None else _strongest(tables["tasks"], field, task),
            _strongest(tables["queues"], field, queue),
            built_in,
        ]
        assert getattr(policy, field) == next((each for each in candidates if each is not None), None)


@pytest.mark.parametrize("text", ["4711042", "12345e7", "1.10", "true", "v2"])
def test_text_in_the_environment_stays_text(text: str) -> None:
    """The name of a release may look like a number."""
    environ = {"REDELIVERY_RELEASE": text, "REDELIVERY_DEFAULT_DEAD_LETTER_QUEUE": text}
    settings = RedeliverySettings.load(environ=environ)
    assert (settings.release, settings.policy_for("q").policy.dead_letter_queue) == (text, text)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"moed": "observe"}, "app.conf.redelivery: unknown setting 'moed'; did you mean 'mode'?"),
        ({"queus": {}}, "did you mean 'queues'?"),
        (
            {"queues": {"q": {"max_delivry_attempts": 1}}},
            """queues["q"] (app.conf.redelivery): unknown setting 'max_delivry_attempts'; did""",
        ),
        ({"tasks": {"t": {"enabledd": True}}}, "did you mean 'enabled'?"),
        ({"override": {"queus": {}}}, "did you mean 'queues'?"),
        ({"override": {"#": {"enabled": False}}}, "write override = {'queues': {'#': ...}}"),
        ({"max_age": 5}, "max_age belongs to queues or tasks: write queues = {'#': {'max_age': ...}}"),
        ({"queues": {"q": {"rules": {"OSError": {"max_agee": 1}}}}}, "did you mean 'max_age'?"),
        ({"queues": {"q": {"max_age": -1}}}, 'queues["q"] (app.conf.redelivery): max_age must be 0 seconds or more, not -1'),
        ({"queues": {"q": 5}}, "must be a table of settings, not 5"),
        ({"queues": {"orders": {"eu": {"max_age": 1}}}}, 'a pattern with dots is quoted: queues."orders.eu"'),
        ({"queues": {"orders*": {}}}, "app.conf.redelivery: queues: pattern 'orders*'"),
        ({"queues": ["q"]}, "app.conf.redelivery: queues must be a table"),
        ({"mode": "observ"}, "mode must be 'enforce' or 'observe', not 'observ'; did you mean 'observe'?"),
        ({"lease": 1}, "lease must be 2 seconds or more"),
        ({"wait_replicas": -1}, "wait_replicas must be 0 or more"),
        ({"outcome_log_max_bytes": 10**30}, "outcome_log_max_bytes must be 9007199254740992 or less"),
        ({"dispatcher": "yes"}, "dispatcher must be true or false"),
        (["queues"], "app.conf.redelivery must be a table of settings"),
    ],
)
def test_wrong_settings_are_refused_with_one_line(conf: Any, message: str) -> None:
    """At each level, one line says where the mistake is, what it is, and what was probably meant."""
    with pytest.raises(ConfigurationError) as refused:
        load(conf)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"REDELIVERY_MODDE": "observe"}, "did you mean 'REDELIVERY_MODE'?"),
        ({"REDELIVERY_DEFAULT_MAX_AGES": "1"}, "did you mean 'REDELIVERY_DEFAULT_MAX_AGE'?"),
        (
            {"REDELIVERY_QUEUES": '{"#": {"max_agee": 1}}'},
            """queues["#"] (environment): unknown setting 'max_agee'; did you mean""",
        ),
        ({"REDELIVERY_QUEUES": "{'#': {}}"}, "REDELIVERY_QUEUES is not valid JSON (line 1, column 2)"),
        ({"REDELIVERY_TASKS": "off"}, "REDELIVERY_TASKS is not valid JSON"),
        ({"REDELIVERY_QUEUES": '{"#": {"max_age": 1, "max_age": 2}}'}, "REDELIVERY_QUEUES: 'max_age' is written twice"),
        ({"REDELIVERY_QUEUES": '{"#": {"max_age": 1}}', "REDELIVERY_DEFAULT_MAX_AGE": "2"}, "both set max_age for '#': keep one"),
        ({"REDELIVERY_LEASE": "ten"}, "environment: lease must be seconds"),
        ({"REDELIVERY_LEASE": "NaN"}, "lease must be a finite number"),
        ({"REDELIVERY_CONFIG": "/nowhere/redelivery.toml"}, "/nowhere/redelivery.toml: cannot be read (No such file or directory)"),
    ],
)
def test_a_wrong_environment_is_refused_with_one_line(environ: dict[str, str], message: str) -> None:
    """Variables get the same errors as keys. The error for broken JSON has the position."""
    with pytest.raises(ConfigurationError) as refused:
        RedeliverySettings.load(None, environ)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_variables_of_kubernetes_are_passed_over() -> None:
    """Kubernetes sets variables in every pod for a service called `redelivery`. They are not settings."""
    settings = load(
        REDELIVERY_SERVICE_HOST="10.0.0.1",
        REDELIVERY_SERVICE_PORT_HTTP="80",
        REDELIVERY_PORT="tcp://10.0.0.1:6379",
        REDELIVERY_PORT_6379_TCP_ADDR="10.0.0.1",
        OTHER_MODE="x",
    )
    assert settings == load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'mode = "observe"\n[queues."#"\nmax_age = 1\n', "redelivery.toml, line 2: is not valid TOML"),
        (b'[queues."#"]\nmax_age = 1\nmax_age = 2\n', "redelivery.toml, line 3: is not valid TOML"),
        (b"mode = ", "redelivery.toml, line 1: is not valid TOML"),
        (b'# one\nmode = "\xff"\n', "redelivery.toml, line 2: is not UTF-8"),
        (b"moed = 1\n", "redelivery.toml: unknown setting 'moed'; did you mean 'mode'?"),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    """The error names the file and, for a syntax error, the line."""
    file = tmp_path / "redelivery.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        RedeliverySettings.load(environ={}, toml=file)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_fields_that_contradict_each_other_are_told_with_their_rows() -> None:
    """Two rows that are valid alone are refused together. The error says where each value came from."""
    settings = load({"queues": {"#": {"max_redelivery_delay": 5}, "slow": {"redelivery_delay": 10}}})
    assert settings.policy_for("quick").policy.cap == 5
    with pytest.raises(ConfigurationError) as refused:
        settings.policy_for("slow", "t")
    message = str(refused.value)
    assert message.startswith("queue 'slow', task 't': max_redelivery_delay (5 s) is below redelivery_delay (10 s)")
    assert 'redelivery_delay from queues["slow"] (app.conf.redelivery)' in message
    assert 'max_redelivery_delay from queues["#"] (app.conf.redelivery)' in message


def test_general_settings_have_the_documented_defaults() -> None:
    """Without settings there are only defaults, each with the source `built-in`."""
    settings = load()
    assert (settings.mode, settings.lease, settings.outcome_log_max_bytes) == ("enforce", 10.0, 256 * 1024 * 1024)
    assert (settings.fast_receive, settings.eta_threshold, settings.dispatcher) == (True, 1.0, True)
    assert (settings.redact, settings.wait_replicas) == (False, 0)
    assert set(settings.general_sources.values()) == {"built-in"}
    assert isinstance(settings, GeneralSettings)


def test_a_policy_is_resolved_once() -> None:
    """The same arguments give the same object; the mapping of another decorator gives another one."""
    settings = load({"queues": {"q": {"max_age": 5}}})
    fields = {"redelivery_delay": 2}
    assert settings.policy_for("q", "t") is settings.policy_for("q", "t")
    with_fields = settings.policy_for("q", "t", fields)
    assert with_fields is settings.policy_for("q", "t", fields)
    assert with_fields.policy.redelivery_delay == 2
    assert settings.policy_for("q", "t").policy.redelivery_delay == 1
    assert set(with_fields.sources) == set(FIELDS)


def test_strange_queues_do_not_fill_the_memory() -> None:
    """The cache is bounded."""
    settings = load()
    for number in range(MAX_REMEMBERED + 1):
        settings.policy_for(f"q{number}")
        if number >= MAX_REMEMBERED - 1:
            assert len(settings._remembered) <= MAX_REMEMBERED


def test_a_decorator_s_fields_are_checked() -> None:
    """The mapping of a decorator is checked like a row."""
    with pytest.raises(ConfigurationError, match="decorator: unknown setting 'max_agee'; did you mean 'max_age'"):
        load().policy_for("q", "t", {"max_agee": 1})
