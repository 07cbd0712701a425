/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_decode.c - the bench of sparse decode: exact where everything is read, ordered where
 * it must be, and dumps of foreign shapes.
 */
#include "cases.h"

#include "base/half.h"
#include "base/number/number.h"
#include "lab/decode/decode.h"
#include "lab/decode/decode_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEST(everything_read_is_exact)
{
    decode_source source;
    decode_unit unit;
    const decode_options options = {.seed = 3};
    decode_source_synthetic(1, 1500, 5, 3, &source);
    assert_ok(decode_unit_open(&source, &options, 0, 2, &unit));
    uint8_t *variant = test_alloc(unit.zone);
    double error[PAGES_VARIANTS] = {0.0}, recall = 0.0;
    for (uint8_t v = PAGES_ABSENT; v < PAGES_VARIANTS; v++) {
        memset(variant, v, unit.zone);
        recall = 0.0;
        for (uint32_t row = 0; row < unit.rows; row++)
            decode_unit_judge(&unit, row, variant, NULL, NULL, &error[v], &recall);
        assert_true(fabs(recall - (v == PAGES_ABSENT ? 0.0 : unit.rows)) < 1e-3);
    }
    assert_true(error[PAGES_RAW] < 1e-9 * unit.exact_energy);
    assert_true(error[PAGES_RAW] < error[PAGES_BITS_8] &&
                error[PAGES_BITS_8] < error[PAGES_BITS_4]);
    assert_true(error[PAGES_BITS_4] < error[PAGES_BITS_2]);
    assert_true(error[PAGES_BITS_2] < error[PAGES_ABSENT]);
    decode_unit_close(&unit);
}

/* ---- dumps ---- */

typedef struct dump_site {
    char path[64];
    uint16_t *k[2], *v[2];
    float *q[2];
    quality_dump_content content;
} dump_site;

static dump_site *dump_open(uint32_t tokens, uint16_t heads, uint16_t dim, uint32_t query_heads,
                            uint32_t rows)
{
    dump_site *s = test_zeros(sizeof *s);
    uint64_t dice = 5;
    for (int l = 0; l < 2; l++) {
        s->k[l] = test_alloc((size_t)tokens * heads * dim * 2);
        s->v[l] = test_alloc((size_t)tokens * heads * dim * 2);
        s->q[l] = test_alloc((size_t)rows * query_heads * dim * 4);
        for (uint32_t i = 0; i < tokens * heads * dim; i++) {
            dice = number_mix(dice + i);
            s->k[l][i] = half_from_float((float)(dice % 1000) / 250.0f - 2.0f);
            s->v[l][i] = half_from_float((float)(dice >> 20 & 1023) / 512.0f - 1.0f);
        }
        for (uint32_t i = 0; i < rows * query_heads * dim; i++) {
            dice = number_mix(dice + i);
            s->q[l][i] = (float)(dice % 1000) / 250.0f - 2.0f;
        }
    }
    (void)snprintf(s->path, sizeof s->path, "decode-%ld.safetensors", (long)getpid());
    s->content = (quality_dump_content){.layout = {.layers = 2,
                                                   .kv_heads = heads,
                                                   .head_dim = dim,
                                                   .dtype = KVT_DTYPE_FP16,
                                                   .tokens = tokens},
                                        .k = (const void *const *)(const void *)s->k,
                                        .v = (const void *const *)(const void *)s->v,
                                        .queries = (const float *const *)(const void *)s->q,
                                        .query_heads = query_heads,
                                        .query_rows = rows};
    char message[200];
    assert_ok(quality_dump_write(s->path, &s->content, message, sizeof message));
    return s;
}

static void dump_close(dump_site *s)
{
    (void)unlink(s->path);
}

static kvt_status run(const char *path, FILE *out, char message[200])
{
    const decode_options own = {.dumps = &path, .dump_count = 1, .rows = 6, .seed = 1};
    const bench_options options = {.own = &own};
    return bench_case_run(&bench_decode_case, &options, out, true, message, 200);
}

static double real_of(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    assert_true(json_is_real(value));
    return json_real_value(value);
}

