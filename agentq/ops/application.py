"""Finds the user's app by its name, ``module:attribute``, and says clearly where it cannot."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import nullcontext, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from agentq.errors import AgentQError, DefinitionError
from agentq.ops.units_here import adopt
from agentq.settings import load_settings
from agentq.store.address import parse
from agentq.store.client import Store
from agentq.store.locate import broker_url

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ

DEMO = "tasks.research:aq"
"""The worked example that comes with agentq."""

_ATTRIBUTES = ("aq", "app", "celery")  # looked for where only a module is named


def load_app(name: str | None, *, asked: bool = False) -> AgentQ:
    """Return the app that *name* or the setting `app` means.

    ``module:attribute`` names an `AgentQ` or its Celery app, ``module`` alone the one in it. The
    working directory is searched first, as Celery does.

    Args:
        name: of the app.
        asked: whether standard output is for an answer that a script may read: what the app prints
            while it is imported then goes to standard error.

    Raises:
        DefinitionError: nothing is named, or there is no such module, attribute or app in it.
    """
    from agentq.flows.app import AgentQ  # noqa: PLC0415 -- `cell_of` does without

    name = name or load_settings().app
    if not name:
        raise DefinitionError(
            "no app is named: say which with -A module:attribute (for example -A myproject.flows:aq"
            "), or set app in config/default.toml or AGENTQ_APP"
        )
    module_name, _, attribute = name.partition(":")
    _make_importable(demo_folder() if name == DEMO else Path.cwd())
    with redirect_stdout(sys.stderr) if asked else nullcontext():
        module = _imported(module_name, name)
    for candidate in [attribute] if attribute else _ATTRIBUTES:
        found = getattr(module, candidate, None)
        found = getattr(found, "aq", found)  # its Celery app
        if isinstance(found, AgentQ):
            return found
    raise DefinitionError(_no_app(module_name, attribute, vars(module)))


def any_app(name: str | None) -> AgentQ:
    """Return the app that is named, or one without steps where none is: it reaches the cell too.

    Raises:
        DefinitionError: as `load_app`, where one is named.
    """
    adopt(os.environ)
    from agentq.flows.app import AgentQ  # noqa: PLC0415 -- as below

    return load_app(name, asked=True) if name or load_settings().app else AgentQ("agentq")


def looking_app(name: str | None) -> AgentQ:
    """Return what `any_app` does, with `dashboard.broker_url` for its broker where that is set.

    Raises:
        DefinitionError: as `any_app`.
    """
    aq = any_app(name)
    if url := aq.settings.dashboard.broker_url:
        broker = aq.settings.broker.model_copy(update={"url": url})
        aq.settings = aq.settings.model_copy(update={"broker": broker})
    return aq


def cell_of(name: str | None) -> Store:
    """Return the cell of the app that is named, else the one that the settings name.

    Without an app Celery is not imported, which costs more than reading a cell does.

    Raises:
        DefinitionError: as `load_app`, where one is named.
        BrokerNotConfigured: no broker is set and no embedded one runs.
    """
    adopt(os.environ)
    settings = load_settings()
    if name or settings.app:
        return load_app(name, asked=True).store
    address = parse(broker_url(settings), cell=settings.broker.cell)
    return Store(address=address, timeout=settings.broker.timeout)


def demo_folder() -> Path:
    """Return the folder that holds the package `tasks`: the checkout, else the copy in the wheel.

    Raises:
        DefinitionError: this installation has neither.
    """
    package = Path(__file__).parents[1]
    for folder in (package.parent, package / "_demo"):
        if (folder / "tasks/research/__init__.py").is_file():
            return folder
    raise DefinitionError(f"the demo's tasks are missing from {package}: install agentq again")


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))


def _imported(module_name: str, name: str) -> object:
    try:
        return import_module(module_name)
    except AgentQError:
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise DefinitionError(
                f"app {name!r}: there is no module {error.name!r} in {Path.cwd()} nor among what "
                "is installed; start from your project's folder, or install it"
            ) from error
        raise DefinitionError(f"app {name!r} cannot be imported: {error}{_place(error)}") from error
    except Exception as error:
        raise DefinitionError(
            f"app {name!r} cannot be imported: {type(error).__name__}: {error}{_place(error)}"
        ) from error


def _place(error: Exception) -> str:
    """Return where it was raised, as far as that is behind the import; a SyntaxError says so."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    if not frames:
        return ""
    path = Path(frames[-1].filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({shown}, line {frames[-1].lineno})"


def _no_app(module_name: str, attribute: str, names: dict[str, object]) -> str:
    from agentq.flows.app import AgentQ  # noqa: PLC0415 -- `cell_of` does without

    apps = [key for key, value in names.items() if isinstance(value, AgentQ)]
    hint = (
        f"it has {', '.join(f'{module_name}:{key}' for key in apps)}"
        if apps
        else ('make one there: aq = AgentQ("name")')
    )
    if not attribute:
        return f"module {module_name!r} holds no AgentQ named {', '.join(_ATTRIBUTES)}; {hint}"
    if attribute not in names:
        return f"module {module_name!r} has no attribute {attribute!r}; {hint}"
    return f"{module_name}:{attribute} is no AgentQ nor the Celery app of one; {hint}"
