/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_key.c - BLAKE2b, and the keys made with it: the vectors of docs/FORMAT.md, what every
 * field changes, and what is refused. test_base_key.py makes the same vectors in Python.
 */
#include "cases.h"

#include "base/blake2b.h"

#include <jansson.h>
#include <kvterrace/key.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads hexadecimal digits. Returns the bytes read. */
static size_t read_hex(const char *text, uint8_t *out, size_t most)
{
    size_t count = 0;
    unsigned value;
    for (; count < most && sscanf(text + 2 * count, "%2x", &value) == 1; count++)
        out[count] = (uint8_t)value;
    return count;
}

static void digest_in_steps(const uint8_t *data, size_t bytes, size_t step, size_t digest_bytes,
                            uint8_t *digest)
{
    blake2b hash;
    blake2b_begin(&hash, digest_bytes);
    for (size_t at = 0; at < bytes; at += step)
        blake2b_add(&hash, data + at, bytes - at < step ? bytes - at : step);
    blake2b_end(&hash, digest);
}

/* The example of RFC 7693, appendix A. */
TEST(blake2b_gives_the_digest_of_the_rfc)
{
    static const char expected[] =
        "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
        "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923";
    uint8_t digest[64], wanted[64];
    assert_int_equal(read_hex(expected, wanted, sizeof wanted), sizeof wanted);
    digest_in_steps((const uint8_t *)"abc", 3, 3, sizeof digest, digest);
    assert_memory_equal(digest, wanted, sizeof digest);
}

/* One digest over the digests of messages of 0 to 400 bytes, as Python's hashlib gives it. */
TEST(blake2b_agrees_with_another_program_at_every_length)
{
    static const char expected[] =
        "eadf29b11d22e9079e0cb15e19d42f47da736aa23e7f734a29729f24b280773d";
    static const size_t sizes[] = {1, 24, 32, 64};
    uint8_t data[400], digest[64], wanted[32];
    blake2b all;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    blake2b_begin(&all, sizeof wanted);
    for (size_t bytes = 0; bytes <= sizeof data; bytes++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            digest_in_steps(data, bytes, 77, sizes[i], digest);
            blake2b_add(&all, digest, sizes[i]);
        }
    }
    blake2b_end(&all, digest);
    assert_int_equal(read_hex(expected, wanted, sizeof wanted), sizeof wanted);
    assert_memory_equal(digest, wanted, sizeof wanted);
}

TEST(a_digest_does_not_depend_on_the_steps)
{
    uint8_t data[400], whole[32], stepped[32];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    for (size_t bytes = 0; bytes <= sizeof data; bytes += 1) {
        digest_in_steps(data, bytes, sizeof data, sizeof whole, whole);
        digest_in_steps(data, bytes, 1 + bytes % 130, sizeof stepped, stepped);
        assert_memory_equal(whole, stepped, sizeof whole);
    }
}

/* ---- the page's vectors ---- */

static const char *text_of(json_t *fields, const char *name)
{
    return json_string_value(json_object_get(fields, name));
}

static uint32_t number_of(json_t *fields, const char *name)
{
    return (uint32_t)json_integer_value(json_object_get(fields, name));
}

static void check_space(const char *line, kvt_space_hash *hash)
{
    uint8_t extra[64];
    json_t *fields = json_loads(line, 0, NULL);
    assert_non_null(fields);
    const char *extra_text = text_of(fields, "extra");
    kvt_space space;
    kvt_space_init(&space);
    space.model = text_of(fields, "model");
    space.revision = text_of(fields, "revision");
    space.dtype = text_of(fields, "dtype");
    space.salt = text_of(fields, "salt");
    space.block_tokens = number_of(fields, "block_tokens");
    space.layers = number_of(fields, "layers");
    space.kv_heads = number_of(fields, "kv_heads");
    space.head_dim = number_of(fields, "head_dim");
    space.sides = number_of(fields, "sides");
    space.order = number_of(fields, "order");
    space.tensor_rank = number_of(fields, "tensor_rank");
    space.tensor_ranks = number_of(fields, "tensor_ranks");
    space.pipeline_rank = number_of(fields, "pipeline_rank");
    space.pipeline_ranks = number_of(fields, "pipeline_ranks");
    if (extra_text != NULL) space.extra_bytes = (uint32_t)read_hex(extra_text, extra, sizeof extra);
    space.extra = extra;
    assert_ok(kvt_space_make(&space, hash));
    json_decref(fields);
}

