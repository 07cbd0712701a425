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
#include <zlib.h>
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
    assert_int_equal(merged.merged, 2);
    assert_true(merged.block_refs > 0 && merged.distinct_blocks < small.distinct_blocks);
    for (uint64_t i = 0; i < small.request_count; i++)
        assert_int_equal(merged.requests[i].block_count, small.requests[i].input_tokens / 128);
    replay_workload_free(&merged);
    replay_workload_free(&small);
    /* Mooncake's blocks are as large as they may become. */
    trace_path("conversation_tiny.jsonl", path, sizeof path);
    assert_ok(replay_workload_read(path, &options, &merged, message, 256));
    assert_int_equal(merged.block_tokens, 512);
    assert_int_equal(merged.merged, 1);
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
    expect_refused("\xef\xbb\xbf", ":1:", "empty");
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
    expect_refused(LINE("0", "512", "1") LINE("0", "5000", "1"), ":2:", "blocks of 512");
    expect_refused(LINE("0", "2000", "1, 2, 3, 4") LINE("0", "512", "1, 2"), ":2:",
                   "holds 2 ids, and 512 tokens in blocks of 512, as the rows above have them, "
                   "make 1");
    expect_refused(LINE("0", "100", "1, 2, 3, 4, 5"), ":1:", "16 to 4096 tokens");
    expect_refused(LINE("0", "512", "-1"), ":1:", "hash id");
    expect_refused(LINE("0", "512", "1.0"), ":1:", "hash id");
    expect_refused(LINE("0", "512", "18446744073709551616"), ":1:", "column");
    expect_refused(LINE("0", "512", "null"), ":1:", "hash id");
    expect_refused("{\"timestamp\": 0, \"timestamp\": 1}\n", ":1:", "column");
    expect_refused("{\"conv\": 3, \"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, "
                   "\"hash_ids\": []}\n",
                   ":1:", "conv");
    expect_refused(
        LINE("0", "512", "1") "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n",
        ":2:", "hash_ids");
    expect_refused(
        "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n" LINE("0", "512", "1"),
        ":2:", "the first row has none");
}

TEST(other_formats_are_refused)
{
    expect_refused("[1]\n", ":1:", "a JSON array");
    expect_refused("a,b,c\n1,2,3\n", ":1:", "no header of a CSV");
    expect_refused("TIMESTAMP,ContextTokens\r\n", "no requests", "no requests");
    expect_refused("PK\x03\x04 zip", ":1:", "a zip archive");
}

/* Reads a text and keeps the workload, which the caller frees. */
static void expect_read(const char *text, replay_workload *workload, uint32_t block_tokens,
                        uint64_t requests, uint64_t distinct)
{
    char message[256];
    kvt_status status = read_text(text, workload, message);
    if (status != KVT_OK) fail_msg("%s\n%s", message, text);
    assert_int_equal(workload->request_count, requests);
    assert_int_equal(workload->block_tokens, block_tokens);
    assert_int_equal(workload->distinct_blocks, distinct);
}

#define CHAT(id, parent, time, ids)                                                                \
    "{\"chat_id\": " id ", \"parent_chat_id\": " parent ", \"timestamp\": " time                   \
    ", \"input_length\": 100, \"output_length\": 5, \"turn\": 1, \"hash_ids\": [" ids "]}\n"

