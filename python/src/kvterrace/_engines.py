# SPDX-License-Identifier: Apache-2.0
"""What the adapters of engines share: the versions that they were tested with, and parameters."""

import importlib.metadata
import inspect
import logging
import os
import re

from ._errors import failure
from ._kvt import lib
from ._store import Store, readers_to_come

_PLACES = re.compile(r"\{(?:dp|engine|rank)\}")


_SELF = ("self", "cls")
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(called):
    """The parameters of a call, without self; None: it does not say."""
    try:
        found = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return None
    return [one for one in found if one.name not in _SELF]


def _bare(method):
    return getattr(method, "__func__", method)


def _override_faults(ours):
    """Methods of a class of ours that the engine's base calls in another way, or wants beside
    them."""
    for name in sorted(getattr(ours, "__abstractmethods__", ())):
        yield f"{ours.__name__} lacks {name}"
    for name, mine in vars(ours).items():
        base = next((vars(one)[name] for one in ours.__mro__[1:] if name in vars(one) and
                     one is not object and not one.__module__.startswith("kvterrace")), None)
        if base is None or not callable(_bare(base)) or not callable(_bare(mine)):
            continue
        theirs, own = _parameters(_bare(base)), _parameters(_bare(mine))
        if theirs is None or own is None or name == "__init__":
            continue
        takes_any = {one.kind for one in own if one.kind in _ANY}
        given = [one.name for one in theirs if one.kind not in _ANY]
        names = [one.name for one in own if one.kind not in _ANY]
        if not takes_any and names[:len(given)] != given:
            yield f"{ours.__name__}.{name} is called with ({', '.join(given)})"
        elif any(one.default is one.empty and one.kind not in _ANY for one in own[len(given):]):
            yield f"{ours.__name__}.{name} is called without {names[len(given)]}"


def _call_faults(called, names, whole):
    """What a call of the engine's lacks of the parameters that an adapter names; whole: what it has
    beside them, too. Those with a question mark may be missing."""
    found = _parameters(called)
    if found is None or any(one.kind == inspect.Parameter.VAR_KEYWORD for one in found):
        return
    has, name = [one.name for one in found], getattr(called, "__qualname__", repr(called))
    for one in names:
        if one not in has and one[0] != "?":
            yield f"{name} takes no {one}"
    for one in has if whole else ():
        if not {one, "?" + one} & set(names):
            yield f"{name} takes {one}, too"


class Engine:
    """An engine, of one version. Its interfaces are experimental, and a changed one may put bytes
    where nobody expects them: with a version that the adapter was not tested with, what it uses is
    checked, a difference is refused by name, and without one a warning is all.
    KVTERRACE_UNTESTED_ENGINE=1 makes a warning of a difference, too.

    In a with statement: names that an import does not find are such a difference."""

    def __init__(self, name, found, tested):
        self._name, self._found, self._tested = name, found, ", ".join(tested)
        self._known, self._warned = found.split("+")[0] in tested, False

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        if isinstance(error, ImportError) and not self._known:
            raise self._refuse(str(error)) from error

    def check(self, *ours, calls=(), whole=(), holds=()):
        """ours: classes that the engine calls. calls: (a call, the parameters that are named
        there), whole: those that may have no other ones. holds: (what ought to be, a function that
        says whether it is)."""
        if self._known:
            return
        faults = [fault for one in ours for fault in _override_faults(one)]
        for called, *names in calls:
            faults += _call_faults(called, names, False)
        for called, *names in whole:
            faults += _call_faults(called, names, True)
        for what, is_so in holds:
            try:
                good = is_so()
            except Exception as error:  # whatever an interface that is gone makes of it
                good, what = False, f"{what} ({type(error).__name__}: {error})"
            if not good:
                faults.append(f"not so: {what}")
        if faults and os.environ.get("KVTERRACE_UNTESTED_ENGINE") != "1":
            raise self._refuse("; ".join(faults))
        if faults or not self._warned:
            self._warned = True
            logging.getLogger("kvterrace").warning(
                "kvterrace: tested with %s %s, and this is %s: %s", self._name, self._tested,
                self._found, "; ".join(faults) or "what the adapter uses of it is the same")

    def _refuse(self, difference):
        return failure(lib.KVT_E_UNSUPPORTED,
                       f"this adapter was tested with {self._name} {self._tested}, and "
                       f"{self._name} {self._found} differs: {difference}. Install a tested "
                       "version, or a newer kvterrace; KVTERRACE_UNTESTED_ENGINE=1 tries it all "
                       "the same")


