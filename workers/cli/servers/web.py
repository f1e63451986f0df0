"""`redelivery web`: the operator's page, served until stopped."""

from __future__ import annotations

import secrets
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redelivery.errors import InputError

from ...duties.operation_runner import carried_out
from ...operations.runs.audit import os_user
from ...web.access import ACTIONS
from ..context import Context, pass_context
from ..terminal.options import PLACE, whole
from ..terminal.output import say
from .serving import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...web.access import Login


HOST, PORT = "127.0.0.1", 5151
#: The minimum length of the token in `--token-file`.
MIN_TOKEN_LENGTH = 16


@click.command()
@click.option("--host", default=HOST, show_default=True, help="The address to listen on. By default the loopback.")
@click.option("--port", type=whole(0, 65_535), default=PORT, show_default=True, help="0 means any free port.")
@click.option(
    "--allow", multiple=True, metavar="ACTIONS", help=f"What it may do: {','.join(ACTIONS)}, or all. Without it, it reads only."
)
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Another host name for requests, as behind a proxy.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The token to log in with. By default a new one.",
)
@click.option("--as", "actor", metavar="NAME", help="The actor of a login with the token. By default your user name.")
@click.option(
    "--trust-proxy-header", "header", metavar="NAME", help="The header in which a proxy names the user. Then there is no token."
)
@click.option("--trusted-address", "addresses", multiple=True, metavar="ADDR", help="The address of that proxy, or its network.")
@click.option("--books", type=PLACE, metavar="URI", help="Where `reconcile --output` writes: its last report is shown.")
@pass_context
def web(
    context: Context,
    host: str,
    port: int,
    *,
    allow: Sequence[str],
    hosts: Sequence[str],
    token_file: Path | None,
    actor: str | None,
    header: str | None,
    addresses: Sequence[str],
    books: str | None,
) -> None:
    """The operator's page: causes, dead letters, delays, tasks and queues in a browser, and what the command line does with them.

    It listens on the loopback, and prints an address with a token to log in with. It reads only, until --allow says what it may do.
    Behind a proxy that logs people in, name its header and its address. SIGTERM ends it with exit code 0, SIGINT with 130.
    """
    from ...web.access import ProxyLogin, TokenLogin, User  # noqa: PLC0415 - its dependencies are optional
    from ...web.page import Page  # noqa: PLC0415 - as above
    from ...web.server import serve  # noqa: PLC0415 - as above

    if (header is None) != (not addresses):
        msg = "--trust-proxy-header and --trusted-address belong together: without the address, any client could send this header"
        raise click.UsageError(msg)
    rights = [part for each in allow for part in each.split(",") if part.strip()]
    token, login = "", None
    found: Login
    if header is not None:
        found = ProxyLogin(header, addresses, "all")
    else:
        token = _token(token_file)
        login = found = TokenLogin(token, User(actor or os_user(), "all"))
    page = Page(context.runtime, found, allow=[each.strip() for each in rights], hosts={*_names(host), *hosts}, books=books)
    try:
        listening = _listening(host, port)
    except OSError as exc:
        msg = f"cannot listen on {host}:{port} ({exc.strerror or exc}): choose another with --host and --port"
        raise InputError(msg) from exc
    address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    click.echo(f"redelivery web: {address}/{f'login?token={token}' if login is not None and token_file is None else ''}")
    allowed = ", ".join(sorted(page.allows.actions))
    may = f"do {allowed}" if allowed else "only read (--allow redrive,… lets it change things)"
    say(f"it may {may}; SIGTERM or Ctrl-C ends it", err=True)
    if not is_loopback(host):
        say("it is reached from other machines over plain http: put a proxy with TLS before it", err=True)
    with carried_out(context.runtime) if page.allows.actions else nullcontext():
        serve(page.asgi, listening)


def _token(file: Path | None) -> str:
    if file is None:
        return secrets.token_urlsafe(32)
    token = file.read_text(encoding="utf-8").strip()
    if len(token) < MIN_TOKEN_LENGTH:
        msg = f"{file}: a token has {MIN_TOKEN_LENGTH} characters or more, so that nobody guesses it"
        raise InputError(msg)
    return token


def _names(host: str) -> set[str]:
    """The host names that requests to this address may have. IP addresses need not be listed."""
    return {"localhost", host} if is_loopback(host) else {"localhost", host, socket.gethostname(), socket.getfqdn()}


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)
