"""Tell the explicit settings of an app and its tasks from Celery's defaults.

Celery writes its defaults into a task's class when it binds the task to its app, so that both look alike. Two facts distinguish
them: the order in which a class got its attributes (`bind` writes its values after `_exec_options`), and the mapping that holds the
app's value (the last mapping has Celery's defaults).

Reading a setting configures the app, so this is for workers and commands, not for `Redelivery(app)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.app.annotations import resolve_all
from celery.app.defaults import _TO_OLD_KEY

if TYPE_CHECKING:
    from celery import Celery, Task

#: The value was not set explicitly.
UNSET: Any = type("Unset", (), {"__repr__": lambda _: "UNSET", "__bool__": lambda _: False})()

#: Attribute and setting of what `Redelivery` sets to True on tasks, unless it is set explicitly.
NEEDED = (("acks_late", "task_acks_late"), ("reject_on_worker_lost", "task_reject_on_worker_lost"))
#: The attribute that keeps a task's earlier values, in the same order.
PLAIN = "__redelivery_plain__"


def explicit_app_setting(app: Celery, setting: str) -> Any:
    """The app's value of a setting, whose name may have the old or the new form; `UNSET` if Celery's default applies."""
    app.conf.get(setting)  # loads the configuration, which sets `app._conf`
    conf = app._conf  # noqa: SLF001 - the view itself
    names = [conf._key(name) for name in conf._to_keys(setting)]  # noqa: SLF001 - prefixed and plain notation
    names.append(_TO_OLD_KEY.get(setting, setting))
    for mapping in conf.maps[:-1]:
        for name in names:
            if name in mapping and mapping[name] is not None:
                return mapping[name]
    return UNSET


def explicit_task_option(task: Task, attribute: str) -> Any:
    """A task's explicit value, from its options, its class, a base class or an annotation; otherwise `UNSET`."""
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
    """Set the attributes that `Redelivery` needs, unless the task or the app sets them; a second call changes nothing."""
    if hasattr(task, PLAIN):
        return
    setattr(task, PLAIN, tuple(getattr(task, attribute) for attribute, _ in NEEDED))
    for attribute, setting in NEEDED:
        if explicit_task_option(task, attribute) is UNSET and explicit_app_setting(task.app, setting) is UNSET:
            setattr(task, attribute, True)
