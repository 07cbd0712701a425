/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_tokenizer.c - the byte-pair tokenizer: merges by hand on a small vocabulary,
 * against a plain quadratic merge on random texts, round trips of any bytes, hostile files, and
 * known encodings of the trained models' vocabulary.
 */
#include "cases.h"

#include "estimator/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECES = 272, TEXT_MAX = 400 };

static char path[64];

/* After 0..258. Scores decide: "ab" before "bc"; "aa" and "bb" are equal. */
static const struct {
    const char *bytes;
    float score;
} pieces[PIECES - 259] = {{" ", -1},           {"a", -2},   {"b", -3},     {"c", -4},
                          {"ab", -5},          {"bc", -6},  {"aa", -7},    {"bb", -7},
                          {" a", -8},          {"abc", -9}, {"aaaa", -10}, {"\xc3\xa9", -11},
                          {"a\xc3\xa9", -4.5f}};

static void piece_of(uint32_t id, char *text)
{
    if (id < 3)
        snprintf(text, 16, "%s", id == 0 ? "<unk>" : id == 1 ? "\n<s>\n" : "\n</s>\n");
    else if (id < 259)
        snprintf(text, 16, "<0x%02X>", id - 3);
    else
        snprintf(text, 16, "%s", pieces[id - 259].bytes);
}

static void write_vocabulary(int32_t longest, uint32_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&longest, 4, 1, file);
    for (uint32_t id = 0; id < count; id++) {
        char text[16];
        piece_of(id, text);
        int32_t length = (int32_t)strlen(text);
        float score = id < 259 ? 0.0f : pieces[id - 259].score;
        fwrite(&score, 4, 1, file);
        fwrite(&length, 4, 1, file);
        fwrite(text, 1, (size_t)length, file);
    }
    assert_int_equal(fclose(file), 0);
}

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "tokenizer-test-XXXXXX");
    int file = mkstemp(path);
    return file < 0 || close(file) != 0;
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

static tokenizer *open_vocabulary(const char *file)
{
    tokenizer *tokens = NULL;
    char message[256] = "";
    if (tokenizer_open(file, 0, &tokens, message, sizeof message) != KVT_OK) {
        fail_msg("%s", message);
    }
    return tokens;
}

static void encodes_to(const tokenizer *tokens, const char *text, const uint32_t *ids, size_t count)
{
    uint32_t got[TEXT_MAX + 2];
    size_t got_count;
    assert_ok(tokenizer_encode(tokens, text, strlen(text), got, &got_count));
    assert_int_equal(got_count, count);
    for (size_t i = 0; i < count; i++)
        if (got[i] != ids[i]) fail_msg("'%s' at %zu: %u, not %u", text, i, got[i], ids[i]);
}

#define ENCODES_TO(text, ...)                                                                      \
    do {                                                                                           \
        const uint32_t ids[] = {__VA_ARGS__};                                                      \
        encodes_to(tokens, text, ids, sizeof ids / sizeof ids[0]);                                 \
    } while (0)

TEST_ALL(make_path, remove_path);

TEST(merges_follow_the_scores)
{
    write_vocabulary(8, PIECES);
    tokenizer *tokens = open_vocabulary(path);
    assert_int_equal(tokenizer_vocab(tokens), PIECES);
    ENCODES_TO("", 1);
    ENCODES_TO("b", 1, 259, 261);
    ENCODES_TO("a", 1, 267);
    ENCODES_TO("abc", 1, 259, 268);        /* "ab" first, then "abc"; " a" is outbid */
    ENCODES_TO("bbb", 1, 259, 266, 261);   /* the leftmost of equals */
    ENCODES_TO("aaaaa", 1, 259, 269, 260); /* "aa" "aa" "a" */
    ENCODES_TO("z\n", 1, 259, 'z' + 3, '\n' + 3);
    ENCODES_TO("\xc3\xa9", 1, 259, 270);
    ENCODES_TO("a\xc3\xa9", 1, 259, 271);
    ENCODES_TO("\xc3\xa8", 1, 259, 0xc3 + 3, 0xa8 + 3);
    ENCODES_TO("<0x61>", 1, 259, '<' + 3, '0' + 3, 'x' + 3, '6' + 3, '1' + 3, '>' + 3);
    tokenizer_close(tokens);
}

static uint32_t draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Scans all pairs for each merge, as the rule reads. */
static size_t merge_plainly(uint32_t *ids, size_t count)
{
    for (;;) {
        float best = -INFINITY;
        size_t place = 0;
        uint32_t joined_id = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            char left[16], right[16], joined[32];
            piece_of(ids[i], left);
            piece_of(ids[i + 1], right);
            snprintf(joined, sizeof joined, "%s%s", left, right);
            for (uint32_t id = 259; id < PIECES; id++) {
                if (strcmp(joined, pieces[id - 259].bytes) != 0) continue;
                if (pieces[id - 259].score <= best) continue;
                best = pieces[id - 259].score;
                place = i;
                joined_id = id;
            }
        }
        if (joined_id == 0) return count;
        ids[place] = joined_id;
        memmove(ids + place + 1, ids + place + 2, (count - place - 2) * sizeof *ids);
        count--;
    }
}

