"""The signature of a webhook: HMAC-SHA256 over its timestamp and body, so that it cannot be changed, or sent again much later."""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["SIGNATURE", "TIMESTAMP", "TOLERANCE", "sign", "verify"]

TIMESTAMP = "Webhook-Timestamp"
SIGNATURE = "Webhook-Signature"
#: Seconds by which the sender's clock may differ from the receiver's.
TOLERANCE = 300


def sign(secret: bytes, timestamp: int, body: bytes) -> str:
    """The signature of this body, sent at this time (seconds since the epoch)."""
    return "v1=" + hmac.new(secret, b"%d." % timestamp + body, hashlib.sha256).hexdigest()


def verify(secret: bytes, timestamp: str, signature: str, body: bytes, *, now: float) -> bool:
    """Whether the signature is that of this body, and recent."""
    if not timestamp.isdecimal() or abs(now - int(timestamp)) > TOLERANCE:
        return False
    return hmac.compare_digest(sign(secret, int(timestamp), body).encode(), signature.encode())
