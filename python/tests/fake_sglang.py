# SPDX-License-Identifier: Apache-2.0
"""The parts of SGLang that its adapter sees, without torch: modules of its names, with the same
calls. The real ones run in `make test-engines`."""

import ctypes
import dataclasses
import enum
import os
import sys
import types


class PoolName(str, enum.Enum):
    KV = "kv"
    SWA = "swa"
    MAMBA = "mamba"


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclasses.dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list = None


class HiCacheStorage:
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        pass


@dataclasses.dataclass
class Config:
    extra_config: dict
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    dp_rank: int = 0
    dcp_rank: int = 0
    dcp_size: int = 1
    is_mla_model: bool = False
    should_split_heads: bool = False
    model_name: str = "model"

    @property
    def is_storage_writer(self):
        return not self.is_mla_model or self.tp_rank == 0


@dataclasses.dataclass
class Transfer:
    name: PoolName
    keys: list
    host_indices: object = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


class Indices(list):
    """A tensor of token numbers, as far as it is looked at."""

    def __getitem__(self, which):
        found = super().__getitem__(which)
        return Indices(found) if isinstance(which, slice) else found

    def tolist(self):
        return list(self)


class Tensor:
    """Flat memory on the host, of a shape."""

    def __init__(self, data, shape=None, is_cpu=True):
        self.data, self.shape, self.is_cpu = data, shape or (len(data),), is_cpu
        self._place = (ctypes.c_char * len(data)).from_buffer(data)

    def data_ptr(self):
        return ctypes.addressof(self._place)

    def numel(self):
        return len(self.data)

    def element_size(self):
        return 1

    def is_contiguous(self):
        return True

    def contiguous(self):
        return self


class HostPool:
    """Pages of bfloat16 in one of the orders of MHATokenToKVPoolHost; with `ranges` a pool that
    gives addresses alone, with `flat` one that gives copies alone."""

    def __init__(self, layout, pages=6, page=16, layers=3, heads=2, dim=32, dtype="bfloat16",
                 ranges=False, flat=False, is_cpu=True):
        self.layout, self.page_num, self.page_size = layout, pages, page
        self.layer_num, self.head_num, self.head_dim = layers, heads, dim
        self.start_layer, self.end_layer, self.dtype = 0, layers, f"torch.{dtype}"
        self.page_bytes = 2 * layers * page * heads * dim * 2
        self.data, self._flat, self._ranges = bytearray(self.page_bytes * pages), flat, ranges
        shape = {"page_first": (2, pages * page, layers, heads, dim),
                 "page_first_direct": (2, pages, layers, page, heads, dim),
                 "layer_first": (2, layers, pages * page, heads, dim)}[layout]
        self.kv_buffer = Tensor(self.data, (1,) if ranges or flat else shape, is_cpu)

    def halves(self, number):
        """The (offset, bytes) of a page's two halves in the orders that keep pages together."""
        half = self.page_bytes // 2
        return [(number * half, half), (len(self.data) // 2 + number * half, half)]

    def get(self, number):
        return b"".join(bytes(self.data[at:at + size]) for at, size in self.halves(number))

    def put(self, number, content):
        for at, size in self.halves(number):
            self.data[at:at + size], content = content[:size], content[size:]

    def get_page_buffer_meta(self, indices):
        if self._flat:
            raise NotImplementedError
        starts = [index // self.page_size for index in indices[::self.page_size]]
        places = [place for start in starts for place in self.halves(start)]
        return ([self.kv_buffer.data_ptr() + at for at, _ in places], [size for _, size in places])

    def get_data_page(self, index):
        return Tensor(bytearray(self.get(index // self.page_size)))

    def get_dummy_flat_data_page(self):
        return Tensor(bytearray(self.page_bytes))

    def set_from_flat_data_page(self, index, page):
        self.put(index // self.page_size, bytes(page.data))


def install(folder, version="0.5.23"):
    """Makes `import sglang` find the classes above, as of a version."""
    modules = {"sglang": {}, "sglang.srt": {}, "sglang.srt.mem_cache": {},
               "sglang.srt.mem_cache.hicache_storage": {
                   "HiCacheStorage": HiCacheStorage, "PoolHitPolicy": PoolHitPolicy,
                   "PoolName": PoolName, "PoolTransferResult": PoolTransferResult}}
    for name, members in modules.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(members)
    facts = os.path.join(folder, f"sglang-{version}.dist-info")
    os.makedirs(facts)
    with open(os.path.join(facts, "METADATA"), "w", encoding="utf-8") as file:
        file.write(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    sys.path.insert(0, folder)
