# SPDX-License-Identifier: Apache-2.0
"""What the package's tests share: the import from the build, a store, scripts in processes of their
own."""

import os
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ.get("KVT_BINARY_DIR", os.path.join(os.path.dirname(__file__), "..", "..",
                                                      "build"))
PACKAGE = os.path.join(BUILD, "python")


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


# A child of a process with threads waits for ever for a lock of ThreadSanitizer's.
UNFORKED = ("soak.py", "test_package_soak.py", "test_package_async.py")
if "thread" in os.environ.get("KVT_SANITIZE", "") and \
        os.path.basename(sys.argv[0]) not in UNFORKED:
    skip("its tests fork, which ThreadSanitizer does not bear")
if os.environ.get("KVT_PACKAGE") != "installed":
    if not os.path.exists(os.path.join(PACKAGE, "kvterrace", "_kvt.abi3.so")):
        skip("the build has no Python package: Python 3.11 with headers and cffi is needed")
    sys.path.insert(0, PACKAGE)

import kvterrace  # noqa: E402  (behind the path)

LAYOUT = kvterrace.Layout(layers=3, kv_heads=2, head_dim=32, dtype="bf16", tokens=48)


def pattern(size, seed=1):
    """Bytes that differ from place to place and compress a little."""
    unit = bytes((seed * 31 + 7 * index + (index >> 5)) & 0xff for index in range(4099))
    return bytearray((unit * (size // len(unit) + 1))[:size])


def open_store(**settings):
    settings.setdefault("tier_dram_capacity", "32MiB")
    settings.setdefault("policy", "lru")
    return kvterrace.Store(**settings)


class Server:
    """`kvterrace serve` in a process of its own, over a store in `folder`."""

    def __init__(self, folder, **settings):
        self.socket, self._config = os.path.join(folder, "s"), os.path.join(folder, "kvt.ini")
        given = {"serve.socket": self.socket, "tier.dram.capacity": "32MiB", "store.policy": "lru",
                 **settings}
        with open(self._config, "w", encoding="utf-8") as file:
            for name, value in given.items():
                section, _, key = name.rpartition(".")
                file.write(f"[{section}]\n{key} = {value}\n")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "kvterrace"), "serve", "--config", self._config],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready: "):
            self.kill()
            raise AssertionError(f"the server says {line!r}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        """Ends it as a service is ended; its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
            self.process.stdout.close()
        return self.process.returncode


class PackageCase(unittest.TestCase):
    def setUp(self):
        self.space = kvterrace.Space(model="test", dtype="bf16", block_tokens=48)

    def key(self, name):
        return self.space.key(str(name))

    def store(self, **settings):
        store = open_store(**settings)
        self.addCleanup(store.close)
        return store

    def server(self, **settings):
        made = Server(self.folder(), **settings)
        self.addCleanup(made.stop)
        return made

    def until(self, call):
        """What a call gives once it gives something."""
        end, found = time.monotonic() + 30, call()
        while not found:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.002)
            found = call()
        return found

    def folder(self):
        made = tempfile.TemporaryDirectory(prefix="kvt-test-")
        self.addCleanup(made.cleanup)
        return made.name

    def refused(self, error, text, call, *arguments, **keywords):
        """The call fails with this class, and its message says so."""
        with self.assertRaises(error) as caught:
            call(*arguments, **keywords)
        self.assertIn(text, str(caught.exception))
        return caught.exception

    def script(self, text, code=0, timeout=120):
        """Runs Python in a process of its own; its output."""
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", text],
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=timeout, check=False)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout
