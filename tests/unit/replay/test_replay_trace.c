/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_trace.c - trace readers: what they accept, and that any malformed byte is an error
 * with file and line, never a crash.
 */
#include "cases.h"

#include "replay/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

static const replay_trace_options plain_options = {.seed = 7, .conversations_per_s = 0.1};

static void trace_path(const char *name, char *path, size_t size)
{
    const char *source = getenv("KVT_SOURCE_DIR");
    assert_non_null(source);
    snprintf(path, size, "%s/tests/support/traces/%s", source, name);
}

/* Writes bytes to a file of this process and reads it as a trace; the file is removed again. */
static kvt_status read_bytes(const void *bytes, size_t size, const replay_trace_options *options,
                             replay_workload *workload, char message[256])
{
    char path[64];
    snprintf(path, sizeof path, "replay_trace_%ld.tmp", (long)getpid());
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    kvt_status status = replay_workload_read(path, options, workload, message, 256);
    unlink(path);
    return status;
}

static kvt_status read_text(const char *text, replay_workload *workload, char message[256])
{
    return read_bytes(text, strlen(text), &plain_options, workload, message);
}

/* The text must be refused, naming line and reason. */
static void expect_refused(const char *text, const char *line, const char *reason)
{
    replay_workload workload;
    char message[256];
    kvt_status status = read_text(text, &workload, message);
    if (status != KVT_E_PARSE || strstr(message, reason) == NULL || strstr(message, line) == NULL) {
        fail_msg("status %d, message \"%s\"; wanted line %s and \"%s\"", status, message, line,
                 reason);
    }
    assert_null(workload.requests);
    assert_null(workload.blocks);
}

TEST(conversation_is_read)
{
    char path[512], message[256];
    replay_workload workload;
    trace_path("conversation_tiny.jsonl", path, sizeof path);
    assert_ok(replay_workload_read(path, &plain_options, &workload, message, sizeof message));
    assert_int_equal(workload.request_count, 32);
    assert_int_equal(workload.block_tokens, 512);
    assert_int_equal(workload.grid_ns, 3000000000u);
    assert_int_equal(workload.repeated_refs, workload.block_refs - workload.distinct_blocks);
    uint64_t last = 0;
    uint32_t next = 0;
    for (uint64_t i = 0; i < workload.request_count; i++) {
        const replay_request *request = &workload.requests[i];
        assert_true(request->arrival_ns >= last);
        assert_int_equal(request->arrival_ns / 3000000000u, i / 4); /* inside its own step */
        last = request->arrival_ns;
        assert_int_equal(request->block_count, (request->input_tokens + 511) / 512);
        assert_int_equal(workload.blocks[request->first_block], 0);
        for (uint32_t j = 0; j < request->block_count; j++) {
            uint32_t id = workload.blocks[request->first_block + j];
            assert_true(id <= next); /* dense, by first appearance */
            if (id == next) next++;
        }
    }
    assert_int_equal(next, workload.distinct_blocks);
    replay_workload_free(&workload);
}

TEST(seed_moves_arrivals_alone)
{
    char path[512], message[256];
    replay_workload first, again, other;
    replay_trace_options options = plain_options;
    trace_path("conversation_tiny.jsonl", path, sizeof path);
    assert_ok(replay_workload_read(path, &options, &first, message, 256));
    assert_ok(replay_workload_read(path, &options, &again, message, 256));
    options.seed = 8;
    assert_ok(replay_workload_read(path, &options, &other, message, 256));
    assert_true(replay_workload_fingerprint(&first) == replay_workload_fingerprint(&again));
    assert_true(replay_workload_fingerprint(&first) != replay_workload_fingerprint(&other));
    assert_int_equal(first.block_refs, other.block_refs);
    assert_memory_equal(first.blocks, other.blocks, first.block_refs * sizeof *first.blocks);
    replay_workload_free(&first);
    replay_workload_free(&again);
    replay_workload_free(&other);
}

