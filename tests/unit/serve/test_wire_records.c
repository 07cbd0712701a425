/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_records.c - a view and an entry come over as they were, and no record names memory
 * outside of a region.
 */
#include "cases.h"

#include "serve/wire/channel_entries.h"
#include "serve/wire/request_records.h"

#include <stdbool.h>
#include <stdio.h>

#define BYTES 4096u

/* The same memory, as two processes have it. */
typedef struct site {
    wire_region client[WIRE_REGIONS_MAX + 1], server[WIRE_REGIONS_MAX + 1];
    uint64_t record[BYTES / 8];
    size_t bytes;
    void *bases[BYTES / sizeof(wire_place)];
    uint64_t bases_bytes[BYTES / sizeof(wire_place)];
    wire_record read_out;
} site;

static site at;

TEST_BEFORE_EACH
{
    memset(&at, 0, sizeof at);
    at.client[2] = (wire_region){(char *)0x100000, 65536};
    at.server[2] = (wire_region){(char *)0x700000, 65536};
    at.client[5] = (wire_region){(char *)0x300000, 8192};
    at.server[5] = (wire_region){(char *)0x900000, 8192};
}

static const wire_get any_get = {.struct_size = sizeof any_get,
                                 .first_layer = 1,
                                 .layer_count = 2,
                                 .deadline_ns = 77,
                                 .loss_max = 0.5};

static kvt_status read_kind(uint32_t kind)
{
    /* An exact copy, so that a sanitizer sees a read beyond it. */
    void *copy = test_alloc(at.bytes + (at.bytes == 0));
    memcpy(copy, at.record, at.bytes);
    at.read_out = (wire_record){.bases = {.at = at.bases, .bytes = at.bases_bytes}};
    return wire_record_read(kind, copy, at.bytes, at.server, &at.read_out);
}

static kvt_status write_get(const wire_get *get, const kvt_view *view, uint32_t base_count)
{
    return wire_get_write(get, view, base_count, at.client, at.record, BYTES, &at.bytes);
}

static kvt_status write_put(const wire_put *put, const kvt_view *view, uint32_t base_count)
{
    return wire_put_write(put, NULL, NULL, view, base_count, at.client, at.record, BYTES,
                          &at.bytes);
}

/* A pool of two addresses with a table of blocks. */
static kvt_view pool_view(const uint32_t *blocks)
{
    return (kvt_view){.struct_size = sizeof(kvt_view),
                      .bases_kind = KVT_BASES_SIDES,
                      .dtype = KVT_DTYPE_BF16,
                      .base = {(void *)0x100100, (void *)0x300000},
                      .base_bytes = {4096, 8192},
                      .layer_stride = 1,
                      .block_stride = 3,
                      .token_stride = 4,
                      .head_stride = -5,
                      .tokens_per_block = 16,
                      .first_slot = 3,
                      .blocks = blocks,
                      .block_count = 3};
}

TEST(a_view_comes_over_as_it_was)
{
    const uint32_t blocks[] = {9, 1, 4};
    const kvt_view view = pool_view(blocks);
    assert_ok(write_get(&any_get, &view, 2));
    assert_ok(read_kind(WIRE_GET));
    const kvt_view *got = &at.read_out.view;
    assert_memory_equal(&at.read_out.get, &any_get, sizeof any_get);
    assert_ptr_equal(got->base[0], (void *)0x700100);
    assert_ptr_equal(got->base[1], (void *)0x900000);
    assert_int_equal(got->base_bytes[0], 4096);
    assert_int_equal(got->base_bytes[1], 8192);
    assert_memory_equal(got->blocks, blocks, sizeof blocks);
    assert_int_equal(at.read_out.bases.regions, 1 << 2 | 1 << 5);
    kvt_view same = *got;
    memcpy(same.base, view.base, sizeof same.base);
    same.blocks = view.blocks;
    assert_memory_equal(&same, &view, sizeof same);
}

