"""The errors that drivers raise, for modules that must not import a driver."""

from __future__ import annotations

from typing import Final

from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

#: Redis refuses a command, or does not answer.
REDIS_ERRORS: Final = (RedisError, OSError)
#: Redis refuses this one command.
REFUSED: Final = (ResponseError,)
#: A broker of any kind refuses a command, or does not answer. kombu raises its own error if it cannot connect again.
BROKER_ERRORS: Final = (RedisError, AMQPError, OperationalError, ConnectionError, TimeoutError)
