#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""convert_gguf.py on small made-up GGUF files: a sound one becomes a folder with the same weights
that the decoder runs, and of every other nothing is left but a line that says why.
make_token_texts.py on small made-up texts: entries are what docs/PROFILE.md says, and the same
seed gives the same.

    test_reference_convert.py RUN_ESTIMATOR_MODEL

Skipped without the packages gguf, numpy and tokenizers.
"""

import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = os.path.join(SOURCE, "reference_model")
sys.path.insert(0, SCRIPTS)
sys.dont_write_bytecode = True
RUNNER = sys.argv.pop(1) if len(sys.argv) > 1 else ""
try:
    import gguf
    import numpy

    import convert_gguf
    import make_token_texts
except (ImportError, SystemExit) as error:
    print("skipped: %s" % error)
    sys.exit(77)

DIM, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 96, 2, 4, 2, 64
Q = gguf.GGMLQuantizationType
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_characters():
    """GPT-2's character for each byte."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable},
            **{byte: chr(256 + i) for i, byte in enumerate(others)}}


BYTES = byte_characters()
MERGES = ["t h", "th e"]
TOKENS = SPECIAL + [BYTES[byte] for byte in range(256)] + ["th", "the"]


def model_weights(kind="llama"):
    """HF's names and rows, multiples of 1/64 below 1/2."""
    draw = numpy.random.default_rng(3)
    config = {"model_type": kind, "hidden_size": DIM, "intermediate_size": FFN,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": len(TOKENS),
              "tie_word_embeddings": True}
    return {theirs: (ours, (draw.integers(-31, 32, shape) / 64).astype(numpy.float32))
            for ours, theirs, shape in convert_gguf.shapes(config)}


WEIGHTS = model_weights()


def interleaved(weight, heads):
    """Rows as GGUF has them: of a head's halves in turn."""
    rows = weight.shape[0] // heads // 2
    return numpy.concatenate([weight[(2 * h + half) * rows + i][None]
                              for h in range(heads) for i in range(rows) for half in (0, 1)])


