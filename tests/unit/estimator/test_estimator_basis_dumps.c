/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_basis_dumps.c - bases learnt on KV dumps: what the metadata says of positions, the
 * same bytes from the same dumps, what a basis is made with where queries or their places are
 * absent, weights by what noise does to attention, and dumps that are none or do not fit. The last
 * test is of a real dump and skips without it. Single thread.
 */
#include "cases.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/half.h"
#include "basis/basis_file.h"
#include "codecs/transform.h"
#include "estimator/model/safetensors.h"
#include "estimator/quality/quality_round_trip.h"
#include "estimator/quality/quality_source.h"

enum { LAYERS = 3, KV_HEADS = 2, HEADS = 4, WIDTH = 16, TOKENS = 400, ROWS = 6, DUMPS = 5 };
enum { ROW = KV_HEADS * WIDTH, QUERY = HEADS * WIDTH };

static char folder[64], paths[DUMPS][96], message[512];
static const char *list[DUMPS];

/* How a dump that a test writes differs from the others. */
typedef struct dump_given {
    uint8_t rounded;         /* K and V in FP8, or in BF16 with the same values; 0: in FP16 */
    uint32_t tokens, layers; /* 0: as all */
    uint32_t rows;           /* of queries; 0: none are written */
    bool says_rope, says_positions;
    float spoil;       /* put into V of layer 1 */
    float spoil_query; /* likewise of queries */
    float quiet;       /* queries of layer 0 are so much smaller; 0: no */
} dump_given;

static const dump_given usual = {.rows = ROWS, .says_rope = true, .says_positions = true};

static double draw(uint64_t *state)
{
    double sum = 0.0;
    for (int i = 0; i < 12; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (double)(*state >> 11) * 0x1p-53 - 0.5;
    }
    return sum;
}

#define BASE 100.0

static void turn(float *head, uint32_t position)
{
    for (uint32_t j = 0; j < WIDTH / 2; j++) {
        const double angle = pow(BASE, -2.0 * j / WIDTH) * position;
        const double x = (double)head[2 * j], y = (double)head[2 * j + 1];
        head[2 * j] = (float)(x * cos(angle) - y * sin(angle));
        head[2 * j + 1] = (float)(x * sin(angle) + y * cos(angle));
    }
}

/* K and V of all layers follow a few common causes. */
static void make_token(uint64_t *state, uint32_t token, float k[LAYERS][ROW], float v[LAYERS][ROW])
{
    double causes[10];
    for (int i = 0; i < 10; i++)
        causes[i] = draw(state) * (1.0 + i % 3);
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t e = 0; e < ROW; e++) {
            k[l][e] = (float)(causes[(e + l) % 10] + 0.4 * causes[(3 * e + 1) % 10] +
                              0.1 * draw(state) + (e % 7 == 0 ? 2.0 : 0.0));
            v[l][e] = (float)(0.5 * causes[(e + 4 + l) % 10] + 0.05 * draw(state));
        }
        for (uint32_t h = 0; h < KV_HEADS; h++)
            turn(k[l] + h * WIDTH, token);
    }
}

/* fp16 to the values of fp8, in place; each layer begins where it did. */
static void round_rows(uint8_t dtype, uint16_t *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t small = half_fp8_from_float(half_to_float(rows[i]));
        if (dtype == KVT_DTYPE_BF16) rows[i] = half_bf16_from_float(half_fp8_to_float(small));
        /* The bytes of a layer are closer, and behind what has been read. */
        const uint32_t layer = i / (TOKENS * ROW), at = i % (TOKENS * ROW);
        if (dtype == KVT_DTYPE_FP8) ((uint8_t *)(rows + layer * TOKENS * ROW))[at] = small;
    }
}

