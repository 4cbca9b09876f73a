"""Loading plugins: what is built in, then what is installed under the entry point group ``arcpp``.

A plugin is a module (or any object) with functions marked ``arcpp.hookimpl``. A plugin that
cannot be used is never skipped: it ends the start in one line with its package and version.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

import pluggy

from . import hookspecs
from ._version import __version__
from .errors import BadInput, PluginError
from .nearest import nearest
from .trace import trace_calls

GROUP = "arcpp"
#: Modules whose hooks are always there, asked after every installed plugin's.
BUILT_IN = ("arcpp.builtin", "arcpp.backends.links")
_WAY_OUT = "ARCPP_LOAD_PLUGINS='' starts without plugins"


@dataclass(frozen=True)
class Package:
    """The distribution a plugin came in."""

    name: str
    version: str


@dataclass(frozen=True)
class Implementation:
    """One plugin's function for one hook. function: "module:name"."""

    hook: str
    plugin: str
    package: str
    version: str
    function: str
    built_in: bool

    def to_json(self) -> dict[str, Any]:
        """Its object in ``arcpp plugins``."""
        return asdict(self)


class Plugins:
    """Everything that was loaded. ``hook`` has an attribute to call for each hook."""

    def __init__(self, manager: pluggy.PluginManager, packages: Mapping[str, Package]) -> None:
        """packages: by plugin name."""
        self.manager, self.hook = manager, manager.hook
        self._packages = packages

    def implementations(self, hook: str | None = None) -> Iterator[Implementation]:
        """Of ``hook``, or of every hook by name; within one in the order they are asked."""
        for name in [hook] if hook else hook_names():
            for found in reversed(getattr(self.hook, name).get_hookimpls()):
                package = self._packages[found.plugin_name]
                function = inspect.unwrap(found.function)
                yield Implementation(
                    hook=name,
                    plugin=found.plugin_name,
                    package=package.name,
                    version=package.version,
                    function=f"{function.__module__}:{function.__qualname__}",
                    built_in=found.plugin_name in BUILT_IN,
                )

    def raised_in(self, hook: str, error: BaseException) -> Package | None:
        """The package whose implementation of ``hook`` raised ``error``; None for a built-in."""
        owners = {}
        for found in getattr(self.hook, hook).get_hookimpls():
            code = getattr(inspect.unwrap(found.function), "__code__", None)
            if found.plugin_name not in BUILT_IN:
                owners[code] = self._packages[found.plugin_name]
        culprit, frame = None, error.__traceback__
        while frame is not None:
            culprit = owners.get(frame.tb_frame.f_code, culprit)
            frame = frame.tb_next
        return culprit


def hook_names() -> list[str]:
    """Every hook there is, sorted."""
    return sorted(name for name in vars(hookspecs) if name.startswith("arcpp_"))


@functools.cache
def loaded(names: tuple[str, ...] | None, traced: bool) -> Plugins:
    """The plugins of this process; loaded once. Arguments and errors as :func:`load_plugins`."""
    return load_plugins(names, traced=traced)


def load_plugins(names: tuple[str, ...] | None = None, *, traced: bool = False) -> Plugins:
    """What is built in, and the installed plugins called ``names`` (None: all of them).

    A name is an entry point's or a package's. traced: write every call to standard error.
    Raises PluginError for a plugin that cannot be used and BadInput for a name not installed.
    """
    manager = pluggy.PluginManager("arcpp")
    manager.add_hookspecs(hookspecs)
    packages: dict[str, Package] = {}
    for module in BUILT_IN:
        packages[module] = Package("arcpp", __version__)
        manager.register(import_module(module), module)
    for entry in _chosen(names):
        package = _package(entry)
        if entry.name in packages:
            other = packages[entry.name]
            problem = f"its name {entry.name!r} is taken by {other.name} {other.version}"
            raise PluginError(package.name, package.version, problem)
        packages[entry.name] = package
        _register(manager, entry, package)
    if traced:
        trace_calls(manager)
    return Plugins(manager, packages)


def _chosen(names: tuple[str, ...] | None) -> list[metadata.EntryPoint]:
    """Entry points to load, sorted by name: the same order in every process."""
    found = sorted(metadata.entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    if names is None:
        return found
    called: dict[str, list[metadata.EntryPoint]] = {}
    for entry in found:
        for name in {_plain(entry.name), _plain(_package(entry).name)}:
            called.setdefault(name, []).append(entry)
    for name in names:
        if _plain(name) not in called:
            installed = sorted({entry.name for entry in found} | {_package(e).name for e in found})
            right = f"is no installed plugin{nearest(name, installed)}"
            raise BadInput("setting load_plugins", name, right)
    wanted = {id(entry) for name in names for entry in called[_plain(name)]}
    return [entry for entry in found if id(entry) in wanted]


def _register(manager: pluggy.PluginManager, entry: metadata.EntryPoint, package: Package) -> None:
    """Load and register one plugin. Raises PluginError."""
    try:
        plugin = entry.load()
        _check_marks(plugin)
        manager.register(plugin, entry.name)
        _check_pending(manager, plugin)
    except (Exception, SystemExit) as error:
        named = "" if isinstance(error, (_Unusable, pluggy.PluginValidationError)) else _kind(error)
        problem = f"cannot be loaded: {named}{error} ({_WAY_OUT})"
        raise PluginError(package.name, package.version, problem) from error


class _Unusable(Exception):
    """Text says why."""


def _check_marks(plugin: object) -> None:
    """A hook without the mark would never be called."""
    if not isinstance(plugin, ModuleType):
        return
    for name, function in _own_functions(plugin):
        if not hasattr(function, "arcpp_impl"):
            raise _Unusable(f"{name} in {plugin.__name__} is not marked with @arcpp.hookimpl")


def _own_functions(module: ModuleType) -> Iterable[tuple[str, object]]:
    for name, value in vars(module).items():
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        if own and name.startswith("arcpp_"):
            yield name, value


def _check_pending(manager: pluggy.PluginManager, plugin: object) -> None:
    """A misspelt hook would never be called either."""
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        callers = manager.get_hookcallers(plugin) or []
        unknown = next((caller.name for caller in callers if not caller.has_spec()), None)
        if unknown is None:
            raise
        raise _Unusable(f"there is no hook {unknown}{nearest(unknown, hook_names())}") from error


def _package(entry: metadata.EntryPoint) -> Package:
    if entry.dist is None:
        return Package(entry.module, "(version unknown)")
    return Package(entry.dist.name, entry.dist.version)


def _kind(error: BaseException) -> str:
    return f"{type(error).__name__}: "


def _plain(name: str) -> str:
    return name.strip().casefold().replace("_", "-")
