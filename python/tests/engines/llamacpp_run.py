#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One life of llama.cpp, a process of its own: llamacpp_run.py REQUEST ANSWER, both JSON.

model: a GGUF. store: settings. what: "context", the library with Prefixes, or "server", llama.cpp's
server with SlotFiles. prompts: lists of token ids, each of which is restored, computed, continued
by 8 tokens and saved. keywords: of the context, or members of the server's parameters. The answer
has for each prompt what was restored, the tokens, a hash of all logits (or the logprobs), seconds
to the first token and how many tokens were saved.
"""

import hashlib
import json
import os
import sys
import time
import urllib.request


def context(ask, store):
    import xllamacpp
    from llama_cpp_py_sync import Llama, _cffi_bindings

    # The library of the first package for both: the second one's own needs a newer libc than most
    # systems have.
    _cffi_bindings._find_library = lambda: xllamacpp.xllamacpp.__file__
    from kvterrace import llamacpp

    llm = Llama(ask["model"], n_threads=1, **ask["keywords"])
    lib, ffi = llm._lib, llm._ffi
    memory = lib.llama_get_memory(llm._ctx)
    prefixes = llamacpp.Prefixes(store, llm, chunk=ask["chunk"], salt=ask.get("salt", ""))
    answers, keys = [], set()
    for tokens in ask["prompts"]:
        began = time.monotonic()
        lib.llama_memory_seq_rm(memory, 0, -1, -1)
        restored = prefixes.restore(tokens)
        # A product depends on its shape: the rest is always computed on its own.
        place, said, logits = restored, [], hashlib.sha256()
        split = len(tokens) - len(tokens) % ask["chunk"]
        steps = [part for part in (tokens[place:split], tokens[max(place, split):]) if part]
        while len(said) < 8:
            for step in steps:
                place = llm._eval_tokens(step, place)
            values = ffi.buffer(lib.llama_get_logits_ith(llm._ctx, -1), 4 * llm.n_vocab)[:]
            floats = memoryview(values).cast("f")
            said.append(max(range(llm.n_vocab), key=floats.__getitem__))
            logits.update(values)
            steps = [[said[-1]]]
            if len(said) == 1:
                first = time.monotonic() - began
        whole = [*tokens, *said[:-1]]
        answers.append({"restored": restored, "tokens": said, "logits": logits.hexdigest(),
                        "seconds": first, "saved": prefixes.save(whole)})
        keys.update(prefixes.keys(whole))
    return answers, keys


def server(ask, store):
    import xllamacpp
    from kvterrace import llamacpp

    given, folder = xllamacpp.CommonParams(), ask["slots"]
    given.model.path, given.slot_save_path = ask["model"], folder + "/"
    given.n_parallel, given.endpoint_slots, given.warmup = 2, True, False
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1
    given.port, given.verbosity = 0, 0
    for name, value in ask["keywords"].items():
        setattr(given, name, value)
    made, answers, keys = xllamacpp.Server(given), [], set()

    def post(path, **body):
        request = urllib.request.Request(made.listening_address + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    post("/completion", prompt=[1, 5], n_predict=1, id_slot=0)
    post("/slots/0?action=save", filename="like.bin")
    slots = llamacpp.SlotFiles(store, os.path.join(folder, "like.bin"), model=ask["model"],
                               chunk=ask["chunk"])
    for tokens in ask["prompts"]:
        post("/slots/1?action=erase")
        restored, began = slots.restore(tokens, os.path.join(folder, "b.bin")), time.monotonic()
        if restored:
            post("/slots/1?action=restore", filename="b.bin")
        said = post("/completion", prompt=tokens, n_predict=8, temperature=0, id_slot=1, n_probs=2,
                    return_tokens=True, ignore_eos=True)
        seconds = time.monotonic() - began
        post("/slots/1?action=save", filename="a.bin")
        words = said["completion_probabilities"]
        answers.append({"restored": restored, "cached": said["timings"]["cache_n"],
                        "tokens": said["tokens"], "seconds": seconds,
                        "logprobs": [one["logprob"] for one in words],
                        "saved": slots.save(os.path.join(folder, "a.bin"))})
        keys.update(slots.keys([*tokens, *said["tokens"][:-1]]))
    return answers, keys


def main(ask, say):
    with open(ask, encoding="utf-8") as file:
        ask = json.load(file)
    import kvterrace
    with kvterrace.Store(settings=ask["store"]) as store:
        answers, keys = {"context": context, "server": server}[ask["what"]](ask, store)
        stored = [one for one in map(store.describe, keys) if one is not None]
        store.persist()
    with open(say, "w", encoding="utf-8") as file:
        json.dump({"answers": answers, "entries": len(stored),
                   "bytes": sum(one["stored_bytes"] for one in stored)}, file)
    os._exit(0)  # a server's threads end with the process


if __name__ == "__main__":
    main(*sys.argv[1:])
