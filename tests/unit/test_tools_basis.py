#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""encode, decode and inspect with bases of the transform codec: round trips, and a reason for each
file that is none; and bases that calibrate learns on KV dumps.

    test_tools_basis.py COMMAND
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import sqlite3
import struct
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase  # noqa: E402
from kvtbasis import ALIGN, HEAD, LAYER, LAYERS4, make_basis  # noqa: E402

class BasisTest(CommandCase):
    def put_dump(self, name, layers=2, heads=2, dim=32, tokens=64, dtype="F16"):
        header, data = {}, b""
        for layer in range(layers):
            for side in "kv":
                count = tokens * heads * dim
                values = [((i * 7919 + layer + ord(side)) % 1009) / 504.5 - 1 for i in range(count)]
                body = struct.pack(f"<{count}{'e' if dtype == 'F16' else 'f'}", *values)
                header[f"{side}.{layer}"] = {"dtype": dtype, "shape": [tokens, heads, dim],
                                             "data_offsets": [len(data), len(data) + len(body)]}
                data += body
        text = json.dumps(header).encode()
        self.put(name, struct.pack("<Q", len(text)) + text + data)

    def put_basis(self, name, **shape):
        data, digest = make_basis(**shape)
        self.put(name, data)
        return digest.hex(), data

    def test_round_trips(self):
        """A step of 1/8 is exact to half of it; the sinks are raw."""
        for span, name in ((HEAD, "head"), (LAYER, "layer"), (LAYERS4, "layers4")):
            for dtype in ("F16", "F32"):
                self.put_dump("kv.safetensors", dtype=dtype)
                digest, _ = self.put_basis("b.kvtbasis", span=span)
                variant = f"transform:{digest[:5].upper()},s0.125"
                encoded = self.run_json("encode", "kv.safetensors", "--basis", "b.kvtbasis",
                                        "--variant", variant, "-o", "kv.kvt")
                self.assertEqual(encoded["variant"], variant)
                self.assertLess(encoded["nmse_k"], 4.8e-3)
                self.assertGreater(encoded["nmse_k"], 1e-5)
                self.run_json("decode", "kv.kvt", "--basis", "b.kvtbasis", "-o", "back.safetensors")
                shown = self.run_json("inspect", "kv.kvt")
                self.assertEqual((shown["basis"], shown["basis_span"]), (digest, name))
                self.assertNotIn("decodes", shown)
                shown = self.run_json("inspect", "kv.kvt", "--basis", "b.kvtbasis")
                self.assertIs(shown["decodes"], True)

    def test_a_variant_takes_the_basis_that_is_given(self):
        self.put_dump("kv.safetensors")
        digest, _ = self.put_basis("b.kvtbasis")
        self.put_basis("c.kvtbasis", model=b"another")
        for name, step in (("transform", "0.5"), ("transform:s0.25", "0.25")):
            encoded = self.run_json("encode", "kv.safetensors", "--basis", "b.kvtbasis",
                                    "--variant", name)
            self.assertEqual(encoded["variant"], f"transform:{digest[:5].upper()},s{step}")
        self.fails("one --basis", "encode", "kv.safetensors", "--variant", "transform")
        self.fails("one --basis", "encode", "kv.safetensors", "--variant", "transform:s1",
                   "--basis", "b.kvtbasis", "--basis", "c.kvtbasis")

    def test_several_bases(self):
        """The one that is needed is found among others, given twice or beside those of no use."""
        self.put_dump("kv.safetensors")
        first, _ = self.put_basis("a.kvtbasis")
        self.put_basis("b.kvtbasis", model=b"another")
        many = ["--basis", "b.kvtbasis", "--basis", "a.kvtbasis", "--basis", "a.kvtbasis"]
        self.run_command("encode", "kv.safetensors", *many, "--variant",
                         f"transform:{first[:5].upper()}", "-o", "kv.kvt")
        self.run_command("decode", "kv.kvt", *many, "-o", "back.safetensors")

    def test_a_basis_is_shown(self):
        digest, data = self.put_basis("b.kvtbasis", span=LAYER)
        shown = self.run_json("inspect", "b.kvtbasis")
        self.assertEqual(shown, {"schema": "kvterrace-inspect-1", "kind": "basis", "hash": digest,
                                 "model": "test-model", "span": "layer", "layers": 2, "sides": 2,
                                 "kv_heads": 2, "head_dim": 32, "rotary_dim": 0, "metric": "plain",
                                 "tokens": 1234, "digest": bytes(range(32)).hex(),
                                 "bytes": len(data)})

    def test_without_the_basis(self):
        """Each command names the basis that it lacks, and writes nothing."""
        self.put_dump("kv.safetensors")
        digest, _ = self.put_basis("a.kvtbasis")
        other, _ = self.put_basis("b.kvtbasis", model=b"another")
        variant = f"transform:{digest[:5].upper()}"
        encode = ["encode", "kv.safetensors", "--variant", variant, "-o", "kv.kvt"]
        self.fails(f"needs the basis {digest[:5].upper()}", *encode)
        self.fails(other[:5].upper(), *encode, "--basis", "b.kvtbasis")
        self.assertFalse(os.path.exists(self.path("kv.kvt")))
        self.run_command(*encode, "--basis", "a.kvtbasis")
        decode = ["decode", "kv.kvt", "-o", "back.safetensors"]
        self.fails(f"needs the basis {digest}", *decode)
        self.fails(f"needs the basis {digest}", *decode, "--basis", "b.kvtbasis")
        self.assertFalse(os.path.exists(self.path("back.safetensors")))
        self.fails(f"needs the basis {digest}", "inspect", "kv.kvt", "--basis", "b.kvtbasis")
        self.run_command("inspect", "kv.kvt")

    def test_bases_of_another_shape(self):
        self.put_dump("kv.safetensors")
        for shape in ({"layers": 1}, {"heads": 1}, {"dim": 16}, {"sides": 1}):
            digest, _ = self.put_basis("b.kvtbasis", **shape)
            self.fails("the basis is of", "encode", "kv.safetensors", "--basis", "b.kvtbasis",
                       "--variant", f"transform:{digest[:5].upper()}")

    def test_files_that_are_no_basis(self):
        self.put_dump("kv.safetensors")
        digest, data = self.put_basis("b.kvtbasis")
        variant = f"transform:{digest[:5].upper()}"
        later, _ = make_basis(version=3)
        flipped = bytearray(data)
        flipped[9000] ^= 1
        # Sound by its hash, but G does not undo F.
        undone = bytearray(data)
        at = ALIGN + 4096 * ((2 * 2 * 2 * 32 * 4 + 4095) // 4096)
        undone[at:at + 2] = struct.pack("<H", 0x4080)
        undone[16:48] = bytes(32)
        undone[16:48] = hashlib.blake2b(bytes(undone), digest_size=32).digest()
        for name, content, part in (("short", data[:-1], "cut short"),
                                    ("head", data[:100], "cut short"),
                                    ("empty", b"", "not a basis"),
                                    ("long", data + bytes(1), "grown"),
                                    ("text", b"hello" * 2000, "not a basis"),
                                    ("later", later, "another version"),
                                    ("flipped", bytes(flipped), "damaged"),
                                    ("undone", bytes(undone), "undo each other")):
            self.put(name, content)
            self.fails(part, "encode", "kv.safetensors", "--basis", name, "--variant", variant)
            if content[:8] == b"KVTBASIS":
                self.fails(part, "inspect", name)
        self.fails("No such file", "encode", "kv.safetensors", "--basis", "nowhere", "--variant",
                   variant)
        self.fails("not a regular file", "encode", "kv.safetensors", "--basis", ".", "--variant",
                   variant)

    def test_where_a_basis_has_no_use(self):
        self.put_dump("kv.safetensors")
        self.put_basis("b.kvtbasis")
        self.fails("--basis", "encode", "kv.safetensors", "--basis", "b.kvtbasis")
        self.fails("--basis", "inspect", "kv.safetensors", "--basis", "b.kvtbasis")
        self.fails("--basis", "inspect", "b.kvtbasis", "--basis", "b.kvtbasis")


# The model that comes with the sources, and texts for it.
REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "reference_model")


