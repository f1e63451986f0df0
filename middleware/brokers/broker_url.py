"""Checks the broker's address without a connection, and reports an error in one line; Celery would end with a traceback.

The report never quotes the address: if the password is not encoded, any part of the address may be a part of the password.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from celery import signals
from kombu.transport.redis import Channel

from redelivery.display import refuse
from redelivery.errors import BrokerUnavailable, ConfigurationError

from .errors import REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from kombu import Connection

#: kombu's parser of the address's last part; it does not use the channel. In a kombu without it, kombu itself reports the error.
READ_DATABASE: Any = getattr(Channel, "_prepare_virtual_host", None)
LOOKS_LIKE = "broker_url looks like redis://host:6379/0, rediss://… or redis+socket:///path"
ENCODE = "write the characters / ? # @ of a password as %2F %3F %23 %40"
CUT_SHORT = "there is an @ after its host"
DATABASE_OF_A_SOCKET = "kombu does not read ?db= behind a socket's path, and takes database 0: write ?virtual_host=5"
#: The schemes of addresses that name a host; other addresses name files, databases or accounts.
_OF_A_HOST = re.compile(r"(py)?amqps?|(redis|rediss|valkey|valkeys|sentinel)")


def check_broker_url(app: Celery) -> None:
    """Check the addresses that the app connects to. Raises `ConfigurationError`, which quotes only their scheme."""
    if any("://" not in each and {*"@/:?#"} & {*each} for each in _addresses(app)):  # kombu would take the whole text as a host
        why = "it does not begin with a scheme such as redis://"
        raise _refused(why)
    is_cut_short = any(map(_is_cut_short, _addresses(app)))
    for connect in (app.connection_for_read, app.connection_for_write):
        said = ""
        try:
            made = connect()
            made.get_transport_cls()
            if (made.transport_cls or "").startswith("redis") and READ_DATABASE is not None:
                said = "its last part must be the number of a database"
                READ_DATABASE(None, _database_of(made))
        except KeyError as exc:
            is_transport = "No such transport" in str(exc)  # otherwise the value of an option, such as ssl_cert_reqs
            why = f"No such transport: {_scheme(app)}" if is_transport else "kombu does not know a value in the part after its ?"
            raise _refused(why) from None  # here and below: the cause quotes a part of the address
        except ValueError:
            raise _refused(said or "its port must be a number") from None
        except TypeError:
            why = CUT_SHORT if is_cut_short else "the part after its ? is not an option of kombu"
            raise _refused(why) from None
        except ImportError as exc:
            msg = f"broker_url cannot be used: {exc}; install what kombu needs to speak to such a broker"
            raise ConfigurationError(msg) from exc
    if is_cut_short:
        raise _refused(CUT_SHORT)


def _database_of(made: Connection) -> str | None:
    """The database that a connection to Redis names. Raises `ConfigurationError` if kombu would use another database."""
    path = urlsplit(str(made.hostname or ""))
    if not path.scheme:
        return str(made.virtual_host)
    options = parse_qs(path.query)
    if "db" in options:
        raise _refused(DATABASE_OF_A_SOCKET)
    return options.get("virtual_host", [None])[-1]


def unanswered(address: str, exc: BaseException) -> BrokerUnavailable:
    """The error if the broker at this address does not answer, or refuses the connection. `address` must have no password."""
    if isinstance(exc.__cause__, REFUSED):
        repair = "; make room on its disk, then `redis-cli bgsave`" if "MISCONF" in str(exc) else ""
        return BrokerUnavailable(f"broker {address} refused the connection: {exc}{repair}")
    return BrokerUnavailable(f"broker {address} does not answer: {exc}; is it running, and is broker_url right?")


def _refused(why: str) -> ConfigurationError:
    return ConfigurationError(f"broker_url cannot be used: {why}; {LOOKS_LIKE}; {ENCODE}")


def _addresses(app: Celery) -> Iterator[str]:
    for name in ("broker_url", "broker_read_url", "broker_write_url"):
        given = app.conf.get(name) or ()
        for each in [given] if isinstance(given, str) else given:
            yield from str(each).split(";")


def _scheme(app: Celery) -> str:
    """The text before `://`, if it can only be a scheme; otherwise fixed text."""
    found = (re.match(r"[a-zA-Z][a-zA-Z0-9+.]{0,20}(?=://)", each) for each in _addresses(app))
    return next((each[0] for each in found if each is not None), "what stands before ://")


def _is_cut_short(address: str) -> bool:
    """Whether the password is not encoded, so that kombu would read a part of it as the host."""
    parts = urlsplit(address)
    behind = f"{parts.path}?{parts.query}#{parts.fragment}"
    return _OF_A_HOST.fullmatch(parts.scheme) is not None and "@" in behind


def check_before_start(app: Celery) -> None:
    """From now on, a worker of this app with a wrong broker address ends with a one-line error."""

    def check(instance: Any = None, **_: Any) -> None:
        if getattr(instance, "app", None) is not app:
            return
        try:
            check_broker_url(app)
        except ConfigurationError as exc:
            refuse(exc)

    signals.celeryd_init.connect(check, weak=False, dispatch_uid=f"redelivery:{id(app)}")
