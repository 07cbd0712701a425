#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What decides KV, and what the adapters of vLLM, SGLang and LMCache do about it: the cells of the
table in docs/ENGINES.md, from classes with the engines' signatures, and the refusal to begin where
an entry has readers to come and nothing says what its KV is of."""

import mmap
import os
import select
import tempfile
import unittest

from package_case import PackageCase, kvterrace, pattern
import fake_lmcache
import fake_sglang
import fake_vllm
from fake_lmcache import BF16, FP16, UINT8, MemoryObj, ObjectKey

_FOLDERS = [tempfile.TemporaryDirectory(prefix="kvt-test-") for _ in range(2)]
fake_lmcache.install(_FOLDERS[0].name)
fake_sglang.install(_FOLDERS[1].name)
fake_vllm.install()

from kvterrace import lmcache, sglang, vllm  # noqa: E402  (behind the classes)

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "ENGINES.md")
DRAM = {"tier.dram.capacity": "32MiB", "store.policy": "lru"}
BLOCK = 3 * 2 * 2 * 32 * 32 * 2
SHAPE, BYTES = (2, 3, 16, 64), 2 * 3 * 16 * 64 * 2
KEY, SALT, MISS = "in the key", "in the salt", "a miss"


def table():
    """{row: {engine: cell}} of the page."""
    with open(PAGE, encoding="utf-8") as file:
        lines = [line.strip().strip("|").split(" | ") for line in file if line.startswith("|")]
    first = next(at for at, line in enumerate(lines) if line[0].strip() == "what decides KV")
    engines, found = [one.strip() for one in lines[first][1:]], {}
    for line in lines[first + 2:]:
        if len(line) != len(engines) + 1:
            break
        found[line[0].strip()] = dict(zip(engines, (one.strip() for one in line[1:])))
    return found


def vllm_key(name=b"1" * 32, group=0, revision="", salt="", parallel=None, **facts):
    """The key of a block with vLLM's hash `name`; facts: what vLLM's configuration says."""
    spec = fake_vllm.spec(**{"block_bytes": BLOCK, **facts})
    for one, value in (parallel or {}).items():
        setattr(spec.config.parallel, one, value)
    rows = vllm._Rows(spec, memoryview(bytearray(1 << 20)).cast("B", (1, 1 << 20)), 0, 0, None)
    return vllm._space(spec.config, rows, revision, salt).key(name, group)


def sglang_key(name="1" * 64, pool=None, further=None, revision=None, **fields):
    """The key of a page with SGLang's hash `name`, in its pool or a further one."""
    storage = object.__new__(sglang.KvterraceStorage)  # a store has no part in it
    storage._config, storage._revision = fake_sglang.Config({}, **fields), revision
    storage._pools, storage._spaces, storage._every = {}, {}, {}
    storage._register(pool or fake_sglang.HostPool("page_first"), further or "kv")
    return storage._keys(further or "kv", [name])


def lmcache_key(revision=None, **fields):
    return lmcache.Keys(revision, b"lmcache").join([
        ObjectKey(**{"chunk_hash": b"1" * 32, **fields})])


class Adapters(PackageCase):
    """Makes adapters."""

    def tier(self, settings=None, view=None, spec=None, **given):
        row = (2 * BLOCK + 4095) & ~4095
        view = view or memoryview(mmap.mmap(-1, 4 * row)).cast("B", (4, row))
        made = vllm.KvterraceTier(spec or fake_vllm.spec(block_bytes=BLOCK), view, "kvt",
                                  settings=settings or DRAM, **given)
        self.addCleanup(made.shutdown)
        return made

    def storage(self, settings=None, pool=None, revision=None, **fields):
        given = {"settings": settings or DRAM}
        if revision is not None:
            given["revision"] = revision
        made = sglang.KvterraceStorage(fake_sglang.Config(
            {"interface_v1": 1, "kvterrace": given}, **fields), {})
        self.addCleanup(made.close)
        made.register_mem_pool_host(pool or fake_sglang.HostPool("page_first"))
        return made

    def level(self, settings=None, **given):
        made = lmcache.KvterraceL2Adapter({"settings": settings or DRAM, **given})
        self.addCleanup(made.close)
        return made

    def connector(self, settings=None, **given):
        made = lmcache.KvterraceConnector(settings=settings or DRAM, **given)
        self.addCleanup(made.close)
        return made


class Cells(Adapters):
    """Each cell that can be tried is what happens."""

    def say(self, maker, **told):
        """What an adapter does about another value: "in the key", or, of one that it is not told,
        "in the salt", which then keeps the two apart."""
        one, other = maker(), maker(**told)
        self.assertEqual(maker(), one)
        if one != other:
            return KEY
        self.assertNotEqual(maker(revision="another"), one)
        return SALT

    def cell(self, row, engine):
        found = [cells for name, cells in self.table.items() if name.startswith(row)]
        self.assertEqual(len(found), 1, row)
        return found[0][engine]

    def holds(self, engine, said):
        self.table = table()
        for row, verdict in said.items():
            with self.subTest(row=row):
                self.assertTrue(self.cell(row, engine).startswith(verdict),
                                f"{verdict!r} is not what the page says: "
                                f"{self.cell(row, engine)!r}")

    def test_the_page_has_a_word_for_each(self):
        for row, cells in table().items():
            self.assertEqual(list(cells), ["transformers", "vLLM", "SGLang", "LMCache"])
            for engine, said in cells.items():
                self.assertTrue(said, f"{row}: {engine}")

    def test_vllm(self):
        """What its OffloadingConfig does not have is told alike for all values."""
        def say(**told):
            return self.say(vllm_key, **told)
        self.holds("vLLM", {
            **{row: say() for row in
               ("weights, and", "configuration", "rotary type", "rotary regime",
                "the same: dynamic", "longest length", "quantised weights", "code that is not",
                "KV that was computed")},
            "revision": self.say(vllm_key),
            "active adapters": say(name=b"2" * 32),
            "element type": say(dtype="float16"),
            "KV that the engine quantises": say(dtype="fp8_e4m3"),
            "attention and experts": say(block_bytes=BLOCK // 2),
            "token ids": say(name=b"2" * 32),
            "embeddings in place": say(name=b"2" * 32),
            "layers with a window": say(group=1),
            "tokens of an entry": say(tokens_per_block=16),
            "tensor and pipeline": say(world_size=2),
            "tenants": say(name=b"2" * 32),
            "draft model": say(layers=4),
            "algorithm and seed": say(name=b"2" * 16),
        })
        ranks = ("tp_size", "pp_size", "pcp_size", "dcp_size", "world_size")
        self.assertEqual(len({vllm_key(parallel={one: 2}) for one in ranks}), len(ranks))
        version = vllm_key()
        self.addCleanup(setattr, vllm.vllm, "__version__", vllm.vllm.__version__)
        vllm.vllm.__version__ = "0.32.1"
        self.assertNotEqual(vllm_key(), version)
        self.holds("vLLM", {"engine's version": KEY})
        self.assertNotEqual(vllm_key(salt="a"), vllm_key(salt="b"))

    def test_sglang(self):
        def say(**told):
            return self.say(sglang_key, **told)
        self.holds("SGLang", {
            **{row: say() for row in
               ("weights, and", "configuration", "rotary type", "rotary regime",
                "the same: dynamic", "longest length", "quantised weights", "code that is not",
                "KV that was computed")},
            "revision": self.say(sglang_key),
            "active adapters": say(name="2" * 64),
            "element type": say(pool=fake_sglang.HostPool("page_first", dtype="float16")),
            "KV that the engine quantises": say(
                pool=fake_sglang.HostPool("page_first", dtype="float8_e4m3fn")),
            "attention and experts": say(pool=fake_sglang.HostPool("page_first_direct")),
            "token ids": say(name="2" * 64),
            "layers with a window": say(further="swa"),
            "tokens of an entry": say(pool=fake_sglang.HostPool("page_first", page=32)),
            "tensor and pipeline": say(tp_rank=1, tp_size=2),
            "tenants": say(name="2" * 64),
            "draft model": say(further="swa"),
            "algorithm and seed": say(name="2" * 64),
        })
        ranks = [{}, {"tp_size": 2}, {"pp_size": 2}, {"pp_rank": 1, "pp_size": 2},
                 {"attn_cp_size": 2}, {"dcp_size": 2}, {"should_split_heads": True},
                 {"model_name": "other"}]
        self.assertEqual(len({sglang_key(**one) for one in ranks}), len(ranks))
        self.assertEqual(sglang_key(dp_rank=1), sglang_key())  # the same KV

    def run_level(self, dtype, shape=SHAPE):
        """What a load as another type or shape of as many bytes is, and what it leaves."""
        level, key, done = self.level(head_dim=32), ObjectKey(bytes(32)), None
        data = pattern(BYTES)
        for submit, query, (kind, form) in (
                (level.submit_store_task, None, (BF16, SHAPE)),
                (level.submit_load_task, level.query_load_result, (dtype, shape))):
            task = submit([key], [MemoryObj(bytearray(data), (form, kind))])
            (level._stores if query is None else level._loads).tasks.wait()
            done = level.pop_completed_store_tasks() if query is None else query(task).bits
        return KEY if done == [True] else MISS

    def run_connector(self, second):
        """The same of bytes, under the texts of two keys."""
        connector, data, done = self.connector(), pattern(BYTES), None
        for submit, key in ((connector.submit_batch_set, ObjectKey(bytes(32))),
                            (connector.submit_batch_get, second)):
            submit([key.text()], [bytearray(data)])
            select.select([connector.event_fd()], [], [], 30)
            done = connector.drain_completions()[0][3]
        return SALT if done == [True] else KEY

    def test_lmcache(self):
        def say(**told):
            return self.say(lmcache_key, **told)
        self.holds("LMCache", {
            **{row: say() for row in
               ("weights, and", "configuration", "rotary type", "rotary regime",
                "the same: dynamic", "longest length", "quantised weights", "code that is not",
                "engine's version", "KV that was computed", "active adapters")},
            "revision": self.say(lmcache_key),
            "element type": self.run_level(FP16),
            "KV that the engine quantises": self.run_level(UINT8, (BYTES,)),
            "attention and experts": self.run_level(BF16, (2, 3, 64, 16)),
            "token ids": say(chunk_hash=b"2" * 32),
            "layers with a window": say(object_group_id=1),
            "tokens of an entry": say(chunk_hash=b"2" * 32),
            "tensor and pipeline": say(kv_rank=1),
            "tenants": say(cache_salt="a"),
            "algorithm and seed": say(chunk_hash=b"2" * 16),
        })
        self.assertEqual(say(model_name="other"), KEY)
        # Four tensor ranks, and two by two: one world and one rank, as many bytes.
        self.assertEqual(self.run_level(BF16), KEY)
        self.assertEqual(self.run_level(BF16, (2, 6, 16, 32)), MISS)
        # Bytes have no layout: their type, and how a world divides, are for the salt.
        self.assertEqual(self.run_connector(ObjectKey(bytes(32))), SALT)
        self.assertEqual(self.run_connector(ObjectKey(bytes(32), kv_rank=1)), KEY)
        one, other = (lmcache.Keys(revision, b"").join_texts([ObjectKey(bytes(32)).text()])
                      for revision in (None, "another"))
        self.assertNotEqual(one, other)


def lasting(case):
    """Settings of stores whose entries have readers beside their process, and by which of them."""
    folder = case.folder()
    yield "store.catalog", {"store.catalog": os.path.join(folder, "catalog.db"),
                            "device.d.path": os.path.join(folder, "disk"), "device.d.tier": "ssd",
                            "device.d.backend": "file", "device.d.capacity": "16MiB",
                            "store.policy": "lru"}
    yield "tier.remote.namespace", {**DRAM, "tier.remote.namespace": "n",
                                    "tier.remote.publish": "all", "remote.a.backend": "memory",
                                    "remote.a.address": case.id()}


class Asks(Adapters):
    """Where entries have readers to come, something says which KV they are of."""

    def makers(self):
        return {"vllm": self.tier, "sglang": self.storage, "level": self.level,
                "connector": self.connector}

    def test_a_store_that_ends_with_its_process_needs_no_name(self):
        for make in self.makers().values():
            make()

    def test_others_ask_by_name_and_leave_nothing(self):
        for name, make in self.makers().items():
            for why, settings in lasting(self):
                error = self.refused(kvterrace.ConfigError, why, make, settings)
                self.assertIn("set revision", str(error))
                self.assertEqual("or salt" in str(error), name == "vllm")
                self.assertIn("What decides KV", str(error))
                if why == "store.catalog":
                    folder = os.path.dirname(settings[why])
                    self.assertEqual(os.listdir(folder), [])  # nothing was made
                for given in ({"revision": "1"}, {"revision": ""}):
                    made = make(settings, **given)
                    (made.shutdown if name == "vllm" else made.close)()
        self.tier(next(lasting(self))[1], salt="1")

    def test_a_file_of_settings_counts(self):
        folder = self.folder()
        path = os.path.join(folder, "kvt.ini")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"[store]\ncatalog = {folder}/catalog.db\npolicy = lru\n[device.d]\n"
                       f"tier = ssd\nbackend = file\npath = {folder}/disk\ncapacity = 16MiB\n")
        self.refused(kvterrace.ConfigError, "store.catalog", lmcache.KvterraceConnector,
                     config=path)
        row = (2 * BLOCK + 4095) & ~4095
        region = mmap.mmap(-1, row)
        view = memoryview(region).cast("B", (1, row))
        self.refused(kvterrace.ConfigError, "store.catalog", vllm.KvterraceTier,
                     fake_vllm.spec(block_bytes=BLOCK), view, "kvt", config=path)
        view.release()
        region.close()  # the tier that was refused keeps nothing of it

    def test_an_empty_text_finds_what_was_stored_without_one(self):
        self.assertEqual(vllm_key(revision=""), vllm_key())
        self.assertEqual(sglang_key(revision=""), sglang_key())
        self.assertEqual(lmcache_key(revision=""), lmcache_key())

    def test_the_serde_always_asks(self):
        make = fake_lmcache.SERDES["kvterrace"]
        error = self.refused(kvterrace.ConfigError, "set revision", make, {"variant": "lossless"})
        self.assertIn("level behind it", str(error))
        coders = [make({"revision": one}) for one in "aab"]
        source = MemoryObj(pattern(BYTES), (SHAPE, BF16))
        room = coders[0].serializer.estimate_serialized_size(source.metadata)
        target, key = MemoryObj(bytearray(room), ((room,), UINT8)), ObjectKey(bytes(32))
        coders[0].serializer.serialize(source, target, key)
        found = MemoryObj(bytearray(BYTES), (SHAPE, BF16))
        coders[1].deserializer.deserialize(target, found, key)
        self.assertEqual(found.data, source.data)
        self.refused(kvterrace.MismatchError, "", coders[2].deserializer.deserialize, target,
                     found, key)


