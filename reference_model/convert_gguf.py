#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a Llama or Qwen2 model from a GGUF file as the folder that transformers and the decoder
open: config.json, model.safetensors, tokenizer.json and tokenizer_config.json. See
docs/REFERENCE_MODEL.md.

    reference_model/convert_gguf.py --gguf FILE.gguf --out DIR

Weights are dequantised and written as fp32: a 4-bit weight is a product and a sum of two fp16
numbers, so that fp16 or bf16 would round it again. A field or tensor that is neither read here nor
known to be neutral is refused by name: other architectures, scaled rotary positions, other biases
than Qwen2's, other tokenizers, and whatever a later version of the format adds. Needs the
packages gguf, numpy and tokenizers.
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import struct
import sys
import tempfile

try:
    import gguf
    import numpy
    import tokenizers
except ImportError as missing:
    sys.exit("convert_gguf.py: %s (python3 -m pip install gguf tokenizers)" % missing)

# GGUF's name, HF's name, and the two sizes [out, in]; see shapes().
MATRICES = [("attn_q", "self_attn.q_proj", "query", "dim"),
            ("attn_k", "self_attn.k_proj", "kv", "dim"),
            ("attn_v", "self_attn.v_proj", "kv", "dim"),
            ("attn_output", "self_attn.o_proj", "dim", "query"),
            ("ffn_gate", "mlp.gate_proj", "ffn", "dim"),
            ("ffn_up", "mlp.up_proj", "ffn", "dim"),
            ("ffn_down", "mlp.down_proj", "dim", "ffn")]
NORMS = [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")]

# By architecture: the class of transformers, whether q, k and v have biases, and whether GGUF
# interleaves the rows of q and k.
ARCHITECTURES = {"llama": ("LlamaForCausalLM", False, True),
                 "qwen2": ("Qwen2ForCausalLM", True, False)}

# Fields that are read below, by full name; "{}" stands for the architecture.
READ = ["general.architecture", "{}.attention.head_count", "{}.attention.head_count_kv",
        "{}.attention.key_length", "{}.attention.value_length", "{}.embedding_length",
        "{}.attention.layer_norm_rms_epsilon", "{}.block_count", "{}.context_length",
        "{}.feed_forward_length", "{}.rope.dimension_count", "{}.rope.freq_base", "{}.vocab_size",
        "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.chat_template"]

# Fields that change nothing with these values alone, and why they are there.
NEUTRAL_VALUES = {
    "general.type": ("kind", ["model"]),
    "split.count": ("file", [0, 1]),
    "split.no": ("file", [0]),
    "{}.attention.causal": ("mask", [True]),
    "{}.attention.sliding_window": ("window", [0]),
    "{}.attention.clamp_kqv": ("clamp", [0.0]),
    "{}.attention.max_alibi_bias": ("positions", [0.0]),
    "{}.attention.scale": ("scale", [0.0]),
    "{}.attn_logit_softcapping": ("clamp", [0.0]),
    "{}.final_logit_softcapping": ("clamp", [0.0]),
    "{}.logit_scale": ("scale", [0.0, 1.0]),
    "{}.embedding_scale": ("scale", [0.0, 1.0]),
    "{}.residual_scale": ("scale", [0.0, 1.0]),
    "{}.expert_count": ("experts", [0]),
    "{}.expert_used_count": ("experts", [0]),
    "{}.rope.scale_linear": ("positions", [0.0, 1.0]),
    "{}.rope.scaling.type": ("positions", ["none"]),
    "{}.rope.scaling.factor": ("positions", [0.0, 1.0]),
    "{}.rope.scaling.attn_factor": ("positions", [1.0]),
    "{}.rope.scaling.finetuned": ("positions", [False]),
    "{}.tensor_data_layout": ("layout", ["Meta AI original pth"]),
    "{}.use_parallel_residual": ("layout", [False]),
    "tokenizer.ggml.add_bos_token": ("tokens", [False]),
    "tokenizer.ggml.add_eos_token": ("tokens", [False]),
    "tokenizer.ggml.add_sep_token": ("tokens", [False]),
    "tokenizer.ggml.add_space_prefix": ("tokens", [False]),
    "tokenizer.ggml.remove_extra_whitespaces": ("tokens", [False]),
}

# Fields that change nothing, by how their names begin and end, and why they are there.
NEUTRAL = [("GGUF.", "", "file"), ("split.tensors.count", "", "file"), ("quantize.", "", "origin"),
           ("general.", "", "information"), ("tokenizer.ggml.", "_token_id", "tokens"),
           ("tokenizer.ggml.", "_token_ids", "tokens"), ("tokenizer.ggml.scores", "", "unused"),
           ("tokenizer.chat_template", "", "chat"), ("tokenizer.huggingface.json", "", "copy")]

# How a pre-tokenizer named in a GGUF file cuts text before byte-pair encoding: each digit apart, or
# by an expression.
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CUTS = {"smollm": True, "gpt-2": False, "qwen2": QWEN2}
CONTROL_TOKEN, USER_TOKEN = 3, 4


class Refused(Exception):
    """The file is damaged, or not a model that the decoder can run."""


class Source:
    """The fields and tensors of a GGUF file, checked as they are asked for."""

    def __init__(self, path):
        try:
            self.reader = gguf.GGUFReader(path)
        except OSError as error:
            raise Refused(error.strerror or str(error))
        # The reader has no errors of its own: a file that ends early fails wherever numpy notices.
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
            raise Refused("no GGUF file, or cut short (%s)" % (error or type(error).__name__))
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}

    def field(self, name, kind, fallback=None):
        field = self.reader.fields.get(name)
        value = fallback if field is None else field.contents()
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise Refused("%s is missing or no %s" % (name, kind.__name__))
        if kind is float and not 0.0 < value < math.inf:
            raise Refused("%s is %s" % (name, value))
        return value

    def size(self, name, fallback=None):
        value = self.field(name, int, fallback)
        if value <= 0 or value >= 2**31:
            raise Refused("%s is %d" % (name, value))
        return value


