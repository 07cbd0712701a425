#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files that the kvterrace command reads and writes: none is written over one that the same run
uses, what is written is whole or as it was, and each wrong input has the exit code that the README
promises.

    test_tools_files.py COMMAND
"""

import json
import math
import os
import re
import shlex
import stat
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import (  # noqa: E402
    COMMAND, WORKLOAD, CommandCase, command_line, rows_document)

TRACE = ('{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}\n'
         '{"timestamp": 9, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n')
LIVE = ["replay", *WORKLOAD, "--mode", "live", "--policy", "lru", "--set", "workload.requests=3"]
SIM = ["replay", *WORKLOAD, "--policy", "lru", "--set", "workload.requests=3"]


class FilesTest(CommandCase):
    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def keeps(self, name, *arguments, part="uses that file"):
        """The command refuses to write, and the file is what it was."""
        before = self.read(name)
        self.fails(part, *arguments)
        self.assertEqual(self.read(name), before)

    def make_profile(self):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles")
        self.run_command("profile", "import", os.path.join(source, "devices.json"), "--database",
                         "p.db")

    def test_no_output_over_standard_input(self):
        self.put("trace.jsonl", TRACE)
        before = self.read("trace.jsonl")
        with open(self.path("trace.jsonl"), "rb") as trace:
            result = subprocess.run([COMMAND, "replay", "--trace", "-", "--policy", "lru",
                                     "--report", "trace.jsonl"], cwd=self.folder, stdin=trace,
                                    stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("uses that file", result.stderr)
        self.assertEqual(self.read("trace.jsonl"), before)

    def test_no_output_over_an_input(self):
        self.make_profile()
        trace = self.put("trace.jsonl", TRACE)
        self.put("run.ini", "[tier.dram]\ncapacity = 1GiB\n")
        os.link(self.path("p.db"), self.path("hard.db"))
        os.symlink("p.db", self.path("soft.db"))
        foreign = ["--set", "store.profile_foreign=yes"]
        for name in ("p.db", "./p.db", "hard.db", "soft.db"):
            self.keeps("p.db", *SIM, *foreign, "--database", "p.db", "--report", name)
            self.keeps("p.db", *SIM, *foreign, "--database", "p.db", "--plan-log", name)
        self.keeps("run.ini", *SIM, "--config", "run.ini", "--report", "run.ini")
        for option in ("--report", "--plan-log"):
            self.keeps("trace.jsonl", "replay", "--trace", trace, "--policy", "lru", option, trace)
        os.symlink(trace, self.path("log.fifo.1"))
        self.keeps("trace.jsonl", "replay", "--trace", trace, "--policy", "lru,fifo",
                   "--plan-log", "log")
        self.fails("are both", *SIM, "--report", "same", "--plan-log", "same")
        self.put("dump", "never looked at")
        for command in ("encode", "decode"):
            self.keeps("dump", command, "dump", "-o", "dump")
        self.keeps("dump", "report", "dump", "-o", "dump")
        self.keeps("dump", *LIVE, "--set", "device.d.tier=ssd", "--set", "device.d.backend=file",
                   "--set", "device.d.path=dump", "--set", "device.d.capacity=8MiB", "--report",
                   "dump")
        self.keeps("dump", *SIM, "--set", "store.catalog=dump", "--report", "dump")

    def test_outputs_are_whole_or_as_they_were(self):
        self.put("old.html", "old")
        os.symlink("old.html", self.path("link.html"))
        self.run_command(*SIM, "--report", "link.html", "--plan-log", "log")
        self.assertTrue(os.path.islink(self.path("link.html")))
        self.assertIn(b"</html>", self.read("old.html"))
        self.assertGreater(len(self.read("log")), 0)
        before = self.read("log")
        self.fails("gpu", *LIVE, "--set", "device.gpu.tier=hbm", "--set", "device.gpu.backend=hbm",
                   "--set", "device.gpu.capacity=1MiB", "--set", "device.gpu.gpu=1000",
                   "--plan-log", "log", code=self.absent_code())
        self.assertEqual(self.read("log"), before)
        page = self.run_command(*SIM, "--quiet", "--report", "/dev/stdout").stdout
        self.assertIn("</html>", page)
        self.assertEqual([name for name in os.listdir(self.folder) if ".part" in name], [])

    def written_to(self, name, *arguments, code=0):
        """Runs the command with the fifo as its output; what came through it."""
        os.mkfifo(self.path(name))
        with subprocess.Popen(["cat", self.path(name)], stdout=subprocess.PIPE) as reader:
            self.run_command(*arguments, "-o", name, code=code)
            text = reader.communicate(timeout=60)[0]
        self.assertTrue(stat.S_ISFIFO(os.lstat(self.path(name)).st_mode))
        return text

    def test_inspect_shows_kept_tokens(self):
        self.put_dump("kv.safetensors")
        for variant, share in (("lossless", 1), ("drop:stream,50", 2)):
            self.run_command("encode", "kv.safetensors", "--variant", variant, "-o", "kv.kvt")
            document = self.run_json("inspect", "kv.kvt")
            self.assertEqual(document["tokens_kept"] * share, document["layout"]["tokens"])

    def test_what_is_no_file_is_never_replaced(self):
        """A pipe and a device node are written to, and are what they were."""
        self.put_dump("kv.safetensors")
        self.run_command("encode", "kv.safetensors", "-o", "kv.kvt")
        self.run_command("decode", "kv.kvt", "-o", "back.safetensors")
        self.assertEqual(self.written_to("one", "encode", "kv.safetensors"), self.read("kv.kvt"))
        self.assertEqual(self.written_to("two", "decode", "kv.kvt"), self.read("back.safetensors"))
        os.symlink("back.safetensors", self.path("link"))
        self.run_command("decode", "kv.kvt", "-o", "link")
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertEqual([name for name in os.listdir(self.folder) if ".part" in name], [])

    def test_device_nodes_are_never_replaced(self):
        nodes = {"null": (3, 0), "full": (7, 1)}
        self.put_dump("kv.safetensors")
        self.run_command("encode", "kv.safetensors", "-o", "kv.kvt")
        for name, (minor, code) in nodes.items():
            try:
                os.mknod(self.path(name), 0o600 | stat.S_IFCHR, os.makedev(1, minor))
                with open(self.path(name), "r+b", buffering=0):
                    pass
            except OSError as error:
                self.skipTest(f"no device nodes here: {error}")
            for command, source in (("encode", "kv.safetensors"), ("decode", "kv.kvt")):
                self.run_command(command, source, "-o", name, code=code)
                self.assertTrue(stat.S_ISCHR(os.lstat(self.path(name)).st_mode), command)

    def put_dump(self, name):
        header, data = {}, b""
        for side in "kv":
            bytes_here = struct.pack("<512f", *(math.sin(i + len(data)) for i in range(512)))
            header[f"{side}.0"] = {"dtype": "F32", "shape": [8, 1, 64],
                                   "data_offsets": [len(data), len(data) + len(bytes_here)]}
            data += bytes_here
        text = json.dumps(header).encode()
        self.put(name, struct.pack("<Q", len(text)) + text + data)

    def absent_code(self):
        """Without a driver the machine lacks GPUs; with one it is that GPU which is not there."""
        result = subprocess.run([COMMAND, *LIVE, "--set", "tier.hbm.capacity=1MiB"],
                                cwd=self.folder, capture_output=True, text=True, check=False)
        return 77 if result.returncode == 77 else 2

    def test_a_gpu_that_is_not_there(self):
        gpu = [*LIVE, "--set", "device.g.tier=hbm", "--set", "device.g.backend=hbm", "--set",
               "device.g.capacity=1GiB"]
        self.fails("GPU", *gpu, "--set", "device.g.gpu=1000", code=self.absent_code())
        document = self.run_json(*gpu, "--set", "device.g.emulated=yes")
        self.assertIs(document["results"][0]["emulated"]["hbm"], True)
        document = self.run_json(*LIVE, "--set", "tier.hbm.capacity=1GiB", "--set",
                                 "tier.hbm.emulated=yes")
        self.assertIs(document["results"][0]["emulated"]["hbm"], True)

    def test_bad_input_files(self):
        """Whatever is wrong with a file that was named, the exit code is 2."""
        self.put("garbage", bytes(range(256)) * 16)
        self.put("empty", "")
        texts = ["--text", self.put("texts.jsonl", '{"text": "a b c"}\n')]
        for name in ("garbage", "empty"):
            part = "no model" if name == "garbage" else name
            self.fails(part, "profile", "quality", "--model", name, *texts)
            self.fails(part, "profile", "calibrate", "--model", name, *texts)
            self.fails("safetensors" if name == "garbage" else name, "encode", name)
            self.fails(name, "decode", name, "-o", "x")
        for name in ("garbage", "empty"):
            result = self.run_command("inspect", name, code=2)
            self.assertIn("neither a catalog, nor a profile, nor a record", result.stderr)
        self.fails("this is a folder", "check-config", ".")
        tier = ["--set", "device.d.tier=ssd", "--set", "device.d.backend=file", "--set",
                "device.d.path=garbage"]
        self.fails("too small", *LIVE, *tier)
        self.fails("capacity", *LIVE, "--scale", "1", "--set", "device.d.tier=ssd", "--set",
                   "device.d.backend=file", "--set", "device.d.path=made", "--set",
                   "device.d.capacity=16MiB", "--set", "tier.ssd.capacity=1GB")
        for command in ("recover", "verify"):
            result = self.run_command(command, "--set", "tier.dram.capacity=1GiB", code=2)
            self.assertIn("store.catalog is not set", result.stderr)
        self.fails("No such file", "profile", "devices", "-D", "none", "--database", "i.db")
        self.fails("/proc/x", *SIM, "--plan-log", "/proc/x")
        latin = rows_document("[model]\nmodel\ncafe\n").encode().replace(b"cafe", b"caf\xe9")
        self.fails("latin.json: line 1, column 76: unable to decode byte 0xe9", "profile", "import",
                   "--source", "here", "--database", "i.db", self.put("latin.json", latin))
        self.fails("replay.block_tokens has no effect here: the trace has blocks of 512",
                   "replay", "--trace", self.put("trace.jsonl", TRACE), "--policy", "lru", "--set",
                   "replay.block_tokens=64")
        self.run_command("replay", "--trace", "trace.jsonl", "--policy", "lru", "--set",
                         "replay.block_tokens=512")

    def test_the_readme_is_true(self):
        """The options of every command that README and guide print exist, and the files that come
        with the tree are there."""
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        text = ""
        for name in ("README.md", os.path.join("docs", "GUIDE.md")):
            with open(os.path.join(source, name), encoding="utf-8") as file:
                text += file.read().replace("\\\n", " ")
        commands = re.findall(r"^    (?:build/)?kvterrace (.*?)(?: +#.*)?$", text, re.MULTILINE)
        self.assertGreater(len(commands), 15)
        for command in commands:
            with self.subTest(command=command):
                words = shlex.split(re.sub(r"(--json)? *>.*| \|.*", "", command))
                self.assertIn("Usage:", self.run_command(*words, "--help").stdout)
                for path in re.findall(r"\b(?:profiles|reference_model)/[\w./-]+", command):
                    self.assertTrue(any(os.path.exists(os.path.join(source, path + ending))
                                        for ending in ("", ".zst")), path)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_a_full_stdout(self):
        for more in ([], ["--json"]):
            with open("/dev/full", "wb") as full:
                result = subprocess.run([COMMAND, *SIM, *more], cwd=self.folder, stdout=full,
                                        stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(result.returncode, 1)
            self.assertIn("standard output", result.stderr)
            self.assertNotIn("memory", result.stderr)
        self.make_profile()
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles")
        self.run_command("profile", "import", os.path.join(source, "reference-model.json"),
                         "--database", "p.db")
        export = ["profile", "export", "--database", "p.db"]
        for arguments in (export, [*export, "--json"], ["--help"],
                          ["profile", "--help"], ["kvlab", "stripe", "--help"],
                          ["--version"]):
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                result = subprocess.run(command_line(*arguments), cwd=self.folder, stdout=full,
                                        stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("standard output", result.stderr)
                self.assertNotIn("KVT_E_CANCELLED", result.stderr)

    def test_check_config_refuses_what_a_store_refuses(self):
        drive = "[device.{}]\ntier = ssd\nbackend = file\npath = {}\ncapacity = 64MiB\n"
        os.mkdir(self.path("folder"))
        self.put("there", bytes(1 << 20))
        os.symlink("there", self.path("again"))
        for part, text in (
                ("no tier has", ""),
                ("no tier has", "[store]\npolicy = lru\n"),
                ("device.a.path is the same file", drive.format("a", "f") + drive.format("b", "f")),
                ("device.a.path is the same file",
                 drive.format("a", "f") + drive.format("b", "./././f")),
                ("device.a.path is the same file", "[store]\nfollow_symlinks = yes\n" +
                 drive.format("a", "there") + drive.format("b", "again")),
                ("a symbolic link", drive.format("b", "again")),
                ("neither a regular file", drive.format("b", "/dev/zero")),
                ("store.catalog is the same file",
                 "[store]\ncatalog = there\n" + drive.format("a", "there")),
                ("store.catalog: folder: this is a folder",
                 "[store]\ncatalog = folder\n" + drive.format("a", "f")),
                ("store.catalog: none/c.db: its folder is not there",
                 "[store]\ncatalog = none/c.db\n" + drive.format("a", "f")),
                ("device.a.path: folder: this is a folder", drive.format("a", "folder")),
                ("device.a.path: none/f: its folder is not there", drive.format("a", "none/f")),
                ("store.profile: none.db: No such file",
                 "[store]\nladder = calibrated\nladder_layout = 32x8x128:bf16\npolicy = lru\n"
                 "profile = none.db\n[tier.dram]\ncapacity = 1GiB\n")):
            with self.subTest(part=part, text=text):
                result = self.fails(part, "check-config", self.put("bad.ini", text))
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.run_command("check-config", self.put(
            "good.ini", "[store]\ncatalog = c.db\n" + drive.format("a", "f") +
            drive.format("b", "g")))
        self.run_command("check-config", self.put("sim.ini", "[workload]\nrate = 2\n"))

    def test_bounded_puts(self):
        """A store whose puts are bounded more says what it refused."""
        arguments = ["replay", "--json", "--quiet", "--workload", "poisson",
                     "--policy", "lru,utility", "--set", "workload.requests=200",
                     "--set", "workload.contexts=40", "--set", "tier.dram.capacity=2GiB",
                     "--set", "replay.bounds=no"]
        for staging, busy in ([], False), (["--set", "store.put_staging=1"], True):
            results = json.loads(self.run_command(*arguments, *staging).stdout)["results"]
            self.assertEqual(any(result["puts_busy"] > 0 for result in results), busy)


if __name__ == "__main__":
    unittest.main()
