# SPDX-License-Identifier: Apache-2.0
"""What the adapters of engines share: the versions that they were tested with, and parameters."""

import importlib.metadata
import re

from ._errors import failure
from ._kvt import lib
from ._store import Store, readers_to_come

_PLACES = re.compile(r"\{(?:dp|engine|rank)\}")


def need_version(engine, found, tested):
    """Refuses an engine of a version that the adapter was not tested with: its interfaces are
    experimental, and a changed one may put bytes where nobody expects them."""
    if found.split("+")[0] not in tested:
        raise failure(lib.KVT_E_UNSUPPORTED,
                      f"this adapter was tested with {engine} {', '.join(tested)}, and this is "
                      f"{engine} {found}: install a tested version, or a newer kvterrace")


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