def check_fields(source, kind):
    """Raises Refused for a field that is neither read here nor known to change nothing."""
    for name, field in source.reader.fields.items():
        known = "{}" + name[len(kind):] if name.startswith(kind + ".") else name
        if known in READ:
            continue
        if known in NEUTRAL_VALUES:
            value, (_, allowed) = field.contents(), NEUTRAL_VALUES[known]
            # True is 1 to Python, and no number to the format.
            if any(value == one and isinstance(value, bool) == isinstance(one, bool)
                   for one in allowed):
                continue
            raise Refused("%s is %.60r, which the decoder does not do; supported: %s"
                          % (name, value, " or ".join(map(str, allowed))))
        if not any(known.startswith(begins) and known.endswith(ends)
                   for begins, ends, _ in NEUTRAL):
            raise Refused("the field %s is %.60r, and no field that the decoder knows"
                          % (name, field.contents()))


def read_config(source):
    """config.json's members. Raises Refused for whatever the decoder would compute differently."""
    kind = source.field("general.architecture", str)
    if kind not in ARCHITECTURES:
        raise Refused("the architecture is %s; %s can be converted"
                      % (kind, " and ".join(ARCHITECTURES)))
    check_fields(source, kind)
    heads = source.size(kind + ".attention.head_count")
    dim = source.size(kind + ".embedding_length")
    head_dim = source.size(kind + ".attention.key_length", dim // heads)
    # Rows of q and k are in another order only where rotary positions turn whole heads.
    for name in (kind + ".rope.dimension_count", kind + ".attention.value_length"):
        if source.size(name, head_dim) != head_dim:
            raise Refused("%s differs from the width of a head, %d" % (name, head_dim))
    tokens = source.field("tokenizer.ggml.tokens", list)
    if source.size(kind + ".vocab_size", len(tokens)) != len(tokens):
        raise Refused("%s.vocab_size is not the number of tokens, %d" % (kind, len(tokens)))
    config = {"architectures": [ARCHITECTURES[kind][0]], "model_type": kind, "hidden_act": "silu",
              "hidden_size": dim,
              "intermediate_size": source.size(kind + ".feed_forward_length"),
              "num_hidden_layers": source.size(kind + ".block_count"),
              "num_attention_heads": heads,
              "num_key_value_heads": source.size(kind + ".attention.head_count_kv", heads),
              "head_dim": head_dim, "vocab_size": len(tokens),
              "max_position_embeddings": source.size(kind + ".context_length"),
              "rms_norm_eps": source.field(kind + ".attention.layer_norm_rms_epsilon", float),
              "rope_theta": source.field(kind + ".rope.freq_base", float, 10000.0),
              "tie_word_embeddings": "output.weight" not in source.tensors,
              "torch_dtype": "float32"}
    for name in ("bos", "eos", "padding"):
        token = source.field("tokenizer.ggml.%s_token_id" % name, int, -1)
        if 0 <= token < len(tokens):
            config["%s_token_id" % name.replace("padding", "pad")] = token
    if heads % config["num_key_value_heads"] != 0 or head_dim % 2 != 0:
        raise Refused("%d KV heads of %d channels do not fit %d heads"
                      % (config["num_key_value_heads"], head_dim, heads))
    return config


def shapes(config):
    """HF's names in the order of the file, each with GGUF's name and its shape as HF has it."""
    sizes = {"dim": config["hidden_size"], "ffn": config["intermediate_size"],
             "query": config["num_attention_heads"] * config["head_dim"],
             "kv": config["num_key_value_heads"] * config["head_dim"]}
    table = [config["vocab_size"], sizes["dim"]]
    yield "model.embed_tokens.weight", "token_embd.weight", table
    yield "model.norm.weight", "output_norm.weight", [sizes["dim"]]
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", "output.weight", table
    for i in range(config["num_hidden_layers"]):
        for theirs, ours in NORMS:
            yield ("model.layers.%d.%s.weight" % (i, ours), "blk.%d.%s.weight" % (i, theirs),
                   [sizes["dim"]])
        for theirs, ours, rows, columns in MATRICES:
            yield ("model.layers.%d.%s.weight" % (i, ours), "blk.%d.%s.weight" % (i, theirs),
                   [sizes[rows], sizes[columns]])
            if ARCHITECTURES[config["model_type"]][1] and theirs in ("attn_q", "attn_k", "attn_v"):
                yield ("model.layers.%d.%s.bias" % (i, ours), "blk.%d.%s.bias" % (i, theirs),
                       [sizes[rows]])


def check_tensors(source, config):
    wanted = {name: shape for _, name, shape in shapes(config)}
    for name in sorted(source.tensors.keys() - wanted.keys()):
        raise Refused("tensor %s is none that the decoder knows" % name)
    for name, shape in wanted.items():
        if name not in source.tensors:
            raise Refused("tensor %s is missing" % name)
        found = [int(n) for n in reversed(source.tensors[name].shape)]
        if found != shape:
            raise Refused("tensor %s has shape %s instead of %s" % (name, found, shape))


def halves(weight, heads):
    """Rows of q or k as HF has them. GGUF interleaves the rows of a head, so that the rotary pair
    (i, i + head_dim / 2) of HF lies at (2 i, 2 i + 1)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(
        rows, columns)


def weights(source, config, name, shape):
    """One tensor as fp32, rows in HF's order."""
    tensor = source.tensors[name]
    try:
        found = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        raise Refused("tensor %s has the quantisation %s, which is not handled"
                      % (name, tensor.tensor_type.name))
    found = numpy.asarray(found, numpy.float32).reshape(shape)
    if not numpy.isfinite(found).all():
        raise Refused("tensor %s holds numbers that are infinite or not numbers" % name)
    interleaved = ARCHITECTURES[config["model_type"]][2]
    if interleaved and name.endswith("attn_q.weight"):
        found = halves(found, config["num_attention_heads"])
    elif interleaved and name.endswith("attn_k.weight"):
        found = halves(found, config["num_key_value_heads"])
    return numpy.ascontiguousarray(found, "<f4")


def write_weights(path, source, config, facts):
    header, at = {"__metadata__": facts}, 0
    for ours, _, shape in shapes(config):
        end = at + 4 * int(numpy.prod(shape))
        header[ours] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, theirs, shape in shapes(config):
            file.write(weights(source, config, theirs, shape).data)


def make_tokenizer(source):
    """The byte-level BPE tokenizer of the file."""
    kind = source.field("tokenizer.ggml.model", str)
    cut = source.field("tokenizer.ggml.pre", str, "gpt-2")
    if kind != "gpt2" or cut not in CUTS:
        raise Refused("the tokenizer %s with pre-tokenizer %s is not handled" % (kind, cut))
    tokens = source.field("tokenizer.ggml.tokens", list)
    merges = [tuple(pair.split(" ", 1)) for pair in source.field("tokenizer.ggml.merges", list)]
    kinds = source.field("tokenizer.ggml.token_type", list, [1] * len(tokens))
    ids = {token: i for i, token in enumerate(tokens)}
    try:
        made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=merges))
    except Exception as error:  # the package raises plain exceptions
        raise Refused("the tokenizer's vocabulary is damaged (%s)" % error)
    by = CUTS[cut]
    parts = [tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                 use_regex=isinstance(by, bool))]
    if by is True:
        parts.insert(0, tokenizers.pre_tokenizers.Digits(individual_digits=True))
    elif by:
        parts.insert(0, tokenizers.pre_tokenizers.Split(tokenizers.Regex(by), "isolated"))
        made.normalizer = tokenizers.normalizers.NFC()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(parts)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False)
                             for token, kind in zip(tokens, kinds)
                             if kind in (CONTROL_TOKEN, USER_TOKEN)])
    return made


