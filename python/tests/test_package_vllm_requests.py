#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What requests say of their KV, and requests that wait for room, in the adapter of vLLM against
classes that have vLLM's signatures."""

import contextlib
import time
import types
import unittest

import fake_vllm
from package_case import kvterrace
from vllm_case import BLOCK, Case, HIT, MISS, RETRY, name


class Wishes(Case):
    """What clients and orchestrators say of a request's KV."""

    def context(self, given=None, hints=None, **parameters):
        parameters = parameters if given is None else {"kvterrace": given, **parameters}
        return fake_vllm.ReqContext("r", kv_transfer_params=parameters, kv_hints=hints)

    def stored(self, tier, key, context):
        result, = self.store_rows(tier, [key], [1], context)
        self.assertTrue(result.success)
        return tier._store.exists(tier._key(key))

    def hints(self, tier):
        """Hints that the store has taken, by kind."""
        return {kind: count for kind, count in tier.hinted.items() if count}

    def hinting(self, **keywords):
        tier = self.tier(**keywords)
        tier.hinted, hint = {}, tier._store.hint

        def counted(keys, kind, seconds=0.0):
            taken = hint(keys, kind, seconds)
            self.assertEqual(taken, len(keys))
            tier.hinted[kind] = tier.hinted.get(kind, 0) + taken
            tier.seconds = seconds
            return taken

        tier._store.hint = counted
        return tier

    def test_a_request_is_not_read_or_not_written(self):
        tier, plain = self.tier(), fake_vllm.ReqContext("plain")
        self.fill(range(3))
        self.assertFalse(self.stored(tier, name(1), self.context({"skip_write": True})))
        self.assertTrue(self.stored(tier, name(1), self.context({"skip_write": False})))
        self.assertEqual(tier.lookup(name(1), self.context({"skip_read": True})), MISS)
        self.assertEqual(tier.lookup(name(1), self.context({"skip_write": True})), HIT)
        self.assertEqual(tier.lookup(name(1), plain), HIT)

    def test_a_request_says_the_life_and_the_owner_of_what_it_stores(self):
        tier = self.tier()
        self.fill(range(3))
        self.assertTrue(self.stored(tier, name(1), self.context({"tenant": 7})))
        self.assertTrue(self.stored(tier, name(2), fake_vllm.ReqContext("plain")))
        self.assertTrue(self.stored(tier, name(3), self.context({"tenant": 7, "class_id": 3})))
        tier._store.clear(tenant=7)
        self.assertEqual([tier._store.exists(tier._key(name(one))) for one in (1, 2, 3)],
                         [False, True, False])
        self.store_rows(tier, [name(1)], [1], self.context({"lifetime": 0.05}))
        until = time.monotonic() + 30
        while tier.lookup(name(1), fake_vllm.ReqContext("later")) is HIT:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        self.assertEqual(tier.lookup(name(2), fake_vllm.ReqContext("later")), HIT)

    def test_hints_come_when_a_request_has_ended(self):
        self.fill(range(4))
        action = fake_vllm.KvHintAction("kvterrace.request", {"hint": "demote"})
        other = fake_vllm.KvHintAction("kv.fetch", {"hint": "retain"})
        for context, kind, seconds in (
                (self.context({"hint": "next_use", "hint_seconds": 12}), "next_use", 12),
                (self.context({"hint": "session_end"}), "session_end", 0),
                (self.context(hints=fake_vllm.KvHintsEnvelope(other, action)), "demote", 0),
                (self.context(agent_hint={"cache_control": {"type": "ephemeral", "ttl": 300}}),
                 "retain", 300),
                (self.context(agent_hint={"lease_until": time.time() + 1e5}), "retain", 1e5),
                (self.context(agent_hint={"context_management": {"edits": [{"type": "evict"}]}}),
                 "demote", 0)):
            tier = self.hinting()
            self.assertTrue(self.stored(tier, name(1), context))
            tier.submit_store(self.job([name(2)], [2], context, False))
            tier.touch([name(1)], context)
            self.assertEqual(self.hints(tier), {})
            tier.on_request_finished(context)
            before = self.hints(tier)
            self.finish(tier)  # a store that ends behind its request
            self.assertEqual((before, self.hints(tier)), ({kind: 1}, {kind: 2}))
            self.assertAlmostEqual(tier.seconds, seconds, delta=seconds / 10)
            tier.shutdown()
        tier = self.hinting()
        late = self.context(agent_hint={"lease_until": time.time() - 1})
        self.assertTrue(self.stored(tier, name(1), late))
        tier.on_request_finished(late)
        self.assertEqual(self.hints(tier), {})

    def test_wrong_wishes_stop_no_request(self):
        tier = self.hinting()
        self.fill(range(2))
        for number, given in enumerate((
                3, [], "skip_write", {"skip_write": 1}, {"skip_read": "yes"}, {"tenant": -1},
                {"tenant": 256}, {"tenant": 1.5}, {"tenant": True}, {"class_id": 64},
                {"lifetime": float("nan")}, {"lifetime": -1}, {"lifetime": 10 ** 400},
                {"hint": "retain"}, {"hint": ["retain"]}, {"hint": "now"}, {5: 6}, {"colour": 1},
                {"hint": "retain", "hint_seconds": 1e300})):
            context = self.context(given)
            with self.assertLogs("vllm.kvterrace", "WARNING") if number == 0 else \
                    contextlib.nullcontext():
                self.assertTrue(self.stored(tier, name(number), context), given)
            self.assertEqual(tier.lookup(name(number), context), HIT)
            tier.on_request_finished(context)
        for number, hint in enumerate((
                3, [], {"cache_control": 5}, {"cache_control": {"ttl": "long"}},
                {"lease_until": "soon"}, {"context_management": {"edits": 7}},
                {"context_management": {"edits": [None, {"type": "evict", "block_start": 3}]}})):
            context = self.context(agent_hint=hint)
            self.assertTrue(self.stored(tier, name(100 + number), context))
            tier.on_request_finished(context)
        for hints in (object(), fake_vllm.KvHintsEnvelope(None, fake_vllm.KvHintAction(
                "kvterrace.request", None))):
            context = self.context(hints=hints)
            self.assertTrue(self.stored(tier, name(200), context))
            tier.on_request_finished(context)
        self.assertEqual(self.hints(tier), {})