static void check_key(const char *line, const kvt_space_hash *space)
{
    char name_text[512], key_text[80];
    uint8_t name[256];
    uint32_t group;
    kvt_key key, wanted;
    assert_int_equal(sscanf(line, "%u %511s %79s", &group, name_text, key_text), 3);
    assert_int_equal(read_hex(key_text, wanted.bytes, sizeof wanted.bytes), sizeof wanted.bytes);
    size_t name_bytes = read_hex(name_text, name, sizeof name);
    assert_ok(kvt_key_make(space, name, name_bytes, group, &key));
    assert_memory_equal(&key, &wanted, sizeof key);
    assert_int_equal(kvt_key_space(&key), kvt_space_id(space));
}

static FILE *open_page(void)
{
    char path[4096];
    const char *source = getenv("KVT_SOURCE_DIR");
    assert_non_null(source);
    snprintf(path, sizeof path, "%s/docs/FORMAT.md", source);
    return fopen(path, "r");
}

TEST(the_vectors_of_the_page)
{
    char line[2048];
    bool inside = false;
    uint32_t spaces = 0, hashes = 0, keys = 0;
    kvt_space_hash hash, wanted;
    FILE *page = open_page();
    assert_non_null(page);
    while (fgets(line, sizeof line, page) != NULL) {
        if (strcmp(line, "```keys\n") == 0) inside = true;
        if (!inside) continue;
        if (strcmp(line, "```\n") == 0) break;
        if (strncmp(line, "space ", 6) == 0) {
            check_space(line + 6, &hash);
            spaces++;
        } else if (strncmp(line, "hash ", 5) == 0) {
            assert_int_equal(read_hex(line + 5, wanted.bytes, 32), 32);
            assert_memory_equal(&hash, &wanted, sizeof hash);
            hashes++;
        } else if (strncmp(line, "key ", 4) == 0) {
            check_key(line + 4, &hash);
            keys++;
        }
    }
    fclose(page);
    assert_true(spaces >= 4 && hashes == spaces && keys >= spaces);
}

/* ---- what every field changes ---- */

/* One space in which every field is set. */
static kvt_space full_space(void)
{
    static const char model[] = "a", revision[] = "b", dtype[] = "c", salt[] = "d";
    static const uint8_t extra[] = {1, 2, 3};
    kvt_space space;
    kvt_space_init(&space);
    space.model = model;
    space.revision = revision;
    space.dtype = dtype;
    space.salt = salt;
    space.block_tokens = space.layers = space.kv_heads = space.head_dim = space.sides = 1;
    space.order = 1;
    space.tensor_rank = space.pipeline_rank = 1;
    space.tensor_ranks = space.pipeline_ranks = 2;
    space.extra = extra;
    space.extra_bytes = sizeof extra;
    return space;
}

TEST(every_field_changes_the_hash)
{
    static const uint8_t other[] = {1, 2, 4};
    enum { CASES = 16 };
    kvt_space spaces[CASES];
    kvt_space_hash hashes[CASES];
    for (int i = 0; i < CASES; i++)
        spaces[i] = full_space();
    spaces[1].model = "b";
    spaces[2].revision = "a";
    spaces[3].dtype = NULL;
    spaces[4].salt = "dd";
    spaces[5].block_tokens = 2;
    spaces[6].layers = 2;
    spaces[7].kv_heads = 2;
    spaces[8].head_dim = 2;
    spaces[9].sides = 2;
    spaces[10].order = 0;
    spaces[11].tensor_rank = 0;
    spaces[12].tensor_ranks = 3;
    spaces[13].pipeline_rank = 0;
    spaces[14].pipeline_ranks = 3;
    spaces[15].extra = other;
    for (int i = 0; i < CASES; i++) {
        assert_ok(kvt_space_make(&spaces[i], &hashes[i]));
        for (int j = 0; j < i; j++) {
            assert_memory_not_equal(&hashes[i], &hashes[j], sizeof hashes[i]);
            assert_int_not_equal(kvt_space_id(&hashes[i]), kvt_space_id(&hashes[j]));
        }
    }
}

