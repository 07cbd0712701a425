#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvterrace serve: it says when it is ready, answers /metrics and /health, ends on a signal with
the store closed, and names what is wrong with a socket, a setting or a catalog.

    test_tools_serve.py COMMAND
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase, command_line  # noqa: E402

STORE = ("[store]\ncatalog = catalog.db\npolicy = lru\n[tier.dram]\ncapacity = 16MiB\n"
         "[device.d0]\ntier = ssd\nbackend = file\npath = d0.bin\ncapacity = 64MiB\n"
         "[serve]\nsocket = s.sock\n")
UNIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "systemd",
                    "kvterrace.service")


class ServeTest(CommandCase):
    def setUp(self):
        super().setUp()
        self.config = self.put("store.ini", STORE)

    def start(self, *arguments, environment=None):
        """A server that is ready; its first line."""
        server = subprocess.Popen(command_line("serve", "--config", self.config, *arguments),
                                  cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE,
                                  env={**os.environ, **(environment or {})})
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        line = server.stdout.readline()
        self.assertNotEqual(line, "", server.stderr.read() if server.poll() is not None else "")
        return server, line

    def stop(self, server, number=signal.SIGTERM):
        server.send_signal(number)
        output, errors = server.communicate()
        self.assertEqual((server.returncode, output, errors), (0, "", ""))
        self.assertFalse(os.path.lexists(self.path("s.sock")))

    def talk(self, address, text):
        """What a server answers to bytes, to its end."""
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=60) as peer:
            peer.sendall(text)
            parts = []
            while part := peer.recv(65536):
                parts.append(part)
        return b"".join(parts).decode()

    def connect(self):
        """Whether somebody listens at the socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            return peer.connect_ex(self.path("s.sock")) == 0

    def test_ready_and_the_end(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server, line = self.start()
            self.assertEqual(line, "ready: s.sock, dram 16.0 MiB, ssd 64.0 MiB\n")
            self.assertEqual(os.stat(self.path("s.sock")).st_mode & 0o7777, 0o600)
            self.assertTrue(self.connect())
            self.stop(server, number)
        server, line = self.start("--set", "serve.mode=0660", "--set",
                                  f"serve.group={os.getgid()}", "--json", "--metrics", "0")
        found = os.stat(self.path("s.sock"))
        self.assertEqual((found.st_mode & 0o7777, found.st_gid), (0o660, os.getgid()))
        # One document of several lines, whole before the server ends.
        while True:
            try:
                document = json.loads(line)
                break
            except ValueError:
                line += server.stdout.readline()
        self.assertEqual(document["tiers"], {"dram": 16 << 20, "ssd": (64 << 20) - 8192})
        self.assertRegex(document["metrics"], r"^127\.0\.0\.1:\d+$")
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.communicate()[0], "")
        self.assertEqual(server.returncode, 0)

    def test_metrics_and_health(self):
        server, line = self.start("--metrics", "127.0.0.1:0")
        address = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", line)[1]
        answer = self.talk(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, body = answer.split("\r\n\r\n", 1)
        self.assertTrue(head.startswith("HTTP/1.1 200 OK\r\n"))
        self.assertIn(f"Content-Length: {len(body)}\r\n", head)
        self.assertIn("# TYPE kvterrace_", body)
        self.assertTrue(body.endswith("\n"))
        self.assertEqual(self.talk(address, b"HEAD /metrics?x=1 HTTP/1.0\r\n\r\n")
                         .split("\r\n\r\n", 1)[1], "")
        answer = self.talk(address, b"GET /health HTTP/1.1\r\n\r\n")
        self.assertTrue(answer.startswith("HTTP/1.1 200 OK\r\n"))
        self.assertTrue(answer.endswith("\r\n\r\nok\n"))
        for request, code in ((b"GET / HTTP/1.1\r\n\r\n", 404),
                              (b"GET /metricsx HTTP/1.1\r\n\r\n", 404),
                              (b"POST /metrics HTTP/1.1\r\n\r\nbody", 405),
                              (b"GET /metrics\r\n\r\n", 400), (b"\r\n\r\n", 400),
                              (b"GET\r\n\r\n", 400), (b"GET /metrics HTTP/\r\n\r\n", 400),
                              (b"\0\xff \0 \xff\r\n\r\n", 400), (b"GET  HTTP/1.1\r\n\r\n", 404),
                              (b"GET /" + b"x" * 5000, 431),
                              (b"GET /health HTTP/1.1\r\nA: " + b"x" * 60000, 431)):
            answer = self.talk(address, request)
            self.assertEqual(answer[:13], f"HTTP/1.1 {code} ", request[:40])
        # Silent and slow ones are cut, and keep nobody out: their places come back.
        host, port = address.rsplit(":", 1)
        peers = [socket.create_connection((host, int(port)), timeout=60) for _ in range(24)]
        peers[0].sendall(b"GET /metr")
        for peer in peers:
            try:
                self.assertEqual(peer.recv(10), b"")
            except ConnectionResetError:
                pass
            peer.close()
        self.assertIn(" 200 OK", self.talk(address, b"GET /health HTTP/1.1\r\n\r\n"))
        other = ("--set", "serve.socket=t.sock", "--set", "store.catalog=u.db", "--set",
                 "device.d0.path=u.bin")
        result = self.fails(f"--metrics: {address}: ", "serve", "--config", self.config, *other,
                            "--metrics", address, code=1)
        self.assertIn("in use", result.stderr)
        self.stop(server)

    def test_systemd_is_told(self):
        for abstract in (False, True):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
                name = f"\0kvterrace-test-{os.getpid()}" if abstract else self.path("notify")
                heard.bind(name)
                heard.settimeout(60)
                server, _ = self.start(
                    environment={"NOTIFY_SOCKET": name.replace("\0", "@")})
                self.assertEqual(heard.recv(100), b"READY=1")
                self.stop(server)
                self.assertEqual(heard.recv(100), b"STOPPING=1")
        for name in ("nothing", "/nonexistent", "@" + "x" * 200, ""):
            server, _ = self.start(environment={"NOTIFY_SOCKET": name})
            self.stop(server)

    def test_a_second_signal_ends_it_at_once(self):
        # Both come before it has done anything about the first one.
        server, _ = self.start()
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            server.send_signal(number)
        server.communicate()
        self.assertEqual(server.returncode, 130)
        server, _ = self.start()
        self.stop(server)

    def test_killed(self):
        """What it leaves is taken over: socket, lock and catalog."""
        for _ in range(3):
            server, _ = self.start()
            server.kill()
            server.communicate()
            self.assertEqual(server.returncode, -signal.SIGKILL)
            self.assertTrue(os.path.lexists(self.path("s.sock")))
            self.assertFalse(self.connect())
        server, _ = self.start()
        self.stop(server)

    def test_two_servers(self):
        server, _ = self.start()
        self.fails("serve.socket: s.sock: another server listens there", "serve", "--config",
                   self.config, code=1)
        self.fails("catalog.db: another store has it open", "serve", "--config", self.config,
                   "--set", "serve.socket=t.sock", code=1)
        self.assertFalse(os.path.lexists(self.path("t.sock")))
        self.stop(server)

    def test_drain(self):
        first, _ = self.start("--drain")  # nobody is there: nothing to wait for
        second, line = self.start("--drain")
        self.assertTrue(line.startswith("ready: s.sock"), line)
        output, errors = first.communicate()
        self.assertEqual((first.returncode, output, errors), (0, "", ""))
        self.stop(second)
        stranger = self.path("s.sock")
        with open(stranger, "w", encoding="utf-8"):
            pass
        self.fails("s.sock", "serve", "--config", self.config, "--drain")

    def test_wrong(self):
        self.run_command("check-config", self.config)

        def wrong(part, *settings, code=2, checked=False):
            arguments = [word for setting in settings for word in ("--set", setting)]
            self.fails(part, "serve", "--config", self.config, *arguments, code=code)
            if checked:
                self.fails(part, "check-config", self.config, *arguments, code=code)
            self.assertFalse(os.path.exists(self.path("catalog.db")), settings)

        self.put("file", "text")
        os.symlink("file", self.path("link"))
        wrong("file: there is something that is no socket", "serve.socket=file")
        wrong("link: it is a symbolic link", "serve.socket=link")
        wrong("no/s.lock: No such file", "serve.socket=no/s")
        wrong("1 to 107 bytes", "serve.socket=" + "x" * 108)
        wrong("serve.mode: '0999'", "serve.mode=0999")
        wrong("serve.mode: '0060'", "serve.mode=0060")
        wrong("serve.mode: '-600'", "serve.mode=-600")
        wrong("serve.group: there is no group no-such", "serve.group=no-such")
        wrong("serve.users: there is no user no-such", "serve.users=0,no-such")
        wrong("serve.users: up to 256", "serve.users=0,,1", checked=True)
        wrong("serve.operators: there is no user 4294967295", "serve.operators=4294967295")
        wrong("serve.depth: 100 is no power of two", "serve.depth=100", checked=True)
        wrong("serve.staging: no multiple of 4 KiB", "serve.staging=5000")
        wrong("store.put_staging: 0", "store.put_staging=0", checked=True)
        wrong("serve.sessions: 1 to 1024", "serve.sessions=2000")
        wrong("serve.leave: 0 to 3600", "serve.leave=4000")
        wrong("serve.registered: 4096 to", "serve.registered=100")
        with open(self.path("file"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "text")
        self.config = self.put("bare.ini", STORE[:STORE.index("[serve]")])
        wrong("serve.socket is not set")
        wrong("serve.mode", "serve.mode=0600")
        self.config = self.put("unknown.ini", STORE + "sockets = s\n")
        wrong("serve.sockets: unknown setting")
        self.config = self.put("store.ini", STORE)
        result = self.fails("--metrics: 'localhost:1' is no numeric ADDRESS:PORT", "serve",
                            "--config", self.config, "--metrics", "localhost:1")
        self.assertFalse(os.path.lexists(self.path("s.sock")), result)
        for address in ("", ":", "127.0.0.1:", "127.0.0.1:99999", "[::1:80", "1.2.3:x", ":80"):
            self.fails("is no numeric ADDRESS:PORT", "serve", "--config", self.config, "--metrics",
                       address)

    def test_unit(self):
        """The example of a unit starts what the command is, with a setting that it has."""
        with open(UNIT, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("Type=notify", text)
        line = re.search(r"ExecStart=\S+ (.*)", text)[1].split()
        self.assertEqual(line[0], "serve")
        if shutil.which("systemd-analyze") is None:
            return
        text = re.sub(r"ExecStart=\S+", "ExecStart=" + command_line()[0], text)
        checked = subprocess.run(
            ["systemd-analyze", "verify", self.put("kvterrace.service", text)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        self.assertEqual((checked.returncode, checked.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
