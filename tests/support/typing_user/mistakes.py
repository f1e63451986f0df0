"""A user's file with mistakes. Type checkers report each of them at its line."""

# refused by mypy: attr-defined
# refused by pyright: reportAttributeAccessIssue
from redelivery import Redeliver

from redelivery import redeliver

# refused by mypy: call-overload
# refused by pyright: reportCallIssue
redeliver(max_delivery_atempts=3)

# refused by mypy: call-overload
# refused by pyright: reportArgumentType
redeliver(max_delivery_attempts="3")

# refused by mypy: call-overload
# refused by pyright: reportArgumentType
redeliver(redelivery_delay="10 s")

# refused by mypy: call-overload
# refused by pyright: reportArgumentType
redeliver(persist_delivery_count="sometimes")

# refused by mypy: call-overload
# refused by pyright: reportArgumentType
redeliver(wait=5)

# refused by mypy: call-overload
# refused by pyright: reportArgumentType
redeliver(5)
