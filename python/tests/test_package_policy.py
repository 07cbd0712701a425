#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvterrace.policy: plans that are obeyed, a cache of blocks, vLLM's cache by it; bad input."""

import importlib
import json
import os
import random
import subprocess
import sys
import threading
import unittest

from package_case import PackageCase, kvterrace

from kvterrace import _bench_policy
from kvterrace.policy import BlockCache, Move, Option, Policy, Tier, names

WRONG = kvterrace.ArgumentError
SIZE = 64


def options(recompute=0.05):
    return [Option(load_seconds=recompute),
            Option(bytes={"dram": SIZE}, load_seconds=0.0001),
            Option(bytes={"ssd": SIZE}, load_seconds=0.01)]


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


class Policies(PackageCase):
    def policy(self, *arguments, **keywords):
        policy = Policy(*arguments, **keywords)
        self.addCleanup(policy.close)
        return policy

    def loop(self, period, chained, prompts=4, chunks=8, room=16, rounds=6):
        """Prompts of chunks that come round and round over room for some: of each round the share
        of chunks that were found, as the leading ones of their prompt."""
        size, now, shares, stored = 8 << 20, 1000.0, [], set()
        policy = self.policy(tiers={"ssd": Tier(room * size, 1.5e9, 1e9, 1e-4)})
        offer = [Option(load_seconds=0.256), Option(bytes={"ssd": size}, load_seconds=0.0057)]
        for _ in range(rounds):
            found = 0
            for prompt in range(prompts):
                whole, now = True, now + period / prompts
                for chunk in range(chunks):
                    handle = 1 + prompt * chunks + chunk
                    whole = whole and handle in stored
                    found += whole
                    if handle in stored:
                        policy.access(now, handle)
                        continue
                    parent = handle - 1 if chained and chunk else 0
                    for move in policy.admit(now, handle, offer, parent=parent, tokens=256,
                                             recompute_seconds=0.256)[1]:
                        (stored.add if move.target else stored.discard)(move.handle)
                        policy.commit(move)
            shares.append(found / (prompts * chunks))
        return shares[1:]

    def test_a_loop_keeps_its_share_at_any_speed(self):
        """From its second round on, before the engine knows how soon anything comes back."""
        for period in (0.5, 8, 12, 20, 60, 300, 1200):
            for chained in (False, True):
                with self.subTest(period=period, chained=chained):
                    self.assertGreaterEqual(min(self.loop(period, chained)), 0.45)
        self.assertGreaterEqual(min(self.loop(40, True, prompts=12)), 0.15)

    def test_what_never_comes_back_makes_way(self):
        """Without a use seen the room turns over all the same."""
        size, kept, stored = 8 << 20, set(), set()
        policy = self.policy(tiers={"ssd": Tier(16 * size, 1.5e9, 1e9, 1e-4)})
        offer = [Option(load_seconds=0.256), Option(bytes={"ssd": size}, load_seconds=0.0057)]
        for handle in range(1, 20000):
            for move in policy.admit(1000.0 + handle, handle, offer, tokens=256,
                                     recompute_seconds=0.256)[1]:
                (stored.add if move.target else stored.discard)(move.handle)
                policy.commit(move)
            kept = kept or set(stored) if handle == 16 else kept
        self.assertTrue(kept)
        self.assertFalse(kept & stored)

    def test_plans_keep_the_books(self):
        """Obeys every plan with slots of its own; no tier is ever over its capacity."""
        for name in names():
            policy = self.policy(name, tiers={"dram": 6 * SIZE, "ssd": Tier(12 * SIZE, 1e9, 1e9)})
            slots, draw, served = {1: set(), 2: set()}, random.Random(7), 0

            def obey(moves, policy=policy, slots=slots):
                for move in moves:
                    if move.target:
                        self.assertNotIn(move.handle, slots[move.target])
                        slots[move.target].add(move.handle)
                        self.assertLessEqual(len(slots[move.target]), (0, 6, 12)[move.target])
                    if move.source:
                        slots[move.source].remove(move.handle)
                    policy.commit(move)

            for turn in range(600):
                handle = 1 + draw.randrange(40) * draw.randrange(40) // 40
                moves = policy.access(turn * 0.1, handle)
                if moves is None:
                    outcome, moves = policy.admit(turn * 0.1, handle, options())
                    self.assertEqual(bool(outcome), bool(moves))
                else:
                    served += 1
                    self.assertIn(handle, slots[policy.option(handle)])
                obey(moves)
                obey(policy.tick(turn * 0.1))
            stats = policy.stats()
            self.assertEqual(stats["used_bytes"]["dram"], len(slots[1]) * SIZE, name)
            self.assertEqual(stats["used_bytes"]["ssd"], len(slots[2]) * SIZE, name)
            self.assertEqual(served > 0, name != "none", name)

    def test_moves_and_reasons(self):
        policy = self.policy(tiers={"dram": 2 * SIZE})
        ladder = policy.ladder(options()[:2])
        outcome, moves = policy.admit(1.0, 5, ladder=ladder, recompute_seconds=0.5, tokens=16)
        self.assertEqual((outcome.value, len(moves)), ("stored", 1))
        move = moves[0]
        self.assertEqual((move.kind, move.handle, move.source, move.target, move.variant),
                         ("put", 5, 0, 1, "raw"))
        self.assertEqual((move.bytes(), move.bytes("from")), ({"dram": SIZE}, {}))
        self.assertIn("5", repr(move))
        self.assertEqual(policy.option(5), 0)
        policy.commit(move)
        self.assertEqual(policy.option(5), 1)
        self.assertEqual(policy.admit(1.0, 5, ladder=ladder).outcome.value, "exists")
        said = policy.explain(2.0, 5)
        self.assertEqual((said["current"], len(said["options"])), (1, 2))
        self.assertGreater(policy.worth(5)["per_byte"], 0)
        self.assertIsNone(policy.worth(6))
        self.assertIsNone(policy.explain(2.0, 6))
        self.assertTrue(policy.set_rate(5, 3.0))
        self.assertFalse(policy.set_rate(6, 3.0))
        self.assertTrue(policy.hint(2.0, 5, "retain", 10))
        self.assertTrue(policy.pin(5) and policy.unpin(5))
        self.assertFalse(policy.unpin(5))
        self.assertTrue(policy.adopt(2.0, 7, 1, ladder=ladder))
        self.assertFalse(policy.adopt(2.0, 7, 1, ladder=ladder))
        self.refused(kvterrace.SpaceError, "fit", policy.adopt, 2.0, 8, 1, ladder=ladder)
        self.assertTrue(policy.remove(7))
        self.assertFalse(policy.remove(7))
        put = policy.admit(3.0, 9, ladder=ladder, recompute_seconds=0.5).moves[-1]
        policy.abort(put)
        self.assertEqual(policy.option(9), 0)

    def test_the_same_calls_give_the_same_plans(self):
        def run():
            policy, log, draw = self.policy(tiers={"dram": 8 * SIZE}), [], random.Random(3)
            for turn in range(300):
                handle = 1 + draw.randrange(30)
                if policy.access(turn, handle) is None:
                    for move in policy.admit(turn, handle, options()[:2]).moves:
                        log.append(repr(move))
                        policy.commit(move)
            return log

        self.assertEqual(run(), run())
        self.assertGreater(len(run()), 30)

    def test_wrong_arguments(self):
        self.refused(kvterrace.UnsupportedError, "", Policy, "best", tiers={"dram": 1})
        self.refused(WRONG, "tiers", Policy, tiers={"tape": 1})
        self.refused(WRONG, "out of range", Policy, tiers={"dram": -1})
        self.refused(WRONG, "watermarks", Policy, tiers={"dram": 1}, high_watermark=2.0)
        self.refused(WRONG, "moves_max", Policy, tiers={"dram": 1}, moves_max=0)
        self.refused(WRONG, "variant", Policy, "lru", tiers={"dram": 1}, variant="zip")
        with self.assertRaises(TypeError):
            Policy(tiers={"dram": 1}, colour=3)
        policy = self.policy(tiers={"dram": 2 * SIZE})
        nan = float("nan")
        for call, values in ((policy.admit, (-1, 1, options()[:2])),
                             (policy.admit, (1e30, 1, options()[:2])), (policy.commit, (-1,)),
                             (policy.tick, (1, -1)), (policy.tick, (1, 1, -1)),
                             (policy.set_prior, (-1, 1)), (policy.set_capacity, ("dram", -1)),
                             (policy.remove, (1 << 64,))):
            self.refused(WRONG, "out of range", call, *values)
        self.refused(WRONG, "out of range", policy.admit, 0, 0, options()[:2])
        self.refused(WRONG, "out of range", policy.admit, 0, -1, options()[:2])
        self.refused(WRONG, "out of range", policy.admit, 0, 1, [Option(load_seconds=nan)])
        self.refused(WRONG, "out of range", policy.admit, 0, 1, options()[1:])
        self.refused(WRONG, "out of range", policy.admit, 0, 1, [])
        self.refused(WRONG, "out of range", policy.admit, 0, 1, ladder=9)
        self.refused(WRONG, "Options", policy.admit, 0, 1, [1, 2])
        self.refused(WRONG, "by tier", policy.admit, 0, 1, [Option(bytes={"tape": 1})])
        self.refused(WRONG, "seconds", policy.admit, "now", 1, options()[:2])
        self.refused(WRONG, "seconds", policy.tick, nan)
        self.refused(WRONG, "no such move", policy.commit, 77)
        self.refused(WRONG, "kind", policy.hint, 0, 1, "maybe")
        self.refused(WRONG, "tier", policy.promote, 0, 1, "tape")
        self.refused(WRONG, "bytes are of", policy.admit(0, 1, options()[:2]).moves[0].bytes, "x")
        policy.close()
        policy.close()
        for call in (lambda: policy.access(0, 1), lambda: policy.option(1), policy.stats,
                     lambda: policy.tick(0), lambda: policy.admit(0, 1, options()[:2])):
            self.refused(kvterrace.StateError, "closed", call)

    def test_a_child_of_fork_and_threads(self):
        policy = self.policy(tiers={"dram": 50 * SIZE})
        child = os.fork()
        if child == 0:
            try:
                policy.stats()
            except kvterrace.StateError as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

        def work(first):
            for handle in range(first, 4000, 4):
                for move in policy.admit(0, handle, options()[:2]).moves:
                    self.assertIsInstance(move, Move)
                    policy.commit(move)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(policy.stats()["moves_in_flight"], 0)


