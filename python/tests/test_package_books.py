#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Books that adapters, queues, stores and metrics keep of events, in every order in which these can
come: when all has ended nothing is left in them, and the sums are those of what was done.

    book                                        kept of                           here
    vllm.KvterraceTier      _jobs, _ended       jobs, until vLLM asks             Tier
                            _Request            a request: misses, ends, hosts    Tier
                            Told, _media        events that vLLM was told         Tier
                            _counts             metrics since the last question   Tier
    vllm_cache              chunks, _parents, _Counted, BlockCache's pins         Cache
    lmcache.KvterraceL2Adapter   Told           what listeners were told, usage   Level
                            _Stream.done, _found   results, until LMCache asks    Level
                            _Locks              leases of lookups                 Locks
    sglang.KvterraceStorage Said, _every        warnings; spaces, for clear()     Pages
    _hosts.Hosts            Asked, _fresh, _sent   questions to other hosts       Others
    _tasks.Tasks            _open, _ended, _waiting   batches                     Batches
    Queue (asyncio)         _pending, _outbox, _room  coroutines that wait        Waiters
    Store.stats, metrics, events, remote_stats, Queue.stats                       Sums
"""

import asyncio
import gc
import itertools
import mmap
import re
import tempfile
import threading
import unittest

from package_case import PackageCase, kvterrace, pattern
import fake_lmcache
import fake_sglang
import fake_vllm

_FOLDER = tempfile.TemporaryDirectory(prefix="kvt-test-")
_OTHER = tempfile.TemporaryDirectory(prefix="kvt-test-")
fake_lmcache.install(_FOLDER.name)
fake_sglang.install(_OTHER.name)
fake_vllm.install()

from kvterrace import lmcache, sglang, vllm  # noqa: E402  (behind the classes)
from kvterrace._hosts import Asked, Hosts  # noqa: E402
from kvterrace._kvt import ffi  # noqa: E402
from kvterrace._memory import memory_of  # noqa: E402
from kvterrace._tasks import EXISTS, GET, PUT, Places, Tasks, make_like  # noqa: E402

BYTES = 4096
DRAM = {"tier.dram.capacity": "32MiB", "store.policy": "lru"}


def orders(events, allowed=lambda order: True):
    """Every order of the events that the engine's contract allows."""
    return [order for order in dict.fromkeys(itertools.permutations(events)) if allowed(order)]


def before(order, first, then):
    """Whether each `first` is before every `then`."""
    return max((at for at, one in enumerate(order) if one == first), default=-1) < \
        min((at for at, one in enumerate(order) if one == then), default=len(order))


class Case(PackageCase):
    def each(self, found, run):
        self.assertGreater(len(found), 1)
        for number, order in enumerate(found):
            with self.subTest(order=" ".join(order)):
                run(number, order)