TEST(a_text_does_not_run_into_the_next)
{
    kvt_space one, two;
    kvt_space_hash a, b;
    kvt_space_init(&one);
    kvt_space_init(&two);
    one.model = "ab";
    one.revision = "c";
    two.model = "a";
    two.revision = "bc";
    assert_ok(kvt_space_make(&one, &a));
    assert_ok(kvt_space_make(&two, &b));
    assert_memory_not_equal(&a, &b, sizeof a);
    one = two;
    one.salt = "";
    one.extra = &one; /* of 0 bytes */
    assert_ok(kvt_space_make(&one, &a));
    assert_memory_equal(&a, &b, sizeof a);
}

/* ---- bad input ---- */

static void expect_refused(const kvt_space *space)
{
    static const kvt_space_hash zero;
    kvt_space_hash hash;
    memset(&hash, 1, sizeof hash);
    assert_int_equal(kvt_space_make(space, &hash), KVT_E_ARGUMENT);
    assert_memory_equal(&hash, &zero, sizeof hash);
}

TEST(bad_spaces_are_refused)
{
    kvt_space space = full_space();
    kvt_space_hash hash;
    assert_int_equal(kvt_space_make(&space, NULL), KVT_E_ARGUMENT);
    expect_refused(NULL);
    space.struct_size--;
    expect_refused(&space);
    space = full_space();
    space.tensor_rank = 2;
    expect_refused(&space);
    space = full_space();
    space.pipeline_ranks = 0;
    expect_refused(&space);
    space = full_space();
    space.order = 2;
    expect_refused(&space);
    space = full_space();
    space.extra = NULL;
    expect_refused(&space);
    space = full_space();
    space.extra_bytes = UINT32_MAX;
    expect_refused(&space);
    char *text = test_alloc(KVT_SPACE_TEXT_MAX + 2);
    memset(text, 'x', KVT_SPACE_TEXT_MAX + 1);
    text[KVT_SPACE_TEXT_MAX + 1] = '\0';
    space = full_space();
    space.salt = text;
    expect_refused(&space);
    text[KVT_SPACE_TEXT_MAX] = '\0';
    assert_ok(kvt_space_make(&space, &hash));
}

TEST(bad_names_are_refused)
{
    static const kvt_key zero;
    static const uint8_t name[KVT_NAME_MAX];
    const kvt_space space = full_space();
    kvt_space_hash hash;
    kvt_key key;
    assert_ok(kvt_space_make(&space, &hash));
    assert_ok(kvt_key_make(&hash, name, sizeof name, 0, &key));
    assert_int_equal(kvt_key_make(&hash, name, 1, 0, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_key_make(NULL, name, 1, 0, &key), KVT_E_ARGUMENT);
    assert_int_equal(kvt_key_make(&hash, NULL, 1, 0, &key), KVT_E_ARGUMENT);
    assert_int_equal(kvt_key_make(&hash, name, 0, 0, &key), KVT_E_ARGUMENT);
    assert_int_equal(kvt_key_make(&hash, name, KVT_NAME_MAX + 1, 0, &key), KVT_E_ARGUMENT);
    assert_int_equal(kvt_key_make(&hash, name, SIZE_MAX, 0, &key), KVT_E_ARGUMENT);
    assert_memory_equal(&key, &zero, sizeof key);
}
