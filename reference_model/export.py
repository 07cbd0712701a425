#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint as the folder that the decoder opens: config.json, model.safetensors (fp16),
tokenizer.bin, check.jsonl (texts with the negative log-likelihood that this very model has in
float64) and SHA256SUMS.

    reference_model/export.py --checkpoint FILE --out reference_model/model
"""

import argparse
import hashlib
import json
import os
import struct

import torch

import texts
import train
import vocabulary

NAMES = [("q", "self_attn.q_proj"), ("k", "self_attn.k_proj"), ("v", "self_attn.v_proj"),
         ("o", "self_attn.o_proj"), ("gate", "mlp.gate_proj"), ("down", "mlp.down_proj"),
         ("up", "mlp.up_proj")]
CHECK_LENGTHS = (64, 256, 512)


def tensors(model):
    """Our names to those of HF Llama models; their pairs of rotary channels are ours."""
    found = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm_final}
    for i, layer in enumerate(model.layers):
        prefix = "model.layers.%d." % i
        found[prefix + "input_layernorm.weight"] = layer.norm_attention
        found[prefix + "post_attention_layernorm.weight"] = layer.norm_ffn
        for ours, theirs in NAMES:
            found[prefix + theirs + ".weight"] = getattr(layer, ours).weight
    return found


def write_safetensors(path, found):
    header, blobs, at = {}, [], 0
    for name in sorted(found):
        data = found[name].detach().half().numpy().astype("<f2").tobytes()
        header[name] = {"dtype": "F16", "shape": list(found[name].shape),
                        "data_offsets": [at, at + len(data)]}
        blobs.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_config(path, c):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "hidden_size": c["dim"], "intermediate_size": c["ffn_dim"],
              "num_hidden_layers": c["layers"], "num_attention_heads": c["heads"],
              "num_key_value_heads": c["kv_heads"], "head_dim": c["head_dim"],
              "vocab_size": c["vocab"], "max_position_embeddings": c["context"],
              "rms_norm_eps": c["norm_eps"], "rope_theta": c["rope_theta"],
              "tie_word_embeddings": True, "torch_dtype": "float16",
              "bos_token_id": vocabulary.BEGIN, "eos_token_id": vocabulary.END}
    with open(path, "w") as file:
        json.dump(config, file, indent=2)
        file.write("\n")


def write_checks(path, model):
    """One text per length, with the summed negative log-likelihood of all tokens but the first."""
    exact = train.Model(model.c)
    exact.load_state_dict(model.state_dict())
    exact = exact.double()
    with open(path, "w") as file:
        for length in CHECK_LENGTHS:
            draw = texts.Draw("check %d" % length)
            text = texts.evaluation_text(draw, length)
            ids = [vocabulary.BEGIN] + [vocabulary.ID[part] for part in text.parts]
            with torch.no_grad():
                logits = exact(torch.tensor([ids]))[0] @ exact.embedding.t()
                nll = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]),
                                                        reduction="sum")
            row = {"text": text.string(), "tokens": len(ids), "nll_nats": round(float(nll), 6)}
            file.write(json.dumps(row) + "\n")


def print_skills(model):
    """What the card says: recall by length, other tasks, and the loss of each kind of token."""
    for length, contexts in ((256, 50), (512, 50), (1024, 50), (2048, 25)):
        print("recall at %4d: %.3f" % (length, train.recall(model, length, contexts)))
    losses = [[], [], []]
    for task in ("copy", "count", "mention"):
        right = 0
        for i in range(100):
            text = texts.evaluation_text(texts.Draw("%s %d" % (task, i)), 256)
            begin = len(text.parts)
            getattr(text, task)()
            ids = torch.tensor([[vocabulary.BEGIN] + [vocabulary.ID[p] for p in text.parts]])
            with torch.no_grad():
                logits = model(ids)[0, :-1] @ model.embedding.t()
            rows = [j for j in range(begin, len(text.parts)) if text.kinds[j] == texts.ANSWER]
            right += bool((logits.argmax(-1) == ids[0, 1:])[rows].all())
            loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
            for value, kind in zip(loss.tolist(), text.kinds):
                losses[kind].append(value)
        print("%s after 256: %.2f" % (task, right / 100))
    for name, kind in (("free", texts.FREE), ("prose", texts.PROSE), ("answers", texts.ANSWER)):
        print("nats per token, %s: %.3f" % (name, sum(losses[kind]) / len(losses[kind])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    loaded = torch.load(arguments.checkpoint)
    model = train.Model(loaded["config"])
    model.load_state_dict(loaded["model"])
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half().float())  # what the file holds is what is checked
    os.makedirs(arguments.out, exist_ok=True)
    inside = lambda name: os.path.join(arguments.out, name)
    write_safetensors(inside("model.safetensors"), tensors(model))
    write_config(inside("config.json"), loaded["config"])
    vocabulary.write(inside("tokenizer.bin"))
    write_checks(inside("check.jsonl"), model)
    with open(inside("SHA256SUMS"), "w") as sums:
        for name in ("check.jsonl", "config.json", "model.safetensors", "tokenizer.bin"):
            with open(inside(name), "rb") as file:
                sums.write("%s  %s\n" % (hashlib.sha256(file.read()).hexdigest(), name))
    print_skills(model)
    print("step %(step)d, %(tokens)d tokens, %(seconds).0f seconds" % loaded["state"])


if __name__ == "__main__":
    main()
