/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_sparse_kept.c - a unit of a kept sequence from any bytes. The input's first byte chooses
 * whether its checksum is made right, so that the checks behind it are reached, and whether it has
 * slopes; a unit that is
 * accepted is scored, estimated and decoded as a step would. The unit is opened from its front
 * alone, as one whose pages are read in place.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sparse/choose.h"
#include "sparse/kept.h"
#include "sparse/page_table.h"

enum { DIM = 16, TOKENS = 200, SEGMENT = 128, PAGE = 16 };

static const sparse_kept_shape shape = {.id = 7,
                                        .layers = 1,
                                        .kv_heads = 1,
                                        .head_dim = DIM,
                                        .dtype = KVT_DTYPE_BF16,
                                        .tokens = TOKENS + 8,
                                        .sink_tokens = 4,
                                        .zone_tokens = TOKENS,
                                        .segment_tokens = SEGMENT,
                                        .page_tokens = PAGE,
                                        .variants = 0x1c,
                                        .row_bytes = DIM * 2};

/* Uses every number of a unit. */
static void use(const sparse_paging *paging, const sparse_index *index,
                const sparse_kept_unit *unit)
{
    float queries[DIM], estimate[DIM], lse = -1, estimate_lse;
    sparse_work work;
    sparse_code code;
    for (int i = 0; i < DIM; i++)
        queries[i] = (float)i - 7;
    sparse_work_room room = {.pages = 0};
    sparse_work_room_add(&room, index, paging->pages);
    if (sparse_work_open(&room, 1, DIM, &work) != KVT_OK) abort();
    if (sparse_choose_weights(index, paging, queries, 1, 0.25f, &lse, &work) == KVT_OK) {
        uint8_t variant[TOKENS] = {0};
        sparse_choose_estimate(index, paging, variant, &work, estimate, &estimate_lse);
    }
    sparse_work_close(&work);
    for (uint32_t place = 0; place < TOKENS; place++)
        if (sparse_index_token(index, place) >= TOKENS) abort();
    if (sparse_code_open(paging, &code) != KVT_OK) abort();
    memcpy(code.memory, unit->code, unit->code_bytes);
    uint8_t *scratch = aligned_alloc(64, (sparse_code_scratch(paging) + 63) / 64 * 64);
    uint16_t keys[PAGE * DIM], values[PAGE * DIM];
    for (uint32_t page = 0; page < paging->pages; page++) {
        if (!sparse_code_has(paging, &code, page)) continue;
        (void)!sparse_code_page(paging, &code, page, PAGES_BITS_4,
                                unit->pages + (uint64_t)page * unit->slot_bytes, keys, values,
                                scratch);
    }
    free(scratch);
    sparse_code_close(&code);
}

/* A sound unit's front and sizes, over which the input is laid. */
static uint8_t *make_bytes(const sparse_paging *paging, const uint8_t *data, size_t size,
                           bool sloped, uint64_t *bytes_out)
{
    static uint8_t zeros[1 << 20], slopes[1 << 12];
    const uint32_t clusters = 12;
    const sparse_kept_unit unit = {
        .clusters = clusters,
        .local_tokens = 4,
        .slot_bytes = sparse_slot_bytes(paging, shape.variants, NULL),
        .index = zeros,
        .slopes = slopes,
        .slope_bytes = sloped ? sparse_index_slope_bytes(DIM, clusters) : 0,
        .code = zeros,
        .sums = zeros,
        .sinks = zeros,
        .local = zeros,
        .index_bytes = sparse_index_bytes(DIM, TOKENS, clusters, 0),
        .code_bytes = sparse_code_bytes(paging),
        .sums_bytes = (uint64_t)paging->pages * SPARSE_SECTIONS * 4,
        .sinks_bytes = 2ull * shape.sink_tokens * shape.row_bytes,
        .local_bytes = 2ull * 4 * shape.row_bytes,
        .pages_bytes = (uint64_t)paging->pages * sparse_slot_bytes(paging, shape.variants, NULL)};
    const uint64_t bytes = sparse_kept_bytes(&unit, NULL);
    uint8_t *target = calloc(1, bytes);
    if (target == NULL) abort();
    /* A sound index first: places in order, clusters of 16 and more. */
    sparse_index index;
    if (sparse_index_make(DIM, SEGMENT, TOKENS, clusters, 0, &index) != KVT_OK) abort();
    for (uint32_t c = 0; c <= index.lanes; c++)
        index.first[c] = c < clusters ? c * 16 : TOKENS;
    for (uint32_t place = 0; place < TOKENS; place++)
        index.position[place] = (uint16_t)(place < SEGMENT ? place : place - SEGMENT);
    memcpy(zeros, index.memory, index.bytes);
    for (size_t i = 0; i + 3 <= size; i += 3) { /* {place, value} */
        const uint64_t at =
            (uint64_t)(data[i] | data[i + 1] << 8) % (unit.index_bytes + unit.slope_bytes);
        *(at < unit.index_bytes ? zeros + at : slopes + (at - unit.index_bytes)) = data[i + 2];
    }
    sparse_kept_write(&shape, &unit, target);
    sparse_index_free(&index);
    memset(zeros, 0, unit.index_bytes);
    memset(slopes, 0, sizeof slopes);
    *bytes_out = bytes;
    return target;
}