class Tier(Case):
    """Of vLLM: store and load are submitted before the request has finished, as its interface says;
    jobs end, are asked for and are told of in any order with everything else."""

    BLOCK = 3 * 2 * 2 * 32 * 32 * 2

    def setUp(self):
        super().setUp()
        row = (2 * self.BLOCK + 4095) & ~4095
        region = mmap.mmap(-1, 4 * row)
        self.tier = vllm.KvterraceTier(
            fake_vllm.spec(block_bytes=self.BLOCK, events=True),
            memoryview(region).cast("B", (4, row)), "kvt", settings=DRAM, enable_kv_events=True)
        self.addCleanup(self.tier.shutdown)
        self.jobs, self.told, self.counted = 0, set(), dict.fromkeys(vllm._COUNTERS, 0)

    def submit(self, kind, keys, context):
        self.jobs += 1
        positions = range(64, 64 * len(keys) + 1, 64)
        context.positions.update(zip(keys, positions))
        getattr(self.tier, kind)(fake_vllm.TransferJob(self.jobs, keys, range(len(keys)),
                                                       kind == "submit_load", context))

    def tell(self):
        """vLLM's view of the events: what is added is new to it, what goes was there."""
        for event in self.tier.take_events():
            for key in event.keys:
                self.assertEqual(key in self.told, event.removed)
                (self.told.discard if event.removed else self.told.add)(key)

    def count(self):
        self.tier._stats_at = 0.0
        for (name, _), value in self.tier.get_stats().counters.items():
            self.counted[name.removeprefix("vllm:kvterrace_")] += value

    def run_order(self, number, order):
        tier, context = self.tier, fake_vllm.ReqContext(f"r{number}")
        keys = [(4 * number + index).to_bytes(36, "big") for index in range(2)]
        for event in order:
            if event == "store":
                self.submit("submit_store", keys[:1], context)
            elif event == "load":  # of one that is not there
                self.submit("submit_load", keys[1:], context)
            elif event == "end":
                tier._tasks.wait()
            elif event == "ask":
                self.results += tier.get_finished_jobs()
            elif event == "finish":
                tier.on_request_finished(context)
            elif event == "tell":
                self.tell()
            elif event == "evict":
                tier._store.clear(space=tier._space)
            elif event == "count":
                self.count()
        del context

    def check(self, runs):
        self.tier.drain_jobs()
        self.results += self.tier.get_finished_jobs()
        self.tell()
        self.count()
        self.assertEqual((self.tier._jobs, self.tier._ended), (0, []))
        self.assertFalse(self.tier.has_pending_work())
        self.assertEqual(sorted(one.job_id for one in self.results), list(range(1, self.jobs + 1)))
        self.assertEqual(self.told, {key for key in self.told
                                     if self.tier._store.exists(self.tier._key(key))})
        self.assertEqual(len(self.told), self.tier._store.stats()["tiers"]["dram"]["entries"])
        self.assertEqual(set(self.tier._media), self.told)
        self.assertEqual(self.counted["load_misses"], runs)
        gc.collect()
        left = [one for one in gc.get_objects() if isinstance(one, (vllm._Request, Asked))]
        self.assertEqual(left, [])

    def test_every_order(self):
        self.results = []
        events = ("store", "load", "end", "ask", "finish", "tell", "evict")
        found = orders(events, lambda order: before(order, "store", "finish") and
                       before(order, "load", "finish"))
        self.each(found, self.run_order)
        self.check(len(found))

    def test_a_request_that_ends_first_leaves_nothing(self):
        """Results of its jobs come later, and a request of the same name begins meanwhile."""
        self.results, (key,) = [], [bytes(36)]
        for number in range(200):
            old, new = fake_vllm.ReqContext("r"), fake_vllm.ReqContext("r")
            self.submit("submit_load", [key], old)
            self.tier.on_request_finished(old)
            self.tier.on_new_request(new)
            self.tier.drain_jobs()
            self.assertEqual(self.tier._request(new).failed, set())  # nothing of the old one
            self.results += self.tier.get_finished_jobs()
            self.tier.on_request_finished(new)
        del old, new
        self.check(200)


class Cache(Case):
    """vLLM's own cache with our decisions: a request stores a chunk, whose transfer ends well or
    not, is read, finishes; the cache is cleared at any time, after which the chunk is not heard of
    again, as vLLM's manager has it."""

    def test_every_order(self):
        import fake_vllm_cache
        self.addCleanup(fake_vllm_cache.install())
        from kvterrace import vllm_cache

        def run(number, order):
            policy = vllm_cache.KvterracePolicy(4)
            self.addCleanup(policy._blocks.close)
            key = fake_vllm_cache.make_offload_key(number.to_bytes(4, "big"), 0)
            chunk, context = fake_vllm_cache.ChunkStatus(), fake_vllm_cache.ReqContext({key: 16})
            for event in order:
                here = policy.get(key) is not None
                if event == "store":  # one call of vLLM's manager
                    policy.on_store_miss([key], context)
                    policy.insert(key, chunk)
                elif event == "written" and here and not chunk.is_ready:
                    chunk.ref_cnt = 0
                    policy.mark_evictable(key)
                elif event == "failed" and here and not chunk.is_ready:
                    policy.remove(key)
                elif event == "read" and here and chunk.is_ready:
                    policy.mark_non_evictable(key)
                    policy.mark_evictable(key)
                elif event == "finish":
                    policy.on_request_finished(((key,),), set(), {key}, context)
                elif event == "clear":
                    policy.clear()
            if policy.get(key) is not None and not chunk.is_ready:
                chunk.ref_cnt = 0
                policy.mark_evictable(key)
            policy.on_request_finished(((key,),), set(), set(), context)
            self.assertEqual(len(policy._blocks), len(policy.chunks))
            self.assertEqual(policy._parents, {})
            left = list(policy.chunks.items())
            self.assertEqual(policy.evict(len(left), set()), left)
            self.assertEqual((policy.chunks, len(policy._blocks)), ({}, 0))
            policy._blocks.close()

        self.each(orders(("store", "written", "failed", "read", "finish", "clear"),
                         lambda order: before(order, "store", "finish")), run)


