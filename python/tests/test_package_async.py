#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package's coroutines: the answers of the blocking calls, cancelled tasks, bounds, ends."""

import asyncio
import gc
import os
import threading
import unittest

from package_case import LAYOUT, PackageCase, kvterrace, pattern


class Coroutines(PackageCase):
    def run_with(self, body, **settings):
        """Runs body(store) on a loop of its own, then closes the store."""
        store = self.store(**settings)
        try:
            return asyncio.run(asyncio.wait_for(body(store), 120))
        finally:
            store.close()

    def test_the_answers_of_the_blocking_calls(self):
        data, key = pattern(LAYOUT.bytes), self.key("a")

        async def body(store):
            self.assertIsNone(await store.aget(key))
            self.assertIs(await store.aget_into(key, bytearray(8)), False)
            self.assertIs(await store.aexists(key), False)
            self.assertEqual((await store.aput(key, data, LAYOUT)).value, "stored")
            self.assertEqual((await store.aput(key, data, LAYOUT)).value, "exists")
            self.assertEqual(await store.aget(key), data)
            out, info = bytearray(LAYOUT.bytes), {}
            self.assertTrue(await store.aget_into(key, out, info=info))
            self.assertEqual((out, info["tier"], info["variant"]), (data, "dram", "raw"))
            with kvterrace.View.packed(LAYOUT, bytearray(LAYOUT.bytes)) as view:
                self.assertTrue(await store.aget_into(key, view))
                self.assertTrue(await store.aput(self.key("b"), view))
            self.assertEqual(store.get(self.key("b")), data)
            self.assertTrue(await store.atouch(key))
            self.assertTrue(await store.aprefetch(key))
            self.assertTrue(await store.adelete(key))
            self.assertIs(await store.aexists(key), False)

        self.run_with(body)

    def test_groups(self):
        groups = [LAYOUT, kvterrace.Layout.opaque(999)]
        data = pattern(sum(one.bytes for one in groups))

        async def body(store):
            self.assertTrue(await store.aput(self.key("g"), data, groups))
            self.assertEqual(await store.aget(self.key("g")), data)

        self.run_with(body)

    def test_more_tasks_than_depth(self):
        async def body(store):
            for index in range(4):
                store.put(self.key(index), bytes([index]) * 4096)
            async with store.queue(depth=64) as queue:
                async def one(number):
                    out = bytearray(4096)
                    found = await queue.get_into(self.key(number % 5), out)
                    return found == (number % 5 < 4) and \
                        (not found or out == bytes([number % 5]) * 4096)

                self.assertTrue(all(await asyncio.gather(*map(one, range(3000)))))
                self.assertEqual((len(queue._pending), len(queue._room)), (0, 0))

        self.run_with(body)

    def test_cancelled_tasks_let_go_first(self):
        settings = {"device.d.path": os.path.join(self.folder(), "disk"), "device.d.tier": "ssd",
                    "device.d.backend": "file", "device.d.capacity": "64MiB",
                    "device.d.latency": "100ms"}

        async def body(store):
            keys = [self.key(index) for index in range(16)]
            for key in keys:
                store.put(key, bytes(1 << 20))
                store.flush()
            while store.maintain():  # the older ones go to the SSD
                pass
            stored = [key in store for key in keys]
            self.assertIn("ssd", [(store.describe(key) or {}).get("tier") for key in keys])
            outs = [bytearray(1 << 20) for _ in keys]
            tasks = [asyncio.ensure_future(store.aget_into(key, out))
                     for key, out in zip(keys, outs)]
            await asyncio.sleep(0.02)
            late = asyncio.ensure_future(store.aget_into(keys[0], outs[0]))
            for task in tasks[::2]:
                task.cancel()
            late.cancel()
            results = await asyncio.gather(*tasks, late, return_exceptions=True)
            self.assertEqual(results[1:16:2], stored[1::2])
            for result in results[0::2]:  # one that was served before the cancel has its answer
                self.assertTrue(result is True or isinstance(result, asyncio.CancelledError))
            for out in outs:
                out.append(0)  # nothing is exported any more
            self.assertEqual(store._queues[asyncio.get_running_loop()]._pending, {})

        self.run_with(body, settings=settings, tier_dram_capacity="9MiB")

    def test_bad_input(self):
        async def body(store):
            store.put(self.key("a"), pattern(LAYOUT.bytes), LAYOUT)
            cases = [(store.aget(b"short"), "key"),
                     (store.aget_into(self.key("a"), bytearray(5)), "bytes"),
                     (store.aget_into(self.key("a"), bytes(LAYOUT.bytes)), "read-only"),
                     (store.aput(self.key("b"), b"", None), "empty"),
                     (store.aget(self.key("a"), urgency="now"), "urgency")]
            for call, text in cases:
                with self.assertRaises(kvterrace.ArgumentError) as caught:
                    await call
                self.assertIn(text, str(caught.exception))
            other = kvterrace.Layout(3, 2, 32, "bf16", 40)
            with kvterrace.View.packed(other, bytearray(other.bytes)) as view:
                with self.assertRaises(kvterrace.ArgumentError):
                    await store.aget_into(self.key("a"), view)
            self.assertEqual(await store.aget(self.key("a")), pattern(LAYOUT.bytes))

        self.run_with(body)

    def test_a_close_with_tasks_waiting(self):
        async def body(store):
            store.put(self.key("a"), bytes(1 << 16))
            tasks = [asyncio.ensure_future(store.aget(self.key("a"))) for _ in range(500)]
            await asyncio.sleep(0)
            store.close()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                self.assertIsInstance(result, (bytearray, kvterrace.StateError))
            with self.assertRaises(kvterrace.StateError):
                await store.aget(self.key("a"))

        self.run_with(body)

    def test_a_close_by_another_thread(self):
        async def body(store):
            store.put(self.key("a"), bytes(1 << 16))
            closer = threading.Timer(0.05, store.close)
            closer.start()
            with self.assertRaises(kvterrace.StateError):
                while True:
                    await store.aget(self.key("a"))
            closer.join()

        self.run_with(body)

    def test_loops_one_after_the_other_leave_nothing(self):
        store = self.store()
        store.put(self.key("a"), bytes(4096))

        def descriptors():
            gc.collect()
            return len(os.listdir("/proc/self/fd"))

        asyncio.run(store.aget(self.key("a")))
        before = descriptors()
        for _ in range(6):
            asyncio.run(store.aget(self.key("a")))
        self.assertLessEqual(descriptors(), before)

    def test_a_queue_stays_on_its_loop(self):
        store = self.store()

        async def make():
            return store.queue()

        queue = asyncio.run(make())
        with self.assertRaises(kvterrace.StateError):
            asyncio.run(queue.exists(self.key("a")))
        queue.close()


if __name__ == "__main__":
    unittest.main()