TEST(agentic_is_read)
{
    char path[512], message[256];
    replay_workload workload;
    trace_path("agentic_tiny.jsonl", path, sizeof path);
    assert_ok(replay_workload_read(path, &plain_options, &workload, message, 256));
    assert_int_equal(workload.request_count, 4);
    assert_int_equal(workload.block_tokens, 64);
    assert_int_equal(workload.distinct_blocks, 5);
    uint64_t start[3] = {0}, end[3] = {0};
    for (int i = 3; i >= 0; i--)
        start[workload.requests[i].session] = workload.requests[i].arrival_ns;
    for (int i = 0; i < 4; i++)
        end[workload.requests[i].session] = workload.requests[i].arrival_ns;
    /* Gaps inside a conversation are the trace's; the starts are drawn. */
    assert_in_range(end[1] - start[1], 3999999999u, 4000000001u);
    assert_in_range(end[2] - start[2], 999999999u, 1000000001u);
    assert_true(start[2] > start[1]);
    replay_workload_free(&workload);
}

/* A merged block is the prefix that ends with its last part; what is behind it is no block. */
TEST(small_blocks_are_merged)
{
    char path[512], message[256];
    replay_workload small, merged;
    replay_trace_options options = plain_options;
    trace_path("agentic_tiny.jsonl", path, sizeof path);
    assert_ok(replay_workload_read(path, &options, &small, message, 256));
    options.merge_to = 128;
    assert_ok(replay_workload_read(path, &options, &merged, message, 256));
    assert_int_equal(merged.block_tokens, 128);
    assert_true(merged.block_refs > 0 && merged.distinct_blocks < small.distinct_blocks);
    for (uint64_t i = 0; i < small.request_count; i++)
        assert_int_equal(merged.requests[i].block_count, small.requests[i].input_tokens / 128);
    replay_workload_free(&merged);
    replay_workload_free(&small);
    /* Mooncake's blocks are as large as they may become. */
    trace_path("conversation_tiny.jsonl", path, sizeof path);
    assert_ok(replay_workload_read(path, &options, &merged, message, 256));
    assert_int_equal(merged.block_tokens, 512);
    replay_workload_free(&merged);
}

TEST(limit_keeps_the_first)
{
    char path[512], message[256];
    replay_workload workload;
    replay_trace_options options = plain_options;
    options.limit = 5;
    trace_path("conversation_tiny.jsonl", path, sizeof path);
    assert_ok(replay_workload_read(path, &options, &workload, message, 256));
    assert_int_equal(workload.request_count, 5);
    replay_workload_free(&workload);
}

TEST(compressed_is_read_and_cut_is_refused)
{
    static char text[200000], packed[200000];
    size_t size = 0;
    char message[256];
    for (int i = 0; i < 2000; i++) {
        size += (size_t)snprintf(text + size, sizeof text - size,
                                 "{\"timestamp\": %d, \"input_length\": 600, \"output_length\": 1, "
                                 "\"hash_ids\": [%d, %d]}\n",
                                 i * 17, i, i + 5000);
    }
    size_t bytes = ZSTD_compress(packed, sizeof packed, text, size, 3);
    assert_false(ZSTD_isError(bytes));
    replay_workload workload;
    assert_ok(read_bytes(packed, bytes, &plain_options, &workload, message));
    assert_int_equal(workload.request_count, 2000);
    assert_int_equal(workload.grid_ns, 0);
    replay_workload_free(&workload);

    for (size_t cut = 4; cut < bytes; cut += bytes / 17) {
        assert_int_equal(read_bytes(packed, cut, &plain_options, &workload, message), KVT_E_PARSE);
        assert_non_null(strstr(message, "zstd"));
    }
    /* A flipped byte either breaks the frame or a line; it never passes the reader's checks as a
     * crash. Some flips change a digit and stay readable: then only the counts must hold. */
    for (size_t at = 4; at < bytes; at += bytes / 150) {
        packed[at] = (char)(packed[at] ^ 0x40);
        kvt_status status = read_bytes(packed, bytes, &plain_options, &workload, message);
        assert_true(status == KVT_OK || status == KVT_E_PARSE);
        if (status == KVT_OK) replay_workload_free(&workload);
        packed[at] = (char)(packed[at] ^ 0x40);
    }
}