def tokenizer_config(source, config):
    tokens = source.field("tokenizer.ggml.tokens", list)
    facts = {"tokenizer_class": "PreTrainedTokenizerFast",
             "model_max_length": config["max_position_embeddings"],
             "clean_up_tokenization_spaces": False}
    for name in ("bos", "eos", "pad"):
        if name + "_token_id" in config:
            facts[name + "_token"] = tokens[config[name + "_token_id"]]
    template = source.field("tokenizer.chat_template", str, "")
    return {**facts, "chat_template": template} if template else facts


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def convert(path, out):
    """The whole folder or nothing: it is written beside `out` and renamed at the end."""
    if os.path.lexists(out):
        raise Refused("%s exists" % out)
    source = Source(path)
    config = read_config(source)
    check_tensors(source, config)
    tokens = make_tokenizer(source)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    facts = {"format": "pt", "source": os.path.basename(path), "source_sha256": digest.hexdigest(),
             "name": source.field("general.name", str, ""),
             "license": source.field("general.license", str, "")}
    parent = os.path.dirname(os.path.abspath(out))
    os.makedirs(parent, exist_ok=True)
    partial = tempfile.mkdtemp(prefix=os.path.basename(out.rstrip("/")) + ".part-", dir=parent)
    try:
        os.chmod(partial, 0o755)
        write_weights(os.path.join(partial, "model.safetensors"), source, config, facts)
        write_json(os.path.join(partial, "config.json"), config)
        tokens.save(os.path.join(partial, "tokenizer.json"))
        write_json(os.path.join(partial, "tokenizer_config.json"),
                   tokenizer_config(source, config))
        os.rename(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gguf", required=True, help="the file to read")
    parser.add_argument("--out", required=True, help="the folder to make; it must not exist")
    arguments = parser.parse_args()
    try:
        config = convert(arguments.gguf, arguments.out.rstrip("/"))
    except (Refused, OSError) as error:
        sys.exit("convert_gguf.py: %s: %s" % (arguments.gguf, error))
    print("%s: %d layers, %d heads on %d KV heads of %d channels, vocabulary %d, context %d"
          % (arguments.out, config["num_hidden_layers"], config["num_attention_heads"],
             config["num_key_value_heads"], config["head_dim"], config["vocab_size"],
             config["max_position_embeddings"]))


if __name__ == "__main__":
    main()
