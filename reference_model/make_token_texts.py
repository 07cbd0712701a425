#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes texts as token ids for measuring quality on a real model; see docs/REFERENCE_MODEL.md.

    reference_model/make_token_texts.py --model models/smollm2 --texts DIR --out DIR

Makes summarisation.jsonl, qa.jsonl and agent.jsonl of docs/PROFILE.md's format from the files of
LEval, LongBench, QMSum and an agent's trace under --texts (leval/NAME.jsonl.zst and so on).
Contexts have 1,024 to 7,000 tokens. A longer document is cut into pieces whose lengths are drawn
evenly on a logarithmic scale. Every document gives one entry before any gives a second. --code
makes code.jsonl of the source files below a folder: what follows a piece of a file is its answer.
--half writes the documents of one half alone, so that what is tuned on the first can be reported
on the second.
Needs the package tokenizers and the program zstd; the same seed gives the same files.
"""

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys

import texts

SHORTEST, LONGEST = 1024, 6960  # tokens of a document; the chat format adds some
QUESTIONS_MAX = 2
QUESTION_TOKENS_MAX = 256
ANSWER_TOKENS_MIN, ANSWER_TOKENS_MAX = 16, 64
PASSAGE_TOKENS, PASSAGE_SCORED = 97, 81
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
RECALL = "I repeat a part of the text word for word:\n"

SUMMARISATION = ["leval/gov_report_summ", "leval/news_summ", "leval/review_summ",
                 "longbench/multi_news", "qmsum/val"]
QA = ["leval/financial_qa", "leval/legal_contract_qa", "leval/multidoc_qa", "leval/quality"]
AGENT = "agent/magagent"
CODE_SUFFIXES = (".py", ".c", ".h", ".java", ".go", ".rs", ".js", ".ts", ".cpp")
CODE_BYTES = 4 << 20  # of files that are read at most; they are drawn


class Refused(Exception):
    """What is asked for cannot be made; the text says why."""


class Coder:
    """The model's tokenizer and chat format, and the most tokens of a document in a context."""

    def __init__(self, path, system=SYSTEM, longest=LONGEST):
        self.system, self.longest = system, longest
        try:
            import tokenizers
        except ImportError as missing:
            raise Refused("%s (python3 -m pip install tokenizers)" % missing)
        name = os.path.join(path, "tokenizer.json")
        with open(name, "rb"):  # the package's own error does not name the file
            pass
        self.tokens = tokenizers.Tokenizer.from_file(name)
        if self.tokens.token_to_id("<|im_start|>") is None:
            raise Refused("%s has no <|im_start|>: another chat format" % path)

    def plain(self, text):
        # A text that names a special token must not become one.
        return self.tokens.encode(text.replace("<|", "< |")).ids

    def turn(self, role, content, end=True):
        """Ids of a turn; its content is ids already."""
        ids = self.tokens.encode("<|im_start|>%s\n" % role).ids + content
        return ids + self.tokens.encode("<|im_end|>\n").ids if end else ids


class Document:
    """One source document: its ids and pairs of question and answer, as texts."""

    def __init__(self, name, ids, pairs):
        self.name, self.ids, self.pairs = name, ids, pairs


def rows(folder, name):
    path = os.path.join(folder, name + ".jsonl")
    if os.path.exists(path):
        with open(path, "rb") as file:
            data = file.read()
    else:
        with open(path + ".zst", "rb") as file:
            result = subprocess.run(["zstd", "-dc"], stdin=file, stdout=subprocess.PIPE,
                                    stderr=subprocess.DEVNULL, check=False)
        if result.returncode != 0:
            raise Refused("%s.zst is not zstd, or cut short" % path)
        data = result.stdout
    try:
        return [json.loads(line) for line in data.decode().split("\n") if line]
    except ValueError as error:
        raise Refused("%s: %s" % (path, error))


def document_texts(folder, source):
    """Name, text, and (question, answer) pairs of each document of a source."""
    for i, row in enumerate(rows(folder, source)):
        name = "%s:%d" % (source, i)
        if source.startswith("qmsum/"):
            text = "\n".join("%s: %s" % (turn["speaker"], turn["content"])
                             for turn in row["meeting_transcripts"])
            yield name, text, [(query["query"], query["answer"]) for query in
                               row["general_query_list"] + row["specific_query_list"]]
        elif source.startswith("longbench/"):
            yield (name, re.sub(" ?NEWLINE_CHAR ?", "\n", row["context"]),
                   [("Please summarize these news articles.", answer)
                    for answer in row["answers"][:1]])
        else:
            yield name, row["input"], list(zip(row["instructions"], row["outputs"]))