#define LINE(time, input, ids)                                                                     \
    "{\"timestamp\": " time ", \"input_length\": " input                                           \
    ", \"output_length\": 5, \"hash_ids\": [" ids "]}\n"

TEST(malformed_lines_are_refused)
{
    expect_refused("", ":1:", "empty");
    expect_refused("\n", ":1:", "no JSON object");
    expect_refused("hello\n", ":1:", "no JSON object");
    expect_refused("{\n", ":1:", "column");
    expect_refused("{}\n", ":1:", "timestamp");
    expect_refused(LINE("0", "512", "1") "[1]\n", ":2:", "not a JSON object");
    expect_refused(LINE("-1", "512", "1"), ":1:", "timestamp");
    expect_refused(LINE("1e300", "512", "1"), ":1:", "timestamp");
    expect_refused(LINE("99999999999999", "512", "1"), ":1:", "timestamp");
    expect_refused(LINE("99999999999999999999999", "512", "1"), ":1:", "column");
    expect_refused(LINE("\"0\"", "512", "1"), ":1:", "timestamp");
    expect_refused(LINE("5", "512", "1") LINE("4", "512", "1"), ":2:", "before the one above");
    expect_refused(LINE("0", "0", ""), ":1:", "input_length");
    expect_refused(LINE("0", "-3", ""), ":1:", "input_length");
    expect_refused(LINE("0", "16777217", "1"), ":1:", "input_length");
    expect_refused(LINE("0", "512.5", "1"), ":1:", "input_length");
    expect_refused(LINE("0", "513", "1"), ":1:", "rounded up");
    expect_refused(LINE("0", "512", "1, 2"), ":1:", "rounded up");
    expect_refused(LINE("0", "512", "-1"), ":1:", "hash id");
    expect_refused(LINE("0", "512", "1.0"), ":1:", "hash id");
    expect_refused(LINE("0", "1024", "3, 3"), ":1:", "twice");
    expect_refused("{\"timestamp\": 0, \"timestamp\": 1}\n", ":1:", "column");
    expect_refused("{\"conv\": 3, \"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, "
                   "\"hash_ids\": []}\n",
                   ":1:", "conv");
    expect_refused("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n",
                   ":1:", "hash_ids");
}

TEST(other_formats_are_refused)
{
    expect_refused("TIMESTAMP,ContextTokens,GeneratedTokens\r\n", ":1:", "one object per line");
    expect_refused("[1]\n", ":1:", "one object per line");
}

TEST(hostile_bytes_are_refused)
{
    replay_workload workload;
    char message[256];
    static const char nul[] = LINE("0", "512", "1") "{\"timestamp\": 0\0}\n";
    assert_int_equal(read_bytes(nul, sizeof nul - 1, &plain_options, &workload, message),
                     KVT_E_PARSE);
    assert_non_null(strstr(message, ":2: the line holds a NUL byte"));

    size_t huge = (5u << 20);
    char *line = test_alloc(huge);
    memset(line, ' ', huge);
    line[0] = '{';
    assert_int_equal(read_bytes(line, huge, &plain_options, &workload, message), KVT_E_PARSE);
    assert_non_null(strstr(message, "longer than 4 MiB"));
    /* Deep nesting must not exhaust the stack. */
    memset(line, '[', huge);
    memcpy(line, "{\"a\":", 5);
    assert_int_equal(read_bytes(line, 1u << 20, &plain_options, &workload, message), KVT_E_PARSE);

    assert_int_equal(replay_workload_read("no/such/file", &plain_options, &workload, message, 256),
                     KVT_E_GONE);
    assert_non_null(strstr(message, "no/such/file"));
}
