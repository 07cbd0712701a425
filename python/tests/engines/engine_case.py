# SPDX-License-Identifier: Apache-2.0
"""What the tests with real engines share: the reference model, its texts as token ids, stores on a
file, and processes of an engine."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
MODEL = os.path.join(TOP, "reference_model", "model")
RECORD = b"KVTR\r\n\x1a\n"  # docs/FORMAT.md: a record begins with it
INSIDE = 20480  # of a record: behind its head and its table


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(77)


def need(*modules):
    """Skips the file, with the reason, where one of the modules cannot be imported."""
    for name in modules:
        try:
            __import__(name)
        except Exception as error:  # an engine may fail in many ways where it does not belong
            skip(f"{name}: {type(error).__name__}: {error}")


def recall_prompts(tokens, count):
    """(token ids of a context with a question, token ids of the right answer) of recall texts."""
    sys.path.insert(0, os.path.join(TOP, "reference_model"))
    import vocabulary
    path = os.path.join(TOP, "reference_model", "texts", f"recall-{tokens}.jsonl.zst")
    text = subprocess.run(["zstd", "-dc", path], stdout=subprocess.PIPE, check=True, text=True)
    found = []
    for line in text.stdout.splitlines()[:count]:
        one = json.loads(line)
        first, answer, end = one["questions"][0]
        asked = one["text"][:one["context"]] + one["text"][first:answer]
        whole = vocabulary.encode(asked + one["text"][answer:end])
        prompt = vocabulary.encode(asked)
        assert whole[:len(prompt)] == prompt
        found.append((prompt, whole[len(prompt):]))
    return found


def disk_store(folder, **more):
    """Settings of a store that keeps everything on one file and finds it again."""
    return {"store.catalog": os.path.join(folder, "catalog.db"), "store.policy": "lru",
            "device.d.path": os.path.join(folder, "disk"), "device.d.tier": "ssd",
            "device.d.backend": "file", "device.d.capacity": "256MiB", **more}


class EngineCase(unittest.TestCase):
    def folder(self):
        made = tempfile.TemporaryDirectory(prefix="kvt-engine-")
        self.addCleanup(made.cleanup)
        return made.name

    def live(self, script, request, code=0, timeout=600):
        """One process of an engine: its answer, with what it printed as `log`."""
        folder = self.folder()
        ask, say = os.path.join(folder, "request.json"), os.path.join(folder, "answer.json")
        with open(ask, "w", encoding="utf-8") as file:
            json.dump(request, file)
        done = subprocess.run([sys.executable, os.path.join(HERE, script), ask, say],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=timeout, check=False)
        self.assertEqual(done.returncode, code, done.stdout[-6000:])
        with open(say, encoding="utf-8") as file:
            return dict(json.load(file), log=done.stdout)


def damage_record(path, key):
    """Turns one byte of a key's record on a device file over."""
    with open(path, "r+b") as file:
        data = file.read()
        at = data.index(RECORD)
        while data[at + 32:at + 64] != key:
            at = data.index(RECORD, at + 1)
        file.seek(at + INSIDE)
        file.write(bytes([data[at + INSIDE] ^ 0x40]))
