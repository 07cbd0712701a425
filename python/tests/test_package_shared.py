#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The adapters of vLLM, SGLang and LMCache on a store that another process lends: what one has
stored all find, and a server that is gone is a miss and no error of an engine."""

import mmap
import os
import select
import tempfile
import unittest

from package_case import PackageCase, kvterrace, pattern
import fake_lmcache
import fake_sglang
import fake_vllm
from fake_lmcache import BF16, MemoryObj, ObjectKey

_FOLDERS = [tempfile.TemporaryDirectory(prefix="kvt-test-") for _ in range(2)]
fake_lmcache.install(_FOLDERS[0].name)
fake_sglang.install(_FOLDERS[1].name)
fake_vllm.install()

from kvterrace import lmcache, sglang, vllm  # noqa: E402  (behind the classes)

HIT, MISS = fake_vllm.LookupResult.HIT, fake_vllm.LookupResult.MISS
BLOCK, ROWS = 3 * 2 * 2 * 32 * 32 * 2, 8
ROW = (2 * BLOCK + 4095) & ~4095
SHAPE, BYTES = (2, 3, 16, 64), 2 * 3 * 16 * 64 * 2
PAGE = 16
NAMES = [number.to_bytes(36, "big") for number in range(ROWS)]


class SharedCase(PackageCase):
    def setUp(self):
        super().setUp()
        self.lends = self.server()

    def place(self, given):
        """Where a store is: with the server, unless something else is given."""
        if not {"config", "settings", "connect"} & given.keys():
            given["connect"] = self.lends.socket
        given.setdefault("revision", "1")
        return given

    def back(self, store):
        """Starts the server again, and waits until a store has noticed."""
        self.lends.start()
        self.until(lambda: store.put(self.key("back"), b"data"))


class Engine:
    """A tier of vLLM with its memory and jobs."""

    def __init__(self, case, spec=None, **given):
        self.region, self.jobs = mmap.mmap(-1, ROWS * ROW), 0
        self.tier = vllm.KvterraceTier(
            spec or fake_vllm.spec(block_bytes=BLOCK),
            memoryview(self.region).cast("B", (ROWS, ROW)), "kvt", **given)
        case.addCleanup(self.tier.shutdown)

    def run(self, submit, loads):
        self.jobs += 1
        submit(fake_vllm.TransferJob(self.jobs, NAMES, range(ROWS), loads,
                                     fake_vllm.ReqContext("r")))
        self.tier.drain_jobs()
        done, = self.tier.get_finished_jobs()
        return done

    def store(self, seed=1):
        for row in range(ROWS):
            self.region[row * ROW:row * ROW + 2 * BLOCK] = bytes(pattern(2 * BLOCK, row + seed))
        return self.run(self.tier.submit_store, False)

    def load(self):
        """Which rows come back, and whether these are as they were stored."""
        self.region[:] = bytes(len(self.region))
        done = self.run(self.tier.submit_load, True)
        good = NAMES if done.success else done.successful_keys or ()
        return [name in good and self.region[row * ROW:row * ROW + 2 * BLOCK] ==
                bytes(pattern(2 * BLOCK, row + 1)) for row, name in enumerate(NAMES)]

    def hits(self):
        context = fake_vllm.ReqContext("hits")
        found = [self.tier.lookup(name, context) for name in NAMES]
        self.tier.touch(NAMES, context)
        self.tier.on_request_finished(context)
        return found.count(HIT)


class Vllm(SharedCase):
    def engine(self, spec=None, **given):
        return Engine(self, spec, **self.place(given))

    def test_two_engines_of_a_host(self):
        first, second = self.engine(), self.engine()
        self.assertEqual(second.hits(), 0)
        self.assertTrue(first.store().success)
        self.assertEqual((second.hits(), second.load()), (ROWS, [True] * ROWS))
        first.tier.shutdown()
        self.assertEqual(second.hits(), ROWS)

    def test_data_parallel_of_two_processes(self):
        self.assertTrue(self.engine().store().success)
        said = self.script(f"""
import sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import unittest, test_package_shared as shared
case = unittest.TestCase()
spec = shared.fake_vllm.spec(block_bytes=shared.BLOCK)
spec.config.parallel.data_parallel_index, spec.config.engine_id = 1, "another"
engine = shared.Engine(case, spec, connect={self.lends.socket!r}, revision="1")
print("found", engine.hits(), sum(engine.load()))
engine.tier.shutdown()
""")
        self.assertIn(f"found {ROWS} {ROWS}", said)

    def parallel(self, size, blocks=2, **facts):
        """A configuration of so many tensor ranks, whose rows have the same bytes."""
        whole = facts.get("replicated_layout", False)
        spec = fake_vllm.spec(block_bytes=BLOCK if whole else BLOCK // size, world_size=size,
                              blocks_per_chunk=blocks)
        for name, value in facts.items():
            setattr(spec.config.parallel if name in vars(spec.config.parallel) else spec.config,
                    name, value)
        spec.replicated_layout = whole
        return spec

    def test_ranks_are_of_the_key_where_bytes_depend_on_them(self):
        for facts, one in (({"replicated_layout": True}, True),
                           ({"is_parallelism_agnostic": True, "canonical_layout": True}, True),
                           ({"is_parallelism_agnostic": True, "kv_cache_layout": "BHLNC",
                             "blocks": 1}, True),
                           ({"is_parallelism_agnostic": True, "kv_cache_layout": "BHLNC"}, False),
                           ({"is_parallelism_agnostic": True, "kv_cache_layout": "BHLNC",
                             "blocks": 1, "pp_size": 2}, False),
                           ({"is_parallelism_agnostic": True}, False),
                           ({"canonical_layout": True}, False), ({}, False)):
            alone = {name: value for name, value in facts.items()
                     if name not in ("replicated_layout", "pp_size")}
            with self.subTest(**facts):
                salt = repr(facts)
                writer = self.engine(self.parallel(2, **facts), salt=salt)
                readers = [self.engine(self.parallel(1, **alone), salt=salt),
                           self.engine(self.parallel(4, **facts), salt=salt)]
                writer.store()
                self.assertEqual(writer.hits(), ROWS)
                self.assertEqual([reader.hits() for reader in readers],
                                 [ROWS if one else 0] * 2)
                if one and "blocks" not in facts:
                    self.assertEqual([reader.load() for reader in readers], [[True] * ROWS] * 2)
                for engine in (writer, *readers):
                    engine.tier.shutdown()

    def test_a_server_that_is_killed(self):
        engine = self.engine(enable_kv_events=False)
        engine.store()
        self.lends.kill()
        engine.tier._stats_at = 0.0
        with self.assertLogs("vllm.kvterrace", "WARNING"):
            self.assertEqual((engine.hits(), engine.load()), (0, [False] * ROWS))
            engine.store()
        self.assertEqual(engine.tier.get_stats().gauges, {})
        self.back(engine.tier._store)
        self.assertTrue(engine.store().success)
        self.assertEqual((engine.hits(), engine.load()), (ROWS, [True] * ROWS))
        engine.tier._stats_at = 0.0
        self.assertGreater(engine.tier.get_stats().gauges["vllm:kvterrace_entries", ("dram",)],
                           ROWS - 1)

    def test_a_policy_that_declines_after_a_kill_is_named(self):
        self.lends = self.server(**{"store.policy": "utility"})
        engine, later = self.engine(recompute_seconds_per_token=1e-12), {"_ask_at": 0.0}
        self.lends.kill()
        with self.assertLogs("vllm.kvterrace", "WARNING") as logs:
            for _ in range(2):
                vars(engine.tier._said).update(later)
                engine.store()
        self.assertEqual(len(logs.output), 1)
        self.assertIn(f"no connection to {self.lends.socket}", logs.output[0])
        self.assertNotIn("policy", logs.output[0])
        self.lends.start()
        self.until(lambda: engine.tier._store.put(self.key("back"), b"data", recompute_seconds=1e3))
        with self.assertLogs("vllm.kvterrace", "WARNING") as logs:
            for _ in range(2):
                vars(engine.tier._said).update(later)
                engine.store()
                later = {}
        self.assertEqual(len(logs.output), 1)
        self.assertIn("the policy declines chunks", logs.output[0])

    def test_events_are_not_told(self):
        with self.assertLogs("vllm.kvterrace", "WARNING") as logs:
            engine = self.engine(fake_vllm.spec(block_bytes=BLOCK, events=True),
                                 enable_kv_events=True)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("tells no events", logs.output[0])
        engine.store()
        self.assertEqual(list(engine.tier.take_events()), [])

    def test_what_is_refused_by_name(self):
        socket = self.lends.socket
        for given, text in (
                ({"connect": socket, "settings": {"tier.dram.capacity": "1MiB"}},
                 "connect and settings"),
                ({"connect": socket, "config": "kvt.ini"}, "connect and config"),
                ({"connect": socket, "variant": "lossless"}, "connect and variant"),
                ({"connect": socket, "revision": None}, "shared (connect)"),
                ({"settings": {"store.catalog": "/tmp/{rank}.db"}}, "{rank}")):
            self.refused(kvterrace.ConfigError, text, self.engine, **given)
        self.refused(kvterrace.DeviceError, "/nowhere", self.engine, connect="/nowhere")

    def test_places_of_engines_apart(self):
        folder = self.folder()
        for index in range(2):
            spec = fake_vllm.spec(block_bytes=BLOCK)
            spec.config.parallel.data_parallel_index = index
            self.engine(spec, settings={
                "device.a.tier": "ssd", "device.a.backend": "file", "device.a.capacity": "16MiB",
                "device.a.path": f"{folder}/kv-{{dp}}-{{engine}}"})
        self.assertEqual(sorted(os.listdir(folder)), ["kv-0-engine", "kv-1-engine"])


def indices(*pages):
    return fake_sglang.Indices(index for page in pages
                               for index in range(page * PAGE, (page + 1) * PAGE))


def texts(count):
    return [f"{number:064x}" for number in range(count)]


class Sglang(SharedCase):
    def rank(self, pool, rank, size=2, given=None, **fields):
        made = sglang.KvterraceStorage(fake_sglang.Config(
            {"interface_v1": 1, "kvterrace": self.place(dict(given or {}))},
            **{"is_mla_model": True, "tp_rank": rank, "tp_size": size, **fields}), {})
        self.addCleanup(made.close)
        made.register_mem_pool_host(pool)
        return made

    def test_one_rank_writes_and_all_read(self):
        pools = [fake_sglang.HostPool("page_first") for _ in range(3)]
        ranks = [self.rank(pool, rank, 3) for rank, pool in enumerate(pools)]
        pools[0].data[:] = pattern(len(pools[0].data))
        for rank in ranks:  # those that do not write say that it is done
            self.assertEqual(rank.batch_set_v1(texts(4), indices(*range(4))), [True] * 4)
        self.assertEqual([rank.batch_exists(texts(6)) for rank in ranks], [4, 4, 4])
        for rank, pool in zip(ranks[1:], pools[1:]):
            self.assertEqual(rank.batch_get_v1(texts(5), indices(*range(5))),
                             [True] * 4 + [False])
            self.assertEqual([pool.get(page) for page in range(4)],
                             [pools[0].get(page) for page in range(4)])

    def test_ranks_with_bytes_of_their_own_stay_apart(self):
        pools = [fake_sglang.HostPool("page_first") for _ in range(2)]
        ranks = [self.rank(pool, rank, is_mla_model=False) for rank, pool in enumerate(pools)]
        for rank, pool in zip(ranks, pools):
            pool.data[:] = pattern(len(pool.data), ranks.index(rank) + 1)
            self.assertEqual(rank.batch_exists(texts(2)), 0)
            rank.batch_set_v1(texts(2), indices(0, 1))
        stored = [pool.get(0) for pool in pools]
        for rank in ranks:
            self.assertEqual(rank.batch_get_v1(texts(2), indices(4, 5)), [True] * 2)
        self.assertEqual([pool.get(4) for pool in pools], stored)

    def test_stores_apart_where_one_rank_writes_are_refused(self):
        pool, settings = fake_sglang.HostPool("page_first"), {"tier.dram.capacity": "16MiB"}
        folder = self.folder()
        for given in ({"settings": settings},
                      {"settings": {**settings, "store.catalog": f"{folder}/{{rank}}.db",
                                    "device.a.tier": "ssd", "device.a.backend": "file",
                                    "device.a.capacity": "16MiB",
                                    "device.a.path": f"{folder}/{{rank}}"}}):
            error = self.refused(kvterrace.ConfigError, "`kvterrace serve`", self.rank, pool, 0,
                                 given=given)
            self.assertIn("connect", str(error))
        self.rank(pool, 0, 1, given={"settings": settings})
        self.rank(pool, 0, given={"settings": {  # which the others find by way of other hosts
            **settings, "tier.remote.namespace": "n", "tier.remote.publish": "all",
            "remote.a.backend": "memory", "remote.a.address": self.id()}})
        self.rank(pool, 0, given={"settings": settings}, is_mla_model=False)

    def test_a_server_that_is_killed(self):
        pool = fake_sglang.HostPool("page_first")
        rank = self.rank(pool, 0)
        rank.batch_set_v1(texts(2), indices(0, 1))
        self.lends.kill()
        self.assertEqual(rank.batch_exists(texts(2)), 0)
        self.assertEqual(rank.batch_exists_v2(texts(2)).kv_hit_pages, 0)
        self.assertEqual(rank.batch_get_v1(texts(2), indices(0, 1)), [False] * 2)
        self.assertEqual(rank.batch_set_v1(texts(2), indices(0, 1)), [False] * 2)
        with self.assertLogs("kvterrace.sglang", "WARNING"):
            rank.clear()
        self.back(rank._store)
        self.assertEqual(rank.batch_set_v1(texts(2), indices(0, 1)), [True] * 2)
        self.assertEqual(rank.batch_get_v1(texts(2), indices(0, 1)), [True] * 2)
        rank.clear()
        self.assertEqual(rank.batch_exists(texts(2)), 0)

    def test_what_is_refused_by_name(self):
        pool = fake_sglang.HostPool("page_first")
        for given, text in (({"connect": self.lends.socket, "settings": {}}, "connect and settin"),
                            ({"connect": self.lends.socket, "config": "a"}, "connect and config"),
                            ({"config": "/tmp/{engine}.ini"}, "{engine}")):
            self.refused(kvterrace.ConfigError, text, self.rank, pool, 0, given=given)

    def test_places_of_ranks_apart(self):
        folder, pool = self.folder(), fake_sglang.HostPool("page_first")
        for index in range(2):
            self.rank(pool, index, is_mla_model=False, dp_rank=1, given={"settings": {
                "device.a.tier": "ssd", "device.a.backend": "file", "device.a.capacity": "16MiB",
                "device.a.path": f"{folder}/{{rank}}+{{dp}}"}})
        self.assertEqual(sorted(os.listdir(folder)), ["tp0-pp0-dp1+1", "tp1-pp0-dp1+1"])


class Lmcache(SharedCase):
    def level(self, **given):
        made = lmcache.KvterraceL2Adapter(self.place(given))
        self.addCleanup(made.close)
        return made

    def wait(self, descriptor):
        self.assertTrue(select.select([descriptor], [], [], 30)[0])
        os.eventfd_read(descriptor)  # as LMCache's controllers do

    def keys(self, count=4):
        return [ObjectKey(bytes([number]) * 32) for number in range(count)]

    def store(self, level):
        task = level.submit_store_task(self.keys(), [
            MemoryObj(pattern(BYTES, number + 1), (SHAPE, BF16)) for number in range(4)])
        self.wait(level.get_store_event_fd())
        return level.pop_completed_store_tasks()[task]

    def load(self, level, count=5):
        found = [MemoryObj(bytearray(BYTES), (SHAPE, BF16)) for _ in range(count)]
        task = level.submit_load_task(self.keys(count), found)
        self.wait(level.get_load_event_fd())
        bits = level.query_load_result(task).bits
        return [bit and one.data == pattern(BYTES, number + 1)
                for number, (bit, one) in enumerate(zip(bits, found))]

    def lookup(self, level):
        task = level.submit_lookup_and_lock_task(self.keys(5), {})
        self.wait(level.get_lookup_and_lock_event_fd())
        return level.query_lookup_and_lock_result(task).bits

    def test_two_processes_of_lmcache(self):
        first, second = self.level(head_dim=32), self.level(head_dim=32)
        self.assertEqual(self.store(first), 4 * BYTES)
        there = [True] * 4 + [False]
        self.assertEqual((self.lookup(second), self.load(second)), (there, there))
        first.delete(self.keys(1))  # the other one has it locked
        self.assertEqual(self.load(first), there)
        second.submit_unlock(self.keys())
        first.delete(self.keys(1))
        self.assertEqual(self.load(second), [False, *there[1:]])
        self.assertEqual([name for name, _ in first.told + second.told if name != "accessed"], [])
        self.assertEqual((first.get_usage(), first.report_status()["is_healthy"]), (0, True))

    def test_a_server_that_is_killed(self):
        level = self.level()
        self.store(level)
        self.lookup(level)
        self.lends.kill()
        self.assertEqual((self.lookup(level), self.load(level)), ([False] * 5, [False] * 5))
        self.assertEqual(self.store(level), 0)
        level.submit_unlock(self.keys())
        level.delete(self.keys())
        said = level.report_status()
        self.assertEqual((said["is_healthy"], "no connection" in said["health"][0]), (False, True))
        self.back(level._store)
        self.assertEqual(self.store(level), 4 * BYTES)
        self.assertEqual(self.load(level, 4), [True] * 4)
        self.assertTrue(level.report_status()["is_healthy"])

    def test_bytes(self):
        first, second = (lmcache.KvterraceConnector(connect=self.lends.socket, revision="1")
                         for _ in range(2))
        names, data = [key.text() for key in self.keys()], [bytearray(pattern(900, n))
                                                            for n in range(4)]

        def run(connector, submit, *given):
            number = submit(*given)
            self.assertTrue(select.select([connector.event_fd()], [], [], 30)[0])
            done, = connector.drain_completions()
            self.assertEqual(done[0], number)
            return done[3]

        self.assertEqual(run(first, first.submit_batch_set, names, data), [True] * 4)
        found = [bytearray(900) for _ in names]
        self.assertEqual(run(second, second.submit_batch_exists, names), [True] * 4)
        self.assertEqual(run(second, second.submit_batch_get, names, found), [True] * 4)
        self.assertEqual(found, data)
        self.lends.kill()
        self.assertEqual(run(second, second.submit_batch_get, names, found), [False] * 4)
        self.assertEqual(run(second, second.submit_batch_set, names, data), [False] * 4)
        self.assertEqual(run(second, second.submit_batch_delete, names), [False] * 4)
        first.close()
        second.close()
        second.close()

    def test_what_is_refused_by_name(self):
        for given, text in (({"connect": self.lends.socket, "settings": {}}, "connect and settin"),
                            ({"connect": self.lends.socket, "revision": None}, "(connect)"),
                            ({"connect": self.lends.socket, "max_capacity_gb": 1},
                             "max_capacity_gb"),
                            ({"settings": {"store.catalog": "/tmp/{dp}"}}, "{dp}")):
            self.refused(kvterrace.ConfigError, text, self.level, **given)
        self.refused(kvterrace.ConfigError, "connect and config", lmcache.KvterraceConnector,
                     connect=self.lends.socket, config="a", revision="1")


if __name__ == "__main__":
    unittest.main()