static void write_dump(const char *path, uint64_t seed, const dump_given *given)
{
    static uint16_t k[LAYERS][TOKENS * ROW], v[LAYERS][TOKENS * ROW];
    static float q[LAYERS][ROWS * QUERY];
    const uint32_t tokens = given->tokens != 0 ? given->tokens : (uint32_t)TOKENS;
    uint32_t positions[ROWS];
    float k_now[LAYERS][ROW], v_now[LAYERS][ROW];
    for (uint32_t t = 0; t < tokens; t++) {
        make_token(&seed, t, k_now, v_now);
        for (uint32_t i = 0; i < LAYERS * ROW; i++) {
            k[i / ROW][t * ROW + i % ROW] = half_from_float(k_now[i / ROW][i % ROW]);
            v[i / ROW][t * ROW + i % ROW] = half_from_float(v_now[i / ROW][i % ROW]);
        }
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        positions[r] = tokens + 7 * r;
        for (uint32_t l = 0; l < LAYERS; l++) {
            float *row = q[l] + r * QUERY;
            for (uint32_t e = 0; e < QUERY; e++)
                row[e] = (float)(draw(&seed) * (e % WIDTH < 4 ? 2.0 : 0.2) *
                                 (l == 0 && given->quiet > 0.0f ? (double)given->quiet : 1.0));
            for (uint32_t h = 0; h < HEADS; h++)
                turn(row + h * WIDTH, positions[r]);
        }
    }
    if (given->spoil != 0.0f) v[1][5 * ROW + 3] = half_from_float(given->spoil);
    if (given->spoil_query != 0.0f) q[1][3] = given->spoil_query;
    if (given->rounded != 0) round_rows(given->rounded, &k[0][0], LAYERS * TOKENS * ROW);
    if (given->rounded != 0) round_rows(given->rounded, &v[0][0], LAYERS * TOKENS * ROW);
    const uint8_t dtype = given->rounded != 0 ? given->rounded : KVT_DTYPE_FP16;
    safetensors_tensor tensors[3 * LAYERS];
    char names[3 * LAYERS][16];
    size_t count = 0;
    const uint32_t layers = given->layers != 0 ? given->layers : (uint32_t)LAYERS;
    if (given->rows > 0 && given->says_rope) {
        static quality_rope turning;
        assert_ok(quality_rope_parse("100,neighbours", WIDTH, &turning));
        const quality_dump_content content = {.layout = {.layers = (uint16_t)layers,
                                                         .kv_heads = KV_HEADS,
                                                         .head_dim = WIDTH,
                                                         .dtype = KVT_DTYPE_FP16,
                                                         .tokens = tokens},
                                              .k = (const void *const[]){k[0], k[1], k[2]},
                                              .v = (const void *const[]){v[0], v[1], v[2]},
                                              .queries = (const float *const[]){q[0], q[1], q[2]},
                                              .query_heads = HEADS,
                                              .query_rows = given->rows,
                                              .rope = &turning,
                                              .positions =
                                                  given->says_positions ? positions : NULL};
        assert_ok(quality_dump_write(path, &content, message, sizeof message));
        return;
    }
    for (uint32_t i = 0; i < 3 * layers; i++) {
        const uint32_t side = i % 3;
        if (side == 2 && given->rows == 0) continue;
        (void)snprintf(names[count], sizeof names[count], "%c.%u", "kvq"[side], (unsigned)i / 3);
        tensors[count] = (safetensors_tensor){
            .name = names[count],
            .dtype = side == 2 ? KVT_DTYPE_FP32 : dtype,
            .type = dtype == KVT_DTYPE_FP8 && side != 2 ? "F8_E4M3" : NULL,
            .rank = 3,
            .shape = {side == 2 ? given->rows : tokens, side == 2 ? HEADS : KV_HEADS, WIDTH},
            .data = side == 0   ? k[i / 3]
                    : side == 1 ? v[i / 3]
                                : (const void *)q[i / 3]};
        count++;
    }
    assert_ok(safetensors_write(path, tensors, count, NULL, 0, message, sizeof message));
}

