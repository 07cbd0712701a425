# SPDX-License-Identifier: Apache-2.0
"""vLLM's seconds from a request to its first token, with our tier behind its host memory and with
vLLM's own tier of files: on the same disk, with the same prompts, in fresh processes, turn about.

    python -m kvterrace.bench vllm --folder /mnt/ssd [--model FOLDER]

One process of each tier computes the prompts and stores them. Then each repeat starts a process
that finds them on the disk ("restart"), forgets what it has loaded and asks once more ("again");
another one asks a store of ours that has room for half of the chunks alone ("full"). Both tiers
read past the page cache. A repeat in which a chunk that is stored was not loaded, or an answer or
one of its logprobs differs from the computed one, is a failure, no sample.

Without --model vLLM runs a model with random weights whose KV is as wide as that of real ones
(32 KiB a token), so that there is something to load.
"""

import glob
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

CHUNK, BLOCK = 256, 32
PROMPTS, TOKENS = 4, 2056
HOST_BYTES = 512 << 20
WANTED = 1.0
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
         "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
          "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1",
          "TORCH_COMPILE_DISABLE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
# KV of 32 KiB a token, and little to compute beside.
WIDE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
        "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1024, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "torch_dtype": "float16", "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "rope_theta": 10000.0}


# ---- in a process of its own ----

