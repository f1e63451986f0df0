"""What an app and its tasks say explicitly, and what merely stands there because Celery has a default for it.

Celery writes its defaults into a task's class when it binds the task to its app, so that afterwards both look alike. Two facts tell
them apart: the order in which a class got its attributes (what `bind` writes comes after its `_exec_options`), and the mappings in
which the app's configuration was found (the last one holds Celery's own defaults).

Reading a setting configures the app, so this is for workers and commands, not for `Redelivery(app)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.app.annotations import resolve_all
from celery.app.defaults import _TO_OLD_KEY

if TYPE_CHECKING:
    from celery import Celery, Task

#: Nothing was set explicitly.
UNSET: Any = type("Unset", (), {"__repr__": lambda _: "UNSET", "__bool__": lambda _: False})()

#: Attributes of tasks that `Redelivery` needs, where nobody says otherwise: attribute, setting.
NEEDED = (("acks_late", "task_acks_late"), ("reject_on_worker_lost", "task_reject_on_worker_lost"))
#: Where a task keeps what it had before, in the same order.
PLAIN = "__redelivery_plain__"


def explicit_app_setting(app: Celery, setting: str) -> Any:
    """What the app's configuration says of a setting, in whatever notation; `UNSET` where Celery's default holds."""
    app.conf.get(setting)  # loads the configuration: before that there is no such view
    conf = app._conf  # noqa: SLF001 - the view itself
    names = [conf._key(name) for name in conf._to_keys(setting)]  # noqa: SLF001 - prefixed and plain notation
    names.append(_TO_OLD_KEY.get(setting, setting))
    for mapping in conf.maps[:-1]:
        for name in names:
            if name in mapping and mapping[name] is not None:
                return mapping[name]
    return UNSET


def explicit_task_option(task: Task, attribute: str) -> Any:
    """What the task's author says of an attribute: in its options, its class or one above, or an annotation; or `UNSET`."""
    if attribute in vars(task):
        return vars(task)[attribute]
    for annotation in resolve_all(task.app.annotations, type(task)):
        if attribute in annotation:
            return annotation[attribute]
    for cls in type(task).__mro__:
        if vars(cls).get(attribute) is not None:
            names = list(vars(cls))
            was_bound = "_exec_options" in names and names.index("_exec_options") < names.index(attribute)
            return UNSET if was_bound or cls.__module__ == "celery.app.task" else vars(cls)[attribute]
    return UNSET


def apply_defaults(task: Task) -> None:
    """Give a task what `Redelivery` needs, where neither its author nor the app's says otherwise; a second time changes nothing."""
    if hasattr(task, PLAIN):
        return
    setattr(task, PLAIN, tuple(getattr(task, attribute) for attribute, _ in NEEDED))
    for attribute, setting in NEEDED:
        if explicit_task_option(task, attribute) is UNSET and explicit_app_setting(task.app, setting) is UNSET:
            setattr(task, attribute, True)