static int make_dumps(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "basis-dumps-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    for (uint32_t i = 0; i < DUMPS; i++) {
        (void)snprintf(paths[i], sizeof paths[i], "%s/%u.safetensors", folder, (unsigned)i);
        list[i] = paths[i];
        write_dump(paths[i], 11 + i, &usual);
    }
    return 0;
}

static int remove_dumps(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < DUMPS; i++)
        (void)unlink(paths[i]);
    return rmdir(folder);
}

static quality_rope rope;
static quality_source source;

/* The first three teach, the others make tables. */
static quality_lesson lesson_of(bool positioned, bool asked)
{
    assert_ok(quality_rope_parse("100,neighbours", WIDTH, &rope));
    source = quality_source_of_dumps("small", message, sizeof message);
    source.rope = rope;
    source.given = true;
    source.positioned = positioned;
    source.asked = asked;
    return (quality_lesson){.source = &source,
                            .teach = (const void *const *)list,
                            .teach_count = 3,
                            .tables = (const void *const *)list + 3,
                            .table_count = 2,
                            .digest = 7};
}

static quality_bases learn(const quality_lesson *lesson)
{
    quality_bases bases;
    message[0] = '\0';
    lesson->source->first.layers = 0;
    const kvt_status status = quality_lesson_learn(lesson, &bases);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    return bases;
}

static void refused(const quality_lesson *lesson, kvt_status wanted, const char *said)
{
    quality_bases bases;
    message[0] = '\0';
    lesson->source->first.layers = 0;
    const kvt_status status = quality_lesson_learn(lesson, &bases);
    if (status != wanted || strstr(message, said) == NULL)
        fail_msg("%s: %s", kvt_status_name(status), message);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        assert_null(bases.objects[s]);
    quality_bases_free(&bases);
}

TEST_ALL(make_dumps, remove_dumps);

TEST(the_same_dumps_give_the_same_bytes)
{
    const quality_lesson lesson = lesson_of(true, true);
    quality_bases one = learn(&lesson), two = learn(&lesson);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        basis_origin origin;
        transform_basis basis;
        assert_int_equal(one.bytes[s], two.bytes[s]);
        assert_memory_equal(one.objects[s], two.objects[s], one.bytes[s]);
        assert_ok(basis_read(one.objects[s], one.bytes[s], &basis, &origin));
        assert_string_equal(origin.model, "small");
        assert_int_equal(origin.tokens, 3 * (TOKENS - KVT_SINK_TOKENS));
        assert_int_equal(origin.digest[0], 7);
        assert_int_equal(basis.shape.span, s + 1);
        assert_int_equal(basis.shape.metric, TRANSFORM_METRIC_QUERIES);
        assert_int_equal(basis.shape.rotary_dim, WIDTH);
        assert_int_equal(basis.shape.pairing, KVT_ROPE_NEIGHBOURS);
        assert_true(basis.frequencies[1] == rope.frequencies[1]);
    }
    quality_bases_free(&one);
    quality_bases_free(&two);
}

/* Of fp8 as of the wider elements with the same values. */
TEST(dumps_of_fp8_teach)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_FP8, KVT_DTYPE_BF16};
    quality_bases bases[2];
    for (size_t d = 0; d < 2; d++) {
        const quality_lesson lesson = lesson_of(false, true);
        for (uint32_t i = 0; i < DUMPS; i++)
            write_dump(paths[i], 11 + i, &(dump_given){.rows = ROWS, .rounded = dtypes[d]});
        bases[d] = learn(&lesson);
    }
    for (uint32_t i = 0; i < DUMPS; i++)
        write_dump(paths[i], 11 + i, &usual);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        assert_int_equal(bases[0].bytes[s], bases[1].bytes[s]);
        assert_memory_equal(bases[0].objects[s], bases[1].objects[s], bases[0].bytes[s]);
    }
    quality_bases_free(&bases[0]);
    quality_bases_free(&bases[1]);
}