def make_engine(model, chunk, secondary_tiers, **more):
    """vLLM on the processor in this process, with a connector of tiers. more: host_bytes, dtype,
    length, logprobs, spec (further keys of the connector's configuration), dummy (random weights),
    blocks (of its own cache), speculative (vLLM's configuration of it), events (of its own, too),
    connector (another one's whole configuration); plain: no connector."""
    for name, value in ENGINE.items():
        os.environ.setdefault(name, value)
    from vllm import LLM
    from vllm.config import KVEventsConfig, KVTransferConfig
    extra = {"spec_name": "HostTieringSpec", "spec_module_path": "kvterrace.vllm",
             "cpu_bytes_to_use": more.get("host_bytes", 64 << 20), "block_size": chunk,
             "secondary_tiers": secondary_tiers, **more.get("spec", {})}
    connector = KVTransferConfig(**more.get("connector") or {
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": extra})
    return LLM(model=model, skip_tokenizer_init=True, dtype=more.get("dtype", "float16"),
               block_size=BLOCK, max_num_seqs=4, max_model_len=more.get("length", 2048),
               enforce_eager=True, seed=0, disable_log_stats=False,
               max_logprobs=more.get("logprobs", 5), num_gpu_blocks_override=more.get("blocks"),
               speculative_config=more.get("speculative"),
               kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null")
               if more.get("events") else None,
               load_format="dummy" if more.get("dummy") else "auto",
               kv_transfer_config=None if more.get("plain") else connector)


def tiering(llm):
    """The manager of the tiers of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler.connector.connector_scheduler.manager


def _ask(llm, prompts):
    """What the engine says to each prompt, one after the other."""
    from vllm import SamplingParams
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=5,
                              detokenize=False)
    end = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    said = []
    for prompt in prompts:
        out, = llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        one = out.outputs[0]
        said.append({"seconds": out.metrics.first_token_latency, "cached": out.num_cached_tokens,
                     "tokens": list(one.token_ids),
                     "logprobs": [{str(token): value.logprob for token, value in step.items()}
                                  for step in one.logprobs]})
        llm.generate({"prompt_token_ids": [6] * 8}, end, use_tqdm=False)  # steps that end stores
    return said


def _ask_together(llm, prompts):
    """As _ask, with all prompts at once: the batches differ, so logprobs are not compared."""
    from vllm import SamplingParams
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    outs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling,
                        use_tqdm=False)
    return [{"seconds": out.metrics.first_token_latency, "cached": out.num_cached_tokens,
             "tokens": list(out.outputs[0].token_ids)} for out in outs]


def live(request):
    """One life of an engine: passes over the prompts, with what was loaded forgotten between."""
    llm = make_engine(request["model"], CHUNK, [request["tier"]], **{"host_bytes": HOST_BYTES, **{
        name: request[name] for name in ("host_bytes", "length", "dummy", "dtype", "blocks")
        if name in request}})
    manager, passes = tiering(llm), []
    _ask(llm, [[5] * 40])  # the first step of a process allocates
    for number in range(request["passes"]):
        if number and not request.get("keep") and \
                not llm.reset_prefix_cache(reset_connector=True):
            raise SystemExit("bench: vLLM's caches are not emptied")
        together = number and request.get("together")
        passes.append((_ask_together if together else _ask)(llm, request["prompts"]))
    answer, tier = {"passes": passes}, manager.secondary_tiers[0]
    tier.drain_jobs()
    if hasattr(tier, "_store"):
        tier._store.flush()
        stats = tier._store.stats()
        answer["used_bytes"] = stats["tiers"]["ssd"]["used_bytes"]
        answer["load_failures"] = stats["load_failures"]
    llm.llm_engine.engine_core.shutdown()
    return answer


# ---- the comparison ----

def _tiers(folder, capacity):
    """{name: what vLLM is told of a second tier}; "full" is ours with a fixed capacity, where it is
    the policy that counts; the other one keeps all it is given, as vLLM's does."""
    def ours(name, room, policy):
        place = os.path.join(folder, name)
        os.makedirs(place, exist_ok=True)
        return {"type": "KvterraceTier", "module_path": "kvterrace.vllm",
                "recompute_seconds_per_token": 1e-3, "revision": "bench",
                "settings": {"store.catalog": os.path.join(place, "catalog.db"),
                             "store.policy": policy,
                             **({"store.lossless": "no"} if policy == "utility" else {}),
                             "device.bench.tier": "ssd", "device.bench.backend": "file",
                             "device.bench.capacity": str(room),
                             "device.bench.path": os.path.join(place, "kv")}}
    return {"kvterrace": ours("kvterrace", 4 * capacity, "lru"),
            "full": ours("full", capacity, "utility"),
            "fs": {"type": "fs", "root_dir": os.path.join(folder, "fs")}}


def _process(request):
    """An engine's life in a fresh process: its answer."""
    with tempfile.TemporaryDirectory(prefix="kvt-bench-") as folder:
        ask, say = os.path.join(folder, "request.json"), os.path.join(folder, "answer.json")
        with open(ask, "w", encoding="utf-8") as file:
            json.dump(request, file)
        done = subprocess.run([sys.executable, "-m", "kvterrace._bench_vllm", ask, say],
                              env={**os.environ, **QUIET}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"bench: an engine with {request['tier']['type']} ends with "
                             f"{done.returncode}:\n{done.stdout[-3000:]}")
        with open(say, encoding="utf-8") as file:
            answer = json.load(file)
        answer["log"] = [line for line in done.stdout.splitlines() if "kvterrace: " in line]
        return answer


def _check(name, computed, said, cached, log):
    """cached: the tokens that each prompt has to find, or None where it may be fewer. log: what the
    adapter has said."""
    for number, (first, second) in enumerate(zip(computed, said, strict=True)):
        if cached is not None and second["cached"] != cached:
            raise SystemExit("\n".join([f"bench: {name}: {second['cached']} of {cached} tokens of "
                                        f"prompt {number} were loaded", *log]))
        if second["tokens"] != first["tokens"]:
            raise SystemExit(f"bench: {name}: prompt {number} has another answer than computed")
        if cached is not None and second["logprobs"] != first["logprobs"]:
            raise SystemExit(f"bench: {name}: prompt {number} has other logprobs than computed")


def _bytes_of(folder):
    return sum(os.stat(path).st_blocks * 512
               for path in glob.glob(os.path.join(folder, "**"), recursive=True)
               if os.path.isfile(path))


def _model(folder, model):
    """(folder of the model, whether its weights are random, its vocabulary, bytes of a token)."""
    dummy = model is None
    if dummy:
        model = os.path.join(folder, "model")
        os.makedirs(model)
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
            json.dump(WIDE, file)
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        about = json.load(file)
    heads = about.get("num_key_value_heads", about["num_attention_heads"])
    dim = about.get("head_dim") or about["hidden_size"] // about["num_attention_heads"]
    return model, dummy, about["vocab_size"], about["num_hidden_layers"] * heads * dim * 4


def bench_vllm(repeats, folder=None, model=None):
    """A row for each case: restart, again, full."""
    if importlib.util.find_spec("vllm") is None:
        raise SystemExit("bench: vLLM is not installed here (docs/ENGINES.md)")
    base = tempfile.mkdtemp(prefix="kvt-bench-", dir=folder)
    try:
        path, dummy, vocabulary, token_bytes = _model(base, model)
        numbers = random.Random(1)
        prompts = [[numbers.randrange(8, vocabulary) for _ in range(TOKENS)]
                   for _ in range(PROMPTS)]
        cached = TOKENS // CHUNK * CHUNK  # whole chunks; the rest is computed
        half = max(PROMPTS * cached * token_bytes // 2, 4 << 20)
        request = {"model": path, "dummy": dummy, "prompts": prompts, "length": TOKENS + 64}
        tiers = _tiers(base, half)
        lives = {name: {**request, "tier": tier, "passes": 2} for name, tier in tiers.items()}
        computed = {name: _process({**one, "passes": 1}) for name, one in lives.items()}
        taken = []
        for number in range(repeats):
            order = list(lives) if number % 2 == 0 else list(lives)[::-1]
            said = {name: _process(lives[name]) for name in order}
            for name, answer in said.items():
                for one in answer["passes"]:
                    _check(name, computed[name]["passes"][0], one,
                           None if name == "full" else cached,
                           computed[name]["log"] + answer["log"])
                if answer.get("load_failures"):
                    raise SystemExit(f"bench: {name}: loads have failed")
            if said["full"]["used_bytes"] > half:
                raise SystemExit(f"bench: {said['full']['used_bytes']} bytes are stored in {half}")
            said["full"]["disk_bytes"] = _bytes_of(os.path.join(base, "full"))
            said["fs"]["disk_bytes"] = _bytes_of(os.path.join(base, "fs"))
            taken.append(said)
            print(f"bench: vllm {number + 1} of {repeats}: "
                  + ", ".join(f"{name} {[_seconds(one) for one in answer['passes']]}"
                              for name, answer in said.items()), file=sys.stderr, flush=True)
        facts = {"model": "random weights" if dummy else os.path.basename(os.path.normpath(model)),
                 "prompts": PROMPTS, "tokens": TOKENS, "chunk": CHUNK,
                 "kv_bytes_per_token": token_bytes, "repeats": repeats,
                 "computed_s": _seconds(computed["kvterrace"]["passes"][0]), "wanted": WANTED}
        return [_row("restart", "kvterrace", 0, taken, facts),
                _row("again", "kvterrace", 1, taken, facts),
                {**_row("full", "full", 0, taken, facts), "capacity_bytes": half,
                 "disk_bytes": max(one["full"]["disk_bytes"] for one in taken),
                 "rival_disk_bytes": max(one["fs"]["disk_bytes"] for one in taken),
                 "loaded_share": statistics.median(
                     sum(answer["cached"] for answer in one["full"]["passes"][0])
                     / (cached * PROMPTS) for one in taken)}]
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _seconds(said):
    """The median first token of a pass."""
    return round(statistics.median(one["seconds"] for one in said), 5)


def _row(case, name, number, taken, facts):
    ours = [_seconds(one[name]["passes"][number]) for one in taken]
    theirs = [_seconds(one["fs"]["passes"][number]) for one in taken]
    ratios = [rival / own for own, rival in zip(ours, theirs)]
    return {"case": case, "rival": "vLLM's fs", "kvterrace_s": statistics.median(ours),
            "rival_s": statistics.median(theirs), "ratio": statistics.median(ratios),
            "ratio_low": min(ratios), "ratio_high": max(ratios), **facts}


def print_vllm(rows):
    print(f"{'case':<8} {'kvterrace':>11} {'vLLM fs':>11} {'ratio':>6} {'range':>13} {'wanted':>6} "
          f"{'computed':>11}")
    for row in rows:
        print(f"{row['case']:<8} {row['kvterrace_s'] * 1e3:>8.1f} ms "
              f"{row['rival_s'] * 1e3:>8.1f} ms {row['ratio']:>6.2f} "
              f"{row['ratio_low']:>6.2f}..{row['ratio_high']:<5.2f} {row['wanted']:>6.2f} "
              f"{row['computed_s'] * 1e3:>8.1f} ms"
              + (f"  {row['disk_bytes'] >> 20} of {row['capacity_bytes'] >> 20} MiB, fs "
                 f"{row['rival_disk_bytes'] >> 20} MiB; loaded {row['loaded_share']:.2f}"
                 if "capacity_bytes" in row else ""))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as request_file:
        said_json = live(json.load(request_file))
    with open(sys.argv[2], "w", encoding="utf-8") as answer_file:
        json.dump(said_json, answer_file)