TEST(bailian_is_read)
{
    replay_workload workload;
    expect_read(CHAT("7", "-1", "0.5", "1, 2, 2, 4, 5, 6, 7")
                    CHAT("8", "7", "0.75", "1, 2, 2, 4, 5, 6, 8")
                        CHAT("9", "-1", "1", "1, 2, 3, 4, 5, 6, 7"),
                &workload, 16, 3, 7 + 1 + 5);
    assert_int_equal(workload.requests[1].arrival_ns, 750000000);
    assert_int_equal(workload.requests[0].session, workload.requests[1].session);
    assert_int_not_equal(workload.requests[0].session, workload.requests[2].session);
    assert_non_null(strstr(workload.note, "seconds"));
    /* The block that comes twice is two prefixes. */
    assert_int_not_equal(workload.blocks[1], workload.blocks[2]);
    replay_workload_free(&workload);
    expect_refused(CHAT("true", "-1", "0.5", "1, 2, 3, 4, 5, 6, 7"), ":1:", "chat_id");
    expect_refused(CHAT("1", "{}", "0.5", "1, 2, 3, 4, 5, 6, 7"), ":1:", "parent_chat_id");
    expect_refused(CHAT("1", "0", "-0.5", "1, 2, 3, 4, 5, 6, 7"), ":1:", "seconds");
    expect_refused(CHAT("1", "0", "2", "1, 2, 3, 4, 5, 6, 7")
                       CHAT("1", "0", "1", "1, 2, 3, 4, 5, 6, 7"),
                   ":2:", "before the one above");
}

TEST(ids_of_64_bits_are_read)
{
    replay_workload workload;
    expect_read(LINE("0", "1024", "9223372036854775808, 18446744073709551615")
                    LINE("1", "1024", "9223372036854775808, 18446744073709551614")
                        LINE("2", "1024", "9223372036854775807, 1"),
                &workload, 512, 3, 5);
    replay_workload_free(&workload);
    /* Strings name blocks too, and digits inside of strings are left alone. */
    expect_read("{\"timestamp\": 0, \"x\": \"a\\\"18446744073709551615\", \"input_length\": 512, "
                "\"output_length\": 5, \"hash_ids\": [\"ab\"]}\n" LINE("1", "512", "\"ab\""),
                &workload, 512, 2, 1);
    replay_workload_free(&workload);
}

/* The size of blocks is what all rows agree with. */
TEST(block_sizes_are_found)
{
    static const uint32_t sizes[] = {16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int up = 0; up < 2; up++) {
            char text[20000];
            size_t used = 0;
            for (uint32_t r = 1; r <= 3; r++) {
                const uint32_t tokens = r * 5 * sizes[s] + r;
                used += (size_t)snprintf(text + used, sizeof text - used,
                                         "{\"timestamp\": %u, \"input_length\": %u, "
                                         "\"output_length\": 1, \"hash_ids\": [0",
                                         r, tokens);
                for (uint32_t i = 1; i < r * 5 + (uint32_t)up; i++)
                    used += (size_t)snprintf(text + used, sizeof text - used, ",%u", i);
                used += (size_t)snprintf(text + used, sizeof text - used, "]}\n");
            }
            replay_workload workload;
            expect_read(text, &workload, sizes[s], 3, 15 + (uint32_t)up);
            replay_workload_free(&workload);
        }
    }
}

#define TURN(session, rest)                                                                        \
    "{\"session_id\": " session ", " rest ", \"input_length\": 1500, \"output_length\": 5, "       \
    "\"hash_ids\": [1, 2, 3]}\n"