class Pins(Case):
    """Pins of blocks, also of two keys with one number, of which the policy knows the first."""

    def test_every_order(self):
        import kvterrace.policy

        class Blocks(kvterrace.policy.BlockCache):
            _handle = staticmethod(lambda key: 7)

        def run(_, order):
            blocks, pins = Blocks(4), {}
            for key in "ab":
                blocks.insert(key)
                pins[key] = 0
            for event in order:
                what, key = event.split()[:2]
                if what == "pin":
                    blocks.pin(key)
                    pins[key] += 1
                elif what == "unpin":
                    blocks.unpin(key)
                    pins[key] = max(pins[key] - 1, 0)
            held = {key for key, count in pins.items() if count}
            if held:  # one more than may go
                self.assertIsNone(blocks.evict(3 - len(held), ()))
            self.assertEqual(set(blocks.evict(2 - len(held), ())), set(pins) - held)
            for key in held:
                while pins[key]:
                    blocks.unpin(key)
                    pins[key] -= 1
            self.assertEqual(set(blocks.evict(len(held), ())), held)
            self.assertEqual(len(blocks), 0)
            blocks.close()

        self.each(orders(("pin a", "pin b", "pin b again", "unpin a", "unpin b")), run)


class Level(Case):
    """LMCache's second level: a store is submitted, ends, and is asked for; meanwhile the store
    evicts, LMCache deletes and asks how much there is."""

    def test_every_order(self):
        adapter = lmcache.KvterraceL2Adapter({"settings": DRAM})
        self.addCleanup(adapter.close)
        data = pattern(BYTES)

        def run(number, order):
            key = fake_lmcache.ObjectKey(number.to_bytes(16, "big"))
            ours = adapter._keys.join([key])

            def submit():
                adapter.submit_store_task([key], [fake_lmcache.MemoryObj(
                    data, ((BYTES,), fake_lmcache.UINT8))])

            for event in order:
                if event in ("store", "again"):
                    submit()
                elif event == "end":
                    adapter._stores.tasks.wait()
                elif event == "pop":
                    adapter.pop_completed_store_tasks()
                elif event == "evict":
                    adapter._store.clear(space=adapter._keys.space("model", ""))
                elif event == "delete":
                    adapter.delete([key])
                elif event == "usage":
                    adapter.get_usage()
            adapter._stores.tasks.wait()
            adapter.pop_completed_store_tasks()
            self.assertEqual(adapter.get_usage(), BYTES * adapter._store.exists(ours))
            known = set()
            for kind, keys in adapter.told:
                for one in keys:
                    self.assertEqual(one.chunk_hash in known, kind == "deleted")
                    (known.discard if kind == "deleted" else known.add)(one.chunk_hash)
            self.assertEqual(len(known), len(adapter._told))
            adapter.told.clear()
            adapter._store.clear(space=adapter._keys.space("model", ""))
            self.assertEqual(adapter.get_usage(), 0)
            adapter.told.clear()
            self.assertEqual((len(adapter._told), adapter._told._new, adapter._told._fresh,
                              adapter._stores.done), (0, {}, [], {}))

        self.each(orders(("store", "end", "pop", "evict", "delete", "usage")), run)
        self.each(orders(("store", "end", "pop", "again", "evict", "usage")), run)

    def test_two_threads(self):
        """Stores are asked for by one thread of LMCache's and deletions by another: a key is never
        told as deleted before it was told as stored."""
        adapter = lmcache.KvterraceL2Adapter({"settings": DRAM})
        self.addCleanup(adapter.close)
        keys = [fake_lmcache.ObjectKey(number.to_bytes(16, "big")) for number in range(8)]
        objects = [fake_lmcache.MemoryObj(pattern(BYTES), ((BYTES,), fake_lmcache.UINT8))
                   for _ in keys]
        over = threading.Event()

        def delete():
            while not over.is_set():
                adapter.delete(keys)

        other = threading.Thread(target=delete)
        other.start()
        for _ in range(100):
            adapter.submit_store_task(keys, objects)
            adapter._stores.tasks.wait()
            adapter.pop_completed_store_tasks()
        over.set()
        other.join()
        adapter.delete(keys)
        known = set()
        for kind, told in adapter.told:
            for one in told:
                self.assertEqual(one.chunk_hash in known, kind == "deleted")
                (known.discard if kind == "deleted" else known.add)(one.chunk_hash)
        self.assertEqual((known, adapter.get_usage(), len(adapter._told)), (set(), 0, 0))


