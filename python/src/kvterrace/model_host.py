# SPDX-License-Identifier: Apache-2.0
"""Runs a model of transformers for kvterrace, behind a Unix socket.

    python -m kvterrace.model_host --model Qwen/Qwen2.5-0.5B-Instruct --socket /run/user/1000/model

Every command that takes --model takes that socket: `profile quality`, `profile calibrate`, `profile
dumps`, `replay --mode live`. The command measures; this program computes keys, values, queries and
logits of tokens on top of keys and values that it is given (estimator/model/model_host.h has the
messages). Keys are given and taken with their rotation. Whoever can open the socket can run the
model: it is made in a folder of yours, readable by you alone.
"""
import argparse
import array
import contextlib
import ctypes
import hashlib
import inspect
import os
import socket
import struct
import sys
import threading
import time

HELLO, GRAMS, FORWARD, FAILED = 1, 2, 3, 4
VERSION = 2
WANTS_KV, WANTS_ATTENDED = 1, 2
HEAD = struct.Struct("<4sIQ")
SECONDS = struct.Struct("<d")
GREETING = struct.Struct("<10IQQ")
ASKED = struct.Struct("<10I")
BYTES_MAX = 1 << 38
# kvt_dtype: the elements that a past may have.
DTYPES = {1: "float16", 2: "bfloat16", 3: "float32"}
NEIGHBOURS = ("cohere", "cohere2", "glm", "glm4", "gptj", "codegen")


class Refused(Exception):
    """The request or the model is none that can be run; the text says why."""


class Attention:
    """An attention of transformers that sees every token before its own, unless dropped, and keeps
    the queries and outputs that are asked for."""

    def __init__(self):
        self.kept = None     # by layer: bool [kv_heads, past], or None
        self.rows = None     # (first, count) of the queries to keep
        self.queries = {}
        self.attended = {}

    def __call__(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0,
                 sliding_window=None, softcap=None, **others):
        import torch
        if others.get("s_aux") is not None:
            raise Refused("attention with sinks of its own is not known")
        batch, heads, rows, width = query.shape
        kv_heads, tokens = key.shape[1], key.shape[2]
        layer = module.layer_idx
        scale = width ** -0.5 if scaling is None else scaling
        spread = query.reshape(batch, kv_heads, heads // kv_heads, rows, width)
        scores = torch.einsum("bhgqd,bhkd->bhgqk", spread, key) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        place = torch.arange(tokens, device=query.device)
        own = torch.arange(tokens - rows, tokens, device=query.device)
        hidden = place[None, :] > own[:, None]
        if sliding_window is not None:
            hidden |= place[None, :] <= own[:, None] - sliding_window
        scores = scores.masked_fill(hidden, float("-inf"))
        if self.kept is not None:
            dropped = ~self.kept[layer]
            dropped = torch.nn.functional.pad(dropped, (0, tokens - dropped.shape[1]))
            scores = scores.masked_fill(dropped[None, :, None, None, :], float("-inf"))
        weights = torch.softmax(scores.float(), dim=-1).to(value.dtype)
        out = torch.einsum("bhgqk,bhkd->bhgqd", weights, value).reshape(batch, heads, rows, -1)
        out = out.transpose(1, 2).contiguous()
        if self.rows is not None:
            first, count = self.rows
            self.queries[layer] = query[0, :, first:first + count].transpose(0, 1)
            self.attended[layer] = out[0, first:first + count]
        return out, None


def keep_memory():
    """Has malloc keep the memory of large tensors instead of giving it back after each operation: a
    forward pass of 2,000 tokens on two processors took 0.61 of the time. glibc alone has the call;
    others do without."""
    trim_threshold, mmap_threshold = -1, -3
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)