/* The oracle is the best of those that read as much; Belady's is the best rule. */
static void check_document(const json_t *document)
{
    size_t i;
    json_t *row;
    double oracle = 0.0;
    assert_string_equal(json_string_value(json_object_get(document, "schema")),
                        "kvterrace-bench-decode-1");
    json_array_foreach(json_object_get(document, "rows"), i, row)
    {
        const double recall = real_of(row, "recall");
        assert_true(recall >= 0.0 && recall <= 1.0001 && real_of(row, "error") >= 0.0);
        const bool raw = strcmp(json_string_value(json_object_get(row, "precision")), "16") == 0;
        if (fabs(real_of(row, "budget") - 0.0625) > 1e-9 || !raw) continue;
        if (strcmp(json_string_value(json_object_get(row, "evict")), "none") != 0) continue;
        if (strcmp(json_string_value(json_object_get(row, "layout")), "token") == 0)
            oracle = recall;
        else if (strncmp(json_string_value(json_object_get(row, "layout")), "run", 3) != 0)
            assert_true(recall <= oracle + 0.01);
    }
    assert_true(i > 60 && oracle > 0.0);
    json_array_foreach(json_object_get(document, "windows"), i, row)
    {
        static const char *const rules[] = {"decayed", "lookahead", "lru", "fifo", "lfu"};
        for (size_t r = 0; r < 5; r++)
            assert_true(real_of(row, rules[r]) <= real_of(row, "belady") + 0.02);
    }
    assert_int_equal(i, 4);
    json_array_foreach(json_object_get(document, "halves"), i, row)
    {
        const json_t *best = json_array_get(json_object_get(document, "halves"), 9 + i % 3);
        if (i >= 3) /* a page is more than the share here */
            assert_true(real_of(row, "recall") <= real_of(best, "recall") + 0.01);
        assert_true(real_of(row, "error") >= 0.0);
    }
    assert_int_equal(i, 12);
}

TEST(a_dump_is_judged)
{
    dump_site *s = dump_open(700, 2, 40, 6, 9);
    char message[200], *texts[2] = {NULL, NULL};
    size_t size[2];
    for (int i = 0; i < 2; i++) {
        FILE *out = open_memstream(&texts[i], &size[i]);
        assert_ok(run(s->path, out, message));
        (void)fclose(out);
    }
    json_error_t error;
    json_t *document = json_loads(texts[0], 0, &error);
    assert_non_null(document);
    check_document(document);
    json_decref(document);
    /* The same figures again, but for seconds. */
    char *rows[2] = {strstr(texts[0], "\"rows\""), strstr(texts[1], "\"rows\"")};
    assert_non_null(rows[0]);
    assert_string_equal(rows[0], rows[1]);
    free(texts[0]);
    free(texts[1]);
    dump_close(s);
}

