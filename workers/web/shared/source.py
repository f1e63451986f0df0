"""Where a page looks: an app's installation, and the transitions on its broker, reached when they are first asked for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ...operations.reach import reached

if TYPE_CHECKING:
    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime


class Source:
    """One app and its broker."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @functools.cached_property
    def transport(self) -> Transport:
        """The transitions. Raises as `reached`; what failed is tried again when it is asked for again."""
        return reached(self.runtime)