def in_half(half, name):
    """Whether a document counts; its name alone decides."""
    return half is None or hashlib.sha256(name.encode()).digest()[0] % 2 == half - 1


def documents(coder, folder, source, half):
    found = [Document(name, coder.plain(text), pairs)
             for name, text, pairs in document_texts(folder, source) if in_half(half, name)]
    return [document for document in found if len(document.ids) >= SHORTEST]


def draw_length(draw, longest):
    return int(SHORTEST * math.exp(draw.random() * math.log(longest / SHORTEST)))


def cut(draw, ids, longest):
    """A document's pieces: itself, or runs of drawn lengths that follow each other."""
    if len(ids) <= longest:
        return [ids]
    pieces, at = [], 0
    while True:
        length = draw_length(draw, longest)
        if at + length > len(ids):
            return pieces
        pieces.append(ids[at : at + length])
        at += length


def words(text):
    return set(re.findall(r"[^\W_]{4,}", text.lower()))


def choose(coder, piece, pairs):
    """The questions whose reference answers have most of their words in the piece, as ids."""
    text = words(coder.tokens.decode(piece))
    fit = []
    for i, (question, answer) in enumerate(pairs):
        asked, answered = coder.plain(question.strip()), coder.plain(answer.strip())
        if not asked or len(asked) > QUESTION_TOKENS_MAX or len(answered) < ANSWER_TOKENS_MIN:
            continue
        wanted = words(answer)
        fit.append((-len(wanted & text) / (len(wanted) or 1), i, asked,
                    answered[:ANSWER_TOKENS_MAX]))
    best = sorted(fit)[:QUESTIONS_MAX]
    return [(asked, answered) for _, _, asked, answered in sorted(best, key=lambda row: row[1])]


def make_entry(coder, kind, document, piece, pairs):
    """One line. Context and every question are whole turns, so that any question may follow."""
    ids = coder.turn("system", coder.plain(coder.system)) + coder.turn("user", piece)
    context, marks = len(ids), []
    for asked, answered in pairs:
        first = len(ids)
        ids = ids + coder.turn("user", asked) + coder.turn("assistant", [], end=False)
        answer = len(ids)
        ids = ids + answered
        marks.append([first, answer, len(ids)])
        ids = ids + coder.tokens.encode("<|im_end|>\n").ids
    middle = (len(piece) - PASSAGE_TOKENS) // 2
    recall = coder.turn("assistant", coder.plain(RECALL), end=False)
    return {"tokens": ids, "context": context, "questions": marks,
            "recall": {"tokens": recall + piece[middle : middle + PASSAGE_TOKENS],
                       "scored": PASSAGE_SCORED},
            "document": document, "class": kind}


def interleave(lists):
    """One of each list in turn, as long as any has more."""
    for i in range(max(map(len, lists), default=0)):
        for items in lists:
            if i < len(items):
                yield items[i]


def from_documents(coder, folder, kind, sources, draw, count, half):
    lists = [draw.shuffled(documents(coder, folder, source, half)) for source in sources]
    order = list(interleave(lists))
    pieces = {document.name: cut(draw, document.ids, coder.longest) for document in order}
    entries = []
    for i in range(max(map(len, pieces.values()), default=0)):
        for document in order:
            if len(entries) == count:
                return entries
            if i >= len(pieces[document.name]):
                continue
            piece = pieces[document.name][i]
            pairs = choose(coder, piece, document.pairs)
            if pairs:
                entries.append(make_entry(coder, kind, document.name, piece, pairs))
    return entries


def split_prompt(coder, prompt):
    """The prompt's last paragraphs are the question; what stands before them is the context."""
    at = len(prompt)
    while True:
        before = prompt.rfind("\n\n", 0, at)
        if before < 0 or len(coder.plain(prompt[before:].strip())) > QUESTION_TOKENS_MAX:
            break
        at = before
    return prompt[:at].rstrip(), prompt[at:].strip()


def agent_calls(coder, folder, half):
    """Context, question and answer of the calls of each session, as ids."""
    sessions = {}
    for row in rows(folder, AGENT):
        if not in_half(half, "%s:%s" % (AGENT, row["session_id"])):
            continue
        context, question = split_prompt(coder, row["input"])
        ids, asked = coder.plain(context), coder.plain(question)
        answered = coder.plain(row["output"].strip())
        if len(ids) >= SHORTEST and asked and len(answered) >= 2 * ANSWER_TOKENS_MIN:
            sessions.setdefault(row["session_id"], []).append(
                (ids, asked, answered[:ANSWER_TOKENS_MAX]))
    return sessions