TEST(foreign_dumps_are_refused)
{
    char message[200];
    const struct {
        uint32_t tokens, query_heads;
        uint16_t heads, dim;
        const char *why;
    } cases[] = {{100, 2, 1, 16, "fewer than"},
                 {300, 2, 1, 12, "head_dim"},
                 {300, 65, 1, 8, "more than 64"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dump_site *s =
            dump_open(cases[i].tokens, cases[i].heads, cases[i].dim, cases[i].query_heads, 3);
        assert_int_equal(run(s->path, stdout, message), KVT_E_ARGUMENT);
        assert_non_null(strstr(message, cases[i].why));
        dump_close(s);
    }
    dump_site *s = dump_open(300, 1, 16, 2, 3);
    for (long size = 0; size < 60000; size = size * 3 + 7) { /* cut short */
        assert_int_equal(truncate(s->path, 0), 0);
        assert_ok(quality_dump_write(s->path, &s->content, message, sizeof message));
        if (truncate(s->path, size) != 0) continue;
        const kvt_status status = run(s->path, stdout, message);
        assert_true(size > 30000 || status == KVT_E_CORRUPT || status == KVT_E_PARSE);
    }
    dump_close(s);
    assert_true(run("no-such-file", stdout, message) < 0);
}

/* Two groups of tokens that are active together, and one that is active with both. */
TEST(coactive_tokens_share_clusters)
{
    decode_profile profile;
    decode_items items = {.count = 0};
    uint32_t *medoids = NULL;
    assert_ok(decode_profile_open(80, &profile));
    for (uint32_t step = 0; step < 40; step++) {
        float attention[80] = {0.0f};
        for (uint32_t i = 0; i < 4; i++)
            attention[step % 2 == 0 ? i : 40 + i] = 2.0f;
        attention[20] = attention[21] = 1.0f; /* in every step */
        for (uint32_t i = 0; i < 3; i++)      /* nine are active; these fill up */
            attention[step % 2 == 0 ? 10 + i : 50 + i] = 0.5f;
        assert_ok(decode_profile_add(&profile, attention));
    }
    assert_int_equal(profile.steps, 40);
    assert_int_equal(__builtin_popcountll(profile.seen[20]), 40);
    assert_int_equal(__builtin_popcountll(profile.seen[0]), 20);
    assert_ok(decode_coactive_build(&profile, &items, &medoids));
    uint32_t times[80] = {0}, together = 0, mixed = 0;
    for (uint32_t i = 0; i < items.count; i++) {
        bool even = false, odd = false;
        assert_int_equal(items.tokens[i], items.first[i + 1] - items.first[i]);
        assert_int_equal(items.places[items.first[i]], medoids[i]);
        for (uint32_t j = items.first[i]; j < items.first[i + 1]; j++) {
            times[items.places[j]]++;
            even = even || items.places[j] < 4;
            odd = odd || (items.places[j] >= 40 && items.places[j] < 44);
        }
        together += even && items.tokens[i] >= 4;
        mixed += even && odd;
    }
    for (uint32_t t = 0; t < 80; t++)
        assert_true(times[t] >= 1); /* each is in some cluster */
    assert_true(together >= 1);
    assert_int_equal(mixed, 0);
    assert_true(times[20] >= 2); /* a replica in the clusters of both */
    free(medoids);
    decode_items_close(&items);
    decode_profile_close(&profile);
}

static const decode_method layer_methods[] = {
    {.index = DECODE_CLUSTER, .layout = DECODE_CLUSTERS, .rule = WINDOWS_LRU, .window = 2.0},
    {.index = DECODE_CLUSTER, .layout = DECODE_CLUSTERS, .estimate = true},
    {.index = DECODE_QUEST, .layout = DECODE_RUNS, .run = 16},
    {.index = DECODE_COACTIVE, .rule = WINDOWS_LRU, .window_bytes = 1 << 16},
};

/* What a method reads: nothing twice in a step, within its parts, whole blocks, all at 1. */
TEST(layers_are_read_by_methods)
{
    decode_layer layer;
    assert_ok(decode_layer_open(1500, 8, 6, 3, 4, &layer));
    for (size_t m = 0; m < sizeof layer_methods / sizeof layer_methods[0]; m++) {
        decode_trial trial;
        decode_figures few, all;
        decode_reads reads = {.room = 0};
        double budget;
        assert_ok(decode_trial_open(&layer, &layer_methods[m], &trial));
        assert_ok(decode_trial_run(&layer, &trial, 0.1, &reads, &few));
        assert_ok(decode_trial_run(&layer, &trial, 1.0, NULL, &all));
        assert_true(few.error > all.error && all.error < 1e-5 && few.bytes > 0.0);
        double bytes = 0.0;
        for (uint32_t i = 0; i < reads.first[layer.steps]; i++) {
            const decode_read *read = &reads.list[i];
            assert_true(read->part < trial.part_count);
            const decode_part *part = &trial.parts[read->part];
            const bool whole = layer_methods[m].index == DECODE_COACTIVE;
            assert_true(read->item < (whole ? layer.units[0].zone : part->choice.items.count));
            bytes += whole ? 4096.0 : decode_item_bytes(&layer, part, read->item);
        }
        assert_true(fabs(bytes / layer.steps - few.bytes) < 1.0);
        assert_ok(decode_trial_find(&layer, &trial, few.error, &budget));
        assert_true(budget <= 0.1 * 1.13);
        decode_reads_close(&reads);
        decode_trial_close(&trial);
    }
    decode_layer_close(&layer);
}
