/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_resp.c - the reader of replies: every kind of reply, cut anywhere, gives the same
 * tokens; what is malformed or beyond a bound is refused. And the breaker, whose time is given.
 */
#include "remote_support.h"

#include "remote/breaker.h"
#include "remote/resp.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct seen {
    char text[4096]; /* of the tokens */
    size_t used;
    uint8_t target[70000];
    struct iovec parts[2];
    bool places;
    uint32_t replies;
} seen;

static bool seen_place(void *context, uint64_t bytes, resp_target *target_out)
{
    seen *at = context;
    if (!at->places || bytes > 70000) return false;
    at->parts[0] = (struct iovec){at->target, 3};
    at->parts[1] = (struct iovec){at->target + 3, 70000 - 3};
    *target_out = (resp_target){at->parts, 2};
    return true;
}

static kvt_status seen_token(void *context, const resp_token *token)
{
    seen *at = context;
    at->replies += token->ends;
    at->used += (size_t)snprintf(at->text + at->used, sizeof at->text - at->used, "%u%c%lld",
                                 token->depth, token->type, (long long)token->number);
    if (token->placed)
        at->used += (size_t)snprintf(at->text + at->used, sizeof at->text - at->used, "@");
    if (token->text != NULL)
        at->used += (size_t)snprintf(at->text + at->used, sizeof at->text - at->used, "'%.*s'",
                                     (int)token->text_bytes, token->text);
    at->used += (size_t)snprintf(at->text + at->used, sizeof at->text - at->used, "%s",
                                 token->ends ? ".\n" : " ");
    return KVT_OK;
}

static const resp_hooks seen_hooks = {seen_place, seen_token};

/* Gives bytes to a reader, `step` at a time. */
static kvt_status feed(resp_reader *reader, const char *bytes, size_t count, size_t step)
{
    kvt_status status = KVT_OK;
    while (count > 0 && status == KVT_OK) {
        struct iovec spaces[RESP_SPACES];
        const uint32_t space_count = resp_space(reader, spaces);
        size_t given = 0;
        for (uint32_t i = 0; i < space_count && given < step && given < count; i++) {
            size_t part = spaces[i].iov_len;
            if (part > step - given) part = step - given;
            if (part > count - given) part = count - given;
            memcpy(spaces[i].iov_base, bytes + given, part);
            given += part;
        }
        assert_true(given > 0);
        status = resp_got(reader, given);
        bytes += given;
        count -= given;
    }
    return status;
}

static const char replies[] =
    "+OK\r\n-ERR no\r\n:42\r\n:-7\r\n$5\r\nhello\r\n$0\r\n\r\n$-1\r\n_\r\n#t\r\n#f\r\n,1.5\r\n"
    "(12345678901234567890\r\n!5\r\nERR x\r\n=7\r\ntxt:abc\r\n*-1\r\n*0\r\n"
    "*3\r\n:1\r\n*2\r\n$1\r\na\r\n$2\r\n\r\n\r\n_\r\n%2\r\n+k\r\n:1\r\n+l\r\n*1\r\n:2\r\n"
    "~1\r\n:9\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n";

TEST(every_cut_reads_alike)
{
    static seen whole, cut;
    static resp_reader reader;
    for (int places = 0; places < 2; places++) {
        whole = (seen){.places = places};
        resp_init(&reader, &seen_hooks, &whole);
        assert_ok(feed(&reader, replies, sizeof replies - 1, sizeof replies));
        assert_int_equal(whole.replies, 20);
        assert_non_null(strstr(whole.text, "0*3 1:1 1*2 2$1'a' 2$2'\r\n' 1_-1.\n"));
        assert_non_null(strstr(whole.text, places ? "0$5@." : "0$5'hello'."));
        for (size_t step = 1; step < 40; step++) {
            cut = (seen){.places = places};
            resp_init(&reader, &seen_hooks, &cut);
            assert_ok(feed(&reader, replies, sizeof replies - 1, step));
            assert_string_equal(cut.text, whole.text);
        }
    }
}

TEST(large_values_go_to_their_place)
{
    static seen at;
    static resp_reader reader;
    char *bytes = test_alloc(80000);
    for (size_t step = 1; step < 80000; step = step * 3 + 1) {
        int head = snprintf(bytes, 32, "$65000\r\n");
        remote_fill((uint8_t *)bytes + head, 65000, step);
        memcpy(bytes + head + 65000, "\r\n+OK\r\n", 7);
        at = (seen){.places = true};
        resp_init(&reader, &seen_hooks, &at);
        assert_ok(feed(&reader, bytes, (size_t)head + 65007, step));
        assert_string_equal(at.text, "0$65000@.\n0+-1'OK'.\n");
        assert_memory_equal(at.target, bytes + head, 65000);
        /* Half of it, then the target is taken away. */
        memset(at.target, 0x5a, sizeof at.target);
        at = (seen){.places = true};
        resp_init(&reader, &seen_hooks, &at);
        assert_ok(feed(&reader, bytes, 30000, step));
        assert_true(resp_is_placing(&reader));
        resp_forget(&reader);
        memset(at.target, 0x5a, sizeof at.target);
        assert_ok(feed(&reader, bytes + 30000, (size_t)head + 65007 - 30000, step));
        assert_string_equal(at.text, "0$65000.\n0+-1'OK'.\n");
        for (size_t i = 0; i < sizeof at.target; i++)
            assert_int_equal(at.target[i], 0x5a);
    }
}

