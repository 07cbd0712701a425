# SPDX-License-Identifier: Apache-2.0
"""The parts of LMCache that its adapters see, without torch: modules of its names, with the same
calls. The real ones run in `make test-engines`."""

import ctypes
import os
import sys
import types


class Bitmap:
    def __init__(self, size, prefix=0):
        self.bits = [index < prefix for index in range(size)]

    def set(self, index):
        self.bits[index] = True

    def test(self, index):
        return self.bits[index]


class L2StoreResult(int):
    def __new__(cls, success, written):
        return super().__new__(cls, written if success else -1)

    def is_successful(self):
        return self >= 0


class L2AdapterInterface:
    def __init__(self, max_capacity_bytes=0):
        self.max_capacity_bytes, self.used, self.told = max_capacity_bytes, 0, []
        self._listeners = []

    def register_listener(self, listener):
        self._listeners.append(listener)

    def _notify_keys_stored(self, keys, sizes):
        self.used += sum(sizes)
        self.told.append(("stored", list(keys)))

    def _notify_keys_accessed(self, keys):
        for listener in self._listeners:
            listener(keys)
        self.told.append(("accessed", list(keys)))

    def _notify_keys_deleted(self, keys, sizes):
        self.used -= sum(sizes)
        self.told.append(("deleted", list(keys)))

    def get_usage(self):
        return self.used


class ObjectKey:
    def __init__(self, chunk_hash, model_name="model", kv_rank=0, object_group_id=0,
                 cache_salt=""):
        self.chunk_hash, self.model_name, self.kv_rank = chunk_hash, model_name, kv_rank
        self.object_group_id, self.cache_salt = object_group_id, cache_salt

    def text(self):
        base = (f"{self.model_name}@{self.kv_rank:08x}@{self.object_group_id:x}"
                f"@{self.chunk_hash.hex()}")
        return f"{base}@{self.cache_salt}" if self.cache_salt else base


class Dtype:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __str__(self):
        return f"torch.{self.name}"


BF16, FP16, UINT8 = Dtype("bfloat16", 2), Dtype("float16", 2), Dtype("uint8", 1)


class Tensor:
    """Flat memory on the host, or so it says."""

    def __init__(self, data, is_cpu=True):
        self.data, self.is_cpu = data, is_cpu
        self._place = (ctypes.c_char * len(data)).from_buffer(data)

    def data_ptr(self):
        return ctypes.addressof(self._place)


class MemoryObj:
    """A memory object of shapes and types, each (shape, dtype)."""

    def __init__(self, data, *groups, used=None, is_cpu=True):
        shapes, dtypes = [one[0] for one in groups], [one[1] for one in groups]
        self.data, self.raw_data, self._used = data, Tensor(data, is_cpu), used
        self.metadata = types.SimpleNamespace(shape=shapes[0], dtype=dtypes[0], shapes=shapes,
                                              dtypes=dtypes)

    def get_size(self):
        return len(self.data) if self._used is None else self._used

    def set_used_size(self, size):
        self._used = size

    @property
    def byte_array(self):
        return memoryview(self.data)[:self.get_size()]


class Coder:
    """Serializer and Deserializer: to be subclassed."""


class AsyncSerdeProcessor:
    def __init__(self, serializer, deserializer, max_workers=1):
        self.serializer, self.deserializer = serializer, deserializer
        self.max_workers = max_workers


SERDES = {}


def install(folder, version="0.5.6"):
    """Makes `import lmcache` find the classes above, as of a version."""
    modules = {
        "lmcache": {},
        "lmcache.lmcache_native": {"Bitmap": Bitmap},
        "lmcache.v1": {},
        "lmcache.v1.distributed": {},
        "lmcache.v1.distributed.internal_api": {"L2StoreResult": L2StoreResult},
        "lmcache.v1.distributed.l2_adapters": {},
        "lmcache.v1.distributed.l2_adapters.base": {"L2AdapterInterface": L2AdapterInterface},
        "lmcache.v1.distributed.serde": {},
        "lmcache.v1.distributed.serde.async_processor": {
            "AsyncSerdeProcessor": AsyncSerdeProcessor},
        "lmcache.v1.distributed.serde.base": {"Deserializer": Coder, "Serializer": Coder},
        "lmcache.v1.distributed.serde.factory": {
            "get_registered_serde_types": lambda: list(SERDES),
            "register_serde_factory": SERDES.__setitem__},
    }
    for name, members in modules.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(members)
    facts = os.path.join(folder, f"lmcache-{version}.dist-info")
    os.makedirs(facts)
    with open(os.path.join(facts, "METADATA"), "w", encoding="utf-8") as file:
        file.write(f"Metadata-Version: 2.1\nName: lmcache\nVersion: {version}\n")
    sys.path.insert(0, folder)