class Locks(Case):
    """Leases of lookups: taken, twice in one lookup too, ended as often, less or more often, or by
    their instant."""

    def test_every_order(self):
        adapter = lmcache.KvterraceL2Adapter({"settings": DRAM})
        self.addCleanup(adapter.close)
        key = fake_lmcache.ObjectKey(bytes(16))
        adapter.submit_store_task([key], [fake_lmcache.MemoryObj(
            pattern(BYTES), ((BYTES,), fake_lmcache.UINT8))])
        adapter._stores.tasks.wait()
        adapter.pop_completed_store_tasks()
        adapter._store.flush()
        locks = adapter._locks

        def run(_, order):
            held = 0
            for event in order:
                if event.startswith("take"):
                    count = 2 if event == "take twice" else 1
                    task = adapter.submit_lookup_and_lock_task([key] * count, {})
                    self.assertEqual(adapter.query_lookup_and_lock_result(task).bits,
                                     [True] * count)
                    held += count
                elif event.startswith("end"):
                    adapter.submit_unlock([key])
                    held = max(held - 1, 0)
                elif event == "pass":
                    with locks._lock:
                        locks._forget(1 << 63)
                    held = 0
                self.assertEqual(sum(map(len, locks._held.values())), held)
            with locks._lock:
                locks._forget(1 << 63)
            self.assertEqual((locks._held, locks._until, adapter._found), ({}, [], {}))

        self.each(orders(("take", "take twice", "end", "end 2", "end 3", "pass")), run)


class Pages(Case):
    """SGLang's storage: pools come, come anew with another layout, are written, and cleared."""

    def storage(self, direct=1):
        made = sglang.KvterraceStorage(fake_sglang.Config(
            {"interface_v1": direct, "kvterrace": {"settings": DRAM}}), {})
        self.addCleanup(made.close)
        return made

    def test_every_order(self):
        def run(_, order):
            storage = self.storage()
            for event in order:
                if event in ("page_first", "page_first_direct"):
                    storage.register_mem_pool_host(fake_sglang.HostPool(event))
                elif event.startswith("write"):
                    storage.batch_set_v1([f"{len(event):064x}"],
                                         fake_sglang.Indices(range(16)))
                elif event == "clear":
                    storage.clear()
            storage.clear()
            self.assertEqual(storage._store.stats()["tiers"]["dram"]["entries"], 0)
            storage.close()

        with self.assertLogs("kvterrace.sglang", "WARNING"):  # of writes before there is a pool
            self.each(orders(("page_first", "write", "page_first_direct", "write it", "clear"),
                             lambda order: before(order, "page_first", "page_first_direct") and
                             before(order, "write", "write it")), run)

    def test_a_fault_that_comes_again_is_said_and_kept_once(self):
        storage = self.storage(direct=0)
        with self.assertLogs("kvterrace.sglang", "WARNING") as logs:
            for _ in range(50):
                page = fake_sglang.Tensor(bytearray(64), is_cpu=False)
                self.assertFalse(storage.set("0" * 64, page))
        self.assertEqual((len(logs.output), len(storage._said._said)), (1, 1))
        del logs
        gc.collect()
        left = [one for one in gc.get_objects() if isinstance(one, fake_sglang.Tensor)]
        self.assertLessEqual(len(left), 1)  # `page`


class Others(Case):
    """Questions to other hosts: asked, sent, answered, forgotten."""

    def test_every_order(self):
        class Store:
            """Answers when it is let go."""

            def __init__(self):
                self.go = threading.Semaphore(0)

            def match(self, keys, hosts, deadline):
                self.go.acquire()
                return 1

        def run(_, order):
            store = Store()
            hosts, asked = Hosts(store), Asked()
            for event in order:
                if event.startswith("ask"):
                    hosts.ask(asked, event)
                elif event.startswith("send"):
                    hosts.send()
                elif event == "answer":
                    store.go.release()
                elif event == "forget":
                    hosts.forget(asked)
            hosts.send()
            store.go.release(9)
            until = threading.Event()
            while hosts._sent or None in asked.known.values():
                until.wait(0.0005)
            hosts.close()
            self.assertEqual((hosts._fresh, hosts._sent, asked.fresh), ([], [], []))
            self.assertEqual(set(asked.known), {"ask 1", "ask 2"})

        self.each(orders(("ask 1", "ask 2", "send 1", "send 2", "answer", "forget")), run)


