/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_given.c - sequences of models that select by themselves: a step brings the rows that
 * were asked for, bit for bit, and no others, whatever is resident, appended, kept or broken.
 */
#include "sequence_site.h"

#include "dice.h"
#include "sparse/sequence.h"

enum { MIB = 1 << 20, LONG_ROW = 656, LIST_MOST = 2 * SITE_TOKENS };

#define RAW_ONLY (1u << KVT_SPARSE_RAW)

/* A selection, one list for all heads or one of each. */
typedef struct selection {
    uint32_t block_tokens, lists, counts[SITE_HEADS], numbers[LIST_MOST];
} selection;

static kvt_sparse_given given_of(const selection *list)
{
    return (kvt_sparse_given){.struct_size = sizeof(kvt_sparse_given),
                              .block_tokens = list->block_tokens,
                              .lists = list->lists,
                              .counts = list->counts,
                              .numbers = list->numbers};
}

static kvt_sparse_options given_options(void)
{
    kvt_sparse_options options = site_options();
    options.given = true;
    options.variants = RAW_ONLY;
    options.budget_bytes = KVT_SPARSE_ALL;
    return options;
}

/* The tokens that a head is asked for, of so many. */
static void mark_asked(const selection *list, uint32_t head, uint32_t tokens, bool *asked)
{
    const uint32_t own = list->lists == 1 ? 0 : head;
    const uint32_t *numbers = list->numbers + (own == 1 ? list->counts[0] : 0);
    memset(asked, 0, tokens * sizeof *asked);
    for (uint32_t n = 0; n < list->counts[own]; n++)
        for (uint32_t t = 0; t < list->block_tokens; t++)
            if (numbers[n] * list->block_tokens + t < tokens)
                asked[numbers[n] * list->block_tokens + t] = true;
}

/* A head's pages hold what was asked for, in ascending order. Returns how many rows are missing. */
static uint32_t check_head(const sequence_site *s, const kvt_sparse_pages *pages, uint32_t h,
                           const selection *list, uint32_t tokens)
{
    static bool asked[SITE_TOKENS];
    const kvt_sparse_head *head = &pages->heads[h];
    uint32_t next = 0, missing = 0;
    mark_asked(list, h, tokens, asked);
    assert_null(head->estimate);
    for (uint32_t i = 0; i < head->page_count; i++) {
        const kvt_sparse_page *page = &head->pages[i];
        assert_true(page->tokens > 0 && page->variant == KVT_SPARSE_RAW);
        for (uint32_t t = 0; t < page->tokens; t++, next++) {
            for (; next < page->positions[t]; next++)
                missing += asked[next];
            assert_true(page->positions[t] == next && next < tokens && asked[next]);
            const size_t at = (size_t)next * SITE_ROW + h * SITE_DIM;
            const uint16_t *k = (const uint16_t *)page->k + (size_t)t * SITE_DIM;
            const uint16_t *v = (const uint16_t *)page->v + (size_t)t * SITE_DIM;
            assert_memory_equal(k, s->k[pages->layer] + at, SITE_DIM * sizeof *k);
            assert_memory_equal(v, s->v[pages->layer] + at, SITE_DIM * sizeof *v);
        }
    }
    for (; next < tokens; next++)
        missing += asked[next];
    return missing;
}

