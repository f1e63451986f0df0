"""The errors that drivers raise, for modules that must not import a driver."""

from __future__ import annotations

from typing import Final

from amqp.exceptions import AMQPError
from redis.exceptions import RedisError, ResponseError

#: Redis refuses a command, or does not answer.
REDIS_ERRORS: Final = (RedisError, OSError)
#: Redis refuses this one command.
REFUSED: Final = (ResponseError,)
#: A broker of any kind refuses a command, or does not answer.
BROKER_ERRORS: Final = (RedisError, AMQPError, ConnectionError, TimeoutError)
