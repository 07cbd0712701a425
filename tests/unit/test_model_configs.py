#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference model under every spelling of config.json that transformers has had for it: each
gives the likelihoods of the folder as it is in the tree. Keys and defaults of the versions are
listed here; where the package is installed, what it saves is tried as well.

    test_model_configs.py RUN_ESTIMATOR_MODEL
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(SOURCE, "reference_model", "model")
RUNNER = sys.argv.pop(1) if len(sys.argv) > 1 else ""
try:
    import transformers
except ImportError:
    transformers = None

with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as config_file:
    REFERENCE = json.load(config_file)
BASE = REFERENCE["rope_theta"]
SHAPE = {key: value for key, value in REFERENCE.items()
         if key not in ("rope_theta", "torch_dtype", "architectures", "model_type")}

# What a configuration of any model had in version 4, with its default.
EVERY_MODEL_4 = {
    "_name_or_path": "", "add_cross_attention": False, "architectures": None,
    "bad_words_ids": None, "begin_suppress_tokens": None, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None, "decoder_start_token_id": None, "diversity_penalty": 0.0,
    "do_sample": False, "early_stopping": False, "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None, "finetuning_task": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False,
    "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0,
    "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "num_beams": 1, "num_return_sequences": 1, "output_attentions": False,
    "output_hidden_states": False, "output_scores": False, "pad_token_id": None, "prefix": None,
    "problem_type": None, "pruned_heads": {}, "remove_invalid_values": False,
    "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False,
    "sep_token_id": None, "suppress_tokens": None, "task_specific_params": None,
    "temperature": 1.0, "tf_legacy_loss": False, "tie_encoder_decoder": False,
    "tokenizer_class": None, "top_k": 50, "top_p": 1.0, "torch_dtype": None, "torchscript": False,
    "typical_p": 1.0, "use_bfloat16": False}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
         "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
         "pretraining_tp": 1, "use_cache": True}
ROPE_4 = {"rope_theta": BASE, "rope_scaling": None}
ROPE_5 = {"rope_parameters": {"rope_theta": BASE, "rope_type": "default"}}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 512}
SCALED_SPELLINGS = ({"rope_theta": BASE, "rope_scaling": SCALED},
                    {"rope_parameters": {**SCALED, "rope_theta": BASE}})
SPELLINGS = {
    "4.31, Llama 2": {**LLAMA, **ROPE_4, "torch_dtype": "float16",
                      "transformers_version": "4.31.0.dev0", "_name_or_path": "x/y"},
    "4.40, all keys": {**EVERY_MODEL_4, **LLAMA, **ROPE_4, "transformers_version": "4.40.2"},
    "4.40, SmolLM2": {**LLAMA, "rope_theta": BASE, "rope_scaling": None, "is_llama_config": True,
                      "rope_interleaved": False, "torch_dtype": "bfloat16",
                      "transformers_version": "4.40.1", "mlp_bias": False,
                      "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"q4": "f16"}}},
    "4.57, all keys": {**EVERY_MODEL_4, **LLAMA, **ROPE_4, "mlp_bias": False, "dtype": None,
                       "_attn_implementation_autoset": False, "transformers_version": "4.57.3"},
    "5.0": {**LLAMA, **ROPE_5, "mlp_bias": False, "dtype": "bfloat16", "pad_token_id": None,
            "transformers_version": "5.0.0"},
    "5.19": {**LLAMA, **ROPE_5, "mlp_bias": False, "dtype": "float16", "eos_token_id": [1, 2],
             "transformers_version": "5.19.0"},
    "4.46, Mistral": {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
                      "rope_theta": BASE, "sliding_window": None,
                      "transformers_version": "4.46.3"},
    "5.19, Mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **ROPE_5,
                      "hidden_act": "silu", "sliding_window": None,
                      "transformers_version": "5.19.0"},
}
# Qwen2, whose window says nothing unless it is switched on.
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "attention_dropout": 0.0,
         "hidden_act": "silu", "initializer_range": 0.02, "max_window_layers": 28,
         "use_cache": True, "use_sliding_window": False}
QWEN2_SPELLINGS = {
    "4.44": {**QWEN2, "rope_theta": BASE, "sliding_window": 32768, "torch_dtype": "bfloat16",
             "transformers_version": "4.44.0"},
    "4.40, mrope": {**QWEN2, "rope_theta": BASE, "sliding_window": 131072, "use_mrope": False,
                    "transformers_version": "4.40.1"},
    "4.57, all keys": {**EVERY_MODEL_4, **QWEN2, **ROPE_4, "sliding_window": None, "dtype": None,
                       "layer_types": ["full_attention"] * SHAPE["num_hidden_layers"],
                       "transformers_version": "4.57.3"},
    "5.24": {**QWEN2, **ROPE_5, "sliding_window": None, "dtype": "float32", "pad_token_id": None,
             "layer_types": ["full_attention"] * SHAPE["num_hidden_layers"],
             "transformers_version": "5.24.0"},
}