def installed(package):
    """The version of an installed package, as its distribution says."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def need_identity(adapter, readers, *names, given=None):
    """Refuses to begin where entries have readers beside this process, by `readers`, and nothing
    says which KV they are of: an engine tells its adapter the model's name, and KV depends on more.
    names: the parameters that say so; given: what one of them says, None for nothing."""
    if readers is None or given is not None:
        return
    raise failure(lib.KVT_E_CONFIG,
                  f"{adapter}: entries outlive this process or are shared ({readers}), and the "
                  f"engine tells neither weights nor rotary overrides: set {' or '.join(names)} to "
                  "a text that changes with them and with all else that decides KV, or to an empty "
                  'one if nothing of that ever changes (docs/ENGINES.md, "What decides KV")')


def fill_places(adapter, names, given):
    """The values of `config`, `settings` and `connect` in `given`, with {dp}, {engine} and {rank}
    in texts filled by what the engine says: `names`, of those that there are."""
    def fill(value):
        if not isinstance(value, str):
            return value
        for name, text in names.items():
            value = value.replace("{" + name + "}", str(text))
        unknown = _PLACES.search(value)
        if unknown is not None:
            raise failure(lib.KVT_E_CONFIG, f"{adapter}: {unknown.group()} in {value!r}: there is "
                          f"{', '.join('{' + one + '}' for one in names) or 'none of these'}")
        return value

    filled = dict(given)
    for name in ("config", "settings", "connect"):
        value = given.get(name)
        if isinstance(value, dict):
            filled[name] = {key: fill(one) for key, one in value.items()}
        elif isinstance(value, str):
            filled[name] = fill(value)
    return filled


def check_one_place(adapter, connect, **others):
    """Refuses settings beside a connection, by name."""
    found = [name for name, value in others.items() if value is not None]
    if connect is not None and found:
        raise failure(lib.KVT_E_CONFIG, f"{adapter}: connect and {' and '.join(found)}: the "
                      "settings of a connected store are its server's, so connect stands alone")


class Parameters:
    """The parameters that an engine's configuration hands to an adapter: taken by name, and what is
    left over is refused."""

    def __init__(self, given, adapter):
        if not isinstance(given, dict):
            raise failure(lib.KVT_E_CONFIG, f"{adapter}: the parameters are an object")
        self._given, self._adapter, self._known = dict(given), adapter, []
        self.readers = None  # of the store, once it is open: as readers_to_come

    def take(self, name, kinds, otherwise=None, least=None):
        self._known.append(name)
        value = self._given.pop(name, None)
        if value is None:
            return otherwise
        wanted = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise failure(lib.KVT_E_CONFIG, f"{self._adapter}: {name} is "
                          f"{' or '.join(one.__name__ for one in wanted)}, not {value!r}")
        if least is not None and not value >= least:
            raise failure(lib.KVT_E_CONFIG,
                          f"{self._adapter}: {name} is at least {least}, not {value!r}")
        return value

    def take_word(self, name, word):
        """The word where a parameter has it in place of what `take` takes; else None."""
        return self._given.pop(name) if self._given.get(name) == word else None

    def end(self):
        if self._given:
            raise failure(lib.KVT_E_CONFIG, f"{self._adapter}: unknown parameter "
                          f"{', '.join(sorted(map(str, self._given)))}; it has "
                          f"{', '.join(self._known)}")

    def open_store(self, revision, **places):
        """The last call: the store of `connect`, a socket, or of `config`, a file, and of
        `settings`, by their names. Without a file the policy is lru unless a setting says
        otherwise: engines do not tell what an entry costs to compute. revision: of the model, None
        where nobody gave one. places: what fills {dp}, {engine} and {rank}."""
        self._given = fill_places(self._adapter, places, self._given)
        connect, config = self.take("connect", str), self.take("config", str)
        settings = self.take("settings", dict)
        self.end()
        check_one_place(self._adapter, connect, config=config, settings=settings)
        settings = dict(settings or {})
        variant = settings.pop("store.variant", None)
        if config is None:
            settings.setdefault("store.policy", "lru")
        self.readers = readers_to_come(config, settings, connect)
        need_identity(self._adapter, self.readers, "revision", given=revision)
        if connect is not None:
            return Store(connect=connect)
        return Store(config, settings=settings, **({} if variant is None else
                                                   {"variant": variant}))
