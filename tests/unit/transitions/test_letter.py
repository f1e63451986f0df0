"""A dead letter as its handler sees it."""

from __future__ import annotations

import json

import pytest

from redelivery.middleware.messages.body import JSON
from redelivery.middleware.transitions.letter import Letter


@pytest.mark.parametrize("body", [[1, 2, 3], [[1], [], {}], [[1], {}, None], {"a": 1}, [[1], {}], 7])
def test_a_body_that_is_json_but_no_call_has_no_arguments(body: object) -> None:
    """A handler sees None, not an error."""
    raw = json.dumps({"body": json.dumps(body), "content-type": JSON, "headers": {}, "properties": {}}).encode()
    letter = Letter.of(raw)
    assert (letter.args, letter.kwargs) == (None, None)