class Model:
    """A causal model of transformers, in fp32 unless told otherwise."""

    def __init__(self, name, *, device="cpu", dtype="float32"):
        import torch
        import transformers
        from transformers import AttentionInterface, AutoModelForCausalLM
        self.torch, self.attention, self.name = torch, Attention(), name
        if torch.device(device).type == "cpu":
            keep_memory()
        AttentionInterface.register("kvterrace", self.attention)
        with contextlib.suppress(ImportError, AttributeError):
            # This attention makes its own mask.
            transformers.AttentionMaskInterface.register("kvterrace", lambda *a, **k: None)
        self.model = AutoModelForCausalLM.from_pretrained(
            name, dtype=getattr(torch, dtype), attn_implementation="kvterrace").to(device).eval()
        self.device, self.lock = device, threading.Lock()
        # The argument has another name from transformers 5.24 on.
        given = inspect.signature(self.model.forward).parameters
        self.cache_name = "cache" if "cache" in given else "past_key_values"
        config = self.model.config.get_text_config()
        self.config = config
        self.layers = config.num_hidden_layers
        self.heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.vocab = self.model.get_output_embeddings().weight.shape[0]
        self._try()

    def _try(self):
        """Runs one token: shapes are as the configuration says, or the model is refused."""
        keys, values, _, _, _ = self.run([0], 0, None, None, 0, 1, (0, 1))
        wanted = (1, self.kv_heads, self.head_dim)
        if len(keys) != self.layers or any(k.shape != wanted for k in keys + values):
            raise Refused(f"{self.name}: {len(keys)} layers of {keys[0].shape[1:]} where its "
                          f"configuration says {self.layers} of {wanted[1:]}")

    def frequencies(self):
        """Radians a position of each pair that turns; none where layers differ."""
        found = [module.inv_freq for _, module in self.model.named_modules()
                 if getattr(module, "inv_freq", None) is not None]
        if not found or any(f.shape != found[0].shape or not bool((f == found[0]).all())
                            for f in found):
            return array.array("d")
        return array.array("d", found[0].double().tolist())

    def digest(self):
        """Eight bytes of a hash of all weights, in the order of their names."""
        total = hashlib.blake2b(digest_size=8)
        for name, tensor in sorted(self.model.state_dict().items()):
            total.update(name.encode())
            total.update(tensor.detach().cpu().contiguous().view(self.torch.uint8).numpy())
        return int.from_bytes(total.digest(), "little")

    def parameters(self):
        return sum(p.numel() for p in self.model.parameters())

    def grams(self):
        """[layers][kv_heads][head_dim][head_dim] of the output projections, or None."""
        found = []
        for _, module in self.model.named_modules():
            if not hasattr(module, "layer_idx"):
                continue
            weight = next((getattr(module, n).weight for n in ("o_proj", "out_proj", "dense", "wo")
                           if hasattr(module, n)), None)
            if weight is None or weight.shape[1] != self.heads * self.head_dim:
                continue
            parts = weight.detach().double().cpu().reshape(weight.shape[0], self.kv_heads, -1,
                                                           self.head_dim)
            found.append(self.torch.einsum("ohgi,ohgj->hij", parts, parts))
        whole = len(found) == self.layers
        return self.torch.stack(found).numpy() if whole else None

    def clock(self):
        """The clock that a pass is timed by: the processor time of its thread where one thread
        computes it all, else the time that passes."""
        alone = self.torch.device(self.device).type == "cpu" and self.torch.get_num_threads() == 1
        return time.thread_time if alone else time.perf_counter

    @staticmethod
    def _plain(tensor):
        return tensor.float().cpu().contiguous().numpy()

    def run(self, tokens, position, past, kept, logits_first, logits_count, rows):
        """Tokens on top of `past`, [(keys, values)] of [tokens][kv_heads][head_dim]."""
        torch = self.torch
        from transformers import DynamicCache
        with self.lock, torch.inference_mode():
            cache, dtype = DynamicCache(), self.model.dtype
            for layer, pair in enumerate(past or ()):
                k, v = (t.to(self.device, dtype).transpose(0, 1)[None] for t in pair)
                cache.update(k, v, layer)
            before = cache.get_seq_length()
            self.attention.kept, self.attention.rows = kept, rows
            ids = torch.tensor([tokens], device=self.device)
            places = torch.arange(position, position + len(tokens), device=self.device)[None]
            wanted = torch.arange(logits_first, logits_first + max(logits_count, 1),
                                  device=self.device).clamp(max=len(tokens) - 1)
            out = self.model(input_ids=ids, position_ids=places, use_cache=True,
                             logits_to_keep=wanted, **{self.cache_name: cache})
            pairs = [(cache.layers[i].keys, cache.layers[i].values) for i in range(self.layers)]
            keys, values = ([self._plain(pair[side][0, :, before:].transpose(0, 1))
                             for pair in pairs] for side in (0, 1))
            logits = self._plain(out.logits[0, :logits_count])
            queries, attended = ([self._plain(part[i]) for i in range(self.layers)]
                                 if rows is not None else []
                                 for part in (self.attention.queries, self.attention.attended))
            self.attention.queries, self.attention.attended = {}, {}
            return keys, values, logits, queries, attended