TEST(nonsense_is_refused)
{
    static const char *const wrong[] = {
        "\r\n",
        "x\r\n",
        "+OK\rX",
        "$5\r\nhelloXX",
        "$-2\r\n",
        "$\r\n",
        "$1x\r\n",
        "$999999999\r\n",
        ":\r\n",
        ":1.5\r\n",
        ":--1\r\n",
        "*-2\r\n",
        "*70000\r\n",
        "*99999999999999999999\r\n",
        "#x\r\n",
        "_x\r\n",
        "%40000\r\n",
        "|1\r\n+a\r\n+b\r\n",
        "*?\r\n",
        "$?\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        "*2\r\n*30000\r\n",
        "*30000\r\n*30000\r\n*30000\r\n"};
    static seen at;
    static resp_reader reader;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        at = (seen){.places = true};
        resp_init(&reader, &seen_hooks, &at);
        kvt_status status = feed(&reader, wrong[i], strlen(wrong[i]), 3);
        if (i != 21) assert_int_equal(status, KVT_E_CORRUPT);
        if (i == 21) assert_ok(status); /* within the bounds, and not ended */
    }
    /* A value that a server may hold and that is not taken. */
    resp_init(&reader, &seen_hooks, &at);
    assert_int_equal(feed(&reader, "$99999999\r\n", 11, 3), KVT_E_SPACE);
    assert_int_equal(reader.bulk_bytes, 99999999);
    resp_init(&reader, &seen_hooks, &at);
    assert_int_equal(feed(&reader, "*1\r\n$99999999\r\n", 15, 3), KVT_E_CORRUPT);
    /* A line that never ends. */
    char *line = test_alloc(2 * RESP_BUFFER_BYTES);
    memset(line, 'a', 2 * RESP_BUFFER_BYTES);
    line[0] = '+';
    resp_init(&reader, &seen_hooks, &at);
    assert_int_equal(feed(&reader, line, 2 * RESP_BUFFER_BYTES, 1000), KVT_E_CORRUPT);
}

TEST(a_breaker_opens_and_comes_back)
{
    remote_breaker breaker;
    remote_breaker_init(&breaker, 5);
    uint64_t now_ns = 1000;
    assert_false(remote_breaker_bad(&breaker, REMOTE_GET, now_ns));
    assert_false(remote_breaker_bad(&breaker, REMOTE_GET, now_ns));
    remote_breaker_good(&breaker, REMOTE_GET); /* not three running */
    assert_false(remote_breaker_bad(&breaker, REMOTE_GET, now_ns));
    assert_false(remote_breaker_bad(&breaker, REMOTE_GET, now_ns));
    assert_true(remote_breaker_bad(&breaker, REMOTE_GET, now_ns));
    assert_int_equal(breaker.state, REMOTE_OPEN);
    uint64_t expected_ns = REMOTE_PAUSE_LEAST_NS;
    for (int i = 0; i < 12; i++) {
        const uint64_t pause_ns = breaker.until_ns - now_ns;
        assert_true(pause_ns >= expected_ns / 4 * 3 - 1024 && pause_ns <= expected_ns / 4 * 5);
        assert_false(remote_breaker_probes(&breaker, breaker.until_ns - 1));
        remote_breaker_good(&breaker, REMOTE_GET); /* a late answer changes nothing */
        assert_int_equal(breaker.state, REMOTE_OPEN);
        now_ns = breaker.until_ns;
        assert_true(remote_breaker_probes(&breaker, now_ns));
        assert_false(remote_breaker_probes(&breaker, now_ns)); /* one probe */
        assert_true(remote_breaker_bad(&breaker, REMOTE_GET, now_ns));
        expected_ns =
            expected_ns * 2 < REMOTE_PAUSE_MOST_NS ? expected_ns * 2 : REMOTE_PAUSE_MOST_NS;
    }
    assert_true(remote_breaker_probes(&breaker, breaker.until_ns));
    remote_breaker_good(&breaker, REMOTE_GET);
    assert_int_equal(breaker.state, REMOTE_CLOSED);
    assert_int_equal(breaker.pause_ns, REMOTE_PAUSE_LEAST_NS);
    assert_int_equal(breaker.opened, 13);
}

/* A node that can be reached and does other work well is asked again, and the first failure of what
 * had failed opens for longer. */
TEST(a_breaker_remembers_what_has_failed)
{
    remote_breaker breaker;
    remote_breaker_init(&breaker, 5);
    uint64_t now_ns = 1000;
    for (uint32_t i = 0; i < REMOTE_BREAKER_FAILURES; i++) {
        assert_false(remote_breaker_suspects(&breaker, REMOTE_DELETE));
        assert_int_equal(remote_breaker_bad(&breaker, REMOTE_DELETE, now_ns),
                         i + 1 == REMOTE_BREAKER_FAILURES);
        remote_breaker_good(&breaker, REMOTE_EXISTS);
    }
    for (int i = 1; i < 6; i++) {
        now_ns = breaker.until_ns;
        assert_true(remote_breaker_probes(&breaker, now_ns));
        remote_breaker_reached(&breaker);
        remote_breaker_good(&breaker, REMOTE_EXISTS);
        assert_int_equal(breaker.state, REMOTE_CLOSED);
        assert_int_equal(breaker.pause_ns, REMOTE_PAUSE_LEAST_NS << i);
        assert_true(remote_breaker_suspects(&breaker, REMOTE_DELETE));
        assert_false(remote_breaker_suspects(&breaker, REMOTE_EXISTS));
        assert_true(remote_breaker_bad(&breaker, REMOTE_DELETE, now_ns));
    }
    assert_true(remote_breaker_probes(&breaker, breaker.until_ns));
    remote_breaker_reached(&breaker);
    remote_breaker_good(&breaker, REMOTE_DELETE);
    assert_false(remote_breaker_suspects(&breaker, REMOTE_DELETE));
    assert_int_equal(breaker.pause_ns, REMOTE_PAUSE_LEAST_NS);
}
