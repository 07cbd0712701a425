# SPDX-License-Identifier: Apache-2.0
"""A tier of vLLM with classes that have vLLM's signatures, rows of its region, and jobs: the tests
of the adapter share them."""

import mmap
import time

import fake_vllm
from package_case import PackageCase, pattern

fake_vllm.install()

from kvterrace import vllm as adapter  # noqa: E402  (behind the fake engine)

HIT, MISS = fake_vllm.LookupResult.HIT, fake_vllm.LookupResult.MISS
RETRY = fake_vllm.LookupResult.RETRY
LAYERS, HEADS, DIM, TOKENS = 3, 2, 32, 32
BLOCK = LAYERS * 2 * HEADS * DIM * TOKENS * 2
ROW = (2 * BLOCK + 4095) & ~4095
ROWS = 24


def name(number, group=0):
    return number.to_bytes(32, "big") + group.to_bytes(4, "big")


class Case(PackageCase):
    def setUp(self):
        super().setUp()
        self.region = mmap.mmap(-1, ROWS * ROW)
        self.view = memoryview(self.region).cast("B", (ROWS, ROW))
        self.jobs = 0

    def tier(self, spec=None, **keywords):
        keywords.setdefault("settings", {"tier.dram.capacity": "32MiB", "store.policy": "lru"})
        keywords.setdefault("revision", "1")
        made = adapter.KvterraceTier(spec or fake_vllm.spec(block_bytes=BLOCK), self.view, "kvt",
                                     **keywords)
        self.addCleanup(made.shutdown)
        return made

    def fill(self, rows, seed=1):
        """Rows with content of their own; what lies in each."""
        for row in rows:
            self.region[row * ROW:row * ROW + 2 * BLOCK] = bytes(pattern(2 * BLOCK, row + seed))
        return [self.row(row) for row in rows]

    def row(self, row):
        return self.region[row * ROW:row * ROW + 2 * BLOCK]

    def clear(self, rows):
        for row in rows:
            self.region[row * ROW:(row + 1) * ROW] = bytes(ROW)

    def job(self, keys, rows, context, loads):
        self.jobs += 1
        return fake_vllm.TransferJob(self.jobs, keys, rows, loads, context)

    def store_rows(self, tier, keys, rows, context=None):
        tier.submit_store(self.job(keys, rows, context or fake_vllm.ReqContext("r"), False))
        return self.finish(tier)

    def load_rows(self, tier, keys, rows, context=None):
        tier.submit_load(self.job(keys, rows, context or fake_vllm.ReqContext("r"), True))
        return self.finish(tier)

    def finish(self, tier):
        """The results of all jobs, gathered as a scheduler does, step by step."""
        results, until = [], time.monotonic() + 30
        while tier.has_pending_work():
            results += tier.get_finished_jobs()
            time.sleep(0.0005)  # as a step of an engine would take
            self.assertLess(time.monotonic(), until)
        self.assertFalse(tier.has_pending_work())
        return results