TEST(an_entry_comes_over_as_it_was)
{
    void *bases[] = {(void *)0x100000, (void *)0x101000, (void *)0x300000, (void *)0x301000};
    const uint64_t bytes[] = {1, 2, 3, 4};
    const wire_put put = {
        .struct_size = sizeof put,
        .has_parent = 1,
        .parent = {{7}},
        .layout = {.layers = 2, .kv_heads = 3, .head_dim = 4, .dtype = KVT_DTYPE_BF16, .tokens = 5},
        .first_position = 6,
        .class_id = 7,
        .tenant = 8,
        .request_tokens = 9,
        .recompute_seconds = 10,
        .lifetime_seconds = 11,
        .deadline_ns = 12};
    const kvt_view view = {.struct_size = sizeof view,
                           .bases_kind = KVT_BASES_LAYERS_SIDES,
                           .bases = bases,
                           .bases_bytes = bytes};
    assert_ok(write_put(&put, &view, 4));
    assert_ok(read_kind(WIRE_PUT));
    const kvt_entry *entry = &at.read_out.entry;
    assert_memory_equal(&at.read_out.put, &put, sizeof put);
    assert_memory_equal(entry->parent, &put.parent, sizeof put.parent);
    assert_memory_equal(&entry->layout, &put.layout, sizeof put.layout);
    assert_int_equal(entry->first_position, 6);
    assert_int_equal(entry->class_id, 7);
    assert_int_equal(entry->tenant, 8);
    assert_int_equal(entry->request_tokens, 9);
    assert_true(entry->recompute_seconds == 10 && entry->lifetime_seconds == 11);
    assert_ptr_equal(at.read_out.view.bases[3], (void *)0x901000);
    assert_memory_equal(at.read_out.view.bases_bytes, bytes, sizeof bytes);
    /* The call that takes the view compares their number with what the entry has. */
    for (uint32_t count = 1; count < 5; count++) {
        assert_ok(write_put(&put, &view, count));
        assert_ok(read_kind(WIRE_PUT));
        assert_int_equal(at.read_out.view.base_count, count);
        assert_ok(write_get(&any_get, &view, count));
        assert_ok(read_kind(WIRE_GET));
        assert_int_equal(at.read_out.view.base_count, count);
    }
}