/* Mean bits of an entry at a step, and the squared relative error of attention to it. */
static double code(const quality_bases *bases, uint32_t span, const char *path, double *error_out)
{
    const transform_basis *views[] = {&bases->bases[span - 1]};
    const uint32_t step = 64;
    const kvt_variant variant = {KVT_CODEC_TRANSFORM, TRANSFORM_MODE,
                                 transform_hash_start(views[0]->hash) << 10 | step};
    quality_attention *attention;
    quality_dump dump;
    quality_row row;
    assert_ok(quality_dump_open(path, &dump, message, sizeof message));
    assert_ok(quality_attention_open(&dump.layout, HEADS, ROWS, &attention));
    quality_attention_set_bases(attention, (kvt_record_bases){views, 1});
    quality_dump_load(&dump, quality_attention_source(attention));
    quality_dump_load_queries(&dump, ROWS, quality_attention_queries(attention));
    quality_attention_exact(attention);
    assert_ok(quality_attention_run(attention, variant, false, &row));
    assert_true(row.present);
    *error_out = row.attention_error;
    quality_attention_close(attention);
    quality_dump_close(&dump);
    return row.bits_per_element;
}

/* All spans code an entry that taught none of them; the wider, the fewer bits at its error. */
TEST(a_basis_codes_what_did_not_teach)
{
    const quality_lesson lesson = lesson_of(true, true);
    quality_bases bases = learn(&lesson);
    char fresh[96];
    double errors[4], bits[4];
    (void)snprintf(fresh, sizeof fresh, "%s/fresh", folder);
    write_dump(fresh, 99, &usual);
    for (uint32_t span = 1; span <= QUALITY_BASIS_SPANS; span++) {
        bits[span] = code(&bases, span, fresh, &errors[span]);
        assert_true(bits[span] > 0.2 && bits[span] < 5.0);
        assert_true(errors[span] > 0.0 && errors[span] < 0.5);
    }
    for (uint32_t span = 2; span <= QUALITY_BASIS_SPANS; span++)
        assert_true(bits[span] - bits[1] + log2(errors[span] / errors[1]) < -0.3);
    quality_bases_free(&bases);
    assert_int_equal(unlink(fresh), 0);
}

/* Without queries, or their places, a basis is made plainly, and says so. */
TEST(a_basis_says_what_it_was_made_with)
{
    static const dump_given bare = {.rows = 0};
    char path[DUMPS][96];
    const char *bares[DUMPS];
    for (uint32_t i = 0; i < DUMPS; i++) {
        (void)snprintf(path[i], sizeof path[i], "%s/bare%u", folder, (unsigned)i);
        bares[i] = path[i];
        write_dump(path[i], 11 + i, &bare);
    }
    quality_lesson lesson = lesson_of(false, false);
    quality_bases with = learn(&lesson); /* queries that nobody looks at */
    lesson.teach = (const void *const *)bares;
    lesson.tables = (const void *const *)bares + 3;
    quality_bases without = learn(&lesson);
    lesson = lesson_of(false, true);
    quality_bases heard = learn(&lesson);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        assert_int_equal(without.bases[s].shape.metric, TRANSFORM_METRIC_PLAIN);
        assert_int_equal(heard.bases[s].shape.metric, TRANSFORM_METRIC_PLAIN);
        assert_memory_equal(with.objects[s], without.objects[s], with.bytes[s]);
        assert_memory_not_equal(with.objects[s], heard.objects[s], with.bytes[s]);
    }
    lesson.teach = (const void *const *)bares;
    refused(&lesson, KVT_E_ARGUMENT, "another shape"); /* no queries where some are said to be */
    lesson = lesson_of(true, true);
    static const dump_given mute = {.rows = ROWS, .says_rope = true};
    write_dump(path[0], 3, &mute);
    lesson.teach = (const void *const *)bares;
    lesson.teach_count = 1;
    refused(&lesson, KVT_E_ARGUMENT, "where its queries stand");
    for (uint32_t i = 0; i < DUMPS; i++)
        assert_int_equal(unlink(path[i]), 0);
    quality_bases_free(&with);
    quality_bases_free(&without);
    quality_bases_free(&heard);
}

