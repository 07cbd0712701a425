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


def recall_lines(tokens):
    """The recall texts of a length, a JSON text each, and the function that makes token ids."""
    sys.path.insert(0, os.path.join(TOP, "reference_model"))
    import vocabulary
    path = os.path.join(TOP, "reference_model", "texts", f"recall-{tokens}.jsonl.zst")
    text = subprocess.run(["zstd", "-dc", path], stdout=subprocess.PIPE, check=True, text=True)
    return text.stdout.splitlines(), vocabulary


def recall_prompts(tokens, count):
    """(token ids of a context with a question, token ids of the right answer) of recall texts."""
    lines, vocabulary = recall_lines(tokens)
    found = []
    for line in lines[:count]:
        one = json.loads(line)
        first, answer, end = one["questions"][0]
        asked = one["text"][:one["context"]] + one["text"][first:answer]
        whole = vocabulary.encode(asked + one["text"][answer:end])
        prompt = vocabulary.encode(asked)
        assert whole[:len(prompt)] == prompt
        found.append((prompt, whole[len(prompt):]))
    return found


def recall_texts(tokens, count):
    """Token ids of recall texts, the context and what follows it; the last ones of the file, since
    calibrations take the first."""
    lines, vocabulary = recall_lines(tokens)
    return [vocabulary.encode(json.loads(line)["text"]) for line in lines[-count:]]


class Calibrated:
    """A ladder of two variants, calibrated on 24 recall texts with the reference model, by the
    command of the build; loss is 1 - exp(-KL) of what the model says."""

    VARIANT = "planes:k6v4,g64"

    def __init__(self, folder):
        command = os.path.join(os.environ["KVT_BINARY_DIR"], "kvterrace")
        text, self.profile = os.path.join(folder, "recall.jsonl"), os.path.join(folder, "p.db")
        with open(text, "w", encoding="utf-8") as file:
            file.write("\n".join(recall_lines(768)[0]) + "\n")
        said = subprocess.run(
            [command, "profile", "calibrate", "--model", MODEL, "--name", "reference", "--text",
             f"recall={text}", "--database", self.profile, "--loss", "kl", "--contexts", "24",
             "--question-contexts", "2", "--variants", f"planes:k8v8,g64;{self.VARIANT}", "--json"],
            stdout=subprocess.PIPE, check=True, text=True)
        rung, = [one for one in json.loads(said.stdout)["rungs"] if one["variant"] == self.VARIANT]
        assert rung["accepted"]
        self.mean, self.entry = rung["loss_upper"], rung["loss_entry"]

    def settings(self):
        """Of a store that offers it to entries of the reference model."""
        return {"store.profile": self.profile, "store.ladder": "calibrated",
                "store.ladder_layout": "4x2x32:fp16", "store.ladder_class": "recall",
                "store.loss_limit": "0.1", "store.learn": "no"}

    def check(self, case, losses):
        """losses: of each text, in the mean over its tokens. They are within the limit: the mean
        of all, and that of nine texts in ten."""
        mean, over = sum(losses) / len(losses), sum(one > self.entry for one in losses)
        print(f"{case.id()}: {self.VARIANT}: loss {mean:.6f} in the mean of {len(losses)} texts "
              f"({self.mean:.6f} calibrated), most {max(losses):.6f} ({self.entry:.6f})",
              flush=True)
        case.assertGreater(min(losses), 0)  # the form was used
        case.assertLessEqual(mean, self.mean)
        case.assertLessEqual(over, len(losses) // 10)


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

    def live(self, script, request, code=0, timeout=2400):
        """One process of an engine: its answer, with what it printed as `log`."""
        folder = self.folder()
        ask, say = os.path.join(folder, "request.json"), os.path.join(folder, "answer.json")
        with open(ask, "w", encoding="utf-8") as file:
            json.dump(request, file)
        done = subprocess.run([sys.executable, os.path.join(HERE, script), ask, say],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=timeout, check=False)
        self.assertEqual(done.returncode, code, done.stdout[-6000:])
        if not os.path.exists(say):  # it was to die before its answer
            self.assertNotEqual(code, 0)
            return {"log": done.stdout}
        with open(say, encoding="utf-8") as file:
            return dict(json.load(file), log=done.stdout)


class VllmCase(EngineCase):
    """Lives of vLLM on the processor with a tier of ours: vllm_run.py."""

    prompts, chunk = (), 0

    def run_engine(self, folder, code=0, **more):
        tier = {"type": "KvterraceTier", "module_path": "kvterrace.vllm",
                "settings": disk_store(folder), "revision": "1", **more.pop("tier", {})}
        request = {"model": MODEL, "prompts": list(self.prompts), "tokens": 8,
                   "chunk": self.chunk, "secondary_tiers": [tier], **more}
        answer = self.live("vllm_run.py", request, code=code)
        self.assertNotIn("Failed to close mmap_obj", answer["log"])
        self.assertNotIn("BufferError", answer["log"])
        return answer

    def compare(self, computed, answer, cached, logprobs=True):
        for index, (first, second) in enumerate(zip(computed["answers"], answer["answers"])):
            self.assertEqual(second["tokens"], first["tokens"], f"prompt {index}")
            self.assertEqual(second["cached"], cached[index], f"prompt {index}")
            if logprobs:
                self.assertEqual(second["logprobs"], first["logprobs"], f"prompt {index}")


def damage_record(path, key):
    """Turns one byte of a key's record on a device file over."""
    with open(path, "r+b") as file:
        data = file.read()
        at = data.index(RECORD)
        while data[at + 32:at + 64] != key:
            at = data.index(RECORD, at + 1)
        file.seek(at + INSIDE)
        file.write(bytes([data[at + INSIDE] ^ 0x40]))