class LearnTest(CommandCase):
    """Dumps of two classes, of which the first teaches."""

    def setUp(self):
        super().setUp()
        for name, contexts, length in (("one", 7, 64), ("two", 2, 96)):
            self.run_command("profile", "dumps", "-o", name, "--model",
                             os.path.join(REFERENCE, "model"), "--text",
                             os.path.join(REFERENCE, "texts", "recall-512.jsonl"), "--contexts",
                             str(contexts), "--context-tokens", str(length),
                             "--continuation-tokens", "16")
        self.learn = ["profile", "calibrate", "--kv", "one=one", "--kv", "two=two", "--basis",
                      "one", "--contexts", "2", "--name", "small", "--variants",
                      "planes:k4v4,g64", "--database", "p.db"]

    def rewrite(self, folder, change):
        """Changes the header of each dump of a folder."""
        for name in os.listdir(self.path(folder)):
            with open(self.path(os.path.join(folder, name)), "rb") as file:
                data = file.read()
            size = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + size])
            change(header)
            text = json.dumps(header).encode()
            self.put(os.path.join(folder, name), struct.pack("<Q", len(text)) + text +
                     data[8 + size:])

    def bases(self, database="p.db"):
        with contextlib.closing(sqlite3.connect(self.path(database))) as opened:
            return opened.execute("SELECT hash FROM basis ORDER BY hash").fetchall()

    def evidence(self, document):
        found = [one for one in document["choices"] if one["question"] == "entropy: basis"]
        return found[0]["evidence"]

    def test_dumps_teach(self):
        first = self.run_json(*self.learn)
        self.assertIn("(metric: queries, layers weighed by attention error)", self.evidence(first))
        for span in ("head", "layer", "layers4"):
            self.assertRegex(self.evidence(first),
                             rf"{span} [0-9A-F]{{5}}: [0-9.e-]+ times .*on two")
        self.assertEqual([ladder["class"] for ladder in first["ladders"]],
                         ["one", "two", "pooled"])
        self.assertEqual(len(self.bases()), 3)
        before = self.bases()
        again = self.run_json(*self.learn)  # learns nothing twice
        self.assertEqual((self.bases(), again["choices"]), (before, first["choices"]))
        self.run_json(*self.learn[:-1], "q.db")
        self.assertEqual(self.bases("q.db"), before)  # and the same from the same dumps

    def test_dumps_of_a_scaled_model(self):
        """Keys of the same weights turn by other frequencies, and the dump says so."""
        def frequencies(folder):
            with open(self.path(os.path.join(folder, os.listdir(self.path(folder))[0])),
                      "rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            return [float(number) for number in
                    header["__metadata__"]["rope_frequencies"].split(",")]
        with open(os.path.join(REFERENCE, "model", "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
        shutil.copytree(os.path.join(REFERENCE, "model"), self.path("scaled"))
        self.put(os.path.join("scaled", "config.json"), json.dumps(config).encode())
        self.run_command("profile", "dumps", "-o", "three", "--model", "scaled", "--text",
                         os.path.join(REFERENCE, "texts", "recall-512.jsonl"), "--contexts", "1",
                         "--context-tokens", "64", "--continuation-tokens", "16")
        plain, scaled = frequencies("one"), frequencies("three")
        for i, (was, is_now) in enumerate(zip(plain, scaled)):
            self.assertAlmostEqual(was / 500000.0 ** (-i / 16), 1.0, places=12)
            turns = 512 * was / (2 * math.pi)
            share = min(max((turns - 1.0) / 3.0, 0.0), 1.0)
            self.assertAlmostEqual(is_now / was, share + (1 - share) / 8.0, places=12)
        self.assertEqual(scaled[0], plain[0])
        self.assertEqual(scaled[-1], plain[-1] / 8)
        self.assertLess(len(set(a / b for a, b in zip(scaled, plain)) - {1.0, 0.125}), 16)

    def test_what_dumps_do_not_say(self):
        self.rewrite("one", lambda header: header.pop("__metadata__"))
        self.fails("--rope is not given", *self.learn)
        for wrong in ("500000", "500000,sideways", "500000,halves,33", "x,halves",
                      "500000,halves,3"):
            self.fails("keys turn by THETA", *self.learn, "--rope", wrong)
        document = self.run_json(*self.learn, "--rope", "500000,halves")
        self.assertIn("(metric: plain, layers weighed by attention error)",
                      self.evidence(document))

        def drop_queries(header):
            for name in [name for name in header if name.startswith("q.")]:
                header[name[1:] + "x"] = header.pop(name)  # a tensor of no use
        self.rewrite("one", drop_queries)
        self.fails("has no queries", *self.learn, "--rope", "none")  # those that judge need them

    def test_what_is_refused(self):
        self.fails("--rope goes with", "profile", "calibrate", "--kv", "one", "--rope",
                   "1e4,halves")
        few = list(self.learn)
        few[few.index("--contexts") + 1] = "5"
        self.fails("2 are left: fewer --contexts", *few)
        other = [word if word != "one" or self.learn[at - 1] != "--basis" else "three"
                 for at, word in enumerate(self.learn)]
        self.fails("nothing is of class 'three'", *other)
        os.mkdir(self.path("empty"))
        self.fails("no *.safetensors", "profile", "calibrate", "--kv", "a=empty", "--database",
                   "p.db")

        def turn_otherwise(header):
            turns = header["__metadata__"]["rope_frequencies"].split(",")
            header["__metadata__"]["rope_frequencies"] = ",".join(turns[:1] + ["0.5"] + turns[2:])
        os.mkdir(self.path("odd"))
        name = sorted(os.listdir(self.path("one")))[-1]
        shutil.move(self.path(os.path.join("one", name)), self.path(os.path.join("odd", name)))
        self.rewrite("odd", turn_otherwise)
        odd = ["profile", "calibrate", "--kv", "one=one", "--kv", "one=odd", *self.learn[4:]]
        self.fails("turn in another way", *odd)
        self.put_dump_of_another_shape(os.path.join("odd", name))
        self.fails("2 layers x 1 KV heads x 32, the first dump 4 x 2 x 32", *odd)

    def put_dump_of_another_shape(self, name):
        header, data = {}, b""
        for layer in range(2):
            for side, heads, width in (("k", 1, 2), ("v", 1, 2), ("q", 1, 4)):
                body = bytes(8 * heads * 32 * width)
                header[f"{side}.{layer}"] = {"dtype": "F16" if width == 2 else "F32",
                                             "shape": [8, heads, 32],
                                             "data_offsets": [len(data), len(data) + len(body)]}
                data += body
        text = json.dumps(header).encode()
        self.put(name, struct.pack("<Q", len(text)) + text + data)


class LadderTest(CommandCase):
    """A calibration that learns on the model that comes with the sources."""

    def test_bases_stay_on_the_ladder(self):
        """Variants of accepted bases are on it whatever is named; what is not is said."""
        text = "=" + os.path.join(REFERENCE, "texts", "recall-512.jsonl")
        learn = ["profile", "calibrate", "--model", os.path.join(REFERENCE, "model"), "--text",
                 "one" + text, "--text", "two" + text, "--contexts", "2", "--context-tokens", "384",
                 "--continuation-tokens", "32", "--basis", "one", "--teach", "6", "--variants",
                 "planes:k4v4,g64", "--database", "p.db"]
        document = self.run_json(*learn)
        shown = self.run_json("profile", "show", "--database", "p.db")
        starts = {basis["hash"][:5].upper() for basis in shown["bases"]}
        self.assertEqual(len(starts), 3)
        steps = {f"transform:{start},s{step}" for start in starts
                 for step in ("0.5", "1", "1.5", "3", "4.5")}
        for ladder in document["ladders"]:
            self.assertEqual({rung["variant"] for rung in ladder["rungs"]},
                             steps | {"planes:k4v4,g64"})
        self.assertEqual(len(document["notes"]), 1)
        self.assertRegex(document["notes"][0], "no speed of the basis [0-9A-F]{5} .head.*codecs")
        for start in starts:
            self.assertIn(start + ":", str(document["choices"]))
            self.assertRegex(self.run_command("profile", "show", "--database", "p.db").stdout,
                             rf"\ntransform:{start} +[123] ")
        other = [word.replace("k4v4", "k3v3") for word in learn]
        finished = self.run_json(*other, "--finish")
        self.assertEqual({rung["variant"] for rung in finished["rungs"]}, steps)
        self.assertEqual(finished["notes"][0], "No ladder has planes:k3v3,g64, which was named: "
                         "not measured; the same command without --finish does it.")
        shown = self.run_command(*other, "--finish").stdout
        self.assertEqual(shown.splitlines()[-2:], finished["notes"])
        # What no basis can be judged by is named, and so is a basis that has no rows.
        for codec, said in ((8, r"layers4 [0-9A-F]{5}: not measured"),
                            (5, r"^entropy:k0.5v1, which bases are compared with, was not")):
            shutil.copy(self.path("p.db"), self.path("less.db"))
            database = sqlite3.connect(self.path("less.db"))
            database.execute("DELETE FROM quality_entry WHERE codec = ?", (codec,))
            database.commit()
            database.close()
            less = self.run_json(*learn[:-1], "less.db", "--finish")
            chosen = [choice for choice in less["choices"] if choice["question"] ==
                      "entropy: basis"]
            self.assertEqual([choice["chosen"] for choice in chosen], ["none"])
            self.assertRegex(chosen[0]["evidence"], said)
        self.run_command("profile", "codecs", "--quick", "--seconds", "1ms", "--database", "p.db")
        self.assertEqual(self.run_json(*learn)["notes"], [])
        at = learn.index("--basis")
        forgotten = self.run_json(*learn[:at], *learn[at + 4:])
        self.assertEqual(len(forgotten["notes"]), 1)
        self.assertRegex(forgotten["notes"][0], "accepted bases .transform:[0-9A-F]{5}.*--basis")


if __name__ == "__main__":
    unittest.main()