/* The mean spread of K of a layer in the unit of the step, in powers of two. */
static double spread_of_keys(const transform_basis *head, uint32_t layer)
{
    const int16_t *spreads = head->spreads + 2 * layer * ROW * TRANSFORM_BANDS;
    double sum = 0.0;
    for (uint32_t i = 0; i < ROW * TRANSFORM_BANDS; i++) {
        const uint32_t band = i % TRANSFORM_BANDS;
        const uint32_t of_band = transform_band_start(band + 1) - transform_band_start(band);
        sum += spreads[i] * (double)of_band / (8.0 * ROW * TRANSFORM_ALONG);
    }
    return sum;
}

/* Queries so small that weights hardly depend on keys: what is heard of noise lets their steps
 * grow, where without it each layer's signal has the same ratio to its steps. */
TEST(noise_weighs_the_layers)
{
    dump_given quiet = usual;
    quiet.quiet = 0.02f;
    for (uint32_t i = 0; i < DUMPS; i++)
        write_dump(paths[i], 11 + i, &quiet);
    quality_lesson lesson = lesson_of(true, false);
    quality_bases deaf = learn(&lesson);
    lesson = lesson_of(true, true);
    quality_bases heard = learn(&lesson);
    const double even = spread_of_keys(&deaf.bases[0], 0) - spread_of_keys(&deaf.bases[0], 2);
    const double less = spread_of_keys(&heard.bases[0], 0) - spread_of_keys(&heard.bases[0], 2);
    assert_true(fabs(even) < 0.5);
    assert_true(less < -1.5);
    quality_bases_free(&deaf);
    quality_bases_free(&heard);
    for (uint32_t i = 0; i < DUMPS; i++)
        write_dump(paths[i], 11 + i, &usual);
}

static bool stop_at_third(void *context, const char *what)
{
    uint32_t *calls = context;
    assert_non_null(what);
    return ++*calls < 3;
}

TEST(bad_dumps_are_named)
{
    quality_lesson lesson = lesson_of(true, true);
    char odd[96];
    const char *odds[] = {paths[0], odd};
    (void)snprintf(odd, sizeof odd, "%s/odd", folder);
    lesson.teach = (const void *const *)odds;
    lesson.teach_count = 2;
    dump_given given = usual;
    given.layers = 2;
    write_dump(odd, 5, &given);
    refused(&lesson, KVT_E_ARGUMENT, "odd: another shape");
    given = usual;
    given.spoil = INFINITY;
    write_dump(odd, 5, &given);
    refused(&lesson, KVT_E_UNSUPPORTED, "odd: elements that are not finite");
    given.spoil = NAN;
    write_dump(odd, 5, &given);
    refused(&lesson, KVT_E_UNSUPPORTED, "odd: elements that are not finite");
    given = usual;
    given.spoil_query = NAN;
    write_dump(odd, 5, &given);
    refused(&lesson, KVT_E_CORRUPT, "not finite");
    given = usual;
    given.tokens = KVT_SINK_TOKENS;
    write_dump(odd, 5, &given);
    refused(&lesson, KVT_E_ARGUMENT, "no token behind");
    write_dump(odd, 5, &usual);
    assert_int_equal(truncate(odd, 5000), 0);
    refused(&lesson, KVT_E_CORRUPT, "odd");
    assert_int_equal(truncate(odd, 3), 0);
    refused(&lesson, KVT_E_CORRUPT, "odd");
    assert_int_equal(unlink(odd), 0);
    refused(&lesson, KVT_E_GONE, "odd");
    lesson.teach_count = 0;
    refused(&lesson, KVT_E_ARGUMENT, "");
    lesson = lesson_of(true, true);
    lesson.table_count = 0;
    refused(&lesson, KVT_E_ARGUMENT, "");
    uint32_t calls = 0;
    lesson = lesson_of(true, true);
    lesson.step = stop_at_third;
    lesson.context = &calls;
    refused(&lesson, KVT_E_CANCELLED, "");
    assert_int_equal(calls, 3);
}