TEST(heap_merges_as_a_scan_does)
{
    write_vocabulary(8, PIECES);
    tokenizer *tokens = open_vocabulary(path);
    uint64_t random = 4;
    for (int round = 0; round < 300; round++) {
        char text[64];
        uint32_t plain[66] = {259}, got[66];
        size_t length = 1 + draw(&random) % 60, count;
        for (size_t i = 0; i < length; i++) {
            text[i] = "aaab bcx"[draw(&random) % 8];
            plain[i + 1] = text[i] == ' '   ? 259
                           : text[i] == 'x' ? 'x' + 3u
                                            : 260 + (uint32_t)(text[i] - 'a');
        }
        size_t wanted = merge_plainly(plain, length + 1);
        assert_ok(tokenizer_encode(tokens, text, length, got, &count));
        assert_int_equal(got[0], 1);
        assert_int_equal(count - 1, wanted);
        assert_memory_equal(got + 1, plain, wanted * sizeof *got);
    }
    tokenizer_close(tokens);
}

static void comes_back(const tokenizer *tokens, const char *text, size_t bytes)
{
    uint32_t ids[TEXT_MAX + 2];
    char back[TEXT_MAX];
    size_t count, length;
    assert_true(bytes <= TEXT_MAX);
    assert_ok(tokenizer_encode(tokens, text, bytes, ids, &count));
    assert_true(count <= tokenizer_bound(bytes));
    assert_ok(tokenizer_decode(tokens, ids, count, back, sizeof back, &length));
    assert_int_equal(length, bytes);
    assert_memory_equal(back, text, bytes);
    if (bytes == 0) return;
    assert_int_equal(tokenizer_decode(tokens, ids, count, back, bytes - 1, &length), KVT_E_SPACE);
    assert_int_equal(length, bytes);
}

TEST(any_bytes_come_back)
{
    write_vocabulary(8, PIECES);
    tokenizer *tokens = open_vocabulary(path);
    uint64_t random = 6;
    char text[TEXT_MAX];
    for (int round = 0; round < 500; round++) {
        size_t length = draw(&random) % TEXT_MAX;
        for (size_t i = 0; i < length; i++)
            text[i] =
                (char)(round % 2 ? draw(&random) : (uint32_t) "abc \xc3\xa9"[draw(&random) % 6]);
        comes_back(tokens, text, length);
    }
    const uint32_t beyond = PIECES;
    size_t length;
    assert_int_equal(tokenizer_decode(tokens, &beyond, 1, text, sizeof text, &length),
                     KVT_E_ARGUMENT);
    tokenizer_close(tokens);
}

static void refused(uint32_t vocab, const char *words)
{
    tokenizer *tokens = NULL;
    char message[256] = "";
    assert_int_equal(tokenizer_open(path, vocab, &tokens, message, sizeof message), KVT_E_CORRUPT);
    assert_null(tokens);
    if (strstr(message, words) == NULL) fail_msg("'%s' is not in '%s'", words, message);
}

TEST(hostile_vocabularies_are_refused)
{
    uint8_t bytes[8192];
    write_vocabulary(8, 258);
    refused(0, "fewer pieces");
    write_vocabulary(5, PIECES);
    refused(0, "longer than the longest");
    write_vocabulary(-1, PIECES);
    refused(0, "longest");
    write_vocabulary(8, PIECES);
    refused(PIECES + 1, "pieces, and the model has");
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file), sound = 0;
    fclose(file);
    /* Cut anywhere; only between pieces, and with enough of them, is there a vocabulary left. */
    for (size_t cut = 1; cut < size; cut += cut < 4000 ? 61 : 1) {
        tokenizer *tokens = NULL;
        file = fopen(path, "wb");
        assert_non_null(file);
        fwrite(bytes, 1, cut, file);
        fclose(file);
        kvt_status status = tokenizer_open(path, 0, &tokens, NULL, 0);
        assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
        sound += status == KVT_OK;
        tokenizer_close(tokens);
    }
    assert_true(sound <= PIECES - 259);
    const float nan = NAN;
    memcpy(bytes + 4, &nan, 4);
    file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(bytes, 1, size, file);
    fclose(file);
    refused(0, "score");
}

/* What the models' own documentation text becomes, and any text of theirs comes back. */
TEST(trained_vocabulary_is_read)
{
    const char *data = getenv("KVT_DATA_DIR");
    char file[512];
    if (data == NULL || data[0] == '\0') {
        print_message("KVT_DATA_DIR is not set: no trained vocabulary\n");
        skip();
    }
    snprintf(file, sizeof file, "%s/models/tok512.bin", data);
    tokenizer *tokens = open_vocabulary(file);
    assert_int_equal(tokenizer_vocab(tokens), 512);
    ENCODES_TO("Once upon a time", 1, 403, 407, 261, 378);
    static const char text[] = "A \"dog\".\n\nThe \xe2\x80\x9c end \x01\xff";
    comes_back(tokens, text, sizeof text - 1);
    tokenizer_close(tokens);
}
