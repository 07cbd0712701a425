#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The host of a model and its calibration, without torch: what goes over the socket, requests that
are none, texts that become entries. Real models are in engines/test_transformers_host.py."""

import argparse
import array
import contextlib
import io
import json
import os
import socket
import struct
import tempfile
import types
import unittest
from contextlib import redirect_stderr
from unittest import mock

from package_case import PackageCase

from kvterrace import calibrate, model_host

LAYERS, KV_HEADS, HEAD_DIM, VOCAB = 2, 1, 4, 9


class Stub:
    """A model whose keys are its tokens and whose logits are their sums."""

    layers, heads, kv_heads, head_dim, vocab = LAYERS, 2, KV_HEADS, HEAD_DIM, VOCAB
    config = types.SimpleNamespace(max_position_embeddings=64, hidden_size=8, model_type="llama")

    def frequencies(self):
        return array.array("d", [1.0, 0.5])

    def clock(self):
        ticks = iter((1.0, 1.5))
        return lambda: next(ticks)

    def digest(self):
        return 0x123456789abcdef0

    def parameters(self):
        return 77

    def grams(self):
        return None

    def run(self, tokens, position, past, kept, first, count, rows):
        if tokens == [8]:
            raise RuntimeError("a model\nthat fails")
        side = array.array("f", [float(t) for t in tokens for _ in range(KV_HEADS * HEAD_DIM)])
        logits = array.array("f", [float(sum(tokens[:first + i + 1]) + position)
                                   for i in range(count) for _ in range(VOCAB)])
        queries = array.array("f", [3.0] * (rows[1] * 8 if rows else 0))
        return [side] * LAYERS, [side] * LAYERS, logits, [queries] * LAYERS, [queries] * LAYERS


class Host(PackageCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "model")
        self.server = model_host.Server(Stub(), self.path)
        self.addCleanup(self.server.close)

    def client(self):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(made.close)
        made.settimeout(20)
        made.connect(self.path)
        return made

    def take(self, made, size):
        data = b""
        while len(data) < size:
            part = made.recv(size - len(data))
            self.assertTrue(part, "the host has left")
            data += part
        return data

    def answer(self, made):
        magic, kind, size = model_host.HEAD.unpack(self.take(made, model_host.HEAD.size))
        self.assertEqual(magic, b"KVTM")
        return kind, self.take(made, size)

    def ask(self, made, kind, payload=b"", magic=b"KVTM", size=None):
        size = len(payload) if size is None else size
        made.sendall(model_host.HEAD.pack(magic, kind, size) + payload)

    def forward(self, tokens, *, position=0, count=1, rows=0, wants=0):
        return model_host.ASKED.pack(len(tokens), position, 0, 0, 0, 0, count, 0, rows, wants) + \
            struct.pack(f"<{len(tokens)}I", *tokens)

    def test_a_socket_of_its_owner_alone(self):
        self.assertEqual(os.stat(self.path).st_mode & 0o077, 0)
        with self.assertRaises(OSError):
            model_host.Server(Stub(), self.path)

    def test_answers(self):
        made = self.client()
        self.ask(made, model_host.HELLO)
        kind, data = self.answer(made)
        self.assertEqual(kind, model_host.HELLO)
        self.assertEqual(model_host.GREETING.unpack(data[:56]),
                         (2, LAYERS, 2, KV_HEADS, HEAD_DIM, VOCAB, 64, 8, 1, 4,
                          0x123456789abcdef0, 77))
        self.assertEqual(struct.unpack("<2d", data[56:]), (1.0, 0.5))
        self.ask(made, model_host.GRAMS)
        self.assertEqual(self.answer(made), (model_host.GRAMS, b""))
        self.ask(made, model_host.FORWARD, self.forward([3, 4], position=10, count=2))
        kind, data = self.answer(made)
        self.assertEqual(struct.unpack("<d", data[:8]), (0.5,))
        self.assertEqual(struct.unpack("<18f", data[8:]), (13.0,) * 9 + (17.0,) * 9)
        self.ask(made, model_host.FORWARD, self.forward([3], rows=1, wants=3))
        kind, data = self.answer(made)
        self.assertEqual(len(data), 8 + 4 * (2 * LAYERS * HEAD_DIM + VOCAB + 2 * LAYERS * 8))
        self.assertEqual(struct.unpack("<4f", data[8:24]), (3.0,) * 4)

    def test_requests_that_are_none(self):
        wrong = [dict(kind=model_host.HELLO, magic=b"HTTP"), dict(kind=9),
                 dict(kind=model_host.HELLO, payload=b"x"),
                 dict(kind=model_host.FORWARD, size=1 << 60),
                 dict(kind=model_host.FORWARD, payload=self.forward([])),
                 dict(kind=model_host.FORWARD, payload=self.forward([VOCAB])),
                 dict(kind=model_host.FORWARD, payload=self.forward([8]))]
        for request in wrong:
            with redirect_stderr(io.StringIO()):
                made = self.client()
                self.ask(made, **request)
                kind, text = self.answer(made)
                with contextlib.suppress(ConnectionResetError):  # it had not read all
                    self.assertEqual(made.recv(1), b"", "the connection goes on")
            self.assertEqual(kind, model_host.FAILED, request)
            self.assertTrue(text)
        self.test_answers()  # the host goes on

    def test_a_client_that_leaves(self):
        for size in (1, model_host.HEAD.size, model_host.HEAD.size + 5):
            made = self.client()
            made.sendall((model_host.HEAD.pack(b"KVTM", model_host.FORWARD, 400) +
                          b"\0" * 40)[:size])
            made.close()
        self.test_answers()


class Words:
    """A tokenizer: a token for each word."""

    def encode(self, text, add_special_tokens=True):
        return [len(word) for word in text.split()]


class Texts(PackageCase):
    def entries(self, *lines, entries=72):
        options = argparse.Namespace(context_tokens=400, continuation_tokens=20, entries=entries)
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "a"), os.path.join(folder, "b")
            with open(source, "w", encoding="utf-8") as file:
                file.write("\n".join(lines))
            count = calibrate.write_entries(source, target, Words(), options)
            with open(target, encoding="utf-8") as file:
                made = [json.loads(line) for line in file]
        self.assertEqual(len(made), count)
        return made

    def test_texts_are_cut(self):
        text = " ".join("x" * (1 + index % 7) for index in range(900))
        made = self.entries(json.dumps({"text": text}), json.dumps({"text": "too short"}))
        self.assertEqual(len(made), 2)
        ids = Words().encode(text)
        for index, entry in enumerate(made):
            self.assertEqual(entry["tokens"], ids[420 * index:420 * index + 420])
            self.assertEqual(entry["context"], 400)
            self.assertEqual(entry["document"], "line 1")
            self.assertEqual(entry["recall"]["tokens"][-97:], entry["tokens"][200:297])
            self.assertEqual(entry["recall"]["scored"], 81)
        self.assertEqual(len(self.entries(json.dumps({"text": text}), entries=1)), 1)

    def test_token_ids_are_taken(self):
        row = {"tokens": [1, 2, 3], "context": 1}
        self.assertEqual(self.entries(json.dumps(row)), [row])

    def test_wrong_texts(self):
        for lines, said in ((["[]"], ":1: no line"), (["{}"], ":1: no line"),
                            (['{"text": 5}'], ":1: no line"), (["no"], ":1: no line"),
                            (['{"text": "a b"}'], "no text has")):
            with self.assertRaisesRegex(model_host.Refused, said):
                self.entries(*lines)

    def test_options(self):
        with tempfile.NamedTemporaryFile() as file:
            options = calibrate.parse(["--model", "m", "--text", f"chat={file.name}", "--basis",
                                       "chat", "--", "--minutes", "5"])
            options.kvterrace = "kvterrace"
            line = calibrate.command_of(options, "name", [("chat", "t")], "s")
            self.assertEqual(line[:5], ["kvterrace", "profile", "calibrate", "--model", "s"])
            self.assertEqual(line[-6:], ["--basis", "chat", "--text", "chat=t", "--minutes", "5"])
            for wrong in (["--text", "chat"], ["--text", "=" + file.name],
                          ["--text", "chat=/no/such"], ["--text", f"a={file.name}",
                                                        "--context-tokens", "100"]):
                with self.assertRaises(SystemExit) as end, redirect_stderr(io.StringIO()):
                    calibrate.parse(["--model", "m", *wrong])
                self.assertEqual(end.exception.code, 2)
        with self.assertRaisesRegex(model_host.Refused, "--kvterrace"):
            calibrate.find_command("/no/such/program")

    def test_minutes_are_said(self):
        """Of a run that ends by itself and of one that fails, whose status is handed on."""
        stub = types.SimpleNamespace(AutoTokenizer=types.SimpleNamespace(
            from_pretrained=lambda name: Words()))
        server = types.SimpleNamespace(path="s", close=lambda: None)
        text = json.dumps({"tokens": [1, 2, 3], "context": 1})
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file, \
                mock.patch.dict("sys.modules", transformers=stub), \
                mock.patch.object(calibrate, "Model"), \
                mock.patch.object(calibrate, "Server", return_value=server):
            file.write(text)
            file.flush()
            for program, status in (("/bin/true", 0), ("/bin/false", 1)):
                with redirect_stderr(io.StringIO()) as said:
                    self.assertEqual(calibrate.main(["--model", "m", "--text", f"a={file.name}",
                                                     "--kvterrace", program]), status)
                self.assertRegex(said.getvalue(), r"m: measured for 0\.\d minutes")


if __name__ == "__main__":
    unittest.main()
