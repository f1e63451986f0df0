"""Checks the broker's address without a connection: an error in it is reported in one line, where Celery ends with a traceback.

The report is fixed text: if the password was not encoded, any part of the address may be a piece of it.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from celery import signals
from kombu.transport.redis import Channel

from redelivery.display import harmless
from redelivery.errors import BrokerUnavailable, ConfigurationError

from .errors import REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from kombu import Connection

#: kombu's own parser of the address's last part; it does not use its channel. If a kombu lacks it, kombu itself reports the error.
READ_DATABASE: Any = getattr(Channel, "_prepare_virtual_host", None)
LOOKS_LIKE = "broker_url looks like redis://host:6379/0, rediss://… or redis+socket:///path"
ENCODE = "write the characters / ? # @ of a password as %2F %3F %23 %40"
CUT_SHORT = "there is an @ after its host"
DATABASE_OF_A_SOCKET = "kombu does not read ?db= behind a socket's path, and takes database 0: write ?virtual_host=5"
#: Addresses that have one host; others name files, databases or accounts.
_OF_A_HOST = re.compile(r"(py)?amqps?|(redis|rediss|valkey|valkeys|sentinel)")


def check_broker_url(app: Celery) -> None:
    """Check the addresses that the app connects to. Raises `ConfigurationError`, which repeats only their scheme."""
    if any("://" not in each and {*"@/:?#"} & {*each} for each in _addresses(app)):  # kombu would read all of it as a host
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
            is_transport = "No such transport" in str(exc)  # kombu also looks a value such as that of ssl_cert_reqs up
            why = f"No such transport: {_scheme(app)}" if is_transport else "kombu does not know a value in the part after its ?"
            raise _refused(why) from None  # the cause repeats a part of the address
        except ValueError:
            raise _refused(said or "its port must be a number") from None  # as above
        except TypeError:
            why = CUT_SHORT if is_cut_short else "the part after its ? is not an option of kombu"
            raise _refused(why) from None  # as above
        except ImportError as exc:
            msg = f"broker_url cannot be used: {exc}; install what kombu needs to speak to such a broker"
            raise ConfigurationError(msg) from exc
    if is_cut_short:
        raise _refused(CUT_SHORT)


def _database_of(made: Connection) -> str | None:
    """The database that a connection to Redis names. Raises `ConfigurationError` where kombu would take another one."""
    path = urlsplit(str(made.hostname or ""))
    if not path.scheme:
        return str(made.virtual_host)
    options = parse_qs(path.query)
    if "db" in options:
        raise _refused(DATABASE_OF_A_SOCKET)
    return options.get("virtual_host", [None])[-1]


def unanswered(address: str, exc: BaseException) -> BrokerUnavailable:
    """The error if nothing answers at this address, which kombu has written without its password; or only with a refusal."""
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
    """Whether the password is not encoded, so that a part of it would be read as the host."""
    parts = urlsplit(address)
    behind = f"{parts.path}?{parts.query}#{parts.fragment}"
    return _OF_A_HOST.fullmatch(parts.scheme) is not None and "@" in behind


def check_before_start(app: Celery) -> None:
    """From here on, a worker of this app whose broker address is wrong ends with a one-line error."""

    def check(instance: Any = None, **_: Any) -> None:
        if getattr(instance, "app", None) is not app:
            return
        try:
            check_broker_url(app)
        except ConfigurationError as exc:
            sys.stderr.write(f"redelivery: error: {harmless(str(exc))}\n")
            raise SystemExit(1) from None

    signals.celeryd_init.connect(check, weak=False, dispatch_uid=f"redelivery:{id(app)}")