class Blocks(PackageCase):
    def cache(self, capacity):
        cache = BlockCache(capacity, clock=Clock())
        self.addCleanup(cache.close)
        return cache

    def test_what_is_used_stays(self):
        cache = self.cache(8)
        for key in "abcdefgh":
            cache.insert(key)
        for _ in range(4):
            cache._clock.seconds += 1
            cache.touch("abcd")
        self.assertEqual(set(cache.evict(4)), set("efgh"))
        self.assertEqual((len(cache), "a" in cache, "e" in cache), (4, True, False))

    def test_parents_stay_for_their_children(self):
        cache = self.cache(6)
        for first in (0, 3):
            for key in range(first, first + 3):
                cache.insert(key, key - 1 if key > first else None)
        gone = cache.evict(3)
        self.assertEqual(len(gone), 3)
        for key in range(6):
            if key not in gone and key % 3:
                self.assertNotIn(key - 1, gone)

    def test_pins_and_protection(self):
        cache = self.cache(6)
        for key in range(6):
            cache.insert(key)
        self.assertTrue(cache.pin(0))
        self.assertIsNone(cache.evict(3, {1, 2, 3, 99}))
        self.assertEqual((len(cache), cache.policy.stats()["moves_in_flight"]), (6, 0))
        self.assertEqual(set(cache.evict(2, {1, 2, 3})), {4, 5})
        self.assertTrue(cache.unpin(0))
        self.assertEqual(cache.evict(1, {1, 2, 3}), [0])
        self.assertFalse(cache.pin(0) or cache.unpin(0) or cache.remove(0))
        self.assertTrue(cache.remove(1))
        cache.clear()
        self.assertEqual(len(cache), 0)

    def test_any_calls_keep_the_count(self):
        cache, draw, held = self.cache(32), random.Random(1), set()
        for _ in range(3000):
            cache._clock.seconds += 0.1
            key = int(draw.paretovariate(0.5)) % 500
            if key in cache:
                cache.touch([key, 10 ** 6])
                continue
            if len(cache) == 32:
                gone = cache.evict(draw.randrange(1, 4), {key, draw.choice(sorted(held))})
                self.assertTrue(held >= set(gone))
                held.difference_update(gone)
            cache.insert(key, draw.choice([None, key - 1, 7]))
            held.add(key)
            self.assertEqual(len(cache), len(held))
        self.assertEqual(cache.policy.stats()["used_bytes"]["dram"], len(held))
        self.refused(kvterrace.SpaceError, "evict", lambda: [cache.insert(("n", one))
                                                              for one in range(33)])
        self.refused(WRONG, "capacity", BlockCache, 0)

    def test_two_keys_of_one_handle(self):
        cache = self.cache(4)
        cache._handle = lambda key: 1
        cache.insert("a")
        cache.insert("b")
        self.assertEqual((len(cache), "a" in cache, "b" in cache), (2, True, True))
        self.assertEqual(cache.evict(1), ["b"])
        self.assertEqual(cache.evict(2), None)
        self.assertEqual(cache.evict(1), ["a"])