TEST(turns_come_after_their_delays)
{
    replay_workload workload;
    expect_read(TURN("\"a\"", "\"timestamp\": 1000") TURN("\"a\"", "\"delay\": 500.5")
                    TURN("\"b\"", "\"timestamp\": 20") TURN("\"a\"", "\"delay\": 1"),
                &workload, 512, 4, 3);
    assert_int_equal(workload.requests[0].arrival_ns, 20000000);
    assert_int_equal(workload.requests[1].arrival_ns, 1000000000);
    assert_int_equal(workload.requests[2].arrival_ns, 1500500000);
    assert_int_equal(workload.requests[3].arrival_ns, 1501500000);
    assert_int_equal(workload.requests[3].session, workload.requests[1].session);
    assert_true(workload.conversations_per_s == 0.0);
    replay_workload_free(&workload);
    /* Without any instant the starts are drawn. */
    expect_read(TURN("1", "\"delay\": 500") TURN("2", "\"delay\": 500") TURN("1", "\"delay\": 500"),
                &workload, 512, 3, 3);
    assert_true(workload.conversations_per_s > 0.0);
    replay_workload_free(&workload);
    expect_refused(TURN("1", "\"delay\": 500") TURN("2", "\"timestamp\": 5"), ":2:", "first row");
    expect_refused(TURN("1", "\"timestamp\": 500") TURN("2", "\"delay\": 5"),
                   ":2:", "timestamp is missing");
    expect_refused(TURN("1", "\"timestamp\": 500") TURN("1", "\"delay\": -5"), ":2:", "delay");
    expect_refused(TURN("1", "\"timestamp\": 500") TURN("1", "\"delay\": 1e300"), ":2:", "delay");
    expect_refused(TURN("1", "\"timestamp\": 500") TURN("1", "\"x\": 1"), ":2:", "missing");
    expect_refused(TURN("[]", "\"timestamp\": 500"), ":1:", "session_id");
    expect_refused(TURN("1", "\"timestamp\": 0") TURN("1", "\"delay\": 8e9")
                       TURN("1", "\"delay\": 8e9"),
                   ":3:", "longer than 100 days");
}

/* The same requests, in whatever the instants are written. */
TEST(instants_of_1970_are_taken_from_the_first)
{
    static const char *const units[][4] = {
        {"1732000000", "1732000002", "1732000003.5", "seconds since 1970"},
        {"1732000000000", "1732000002000", "1732000003500", "milliseconds since"},
        {"1732000000000000", "1732000002000000", "1732000003500000", "microseconds"},
        {"1732000000000000000", "1732000002000000000", "1732000003500000000", "nanoseconds"},
        {"\"2024-11-19 07:06:40\"", "\"2024-11-19T07:06:42Z\"", "\"2024-11-19 09:06:43.5+02:00\"",
         "dates"},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        char text[512];
        replay_workload workload;
        size_t used = 0;
        for (int row = 0; row < 3; row++)
            used += (size_t)snprintf(text + used, sizeof text - used,
                                     "{\"timestamp\": %s, \"input_length\": 500, "
                                     "\"output_length\": 1, \"hash_ids\": [1]}\n",
                                     units[i][row]);
        expect_read(text, &workload, 512, 3, 1);
        assert_int_equal(workload.requests[0].arrival_ns, 0);
        assert_int_equal(workload.requests[1].arrival_ns, 2000000000);
        assert_int_equal(workload.requests[2].arrival_ns, 3500000000);
        assert_non_null(strstr(workload.note, units[i][3]));
        replay_workload_free(&workload);
    }
    expect_refused(LINE("1732000000", "512", "1") LINE("1731999999", "512", "1"), ":2:", "before");
    expect_refused(LINE("1732000000", "512", "1") LINE("1742000000", "512", "1"),
                   ":2:", "100 days");
    expect_refused(LINE("\"2024-13-01 00:00:00\"", "512", "1"), ":1:", "a date with a time");
    expect_refused(LINE("\"2024-12-01 00:00:00+3\"", "512", "1"), ":1:", "a date with a time");
    expect_refused(LINE("1732000000", "512", "1") LINE("\"2024-12-01 00:00:00\"", "512", "1"),
                   ":2:", "numbers");
}

#define BURST "Timestamp,Session ID,Model,Request tokens,Response tokens\n"

