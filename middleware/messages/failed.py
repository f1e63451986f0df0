"""What an exception says, as far as a message stores it."""

from __future__ import annotations

import hashlib
import traceback
from pathlib import PurePath

from .envelope import Failed

__all__ = ["failed_of"]

#: Frames of a traceback that a fingerprint is made of, the innermost.
MAX_FRAMES = 12


def failed_of(exc: BaseException, *, with_traceback: bool = True) -> Failed:
    """What an exception says, for the death record: its type, message, traceback and fingerprint."""
    path, at = [], exc.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        path.append(f"{PurePath(code.co_filename).name}:{code.co_name}")
        at = at.tb_next
    kind = f"{type(exc).__module__}.{type(exc).__qualname__}".removeprefix("builtins.")
    text = f"{kind}|{'|'.join(path[-MAX_FRAMES:])}"
    digest = hashlib.sha1(text.encode(errors="replace"), usedforsecurity=False).hexdigest()[:12]
    written = "".join(traceback.format_exception(exc)) if with_traceback else ""
    return Failed(type=kind, message=_message(exc), traceback=written, fingerprint=digest)


def _message(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - the exception is anybody's
        return f"<{type(exc).__name__} whose str() fails>"
