"""Each link of the page leads to a screen, whatever names other clients have given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.support.desk import LETTERS, body_of, task_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.desk import Desk
    from tests.support.page.web_page import WebPage

NAMES = (
    "a/b",
    "../..",
    "%2F",
    "a%2Fb",
    " before",
    "behind ",
    "a&b=c",
    "a#b?c;d",
    "a+b",
    "\U0001f600",
    "\u202eabc",
    "a\nb",
    "[a-z]*",
    "unknown",
)


def test_no_link_leads_to_an_error(desk: Desk, open_page: Callable[..., WebPage]) -> None:
    """Queues, tasks, reasons and fingerprints of any name, with and without a fingerprint."""
    for number, name in enumerate(NAMES):
        words: dict[str, Any] = {"exception": name, "said": name, "reason": name}
        desk.die(task_message(f"one-{number}", name, body=body_of(name)), fingerprint="", into=f"DLQ.{name}", **words)
        desk.die(task_message(f"two-{number}", name, body=body_of(name)), fingerprint=f"f-{name}x", into=LETTERS, **words)
        desk.delay(task_message(f"three-{number}", name))
    operator = open_page("--allow", "all").operator()
    left, seen, refused = ["/"], set[str](), []
    while left:
        path = left.pop()
        known = re.sub(r"(before|at)=\d+", "", path)
        if known not in seen:
            seen.add(known)
            answer = operator.get(path.partition("#")[0])
            refused += [(path, answer.status, answer.read[-200:])] if answer.status != 200 else []
            left += [each for each in answer.links("/") if not each.startswith("/static/")]
    assert (refused, len(seen) > 100) == ([], True)


def test_a_reason_that_is_not_known_is_counted_and_chosen_as_unknown(desk: Desk) -> None:
    """Dead letters of a later version, or of another client."""
    desk.die(reason="struck_by_lightning", fingerprint="")
    desk.die()
    assert [each["reasons"] for each in desk.json("dlq", "list")] == [{"exhausted": 1, "unknown": 1}]
    assert {each["reason"]: each["count"] for each in desk.json("dlq", "causes", LETTERS)} == {"exhausted": 1, "unknown": 1}
    assert desk.json("dlq", "redrive", LETTERS, "--reason", "unknown", "--dry-run")["moved"] == 1