def from_agent(coder, folder, draw, count, half):
    """Lengths are drawn, and the call whose length comes nearest is taken: most calls are
    short. A call beyond the longest context keeps its end."""
    sessions = agent_calls(coder, folder, half)
    names = draw.shuffled(sorted(sessions))
    entries = []
    while len(entries) < count and any(sessions.values()):
        for name in names:
            if len(entries) == count or not sessions[name]:
                continue
            length = draw_length(draw, coder.longest)
            calls = sessions[name]
            i = min(range(len(calls)), key=lambda i: abs(math.log(len(calls[i][0]) / length)))
            ids, asked, answered = calls.pop(i)
            piece = ids if len(ids) <= coder.longest else ids[-length:]
            entries.append(make_entry(coder, "agent", "%s:%s" % (AGENT, name), piece,
                                      [(asked, answered)]))
    return entries


def code_files(folder, draw, half):
    """Paths of source files below a folder, drawn, CODE_BYTES of them at most."""
    found = []
    for base, names, files in os.walk(folder):
        names.sort()
        found += [os.path.join(base, name) for name in sorted(files)
                  if name.endswith(CODE_SUFFIXES)]
    read = 0
    for path in draw.shuffled(found):
        name = os.path.relpath(path, folder)
        if not in_half(half, name) or os.path.getsize(path) < 3 * SHORTEST:
            continue
        read += os.path.getsize(path)
        if read > CODE_BYTES:
            return
        with open(path, "rb") as file:
            yield name, file.read().decode("utf-8", "replace")


def from_code(coder, folder, draw, count, half):
    """A piece of a file is the context, and what follows it in the file the answer."""
    entries = []
    for name, text in code_files(folder, draw, half):
        ids = coder.plain(text)
        length = min(draw_length(draw, coder.longest), len(ids) - ANSWER_TOKENS_MAX)
        if length >= SHORTEST and len(entries) < count:
            asked = coder.plain("What are the next lines of this file?")
            entries.append(make_entry(coder, "code", name, ids[:length],
                                      [(asked, ids[length : length + ANSWER_TOKENS_MAX])]))
    return entries


def write(folder, kind, entries, count):
    path = os.path.join(folder, kind + ".jsonl")
    with open(path + ".part", "w") as file:
        for entry in entries:
            json.dump(entry, file, separators=(",", ":"))
            file.write("\n")
    os.rename(path + ".part", path)
    lengths = sorted(entry["context"] for entry in entries)
    print("%s: %d entries of %d documents, contexts of %d to %d tokens, median %d%s"
          % (path, len(entries), len({entry["document"] for entry in entries}), lengths[0],
             lengths[-1], lengths[len(lengths) // 2],
             "" if len(entries) == count else " (the texts give no more)"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a folder with tokenizer.json")
    parser.add_argument("--texts", required=True, help="the folder with leval/ and so on")
    parser.add_argument("--out", required=True,
                        help="the folder for the texts; made where it is missing")
    parser.add_argument("--entries", type=int, default=120, help="of each class")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--code", metavar="FOLDER", help="source files, for the class code")
    parser.add_argument("--half", type=int, choices=(1, 2), help="of the documents, by their names")
    parser.add_argument("--system", default=SYSTEM, help="the first turn of every context")
    parser.add_argument("--longest", type=int, default=LONGEST,
                        help="tokens of a document in a context at most (%d)" % LONGEST)
    arguments = parser.parse_args()
    if arguments.longest <= SHORTEST:
        parser.error("--longest: more than %d" % SHORTEST)
    if arguments.entries < 1:
        parser.error("--entries: at least 1")
    try:
        make(arguments)
    except Refused as error:
        sys.exit("make_token_texts.py: %s" % error)
    except OSError as error:
        sys.exit("make_token_texts.py: %s: %s" % (error.filename, error.strerror))


def make(arguments):
    coder = Coder(arguments.model, arguments.system, arguments.longest)
    os.makedirs(arguments.out, exist_ok=True)
    draw = lambda kind: texts.Draw("%d token texts %s" % (arguments.seed, kind))
    for kind, sources in (("summarisation", SUMMARISATION), ("qa", QA)):
        write(arguments.out, kind, from_documents(coder, arguments.texts, kind, sources,
                                                  draw(kind), arguments.entries,
                                                  arguments.half),
              arguments.entries)
    write(arguments.out, "agent", from_agent(coder, arguments.texts, draw("agent"),
                                             arguments.entries, arguments.half),
          arguments.entries)
    if arguments.code is not None:
        write(arguments.out, "code", from_code(coder, arguments.code, draw("code"),
                                               arguments.entries, arguments.half),
              arguments.entries)


if __name__ == "__main__":
    main()
