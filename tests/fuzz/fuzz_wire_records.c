/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_wire_records.c - any bytes as the record of each kind of request, and as each answer: a
 * value or a status. What passes lies inside of its region or of the record, an answer fits into
 * the record, and a client can read it.
 *
 * The first byte of the input is the kind.
 */
#include "serve/wire/key_records.h"
#include "serve/wire/request_records.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds) abort();
}

/* Exactly as much as is asked for. */
static void *take(size_t bytes)
{
    void *memory = calloc(bytes + (bytes == 0), 1);
    check(memory != NULL);
    return memory;
}

/* Something of a record lies in its copy. */
static void check_inside(const void *copy, size_t size, const void *from, size_t bytes)
{
    const size_t offset = (size_t)((const char *)from - (const char *)copy);
    check(offset <= size && bytes <= size - offset);
}

/* How a get was served, with as many positions as its record has room for. */
static void serve_get(const wire_get *get, size_t size)
{
    const uint64_t positions = wire_get_positions(get, size);
    kvt_kept_tokens kept = {.struct_size = sizeof kept, .capacity = positions};
    kvt_kept_tokens read = kept;
    kvt_get_info info = {.struct_size = sizeof info, .read_ns = 3, .shared = true, .kept = &kept};
    kvt_get_info got = {.struct_size = sizeof got, .kept = &read};
    if (get->got_bytes == 0) return;
    kept.positions = take(positions * sizeof(uint32_t));
    read.positions = take(positions * sizeof(uint32_t));
    kept.sets = positions > 0 ? 2 : 0;
    kept.count = (uint32_t)positions / 2;
    void *answer = take(size);
    const size_t bytes = wire_got_write(get, &info, answer);
    check(bytes <= size && wire_got_read(answer, bytes, &got) == KVT_OK);
    check(got.read_ns == 3 && got.shared && read.sets == kept.sets && read.count == kept.count);
    free(answer);
    free(kept.positions);
    free(read.positions);
}

static void read_record(uint32_t kind, const void *copy, size_t size)
{
    char *const address = (char *)(uintptr_t)0x100000;
    const wire_region regions[WIRE_REGIONS_MAX + 1] = {
        [2] = {address, 65536}, [WIRE_STAGING] = {address, 65536}};
    const size_t count = wire_record_bases(size);
    void **bases = take(count * sizeof *bases);
    uint64_t *bytes = take(count * sizeof *bytes);
    wire_record record = {.bases = {.at = bases, .bytes = bytes}};
    if (wire_record_read(kind, copy, size, regions, &record) == KVT_OK) {
        const kvt_view *view = &record.view;
        check((record.bases.regions & ~UINT64_C(4)) == 0);
        const char *from = view->bases != NULL ? view->bases[0] : view->base[0];
        const uint64_t length = view->bases != NULL ? view->bases_bytes[0] : view->base_bytes[0];
        check(from >= address && from <= address + 65536 && length <= 65536);
        check(length <= (uint64_t)(address + 65536 - from));
        if (view->blocks != NULL) check_inside(copy, size, view->blocks, view->block_count * 4);
        if (kind == WIRE_GET) serve_get(&record.get, size);
        const kvt_entry *entry = &record.entry;
        if (kind == WIRE_PUT && entry->groups != NULL)
            check_inside(copy, size, entry->groups, entry->group_count * sizeof *entry->groups);
        if (kind == WIRE_PUT && entry->token_scores != NULL)
            check_inside(copy, size, entry->token_scores, entry->token_score_count * 4);
    }
    free(bases);
    free(bytes);
}