def with_biases(data):
    """A safetensors file with a bias of zero for each q, k and v."""
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), bytearray(data[8 + size:])
    for name in [name for name in header if name.endswith(("q_proj.weight", "k_proj.weight",
                                                           "v_proj.weight"))]:
        rows = header[name]["shape"][0]
        header[name.replace(".weight", ".bias")] = {
            "dtype": "F32", "shape": [rows], "data_offsets": [len(body), len(body) + 4 * rows]}
        body += bytes(4 * rows)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(body)


class ConfigTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "model")
        self.texts = os.path.join(folder.name, "ids.jsonl")
        os.mkdir(self.folder)
        os.symlink(os.path.join(MODEL, "model.safetensors"),
                   os.path.join(self.folder, "model.safetensors"))
        ids = [1] + [(i * 37 + 11) % 600 + 3 for i in range(200)]
        with open(self.texts, "w", encoding="utf-8") as file:
            json.dump({"tokens": ids, "context": 100, "questions": [[100, 110, 112]]}, file)
        self.wanted = self.run_model(MODEL).stdout

    def run_model(self, folder, code=0):
        result = subprocess.run([RUNNER, folder, self.texts, "2"], capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode != 0, code != 0, result.stderr)
        return result

    def put(self, text):
        with open(os.path.join(self.folder, "config.json"), "w", encoding="utf-8") as file:
            file.write(text)

    def test_spellings_of_all_versions(self):
        for name, keys in SPELLINGS.items():
            with self.subTest(name):
                self.put(json.dumps({**SHAPE, **keys}))
                self.assertEqual(self.run_model(self.folder).stdout, self.wanted)

    def put_biases(self):
        path = os.path.join(self.folder, "model.safetensors")
        os.remove(path)
        with open(os.path.join(MODEL, "model.safetensors"), "rb") as file, open(path, "wb") as out:
            out.write(with_biases(file.read()))

    def test_spellings_of_qwen2(self):
        """Biases of zero make it the same model; each must be there, and the heads be said."""
        shape = {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"}
        self.put(json.dumps({**SHAPE, **QWEN2_SPELLINGS["4.44"]}))
        self.assertIn("weights: fewer", self.run_model(self.folder, 1).stderr)
        self.put_biases()
        for name, keys in QWEN2_SPELLINGS.items():
            with self.subTest(name):
                self.put(json.dumps({**SHAPE, **keys}))
                self.assertEqual(self.run_model(self.folder).stdout, self.wanted)
                self.put(json.dumps({**shape, **keys}))
                self.assertIn("a qwen2's default", self.run_model(self.folder, 1).stderr)
        self.put(json.dumps({**SHAPE, **LLAMA, **ROPE_4}))
        self.assertIn(".bias: is no tensor", self.run_model(self.folder, 1).stderr)

    def test_another_base_is_another_model(self):
        """The comparison sees what it is for."""
        self.put(json.dumps({**SHAPE, **LLAMA, "rope_theta": 10000.0}))
        self.assertNotEqual(self.run_model(self.folder).stdout, self.wanted)

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_what_transformers_saves(self):
        kinds = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig,
                 "qwen2": transformers.Qwen2Config}
        with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
            keys = {**json.load(file), "sliding_window": None}
        for kind, made in kinds.items():
            given = {key: value for key, value in keys.items()
                     if (key, kind) != ("sliding_window", "llama") and key != "model_type"}
            if kind == "qwen2":
                self.put_biases()
                given["sliding_window"] = 4096
            given["architectures"] = [made.__name__.replace("Config", "ForCausalLM")]
            config = made(**given)
            config.save_pretrained(self.folder)
            with self.subTest(kind):
                self.assertEqual(self.run_model(self.folder).stdout, self.wanted)
            self.put(config.to_json_string(use_diff=False))
            with self.subTest(kind + ", all keys"):
                self.assertEqual(self.run_model(self.folder).stdout, self.wanted)

    def test_scaled_rotation(self):
        """Llama 3.1's in both spellings, by hand and as transformers saves it, is one model; it is
        not the plain one, and other kinds are refused."""
        for spelling in SCALED_SPELLINGS:
            self.put(json.dumps({**SHAPE, **LLAMA, **spelling}))
            found = self.run_model(self.folder).stdout
            self.assertNotEqual(found, self.wanted)
            self.wanted_scaled = getattr(self, "wanted_scaled", found)
            self.assertEqual(found, self.wanted_scaled)
        for kind in ("linear", "dynamic", "yarn", "longrope"):
            self.put(json.dumps({**SHAPE, **LLAMA, "rope_theta": BASE,
                                 "rope_scaling": {"rope_type": kind, "factor": 8.0}}))
            self.assertIn('"%s" is not supported' % kind, self.run_model(self.folder, 1).stderr)
        for spelling in SCALED_SPELLINGS if transformers is not None else ():
            if "rope_parameters" in spelling and transformers.__version__.startswith("4."):
                continue
            try:
                config = transformers.LlamaConfig(**{**SHAPE, **spelling})
            except ValueError:
                continue  # of before this kind of scaling
            config.save_pretrained(self.folder)
            self.assertEqual(self.run_model(self.folder).stdout, self.wanted_scaled)


if __name__ == "__main__":
    unittest.main()