class Room(Case):
    """Chunks that are stored while vLLM's host memory has no place for them."""

    def setUp(self):
        super().setUp()
        self.spec = fake_vllm.spec(block_bytes=BLOCK)
        self.primary = types.SimpleNamespace(free=0, _num_evictable_cache_chunks=0)
        self.primary._get_num_free_chunks = lambda: self.primary.free
        self.keys = [name(index) for index in range(3)]

    def stored(self, **keywords):
        tier = self.tier(self.spec, **keywords)
        self.fill(range(3))
        self.store_rows(tier, self.keys, range(3))
        self.spec._manager = types.SimpleNamespace(primary_tier=self.primary)
        return tier

    def counts(self, tier):
        tier._stats_at = 0.0
        return {key[0].rpartition("_")[2]: value for key, value in tier.get_stats().counters.items()
                if "room" in key[0]}

    def test_a_request_waits_and_goes_on_when_there_is_room(self):
        tier, context = self.stored(room_seconds=60), fake_vllm.ReqContext("r")
        self.assertEqual({tier.lookup(key, context) for key in self.keys}, {RETRY})
        self.assertEqual(tier.lookup(name(9), context), MISS)
        self.primary._num_evictable_cache_chunks = 1
        self.assertEqual(tier.lookup(self.keys[0], context), HIT)
        self.primary._num_evictable_cache_chunks, self.primary.free = 0, 1
        self.assertEqual(tier.lookup(self.keys[0], context), HIT)
        self.assertEqual(self.counts(tier), {"waits": 1, "misses": 0})

    def test_a_wait_ends(self):
        tier, context = self.stored(room_seconds=0.05), fake_vllm.ReqContext("r")
        self.assertEqual(tier.lookup(self.keys[0], context), RETRY)
        time.sleep(0.06)
        self.assertEqual({tier.lookup(key, context) for key in self.keys}, {HIT})
        self.assertEqual(self.counts(tier), {"waits": 1, "misses": 1})
        other = fake_vllm.ReqContext("s")  # each request has its own time
        self.assertEqual(tier.lookup(self.keys[0], other), RETRY)

    def test_without_a_wait_or_the_insides_of_vllm_it_is_a_hit(self):
        tier, context = self.stored(room_seconds=0), fake_vllm.ReqContext("r")
        self.assertEqual(tier.lookup(self.keys[0], context), HIT)
        tier.shutdown()
        tier = self.stored()
        for insides in (None, types.SimpleNamespace(), types.SimpleNamespace(primary_tier=None)):
            self.spec._manager = insides
            self.assertEqual(tier.lookup(self.keys[0], fake_vllm.ReqContext("t")), HIT)

    def test_wrong_seconds(self):
        for wrong in (-1, "1", True, float("nan"), float("inf"), None):
            with self.assertRaisesRegex(kvterrace.ConfigError, "room_seconds"):
                self.tier(self.spec, room_seconds=wrong)


if __name__ == "__main__":
    unittest.main()
