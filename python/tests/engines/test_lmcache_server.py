#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM on the processor, LMCache's server behind it and our plug-in behind that: what one engine
stores, another one finds after a restart of both."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

from engine_case import RECORD, VllmCase, disk_store, need, recall_prompts

ENGINE = "lmcache"
CHUNK = 64
PROMPTS = recall_prompts(512, 2)
FULL = [len(prompt) // CHUNK for prompt, _ in PROMPTS]


class LmcacheServer:
    """`lmcache server` with one second level of ours."""

    def __init__(self, folder):
        self._folder, self._process = folder, None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self):
        level = {"type": "plugin", "module_path": "kvterrace.lmcache",
                 "class_name": "KvterraceL2Adapter",
                 "adapter_params": {"settings": disk_store(self._folder), "revision": "1"}}
        with open(os.path.join(self._folder, "server.log"), "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1",
                 "--port", str(self.port), "--http-port", "0", "--l1-size-gb", "1",
                 "--eviction-policy", "LRU", "--chunk-size", str(CHUNK),
                 "--supported-transfer-mode", "auto", "--l2-adapter", json.dumps(level)],
                stdout=log, stderr=log)
        until = time.monotonic() + 1200
        while True:
            with socket.socket() as asks:
                if asks.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"the server does not start: {self.said()[-4000:]}")
            time.sleep(0.2)

    def said(self):
        with open(os.path.join(self._folder, "server.log"), encoding="utf-8",
                  errors="replace") as log:
            return log.read()

    def stop(self):
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Server(VllmCase):
    prompts, chunk = [prompt for prompt, _ in PROMPTS], CHUNK

    def records(self, folder):
        with open(os.path.join(folder, "disk"), "rb") as disk:
            return disk.read().count(RECORD)

    def test_a_restart_of_both(self):
        folder = self.folder()
        server = LmcacheServer(folder)
        self.addCleanup(server.stop)
        engine = {"connector": {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
                                "kv_connector_extra_config": {
                                    "lmcache.mp.host": "tcp://127.0.0.1",
                                    "lmcache.mp.port": server.port}}}
        server.start()
        computed = self.run_engine(folder, **engine)
        until = time.monotonic() + 300
        while self.records(folder) < sum(FULL):
            self.assertLess(time.monotonic(), until, server.said()[-4000:])
            time.sleep(0.2)
        server.stop()
        server.start()
        self.compare(computed, self.run_engine(folder, **engine), [CHUNK * one for one in FULL])


if __name__ == "__main__":
    need("vllm", "lmcache")
    unittest.main(verbosity=2)
