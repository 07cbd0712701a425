#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wrong inputs: each is refused with the exit code that the manual page says, a line on stderr that
names what is wrong, and a JSON document that says the same. Nothing is left behind.

    test_tools_wrong.py COMMAND
"""

import gzip
import json
import os
import sqlite3
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, CommandCase, command_line, rows_document  # noqa: E402

ROW = '{"timestamp": %d, "input_length": %s, "output_length": 1, "hash_ids": [1]}\n'
FILES = {
    "empty": b"",
    "garbage": b"\xb6\x00\xff garbage" * 8,
    "trunc.jsonl": (ROW % (1, 500) + '{"timestamp": 2, "input_length": ').encode(),
    "type.jsonl": (ROW % (1, '"many"')).encode(),
    "one.jsonl": (ROW % (1, 500)).encode(),
    "negtok.jsonl": (ROW % (1, -5)).encode(),
    "hugetok.jsonl": (ROW % (1, 1 << 40)).encode(),
    "back.jsonl": (ROW % (9000, 500) + ROW % (1, 500)).encode(),
    "gzip.jsonl.zst": b"\x1f\x8b\x08" + bytes(20),
    "dump.safetensors": (2).to_bytes(8, "little") + b'{"k": 1}' + bytes(8),
    "ids.jsonl": b'{"tokens": [5, 4093, 7, 8], "context": 2}\n',
    "x=y.jsonl": b"no JSON",
    "words.json": b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}',
    "text.jsonl": b'{"text": "once upon a time"}\n',
    "camel.jsonl": b'{"timestamp": 0, "inputLength": 5, "outputLength": 1, "hashIds": [1]}\n',
    "typo.jsonl": (ROW % (1, 500)).replace("timestamp", "timestmap").encode(),
    "array.jsonl": ("[" + ROW % (1, 500) + "]").encode(),
    "pretty.jsonl": b'{\n"timestamp": 0\n}\n',
    "comma.jsonl": ((ROW % (1, 500)).strip() + ",\n").encode(),
    "noids.jsonl": (ROW % (1, 500)).replace("[1]", "[]").encode(),
    "lacks.jsonl": b'{"timestamp": 1, "input_length": 5, "hash_ids": [1]}\n',
    "hex.csv": b"Timestamp,Request tokens\n0x10,5\n",
    "columns.csv": b"Timestamp,timestamp,Request tokens\n1,2,5\n",
    "semi.csv": b"Timestamp;Request tokens\n1;2\n",
    "dates.csv": b"TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n12,5\n",
    "quotes.csv": b'Timestamp,Request tokens\n"1,5\n',
    "rows.parquet": b"PAR1" + bytes(40),
    "rows.tar": b"a.jsonl" + bytes(250) + b"ustar" + bytes(250),
    "device.ini": b"[device]\ntier = ssd\n",
    "quotes.ini": b'[tier.dram]\ncapacity = "1GiB"\n',
    "return.ini": b"[tier.dram]\rcapacity = 1GiB\r",
    "utf16.ini": "[tier.dram]\ncapacity = 1GiB\n".encode("utf-16"),
    "table.csv": b"variant,bits\nraw,16\n",
    "broken.ini": b"[store\n",
    "nonutf8.ini": b"\xff\xfe = 1\n",
    "value.ini": b"[store]\npolicy = utili\xff\n",
    "dup.ini": b"[tier.dram]\ncapacity = 1GiB\ncapacity = 2GiB\n",
    "neg.ini": b"[tier.dram]\ncapacity = -1GiB\n",
    "typo.ini": b"[tier.dram]\ncapacty = 1GiB\n",
    "section.ini": b"[tier.drma]\ncapacity = 1GiB\n",
    "bare.ini": b"capacity = 1GiB\n",
    "json.ini": b'{"store": {"policy": "lru"}}\n',
    "hash.ini": b"[tier.dram]\ncapacity = 8 GB # eight\n",
    "case.ini": b"[store]\nfollow_symlinks = YSE\n",
    "capital.ini": b"[Tier.DRAM]\ncapacity = 1GiB\n",
    "devcie.ini": b"[devcie.a]\ntier = ssd\n",
    "percent.ini": b"[store]\nhigh_watermark = 195%\n",
    "unit.ini": b"[tier.dram]\n\ncapacity = 100\n",
    "shared.ini": b"[tier.dram]\ncapacity = 1GiB\n[tier.remote]\nnamespace = a\n",
    "depth.ini": b"[device.a]\ntier = ssd\nbackend = file\npath = f\ncapacity = 64MiB\ndepth = 0\n",
    "long.ini": b"[store]\npolicy = " + b"x" * 100000 + b"\n",
    "lossy.ini": b"[store]\nvariant = planes:k4v4\n",
    "twice.ini": b"[device.a]\ntier = ssd\nbackend = file\npath = f\ncapacity = 64MiB\n"
                 b"[device.b]\ntier = ssd\nbackend = file\npath = f\ncapacity = 64MiB\n",
    "nopath.ini": b"[device.a]\ntier = ssd\nbackend = file\ncapacity = 64MiB\n",
    "notier.ini": b"[device.a]\nbackend = memory\ncapacity = 64MiB\n",
    "memory.ini": b"[device.a]\ntier = dram\nbackend = memory\ncapacity = 64MiB\npath = x\n",
    "hbm.ini": b"[device.a]\ntier = hbm\nbackend = hbm\ncapacity = 1\n",
    "node.ini": b"[device.a]\ntier = dram\nbackend = memory\ncapacity = 64MiB\n"
                b"node = 18446744073709551615\n",
    "huge.ini": b"[tier.dram]\ncapacity = 18446744073709551615\n",
    "small.ini": b"[device.a]\ntier = ssd\nbackend = file\npath = f\ncapacity = 4096\n",
    "sim.ini": b"[device.a]\ntier = dram\nbackend = sim\ncapacity = 64MiB\n",
    "nan.json": rows_document("[prefill]\nname\nm\n").replace('"m"', "NaN").encode(),
    "table.json": rows_document("[nothing]\nmodel\nm\n").encode(),
    "bom.json": b"\xef\xbb\xbf" + rows_document("[model]\nmodel,layers\nm,32\n").encode(),
    "rate.json": rows_document("[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
                               "d,ssd,read,3e30,0\n").encode(),
    "bits.json": rows_document("[ladder]\nvariant,bits,loss,loss_upper,encode_bytes_per_s,"
                               "decode_bytes_per_s,source\nraw,45,0,0,1e9,1e9,s\n").encode(),
}
SIM = ["replay", "--workload", "poisson", "--set", "workload.requests=20"]
SIZE = ["size", *SIM[1:]]
LIVE = [*SIM, "--mode", "live"]
MODEL = os.path.join(os.environ["KVT_SOURCE_DIR"], "reference_model", "model")
PROFILES = os.path.join(os.environ["KVT_SOURCE_DIR"], "profiles")
ADAPTCACHE = ["kvlab", "adaptcache", "--quick", "--ladders", PROFILES]
DEVICE = ["--set", "device.a.tier=ssd", "--set", "device.a.backend=file", "--set", "device.a.path="]


def setting(text):
    return [*SIM, "--set", text]


def trace(name):
    return ["replay", "--trace", name, "--policy", "lru"]


def device(path):
    return [*LIVE, *DEVICE[:-1], DEVICE[-1] + path, "--set", "tier.dram.capacity=16MiB"]


# What is given, what the message says, and the exit code where it is not 2.
CASES = [
    (["foo"], "unknown command 'foo'"),
    (["replya"], "did you mean 'replay'?"),
    (["kvlab", "foo"], "unknown command 'foo'"),
    (["kvlab", "codec"], "did you mean 'codecs'?"),
    (["replay", "--nope"], "unrecognized option '--nope'"),
    (["replay", "--polciy", "lru"], "did you mean '--policy'?"),
    (["replay", "-Z"], "unrecognized option '-Z'"),
    (["replay", "--s", "1"], "ambiguous"),
    (["replay", "--draw=yes"], "takes no argument"),
    (["replay", "--trace"], "requires an argument"),
    (["replay", "-t"], "requires an argument"),
    ([*SIM, "more"], "Too many arguments"),
    (["replay"], "what is to be replayed?"),
    (trace("nope.jsonl"), "nope.jsonl: No such file or directory"),
    (trace("adir"), "adir: Is a directory"),
    (trace("empty"), "empty:1: the file is empty"),
    (trace("garbage"), "garbage:1: "),
    (trace("trunc.jsonl"), "trunc.jsonl:2: "),
    (trace("type.jsonl"), "type.jsonl:1: input_length is not an integer from 1 to 2^24"),
    (trace("negtok.jsonl"), "negtok.jsonl:1: input_length"),
    (trace("hugetok.jsonl"), "hugetok.jsonl:1: input_length"),
    (trace("back.jsonl"), "back.jsonl:2: timestamp is before the one above"),
    (trace("text.jsonl"), "text.jsonl:1: "),
    (trace("gzip.jsonl.zst"), "gzip.jsonl.zst:1: damaged gzip data"),
    (trace("nested.gz"), "nested.gz:1: the content is compressed with gzip: unpack it"),
    (trace("cut.gz"), "cut.gz:2: the gzip data ends too early: the file was cut"),
    (trace("names.csv"), "timestamp,session_id,prompt_tokens,completion_tokens"),
    (trace("burst.csv"), "burst.csv:3: request tokens are not an integer"),
    (trace("fields.csv"), "fields.csv:2: 2 fields, and the header has 3"),
    (trace("/dev/null"), "the file is empty"),
    ([*SIM, "--policy", "lru2"], "unknown policy 'lru2'; did you mean 'lru'?"),
    ([*SIM, "--policy", ""], "unknown policy ''"),
    ([*SIM, "--policy", "lru,lru"], "named twice"),
    (setting("tier.dram.capacity=10XB"), "'10XB' is not a size such as"),
    (setting("tier.dram.capacity=-1GiB"), "'-1GiB' is not a size"),
    (setting("tier.dram.capacity=99999999999999999999TiB"), "below 16EiB"),
    (setting("tier.dram.capacty=1"), "did you mean 'tier.dram.capacity'?"),
    (setting("workload.zipfian=1"), "did you mean 'workload.zipf'?"),
    (setting("device.x.capacty=1"), "did you mean 'device.x.capacity'?"),
    (setting("tier.dram.capacity"), "--set: 'tier.dram.capacity' is not KEY=VALUE"),
    ([*SIM, "--set", "tier.dram.capacity", "1GiB"], "'tier.dram.capacity' is not KEY=VALUE"),
    (setting("dram.capacity=1GiB"), "did you mean 'tier.dram.capacity'?"),
    (["--trace", "x"], "'--trace': options stand behind the command"),
    (["replay", "one.jsonl"], "'one.jsonl': replay takes options alone"),
    (["replay", "--trace", ""], "--trace: the name of the file is empty"),
    ([*SIM, "--policy", "lru,"], "an empty name in the list"),
    ([*SIM, "--config", ""], "--config: the name of the file is empty"),
    (setting("=5"), "=5: expected key=value"),
    (["settings", "policy"], "did you mean 'store.policy'?"),
    (["decode", "one.jsonl", "-o", "x"], "no record: it does not begin as one"),
    *[(trace(name), part) for name, part in (
        ("camel.jsonl", "camel.jsonl:1: input_length is missing; 'inputLength' is there"),
        ("typo.jsonl", "typo.jsonl:1: timestamp is missing; 'timestmap' is there"),
        ("array.jsonl", "array.jsonl:1: a JSON array: a trace is one object per line"),
        ("pretty.jsonl", "pretty.jsonl:1: column 1: "),
        ("pretty.jsonl", "each request is an object on one line"),
        ("comma.jsonl", "each request is an object on one line, and nothing behind it"),
        ("semi.csv", "semi.csv:1: no header of a CSV: commas separate its fields"),
        ("dates.csv", "dates.csv:3: timestamp is a number, and the rows above have dates"),
        ("noids.jsonl", "noids.jsonl: hash_ids is empty in every row"),
        ("lacks.jsonl", "lacks.jsonl:1: output_length is missing: a row is {\"timestamp\": ms, "),
        ("hex.csv", "hex.csv:2: timestamp is not a number of seconds"),
        ("columns.csv", "columns.csv:1: two columns are timestamps"),
        ("quotes.csv", "quotes do not end"), ("rows.parquet", "this is a Parquet file"),
        ("rows.tar", "this is a tar archive: unpack it"))],
    (["replay", "--trace", "trunc.jsonl", "--trace", "b"], "--trace is given twice: 'b'"),
    ([*SIM, "-json"], "did you mean '--json'?"),
    ([*LIVE, "--policy", "oracle"], "it is of simulations alone"),
    (["replay", "--trace", "late.jsonl"], "late.jsonl:2: timestamp is more than 100 days behind"),
    (["replay", "--trace", "far.jsonl"], "far.jsonl:1: timestamp is not a number of milliseconds"),
    (["replay", "--trace", "blocks.jsonl"],
     "blocks.jsonl:2: hash_ids holds 2 ids, and 1000 tokens in blocks of 256, as the rows above"),
    (["replay", "--trace", "utf16.jsonl"], "text in UTF-16: save it as UTF-8"),
    (setting("replay.ladder=two.json"), "two.json: ladder[0].loss: is missing"),
    (["report", "later.json"], "is of another version of kvterrace"),
    (["check-config", "text.ini"], "this file holds other bytes"),
    (["check-config", "large.ini"], "of a file system with"),
    (["check-config", "--set", "tier.dram.capacity=1MiB", "--set", "store.staging=64TiB", "e.ini"],
     "more memory than this machine has"),
    ([*device("x"), "--set", "device.a.depth=0"], "device.a.depth is 0"),
    (setting("tier.ssd.reweigh=no"), "fewer than 2 [device.NAME] have tier = ssd"),
    ([*SIM, "--set", "store.high_watermark=0.1", "--set", "store.low_watermark=0.9"],
     "0 <= low <= high <= 1"),
    (setting("workload.rate=nan"), "not a finite number"),
    (setting("workload.rate=0"), "above 0"),
    (setting("workload.requests=0"), "1 to 16777216"),
    (setting("workload.requests=1000000000000"), "1 to 16777216"),
    ([*SIM, "--seeds", "-1"], "not a whole number from 0"),
    ([*SIM, "--seeds", "1m"], "1 to 1000"),
    (setting("workload.zipf=-3"), "0 to 10"),
    ([*SIM, "--mode", "fast"], "unknown mode 'fast': one of sim|live"),
    ([*SIM, "--mode", "lvie"], "did you mean 'live'?"),
    ([*SIM, "--trace", "x"], "exclude each other"),
    ([*SIM, "--config", "adir"], "this is a folder"),
    ([*SIM, "--config", "garbage"], "garbage:1: "),
    ([*SIM, "--config", "nonutf8.ini"], "nonutf8.ini:1: "),
    ([*SIM, "--config", "value.ini"], "did you mean 'utility'?"),
    ([*SIM, "--limit", "99999999999999999999"], "not a whole number from 0"),
    ([*SIM, "--limit", "-5"], "not a whole number from 0"),
    ([*SIM, "--mix", "ssd=0/1"], "--mix ssd=0/1: not of the form"),
    ([*SIM, "--variant", "fish"], "unknown variant 'fish'"),
    ([*SIM, "--plan-log", "adir"], "Is a directory"),
    ([*SIM, "--plan-log", "/proc/x"], "/proc/x"),
    ([*SIM, "--report", "adir"], "Is a directory"),
    ([*SIM, "--report", "nodir/x.html"], "No such file or directory"),
    (setting("replay.servers=0"), "replay.servers"),
    (setting("replay.layers=32"), "replay.layers has no effect here"),
    (setting("replay.layered=yes"), "replay.layered has no effect here"),
    (setting("tier.ssd.mix=0.5"), "tier.ssd.mix has no effect here"),
    (setting("tier.ssd.mix=1"), "tier.ssd.mix"),
    (setting("replay.bytes_per_token=0"), "replay.bytes_per_token"),
    (setting("replay.block_tokens=0"), "replay.block_tokens"),
    (setting("replay.warmup=2"), "replay.warmup"),
    (setting("workload.tokens_median=0"), "workload.tokens_median"),
    (setting("store.alpha=-1"), "'-1' is not a time"),
    ([*SIM, "--set", "tier.ssd.capacity=1g", "--set", "tier.ssd.read_bandwidth=0"], "bandwidth"),
    ([*SIM, "--set", "tier.ssd.capacity=1g", "--set", "tier.ssd.read_bandwidth=25Gbit/s"],
     "not bytes per second"),
    (setting("tier.ssd.devices=x"), "store.profile is not set"),
    (setting("replay.ladder=nope.json"), "nope.json: No such file"),
    (setting("replay.ladder=garbage"), "garbage: line 1, "),
    (setting("replay.ladder=bits.json"), "bits.json: ladder[0].bits: more than 17"),
    (setting("prefill.profile=nope"), "no effect here: store.profile is not set"),
    ([*SIM, "--set", "prefill.profile=nope", "--database", "good.db"], "nope"),
    ([*SIM, "--database", "garbage"], "not an SQLite database"),
    (LIVE, "no tier has a capacity or a device"),
    (["size"], "what is to be served?"),
    ([*SIZE, "--trace", "x"], "exclude each other"),
    (["size", "--trace", "nope.jsonl"], "nope.jsonl: No such file or directory"),
    (["size", "--trace", "trunc.jsonl"], "trunc.jsonl:2: "),
    (["size", "--trace", "one.jsonl"], "one.jsonl: requests of several times"),
    ([*SIZE, "--machine", "hbm 80GiB"], "--machine: 'hbm' is no tier: dram or ssd"),
    ([*SIZE, "--machine", "dram"], "--machine: 'dram' is no size such as"),
    ([*SIZE, "--machine", "dram 64GiB,"], "--machine: '' is no tier"),
    ([*SIZE, "--machine", "dram much"], "--machine: 'much' is no size"),
    ([*SIZE, "--machine", "dram 64"], "--machine: '64' is no size such as 64GiB"),
    ([*SIZE, "--dram", "64"], "--dram: '64' is no larger size"),
    ([*SIZE, "--machine", "ssd 2TB at 6"], "--machine: '6' is no rate"),
    ([*SIZE, "--machine", "ssd 2TB at"], "--machine: 'at' is no rate"),
    ([*SIZE, "--machine", "ssd 2TB at 6Gbit/s"], "--machine: '6Gbit' is no rate"),
    ([*SIZE, "--machine", "ssd 2TB at 0GB/s"], "--machine: '0GB' is no rate"),
    ([*SIZE, "--machine", "ssd 2TB x0"], "--machine: 'x0' is none of"),
    ([*SIZE, "--machine", "ssd 2TB, ssd 1TB"], "equal drives are one part"),
    ([*SIZE, "--machine", "dram 0, ssd 0"], "every tier that is set has a capacity of 0"),
    ([*SIZE, "--machine", "dram 1g", "--set", "tier.ssd.capacity=1g"], "--machine excludes"),
    ([*SIZE, "--machine", "dram 1g", "--config", "e.ini"], "these have the machine"),
    ([*SIZE, "--price", "hbm=1"], "--price: 'hbm=1' is none of dram="),
    ([*SIZE, "--price", "dram=-1"], "--price: 'dram=-1' is no price"),
    ([*SIZE, "--price", "dram=1,,"], "--price: '' is none of"),
    ([*SIZE, "--price", "gpu_hour=nan"], "is no price from 0 to 1e9"),
    ([*SIZE, "--dram", "1g,lots"], "--dram: 'lots' is no larger size"),
    ([*SIZE, "--ssd", "1g,2g,1g"], "--ssd: '1g' is no larger size"),
    ([*SIZE, "--ssd", ",".join(map(str, range(25)))], "at most 24 sizes"),
    ([*SIZE, "--dram", "0", "--ssd", "0"], "leave no cell with any room"),
    ([*SIZE, "--gpu", "b200"], "no preset is called llama-3.1-8b:b200"),
    ([*SIZE, "--gpu", "b200", "--database", "good.db"], "no prefill model"),
    ([*SIZE, "--model", "m", "--database", "good.db"], "how many bytes of KV has a token?"),
    ([*SIZE, "--sample", "0"], "--sample"),
    ([*SIZE, "--sample", "150%"], "--sample"),
    ([*SIZE, "--draws", "101"], "'101' is not from 0 to 100"),
    ([*SIZE, "--threads", "0"], "--threads"),
    ([*SIZE, "--report", "adir"], "Is a directory"),
    ([*SIZE, "-o", "nodir/x.ini"], "No such file or directory"),
    ([*SIZE, "--set", "replay.hosts=2"], "replay.hosts is of kvterrace replay"),
    ([*SIZE, "--set", "workload.turns=2"], "did you mean 'workload.turns_mean'?"),
    ([*SIZE, "--set", "store.catalog=x"], "store.catalog has no effect here"),
    (device("adir"), "is a directory"),
    (device("garbage"), "too small"),
    (device("nodir/x"), "nodir/x"),
    ([*LIVE, *DEVICE[:-1], DEVICE[-1] + "made", "--set", "device.a.capacity=16MiB", "--set",
      "tier.ssd.capacity=100GB"], "replay.scale"),
    ([*LIVE, "--set", "device.h.tier=hbm", "--set", "device.h.backend=hbm", "--set",
      "device.h.gpu=99", "--set", "device.h.capacity=64MiB"], "no GPU answers", 77),
    ([*LIVE, "--set", "tier.dram.capacity=900000g"], "more memory than is available", 1),
    ([*LIVE, "--set", "device.a.tier=ssd", "--set", "device.a.backend=s3"], "memory|hbm|file"),
    ([*LIVE, "--set", "device.a/b.tier=ssd"], "a device name has 1 to 31 letters"),
    (["check-config"], "which FILE?"),
    (["check-config", "nope.ini"], "nope.ini: No such file"),
    (["check-config", "empty"], "no tier has a capacity or a device"),
    (["check-config", "broken.ini"], "broken.ini:1: "),
    (["check-config", "dup.ini"], "dup.ini:3: tier.dram.capacity: set twice"),
    (["check-config", "neg.ini"], "neg.ini:2: "),
    (["check-config", "typo.ini"], "typo.ini:2: tier.dram.capacty: unknown setting; did you mean"),
    (["check-config", "section.ini"], "section.ini:1: "),
    (["check-config", "device.ini"], "device.ini:1: [device]: unknown section; each has a name"),
    (["check-config", "quotes.ini"], "quotes are part of a value: leave them out"),
    (["check-config", "return.ini"], "return.ini:1: the line holds a carriage return"),
    (["check-config", "utf16.ini"], "as text in UTF-16 does: save it as UTF-8"),
    (["check-config", "bare.ini"], "bare.ini:1: 'capacity' stands before any [section]"),
    (["check-config", "json.ini"], "json.ini:1: '{\"store\"' stands before any [section]"),
    (["check-config", "ids.jsonl"], "ids.jsonl:1: '{\"tokens\"' stands before any [section]"),
    (["check-config", "hash.ini"], "a comment behind a value begins with ';'"),
    (["check-config", "case.ini"], "'YSE' is not yes or no; did you mean 'yes'?"),
    (["check-config", "capital.ini"], "[Tier.DRAM]: unknown section; did you mean 'tier.dram'?"),
    (["check-config", "devcie.ini"], "[devcie.a]: unknown section; did you mean 'device.a'?"),
    (["check-config", "percent.ini"], "the watermarks must be 0 <= low <= high <= 1"),
    (setting("workload.rate=50%"), "'%' stands behind a share alone"),
    (setting("replay.warmup=5%%"), "'5%%' is not a finite number"),
    (setting("replay.warmup=%"), "'%' is not a finite number"),
    (setting("store.high_watermark=95%"), "low is 0.99 where it is not set"),
    (setting("replay.ladder=table.csv"), "are JSON, as kvterrace profile export writes them"),
    (["check-config", "unit.ini"], "unit.ini:3: tier.dram.capacity: at least a stripe unit"),
    (["check-config", "shared.ini"],
     "shared.ini:4: tier.remote.namespace has no effect here: no [remote.NAME] has address"),
    (["check-config", "depth.ini"], "depth.ini:6: device.a.depth is 0"),
    (["check-config", "long.ini"], "long.ini:2: the line is too long"),
    (["check-config", "lossy.ini"], "raw|lossless"),
    (["check-config", "twice.ini"], "path"),
    (["check-config", "nopath.ini"], "device.a.path is not set"),
    (["check-config", "notier.ini"], "device.a.tier is not set"),
    (["check-config", "memory.ini"], "device.a.path has no effect"),
    (["check-config", "hbm.ini"], "device.a.capacity: at least a stripe unit"),
    (["check-config", "node.ini"], "there is no NUMA node"),
    (["check-config", "huge.ini"], "more than a process can have"),
    (["check-config", "small.ini"], "device.a.capacity: at least 64KiB"),
    (["check-config", "sim.ini"], "needs read_bandwidth"),
    (["replay", "--json=x"], "takes no argument"),
    (["check-config", "lru.ini"], "store.ladder: a calibrated ladder needs store.profile"),
    (["check-config", "ladder.ini", "--set", "store.loss_limit=5"], "store.loss_limit: 0 to 1"),
    (["check-config", "ladder.ini", "--set", "store.entry_loss_limit=0"],
     "store.entry_loss_limit: above 0, up to 1"),
    (["check-config", "ladder.ini", "--set", "store.learn_interval=0"],
     "store.learn_interval: above 0"),
    (["check-config", "catalog.ini"], "adir: this is a folder"),
    ([*SIM, "--database", "good.db", "--report", "good.db"], "uses that file for something else"),
    (["settings", "workloads"], "did you mean 'workload'?"),
    (["profile", "show", "--database", "nope.db"], "nope.db: no such profile"),
    (["profile", "show", "--database", "empty"], "not an SQLite database"),
    (["profile", "show", "--database", "garbage"], "not an SQLite database"),
    (["profile", "show", "--database", "adir"], "adir: this is a folder"),
    (["profile", "show", "--database", "foreign.db"], "not a kvterrace profile"),
    (["profile", "show", "--database", "cut.db"], "cut.db"),
    (["profile", "show", "--html", "x.html"], "kvterrace report"),
    (["profile", "show", "--token-bytes", "0"], "--token-bytes"),
    (["profile", "import"], "which FILE.json?"),
    (["profile", "import", "garbage", "--database", "new.db"], "garbage: line 1, "),
    (["profile", "import", "empty", "--database", "new.db"], "empty"),
    (["profile", "import", "adir", "--database", "new.db"], "adir"),
    (["profile", "import", "nan.json", "--source", "x", "--database", "new.db"],
     "nan.json: line 1, column "),
    (["profile", "import", "table.json", "--source", "x", "--database", "new.db"],
     "tables.nothing: no such table: it is none of model device "),
    (["profile", "import", "bom.json", "--source", "x", "--database", "new.db"],
     "bom.json: this is text with a byte order mark"),
    (["profile", "import", "rate.json", "--source", "x", "--database", "new.db"],
     "rate.json: device[0].bytes_per_s: not a number above 0, up to 1e18"),
    (["profile", "export", "--table", "nothing", "--database", "good.db"], "no such table"),
    (["profile", "export", "--ladder", "nope:x", "--database", "good.db"], "no model nope"),
    (["profile", "diff", "good.db"], "which PROFILE.db?"),
    (["profile", "diff", "good.db", "nope.db"], "nope.db: no such profile"),
    (["profile", "diff", "good.db", "good.db", "--threshold", "much"], "not a share"),
    (["profile", "gc", "--older", "forever"], "not a time"),
    (["profile", "devices", "bogus"], "none of devices|codecs"),
    (["profile", "devices", "--database", "/proc/x.db", "--quick"], "/proc/x.db"),
    (["profile", "quality", "--model", "nope", "--text", "text.jsonl", "--database", "new.db"],
     "nope"),
    (["profile", "quality", "--model", "garbage", "--text", "text.jsonl", "--database", "new.db"],
     "garbage"),
    (["profile", "quality", "--model", "meta-llama/Llama-3.1-8B", "--text", "text.jsonl"],
     "a model is a folder of this machine"),
    (["profile", "quality", "--model", MODEL + "/model.safetensors", "--text", "text.jsonl",
      "--database", "good.db"], "the model is the folder with them"),
    (["profile", "quality", "--model", MODEL, "--tokenizer", "garbage", "--text", "text.jsonl",
      "--database", "good.db"], "no vocabulary of llama2.c"),
    (["profile", "quality", "--model", MODEL, "--tokenizer", "words.json", "--text", "text.jsonl",
      "--database", "good.db"], "1 pieces, and the model has 672"),
    *[(["profile", command, "--model", MODEL, "--text", text, "--database", "good.db"], part)
      for command in ("quality", "calibrate")
      for text, part in (("a=", "a=: no file behind the '='"),
                         ("=text.jsonl", "=text.jsonl: no class before the '='"),
                         ("a/b=text.jsonl", "a/b=text.jsonl: the name of a class has no '/'"),
                         ("a,b=text.jsonl", "the name of a class has no '/', ':' or ','"),
                         ("x" * 57 + "=text.jsonl", "at most 56 bytes"),
                         ("none=none.jsonl", "none.jsonl: No such file"),
                         ("x=y.jsonl", "x=y.jsonl:1: "))],
    (["profile", "quality", "--model", MODEL, "--text", "text.jsonl", "--class", "a/b"],
     "a/b: the name of a class"),
    (["profile", "calibrate", "--kv", "=x"], "=x: no class before the '='"),
    (["profile", "quality", "--text", "x"], "--model is missing"),
    (["profile", "quality", "--model", "x", "--text", "x", "--loss", "bleu"], "unknown loss"),
    (["profile", "quality", "--model", "x", "--text", "x", "--loss", "rougel"], "'rouge_l'"),
    (["profile", "calibrate"], "--model or --kv is missing"),
    (["profile", "attention"], "which DUMP?"),
    (["profile", "dumps", "--model", "x", "--text", "x"], "--output is missing"),
    (["encode"], "which FILE?"),
    (["encode", "nope.safetensors"], "nope.safetensors: No such file"),
    (["encode", "garbage"], "safetensors"),
    (["encode", "garbage", "--variant", "planes:k5v5"], "unknown variant 'planes:k5v5'"),
    (["encode", "garbage", "--variant", "plane:k4v4,g64"], "did you mean 'planes:k4v4,g64'?"),
    (["decode", "garbage"], "--output says where to"),
    (["decode", "garbage", "-o", "x"], "garbage"),
    (["decode", "empty", "-o", "x"], "empty"),
    (["decode", "dump.safetensors", "-o", "x"], "no record: this is a safetensors file"),
    (["decode", "garbage", "-o", "garbage"], "uses that file for something else"),
    (["inspect"], "which FILE?"),
    (["inspect", "nope"], "nope: No such file"),
    (["inspect", "adir"], "neither a regular file nor a block device"),
    (["inspect", "garbage"], "neither a catalog, nor a profile, nor a record"),
    (["inspect", "foreign.db"], "another application"),
    (["verify", "x"], "Too many arguments"),
    (["verify", "--set", "tier.dram.capacity=1g"], "store.catalog is not set"),
    (["verify", "--set", "store.catalog=garbage", "--set", "tier.dram.capacity=1g"], "garbage"),
    (["report"], "which FILE?"),
    (["report", "garbage"], "garbage: no JSON"),
    (["report", "nope.json"], "nope.json: No such file"),
    (["kvlab", "codecs", "--variants", "foo"], "unknown variant 'foo'"),
    (["kvlab", "codecs", "--isa", "neon"], "unknown instruction set 'neon'"),
    (["kvlab", "codecs", "--plot", "x"], "kvterrace report"),
    (["kvlab", "stripe", "--config", "nope.ini"], "nope.ini: No such file"),
    (["kvlab", "stripe", "--iterations", "0"], "'0' is not from 1 to 999999"),
    (["kvlab", "stripe", "--iterations", "abc"], "'abc' is not from 1 to 999999"),
    (["kvlab", "policy", "--size", "0"], "'0' is not from 1 to 20000000"),
    (["kvlab", "policy", "--size", "1g"], "'1g' is not from 1 to 20000000"),
    (["kvlab", "policy", "--seeds", "99"], "'99' is not from 1 to 7"),
    (["kvlab", "adaptcache", "--loss", "rouge"], "did you mean 'rouge_l'?"),
    (["kvlab", "policy", "--set", "store.alpha=1"], "no effect here"),
    ([*SIM, "--draw"], "--draw goes with --trace"),
    ([*SIM, "--sessions", "3"], "--sessions goes with --draw"),
    (["kvlab", "adaptcache", "--seeds", "99"], "from 1 to 40"),
    (["kvlab", "adaptcache", "--class", "qa"], "three times"),
    (["kvlab", "adaptcache", "--profile", "no_such_profile"], "no_such_profile.json"),
    (["kvlab", "adaptcache", "--zipf", "1"], "are both run"),
    (["profile", "quality", "--model", MODEL, "--text", "ids.jsonl", "--database", "good.db"],
     "text 1 has the token id 4093, and the model's vocabulary ends at 671"),
    ([*ADAPTCACHE, "--profile", "reference-model"],
     "no class qa; --class takes three of pooled, recall-768\n"),
    ([*ADAPTCACHE, "--profile", "codecs-gpu"], "no quality was measured in it"),
    ([*ADAPTCACHE, "--class", "a", "--class", "b", "--class", "c"], "--profile is missing"),
]


class WrongTest(CommandCase):
    def setUp(self):
        super().setUp()
        for name, text in FILES.items():
            self.put(name, text)
        os.mkdir(self.path("adir"))
        with sqlite3.connect(self.path("foreign.db")) as database:
            database.execute("CREATE TABLE t(x)")
        self.run_command("profile", "import",
                         self.put_rows("m.json", "[model]\nmodel,layers\nm,32\n"),
                         "--source", "s", "--database", "good.db")
        self.put("lru.ini", "[store]\nladder = calibrated\nladder_layout = 32x8x128:bf16\n"
                 "[tier.dram]\ncapacity = 1g\n")
        self.put("ladder.ini", "[store]\nprofile = good.db\nladder = calibrated\n"
                 "ladder_layout = 32x8x128:bf16\n[tier.dram]\ncapacity = 64MiB\n")
        row = '{{"timestamp": {}, "input_length": 1000, "output_length": 1, "hash_ids": {}}}\n'
        self.put("late.jsonl", row.format(1600000000000, [1, 2]) +
                 row.format(1700000000000, [1, 2]))
        self.put("far.jsonl", row.format(99999999999999, [1, 2]))
        self.put("blocks.jsonl", row.format(0, [1, 2, 3, 4]) + row.format(0, [1, 2]))
        self.put("nested.gz", gzip.compress(gzip.compress(row.format(0, [1, 2]).encode())))
        self.put("cut.gz", gzip.compress(row.format(0, [1, 2]).encode())[:-9])
        self.put("utf16.jsonl", row.format(0, [1, 2]).encode("utf-16"))
        self.put("names.csv", "when,what,who\n1,2,3\n")
        self.put("burst.csv", "Timestamp,Request tokens\n1,2\n2,many\n")
        self.put("fields.csv", "Timestamp,Model,Request tokens\n1,2\n")
        self.put_rows("two.json", "[ladder]\nvariant,bits\nraw,16\n")
        self.put("later.json", '{"schema": "kvterrace-replay-99"}')
        drive = "[device.a]\ntier = ssd\nbackend = file\npath = {}\ncapacity = {}\n"
        self.put("e.ini", "")
        self.put("text.ini", drive.format(self.put("text", "no label\n" * 20000), "64KiB"))
        self.put("large.ini", drive.format("large", "4096TiB"))
        self.put("catalog.ini", "[store]\ncatalog = adir\n[tier.dram]\ncapacity = 1g\n")
        with open(self.path("good.db"), "rb") as file:
            self.put("cut.db", file.read()[:6000])

    def test_every_case(self):
        before = sorted(os.listdir(self.folder))
        for arguments, part, *code in CASES:
            words = 2 if arguments[0] in ("kvlab", "profile") else 1
            with self.subTest(arguments=arguments):
                result = subprocess.run(
                    command_line(*arguments[:words], "--json", *arguments[words:]),
                    cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, timeout=600)
                errors = result.stderr.decode()
                self.assertEqual(result.returncode, code[0] if code else 2, errors)
                self.assertIn(part, errors)
                self.assertNotIn("KVT_E_", errors)
                document = json.loads(result.stdout)
                self.assertEqual(document["schema"], "kvterrace-error-1")
                error = document["error"]
                self.assertEqual(set(error), {"status", "message", "file", "line"})
                self.assertIn(error["message"].split("\n")[0], errors)
                left = sorted(os.listdir(self.folder))
                self.assertEqual(left, before, arguments)

    def test_argument_of_json(self):
        """A flag with an argument is an error that is a document, as the flag asks."""
        for words in (["settings", "--json=x"], ["settings", "--js=x"]):
            self.assertEqual(json.loads(self.run_command(*words, code=2).stdout)["schema"],
                             "kvterrace-error-1")
        path = b"nope\xff"
        result = subprocess.run([COMMAND, "inspect", "--json", path], cwd=self.folder, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(json.loads(result.stdout)["error"]["file"], "?")

    def test_names_the_profile_of_the_user(self):
        """A live replay works on a copy; what is wrong with it is said of the file that was named.
        """
        self.fails("profile good.db: no ladder", *LIVE, "--config", "ladder.ini", "--set",
                   "replay.scale=1")

    def test_slow_cap(self):
        """A device with a tiny cap opens: a probe of it would end as if it did not answer."""
        self.run_command(*SIM[:3], "--set", "workload.requests=1", "--mode", "live", "--set",
                         "device.a.tier=dram", "--set", "device.a.backend=memory", "--set",
                         "device.a.capacity=64MiB", "--set", "device.a.read_bandwidth=1k")

    def test_what_is_taken_with_a_note(self):
        result = self.run_command("check-config", "--set", "tier.dram.capacity=1g", "--set",
                                  "store.put_staging=2g", "e.ini")
        self.assertIn("an eighth of the smallest tier", result.stderr)

    def test_other_spellings(self):
        """What can mean one thing alone is no error."""
        for words in (["store.lossless=YES", "store.high_watermark=99.5%"],
                      ["store.lossless=False", "store.low_watermark=90%"]):
            self.run_command("check-config", "--set", "tier.dram.capacity=1g",
                             *[part for word in words for part in ("--set", word)], "e.ini")
        self.assertEqual(self.run_json(*SIM, "--policy", "none", "--set", "replay.warmup=50%")
                         ["results"][0]["requests"], 10)

    def test_file_and_line(self):
        error = self.run_json("check-config", "typo.ini", code=2)["error"]
        self.assertEqual((error["file"], error["line"]), ("typo.ini", 2))
        error = self.run_json(*trace("back.jsonl"), code=2)["error"]
        self.assertEqual((error["file"], error["line"]), ("back.jsonl", 2))

    def test_remote_is_checked(self):
        """What an open would refuse of an engine on other hosts; an address with a secret in it is
        not shown."""
        os.chmod(shown := self.put("shown", "-"), 0o644)
        for part, address, engine, tier in (
                ("address is not host:port", "127.0.0.1", "", ""),
                ("address is not host:port: '127.0.0.1:0'", "127.0.0.1:0", "", ""),
                ("address is not host:port: 'http://h:6379'", "http://h:6379", "", ""),
                ("host:port alone", "redis://:secret@h:1", "", ""),
                ("no address is given", ",", "", ""),
                ("needs cluster = yes", "a:1, b:2", "", ""),
                ("tier.remote.chunk: 4096 to 8388608", "a:1", "", "chunk = 1"),
                ("tier.remote.queue: 1 to 1048576", "a:1", "", "queue = 0"),
                ("tier.remote.deadline: 0.0001 to 60", "a:1", "", "deadline = 0"),
                ("remote.r.password_file: absent: No such file", "a:1", "password_file = absent",
                 ""),
                ("chmod 600", "a:1", f"password_file = {shown}", "")):
            with self.subTest(part=part, address=address):
                result = self.fails(part, "check-config", self.put("bad.ini", (
                    "[tier.dram]\ncapacity = 1MiB\n[remote.r]\nbackend = valkey\n"
                    f"address = {address}\n{engine}\n[tier.remote]\nnamespace = m@1\n{tier}\n")))
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                self.assertNotIn("secret", result.stderr)


if __name__ == "__main__":
    unittest.main()
