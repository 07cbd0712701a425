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
    wire_region client[WIRE_REGIONS_MAX], server[WIRE_REGIONS_MAX];
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
    at.read_out = (wire_record){.bases = at.bases, .bases_bytes = at.bases_bytes};
    return wire_record_read(kind, copy, at.bytes, at.server, &at.read_out);
}

static kvt_status write_view(const void *head, const kvt_view *view, uint32_t base_count)
{
    return wire_record_write(head, view, base_count, at.client, at.record, BYTES, &at.bytes);
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
    assert_ok(write_view(&any_get, &view, 2));
    assert_ok(read_kind(WIRE_GET));
    const kvt_view *got = &at.read_out.view;
    assert_memory_equal(&at.read_out.get, &any_get, sizeof any_get);
    assert_ptr_equal(got->base[0], (void *)0x700100);
    assert_ptr_equal(got->base[1], (void *)0x900000);
    assert_int_equal(got->base_bytes[0], 4096);
    assert_int_equal(got->base_bytes[1], 8192);
    assert_memory_equal(got->blocks, blocks, sizeof blocks);
    assert_int_equal(at.read_out.regions, 1 << 2 | 1 << 5);
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
    assert_ok(write_view(&put, &view, 4));
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
    /* A call reads as many addresses as the entry has: fewer, or more, are refused. */
    for (uint32_t count = 1; count < 4; count++) {
        assert_ok(write_view(&put, &view, count));
        assert_int_equal(read_kind(WIRE_PUT), KVT_E_ARGUMENT);
    }
    /* And a get's entry is not known. */
    assert_ok(write_view(&any_get, &view, 4));
    assert_int_equal(read_kind(WIRE_GET), KVT_E_UNSUPPORTED);
}

TEST(only_addresses_in_regions_are_written)
{
    kvt_view view = kvt_view_packed((void *)0x100000, 65536);
    assert_ok(write_view(&any_get, &view, 1));
    const struct {
        uintptr_t address;
        uint64_t bytes;
    } rows[] = {{0x0fffff, 2},    {0x100001, 65536},      {0x110000, 1}, {0, 1},
                {0x300000, 8193}, {0x100000, UINT64_MAX}, {0x2fffff, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        view = kvt_view_packed((void *)rows[i].address, rows[i].bytes);
        assert_int_equal(write_view(&any_get, &view, 1), KVT_E_ARGUMENT);
    }
    view = kvt_view_packed((void *)0x100000, 64);
    assert_int_equal(write_view(&any_get, &view, 0), KVT_E_ARGUMENT);
    assert_int_equal(write_view(&any_get, &view, 3), KVT_E_ARGUMENT);
    assert_int_equal(wire_record_write(&any_get, &view, 1, at.client, at.record, 100, &at.bytes),
                     KVT_E_SPACE);
    const kvt_view *groups[] = {&view};
    const kvt_view grouped = kvt_view_grouped(groups, 1);
    assert_int_equal(write_view(&any_get, &grouped, 1), KVT_E_UNSUPPORTED);
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
        assert_ok(write_view(&any_get, &view, 2));
        memcpy((char *)at.record + rows[i].offset, &rows[i].value, 4);
        const kvt_status status = read_kind(WIRE_GET);
        if (status != rows[i].status) fail_msg("row %zu: %s", i, kvt_status_name(status));
    }
    /* Cut anywhere. */
    assert_ok(write_view(&any_get, &view, 2));
    const size_t whole = at.bytes;
    for (at.bytes = 0; at.bytes < whole; at.bytes++)
        assert_int_equal(read_kind(WIRE_GET), KVT_E_ARGUMENT);
}

/* Structures of a later version are longer; what is not known here must be zero. */
TEST(a_longer_structure_is_taken_when_it_says_no_more)
{
    struct {
        wire_get get;
        uint64_t more;
    } later = {.get = any_get};
    const kvt_view view = kvt_view_packed((void *)0x100000, 64);
    later.get.struct_size = sizeof later;
    assert_ok(write_view(&later, &view, 1));
    assert_ok(read_kind(WIRE_GET));
    assert_ptr_equal(at.read_out.view.base[0], (void *)0x700000);
    later.more = 1;
    assert_ok(write_view(&later, &view, 1));
    assert_int_equal(read_kind(WIRE_GET), KVT_E_ARGUMENT);
}
