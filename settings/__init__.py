"""What should happen: policies, the patterns that say of which queue or task they speak, and loading them from their sources."""

from __future__ import annotations

from redelivery.settings.fields import FIELDS, PolicyFields, read_fields
from redelivery.settings.general import GENERAL, GeneralSettings
from redelivery.settings.loading import RedeliverySettings, ResolvedPolicy
from redelivery.settings.matching import AddressPattern
from redelivery.settings.policy import DEFAULT_QUEUE, UNLIMITED, RedeliveryPolicy

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
