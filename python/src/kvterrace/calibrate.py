# SPDX-License-Identifier: Apache-2.0
"""Calibrates a ladder of variants for any model that transformers runs.

    python -m kvterrace.calibrate --model Qwen/Qwen2.5-0.5B-Instruct --database profile.db \\
        --text chat=chat.jsonl --text code=code.jsonl [--basis chat] [--device cuda] \\
        [-- options of `kvterrace profile calibrate`]

Texts are lines of JSON: {"text": "..."} is cut into contexts and what follows them, with the
model's own tokenizer, and gets a passage of its middle that is to be repeated word for word; lines
with token ids (docs/PROFILE.md, Texts as token ids) are taken as they are. The measuring is done by
`kvterrace profile calibrate`, for which this program runs the model (kvterrace.model_host): the
figures mean the same as those of every other model, and a calibration that was stopped goes on.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from kvterrace.__main__ import command_path
from kvterrace.model_host import Model, Refused, Server

PASSAGE, SCORED = 97, 81  # tokens of a passage: what leads to it, and what is scored
REPEAT = "\n\nI repeat a part of the text word for word:\n"


def entries_of(ids, document, options, repeat):
    """Entries of one document's token ids: a context, what follows, and a passage."""
    size = options.context_tokens + options.continuation_tokens
    for start in range(0, len(ids) - size + 1, size):
        cut = ids[start:start + size]
        middle = options.context_tokens // 2
        passage = cut[middle:middle + PASSAGE]
        yield {"tokens": cut, "context": options.context_tokens,
               "recall": {"tokens": repeat + passage, "scored": SCORED}, "document": document}


def write_entries(source, target, tokenizer, options):
    """Makes entries of a file's lines; how many there are."""
    repeat = tokenizer.encode(REPEAT, add_special_tokens=False)
    written = 0
    with open(source, encoding="utf-8") as lines, open(target, "w", encoding="utf-8") as out:
        for number, line in enumerate(lines, 1):
            if written == options.entries:
                break
            try:
                row = json.loads(line)
                ready = [row] if "tokens" in row else entries_of(
                    tokenizer.encode(row["text"]), row.get("document", f"line {number}"), options,
                    repeat)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Refused(f"{source}:{number}: no line with \"text\" or \"tokens\": {error}"
                              ) from error
            for entry in ready:
                if written < options.entries:
                    out.write(json.dumps(entry) + "\n")
                    written += 1
    if written == 0:
        raise Refused(f"{source}: no text has the {options.context_tokens} + "
                      f"{options.continuation_tokens} tokens of an entry")
    return written


def command_of(options, name, texts, sock):
    """The command line that measures. Without a vocabulary answers are compared by tokens."""
    line = [options.kvterrace, "profile", "calibrate", "--model", sock, "--name", name,
            "--database", options.database, "--context-tokens", str(options.context_tokens),
            "--continuation-tokens", str(options.continuation_tokens)]
    if options.basis:
        line += ["--basis", options.basis]
    for class_name, path in texts:
        line += ["--text", f"{class_name}={path}"]
    return line + options.rest


def find_command(given):
    """The program kvterrace: as given, or that of the package."""
    found = given or command_path()
    if not found or not os.access(found, os.X_OK):
        raise Refused("the program kvterrace is not found; --kvterrace names it")
    return found


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m kvterrace.calibrate",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a name or folder that transformers loads")
    parser.add_argument("--text", action="append", required=True, metavar="CLASS=FILE",
                        help="lines of JSON of one class; may be repeated")
    parser.add_argument("--database", default="kvterrace-profile.db", help="the profile")
    parser.add_argument("--name", help="the model in the profile (the last part of --model)")
    parser.add_argument("--basis", help="learn bases on these classes, with commas between them")
    parser.add_argument("--entries", type=int, default=72, help="of each class at most (72)")
    parser.add_argument("--context-tokens", type=int, default=2048)
    parser.add_argument("--continuation-tokens", type=int, default=200)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (cpu)")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16, float16 (float32)")
    parser.add_argument("--kvterrace", help="the program (that of the package)")
    parser.add_argument("rest", nargs="*", metavar="-- OPTION",
                        help="further options of `kvterrace profile calibrate`")
    options = parser.parse_args(arguments)
    options.texts = [text.partition("=") for text in options.text]
    for text, (class_name, equals, path) in zip(options.text, options.texts):
        if not equals or not class_name or not os.path.isfile(path):
            parser.error(f"--text {text}: CLASS=FILE names a class and a file")
    if options.context_tokens < 4 * PASSAGE or options.continuation_tokens < 2:
        parser.error(f"a context has at least {4 * PASSAGE} tokens, a continuation 2")
    return options


def run(options):
    import transformers
    options.kvterrace = find_command(options.kvterrace)
    name = options.name or os.path.basename(options.model.rstrip("/")).lower()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    with tempfile.TemporaryDirectory(prefix="kvterrace-") as folder:
        texts = []
        for number, (class_name, _, path) in enumerate(options.texts):
            target = os.path.join(folder, f"{number}.jsonl")
            count = write_entries(path, target, tokenizer, options)
            print(f"{class_name}: {count} entries of {path}", file=sys.stderr)
            texts.append((class_name, target))
        server = Server(Model(options.model, device=options.device, dtype=options.dtype),
                        os.path.join(folder, "model"))
        began = time.monotonic()
        try:
            return subprocess.call(command_of(options, name, texts, server.path))
        finally:
            server.close()
            print(f"{name}: measured for {(time.monotonic() - began) / 60:.1f} minutes",
                  file=sys.stderr)


def main(arguments=None):
    options = parse(arguments)
    try:
        return run(options)
    except Refused as error:
        print(f"kvterrace.calibrate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
