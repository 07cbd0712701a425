#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM on the processor, with the reference model: what one process stores, another one loads."""

import os
import unittest

from engine_case import VllmCase, damage_record, disk_store, need, recall_prompts
from package_case import Server

ENGINE = "vllm"
CHUNK = 64
PROMPTS = recall_prompts(512, 3)
FULL = [len(prompt) // CHUNK for prompt, _ in PROMPTS]  # chunks that are full


class Facts(unittest.TestCase):
    def test_the_adapter_looks_at_all_that_a_tier_is_told(self):
        """A field that a new version adds may decide KV: it belongs into the key, or the page."""
        import dataclasses
        from vllm.v1.kv_offload import config
        for made, names in (
                (config.OffloadingConfig, {
                    "groups", "worker_kv_bytes_per_block", "model", "cache", "parallel",
                    "replicated_layout", "canonical_layout", "kv_cache_layout",
                    # which decide no byte of a chunk:
                    "enable_kv_cache_events", "extra_config", "engine_id"}),
                (config.OffloadingGroupConfig, {"tokens_per_block", "layer_names", "group_id"}),
                (config.OffloadingModelConfig, {"name", "dtype"}),
                (config.OffloadingCacheConfig, {"tokens_per_hash", "blocks_per_chunk"}),
                (config.OffloadingParallelConfig, {
                    "world_size", "tp_size", "pp_size", "pcp_size", "dcp_size",
                    # replicas compute the same; a tier has the rows of all workers:
                    "rank", "data_parallel_index", "data_parallel_size",
                    "data_parallel_rank_local", "is_parallelism_agnostic"})):
            self.assertEqual({field.name for field in dataclasses.fields(made)}, names)


class Restarts(VllmCase):
    prompts, chunk = [prompt for prompt, _ in PROMPTS], CHUNK

    def test_a_second_process_loads_what_the_first_computed(self):
        folder = self.folder()
        computed = self.run_engine(folder)
        for (_, right), said in zip(PROMPTS, computed["answers"]):
            self.assertEqual(said["tokens"][:len(right)], right)  # the model does answer from KV
            self.assertEqual(said["cached"], 0)
        self.assertEqual(computed["store"]["puts"], sum(FULL))
        loaded = self.run_engine(folder)
        self.assertEqual((loaded["store"]["gets"], loaded["store"]["puts"]), (sum(FULL), 0))
        self.compare(computed, loaded, [CHUNK * full for full in FULL])
        control = self.run_engine(folder, zero=True)
        self.assertEqual(control["store"]["gets"], sum(FULL))
        for first, second in zip(computed["answers"], control["answers"]):
            self.assertNotEqual(first["logprobs"], second["logprobs"], "zeroed rows do nothing")

        damage_record(f"{folder}/disk", bytes.fromhex(computed["answers"][0]["keys"][4]))
        asleep = disk_store(folder, **{"store.scrub_period": "0"})  # it would find the damage first
        damaged = self.run_engine(folder, tier={"settings": asleep})
        self.assertEqual(damaged["store"]["load_failures"], 1)
        self.compare(computed, damaged, [4 * CHUNK] + [CHUNK * full for full in FULL[1:]],
                     logprobs=False)
        mended = self.run_engine(folder)  # the damaged one was computed, and stored again
        self.compare(computed, mended, [CHUNK * full for full in FULL], logprobs=False)

    def test_a_kill_between(self):
        folder = self.folder()
        computed = self.run_engine(folder, code=-9, die="flushed")
        self.compare(computed, self.run_engine(folder), [CHUNK * full for full in FULL])
        folder = self.folder()
        computed = self.run_engine(folder, code=-9, die="at once")
        loaded = self.run_engine(folder)
        for first, second, full in zip(computed["answers"], loaded["answers"], FULL):
            self.assertEqual(second["tokens"], first["tokens"])
            self.assertLessEqual(second["cached"], CHUNK * full)
        folder = self.folder()
        self.assertNotIn("answers", self.run_engine(folder, code=-9, die="storing"))
        cut = self.run_engine(folder)
        for first, second, full in zip(computed["answers"], cut["answers"], FULL):
            self.assertEqual(second["tokens"], first["tokens"])
            self.assertLessEqual(second["cached"], CHUNK * full)
        self.assertEqual(cut["tiers"]["ssd"]["entries"], sum(FULL))  # the rest is stored again
        self.compare(computed, self.run_engine(folder), [CHUNK * full for full in FULL],
                     logprobs=False)
        print("chunks found after a kill while the second prompt was stored: "
              f"{[one['cached'] // CHUNK for one in cut['answers']]} of {FULL}", flush=True)
        print("chunks found after a kill without a flush: "
              f"{[one['cached'] // CHUNK for one in loaded['answers']]} of {FULL}", flush=True)

    def test_a_missing_block_in_the_middle(self):
        folder = self.folder()
        computed = self.run_engine(folder, forget=[3])
        loaded = self.run_engine(folder)
        self.compare(computed, loaded, [3 * CHUNK] * 3, logprobs=False)
        self.assertEqual(loaded["store"]["puts_existing"], sum(FULL) - 12)  # those behind the gap
        self.assertEqual(loaded["tiers"]["ssd"]["entries"], sum(FULL))

    def test_another_model_or_chunk_misses(self):
        folder = self.folder()
        self.run_engine(folder)
        other = self.run_engine(folder, tier={"revision": "another"})
        self.assertEqual([one["cached"] for one in other["answers"]], [0] * 3)
        other = self.run_engine(folder, dtype="bfloat16")
        self.assertEqual([one["cached"] for one in other["answers"]], [0] * 3)
        other = self.run_engine(folder, chunk=128)
        self.assertEqual([one["cached"] for one in other["answers"]], [0] * 3)

    def test_a_full_disk(self):
        """More chunks than the device has room for: it stays within its capacity, and answers."""
        folder, capacity = self.folder(), 1536 << 10
        settings = disk_store(folder, **{"device.d.capacity": str(capacity)})
        tier = {"settings": settings, "store_seconds": 5.0}
        computed = self.run_engine(folder, tier=tier)
        for (_, right), said in zip(PROMPTS, computed["answers"]):
            self.assertEqual(said["tokens"][:len(right)], right)
        for answer in (computed, self.run_engine(folder, tier=tier)):
            self.assertLessEqual(answer["tiers"]["ssd"]["bytes"], capacity)
            self.assertGreater(answer["tiers"]["ssd"]["entries"], 4)
            self.assertEqual([one["tokens"] for one in answer["answers"]],
                             [one["tokens"] for one in computed["answers"]])
        self.assertLessEqual(os.path.getsize(f"{folder}/disk"), capacity)


class Requests(VllmCase):
    """What single requests ask for, and requests that do not run straight through."""

    prompts, chunk = [prompt for prompt, _ in PROMPTS], CHUNK

    def test_wishes_and_events(self):
        folder, told = self.folder(), {
            "tier": {"enable_kv_events": True}, "events": True,
            "spec": {"self_describing_kv_events": True}}
        one = ["BlockStored", "STORAGE", "LOCAL", "KvterraceTier", CHUNK // 32, CHUNK]
        computed = self.run_engine(folder, **told, parameters=[
            {"kvterrace": {"skip_write": True}}, {"kvterrace": {"lifetime": 1e6, "tenant": 3}},
            {"agent_hint": {"cache_control": {"type": "ephemeral", "ttl": 60}}}])
        self.assertEqual(computed["store"]["puts"], sum(FULL[1:]))
        self.assertEqual(computed["events"], [one] * sum(FULL[1:]))
        loaded = self.run_engine(folder, **told, parameters=[
            {}, {"kvterrace": {"skip_read": True, "skip_write": 7}},
            {"kvterrace": {"hint": "session_end"}}])
        self.compare(computed, loaded, [0, 0, CHUNK * FULL[2]], logprobs=False)
        self.assertIn("a request's skip_write is out of range", loaded["log"])
        # Stored anew, there already, and found: a later process tells all of them, each once.
        self.assertEqual(loaded["events"], [one] * sum(FULL))

    def test_speculation_and_preemption(self):
        long = {"tokens": 80, "length": 640}
        plain = self.run_engine(self.folder(), plain=True, **long)
        said = self.run_engine(self.folder(), together=2, blocks=36, **long, speculative={
            "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3})
        self.assertGreater(said["preempted"], 0)
        for number, answer in enumerate(said["answers"]):  # computed, and once more from the store
            self.assertEqual(answer["tokens"], plain["answers"][number % 3]["tokens"])
        self.assertGreater(sum(answer["cached"] for answer in said["answers"][3:]), 0)
        self.assertGreater(said["store"]["gets"], 0)


class Shared(VllmCase):
    """Engines of a host over the store of `kvterrace serve`."""

    prompts, chunk = [prompt for prompt, _ in PROMPTS], CHUNK

    def test_engines_share_and_outlive_the_server(self):
        folder, full = self.folder(), [CHUNK * full for full in FULL]
        lends = Server(folder)
        self.addCleanup(lends.stop)
        shared = {"tier": {"connect": lends.socket, "settings": None}}
        computed = self.run_engine(folder, **shared)
        self.assertEqual([one["cached"] for one in computed["answers"]], [0] * 3)
        loaded = self.run_engine(folder, **shared)
        self.compare(computed, loaded, full)
        self.assertEqual(loaded["store"]["puts"], sum(FULL))  # the server's, all by the first
        killed = self.run_engine(folder, **shared, kill=lends.process.pid)
        self.compare(computed, killed, [full[0], 0, 0], logprobs=False)
        self.assertIn("until the server is back", killed["log"])
        lends.kill()
        lends.start()
        self.compare(computed, self.run_engine(folder, **shared), [0] * 3)
        self.compare(computed, self.run_engine(folder, **shared), full)


if __name__ == "__main__":
    need("vllm")
    unittest.main(verbosity=2)
