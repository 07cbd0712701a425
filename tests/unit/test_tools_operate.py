#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands that operate a store which kvterrace serve lends, over a real server: ls, rm, clear,
flush, retire, top. What an engine does is done by a client of its own.

    test_tools_operate.py COMMAND CLIENT
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase, command_line  # noqa: E402
from played_engine import Engine  # noqa: E402

CLIENT = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "run_client_entries"
SPACES = ("aa00000000000001", "aa00000000000002", "bb00000000000003")
STORE = ("[store]\ncatalog = catalog.db\npolicy = lru\n[tier.dram]\ncapacity = 16MiB\n"
         "[device.d0]\ntier = ssd\nbackend = file\npath = d0.bin\ncapacity = 64MiB\n"
         "[device.d1]\ntier = ssd\nbackend = file\npath = d1.bin\ncapacity = 64MiB\n"
         "[serve]\nsocket = s.sock\n")
KIB = 1024


class OperateTest(CommandCase):
    def setUp(self):
        super().setUp()
        self.config = self.put("store.ini", STORE)
        self.server = None

    def serve(self, *arguments):
        self.server = subprocess.Popen(
            command_line("serve", "--config", self.config, *arguments), cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.server.communicate)
        self.addCleanup(self.server.kill)
        line = self.server.stdout.readline()
        self.assertTrue(line.startswith("ready: "), line)
        return line

    def leave(self):
        self.server.send_signal(signal.SIGTERM)
        output, errors = self.server.communicate()
        self.assertEqual((self.server.returncode, output, errors), (0, "", ""))

    def test_a_close_that_loses_entries(self):
        self.serve("--set", "store.close_deadline=0.05", "--set", "store.persist_rate=0", "--set",
                   "device.d0.write_bandwidth=1MB/s", "--set", "device.d1.write_bandwidth=1MB/s")
        self.client("put", SPACES[0], 1, 40, 200 * KIB)
        self.server.send_signal(signal.SIGTERM)
        output, errors = self.server.communicate()
        self.assertNotEqual(self.server.returncode, 0)
        self.assertEqual(output, "")
        self.assertRegex(errors, r"the close loses \d+ entries \(.* MiB\) that are not on SSD")

    def client(self, what, space, tenant, count, size=4096):
        """What the client prints, a line each."""
        result = subprocess.run([CLIENT, "s.sock", what, space, str(tenant), str(count), str(size)],
                                cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.split()

    def fill(self):
        """Entries of three spaces and two tenants."""
        keys = {}
        for place, (space, tenant) in enumerate(((SPACES[0], 0), (SPACES[0], 1), (SPACES[1], 1),
                                                 (SPACES[2], 0))):
            keys[space, tenant] = self.client("put", space, tenant, 10 + place)
        return keys

    def operate(self, *words, **options):
        return self.run_command(*words, "--config", self.config, **options)

    def operate_json(self, *words, code=0):
        return json.loads(self.operate(*words, "--json", code=code).stdout)

    def holds(self, space, tenant, count):
        holder = subprocess.Popen([CLIENT, "s.sock", "hold", space, str(tenant), str(count), "1"],
                                  cwd=self.folder, text=True, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        self.addCleanup(holder.communicate)
        self.assertEqual(holder.stdout.readline(), "held\n")
        return holder

    def let_go(self, holder):
        """Ends a client that holds leases; the server notices it a moment later."""
        holder.communicate()
        while any(row["held"] for row in self.operate_json("ls")["entries"]):
            time.sleep(0.01)

    def test_ls(self):
        self.serve()
        self.assertEqual(self.operate("ls").stdout, "")
        keys = self.fill()
        every = sorted(key for some in keys.values() for key in some)
        self.assertEqual(self.operate("ls").stdout.split(), every)
        self.assertEqual(self.run_command("ls", "--connect", "s.sock").stdout.split(), every)
        for limit in (1, 7, len(every), 1000):
            self.assertEqual(self.operate("ls", "--limit", str(limit)).stdout.split(),
                             every[:limit])
        space = sorted(keys[SPACES[0], 0] + keys[SPACES[0], 1])
        self.assertEqual(self.operate("ls", "--space", SPACES[0]).stdout.split(), space)
        self.assertEqual(self.operate("ls", "--space", "BB").stdout.split(), keys[SPACES[2], 0])
        self.assertEqual(self.operate("ls", "--tenant", "1").stdout.split(),
                         sorted(keys[SPACES[0], 1] + keys[SPACES[1], 1]))
        self.assertEqual(self.operate("ls", "--tenant", "1", "--space", SPACES[0]).stdout.split(),
                         sorted(keys[SPACES[0], 1]))
        self.assertEqual(self.operate("ls", "--tenant", "9").stdout, "")
        result = self.fails("more than one space begins with aa: ", "ls", "--config", self.config,
                            "--space", "aa")
        self.assertIn(SPACES[0], result.stderr)
        self.assertIn(SPACES[1], result.stderr)
        self.fails("no entry's space begins with cc", "ls", "--config", self.config, "--space",
                   "cc")
        self.operate("flush")
        holder = self.holds(SPACES[2], 0, 1)
        lines = self.operate("ls", "--space", "bb", "--long").stdout.splitlines()
        self.assertEqual(lines[0].split(), ["tier", "variant", "stored", "bytes", "tokens",
                                            "tenant", "class", "age", "hcm", "key"])
        self.assertEqual([line.split()[-1] for line in lines[1:]], keys[SPACES[2], 0])
        self.assertEqual([line.split()[-2][0] for line in lines[1:]], ["h"] + 12 * ["-"])
        document = self.operate_json("ls", "--space", "bb")
        self.assertEqual(document["schema"], "kvterrace-entries-1")
        for place, row in enumerate(document["entries"]):
            self.assertEqual(row["key"], keys[SPACES[2], 0][place])
            self.assertEqual((row["bytes"], row["tokens"], row["tenant"]), (4096, 16, 0))
            self.assertIn(row["tier"], ("dram", "ssd"))
            self.assertEqual(row["held"], place == 0)
            self.assertGreater(row["stored_bytes"], 0)
        self.let_go(holder)
        self.leave()

    def test_ls_of_many(self):
        """More than one answer holds; each comes once."""
        self.serve("--set", "tier.dram.capacity=256MiB")
        keys = self.client("put", SPACES[0], 0, 10000, 64)
        self.assertEqual(self.operate("ls").stdout.split(), sorted(keys))
        self.assertEqual(self.operate("ls", "--limit", "3").stdout.split(), sorted(keys)[:3])
        self.leave()

    def test_rm(self):
        self.serve()
        keys = self.client("put", SPACES[0], 0, 10)
        self.assertEqual(self.operate("rm", *keys[:2], keys[2].upper()).stdout, "removed 3 of 3\n")
        self.assertEqual(self.operate("ls").stdout.split(), keys[3:])
        result = self.operate("rm", keys[0], keys[3], code=1)
        self.assertEqual(result.stdout, "removed 1 of 2\n")
        self.assertEqual(result.stderr, f"{keys[0]}: not stored\n")
        self.client("put", SPACES[0], 0, 1)
        holder = self.holds(SPACES[0], 0, 1)
        document = self.operate_json("rm", keys[0], keys[1], keys[4], code=1)
        self.assertEqual((document["removed"], document["missing"], document["held"]),
                         ([keys[4]], [keys[1]], [keys[0]]))
        self.assertIn("a lease holds it", self.operate("rm", keys[0], code=1).stderr)
        self.let_go(holder)
        self.operate("rm", keys[0])
        for wrong in ("", "12", keys[5][:-1], keys[5] + "0", "g" * 64, "-" * 64):
            self.fails("is no key", "rm", "--config", self.config, "--", wrong)
        self.fails("which KEY", "rm", "--config", self.config)
        self.assertEqual(self.operate("ls").stdout.split(), keys[5:])
        self.leave()

    def test_clear(self):
        self.serve()
        keys = self.fill()
        every = sum(len(some) for some in keys.values())
        for words, count in ((("--space", SPACES[0]), 21), (("--space", "bb0"), 13),
                             (("--tenant", "1"), 23), (("--tenant", "0"), 23),
                             (("--tenant", "1", "--space", SPACES[0]), 11),
                             (("--everything",), every)):
            with self.subTest(words=words):
                document = self.operate_json("clear", *words)
                self.assertEqual((document["cleared"], document["entries"], document["removed"]),
                                 (False, count, 0))
                self.assertEqual(sum(tier["entries"] for tier in document["tiers"].values()),
                                 count)
                self.assertIn(f"nothing was removed: --yes removes {count} entries",
                              self.operate("clear", *words).stdout)
        self.assertEqual(len(self.operate("ls").stdout.split()), every)
        self.assertIn("removed 11 entries", self.operate("clear", "--tenant", "1", "--space",
                                                         SPACES[0], "--yes").stdout)
        document = self.operate_json("clear", "--space", "bb", "--yes")
        self.assertEqual((document["cleared"], document["removed"]), (True, 13))
        self.assertEqual(self.operate("ls").stdout.split(),
                         keys[SPACES[0], 0] + keys[SPACES[1], 1])
        holder = self.holds(SPACES[0], 0, 4)
        document = self.operate_json("clear", "--space", SPACES[0])
        self.assertEqual((document["entries"], document["held"]), (6, 4))
        result = self.operate("clear", "--everything", "--yes", code=1)
        self.assertIn("held            4 by leases", result.stdout)
        self.assertIn("leases hold some", result.stderr)
        self.assertEqual(self.operate("ls").stdout.split(), keys[SPACES[0], 0][:4])
        self.let_go(holder)
        self.assertIn("removed 4", self.operate("clear", "--everything", "--yes").stdout)
        self.assertEqual(self.operate("ls").stdout, "")
        self.fails("says what to clear", "clear", "--config", self.config)
        self.fails("says what to clear", "clear", "--config", self.config, "--everything",
                   "--tenant", "1")
        self.fails("--tenant: '256'", "clear", "--config", self.config, "--tenant", "256")
        self.fails("--tenant: '-1'", "clear", "--config", self.config, "--tenant", "-1")
        for wrong in ("", "0x12", "xyz", "0" * 17):
            self.fails("--space: '", "clear", "--config", self.config, "--space", wrong)
        self.fails("remote.NAME", "clear", "--config", self.config, "--everything", "--copies")
        self.fails("--yes belongs", "clear", "--everything", "--yes")
        self.leave()

    def test_flush(self):
        self.serve("--set", "store.persist_rate=0")
        self.client("put", SPACES[0], 0, 20)
        self.assertIn("flushed in ", self.operate("flush").stdout)
        document = self.operate_json("flush")
        self.assertEqual((document["status"], document["persisted"]), ("KVT_OK", None))
        document = self.operate_json("flush", "--persist")
        self.assertEqual(document["persisted"]["left"], {"entries": 0, "bytes": 0})
        self.assertEqual(document["persisted"]["written"]["entries"], 20)
        text = self.operate("flush", "--persist", "30").stdout
        self.assertRegex(text, r" 0 entries .* written to SSD")
        self.server.kill()
        self.server.communicate()
        self.serve()
        self.assertEqual(len(self.operate("ls").stdout.split()), 20)
        self.assertEqual(self.client("get", SPACES[0], 0, 20), ["20"])
        self.fails("SECONDS belong to --persist", "flush", "--config", self.config, "30")
        for wrong in ("soon", "0", "-1", "nan", "1e99"):
            self.fails("is not a time", "flush", "--config", self.config, "--persist", "--", wrong)
        self.leave()
        self.config = self.put("memory.ini", "[store]\npolicy = lru\n[tier.dram]\n"
                               "capacity = 16MiB\n[serve]\nsocket = s.sock\n")
        self.serve()
        self.operate("flush", "--persist", code=77)
        self.operate("flush")
        self.leave()

    def test_retire(self):
        self.config = self.put("store.ini", STORE.replace("[tier.dram]\ncapacity = 16MiB\n",
                                                          "tick = 0.01\n"))
        self.serve()
        self.client("put", SPACES[0], 0, 64, 64 * KIB)
        self.operate("flush")
        self.fails("there is no device d9; there are d0, d1", "retire", "--config", self.config,
                   "d9")
        self.fails("one of --drain", "retire", "--config", self.config, "d0", "--now", "--remove")
        self.fails("--no-wait belongs", "retire", "--config", self.config, "d0", "--now",
                   "--no-wait")
        self.fails("which DEVICE", "retire", "--config", self.config)
        result = self.operate("retire", "d0", "--remove", code=1)
        self.assertIn("drain it", result.stderr)
        self.assertRegex(result.stdout, r"^d0: ssd, serving, .* of 64.0 MiB used\n$")
        document = self.operate_json("retire", "d0", "--no-wait")
        self.assertEqual((document["action"], document["state"]), ("drain", "draining"))
        self.assertGreater(document["used_bytes_before"], 0)
        document = self.operate_json("retire", "d0", "--serve")
        self.assertEqual((document["action"], document["state"]), ("serve", "serving"))
        result = self.operate("retire", "d0")
        self.assertIn("d0: empty; retire --remove takes it out", result.stdout)
        self.assertEqual(self.client("get", SPACES[0], 0, 64, 64 * KIB), ["64"])
        document = self.operate_json("retire", "d0", "--remove")
        self.assertEqual((document["action"], document["used_bytes"]), ("remove", 0))
        self.assertEqual(self.client("get", SPACES[0], 0, 64, 64 * KIB), ["64"])
        # The last one of its tier: said, and done all the same.
        result = self.operate("retire", "d1", "--no-wait")
        self.assertIn("no other device of the tier serves", result.stderr)
        result = self.operate("retire", "d1", "--now")
        self.assertIn("gone", result.stdout)
        self.assertEqual(self.client("get", SPACES[0], 0, 64, 64 * KIB), ["0"])
        self.assertIn("out of service", self.operate("retire", "d1", "--drain", code=1).stderr)
        self.leave()

    # ---- top ----

    def test_top(self):
        self.serve()
        self.client("put", SPACES[0], 0, 20)
        self.client("get", SPACES[0], 0, 25)
        text = self.operate("top", "--once").stdout
        self.assertTrue(all(len(line) <= 80 for line in text.splitlines()), text)
        self.assertLessEqual(len(text.splitlines()), 24)
        self.assertIn(" at s.sock, open ", text)
        self.assertIn("\nall in order\n", text)
        for name in ("dram", "ssd ", "d0 ", "d1 ", "gets ", "puts ", "refused ", "moves ",
                     "MB to SSD "):
            self.assertIn("\n" + name, text)
        self.assertRegex(text, r"\ngets .*hits 80.0 % now, 80.0 % ever; 25 ever\n")
        self.assertIn("missed    absent 5\n", text)
        self.assertNotIn("\033", text)
        document = self.operate_json("top", "--once")
        self.assertEqual((document["schema"], document["there"], document["gets"],
                          document["puts"]), ("kvterrace-top-1", True, 25, 20))
        self.assertEqual(document["misses"]["absent"], 5)
        self.assertEqual(sum(document["hits"].values()), 20)
        self.assertEqual([row["device"] for row in document["devices"]][-2:], ["d0", "d1"])
        self.assertEqual(document["health"], [])
        self.assertEqual(set(document["ssd_written_mb"]),
                         {"put", "demotion", "recode", "copy", "relayout"})
        self.assertAlmostEqual(document["gets_per_s"] * document["open_seconds"], 25, places=3)
        # Over an interval in which nothing happens, the rates are 0.
        document = self.operate_json("top", "--once", "--interval", "50ms")
        self.assertEqual((document["gets_per_s"], document["gets"]), (0, 25))
        self.assertLess(document["seconds"], document["open_seconds"])
        self.operate("retire", "d1", "--now")
        text = self.operate("top", "--once").stdout
        self.assertIn("\n! d1, ", text)
        self.assertRegex(text, r"\nd1 +ssd +gone ")
        self.assertEqual(self.operate_json("top", "--once")["health"][0]["name"], "d1")
        self.fails("--interval", "top", "--config", self.config, "--interval", "0")
        self.leave()

    def test_top_of_an_engine(self):
        engine = Engine(b"# Memory\r\nused_memory:2097152\r\nmaxmemory:8388608\r\n"
                        b"maxmemory_policy:allkeys-lru\r\n")
        self.addCleanup(engine.close)
        self.config = self.put("store.ini", STORE + "[tier.remote]\nnamespace = model\n"
                               f"[remote.cell]\naddress = 127.0.0.1:{engine.port}\n")
        self.serve()
        self.client("put", SPACES[0], 0, 20)
        address = f"127.0.0.1:{engine.port}"
        self.assertIn(f"\nengine    {address}, its memory is not known\n",
                      self.operate("top", "--once").stdout)
        # A node is asked once its connection has lasted for ten seconds.
        end, eviction = time.monotonic() + 60, ""
        while eviction == "" and time.monotonic() < end:
            time.sleep(0.5)
            node, = self.operate_json("top", "--once")["engine"]
            eviction = node["eviction"]
        self.assertEqual(node, {"address": address, "memory_bytes": 2 << 20,
                                "memory_bytes_max": 8 << 20, "eviction": "allkeys-lru"})
        text = self.operate("top", "--once").stdout
        self.assertIn(f"\nengine    {address} 2.00 MiB of 8.00 MiB; idle longest go "
                      "first, whosever\n",
                      text)
        self.assertTrue(all(len(line) <= 80 for line in text.splitlines()), text)
        self.leave()

    def documents(self, stream):
        """The JSON documents of a stream, one after the other."""
        text = ""
        while line := stream.readline():
            text += line
            try:
                document = json.loads(text)
            except ValueError:
                continue
            text = ""
            yield document

    def start_top(self, *words, **options):
        top = subprocess.Popen(command_line("top", "--config", self.config, *words),
                               cwd=self.folder, text=True, **options)
        self.addCleanup(top.wait)
        self.addCleanup(top.kill)
        return top

    def test_top_goes_on_through_a_restart(self):
        self.serve()
        self.client("put", SPACES[0], 0, 20)
        top = self.start_top("--interval", "20ms", "--json", stdout=subprocess.PIPE)
        documents = self.documents(top.stdout)
        first = next(documents)
        self.assertEqual((first["there"], first["puts"]), (True, 20))
        self.leave()
        for document in documents:
            if not document["there"]:
                break
        self.serve()
        document = next(documents)
        self.assertTrue(document["there"])
        self.assertEqual(document["puts"], 0)
        self.assertGreaterEqual(document["puts_per_s"], 0)
        top.send_signal(signal.SIGINT)
        self.assertEqual(top.wait(), 0)
        top.stdout.close()
        # As lines: said once each.
        top = self.start_top("--interval", "20ms", stdout=subprocess.PIPE)
        while "waiting" not in top.stdout.readline():
            pass
        self.leave()
        while (line := top.stdout.readline()) != "s.sock: the server is gone\n":
            self.assertNotEqual(line, "")
        time.sleep(0.2)
        self.serve()
        self.assertIn(" at s.sock, open ", top.stdout.readline())
        top.send_signal(signal.SIGTERM)
        self.assertEqual(top.wait(), 0)
        top.stdout.close()
        self.leave()

    def test_top_ends_while_the_server_stands_still(self):
        self.serve()
        top = self.start_top("--interval", "20ms", "--json", stdout=subprocess.PIPE)
        next(self.documents(top.stdout))
        self.server.send_signal(signal.SIGSTOP)
        while select.select([top.stdout], [], [], 0.3)[0]:
            os.read(top.stdout.fileno(), 65536)
        top.send_signal(signal.SIGINT)
        self.assertEqual(top.wait(), 0)
        top.stdout.close()
        self.server.send_signal(signal.SIGCONT)
        self.leave()

    def test_interrupted_while_the_server_stands_still(self):
        self.serve()
        self.server.send_signal(signal.SIGSTOP)
        for words in (("ls",), ("retire", "d0"), ("flush",), ("clear", "--everything"), ("top",)):
            command = subprocess.Popen(command_line(*words, "--config", self.config),
                                       cwd=self.folder, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            self.addCleanup(command.kill)
            for _ in range(200):
                command.send_signal(signal.SIGINT)
                try:
                    command.wait(0.05)
                    break
                except subprocess.TimeoutExpired:
                    pass
            self.assertIn(command.returncode, (0 if words[0] == "top" else 130, 1, 2,
                                               -signal.SIGINT), words)
        self.server.send_signal(signal.SIGCONT)
        self.leave()

    def test_what_answers_is_no_server(self):
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as other:
                other.bind(self.path("s.sock"))
                other.listen(8)
                for words in (("ls",), ("top", "--once")):
                    result = self.run_command(*words, "--config", self.config, code=1)
                    self.assertRegex(result.stderr, r"^kvterrace \w+: s.sock: [^:]+\n$")
            os.unlink(self.path("s.sock"))

    def test_top_on_a_terminal(self):
        self.serve()
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        top = self.start_top("--interval", "20ms", stdout=theirs)
        os.close(theirs)
        text = b""
        while text.count(b"\033[J") < 3:
            text += os.read(ours, 65536)
        top.send_signal(signal.SIGINT)
        try:
            while os.read(ours, 65536):
                pass
        except OSError:
            pass
        self.assertEqual(top.wait(), 0)
        os.close(ours)
        self.assertTrue(text.startswith(b"\033[Hkvterrace "))
        screens = re.sub(rb"\033\[[HJK]", b"", text).decode().split("kvterrace ")
        lines = screens[2].splitlines()
        self.assertEqual(len(lines), 11)
        self.assertTrue(all(len(line) <= 60 for line in lines), lines)
        self.leave()

    # ---- what is wrong ----

    COMMANDS = (("top", "--once"), ("ls",), ("flush",), ("retire", "d0"), ("rm", "0" * 64),
                ("clear", "--everything"))

    def test_no_server(self):
        for words in self.COMMANDS:
            with self.subTest(words=words):
                if words[0] != "clear":
                    self.fails("no store is named: --connect PATH", *words)
                self.fails("s.sock: ", *words, "--config", self.config)
                self.fails("t.sock: ", *words, "--connect", "t.sock")
                self.fails("unknown setting", *words, "--connect", "t.sock", "--set", "a.b=1")
                self.fails("store.policy has no effect", *words, "--connect", "t.sock", "--set",
                           "store.policy=lru")
                document = self.run_json(*words, "--connect", "t.sock", code=2)
                self.assertEqual(document["error"]["status"], "KVT_E_GONE")
        self.put("file", "text")
        self.fails("file: ", "ls", "--connect", "file")
        # Another server has the catalog: it is named, by its process.
        self.serve("--set", "serve.socket=other.sock")
        for words in self.COMMANDS:
            self.fails(f"; process {self.server.pid} (kvterrace) has catalog.db open", *words,
                       "--config", self.config)
        self.run_command("ls", "--config", self.config, "--connect", "other.sock")
        self.leave()

    @unittest.skipIf(os.geteuid() != 0, "changes the user")
    def test_users(self):
        """Who may connect and is no operator looks, and is told who may do more."""
        os.chmod(self.folder, 0o711)
        self.serve("--set", "serve.users=65534", "--set", "serve.mode=0666")
        os.chmod(self.path("s.sock"), 0o666)

        def as_nobody(*words):
            return subprocess.run(command_line(*words, "--connect", self.path("s.sock")),
                                  cwd="/", text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=300,
                                  user=65534, group=65534, extra_groups=[])

        probe = subprocess.run(command_line("--version"), user=65534, group=65534,
                               extra_groups=[], cwd="/", stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        if probe.returncode != 0:
            self.skipTest("another user may not run the command from here")
        key = self.client("put", SPACES[0], 0, 1)[0]
        for words in (("ls",), ("retire", "d0", "--now"), ("clear", "--everything", "--yes")):
            result = as_nobody(*words)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("does not let this user do that: serve.operators says who may",
                          result.stderr)
        self.assertEqual(as_nobody("top", "--once").returncode, 0)
        self.assertEqual(as_nobody("flush").returncode, 0)
        self.assertEqual(self.operate("ls").stdout.split(), [key])
        self.leave()


if __name__ == "__main__":
    unittest.main()
