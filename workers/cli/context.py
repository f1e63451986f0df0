"""The context of a command: the app, its settings and its broker, each loaded at its first use.

An error is one line that says what to do: the command needs an app, the app cannot be imported or has no `Redelivery(app)`, or the
broker does not answer.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redelivery.errors import ConfigurationError, InputError
from redelivery.lazily import cached_property
from redelivery.middleware.ports import Capability
from redelivery.settings import RedeliverySettings

from ..brokers.broker import Broker, broker_of
from ..operations.reach import reached
from .terminal.options import PLACE
from .terminal.screen import screen_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

    from ..ports import AuditStore, DelayStore, OutcomeLog


class Context:
    """The `ctx.obj` of commands. `name` is the app's name as the user wrote it; `app` is None if the user named no app."""

    def __init__(
        self, name: str | None = None, app: Celery | None = None, *, as_json: bool = False, with_tasks: bool = False
    ) -> None:
        self.name = name
        self.as_json = as_json
        self._given = app
        self._with_tasks = with_tasks
        self._trial: Runtime | None = None

    def choose(self, name: str) -> None:
        """Use the app of this name instead of the app of the root's `-A`."""
        self.name, self._given = name, None

    @cached_property
    def app(self) -> Celery | None:
        """The app; its tasks are imported if the command needs them. Raises `ConfigurationError`."""
        app = _imported(self.name) if self._given is None and self.name is not None else self._given
        if app is not None and self._with_tasks:
            _import_tasks(app)
        return app

    @cached_property
    def runtime(self) -> Runtime:
        """The app's installation. Raises `ConfigurationError` if there is no app, or if the app has no `Redelivery(app)`."""
        if self.app is None:
            msg = "this command works on an app's broker: name the app, as in `redelivery -A shop dlq list`, or set CELERY_APP"
            raise ConfigurationError(msg)
        found: Runtime | None = getattr(self.app, "redelivery", None)
        if found is None:
            named = f"app {self.app.main or 'default'!r}"
            msg = f"{named} has no redelivery: add `from redelivery import Redelivery; Redelivery(app)`, or name another with -A"
            raise ConfigurationError(msg)
        return found

    def task_names(self) -> list[str]:
        """The names of the app's own tasks. Raises `ConfigurationError` if they cannot be imported."""
        app = self.runtime.app
        _import_tasks(app)
        return sorted(name for name in app.tasks if not name.startswith("celery."))

    @property
    def is_installed(self) -> bool:
        """Whether the app's own code has `Redelivery(app)`."""
        return self._trial is None

    @cached_property
    def runtime_or_trial(self) -> Runtime:
        """The app's installation. If it has none, install one in this process only. Raises `ConfigurationError`."""
        if self.app is not None and getattr(self.app, "redelivery", None) is None:
            from redelivery.middleware.install import Redelivery  # noqa: PLC0415 - an app nearly always has it

            self._trial = Redelivery(self.app)
        return self.runtime

    @property
    def settings(self) -> RedeliverySettings:
        """The app's settings; without an app, those of the environment and the TOML file. Raises `ConfigurationError`."""
        return RedeliverySettings.load() if self.app is None else self.runtime.settings

    @cached_property
    def transport(self) -> Transport:
        """The transitions on the app's broker. Raises `BrokerUnavailable`, `BrokerError`."""
        transport = reached(self.runtime)
        if transport.registry is None:  # its dead-letter queues are known from the policies of the tasks alone
            _import_tasks(self.runtime.app)
        return transport

    @property
    def delayed(self) -> DelayStore:
        """The delay store on the app's broker. Raises the errors of `transport`."""
        return self._broker.delayed

    @property
    def outcomes(self) -> OutcomeLog:
        """The outcome log on the app's broker. Raises the errors of `transport`."""
        return self._broker.outcomes

    @property
    def audit(self) -> AuditStore:
        """The audit on the app's broker. Raises the errors of `transport`."""
        return self._broker.audit

    @cached_property
    def _broker(self) -> Broker:
        self.transport  # noqa: B018 - raises if the broker does not answer
        return broker_of(self.runtime.transport)

    @property
    def can_browse(self) -> bool:
        """Whether messages can be read without a mark. Otherwise the reader takes messages and gives them back."""
        return Capability.BROWSE_LETTERS_UNMARKED in self.transport.capabilities

    def needs(self, capability: Capability, instead: str) -> None:
        """Raise `InputError` if the broker lacks this capability. `instead` is the text of the error: it says what to do."""
        if capability not in self.transport.capabilities:
            raise InputError(instead)


pass_context = click.make_pass_decorator(Context)


def exported_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--outcomes URI`, passed as `uri`: the command also reads what was exported there."""
    said = f"Read exported {what}, too. By default those in outcome_archive or outcome_export."
    return click.option("--outcomes", "uri", type=PLACE, metavar="URI", help=said)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--json` of a command. The root has the same option."""

    def store(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        found = ctx.find_object(Context)
        if value and found is not None:
            found.as_json = True

    return click.option("--json", is_flag=True, expose_value=False, callback=store, help="Print JSON.")(command)


def general(command: click.Command) -> click.Command:
    """Add the root's options `-A`, `--wide` and `--color` to a command, or to each command of a group. Returns the command.

    The help of a group has the whole first sentence of each command: click would cut it.
    """
    if isinstance(command, click.Group):
        for each in command.commands.values():
            each.short_help = re.split(r"(?<=\.)\s", inspect.cleandoc(each.help or ""), maxsplit=1)[0]
            general(each)
    elif not any(each.name == "wide" for each in command.params):
        command.params += [
            click.Option(["-A", "--app"], metavar="APP", expose_value=False, callback=_choose_app, help="The Celery app."),
            *screen_options(),
        ]
    return command


def _choose_app(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    found = ctx.find_object(Context)
    if value is not None and found is not None:
        found.choose(value)


def _imported(name: str) -> Celery:
    from celery import Celery  # noqa: PLC0415 - the command's help needs none
    from celery.app.utils import find_app  # noqa: PLC0415

    try:
        found = find_app(name)
    except (Exception, SystemExit) as exc:  # an app that exits must not set the command's exit code
        what_to_do = _place(exc) or "; write it as for `celery -A`, and run the command in the folder of its module"
        msg = f"the app {name!r} cannot be imported: {type(exc).__name__}: {exc}{what_to_do}"
        raise ConfigurationError(msg) from exc
    if not isinstance(found, Celery):
        msg = f"{name!r} is not a Celery app, but {type(found).__name__}: name it as module or module:attribute"
        raise ConfigurationError(msg)
    return found


def _import_tasks(app: Celery) -> None:
    try:
        app.loader.import_default_modules()
    except (Exception, SystemExit) as exc:
        msg = f"the tasks of the app cannot be imported: {type(exc).__name__}: {exc}{_place(exc)}"
        raise ConfigurationError(msg) from exc


def _place(exc: BaseException) -> str:
    """The last place in the user's own code in the traceback, as text; empty if there is none."""
    trace, here = exc.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not any(part in file for part in ("importlib", "site-packages", "<")) and not file.startswith(
            (sys.prefix, sys.base_prefix)
        ):
            here = f" ({Path(file).name}, line {trace.tb_lineno})" if Path(file) != Path(__file__) else here
        trace = trace.tb_next
    return here