TEST(only_addresses_in_regions_are_written)
{
    kvt_view view = kvt_view_packed((void *)0x100000, 65536);
    assert_ok(write_get(&any_get, &view, 1));
    const struct {
        uintptr_t address;
        uint64_t bytes;
    } rows[] = {{0x0fffff, 2},    {0x100001, 65536},      {0x110000, 1}, {0, 1},
                {0x300000, 8193}, {0x100000, UINT64_MAX}, {0x2fffff, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        view = kvt_view_packed((void *)rows[i].address, rows[i].bytes);
        assert_int_equal(write_get(&any_get, &view, 1), KVT_E_ARGUMENT);
    }
    view = kvt_view_packed((void *)0x100000, 64);
    assert_int_equal(write_get(&any_get, &view, 0), KVT_E_ARGUMENT);
    assert_int_equal(write_get(&any_get, &view, 3), KVT_E_ARGUMENT);
    assert_int_equal(wire_get_write(&any_get, &view, 1, at.client, at.record, 100, &at.bytes),
                     KVT_E_SPACE);
    const kvt_view *groups[] = {&view};
    const kvt_view grouped = kvt_view_grouped(groups, 1);
    assert_int_equal(write_get(&any_get, &grouped, 1), KVT_E_UNSUPPORTED);
}

/* Each member of a sound record set to what it cannot be; words of 4 bytes. */
TEST(records_that_reach_out_are_refused)
{
    const uint32_t blocks[] = {9, 1, 4};
    const kvt_view view = pool_view(blocks);
    const size_t at_view = sizeof(wire_get), places = at_view + sizeof(wire_view);
    const struct {
        size_t offset;
        uint32_t value;
        kvt_status status;
    } rows[] = {
        {0, 31, KVT_E_ARGUMENT},
        {0, 24, KVT_E_ARGUMENT},
        {0, 4096, KVT_E_ARGUMENT},
        {0, UINT32_MAX, KVT_E_ARGUMENT},
        {12, 1, KVT_E_ARGUMENT},
        {at_view, 64, KVT_E_ARGUMENT},
        {at_view, 80, KVT_E_ARGUMENT},
        {at_view, UINT32_MAX - 7, KVT_E_ARGUMENT},
        {at_view + 4, KVT_BASES_GROUPS, KVT_E_UNSUPPORTED},
        {at_view + 4, KVT_BASES_ONE, KVT_E_ARGUMENT},
        {at_view + 4, 6, KVT_E_ARGUMENT},
        {at_view + 12, 0, KVT_E_ARGUMENT},
        {at_view + 12, 3, KVT_E_ARGUMENT},
        {at_view + 12, UINT32_MAX, KVT_E_ARGUMENT},
        {at_view + offsetof(wire_view, block_count), 4, KVT_E_ARGUMENT},
        {at_view + offsetof(wire_view, block_count), UINT32_MAX, KVT_E_ARGUMENT},
        {at_view + offsetof(wire_view, zero), 1, KVT_E_ARGUMENT},
        {places, 3, KVT_E_ARGUMENT},
        {places, 64, KVT_E_ARGUMENT},
        {places, UINT32_MAX, KVT_E_ARGUMENT},
        {places + 4, 1, KVT_E_ARGUMENT},
        {places + 8, 65536 - 4095, KVT_E_ARGUMENT},
        {places + 12, 1, KVT_E_ARGUMENT},
        {places + 12, UINT32_MAX, KVT_E_ARGUMENT},
        {places + 16, 65537, KVT_E_ARGUMENT},
        {places + 20, UINT32_MAX, KVT_E_ARGUMENT},
        {places + 8, 65536 - 4096, KVT_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ok(write_get(&any_get, &view, 2));
        memcpy((char *)at.record + rows[i].offset, &rows[i].value, 4);
        const kvt_status status = read_kind(WIRE_GET);
        if (status != rows[i].status) fail_msg("row %zu: %s", i, kvt_status_name(status));
    }
    /* Cut anywhere. */
    assert_ok(write_get(&any_get, &view, 2));
    const size_t whole = at.bytes;
    for (at.bytes = 0; at.bytes < whole; at.bytes++)
        assert_int_equal(read_kind(WIRE_GET), KVT_E_ARGUMENT);
}

/* Structures of a later version are longer; what is not known here must be zero. */
TEST(a_longer_structure_is_taken_when_it_says_no_more)
{
    const kvt_view view = kvt_view_packed((void *)0x100000, 64);
    assert_ok(write_get(&any_get, &view, 1));
    memmove(&at.record[6], &at.record[5], at.bytes - sizeof(wire_get));
    at.bytes += 8;
    memcpy(at.record, &(uint32_t){sizeof(wire_get) + 8}, 4);
    at.record[5] = 0;
    assert_ok(read_kind(WIRE_GET));
    assert_ptr_equal(at.read_out.view.base[0], (void *)0x700000);
    at.record[5] = 1;
    assert_int_equal(read_kind(WIRE_GET), KVT_E_ARGUMENT);
}

/* Staging is the last region, of the channel and not of the session: no bit counts its uses. */
TEST(staging_is_a_region_that_is_not_counted)
{
    const kvt_view view = kvt_view_packed((void *)0x500040, 64);
    assert_int_equal(write_get(&any_get, &view, 1), KVT_E_ARGUMENT);
    at.client[WIRE_STAGING] = (wire_region){(char *)0x500000, 4096};
    assert_ok(write_get(&any_get, &view, 1));
    assert_int_equal(read_kind(WIRE_GET), KVT_E_ARGUMENT);
    at.server[WIRE_STAGING] = (wire_region){(char *)0xb00000, 4096};
    assert_ok(read_kind(WIRE_GET));
    assert_ptr_equal(at.read_out.view.base[0], (void *)0xb00040);
    assert_int_equal(at.read_out.bases.regions, 0);
    at.server[WIRE_STAGING].bytes = 127;
    assert_int_equal(read_kind(WIRE_GET), KVT_E_ARGUMENT);
}

TEST(groups_and_scores_come_over_as_they_were)
{
    const kvt_layout groups[2] = {{.layers = 1, .tokens = 7}, {.opaque_bytes = 9}};
    const float scores[3] = {1, -2, 0.5f};
    const uint32_t blocks[] = {9, 1, 4};
    const kvt_key parent = {{3}};
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .parent = &parent,
                             .tenant = 4,
                             .token_score_count = 3,
                             .token_scores = scores,
                             .group_count = 2,
                             .groups = groups};
    const wire_put put = wire_put_of(&entry, 77);
    kvt_view view = kvt_view_packed((void *)0x100000, 65536);
    view.blocks = blocks;
    view.block_count = 3;
    assert_ok(
        wire_put_write(&put, groups, scores, &view, 1, at.client, at.record, BYTES, &at.bytes));
    assert_int_equal(at.bytes, wire_put_bytes(&put, &view, 1));
    assert_ok(read_kind(WIRE_PUT));
    const kvt_entry *got = &at.read_out.entry;
    assert_int_equal(got->group_count, 2);
    assert_memory_equal(got->groups, groups, sizeof groups);
    assert_int_equal(got->token_score_count, 3);
    assert_memory_equal(got->token_scores, scores, sizeof scores);
    assert_memory_equal(at.read_out.view.blocks, blocks, sizeof blocks);
    assert_memory_equal(got->parent, &parent, sizeof parent);
    assert_int_equal(got->tenant, 4);
    const size_t whole = at.bytes;
    for (at.bytes = 0; at.bytes < whole; at.bytes++)
        assert_int_equal(read_kind(WIRE_PUT), KVT_E_ARGUMENT);
    const struct {
        size_t offset;
        uint32_t value;
    } rows[] = {{offsetof(wire_put, group_count), 1},
                {offsetof(wire_put, group_count), 3},
                {offsetof(wire_put, group_count), KVT_GROUPS_MAX + 1},
                {offsetof(wire_put, group_count), UINT32_MAX},
                {offsetof(wire_put, token_score_count), 4},
                {offsetof(wire_put, token_score_count), UINT32_MAX}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const uint32_t was = *(uint32_t *)(void *)((char *)at.record + rows[i].offset);
        memcpy((char *)at.record + rows[i].offset, &rows[i].value, 4);
        assert_int_equal(read_kind(WIRE_PUT), KVT_E_ARGUMENT);
        memcpy((char *)at.record + rows[i].offset, &was, 4);
    }
    assert_ok(read_kind(WIRE_PUT));
}

/* ---- how a get was served ---- */

TEST(a_get_s_answer_comes_over)
{
    uint32_t positions[6] = {4, 5, 6, 7, 8, 9}, read_out[6] = {0};
    uint64_t answer[16];
    kvt_kept_tokens kept = {
        .struct_size = sizeof kept, .count = 3, .sets = 2, .capacity = 6, .positions = positions};
    const kvt_get_info info = {.struct_size = sizeof info,
                               .read_ns = 1,
                               .decode_ns = 2,
                               .predicted_ns = 3,
                               .shared = true,
                               .kept = &kept};
    /* Clients of this version and of a later one. */
    for (uint32_t own = 40; own <= 48; own += 8) {
        const wire_get get = {.got_bytes = own, .kept_capacity = 6};
        kvt_kept_tokens told = {.struct_size = sizeof told, .capacity = 6, .positions = read_out};
        kvt_get_info got = {.struct_size = sizeof got, .elapsed_ns = 9, .kept = &told};
        memset(answer, 0xee, sizeof answer);
        const size_t bytes = wire_got_write(&get, &info, answer);
        assert_int_equal(bytes, own + 24);
        assert_int_equal(wire_get_positions(&get, own + 24), 6);
        assert_int_equal(wire_get_positions(&get, own + 23), 5);
        assert_int_equal(wire_get_positions(&get, own - 8), 0);
        assert_int_equal(((unsigned char *)answer)[bytes], 0xee);
        assert_ok(wire_got_read(answer, bytes, &got));
        assert_true(got.read_ns == 1 && got.decode_ns == 2 && got.predicted_ns == 3 && got.shared);
        assert_int_equal(got.elapsed_ns, 9);
        assert_int_equal(told.count, 3);
        assert_int_equal(told.sets, 2);
        assert_memory_equal(read_out, positions, sizeof positions);
        /* Fewer than it says, more than there is room for, or none that were asked for. */
        assert_int_equal(wire_got_read(answer, bytes - 1, &got), KVT_E_CORRUPT);
        told.capacity = 5;
        assert_int_equal(wire_got_read(answer, bytes, &got), KVT_E_CORRUPT);
        got.kept = NULL;
        assert_int_equal(wire_got_read(answer, bytes, &got), KVT_E_CORRUPT);
        assert_int_equal(wire_got_read(answer, 39, &got), KVT_E_CORRUPT);
    }
}

TEST(a_get_s_record_has_room_for_its_answer)
{
    const kvt_view view = kvt_view_packed((void *)0x100000, 64);
    const size_t plain = sizeof(wire_get) + sizeof(wire_view) + sizeof(wire_place);
    wire_get get = any_get;
    get.got_bytes = sizeof(wire_got);
    const struct {
        uint64_t capacity;
        size_t bytes;
    } rows[] = {{0, plain},   {24, plain},   {25, 140},
                {1000, 4040}, {1015, BYTES}, {UINT64_MAX, BYTES}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        get.kept_capacity = rows[i].capacity;
        assert_ok(write_get(&get, &view, 1));
        assert_int_equal(at.bytes, rows[i].bytes);
        assert_ok(read_kind(WIRE_GET));
    }
    get.got_bytes = 0;
    assert_int_equal(write_get(&get, &view, 1), KVT_E_ARGUMENT);
    /* An answer that its record has no room for, of a size that is none, positions without one. */
    get = any_get;
    const uint32_t sizes[] = {1, 32, 36, 44, 144, UINT32_MAX - 7};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_ok(write_get(&get, &view, 1));
        assert_int_equal(at.bytes, plain);
        memcpy((char *)at.record + offsetof(wire_get, got_bytes), &sizes[i], 4);
        assert_int_equal(read_kind(WIRE_GET), KVT_E_ARGUMENT);
    }
    assert_ok(write_get(&get, &view, 1));
    at.record[offsetof(wire_get, kept_capacity) / 8] = 1;
    assert_int_equal(read_kind(WIRE_GET), KVT_E_ARGUMENT);
}
