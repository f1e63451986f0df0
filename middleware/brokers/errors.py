"""The errors that drivers raise, for modules that must not import a driver."""

from __future__ import annotations

from typing import Final

from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

from redelivery.errors import BrokerError, RedeliveryError

#: Redis refuses a command, or does not answer.
REDIS_ERRORS: Final = (RedisError, OSError)
#: Redis refuses this one command.
REFUSED: Final = (ResponseError,)
#: A broker of any kind refuses a command, or does not answer. kombu raises its own error if it cannot connect again.
BROKER_ERRORS: Final = (RedisError, AMQPError, OperationalError, ConnectionError, TimeoutError)
#: As `BROKER_ERRORS`, also by the name that this project gives them.
ANY_BROKER_ERRORS: Final = (BrokerError, *BROKER_ERRORS)
#: All errors that are not a bug: this project's own, and a broker's.
EXPECTED_ERRORS: Final = (RedeliveryError, *BROKER_ERRORS)