TEST(lengths_are_prompts_of_their_own)
{
    replay_workload workload;
    expect_read("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n",
                &workload, 512, 2, 10 + 7);
    assert_int_equal(workload.requests[1].arrival_ns, 52000000);
    assert_non_null(strstr(workload.note, "each prompt is its own"));
    replay_workload_free(&workload);
    /* Session a: 2 blocks, one of them partial; then 4, of which the whole one is known; the rows
     * without a session are alone, and one asks nothing. */
    expect_read(BURST "19440110.0,a,\"GPT, \"\"4\"\"\",906,446\n19440161,,ChatGPT,1700.0,29\n"
                      "19440192.5,a,GPT,2000,29\n19440193, ,ChatGPT,1700,0\n19440194,b,x,0,0\n",
                &workload, 512, 4, 2 + 4 + 3 + 4);
    assert_int_equal(workload.requests[0].session, workload.requests[2].session);
    assert_int_equal(workload.requests[2].arrival_ns, 82500000000u);
    assert_non_null(strstr(workload.note, "left out: 1"));
    assert_non_null(strstr(workload.note, "begin with what was asked before"));
    replay_workload_free(&workload);
    /* Rows of JSON without ids are the same. */
    expect_read(
        "{\"session_id\": 1, \"timestamp\": 0, \"input_length\": 906, \"output_length\": 1}\n"
        "{\"session_id\": 1, \"delay\": 10, \"input_length\": 2000, \"output_length\": 1}\n",
        &workload, 512, 2, 2 + 3);
    replay_workload_free(&workload);
    expect_refused(BURST "1,a,b,2\n", ":2:", "4 fields, and the header has 5");
    expect_refused(BURST "1,a,\"b,2,3\n", ":2:", "quotes");
    expect_refused(BURST "1,a,b,-2,3\n", ":2:", "request tokens");
    expect_refused(BURST "1,a,b,2.5,3\n", ":2:", "request tokens");
    expect_refused(BURST "1,a,b,99999999999,3\n", ":2:", "request tokens");
    expect_refused(BURST "1,a,b,2,many\n", ":2:", "response tokens");
    expect_refused(BURST "now,a,b,2,3\n", ":2:", "timestamp");
    expect_refused(BURST "-1,a,b,2,3\n", ":2:", "timestamp");
    expect_refused(BURST "5,a,b,2,3\n4,a,b,2,3\n", ":3:", "before the one above");
    expect_refused(BURST "5,a,b,0,3\n", "no requests", "no requests");
}

/* A gzip file of two members, as `cat` joins them; and one that was cut. */
TEST(gzip_is_read)
{
    static const char *const parts[] = {"\xef\xbb\xbf" LINE("0", "512", "1"),
                                        LINE("1", "512", "2") LINE("2", "512", "3")};
    uint8_t packed[2000];
    z_stream stream;
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        memset(&stream, 0, sizeof stream);
        assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, 0), Z_OK);
        char *text = strdup(parts[i]);
        assert_non_null(text);
        stream.next_in = (Bytef *)text;
        stream.avail_in = (uInt)strlen(text);
        stream.next_out = packed + bytes;
        stream.avail_out = (uInt)(sizeof packed - bytes);
        assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
        bytes = sizeof packed - stream.avail_out;
        assert_int_equal(deflateEnd(&stream), Z_OK);
        free(text);
    }
    replay_workload workload;
    char message[256];
    assert_ok(read_bytes(packed, bytes, &plain_options, &workload, message));
    assert_int_equal(workload.request_count, 3);
    replay_workload_free(&workload);
    for (size_t cut = 2; cut < bytes; cut++) {
        kvt_status status = read_bytes(packed, cut, &plain_options, &workload, message);
        /* Behind the first member the file is whole. */
        if (status == KVT_OK)
            replay_workload_free(&workload);
        else
            assert_true(status == KVT_E_PARSE && strstr(message, "gzip") != NULL);
    }
    for (size_t at = 2; at < bytes; at++) {
        packed[at] ^= 0x40;
        kvt_status status = read_bytes(packed, bytes, &plain_options, &workload, message);
        assert_true(status == KVT_OK || status == KVT_E_PARSE);
        if (status == KVT_OK) replay_workload_free(&workload);
        packed[at] ^= 0x40;
    }
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