def write_gguf(path, architecture="llama", fields=(), types=(), replaced=(), left_out=(),
               tokenizer=("gpt2", "smollm"), raw=()):
    """raw: (name, (type, bytes)) of tensors whose blocks are made by hand."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Small")
    writer.add_license("apache-2.0")
    writer.add_block_count(LAYERS)
    writer.add_context_length(2048)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_tokenizer_model(tokenizer[0])
    writer.add_tokenizer_pre(tokenizer[1])
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, add, value in fields:
        getattr(writer, add)(name, value)
    known = WEIGHTS if architecture != "qwen2" else model_weights("qwen2")
    tensors = {**{name: weight for name, (_, weight) in known.items()}, **dict(replaced)}
    for name, weight in tensors.items():
        if name in left_out:
            continue
        if architecture != "qwen2" and name.endswith("attn_q.weight"):
            weight = interleaved(weight, HEADS)
        if architecture != "qwen2" and name.endswith("attn_k.weight"):
            weight = interleaved(weight, KV_HEADS)
        kind = dict(types).get(name)
        if name in dict(raw):
            kind, blocks = dict(raw)[name]
            writer.add_tensor(name, blocks, raw_dtype=kind)
        elif kind is None:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def q4_k_value(block, at):
    """Element `at` of a block of 256: two fp16 factors, eight pairs of 6-bit scales and minima in
    12 bytes, then nibbles, of which the low ones of 32 bytes go before the high ones."""
    factor, least = struct.unpack("<ee", block[:4])
    packed, part = block[4:16], at // 32
    if part < 4:
        scale, minimum = packed[part] & 63, packed[part + 4] & 63
    else:
        scale = packed[part + 4] & 15 | packed[part - 4] >> 6 << 4
        minimum = packed[part + 4] >> 4 | packed[part] >> 6 << 4
    nibble = block[16 + at // 64 * 32 + at % 32] >> at // 32 % 2 * 4 & 15
    return factor * scale * nibble - least * minimum


def q6_k_value(block, at):
    """Element `at` of a block of 256: in each half 64 bytes of low nibbles and 32 of high pairs of
    bits, then a signed scale for each 16 and an fp16 factor."""
    half, quarter, place = at // 128, at % 128 // 32, at % 32
    low = block[64 * half + place + quarter % 2 * 32] >> quarter // 2 * 4 & 15
    high = block[128 + 32 * half + place] >> 2 * quarter & 3
    scale, = struct.unpack("<b", block[192 + at // 16 :][:1])
    factor, = struct.unpack("<e", block[208:210])
    return factor * scale * ((high << 4 | low) - 32)


# Of each kind that numpy cannot make: bytes of a block, where its factors lie, and its reader.
SUPER_BLOCKS = {Q.Q4_K: (144, (0, 2), q4_k_value), Q.Q6_K: (210, (208,), q6_k_value)}


def super_blocks(kind, rows):
    """Random blocks of `rows` rows of 256, and their values."""
    size, factors, value = SUPER_BLOCKS[kind]
    draw = numpy.random.default_rng(kind.value)
    blocks = draw.integers(0, 256, (rows, size)).astype(numpy.uint8)
    for row in blocks:
        for at in factors:
            row[at : at + 2] = numpy.frombuffer(struct.pack("<e", 0.001 + 0.002 * row[at] / 255),
                                                numpy.uint8)
    return blocks, numpy.array([[value(bytes(row), at) for at in range(256)] for row in blocks])


def read_safetensors(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header, data = json.loads(file.read(size)), file.read()
    header.pop("__metadata__")
    return {name: numpy.frombuffer(data[slice(*facts["data_offsets"])], "<f4").reshape(
        facts["shape"]) for name, facts in header.items()}


class ConvertTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, "small.gguf")
        self.out = os.path.join(self.folder, "made", "small")

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, "convert_gguf.py"),
                               *arguments], capture_output=True, text=True, check=False)

    def refused(self, *words):
        """One line that says why, status 1, and nothing beside the file."""
        before = set(os.listdir(self.folder))
        result = self.run_script("--gguf", self.path, "--out", self.out)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for word in ("convert_gguf.py: ", self.path, *words):
            self.assertIn(word, result.stderr)
        self.assertEqual(set(os.listdir(self.folder)) - {"made"}, before - {"made"})
        if os.path.exists(os.path.dirname(self.out)):
            self.assertEqual(os.listdir(os.path.dirname(self.out)), [])

    def test_a_sound_file_is_converted(self):
        write_gguf(self.path)
        result = self.run_script("--gguf", self.path, "--out", self.out + "/")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(os.listdir(self.out)), [
            "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
        self.assertEqual(os.listdir(os.path.dirname(self.out)), ["small"])
        found = read_safetensors(os.path.join(self.out, "model.safetensors"))
        self.assertEqual(len(found), len(WEIGHTS))
        for ours, weight in WEIGHTS.values():
            self.assertTrue(numpy.array_equal(found[ours], weight), ours)
        with open(os.path.join(self.out, "config.json")) as file:
            config = json.load(file)
        self.assertEqual(config["rope_theta"], 10000.0)
        self.assertEqual(config["vocab_size"], len(TOKENS))
        self.assertTrue(config["tie_word_embeddings"])
        again = self.run_script("--gguf", self.path, "--out", self.out)
        self.assertEqual(again.returncode, 1)
        self.assertIn("exists", again.stderr)
        self.decoder_runs()

    def test_qwen2(self):
        """Biases of q, k and v; rows of q and k as they are; text cut by an expression."""
        write_gguf(self.path, architecture="qwen2", tokenizer=("gpt2", "qwen2"))
        config = convert_gguf.convert(self.path, self.out)
        self.assertEqual(config["model_type"], "qwen2")
        found = read_safetensors(os.path.join(self.out, "model.safetensors"))
        wanted = model_weights("qwen2")
        self.assertEqual(len(found), len(WEIGHTS) + 3 * LAYERS)
        for ours, weight in wanted.values():
            self.assertTrue(numpy.array_equal(found[ours], weight), ours)
        text = convert_gguf.tokenizers.Tokenizer.from_file(
            os.path.join(self.out, "tokenizer.json"))
        for said in ("the then 12 the\n\n the", "it'S  theme, e\u0301!"):
            ids = text.encode(said).ids
            plain = convert_gguf.tokenizers.normalizers.NFC().normalize_str(said)
            self.assertEqual(text.decode(ids), plain)
        self.assertIn(TOKENS.index("the"), text.encode("the").ids)
        self.decoder_runs()

    def decoder_runs(self):
        path = os.path.join(self.folder, "ids.jsonl")
        with open(path, "w") as file:
            file.write('{"tokens": [1, 9, 80, 70, 60], "context": 2, "questions": [[2, 3, 4]]}\n')
        result = subprocess.run([RUNNER, self.out, path, "3"], capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        row = json.loads(result.stdout)
        self.assertEqual((len(row["nll"]), len(row["greedy"])), (4, 3))

    def test_quantised_weights_are_dequantised(self):
        kinds = {"blk.0.attn_q.weight": Q.Q4_1, "blk.0.ffn_up.weight": Q.Q8_0,
                 "blk.1.attn_k.weight": Q.Q4_0, "blk.1.ffn_down.weight": Q.Q5_1,
                "blk.0.ffn_down.weight": Q.Q5_0,
                 "token_embd.weight": Q.BF16}
        write_gguf(self.path, types=kinds.items())
        convert_gguf.convert(self.path, self.out)
        found = read_safetensors(os.path.join(self.out, "model.safetensors"))
        for name, kind in kinds.items():
            ours, weight = WEIGHTS[name]
            heads = {"q": HEADS, "k": KV_HEADS}.get(name[11:12] if "attn" in name else "", 0)
            rows = interleaved(weight, heads) if heads else weight
            wanted = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
            is_now = interleaved(found[ours], heads) if heads else found[ours]
            self.assertTrue(numpy.array_equal(is_now, wanted), name)
            self.assertLess(float(numpy.abs(is_now - rows).max()), 0.07)

    def test_super_blocks_are_dequantised(self):
        """Q4_K and Q6_K, of which Q4_K_M files are made, by another reading of their layout."""
        made = {"blk.0.ffn_up.weight": super_blocks(Q.Q4_K, FFN),
                "blk.1.ffn_gate.weight": super_blocks(Q.Q6_K, FFN)}
        kinds = dict(zip(made, (Q.Q4_K, Q.Q6_K)))
        write_gguf(self.path, architecture="qwen2", tokenizer=("gpt2", "qwen2"),
                   raw=[(name, (kinds[name], blocks)) for name, (blocks, _) in made.items()])
        convert_gguf.convert(self.path, self.out)
        found = read_safetensors(os.path.join(self.out, "model.safetensors"))
        for name, (_, wanted) in made.items():
            is_now = found[WEIGHTS[name][0]]
            self.assertGreater(float(numpy.abs(wanted).max()), 0.5, name)
            self.assertLess(float(numpy.abs(is_now - wanted).max()), 1e-6, name)
        self.decoder_runs()

    def test_files_cut_short(self):
        write_gguf(self.path)
        with open(self.path, "rb") as file:
            data = file.read()
        for size in (0, 3, 4, 20, 100, 1000, 5000, len(data) // 2, len(data) - 1):
            with open(self.path, "wb") as file:
                file.write(data[:size])
            self.refused()

    def test_what_is_no_gguf(self):
        self.refused("No such file")
        for data in (b"hello", b"\x00" * 4096, b"GGUF" + b"\xff" * 4096):
            with open(self.path, "wb") as file:
                file.write(data)
            self.refused()
        os.remove(self.path)
        os.mkdir(self.path)
        self.refused()

    def test_other_models(self):
        matrix = WEIGHTS["blk.0.attn_q.weight"][1]
        endless = matrix.copy()
        endless[3, 4] = numpy.inf
        for words, arguments in (
                ("the architecture is gemma", {"architecture": "gemma"}),
                ("scaling.type is 'yarn'",
                 {"fields": [("llama.rope.scaling.type", "add_string", "yarn")]}),
                ("expert_count is 8", {"fields": [("llama.expert_count", "add_uint32", 8)]}),
                ("vocab_size", {"fields": [("llama.vocab_size", "add_uint32", 8)]}),
                ("key_length", {"fields": [("llama.attention.value_length", "add_uint32", 8)]}),
                ("attn_q.bias", {"replaced": {"blk.0.attn_q.bias": matrix[0]}}),
                ("blk.1.ffn_up.weight is missing", {"left_out": ["blk.1.ffn_up.weight"]}),
                ("has shape [256, 32]", {"replaced": {"blk.0.attn_output.weight": matrix[:, :32]}}),
                ("infinite", {"replaced": {"blk.0.attn_output.weight": endless}}),
                ("quantisation F64", {"replaced": {
                    "blk.1.ffn_down.weight":
                        WEIGHTS["blk.1.ffn_down.weight"][1].astype(numpy.float64)}}),
                ("the tokenizer llama", {"tokenizer": ("llama", "default")}),
                ("pre-tokenizer olmo", {"tokenizer": ("gpt2", "olmo")})):
            write_gguf(self.path, **arguments)
            self.refused(words if words != "key_length" else "value_length")

    def test_every_field_is_known_or_named(self):
        refused = (("rope.scale_linear", "add_float32", 4.0),
                   ("rope.scaling.factor", "add_float32", 4.0),
                   ("rope.scaling.original_context_length", "add_uint32", 8192),
                   ("attention.sliding_window", "add_uint32", 64),
                   ("attention.clamp_kqv", "add_float32", 1.0),
                   ("attention.scale", "add_float32", 0.5),
                   ("attention.causal", "add_bool", False),
                   ("attention.causal", "add_uint32", 1),
                   ("logit_scale", "add_float32", 0.1), ("logit_scale", "add_float32", math.nan),
                   ("embedding_scale", "add_float32", 12.0),
                   ("residual_scale", "add_float32", 0.2),
                   ("final_logit_softcapping", "add_float32", 30.0),
                   ("rope.freq_base_swa", "add_float32", 1e6),
                   ("a.field.of.tomorrow", "add_uint32", 1))
        others = (("general.type", "add_string", "adapter"), ("split.count", "add_uint16", 2),
                  ("tokenizer.ggml.add_bos_token", "add_bool", True),
                  ("tokenizer.ggml.precompiled_charsmap", "add_string", "x"),
                  ("adapter.type", "add_string", "lora"))
        for field in [("llama." + name, add, value) for name, add, value in refused] + [*others]:
            write_gguf(self.path, fields=[field])
            self.refused(field[0])

    def test_fields_that_change_nothing(self):
        write_gguf(self.path, fields=[
            ("llama.rope.scale_linear", "add_float32", 1.0),
            ("llama.rope.scaling.type", "add_string", "none"),
            ("llama.attention.sliding_window", "add_uint32", 0),
            ("llama.attention.causal", "add_bool", True),
            ("llama.logit_scale", "add_float32", 1.0),
            ("llama.vocab_size", "add_uint32", len(TOKENS)),
            ("general.type", "add_string", "model"),
            ("general.size_label", "add_string", "135M"),
            ("general.file_type", "add_uint32", 3),
            ("general.quantization_version", "add_uint32", 2),
            ("quantize.imatrix.file", "add_string", "some.dat"),
            ("tokenizer.ggml.unknown_token_id", "add_uint32", 0),
            ("tokenizer.ggml.add_bos_token", "add_bool", False),
            ("tokenizer.ggml.add_space_prefix", "add_bool", False),
            ("tokenizer.chat_template", "add_string", "{{ messages }}")])
        convert_gguf.convert(self.path, self.out)
        self.decoder_runs()

    def test_an_interrupted_conversion_leaves_nothing(self):
        write_gguf(self.path)
        real, count = convert_gguf.weights, [0]

        def stops(*arguments):
            count[0] += 1
            if count[0] == 5:
                raise KeyboardInterrupt
            return real(*arguments)

        convert_gguf.weights = stops
        self.addCleanup(setattr, convert_gguf, "weights", real)
        with self.assertRaises(KeyboardInterrupt):
            convert_gguf.convert(self.path, self.out)
        self.assertEqual(os.listdir(os.path.dirname(self.out)), [])

    # ---- texts ----

    def write_texts(self):
        """A short document and a long one for each class, and two agents' sessions."""
        draw = make_token_texts.texts.Draw("words")
        sentence = lambda: " ".join("".join(draw.choice("abcdefgh") for _ in range(5))
                                    for _ in range(9)) + ". "
        rows = {}
        for source in make_token_texts.SUMMARISATION + make_token_texts.QA:
            text = ["".join(sentence() for _ in range(count)) for count in (20, 40, 400)]
            answers = [t[50:150] for t in text]
            if source.startswith("qmsum"):
                rows[source] = [{"meeting_transcripts": [{"speaker": "A", "content": t}],
                                 "general_query_list": [{"query": "What?", "answer": a}],
                                 "specific_query_list": []} for t, a in zip(text, answers)]
            elif source.startswith("longbench"):
                rows[source] = [{"context": t, "answers": [a]} for t, a in zip(text, answers)]
            else:
                rows[source] = [{"input": t, "instructions": ["Why?", "Who?", "Where?"],
                                 "outputs": [a, "no", "x" * 40]} for t, a in zip(text, answers)]
        rows[make_token_texts.AGENT] = [
            {"session_id": "s%d" % (i % 2), "input": "\n\n".join(sentence() for _ in range(30 + i)),
             "output": sentence()} for i in range(8)]
        for source, lines in rows.items():
            path = os.path.join(self.folder, "texts", source + ".jsonl")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def make_texts(self, seed):
        out = os.path.join(self.folder, "out")
        os.makedirs(out, exist_ok=True)
        result = subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, "make_token_texts.py"),
                                 "--model", self.out, "--texts",
                                 os.path.join(self.folder, "texts"), "--out", out, "--entries",
                                 "14", "--seed", str(seed)],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        made = {}
        for kind in ("summarisation", "qa", "agent"):
            with open(os.path.join(out, kind + ".jsonl")) as file:
                made[kind] = [json.loads(line) for line in file]
        return made

    def test_wrong_inputs_of_texts_are_one_line(self):
        self.write_texts()
        folder = os.path.join(self.folder, "texts")
        script = [sys.executable, "-B", os.path.join(SCRIPTS, "make_token_texts.py")]
        write_gguf(self.path)
        convert_gguf.convert(self.path, self.out)
        cut = os.path.join(folder, make_token_texts.SUMMARISATION[0] + ".jsonl")
        with open(cut, "r+") as file:
            file.truncate(40)
        for model, texts, part in (("nowhere", folder, "nowhere/tokenizer.json: No such file"),
                                   (self.out, "nowhere", "jsonl.zst: No such file"),
                                   (self.out, folder, cut + ": ")):
            result = subprocess.run([*script, "--model", model, "--texts", texts, "--out",
                                     os.path.join(self.folder, "new", "out")],
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 1)
            self.assertIn(part, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def check_entry(self, entry):
        ids, context, recall = entry["tokens"], entry["context"], entry["recall"]
        self.assertTrue(make_token_texts.SHORTEST <= context <= 7100, context)
        self.assertTrue(1 <= len(entry["questions"]) <= 2)
        last = context
        for first, answer, end in entry["questions"]:
            self.assertTrue(last <= first < answer < end <= len(ids))
            self.assertTrue(16 <= end - answer <= 64)
            self.assertEqual(ids[first], TOKENS.index("<|im_start|>"))
            last = end
        passage = recall["tokens"][-97:]
        self.assertEqual(recall["scored"], 81)
        self.assertIn(",".join(map(str, passage)), ",".join(map(str, ids[:context])))

    def test_texts_are_entries_of_their_format(self):
        write_gguf(self.path)
        convert_gguf.convert(self.path, self.out)
        self.write_texts()
        made = self.make_texts(1)
        self.assertEqual(made, self.make_texts(1))
        self.assertNotEqual(made, self.make_texts(2))
        for kind, entries in made.items():
            self.assertEqual(len(entries), 14 if kind != "agent" else 8)
            for entry in entries:
                self.assertEqual(entry["class"], kind)
                self.check_entry(entry)
        documents = [entry["document"] for entry in made["qa"]]
        # Every document that is long enough once, before any a second time.
        self.assertEqual(len(set(documents[:12])), 12)
        self.assertEqual(set(documents[12:]) - set(documents[:12]), set())
        self.assertEqual(len({entry["document"] for entry in made["agent"]}), 2)
        path = os.path.join(self.folder, "out", "qa.jsonl")
        result = subprocess.run([RUNNER, self.out, path, "2"], capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 14)


if __name__ == "__main__":
    unittest.main()
