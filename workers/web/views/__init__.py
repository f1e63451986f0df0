"""What the page shows: one module for each screen.

A screen is a function of one request (`Asked`), which looks at the broker through the same operations as the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..asked import Asked, Go, Shown


#: Screens in the navigation, behind the first three.
MORE: tuple[tuple[str, str], ...] = ()


def screens() -> Mapping[str, Callable[[Asked], Shown | Go]]:
    """Every screen, by its address."""
    from . import causes, letter, letters, overview  # noqa: PLC0415 - the screens know the page

    return {
        "/": overview.overview,
        "/causes": causes.causes,
        "/letters": letters.letters,
        "/letter": letter.letter,
    }


def acts() -> Mapping[str, Callable[[Asked], Shown | Go]]:
    """What a form may ask for, by its address."""
    from . import letters  # noqa: PLC0415 - as above

    return {"/look": letters.look}
