/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_keys.c - lists of keys, descriptions and their answers come over as they were, between
 * versions too, and none is read or written beyond its record.
 */
#include "cases.h"

#include "serve/wire/key_records.h"

enum { KEYS = 5, BYTES = 4096 };

static uint64_t record[BYTES / 8], answer[BYTES / 8];
static kvt_key keys[KEYS];

TEST_BEFORE_EACH
{
    memset(record, 0xee, sizeof record);
    memset(answer, 0xee, sizeof answer);
    for (uint32_t i = 0; i < KEYS; i++)
        memset(&keys[i], (int)(i + 1), sizeof keys[i]);
}

/* Reads an exact copy, so that a sanitizer sees a read beyond it. */
static kvt_status read_list(uint32_t kind, size_t bytes, wire_list *list, kvt_key *first)
{
    const kvt_key *got;
    void *copy = test_alloc(bytes + (bytes == 0));
    memcpy(copy, record, bytes);
    const kvt_status status = wire_list_read(kind, copy, bytes, list, &got);
    if (status == KVT_OK && list->count > 0) *first = got[list->count - 1];
    return status;
}

TEST(a_list_comes_over_as_it_was)
{
    const struct {
        uint32_t kind;
        wire_list list;
        size_t answer;
    } rows[] = {
        {WIRE_TOUCH, {.count = KEYS}, 0},
        {WIRE_HINT, {.count = KEYS, .hint = KVT_HINT_DEMOTE, .seconds = 2.5}, 0},
        {WIRE_LEASE_BEGIN, {.count = KEYS, .instant_ns = 77}, KEYS},
        {WIRE_MATCH,
         {.count = KEYS, .flags = 3, .instant_ns = 5, .worth_bytes = 56},
         56 + KEYS * 8},
        {WIRE_MATCH, {.count = 1, .flags = WIRE_MATCH_SECONDS, .worth_bytes = 800}, 808},
        {WIRE_MATCH, {.worth_bytes = 56}, 56},
        {WIRE_TOUCH, {.count = 0}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        wire_list list = rows[i].list, got;
        kvt_key last = {{0}};
        size_t bytes;
        assert_ok(wire_list_write(rows[i].kind, &list, keys, record, BYTES, &bytes));
        const size_t plain = sizeof list + list.count * sizeof(kvt_key);
        assert_int_equal(bytes, plain > rows[i].answer ? plain : rows[i].answer);
        assert_int_equal(wire_list_answer(rows[i].kind, &list), rows[i].answer);
        assert_ok(read_list(rows[i].kind, bytes, &got, &last));
        list.struct_size = sizeof list;
        assert_memory_equal(&got, &list, sizeof list);
        if (list.count > 0) assert_memory_equal(&last, &keys[list.count - 1], sizeof last);
        /* Too little room for the record or its answer, and a record that is cut. */
        assert_int_equal(wire_list_write(rows[i].kind, &list, keys, record, bytes - 1, &bytes),
                         KVT_E_SPACE);
        for (size_t cut = 0; cut < bytes; cut++)
            assert_int_equal(read_list(rows[i].kind, cut, &got, &last), KVT_E_ARGUMENT);
    }
}

/* Members out of their range, and those that a kind has no use for. */
TEST(lists_that_say_too_much_are_refused)
{
    const struct {
        uint32_t kind;
        size_t offset;
        uint32_t value;
    } rows[] = {
        {WIRE_TOUCH, 0, 36},
        {WIRE_TOUCH, 0, 44},
        {WIRE_TOUCH, 0, 4096},
        {WIRE_TOUCH, offsetof(wire_list, count), KEYS + 1},
        {WIRE_TOUCH, offsetof(wire_list, count), UINT32_MAX},
        {WIRE_TOUCH, offsetof(wire_list, flags), 1},
        {WIRE_TOUCH, offsetof(wire_list, worth_bytes), 56},
        {WIRE_TOUCH, offsetof(wire_list, instant_ns), 1},
        {WIRE_TOUCH, offsetof(wire_list, hint), 1},
        {WIRE_TOUCH, offsetof(wire_list, seconds), 1},
        {WIRE_TOUCH, offsetof(wire_list, zero), 1},
        {WIRE_HINT, offsetof(wire_list, instant_ns), 1},
        {WIRE_HINT, offsetof(wire_list, flags), 2},
        {WIRE_LEASE_BEGIN, offsetof(wire_list, hint), 1},
        {WIRE_LEASE_BEGIN, offsetof(wire_list, flags), 2},
        {WIRE_MATCH, offsetof(wire_list, flags), 4},
        {WIRE_MATCH, offsetof(wire_list, flags), UINT32_MAX},
        {WIRE_MATCH, offsetof(wire_list, worth_bytes), 4},
        {WIRE_MATCH, offsetof(wire_list, worth_bytes), 60},
        {WIRE_MATCH, offsetof(wire_list, worth_bytes), 208},
        {WIRE_MATCH, offsetof(wire_list, worth_bytes), 65544},
        {WIRE_MATCH, offsetof(wire_list, worth_bytes), UINT32_MAX - 7},
        {WIRE_MATCH, offsetof(wire_list, hint), 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const wire_list list = {.count = KEYS};
        wire_list got;
        kvt_key last;
        size_t bytes;
        assert_ok(wire_list_write(rows[i].kind, &list, keys, record, BYTES, &bytes));
        assert_ok(read_list(rows[i].kind, bytes, &got, &last));
        memcpy((char *)record + rows[i].offset, &rows[i].value, 4);
        const kvt_status status = read_list(rows[i].kind, bytes, &got, &last);
        if (status != KVT_E_ARGUMENT) fail_msg("row %zu: %s", i, kvt_status_name(status));
    }
}

/* ---- answers ---- */

TEST(a_match_s_answer_comes_over_between_versions)
{
    const kvt_worth worth = {.struct_size = sizeof worth,
                             .stored = 5,
                             .to_load = 4,
                             .load_seconds = 1,
                             .recompute_seconds = 3,
                             .saved_seconds = 2,
                             .guessed = 1};
    const double seconds[KEYS] = {1, 2, 3, 4, 5};
    /* A client's structure of this version, an older and a newer one. */
    for (uint32_t own = 48; own <= 64; own += 8) {
        const wire_list list = {.count = KEYS, .flags = WIRE_MATCH_SECONDS, .worth_bytes = own};
        const size_t bytes = wire_list_answer(WIRE_MATCH, &list);
        uint64_t told[8];
        double got[KEYS];
        memset(told, 0xee, sizeof told);
        memcpy(told, &own, sizeof own);
        wire_match_answer_write(&list, &worth, seconds, answer);
        assert_int_equal(((unsigned char *)answer)[bytes], 0xee);
        assert_ok(wire_match_answer_read(&list, answer, bytes, (kvt_worth *)told, got));
        assert_memory_equal((char *)told + 8, (const char *)&worth + 8, 40);
        if (own == 48) assert_int_equal(told[6], UINT64_C(0xeeeeeeeeeeeeeeee));
        if (own == 64) assert_int_equal(told[7], 0);
        assert_memory_equal(got, seconds, sizeof got);
        assert_int_equal(wire_match_answer_read(&list, answer, bytes - 8, (kvt_worth *)told, got),
                         KVT_E_CORRUPT);
        ((kvt_worth *)(void *)answer)->stored = KEYS + 1;
        assert_int_equal(wire_match_answer_read(&list, answer, bytes, (kvt_worth *)told, got),
                         KVT_E_CORRUPT);
        memset(answer, 0xee, sizeof answer);
    }
}

TEST(a_lease_s_answer_comes_over)
{
    const wire_list list = {.count = 4};
    bool held[4];
    memcpy(answer, "\1\0\0\1", 4);
    assert_ok(wire_lease_answer_read(&list, answer, 4, held));
    assert_true(held[0] && !held[1] && !held[2] && held[3]);
    assert_ok(wire_lease_answer_read(&list, answer, 4, NULL));
    assert_int_equal(wire_lease_answer_read(&list, answer, 3, held), KVT_E_CORRUPT);
    assert_int_equal(wire_lease_answer_read(&list, answer, 5, held), KVT_E_CORRUPT);
}

TEST(an_extension_comes_over)
{
    wire_extend got;
    size_t bytes;
    assert_ok(wire_extend_write(7, 8, record, BYTES, &bytes));
    assert_ok(wire_extend_read(record, bytes, &got));
    assert_int_equal(got.lease, 7);
    assert_int_equal(got.until_ns, 8);
    assert_int_equal(wire_extend_write(7, 8, record, bytes - 1, &bytes), KVT_E_SPACE);
    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(wire_extend_read(record, cut, &got), KVT_E_ARGUMENT);
    ((uint32_t *)(void *)record)[1] = 1;
    assert_int_equal(wire_extend_read(record, bytes, &got), KVT_E_ARGUMENT);
}

/* ---- descriptions ---- */

TEST(a_description_comes_over_with_its_groups)
{
    kvt_layout groups[3] = {{.layers = 1}, {.layers = 2}, {.layers = 3}}, got[4];
    const kvt_description description = {.struct_size = sizeof description,
                                         .tier = KVT_TIER_SSD,
                                         .bytes = 99,
                                         .has_parent = true,
                                         .parent = {{4}},
                                         .group_count = 3,
                                         .groups = groups};
    for (uint32_t capacity = 0; capacity < 5; capacity++) {
        kvt_description told = {.struct_size = sizeof told, .groups_capacity = capacity};
        wire_describe describe;
        size_t bytes;
        memset(got, 0xee, sizeof got);
        told.groups = capacity > 0 ? got : NULL;
        assert_ok(wire_describe_write(&told, record, BYTES, &bytes));
        assert_int_equal(bytes, sizeof told + capacity * sizeof(kvt_layout));
        assert_ok(wire_describe_read(record, bytes, &describe));
        assert_int_equal(wire_describe_read(record, bytes - 1, &describe), KVT_E_ARGUMENT);
        const size_t written = wire_describe_answer_write(&describe, &description, answer);
        assert_true(written <= bytes);
        assert_ok(wire_describe_answer_read(answer, written, &told));
        assert_int_equal(told.bytes, 99);
        assert_int_equal(told.group_count, 3);
        assert_int_equal(told.groups_capacity, capacity);
        assert_ptr_equal(told.groups, capacity > 0 ? got : NULL);
        assert_int_equal(((unsigned char *)got)[0], capacity < 3 ? 0xee : 1);
        if (capacity >= 3) assert_memory_equal(got, groups, sizeof groups);
        /* What no server writes. */
        assert_int_equal(wire_describe_answer_read(answer, written + 24, &told), KVT_E_CORRUPT);
        assert_int_equal(wire_describe_answer_read(answer, written - 8, &told), KVT_E_CORRUPT);
        const size_t bools[] = {offsetof(kvt_description, has_parent),
                                offsetof(kvt_description, moving)};
        for (uint32_t i = 0; i < 2; i++) {
            char *at = (char *)answer + bools[i], was = *at;
            *at = 2;
            assert_int_equal(wire_describe_answer_read(answer, written, &told), KVT_E_CORRUPT);
            *at = was;
        }
        ((kvt_description *)(void *)answer)->tier = 77;
        assert_int_equal(wire_describe_answer_read(answer, written, &told), KVT_E_CORRUPT);
    }
}

TEST(descriptions_of_other_sizes_are_refused_or_cut)
{
    const struct {
        size_t offset;
        uint32_t value;
    } rows[] = {{0, 8},   {0, UINT32_MAX},     {4, 0},  {4, 4},          {4, 20},
                {4, 400}, {4, UINT32_MAX - 7}, {8, 65}, {8, UINT32_MAX}, {12, 1}};
    kvt_description told = {.struct_size = sizeof told};
    wire_describe describe;
    size_t bytes;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ok(wire_describe_write(&told, record, BYTES, &bytes));
        memcpy((char *)record + rows[i].offset, &rows[i].value, 4);
        assert_int_equal(wire_describe_read(record, bytes, &describe), KVT_E_ARGUMENT);
    }
    /* An older client's is cut, and not written beyond. */
    const kvt_description description = {.struct_size = sizeof description, .bytes = 5};
    const wire_describe older = {.struct_size = sizeof older, .description_bytes = 48};
    assert_int_equal(wire_describe_answer_write(&older, &description, answer), 48);
    assert_int_equal(((unsigned char *)answer)[48], 0xee);
    told.struct_size = 44;
    assert_int_equal(wire_describe_write(&told, record, BYTES, &bytes), KVT_E_ARGUMENT);
}

/* ---- passes ---- */

TEST(a_pass_comes_over_as_it_was)
{
    const kvt_pass pass = {.struct_size = sizeof pass,
                           .new_tokens = 3,
                           .prefix_tokens = 70000,
                           .layers = 61,
                           .kind = KVT_PASS_DECODE,
                           .layer_seconds = 0.25};
    kvt_pass got;
    wire_pass_layer layer;
    size_t bytes;
    assert_int_equal(wire_pass_write(&pass, record, sizeof pass - 1, &bytes), KVT_E_SPACE);
    assert_ok(wire_pass_write(&pass, record, sizeof pass, &bytes));
    assert_int_equal(bytes, sizeof pass);
    assert_ok(wire_pass_read(record, bytes, &got));
    assert_memory_equal(&got, &pass, sizeof pass);
    /* Of a newer client, which says no more than is known here; and more. */
    const uint32_t longer = sizeof pass + 8;
    memcpy(record, &longer, sizeof longer);
    memset(record + sizeof pass / 8, 0, 8);
    assert_ok(wire_pass_read(record, longer, &got));
    assert_memory_equal(&got, &pass, sizeof pass);
    record[sizeof pass / 8] = 1;
    assert_int_equal(wire_pass_read(record, longer, &got), KVT_E_ARGUMENT);
    assert_int_equal(wire_pass_layer_write(9, 5, record, 15, &bytes), KVT_E_SPACE);
    assert_ok(wire_pass_layer_write(9, 5, record, 16, &bytes));
    assert_ok(wire_pass_layer_read(record, bytes, &layer));
    assert_true(layer.pass == 9 && layer.layer == 5);
    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(wire_pass_layer_read(record, cut, &layer), KVT_E_ARGUMENT);
}
