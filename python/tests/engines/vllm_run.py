#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One life of a vLLM engine on the processor: makes it, answers prompts, says what it saw as JSON.

    vllm_run.py REQUEST.json ANSWER.json

REQUEST: model, prompts (lists of token ids), tokens to generate, secondary_tiers, chunk (tokens),
and options: zero (loaded rows are zeroed before the model sees them), forget (numbers of chunks
that are deleted once they are stored), die (SIGKILL: "flushed" or "at once" at the end, "storing"
while the second prompt is stored, without an answer), plain (no connector), spec (more keys of the
connector's configuration), kill (a process that ends before the second prompt: the store's server),
parameters (kv_transfer_params of each prompt), together (how often all prompts are asked at once,
with what is loaded forgotten between), and blocks, speculative, events and connector as
_bench_vllm.make_engine has them; events are in the answer.
"""

import json
import os
import signal
import sys
import time

from kvterrace import _bench_vllm as bench

for name, value in bench.ENGINE.items():
    os.environ.setdefault(name, value)

from vllm import SamplingParams  # noqa: E402


OPTIONS = ("host_bytes", "dtype", "length", "logprobs", "spec", "plain", "blocks", "speculative",
           "events", "connector")


def zero_loads(manager):
    """The control: rows are zeroed when a load has ended, before vLLM takes them."""
    tier, rows = manager.secondary_tiers[0], {}
    submit, finished = tier.submit_load, tier.get_finished_jobs
    view = memoryview(tier._primary_kv_view)

    def submit_load(job):
        rows[job.job_id] = [int(chunk) for chunk in job.chunk_ids]
        submit(job)

    def get_finished_jobs():
        done = list(finished())
        flat = view.cast("B")
        for result in done:
            for row in rows.pop(result.job_id, ()):
                at = row * tier.block_size_bytes
                flat[at:at + tier.block_size_bytes] = bytes(tier.block_size_bytes)
        flat.release()
        return done

    tier.submit_load, tier.get_finished_jobs = submit_load, get_finished_jobs
    return view


def note_stores(tier):
    """The keys of a prompt's stores, in kvterrace's terms, by where their chunks end; emptied by
    the caller between prompts."""
    keys, submit = {}, tier.submit_store

    def submit_store(job):
        for key in job.keys:
            keys[job.req_context.get_offload_key_position(key)] = tier._key(key)
        submit(job)

    tier.submit_store = submit_store
    return keys


def note_events(llm):
    """What vLLM publishes of tiers behind its host memory, as lists."""
    scheduler, noted = llm.llm_engine.engine_core.engine_core.scheduler, []
    publisher = scheduler.kv_event_publisher
    publish = publisher.publish

    def noting(batch):
        noted.extend([type(one).__name__, one.medium, one.locality, one.ownership,
                      len(one.block_hashes), len(getattr(one, "token_ids", ()))]
                     for one in batch.events if getattr(one, "ownership", None))
        publish(batch)

    publisher.publish = noting
    return noted


def die_storing(tier):
    """Ends the process in the middle of its second store: some rows are there, the rest is under
    way."""
    submit, jobs = tier.submit_store, []

    def submit_store(job):
        before = tier._store.stats()["puts"]
        submit(job)
        jobs.append(job)
        if len(jobs) == 2:
            while tier._store.stats()["puts"] == before:
                time.sleep(0)
            os.kill(os.getpid(), signal.SIGKILL)

    tier.submit_store = submit_store


def answer_of(out, seconds):
    one = out.outputs[0]
    return {"tokens": list(one.token_ids), "cached": out.num_cached_tokens, "seconds": seconds,
            "logprobs": [{str(token): value.logprob for token, value in step.items()}
                         for step in one.logprobs],
            "first_token": out.metrics.first_token_latency if out.metrics else None}


def hide_llvmlite():
    """vLLM 0.32.0 looks through all modules for kernels, and fails on what llvmlite has in the
    place of an object's __dict__."""
    from vllm.triton_utils import dispatcher
    rebind = dispatcher._rebind_kernels

    def rebind_elsewhere(overrides):
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules)
                  if name.startswith("llvmlite")}
        try:
            rebind(overrides)
        finally:
            sys.modules.update(hidden)

    dispatcher._rebind_kernels = rebind_elsewhere


def main(request, answer):
    began = time.perf_counter()
    if "connector" in request:
        hide_llvmlite()
    llm = bench.make_engine(request["model"], request["chunk"], request["secondary_tiers"],
                            **{name: request[name] for name in OPTIONS if name in request})
    tiers = not request.get("plain") and "connector" not in request
    manager = bench.tiering(llm) if tiers else None
    view = zero_loads(manager) if request.get("zero") else None
    sampling = SamplingParams(temperature=0.0, max_tokens=request["tokens"], ignore_eos=True,
                              logprobs=request.get("logprobs", 5), detokenize=False)
    flush = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    if request.get("warm", True):  # the first step of a process compiles and allocates
        llm.generate({"prompt_token_ids": request.get("warm_prompt", [5] * 40)}, flush,
                     use_tqdm=False)
    ready, said = time.perf_counter(), []
    ours = manager is not None and hasattr(manager.secondary_tiers[0], "_store")
    stored = note_stores(manager.secondary_tiers[0]) if ours else {}
    if request.get("die") == "storing":
        die_storing(manager.secondary_tiers[0])
    events = note_events(llm) if request.get("events") else []
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    preempted, preempt = [], scheduler._preempt_request
    scheduler._preempt_request = lambda *given, **named: (preempted.append(1),
                                                          preempt(*given, **named))[1]
    for number in range(request.get("together", 0)):
        if number:
            assert llm.reset_prefix_cache(reset_connector=True)
        outs = llm.generate([{"prompt_token_ids": prompt} for prompt in request["prompts"]],
                            sampling, use_tqdm=False)
        said += [answer_of(out, None) for out in outs]
        llm.generate({"prompt_token_ids": [6] * 8}, flush, use_tqdm=False)
    for number, prompt in enumerate(() if request.get("together") else request["prompts"]):
        if number == 1 and "kill" in request:
            os.kill(request["kill"], signal.SIGKILL)
        asked = time.perf_counter()
        if "parameters" in request:
            sampling.extra_args = {"kv_transfer_params": request["parameters"][number]}
        out, = llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        said.append(answer_of(out, time.perf_counter() - asked))
        llm.generate({"prompt_token_ids": [6] * 8}, flush, use_tqdm=False)  # steps that end stores
        keys = [stored[end] for end in sorted(stored)]
        said[-1]["keys"] = [key.hex() for key in keys]
        stored.clear()
        if request.get("forget"):
            tier = manager.secondary_tiers[0]
            tier.drain_jobs()
            for number in request["forget"]:
                assert tier._store.delete(keys[number])
    if manager is not None:
        for tier in manager.secondary_tiers:
            tier.drain_jobs()
    result = {"answers": said, "start_seconds": ready - began, "events": events,
              "preempted": len(preempted)}
    if ours and "kill" not in request:
        store = manager.secondary_tiers[0]._store
        if request.get("die") != "at once":
            store.flush()
        stats = store.stats()
        result["store"] = {name: stats[name]
                           for name in ("puts", "puts_existing", "gets", "misses",
                                        "load_failures")}
        result["tiers"] = {name: {"entries": one["entries"], "bytes": one["used_bytes"]}
                           for name, one in stats["tiers"].items()}
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(result, file)
    if request.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if view is not None:
        view.release()
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as request_file:
        main(json.load(request_file), sys.argv[2])
