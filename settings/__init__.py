"""The settings: policies, the patterns that say to which queues or tasks they apply, and how they are loaded from their sources."""

from __future__ import annotations

from .general import GENERAL, GeneralSettings
from .loading import RedeliverySettings, ResolvedPolicy
from .matching import AddressPattern
from .policy import DEFAULT_QUEUE, FIELDS, UNLIMITED, PolicyFields, RedeliveryPolicy, read_fields

__all__ = [
    "DEFAULT_QUEUE",
    "FIELDS",
    "GENERAL",
    "UNLIMITED",
    "AddressPattern",
    "GeneralSettings",
    "PolicyFields",
    "RedeliveryPolicy",
    "RedeliverySettings",
    "ResolvedPolicy",
    "read_fields",
]