/* One step; returns the rows that are missing. */
static uint32_t step_given(const sequence_site *s, kvt_sparse *sequence, uint32_t layer,
                           const selection *list, uint32_t tokens, uint64_t *read_bytes)
{
    const kvt_sparse_given given = given_of(list);
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    uint32_t missing = 0;
    assert_ok(kvt_sparse_select_given(sequence, layer, &given, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    for (uint32_t h = 0; h < SITE_HEADS; h++)
        missing += check_head(s, pages, h, list, tokens);
    assert_int_equal(missing > 0, pages->lost_count > 0);
    if (read_bytes != NULL) *read_bytes = pages->read_bytes;
    kvt_sparse_done(sequence, step);
    return missing;
}

static uint32_t below(uint64_t *state, uint32_t most)
{
    return (uint32_t)((dice_next(state) >> 33) % most);
}

/* Numbers in no order, some of them twice. */
static void draw_selection(uint64_t *d, uint32_t tokens, selection *list)
{
    static const uint32_t blocks[] = {1, 1, 16, 24, 64, 5000};
    list->block_tokens = blocks[below(d, 6)];
    list->lists = 1 + below(d, SITE_HEADS);
    uint32_t at = 0;
    for (uint32_t i = 0; i < list->lists; i++) {
        const uint32_t numbers = (tokens - 1) / list->block_tokens + 1;
        const uint32_t most = list->block_tokens == 1 ? 200 : 12;
        list->counts[i] = below(d, most + 1);
        const uint32_t near = below(d, numbers);
        for (uint32_t n = 0; n < list->counts[i]; n++)
            list->numbers[at++] =
                below(d, 3) > 0 ? (near + below(d, 60)) % numbers : below(d, numbers);
    }
}

/* A sequence of the whole context, whose pages are ordered by selections. */
static kvt_sparse *ordered_sequence(sequence_site *s, const kvt_sparse_options *options,
                                    const selection *lists, uint32_t count)
{
    kvt_sparse *sequence = NULL;
    kvt_sparse_given given[16];
    for (uint32_t i = 0; i < count; i++)
        given[i] = given_of(&lists[i]);
    assert_ok(kvt_sparse_open_live(s->store, options, &sequence, NULL, 0));
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        assert_ok(kvt_sparse_give_selected(sequence, layer, s->k[layer], s->v[layer],
                                           count > 0 ? given : NULL, count));
    return sequence;
}

/* ---- exact ---- */

TEST(a_step_brings_what_was_asked_for_and_nothing_else)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    const kvt_sparse_options options = given_options();
    kvt_sparse *sequence = site_sequence(s, &options);
    /* Unsorted, a number twice, neighbours, the first and the last token. */
    const selection list = {.block_tokens = 1,
                            .lists = 1,
                            .counts = {9},
                            .numbers = {2999, 7, 8, 9, 1500, 7, 0, 17, 16}};
    const kvt_sparse_given given = given_of(&list);
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    float queries[SITE_QUERY], output[SITE_QUERY];
    site_query(s, 1, 4, queries);
    assert_ok(kvt_sparse_select_given(sequence, 1, &given, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    for (uint32_t h = 0; h < SITE_HEADS; h++) {
        assert_int_equal(check_head(s, pages, h, &list, SITE_TOKENS), 0);
        assert_int_equal(pages->heads[h].page_count, 5); /* 0, 7.., 16.., 1500, 2999 */
    }
    /* Attention over the pages is attention over the selection. */
    assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
    static const uint32_t sorted[] = {0, 7, 8, 9, 16, 17, 1500, 2999};
    for (uint32_t q = 0; q < SITE_HEADS * SITE_GROUP; q++) {
        double sum = 0, wanted[SITE_DIM] = {0};
        for (uint32_t i = 0; i < 8; i++) {
            const size_t at = (size_t)sorted[i] * SITE_ROW + q / SITE_GROUP * SITE_DIM;
            double score = 0;
            for (uint32_t d = 0; d < SITE_DIM; d++)
                score += (double)queries[q * SITE_DIM + d] * (double)site_float(s->k[1][at + d]);
            const double weight = exp(score / sqrt(SITE_DIM));
            sum += weight;
            for (uint32_t d = 0; d < SITE_DIM; d++)
                wanted[d] += weight * (double)site_float(s->v[1][at + d]);
        }
        for (uint32_t d = 0; d < SITE_DIM; d++)
            assert_true(fabs(wanted[d] / sum - (double)output[q * SITE_DIM + d]) < 1e-5);
    }
    kvt_sparse_done(sequence, step);
    kvt_sparse_close(sequence);
}

TEST(an_empty_selection_brings_nothing)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = given_options();
    options.budget_bytes = 0;
    kvt_sparse *sequence = site_sequence(s, &options);
    selection list = {.block_tokens = 1, .lists = SITE_HEADS};
    kvt_sparse_given given = given_of(&list);
    given.numbers = NULL;
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    assert_ok(kvt_sparse_select_given(sequence, 0, &given, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    for (uint32_t h = 0; h < SITE_HEADS; h++)
        assert_true(pages->heads[h].page_count == 0 && pages->heads[h].pages == NULL);
    kvt_sparse_done(sequence, step);
    /* Resident rows need no budget; a page of drives does. */
    list = (selection){
        .block_tokens = 1, .lists = 2, .counts = {1, 1}, .numbers = {2999, SITE_TOKENS - 60}};
    assert_int_equal(step_given(s, sequence, 0, &list, SITE_TOKENS, NULL), 0);
    list.numbers[1] = 0;
    given = given_of(&list);
    assert_int_equal(kvt_sparse_select_given(sequence, 0, &given, &step), KVT_E_SPACE);
    list.numbers[1] = 2999;
    assert_int_equal(step_given(s, sequence, 0, &list, SITE_TOKENS, NULL), 0);
    kvt_sparse_close(sequence);
}

/* Random selections, windows and appended tokens beside the plain copy that the site has. */
TEST(selections_are_exact_whatever_is_resident)
{
    static const uint64_t windows[] = {0, 64 << 10, 700 << 10, 4 * MIB};
    static const uint32_t page_tokens[] = {0, 8, 64, 128};
    static selection list;
    for (uint32_t w = 0; w < 4; w++) {
        sequence_site *s = site_start(8 * MIB, 8 * MIB);
        uint64_t d = 40 + w;
        kvt_sparse_options options = given_options();
        options.page_tokens = page_tokens[w];
        options.window_bytes[KVT_TIER_DRAM] = windows[w];
        options.layout.tokens = 1900;
        options.tokens_max = SITE_TOKENS;
        options.local_tokens = w % 2 ? 64 : 0;
        options.join_tokens = w % 2 ? 32 : 0;
        static selection seen[16];
        for (uint32_t i = 0; i < 16; i++)
            draw_selection(&d, 1900, &seen[i]);
        kvt_sparse *sequence = ordered_sequence(s, &options, seen, w * 5);
        uint32_t tokens[SITE_LAYERS] = {1900, 1900};
        for (uint32_t i = 0; i < 400; i++) {
            const uint32_t layer = below(&d, SITE_LAYERS);
            uint32_t more = below(&d, 4) == 0 ? below(&d, 40) : 0;
            if (more > SITE_TOKENS - tokens[layer]) more = SITE_TOKENS - tokens[layer];
            const size_t at = (size_t)tokens[layer] * SITE_ROW;
            assert_ok(kvt_sparse_append(sequence, layer, s->k[layer] + at, s->v[layer] + at, more));
            tokens[layer] += more;
            draw_selection(&d, tokens[layer], &list);
            if (i % 5 == 0) { /* a guess, which is wrong */
                const kvt_sparse_given guess = given_of(&list);
                assert_ok(kvt_sparse_hint_given(sequence, layer, &guess));
                assert_int_equal(kvt_sparse_hint_given(sequence, layer, &guess), KVT_BUSY);
                draw_selection(&d, tokens[layer], &list);
            }
            assert_int_equal(step_given(s, sequence, layer, &list, tokens[layer], NULL), 0);
        }
        const kvt_sparse_stats stats = site_stats(sequence);
        assert_true(stats.appended_pages > 20 && stats.lost_pages == 0);
        assert_int_equal(stats.hit_bytes > 0, windows[w] > 0);
        assert_true(stats.tier_window_bytes[KVT_TIER_DRAM] <= windows[w]);
        kvt_sparse_close(sequence);
        site_check_unheld(s);
        site_stop(s);
    }
}

/* ---- rows of other kinds ---- */

/* Bytes of any kind: each row says where it is from. */
static void fill_row(uint8_t *row, uint32_t bytes, uint32_t layer, uint32_t token)
{
    for (uint32_t i = 0; i < bytes; i++)
        row[i] = (uint8_t)(token * 31 + layer * 7 + i * 13 + token / 256);
}

enum { LATENTS = 900, LATER = 300 };

/* One step over latents of so many bytes. */
static void step_latents(kvt_sparse *sequence, uint64_t *d, uint32_t tokens, const uint8_t *rows,
                         uint32_t bytes)
{
    static selection list;
    bool asked[LATENTS + LATER];
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    uint32_t found = 0;
    do
        draw_selection(d, tokens, &list);
    while (list.lists > 1);
    mark_asked(&list, 0, tokens, asked);
    const kvt_sparse_given given = given_of(&list);
    assert_ok(kvt_sparse_select_given(sequence, 0, &given, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    for (uint32_t n = 0; n < pages->heads[0].page_count; n++) {
        const kvt_sparse_page *page = &pages->heads[0].pages[n];
        assert_ptr_equal(page->k, page->v);
        for (uint32_t t = 0; t < page->tokens; t++, found++) {
            assert_true(asked[page->positions[t]]);
            assert_memory_equal((const uint8_t *)page->k + (size_t)t * bytes,
                                rows + (size_t)page->positions[t] * bytes, bytes);
        }
    }
    for (uint32_t t = 0; t < tokens; t++)
        found -= asked[t];
    assert_int_equal(found, 0);
    kvt_sparse_done(sequence, step);
}

/* Latents: one side, of a width that no index could have, and bytes that are no numbers. */
TEST(latents_of_one_side_come_back)
{
    static const struct {
        uint8_t dtype;
        uint16_t dim;
    } kinds[] = {{KVT_DTYPE_BF16, 576}, {KVT_DTYPE_FP8, LONG_ROW}, {KVT_DTYPE_FP32, 8}};
    static uint8_t rows[(LATENTS + LATER) * 2 * 576];
    for (uint32_t kind = 0; kind < 3; kind++) {
        sequence_site *s = site_start(8 * MIB, 8 * MIB);
        kvt_sparse_options options = given_options();
        const uint32_t bytes = kinds[kind].dim * kvt_dtype_bytes(kinds[kind].dtype);
        const kvt_key key = support_key(1);
        uint64_t d = kind;
        options.layout = (kvt_layout){.layers = 1,
                                      .kv_heads = 1,
                                      .head_dim = kinds[kind].dim,
                                      .dtype = kinds[kind].dtype,
                                      .sides = KVT_SIDES_ONE,
                                      .tokens = LATENTS};
        options.query_heads = 4;
        options.tokens_max = LATENTS + LATER;
        options.local_tokens = options.join_tokens = 16;
        for (uint32_t t = 0; t < LATENTS + LATER; t++)
            fill_row(rows + (size_t)t * bytes, bytes, 0, t);
        kvt_sparse *sequence = NULL;
        assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
        if (kinds[kind].dtype != KVT_DTYPE_FP8) { /* numbers have to be finite */
            memset(rows, 0x7f, bytes);
            assert_int_equal(kvt_sparse_give(sequence, 0, rows, NULL), KVT_E_UNSUPPORTED);
            kvt_sparse_close(sequence);
            assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
            for (size_t i = kind == 0 ? 1 : 3; i < sizeof rows; i += kind == 0 ? 2 : 4)
                rows[i] &= 0x3f;
        }
        assert_ok(kvt_sparse_give(sequence, 0, rows, NULL));
        for (uint32_t i = 0, tokens = LATENTS; i < 120; i++) {
            if (i == 60) { /* again, from what is kept */
                assert_ok(kvt_sparse_keep(sequence, &key));
                kvt_sparse_close(sequence);
                sequence = site_open_kept(s, &options, &key);
            }
            if (i % 8 == 7) {
                assert_ok(kvt_sparse_append(sequence, 0, rows + (size_t)tokens * bytes, NULL, 20));
                tokens += 20;
            }
            step_latents(sequence, &d, tokens, rows, bytes);
        }
        kvt_sparse_close(sequence);
        site_stop(s);
    }
}

/* Latents that are entries of the store; of another number of sides they are a mismatch. */
TEST(entries_of_one_side_are_opened)
{
    enum { ENTRIES = 2, EACH = 400, LAYERS = 2, DIM = 32 };
    uint16_t(*data)[LAYERS][EACH * DIM] = test_zeros(ENTRIES * sizeof *data);
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    const kvt_key keys[ENTRIES] = {support_key(1), support_key(2)};
    kvt_sparse_options options = given_options();
    options.layout = (kvt_layout){.layers = LAYERS,
                                  .kv_heads = 1,
                                  .head_dim = DIM,
                                  .dtype = KVT_DTYPE_BF16,
                                  .sides = KVT_SIDES_ONE,
                                  .tokens = ENTRIES * EACH};
    options.query_heads = 1;
    for (uint32_t i = 0; i < ENTRIES * LAYERS; i++)
        for (uint32_t n = 0; n < EACH * DIM; n++)
            data[i / LAYERS][i % LAYERS][n] = (uint16_t)((i * 777 + n) % 0x3f00);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_entry entry = {.struct_size = sizeof entry,
                           .key = keys[i],
                           .parent = i > 0 ? &keys[i - 1] : NULL,
                           .layout = options.layout,
                           .first_position = i * EACH,
                           .recompute_seconds = 1};
        entry.layout.tokens = EACH;
        assert_ok(kvt_store_put(s->store, &entry, KVT_PACKED(data[i], sizeof data[i])));
    }
    kvt_sparse *sequence = NULL;
    assert_ok(kvt_sparse_open(s->store, &options, keys, ENTRIES, &sequence, NULL, 0));
    const selection list = {.block_tokens = 64, .lists = 1, .counts = {3}, .numbers = {1, 6, 11}};
    const kvt_sparse_given given = given_of(&list);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        kvt_sparse_step *step;
        const kvt_sparse_pages *pages;
        uint32_t found = 0;
        assert_ok(kvt_sparse_select_given(sequence, layer, &given, &step));
        assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
        for (uint32_t n = 0; n < pages->heads[0].page_count; n++) {
            const kvt_sparse_page *page = &pages->heads[0].pages[n];
            for (uint32_t t = 0; t < page->tokens; t++, found++) {
                const uint32_t p = page->positions[t];
                assert_memory_equal((const uint16_t *)page->k + (size_t)t * DIM,
                                    data[p / EACH][layer] + p % EACH * DIM, DIM * 2);
            }
        }
        assert_int_equal(found, 3 * 64);
        kvt_sparse_done(sequence, step);
    }
    kvt_sparse_close(sequence);
    options.layout.sides = 0;
    assert_int_equal(kvt_sparse_open(s->store, &options, keys, ENTRIES, &sequence, NULL, 0),
                     KVT_E_MISMATCH);
}

/* Attention over a latent: the keys are the values, too. */
TEST(a_latent_is_attended_to)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    enum { DIM = 576, TOKENS = 300, ASKED = 3 };
    static float rows[TOKENS * DIM], queries[DIM], output[DIM];
    kvt_sparse_options options = given_options();
    options.layout = (kvt_layout){.layers = 1,
                                  .kv_heads = 1,
                                  .head_dim = DIM,
                                  .dtype = KVT_DTYPE_FP32,
                                  .sides = KVT_SIDES_ONE,
                                  .tokens = TOKENS};
    options.query_heads = 1;
    for (uint32_t i = 0; i < TOKENS * DIM; i++)
        rows[i] = site_normal(s);
    for (uint32_t i = 0; i < DIM; i++)
        queries[i] = site_normal(s);
    kvt_sparse *sequence = NULL;
    assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
    assert_ok(kvt_sparse_give(sequence, 0, rows, NULL));
    const selection list = {
        .block_tokens = 1, .lists = 1, .counts = {ASKED}, .numbers = {5, 299, 120}};
    const kvt_sparse_given given = given_of(&list);
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    assert_ok(kvt_sparse_select_given(sequence, 0, &given, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
    double sum = 0, wanted[DIM] = {0};
    for (uint32_t i = 0; i < ASKED; i++) {
        const float *row = rows + (size_t)list.numbers[i] * DIM;
        double score = 0;
        for (uint32_t d = 0; d < DIM; d++)
            score += (double)queries[d] * (double)row[d];
        sum += exp(score / sqrt(DIM));
        for (uint32_t d = 0; d < DIM; d++)
            wanted[d] += exp(score / sqrt(DIM)) * (double)row[d];
    }
    for (uint32_t d = 0; d < DIM; d++)
        assert_true(fabs(wanted[d] / sum - (double)output[d]) < 1e-4);
    kvt_sparse_done(sequence, step);
    kvt_sparse_close(sequence);
}

/* ---- index keys, kept sequences ---- */

TEST(index_keys_stay_beside_and_are_kept)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    enum { KEY = 132 };
    static uint8_t keys[SITE_LAYERS][SITE_TOKENS * KEY];
    kvt_sparse_options options = given_options();
    const kvt_key key = support_key(1);
    const void *found;
    uint32_t tokens;
    options.key_bytes = KEY;
    options.layout.tokens = SITE_TOKENS - 100;
    options.tokens_max = SITE_TOKENS;
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        for (uint32_t t = 0; t < SITE_TOKENS; t++)
            fill_row(keys[layer] + (size_t)t * KEY, KEY, layer, t);
    kvt_sparse *sequence = site_sequence(s, &options);
    const uint64_t without = site_stats(sequence).index_bytes;
    assert_ok(kvt_sparse_keys(sequence, 1, &found, &tokens));
    assert_int_equal(tokens, 0);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        assert_ok(kvt_sparse_give_keys(sequence, layer, keys[layer], SITE_TOKENS - 100));
    assert_ok(kvt_sparse_give_keys(sequence, 1, NULL, 0));
    assert_ok(kvt_sparse_give_keys(sequence, 1, keys[1] + (size_t)(SITE_TOKENS - 100) * KEY, 100));
    assert_int_equal(kvt_sparse_give_keys(sequence, 1, keys[1], 1), KVT_E_STATE);
    assert_int_equal(kvt_sparse_give_keys(sequence, 1, NULL, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_give_keys(sequence, SITE_LAYERS, keys[1], 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_keys(sequence, 0, NULL, &tokens), KVT_E_ARGUMENT);
    assert_int_equal(site_stats(sequence).index_bytes - without, (2 * SITE_TOKENS - 100) * KEY);
    assert_ok(kvt_sparse_keep(sequence, &key));
    kvt_sparse_close(sequence);
    sequence = site_open_kept(s, &options, &key);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        const uint32_t wanted = layer == 1 ? SITE_TOKENS : SITE_TOKENS - 100;
        assert_ok(kvt_sparse_keys(sequence, layer, &found, &tokens));
        assert_int_equal(tokens, wanted);
        assert_memory_equal(found, keys[layer], (size_t)wanted * KEY);
    }
    kvt_sparse_close(sequence);
    /* Options that differ, and a part that has gone. */
    kvt_sparse_options other = options;
    char message[256];
    other.key_bytes = KEY + 1;
    assert_int_equal(kvt_sparse_open_kept(s->store, &other, &key, &sequence, message, 256),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(message, "key_bytes"));
    other = site_options();
    other.layout.tokens = options.layout.tokens;
    other.tokens_max = SITE_TOKENS;
    assert_int_equal(kvt_sparse_open_kept(s->store, &other, &key, &sequence, message, 256),
                     KVT_E_MISMATCH);
    const kvt_key part = site_part_key(s->store, &key, SITE_LAYERS * SITE_HEADS + 1);
    assert_ok(kvt_store_delete(s->store, &part));
    assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &sequence, message, 256),
                     KVT_MISS);
    assert_ok(kvt_sparse_delete(s->store, &key));
    assert_int_equal(support_stats(s->store).policy.entries, 0);
}

/* Two sequences go on from one that was kept, each with tokens of its own. */
TEST(kept_sequences_part)
{
    static selection list;
    sequence_site *s = site_start(8 * MIB, 12 * MIB);
    kvt_sparse_options options = given_options();
    const kvt_key key = support_key(1);
    uint64_t d = 9;
    options.layout.tokens = 2000;
    options.tokens_max = SITE_TOKENS;
    options.local_tokens = options.join_tokens = 16;
    options.window_bytes[KVT_TIER_DRAM] = 128 << 10;
    static selection seen[16];
    for (uint32_t i = 0; i < 16; i++)
        draw_selection(&d, 2000, &seen[i]);
    kvt_sparse *first = ordered_sequence(s, &options, seen, 16);
    assert_ok(kvt_sparse_keep(first, &key));
    kvt_sparse_close(first);
    kvt_sparse *both[2] = {site_open_kept(s, &options, &key), site_open_kept(s, &options, &key)};
    uint32_t tokens[2] = {2000, 2000};
    for (uint32_t i = 0; i < 120; i++) {
        const uint32_t which = below(&d, 2);
        const size_t at = (size_t)tokens[which] * SITE_ROW;
        const uint32_t more = which == 0 ? 9 : 2;
        if (tokens[which] + more <= SITE_TOKENS) {
            assert_ok(kvt_sparse_append(both[which], 0, s->k[0] + at, s->v[0] + at, more));
            tokens[which] += more;
        }
        draw_selection(&d, tokens[which], &list);
        assert_int_equal(step_given(s, both[which], 0, &list, tokens[which], NULL), 0);
    }
    assert_true(site_stats(both[0]).in_place_pages > 0);
    kvt_sparse_close(both[0]);
    draw_selection(&d, tokens[1], &list);
    assert_int_equal(step_given(s, both[1], 0, &list, tokens[1], NULL), 0);
    kvt_sparse_close(both[1]);
    site_check_unheld(s);
}

/* ---- the order of pages ---- */

/* Tokens of many selections lie together: of some that are far apart a step reads few pages. */
TEST(tokens_that_are_selected_lie_together)
{
    static selection lists[16];
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = given_options();
    options.window_bytes[KVT_TIER_DRAM] = 0;
    for (uint32_t i = 0; i < 16; i++) {
        lists[i] = (selection){.block_tokens = 1, .lists = 2, .counts = {32, 32}};
        for (uint32_t n = 0; n < 64; n++)
            lists[i].numbers[n] = n * 40 + (n < 32 ? 0 : 7);
    }
    uint64_t bytes[2], index[2];
    for (uint32_t ordered = 0; ordered < 2; ordered++) {
        kvt_sparse *sequence = ordered_sequence(s, &options, lists, ordered * 16);
        assert_int_equal(step_given(s, sequence, 1, &lists[0], SITE_TOKENS, &bytes[ordered]), 0);
        index[ordered] = site_stats(sequence).index_bytes;
        kvt_sparse_close(sequence);
    }
    assert_int_equal(bytes[0], 64 * 4096);
    assert_int_equal(bytes[1], 2 * 2 * 4096); /* of 16 tokens */
    assert_int_equal(index[1] - index[0],
                     8 * SITE_LAYERS * SITE_HEADS * ((SITE_TOKENS - 64) / 16 * 16));
}

TEST(wrong_orders_are_refused)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = given_options();
    kvt_sparse *sequence = NULL;
    selection list = {.block_tokens = 1, .lists = 1, .counts = {1}, .numbers = {3000}};
    kvt_sparse_given given = given_of(&list);
    assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
    const void *k = s->k[0], *v = s->v[0];
    assert_int_equal(kvt_sparse_give_selected(NULL, 0, k, v, &given, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_give_selected(sequence, 1, k, v, &given, 1), KVT_E_STATE);
    assert_int_equal(kvt_sparse_give_selected(sequence, 0, k, v, &given, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_give_selected(sequence, 0, k, v, NULL, 1), KVT_E_ARGUMENT);
    list.numbers[0] = 7;
    assert_int_equal(kvt_sparse_give_selected(sequence, 0, NULL, v, &given, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_give_selected(sequence, 0, k, NULL, &given, 1), KVT_E_ARGUMENT);
    assert_ok(kvt_sparse_give_selected(sequence, 0, k, v, &given, 1));
    assert_ok(kvt_sparse_give(sequence, 1, s->k[1], s->v[1]));
    assert_int_equal(step_given(s, sequence, 0, &list, SITE_TOKENS, NULL), 0);
    /* An order of a kept sequence in which a position comes twice, or is none. */
    static uint32_t forged[SITE_TOKENS];
    sparse_unit unit = {.token_at = NULL};
    for (uint32_t i = 0; i < SITE_TOKENS; i++)
        forged[i] = i;
    forged[9] = 8;
    assert_int_equal(sparse_given_arrange(sequence, &unit, forged), KVT_E_CORRUPT);
    forged[9] = sequence->zone_tokens;
    assert_int_equal(sparse_given_arrange(sequence, &unit, forged), KVT_E_CORRUPT);
    assert_null(unit.place_of);
    kvt_sparse_close(sequence);
    options = site_options();
    assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
    assert_int_equal(kvt_sparse_give_selected(sequence, 0, k, v, &given, 1), KVT_E_STATE);
    kvt_sparse_close(sequence);
}

/* ---- windows, copies ---- */

TEST(observed_selections_warm_the_window_and_copy_hot_pages)
{
    static selection lists[16];
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    const kvt_sparse_options options = given_options();
    kvt_sparse *sequence = site_sequence(s, &options);
    kvt_sparse_given given[16];
    for (uint32_t i = 0; i < 16; i++) {
        lists[i] = (selection){.block_tokens = 64, .lists = 1, .counts = {4}};
        for (uint32_t n = 0; n < 4; n++)
            lists[i].numbers[n] = n < 3 ? n * 3 : i + 9;
        given[i] = given_of(&lists[i]);
    }
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        assert_ok(kvt_sparse_observe_given(sequence, layer, given, 16));
    const kvt_sparse_stats stats = site_stats(sequence);
    assert_true(stats.copied_pages > stats.pages / 5 && stats.missed_bytes > 0);
    uint64_t bytes;
    assert_int_equal(step_given(s, sequence, 0, &lists[0], SITE_TOKENS, &bytes), 0);
    assert_true(bytes <= 2 * 64 * SITE_DIM * 4); /* of four blocks, one was not hot */
    assert_true(site_stats(sequence).hit_bytes >= stats.hit_bytes + 2 * 3 * 64 * SITE_DIM * 4);
    given[7].block_tokens = 0;
    assert_int_equal(kvt_sparse_observe_given(sequence, 0, given, 16), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_observe_given(sequence, 0, given, 0), KVT_E_ARGUMENT);
    kvt_sparse_close(sequence);
}

/* A right guess leaves nothing to read, and one without a step ends with the sequence. */
TEST(a_hint_reads_ahead)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = given_options();
    options.window_bytes[KVT_TIER_DRAM] = 0;
    kvt_sparse *sequence = site_sequence(s, &options);
    const selection list = {
        .block_tokens = 64, .lists = 2, .counts = {2, 1}, .numbers = {3, 30, 11}};
    const kvt_sparse_given given = given_of(&list);
    kvt_sparse_step *step;
    const uint64_t reads = 3 * 64 / 16; /* pages */
    assert_ok(kvt_sparse_hint_given(sequence, 0, &given));
    assert_int_equal(site_stats(sequence).reads, reads);
    assert_ok(kvt_sparse_append(sequence, 0, s->k[0], s->v[0], 1)); /* a hint is no step */
    assert_ok(kvt_sparse_select_given(sequence, 0, &given, &step));
    assert_int_equal(site_stats(sequence).reads, reads);
    kvt_sparse_done(sequence, step);
    assert_ok(kvt_sparse_hint_given(sequence, 0, &given));
    assert_int_equal(step_given(s, sequence, 0, &list, SITE_TOKENS, NULL), 0);
    assert_int_equal(site_stats(sequence).reads, 2 * reads);
    assert_ok(kvt_sparse_hint_given(sequence, 1, &given));
    kvt_sparse_close(sequence);
}

/* A page that begins to be at rest while a hint is under way is none of the hint's. */
TEST(tokens_come_while_a_hint_is_under_way)
{
    static selection list;
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    uint64_t d = 3;
    kvt_sparse_options options = given_options();
    options.layout.tokens = 1900;
    options.tokens_max = SITE_TOKENS;
    options.local_tokens = options.join_tokens = 16;
    kvt_sparse *sequence = site_sequence(s, &options);
    for (uint32_t tokens = 1900; tokens < 2500; tokens++) {
        const size_t at = (size_t)tokens * SITE_ROW;
        draw_selection(&d, tokens, &list);
        const kvt_sparse_given guess = given_of(&list);
        assert_ok(kvt_sparse_hint_given(sequence, 0, &guess));
        assert_ok(kvt_sparse_append(sequence, 0, s->k[0] + at, s->v[0] + at, 1));
        draw_selection(&d, tokens + 1, &list);
        assert_int_equal(step_given(s, sequence, 0, &list, tokens + 1, NULL), 0);
    }
    assert_true(site_stats(sequence).appended_pages > 20);
    kvt_sparse_close(sequence);
}

/* Without a copy, what a drive does not give is missing and named; all else is there. */
TEST(what_is_lost_is_named)
{
    for (int copies = 0; copies < 2; copies++) {
        sequence_site *s = site_start(8 * MIB, 8 * MIB);
        kvt_sparse_options options = given_options();
        options.window_bytes[KVT_TIER_DRAM] = 0;
        options.replica_share = copies ? 1.0f : 0;
        kvt_sparse *sequence = site_sequence(s, &options);
        const selection all = {.block_tokens = 5000, .lists = 1, .counts = {1}};
        const kvt_sparse_given given = given_of(&all);
        assert_ok(kvt_sparse_observe_given(sequence, 0, &given, 1));
        const tiers_fault_rule flip = {
            .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 999};
        assert_ok(tiers_fault_add(s->drives[1].device, &flip));
        const uint32_t missing = step_given(s, sequence, 0, &all, SITE_TOKENS, NULL);
        assert_int_equal(missing > 0, !copies);
        assert_true(missing < SITE_HEADS * SITE_TOKENS / 2);
        assert_true(site_stats(sequence).checksum_failures > 0);
        tiers_fault_clear(s->drives[1].device);
        assert_int_equal(step_given(s, sequence, 0, &all, SITE_TOKENS, NULL), 0);
        kvt_sparse_close(sequence);
        site_stop(s);
    }
}

/* Pages that have not come by a deadline are missing in that step alone. */
TEST(a_deadline_leaves_rows_out)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = given_options();
    options.replica_share = 0;
    kvt_sparse *sequence = site_sequence(s, &options);
    const selection all = {.block_tokens = 5000, .lists = 1, .counts = {1}};
    const kvt_sparse_given given = given_of(&all);
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    assert_ok(tiers_fault_add(s->drives[2].device, &hang));
    assert_ok(kvt_sparse_select_given(sequence, 0, &given, &step));
    const uint64_t deadline_ns = base_clock_ns() + 50000000;
    assert_int_equal(kvt_sparse_wait(sequence, step, deadline_ns, &pages), KVT_E_TIMEOUT);
    assert_true(check_head(s, pages, 0, &all, SITE_TOKENS) > 0 && pages->lost_count > 0);
    kvt_sparse_done(sequence, step);
    tiers_fault_clear(s->drives[2].device);
    assert_int_equal(step_given(s, sequence, 0, &all, SITE_TOKENS, NULL), 0);
    kvt_sparse_close(sequence);
}

/* ---- bad input ---- */

TEST(wrong_selections_are_refused_and_change_nothing)
{
    static const uint32_t counts[] = {1, 1}, far[] = {0, SITE_TOKENS}, most[] = {0, UINT32_MAX};
    static const uint32_t block[] = {46, 47}; /* of 64 tokens: the last one, and none */
    static const struct {
        kvt_sparse_given given;
        kvt_status wanted;
    } rows[] = {
        {{.struct_size = 4, .block_tokens = 1, .lists = 2, .counts = counts, .numbers = far},
         KVT_E_ARGUMENT},
        {{.block_tokens = 0, .lists = 2, .counts = counts, .numbers = counts}, KVT_E_ARGUMENT},
        {{.block_tokens = 1, .lists = 0, .counts = counts, .numbers = counts}, KVT_E_ARGUMENT},
        {{.block_tokens = 1, .lists = 3, .counts = counts, .numbers = counts}, KVT_E_ARGUMENT},
        {{.block_tokens = 1, .lists = 2, .counts = NULL, .numbers = counts}, KVT_E_ARGUMENT},
        {{.block_tokens = 1, .lists = 2, .counts = counts, .numbers = NULL}, KVT_E_ARGUMENT},
        {{.block_tokens = 1, .lists = 2, .counts = counts, .numbers = far}, KVT_E_ARGUMENT},
        {{.block_tokens = 1, .lists = 2, .counts = counts, .numbers = most}, KVT_E_ARGUMENT},
        {{.block_tokens = 64, .lists = 2, .counts = counts, .numbers = block}, KVT_E_ARGUMENT},
        {{.block_tokens = UINT32_MAX, .lists = 2, .counts = counts, .numbers = counts},
         KVT_E_ARGUMENT},
        {{.block_tokens = 1, .lists = 1, .counts = counts, .numbers = far}, KVT_OK},
        {{.block_tokens = 64, .lists = 1, .counts = counts, .numbers = block}, KVT_OK},
        {{.block_tokens = UINT32_MAX, .lists = 1, .counts = counts, .numbers = far}, KVT_E_SPACE},
    };
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = given_options();
    options.budget_bytes = 128 << 10;
    kvt_sparse *sequence = site_sequence(s, &options);
    kvt_sparse_step *step, *other;
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvt_sparse_given own = rows[i].given;
        if (own.struct_size == 0) own.struct_size = sizeof own;
        const kvt_status status = kvt_sparse_select_given(sequence, 0, &own, &step);
        if (status != rows[i].wanted) fail_msg("row %u: %d", i, status);
        if (status == KVT_OK) kvt_sparse_done(sequence, step);
    }
    const selection list = {.block_tokens = 1, .lists = 1, .counts = {1}, .numbers = {3}};
    const kvt_sparse_given given = given_of(&list);
    float queries[SITE_QUERY];
    site_query(s, 0, 1, queries);
    assert_int_equal(kvt_sparse_select_given(NULL, 0, &given, &step), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_select_given(sequence, 0, NULL, &step), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_select_given(sequence, 0, &given, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_select_given(sequence, SITE_LAYERS, &given, &step), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_select(sequence, 0, queries, &step), KVT_E_STATE);
    assert_int_equal(kvt_sparse_observe(sequence, 0, queries, 1), KVT_E_STATE);
    assert_int_equal(kvt_sparse_give_keys(sequence, 0, queries, 1), KVT_E_STATE);
    assert_ok(kvt_sparse_select_given(sequence, 0, &given, &step));
    assert_int_equal(kvt_sparse_select_given(sequence, 0, &given, &other), KVT_E_STATE);
    assert_int_equal(kvt_sparse_observe_given(sequence, 0, &given, 1), KVT_E_STATE);
    assert_int_equal(kvt_sparse_append(sequence, 0, s->k[0], s->v[0], 1), KVT_E_STATE);
    kvt_sparse_done(sequence, step); /* that nobody has waited for */
    assert_int_equal(step_given(s, sequence, 0, &list, SITE_TOKENS, NULL), 0);
    assert_int_equal(site_stats(sequence).lost_pages, 0);
    kvt_sparse_close(sequence);
    options = site_options();
    sequence = site_sequence(s, &options);
    assert_int_equal(kvt_sparse_select_given(sequence, 0, &given, &step), KVT_E_STATE);
    assert_int_equal(kvt_sparse_observe_given(sequence, 0, &given, 1), KVT_E_STATE);
    kvt_sparse_close(sequence);
}