class Batches(Case):
    """Tasks of a queue with room for two keys: submitted, drained and waited for in any order, and
    closed at any point, after which none is taken."""

    def test_every_order(self):
        store, layout, like = self.store(), kvterrace.Layout.opaque(BYTES), make_like()
        memory = [memory_of(pattern(BYTES), writable=True) for _ in range(2)]
        source, target = (int(ffi.cast("uintptr_t", one.address)) for one in memory)

        def run(number, order):
            tasks, ended, closed = Tasks(store, depth=2), [], False
            keys = [self.key(f"{number}.{index}") for index in range(3)]
            for event in order:
                if event in ("put", "get", "exists"):
                    kind = {"put": PUT, "get": GET, "exists": EXISTS}[event]
                    places = Places([layout], addresses=[source if kind == PUT else target] * 3)
                    task = tasks.make(kind, b"".join(keys), 3, places, like=like, note=event)
                    if closed:
                        self.refused(kvterrace.StateError, "closed", tasks.submit, task)
                    else:
                        tasks.submit(task)
                elif event == "drain":
                    ended += tasks.drain()
                elif event == "wait":
                    self.assertEqual(tasks.wait(), True)
                elif event == "close":
                    tasks.close()
                    closed = True
            if not closed:
                tasks.wait()
                ended += tasks.drain()
                self.assertEqual(sorted(one.note for one in ended), ["exists", "get", "put"])
            self.assertEqual((tasks._open, tasks._ended, list(tasks._waiting)), ({}, [], []))
            for task in ended:
                task.free()
            tasks.close()

        self.each(orders(("put", "get", "exists", "drain", "wait")), run)
        self.each(orders(("put", "get", "drain", "wait", "close")), run)


class Waiters(Case):
    """Coroutines of a queue with room for one: begun, cancelled, and the queue closed, at any
    point."""

    def test_every_order(self):
        store = self.store()

        async def run(order):
            queue = kvterrace._queue.Queue(store, depth=1)
            waiting = {}
            for event in order:
                if event.startswith("begin"):
                    waiting[event[-1]] = asyncio.ensure_future(
                        queue.put(self.key(event), bytes(BYTES)))
                elif event.startswith("cancel"):
                    if event[-1] in waiting:
                        waiting[event[-1]].cancel()
                elif event == "turn":
                    await asyncio.sleep(0)
                elif event == "close":
                    queue.close()
            said = await asyncio.wait_for(asyncio.gather(*waiting.values(),
                                                         return_exceptions=True), 30)
            for one in said:
                self.assertTrue(isinstance(one, (kvterrace.Outcome, asyncio.CancelledError,
                                                 kvterrace.StateError)), one)
            self.assertEqual((queue._pending, queue._outbox, list(queue._room)), ({}, [], []))
            if "close" not in order:
                stats = queue.stats()
                self.assertEqual(stats["requests"], stats["completed"])
                self.assertEqual((stats["waiting"], stats["begun"], stats["undrained"]), (0, 0, 0))
            queue.close()

        self.each(orders(("begin 1", "begin 2", "cancel 1", "turn", "close")),
                  lambda _, order: asyncio.run(run(order)))
        self.each(orders(("begin 1", "begin 2", "cancel 1", "cancel 2", "turn")),
                  lambda _, order: asyncio.run(run(order)))