/* The steps that are announced are those that come. */
static bool count_steps(void *context, const char *what)
{
    (void)what;
    ++*(uint32_t *)context;
    return true;
}

TEST(steps_are_counted)
{
    for (int asked = 0; asked < 2; asked++) {
        uint32_t calls = 0;
        quality_lesson lesson = lesson_of(asked, asked);
        lesson.step = count_steps;
        lesson.context = &calls;
        quality_bases bases = learn(&lesson);
        assert_int_equal(calls, quality_lesson_steps(&lesson, LAYERS));
        quality_bases_free(&bases);
    }
}

/* ---- what metadata says ---- */

static void write_notes(const char *path, const safetensors_note *notes, size_t count)
{
    static const float zeros[3 * 4 * WIDTH];
    const safetensors_tensor tensors[] = {
        {.name = "k.0", .dtype = KVT_DTYPE_FP32, .rank = 3, .shape = {3, 1, WIDTH}, .data = zeros},
        {.name = "v.0", .dtype = KVT_DTYPE_FP32, .rank = 3, .shape = {3, 1, WIDTH}, .data = zeros},
        {.name = "q.0", .dtype = KVT_DTYPE_FP32, .rank = 3, .shape = {2, 4, WIDTH}, .data = zeros}};
    assert_ok(safetensors_write(path, tensors, 3, notes, count, message, sizeof message));
}

static kvt_status read_notes(const safetensors_note *notes, size_t count, quality_rope *rope_out,
                             uint32_t positions[2], kvt_status *positions_status)
{
    char path[96];
    quality_dump dump;
    (void)snprintf(path, sizeof path, "%s/noted", folder);
    write_notes(path, notes, count);
    assert_ok(quality_dump_open(path, &dump, message, sizeof message));
    const kvt_status status = quality_dump_rope(&dump, path, rope_out, message, sizeof message);
    *positions_status = quality_dump_positions(&dump, path, positions, message, sizeof message);
    quality_dump_close(&dump);
    assert_int_equal(unlink(path), 0);
    return status;
}

TEST(metadata_says_how_keys_turn)
{
    static quality_rope read, parsed;
    uint32_t positions[2];
    kvt_status placed;
    const safetensors_note plain[] = {
        {"rope_theta", "1e4"}, {"rope_pairing", "halves"}, {"queries", "last"}};
    assert_ok(read_notes(plain, 3, &read, positions, &placed));
    assert_ok(quality_rope_parse("10000,halves,16", WIDTH, &parsed));
    assert_memory_equal(&read, &parsed, sizeof read);
    assert_ok(placed);
    assert_int_equal(positions[0], 1);
    assert_int_equal(positions[1], 2);
    const safetensors_note scaled[] = {{"rope_frequencies", "1,0.25"},
                                       {"rope_pairing", "neighbours"},
                                       {"rope_dim", "4"},
                                       {"query_positions", "7,100000"}};
    assert_ok(read_notes(scaled, 4, &read, positions, &placed));
    assert_int_equal(read.rotary_dim, 4);
    assert_int_equal(read.pairing, KVT_ROPE_NEIGHBOURS);
    assert_true(read.frequencies[0] == 1.0 && read.frequencies[1] == 0.25);
    assert_int_equal(positions[1], 100000);
    const safetensors_note still[] = {{"rope_theta", "none"}};
    assert_ok(read_notes(still, 1, &read, positions, &placed));
    assert_int_equal(read.rotary_dim, 0);
    assert_int_equal(placed, KVT_MISS);
    assert_int_equal(read_notes(NULL, 0, &read, positions, &placed), KVT_MISS);
}