class Bench(PackageCase):
    def trace(self):
        """Conversations that come back, and a scan of prompts that do not."""
        path, draw, rows = os.path.join(self.folder(), "trace.jsonl"), random.Random(5), []
        for turn in range(1500):
            if turn % 2:
                ids = list(range(10 ** 6 + 8 * turn, 10 ** 6 + 8 * turn + 8))
            else:
                first = int(draw.paretovariate(1.0)) % 60 * 100
                ids = list(range(first, first + 6))
            rows.append({"timestamp": turn * 500, "input_length": 512 * len(ids) - 3,
                         "hash_ids": ids})
        with open(path, "w", encoding="ascii") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def test_the_bench_compares(self):
        rows, _ = _bench_policy.bench_policy(self.trace(), [60])
        found = {row["policy"]: row["token_hits"] for row in rows}
        self.assertGreater(found["kvterrace"], found["lru"])
        self.assertGreater(found["arc"], 0)

    def test_the_command(self):
        path = os.pathsep.join(one for one in sys.path if one)
        environment = dict(os.environ, PYTHONPATH=path)
        command = [sys.executable, "-m", "kvterrace.bench", "policy", "--blocks", "60"]

        def run(*more):
            return subprocess.run(command + list(more), env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, check=False)

        said = json.loads(run("--json", "--trace", self.trace()).stdout)
        self.assertEqual(said[0].keys(), {"blocks", "requests", "policy", "source", "token_hits",
                                          "block_hits"})
        broken = os.path.join(self.folder(), "broken.jsonl")
        with open(broken, "w", encoding="ascii") as file:
            file.write('{"timestamp": 1}\n')
        for arguments, text in ((("--trace", broken), "broken.jsonl:1 is no request"),
                                (("--trace", "/no/such"), "is not read"),
                                (("--trace", "/no/such.zst"), "is not read"),
                                (("--blocks", "x", "--trace", broken), "numbers"),
                                (("--blocks", "0", "--trace", broken), "at least 1")):
            done = run(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


class VllmCache(PackageCase):
    def setUp(self):
        super().setUp()
        fake = importlib.import_module("fake_vllm_cache")
        self.addCleanup(fake.install())
        self.fake, module = fake, importlib.import_module("kvterrace.vllm_cache")
        self.addCleanup(sys.modules.pop, "kvterrace.vllm_cache")
        self.clock = Clock()
        self.policy = module.KvterracePolicy(8, self.clock)

    def store(self, keys, context):
        """As vLLM's manager stores: note the misses, evict, insert, and the bytes arrive."""
        new = [key for key in keys if self.policy.get(key) is None]
        self.policy.on_store_miss(new, context)
        excess = len(self.policy.chunks) + len(new) - 8
        gone = self.policy.evict(max(excess, 0), set(keys))
        if gone is None:
            return None
        for key in new:
            self.policy.insert(key, self.fake.ChunkStatus())
        for key in new:
            self.policy.get(key).ref_cnt = 0
            self.policy.mark_evictable(key)
        return [key for key, _ in gone]

    def request(self, blocks):
        self.clock.seconds += 1
        keys = [self.fake.make_offload_key(b"%032d" % one, 0) for one in blocks]
        context = self.fake.ReqContext({key: 16 * place for place, key in enumerate(keys, 1)})
        reused = {key for key in keys if self.policy.get(key) is not None}
        gone = self.store(keys, context)
        self.policy.on_request_finished((tuple(keys),), set(keys) - reused, reused, context)
        return [int(key[:-4]) for key in gone or []]

    def test_chunks_that_come_back_stay(self):
        self.request([1, 2, 3])
        for turn in range(5):
            self.request([1, 2, 3])
            gone = self.request(range(100 + 5 * turn, 105 + 5 * turn))
            self.assertEqual(len(gone), 5 if turn else 0)
            self.assertTrue(all(one >= 100 for one in gone))
        self.assertEqual(len(self.policy.chunks), 8)

    def test_a_use_counts_once_and_before_anything_goes(self):
        self.request([1, 2, 3, 4])
        self.request([9])
        calls, touch, evict = [], self.policy._blocks.touch, self.policy._blocks.evict

        def touched(keys):
            calls.append(("touch", [int(key[:-4]) for key in keys]))
            touch(keys)

        def evicted(count, protected):
            calls.append(("evict", count))
            return evict(count, protected)

        self.policy._blocks.touch, self.policy._blocks.evict = touched, evicted
        self.request([1, 2, 20, 21, 22, 23])
        self.assertEqual(calls, [("touch", [1, 2]), ("evict", 1), ("touch", [])])
        calls.clear()
        self.request([1, 2, 30, 31, 20])  # one that is there lies behind the new ones
        self.assertEqual(calls, [("touch", [1, 2]), ("evict", 2), ("touch", [20])])

    def test_chunks_in_transfer_stay(self):
        self.request(range(8))
        keys = list(self.policy.chunks)
        for key in keys[:6]:
            self.policy.mark_non_evictable(key)
        self.assertIsNone(self.policy.evict(3, set()))
        self.assertEqual(len(self.policy.chunks), 8)
        self.assertEqual({key for key, _ in self.policy.evict(2, set())}, set(keys[6:]))
        for key in keys[:6]:
            self.policy.mark_evictable(key)
        self.policy.remove(keys[5])
        self.assertIsNone(self.policy.get(keys[5]))
        self.assertEqual(self.policy.evict(0, set()), [])
        self.policy.touch(keys[:2], None)
        self.policy.clear()
        self.assertEqual(self.policy.chunks, {})

    def test_another_version_is_refused_where_it_differs(self):
        base = sys.modules["vllm.v1.kv_offload.cpu.policies.base"].CachePolicy
        sys.modules["vllm"].__version__ = "0.31.0"
        sys.modules.pop("kvterrace.vllm_cache")
        base.evict = lambda self, count, protected, reason: []
        self.refused(kvterrace.UnsupportedError, "KvterracePolicy.evict is called with",
                     importlib.import_module, "kvterrace.vllm_cache")
        del base.evict
        importlib.import_module("kvterrace.vllm_cache")
        sys.modules.pop("kvterrace.vllm_cache")
        sys.modules["vllm"].__version__ = "0.32.0"
        importlib.import_module("kvterrace.vllm_cache")


if __name__ == "__main__":
    unittest.main()