class Sums(Case):
    """A store's figures against a model of what was done: events, statistics, metrics, and what
    other hosts were given."""

    def figures(self, store):
        found = {}
        for line in store.metrics().splitlines():
            got = re.fullmatch(r"(\w+)(\{[^}]*\})? ([-+.e0-9]+)", line)
            if got:
                found.setdefault(got[1], 0.0)
                found[got[1]] += float(got[3])
        return found

    def test_every_order(self):
        store = self.store()
        reader, done = store.events(), dict.fromkeys(("puts", "existing", "hits", "misses"), 0)

        def run(number, order):
            keys = {name: self.key(f"{order} {name}") for name in "ab"}
            here, there = set(), set()
            for event in order:
                what, name = event.split()
                key = keys.get(name)
                if what == "put":
                    outcome = store.put(key, bytes(BYTES))
                    self.assertEqual(outcome is kvterrace.Outcome.EXISTS, name in here)
                    done["puts"] += 1
                    done["existing"] += name in here
                    here.add(name)
                elif what == "get":
                    self.assertEqual(store.get_into(key, bytearray(BYTES)), name in here)
                    done["hits" if name in here else "misses"] += 1
                elif what == "delete":
                    self.assertEqual(store.delete(key), name in here)
                    here.discard(name)
                elif what == "clear":
                    self.assertEqual(store.clear(space=self.space), len(here))
                    here.clear()
                elif what == "flush":
                    store.flush()
                elif what == "told":
                    there = self.told(reader, there, keys)
            store.flush()
            self.assertEqual(self.told(reader, there, keys), here)
            self.compare(store, done, len(here))
            store.clear(space=self.space)
            self.assertEqual(self.told(reader, here, keys), set())
            self.compare(store, done, 0)

        self.each(orders(("put a", "put a", "get a", "delete a", "flush -", "told -")), run)
        self.each(orders(("put a", "put b", "get b", "clear -", "put a", "told -")), run)

    def compare(self, store, done, entries):
        stats, figures = store.stats(), self.figures(store)
        dram = stats["tiers"]["dram"]
        self.assertEqual((stats["puts"], stats["puts_existing"], stats["gets"], stats["misses"],
                          dram["hits"], dram["entries"], stats["policy"]["entries"]),
                         (done["puts"], done["existing"], done["hits"] + done["misses"],
                          done["misses"], done["hits"], entries, entries))
        self.assertEqual((stats["puts_waiting"], stats["put_staging_bytes"],
                          stats["staging_bytes"], stats["policy"]["moves_in_flight"]), (0,) * 4)
        self.assertEqual(dram["used_bytes"] == 0, entries == 0)
        for name, value in (("misses_total", stats["misses"]), ("entries", entries),
                            ("used_bytes", dram["used_bytes"]), ("leases", 0),
                            ("put_refusals_total", stats["puts_refused"])):
            self.assertEqual(figures[f"kvterrace_{name}"], value, name)

    def told(self, reader, there, keys):
        by_key, there = {bytes(key): name for name, key in keys.items()}, set(there)
        for event in reader.drain():
            if event["kind"] != "moved":
                name = by_key[bytes(event["key"])]
                self.assertEqual(name in there, event["kind"] == "removed")
                (there.discard if event["kind"] == "removed" else there.add)(name)
        return there

    def test_other_hosts(self):
        """What was offered to other hosts was published, was there, or is said to be dropped; each
        get that asked them is a hit or a miss."""
        shared = {"tier.remote.namespace": "books", "tier.remote.publish": "all",
                  "remote.a.backend": "memory", "remote.a.address": "test_other_hosts"}
        first, second = (kvterrace.Store(settings={**DRAM, **shared}) for _ in range(2))
        self.addCleanup(first.close)
        self.addCleanup(second.close)
        done = dict.fromkeys(("puts", "hits", "hits here"), 0)

        def run(_, order):
            key = self.key(f"remote {order}")
            for event in order:
                what, _, who = event.partition(" ")
                store = {"1": first, "2": second}.get(who)
                if what == "put":
                    done["puts"] += store.put(key, bytes(BYTES), recompute_seconds=1.0) is \
                        kvterrace.Outcome.STORED
                    store.flush()
                    self.assertTrue(store.remote_flush(deadline=30))
                elif what == "get":
                    before_it = store.remote_stats()
                    got = store.get_into(key, bytearray(BYTES), deadline=30)
                    after = store.remote_stats()
                    gained = {name: after[name] - before_it[name] for name in
                              ("hits", "misses", "known_misses", "not_worth")}
                    self.assertLessEqual(sum(gained.values()), 1)
                    self.assertTrue(got or not gained["hits"])
                    self.assertFalse(got and gained["misses"])
                    done["hits" if gained["hits"] else "hits here"] += got
                elif what == "delete":
                    store.delete(key)
                    self.assertTrue(store.remote_flush(deadline=30))

        self.each(orders(("put 1", "put 2", "get 2", "delete 1", "get 1")), run)
        said = [store.remote_stats() for store in (first, second)]
        total = {name: sum(one[name] for one in said) for name in said[0]
                 if isinstance(said[0][name], int)}
        ended = total["published"] + total["deduplicated"] + total["declined"] + \
            total["dropped_queue"] + total["dropped_node"]
        self.assertGreaterEqual(ended, done["puts"])  # each put is offered once,
        self.assertLessEqual(ended, done["puts"] + done["hits here"])  # and a hit at most once
        self.assertEqual((total["waiting"], total["owed_deletes"]), (0, 0))
        self.assertEqual(total["hits"], done["hits"])
        self.assertEqual(total["published_bytes"] > 0, total["published"] > 0)


if __name__ == "__main__":
    unittest.main()
