# SPDX-License-Identifier: Apache-2.0
"""kvterrace: a KV-cache store for LLM serving on one host, from Python.

    import kvterrace

    with kvterrace.Store(tier_dram_capacity="4GiB") as store:
        space = kvterrace.Space(model="meta-llama/Llama-3.1-8B", dtype="bf16", block_tokens=256)
        layout = kvterrace.Layout(layers=32, kv_heads=8, head_dim=128, dtype="bf16", tokens=256)
        key = space.key(block_hash)
        store.put(key, kv, layout)          # any contiguous buffer or DLPack tensor
        if not store.get_into(key, kv):     # False: a miss, recompute
            prefill(kv)

A miss is None or False. What a caller or the machine did wrong is an exception of the class
`Error`, with the status of the library and its message. docs/PYTHON.md has the rules for memory,
threads, fork and exit.
"""

from ._errors import (ArgumentError, BusyError, ConfigError, CorruptError, DatabaseError,
                      DeviceError, Error, LockedError, MemoryShortError, MismatchError, SpaceError,
                      StateError, UnsupportedError)
from ._version import VERSION as __version__
from ._kvt import ffi as _ffi, lib as _lib

_library = _ffi.string(_lib.kvt_version()).decode()
if _library != __version__:
    raise ImportError(f"kvterrace {__version__} found the library {_library}: "
                      "install the package again, all of it from one wheel")

from ._many import Listed
from ._queue import Queue
from ._store import EventReader, Lease, Outcome, Store, Worth
from ._types import Key, Layout, Space, View

__all__ = ["ArgumentError", "BusyError", "ConfigError", "CorruptError", "DatabaseError",
           "DeviceError", "Error", "EventReader", "Key", "Layout", "Lease", "Listed", "LockedError",
           "MemoryShortError", "MismatchError", "Outcome", "Queue", "Space", "SpaceError",
           "StateError", "Store", "UnsupportedError", "View", "Worth", "__version__"]
