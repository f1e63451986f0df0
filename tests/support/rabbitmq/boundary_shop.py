"""The tests' app. Its worker kills itself before it publishes or acknowledges a message, as the file `order` says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.kombu.deliveries import GenericClaim
from redelivery.middleware.brokers.kombu.generic import GenericTransport
from tests.support.shop import app

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]

ORDER = Path(os.environ["SHOP_RUNS"]).with_name("order")


def dying(step: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method: the process dies once before it if the file `order` names this step."""

    def carry(self: Any, *args: Any) -> Any:
        if ORDER.exists() and ORDER.read_text() == step:
            ORDER.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return method(self, *args)

    return carry


GenericTransport._publish = dying("publish", GenericTransport._publish)  # type: ignore[method-assign]
GenericClaim.settle = dying("acknowledge", GenericClaim.settle)  # type: ignore[method-assign]