class Seeds(Adapters):
    """Hashes that another process does not repeat are named before anything is stored."""

    def setUp(self):
        super().setUp()
        seed = os.environ.pop("PYTHONHASHSEED", None)
        if seed is not None:
            self.addCleanup(os.environ.__setitem__, "PYTHONHASHSEED", seed)
        self.addCleanup(os.environ.pop, "PYTHONHASHSEED", None)

    def seeded(self, seed):
        from vllm.v1.core import kv_cache_utils as hashes
        self.addCleanup(setattr, hashes, "get_none_hash_seed", hashes.get_none_hash_seed)
        hashes.get_none_hash_seed = lambda: seed

    def test_vllm(self):
        _, settings = next(lasting(self))
        for seed, environment, shared, said in (
                ("vllm-none-hash", None, True, False), ("random", None, True, True),
                ("random", None, False, False), ("7", "7", True, False)):
            with self.subTest(seed=seed, environment=environment, shared=shared):
                self.seeded(seed)
                if environment is not None:
                    os.environ["PYTHONHASHSEED"] = environment
                tier = self.tier(settings if shared else None, revision="1")
                with self.assertLogs("vllm.kvterrace", "INFO") as logs:
                    vllm._log.info("so that there is a line")
                    for number in range(3):
                        tier.on_new_request(fake_vllm.ReqContext(str(number)))
                tier.shutdown()
                warned = [line for line in logs.output if "PYTHONHASHSEED" in line]
                self.assertEqual(len(warned), int(said))

    def test_lmcache(self):
        _, settings = next(lasting(self))
        for size, environment, shared, said in ((32, None, True, False), (16, None, True, True),
                                                (8, None, True, True), (16, None, False, False),
                                                (16, "7", True, False)):
            with self.subTest(size=size, environment=environment, shared=shared):
                if environment is not None:
                    os.environ["PYTHONHASHSEED"] = environment
                for make in (self.level, self.connector):
                    made = make(settings if shared else None, revision="1")
                    with self.assertLogs("kvterrace.lmcache", "INFO") as logs:
                        lmcache._log.info("so that there is a line")
                        for number in range(2):
                            key = ObjectKey(bytes([number]) * size)
                            if make == self.level:
                                made.submit_lookup_and_lock_task([key], {})
                            else:
                                made.submit_batch_exists([key.text()])
                    made.close()
                    warned = [line for line in logs.output if "PYTHONHASHSEED" in line]
                    self.assertEqual(len(warned), int(said))


if __name__ == "__main__":
    unittest.main()