TEST(metadata_that_makes_no_sense)
{
    static quality_rope read;
    static const char *const pairs[][4] = {
        /* theta, pairing, dim, frequencies; "" is absent */
        {"nan", "halves", "", ""},    {"-5", "halves", "", ""},      {"0.5", "halves", "", ""},
        {"1e400", "halves", "", ""},  {"", "halves", "", "1,2"},     {"10,000", "halves", "", ""},
        {"10000", "", "", ""},        {"10000", "sideways", "", ""}, {"10000", "halves", "3", ""},
        {"10000", "halves", "0", ""}, {"10000", "halves", "18", ""}, {"10000", "halves", "x", ""},
        {"", "halves", "4", "1,7"},   {"", "halves", "4", "1,2,3"},  {"", "halves", "4", "1,-1"},
        {"", "halves", "4", "1,,2"},  {"10000x", "halves", "", ""},  {"", "halves", "4.5", "1,2"}};
    static const char *const places[] = {"1", "1,2,3", "1,-2", "1,x", "", "1,2.5", "1,99999999999"};
    uint32_t positions[2];
    kvt_status placed;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        static const char *const names[] = {"rope_theta", "rope_pairing", "rope_dim",
                                            "rope_frequencies"};
        safetensors_note notes[4];
        size_t count = 0;
        for (size_t n = 0; n < 4; n++)
            if (pairs[i][n][0] != '\0') notes[count++] = (safetensors_note){names[n], pairs[i][n]};
        message[0] = '\0';
        if (read_notes(notes, count, &read, positions, &placed) != KVT_E_PARSE ||
            strstr(message, "makes no sense") == NULL)
            fail_msg("case %zu: %s", i, message);
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const safetensors_note note = {"query_positions", places[i]};
        (void)read_notes(&note, 1, &read, positions, &placed);
        if (placed != KVT_E_PARSE) fail_msg("places %zu: %s", i, kvt_status_name(placed));
    }
    static const char *const texts[] = {
        "",           "1e4",           "1e4,",          "1e4,half",
        "halves",     "1e4,halves,",   "1e4,halves,17", "1e4,halves,5",
        "nan,halves", "1e4,halves,4,", "none,halves"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(quality_rope_parse(texts[i], WIDTH, &read), KVT_E_PARSE);
    assert_ok(quality_rope_parse("none", WIDTH, &read));
}

/* ---- a real dump ---- */

TEST(a_real_dump_teaches)
{
    const char *data = getenv("KVT_DATA_DIR");
    char path[512];
    if (data == NULL) {
        print_message("KVT_DATA_DIR is not set: no real dump\n");
        skip();
    }
    (void)snprintf(path, sizeof path, "%s/attention/qa.safetensors", data);
    if (access(path, R_OK) != 0) {
        print_message("%s: %s\n", path, strerror(errno));
        skip();
    }
    const char *one[] = {path};
    quality_lesson lesson = lesson_of(true, true);
    assert_ok(quality_rope_parse("100000,neighbours", 64, &source.rope));
    lesson.teach = lesson.tables = (const void *const *)one;
    lesson.teach_count = lesson.table_count = 1;
    quality_bases bases = learn(&lesson);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        const transform_basis *basis = &bases.bases[s];
        assert_int_equal(basis->shape.metric, TRANSFORM_METRIC_QUERIES);
        /* Components are by falling spread: the first of a span are far above its last. */
        const uint32_t width = transform_width_of(&basis->shape, 0);
        assert_true(basis->spreads[0] > basis->spreads[(width - 1) * TRANSFORM_BANDS] + 16);
    }
    quality_bases_free(&bases);
}
