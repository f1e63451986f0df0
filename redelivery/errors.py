"""Every error that this project raises by name; each message says what to do next."""

from __future__ import annotations

__all__ = [
    "BrokerError",
    "BrokerUnavailable",
    "ConfigurationError",
    "EnvelopeError",
    "InputError",
    "QueueFull",
    "RedeliveryError",
    "RedriveError",
]


class RedeliveryError(Exception):
    """The base class of all errors that this project raises by name."""


class ConfigurationError(RedeliveryError):
    """A setting is wrong, or two settings contradict each other."""


class EnvelopeError(RedeliveryError):
    """A message's envelope cannot be read."""


class BrokerError(RedeliveryError):
    """The broker answered, and refused."""


class BrokerUnavailable(BrokerError):
    """The broker did not answer."""


class RedriveError(RedeliveryError):
    """A dead letter cannot go back to its origin."""


class QueueFull(RedeliveryError):
    """A publication was refused: the queue holds `max_length` messages, and its `overflow` is `refuse_publish`."""


class InputError(RedeliveryError):
    """A file or an argument that was given cannot be used."""
