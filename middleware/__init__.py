"""The handling of one message inside a worker: its arrival, its attempts, the decision, and how it leaves."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from redelivery.lazily import lazily

#: Names that pickled results of earlier versions contain: the old module, and the module that has each name now.
STORED: dict[str, dict[str, str]] = {
    "raised": dict.fromkeys(("DeadLetter", "RedeliverAfter", "_redeliver_after"), "policy.task_exceptions"),
    "decision": dict.fromkeys(("DeadLetter", "Discard"), "policy.decision"),
    "header": {"Failed": "messages.envelope"},
    "outcomes": {"Reason": "messages.events"},
}

for _module, _names in STORED.items():
    _alias: Any = ModuleType(f"{__name__}.{_module}")
    _alias.__getattr__ = lazily(_alias.__name__, {name: f"{__name__}.{place}" for name, place in _names.items()})
    sys.modules[_alias.__name__] = _alias