/* The input as index keys, as it is and laid over sound ones. */
static void read_keys(const uint8_t *data, size_t size)
{
    sparse_kept_shape model = shape;
    const uint8_t *keys;
    uint32_t tokens, sum = 0;
    model.key_bytes = 1 + data[0] % 40;
    model.given = 1;
    const uint32_t count = (uint32_t)(size / model.key_bytes);
    const uint64_t bytes = SPARSE_KEPT_HEAD_BYTES + (uint64_t)count * model.key_bytes;
    uint8_t *target = malloc(bytes);
    if (target == NULL) abort();
    sparse_kept_write_keys(&model, 7, data, count, target);
    if (sparse_kept_read_keys(&model, 7, target, bytes, &keys, &tokens) != KVT_OK ||
        tokens != count || memcmp(keys, data, (size_t)count * model.key_bytes) != 0)
        abort();
    target[data[size - 1] * UINT64_C(37) % bytes] ^= 1;
    if (sparse_kept_read_keys(&model, 7, target, bytes, &keys, &tokens) == KVT_OK) abort();
    memcpy(target, data, size < bytes ? size : bytes);
    if (sparse_kept_read_keys(&model, 7, target, bytes, &keys, &tokens) == KVT_OK)
        for (uint64_t i = 0; i < (uint64_t)tokens * model.key_bytes; i++)
            sum += keys[i];
    free(target);
    if (sum == UINT32_MAX) abort(); /* so that the bytes are read */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sparse_paging paging;
    sparse_kept_unit unit;
    sparse_index index;
    sparse_kept_shape head;
    if (size == 0) return 0;
    if (sparse_paging_init(&paging, DIM, KVT_DTYPE_BF16, TOKENS, SEGMENT, PAGE) != KVT_OK) abort();
    (void)!sparse_kept_read_head(data, size, &head);
    (void)!sparse_kept_read(&shape, &paging, 0, data, size, &unit);
    read_keys(data, size);
    uint64_t bytes;
    uint8_t *target = make_bytes(&paging, data + 1, size - 1, (data[0] & 2) != 0, &bytes);
    if ((data[0] & 1) != 0) target[data[0] * UINT64_C(37) % bytes] ^= data[0]; /* unseen damage */
    const uint64_t front_bytes =
        bytes - (uint64_t)paging.pages * sparse_slot_bytes(&paging, shape.variants, NULL);
    uint8_t *front = malloc(front_bytes);
    if (front == NULL) abort();
    memcpy(front, target, front_bytes);
    if (sparse_kept_read(&shape, &paging, 0, front, bytes, &unit) == KVT_OK &&
        sparse_kept_index(&shape, &unit, &index) == KVT_OK) {
        unit.pages = target + front_bytes;
        use(&paging, &index, &unit);
        sparse_index_free(&index);
    }
    free(front);
    free(target);
    return 0;
}