class Connection:
    """One client's questions, in turn."""

    def __init__(self, model, made):
        self.model, self.socket = model, made

    def take(self, count):
        data = bytearray(count)
        view = memoryview(data)
        while view:
            got = self.socket.recv_into(view)
            if got == 0:
                raise EOFError
            view = view[got:]
        return data

    def give(self, kind, *parts):
        parts = [memoryview(part).cast("B") for part in parts if len(part) > 0]
        self.socket.sendall(HEAD.pack(b"KVTM", kind, sum(len(p) for p in parts)))
        for part in parts:
            self.socket.sendall(part)

    def hello(self):
        m, turns = self.model, self.model.frequencies()
        context = getattr(m.config, "max_position_embeddings", 0) or 1 << 20
        halves = m.config.model_type not in NEIGHBOURS
        self.give(HELLO, GREETING.pack(VERSION, m.layers, m.heads, m.kv_heads, m.head_dim, m.vocab,
                                       context, m.config.hidden_size, halves, 2 * len(turns),
                                       m.digest(), m.parameters()), turns)

    def past(self, tokens, dtype, has_kept):
        """The past's tensors, and which of its tokens are kept."""
        m, torch = self.model, self.model.torch
        if dtype not in DTYPES:
            raise Refused(f"elements of the unknown type {dtype}")
        kind, shape = getattr(torch, DTYPES[dtype]), (tokens, m.kv_heads, m.head_dim)
        size = kind.itemsize * tokens * m.kv_heads * m.head_dim
        pairs, kept = [], []
        for _ in range(m.layers):
            pairs.append([torch.frombuffer(self.take(size), dtype=kind).reshape(shape)
                          for _ in range(2)])
            if has_kept:
                flags = torch.frombuffer(self.take(m.kv_heads * tokens), dtype=torch.uint8)
                kept.append(flags.reshape(m.kv_heads, tokens).bool().to(m.device))
        return pairs, kept or None

    def forward(self):
        (count, position, past_tokens, dtype, has_kept, logits_first, logits_count, rows_first,
         rows_count, wants) = ASKED.unpack(self.take(ASKED.size))
        m = self.model
        tokens = array.array("I", bytes(self.take(4 * count))).tolist()
        past, kept = self.past(past_tokens, dtype, has_kept) if past_tokens else (None, None)
        if count == 0 or max(tokens) >= m.vocab:
            raise Refused("no token, or one outside the vocabulary")
        rows = (rows_first, rows_count) if rows_count else None
        clock = m.clock()
        began = clock()
        keys, values, logits, queries, attended = m.run(tokens, position, past, kept, logits_first,
                                                        logits_count, rows)
        took = clock() - began
        parts = [side[i] for i in range(m.layers) for side in (keys, values)]
        parts = parts if wants & WANTS_KV else []
        self.give(FORWARD, SECONDS.pack(took), *parts, logits, *queries,
                  *(attended if wants & WANTS_ATTENDED else []))

    def serve(self):
        """Answers until the client leaves. A client that is not understood is let go."""
        while True:
            try:
                magic, kind, size = HEAD.unpack(self.take(HEAD.size))
                if magic != b"KVTM" or size > BYTES_MAX:
                    raise Refused("no message of this protocol")
                if kind == FORWARD:
                    self.forward()
                elif kind == HELLO and size == 0:
                    self.hello()
                elif kind == GRAMS and size == 0:
                    grams = self.model.grams()
                    self.give(GRAMS, *([] if grams is None else [grams]))
                else:
                    raise Refused("no message of this protocol")
            except (EOFError, OSError):
                return
            except Exception as error:  # the client hears of it, whatever it is, and this goes on
                print(f"kvterrace.model_host: {error}", file=sys.stderr, flush=True)
                with contextlib.suppress(OSError):
                    self.give(FAILED, str(error).encode()[:240] or b"an error without a text")
                return


class Server:
    """A socket at `path`, and a thread for each client; close ends it."""

    def __init__(self, model, path):
        self.model, self.path = model, path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o077)
        try:
            self.listener.bind(path)
            self.listener.listen(64)
        except OSError:
            self.listener.close()
            raise
        finally:
            os.umask(before)
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self):
        while True:
            try:
                made, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made):
        with made:
            Connection(self.model, made).serve()

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def main():
    parser = argparse.ArgumentParser(prog="python -m kvterrace.model_host",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a name or folder that transformers loads")
    parser.add_argument("--socket", required=True, help="the socket to make; it may not exist")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (cpu)")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16, float16 (float32)")
    options = parser.parse_args()
    server = Server(Model(options.model, device=options.device, dtype=options.dtype),
                    options.socket)
    print(f"{options.model} at {options.socket}", flush=True)
    try:
        server.thread.join()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


if __name__ == "__main__":
    main()