static void read_list(uint32_t kind, const void *copy, size_t size)
{
    wire_list list;
    const kvt_key *keys;
    if (wire_list_read(kind, copy, size, &list, &keys) != KVT_OK) return;
    const uint64_t answer_bytes = wire_list_answer(kind, &list);
    check(answer_bytes <= size);
    check_inside(copy, size, keys, list.count * sizeof *keys);
    if (kind != WIRE_MATCH) return;
    const kvt_worth worth = {.struct_size = sizeof worth, .stored = list.count};
    double *seconds = take(list.count * sizeof *seconds), *got = take(list.count * sizeof *got);
    void *answer = take(answer_bytes), *told = take(list.worth_bytes);
    if (list.worth_bytes != 0) memcpy(told, &list.worth_bytes, 4);
    wire_match_answer_write(&list, &worth, seconds, answer);
    check(wire_match_answer_read(&list, answer, answer_bytes, told, got) == KVT_OK);
    free(seconds);
    free(got);
    free(answer);
    free(told);
}

static void read_describe(const void *copy, size_t size)
{
    wire_describe describe;
    kvt_layout groups[KVT_GROUPS_MAX] = {{0}}, layouts[KVT_GROUPS_MAX];
    const kvt_description description = {
        .struct_size = sizeof description, .group_count = (uint32_t)size % 65, .groups = groups};
    kvt_description told = {.struct_size = sizeof told, .groups = layouts};
    if (wire_describe_read(copy, size, &describe) != KVT_OK) return;
    void *answer = take(size);
    const size_t bytes = wire_describe_answer_write(&describe, &description, answer);
    check(bytes <= size);
    told.groups_capacity = describe.groups_capacity;
    if (describe.description_bytes == sizeof told)
        check(wire_describe_answer_read(answer, bytes, &told) == KVT_OK && told.groups == layouts);
    free(answer);
}

/* A server that writes nonsense. */
static void read_answers(const void *copy, size_t size)
{
    uint32_t positions[8];
    bool held[16];
    double seconds[16];
    kvt_layout layouts[4];
    kvt_kept_tokens kept = {.struct_size = sizeof kept, .positions = positions, .capacity = 8};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    kvt_worth worth = {.struct_size = sizeof worth};
    kvt_description description = {
        .struct_size = sizeof description, .groups_capacity = 4, .groups = layouts};
    const wire_list list = {.count = 16, .flags = WIRE_MATCH_SECONDS, .worth_bytes = sizeof worth};
    if (wire_got_read(copy, size, &info) == KVT_OK)
        check((uint64_t)kept.sets * kept.count <= kept.capacity);
    if (wire_match_answer_read(&list, copy, size, &worth, seconds) == KVT_OK)
        check(worth.to_load <= 16 && worth.struct_size == sizeof worth);
    if (wire_describe_answer_read(copy, size, &description) == KVT_OK)
        check(description.groups == layouts && kvt_tier_name((int)description.tier) != NULL);
    if (wire_lease_answer_read(&list, copy, size, held) == KVT_OK) check(size == 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wire_extend extend;
    wire_pass_layer layer;
    kvt_pass pass;
    if (size < 1) return 0;
    const uint32_t kind = data[0];
    size--;
    void *copy = take(size);
    memcpy(copy, data + 1, size);
    switch (kind) {
    case WIRE_GET:
    case WIRE_PUT: read_record(kind, copy, size); break;
    case WIRE_TOUCH:
    case WIRE_MATCH:
    case WIRE_LEASE_BEGIN:
    case WIRE_HINT: read_list(kind, copy, size); break;
    case WIRE_LEASE_EXTEND:
        if (wire_extend_read(copy, size, &extend) == KVT_OK) check(extend.zero == 0);
        break;
    case WIRE_PASS_BEGIN:
        if (wire_pass_read(copy, size, &pass) == KVT_OK) check(pass.struct_size == sizeof pass);
        break;
    case WIRE_PASS_LAYER:
        if (wire_pass_layer_read(copy, size, &layer) == KVT_OK) check(size >= sizeof layer);
        break;
    case WIRE_DESCRIBE: read_describe(copy, size); break;
    default: read_answers(copy, size); break;
    }
    free(copy);
    return 0;
}
