/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate.c - measuring candidates and answering the questions of a ladder. Thread rule: see
 * calibrate.h.
 */
#include "estimator/quality/calibrate.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one bit per element is worth at high rates: four times less squared error, and KL is
 * quadratic in the error of attention. */
#define CALIBRATE_BIT 1.3862943611198906

/* Below this, KL is the rounding of its own sum. */
#define CALIBRATE_LEAST 1e-12

enum { CALIBRATE_CANDIDATES_MAX = 6, CALIBRATE_NONE = UINT32_MAX };

/* ---- measuring ---- */

static kvt_status rows_make(calibrate_rows *rows, const calibrate_source *source, uint64_t seed)
{
    *rows = (calibrate_rows){.source = source, .seed = seed};
    rows->rows = calloc((size_t)source->entries * CALIBRATE_VARIANTS_MAX, sizeof *rows->rows);
    rows->curves = calloc(CALIBRATE_VARIANTS_MAX, sizeof *rows->curves);
    return rows->rows != NULL && rows->curves != NULL ? KVT_OK : KVT_E_MEMORY;
}

void calibrate_rows_free(calibrate_rows *rows)
{
    free(rows->rows);
    free(rows->curves);
    *rows = (calibrate_rows){.source = NULL};
}

static uint32_t rows_find(const calibrate_rows *rows, const char *name)
{
    for (uint32_t i = 0; i < rows->count; i++)
        if (strcmp(rows->variants[i].name, name) == 0) return i;
    return CALIBRATE_NONE;
}

static const quality_row *rows_at(const calibrate_rows *rows, uint32_t entry, uint32_t variant)
{
    return &rows->rows[(size_t)entry * CALIBRATE_VARIANTS_MAX + variant];
}

/* Measures variants [first, rows->count), and makes their curves. */
static kvt_status rows_fill(calibrate_rows *rows, uint32_t first)
{
    const uint32_t entries = rows->source->entries, count = rows->count - first;
    quality_spread spread;
    if (count == 0) return KVT_OK;
    quality_row *fresh = calloc((size_t)entries * count, sizeof *fresh);
    if (fresh == NULL) return KVT_E_MEMORY;
    kvt_status status =
        rows->source->measure(rows->source->context, rows->variants + first, count, fresh);
    for (uint32_t e = 0; status == KVT_OK && e < entries; e++)
        memcpy(&rows->rows[(size_t)e * CALIBRATE_VARIANTS_MAX + first], fresh + (size_t)e * count,
               count * sizeof *fresh);
    if (status == KVT_OK)
        status = quality_summarise(fresh, NULL, entries, count, rows->seed, rows->curves + first,
                                   &spread);
    free(fresh);
    return status;
}

kvt_status calibrate_measure(calibrate_rows *rows, const char *const *names, uint32_t count,
                             uint32_t *indices_out)
{
    uint32_t first = rows->count;
    for (uint32_t i = 0; i < count; i++) {
        quality_variant variant;
        if (quality_variant_parse(names[i], &variant) != KVT_OK) return KVT_E_ARGUMENT;
        indices_out[i] = rows_find(rows, variant.name);
        if (indices_out[i] != CALIBRATE_NONE) continue;
        assert(rows->count < CALIBRATE_VARIANTS_MAX);
        indices_out[i] = rows->count;
        rows->variants[rows->count++] = variant;
    }
    kvt_status status = rows_fill(rows, first);
    if (status != KVT_OK) rows->count = first;
    for (uint32_t i = 0; status == KVT_OK && i < count; i++)
        if (rows->curves[indices_out[i]].entries == 0) indices_out[i] = CALIBRATE_NONE;
    return status;
}

/* ---- comparing ---- */

static double rows_distortion(const quality_row *row)
{
    double value = isfinite(row->kl) ? row->kl : row->attention_error * row->attention_error;
    return value > CALIBRATE_LEAST ? value : CALIBRATE_LEAST;
}

/* Student's 97.5 % point; the series is 0.3 % off at 4 degrees of freedom, less beyond. */
static double calibrate_student(uint32_t freedom)
{
    static const double few[] = {12.706, 4.303, 3.182};
    if (freedom <= sizeof few / sizeof few[0]) return few[freedom - 1];
    double v = freedom;
    return 1.95996 + (2.37227 + (2.8225 + 2.5559 / v) / v) / v;
}

calibrate_pair calibrate_compare(const calibrate_rows *rows, uint32_t a, uint32_t b, bool even_bits)
{
    calibrate_pair pair = {0, 0.0, 0.0, 0.0};
    double sum = 0.0, squares = 0.0;
    for (uint32_t e = 0; e < rows->source->entries; e++) {
        const quality_row *one = rows_at(rows, e, a), *other = rows_at(rows, e, b);
        if (!one->present || !other->present) continue;
        double difference = log(rows_distortion(one) / rows_distortion(other));
        if (even_bits)
            difference += CALIBRATE_BIT * (one->bits_per_element - other->bits_per_element);
        sum += difference;
        squares += difference * difference;
        pair.entries++;
    }
    if (pair.entries == 0) return pair;
    double count = pair.entries, freedom = count - 1.0;
    pair.mean = sum / count;
    pair.low = -INFINITY;
    pair.high = INFINITY;
    if (pair.entries < 2) return pair;
    double variance = fmax(squares / count - pair.mean * pair.mean, 0.0) * count / freedom;
    double half = calibrate_student(pair.entries - 1) * sqrt(variance / count);
    pair.low = pair.mean - half;
    pair.high = pair.mean + half;
    return pair;
}

/* ---- questions ---- */

typedef struct calibrate_state {
    calibrate_rows *rows;
    calibrate_ladder *ladder;
    kvt_status status;
} calibrate_state;

/* Measured as the profile shows it: distortion with its unit. */
static void describe_variant(const calibrate_rows *rows, uint32_t index, char *text, size_t size)
{
    const quality_curve *curve = &rows->curves[index];
    if (isfinite(curve->kl)) {
        (void)snprintf(text, size, "%s: KL %.3g nat at %.2f bits", rows->variants[index].name,
                       curve->kl, curve->bits_per_element);
    } else {
        (void)snprintf(text, size, "%s: attention error %.3g at %.2f bits",
                       rows->variants[index].name, curve->attention_error, curve->bits_per_element);
    }
}

__attribute__((format(printf, 4, 5))) static void
answer(calibrate_ladder *ladder, const char *question, const char *chosen, const char *format, ...)
{
    va_list arguments;
    assert(ladder->choice_count < CALIBRATE_CHOICES_MAX);
    calibrate_choice *choice = &ladder->choices[ladder->choice_count++];
    choice->question = question;
    (void)snprintf(choice->chosen, sizeof choice->chosen, "%s", chosen);
    va_start(arguments, format);
    (void)vsnprintf(choice->evidence, sizeof choice->evidence, format, arguments);
    va_end(arguments);
}

/*
 * The candidate with the least distortion at even bits; the first one, which is the default, unless
 * another is better beyond doubt. Returns its index among the candidates; 0 when nothing could be
 * measured.
 */
static uint32_t ask(calibrate_state *s, const char *question, const char *const *names,
                    const char *const *labels, uint32_t count)
{
    uint32_t at[CALIBRATE_CANDIDATES_MAX], best = CALIBRATE_NONE, rival = CALIBRATE_NONE;
    char one[128], other[128];
    assert(count <= CALIBRATE_CANDIDATES_MAX);
    if (s->status == KVT_OK) s->status = calibrate_measure(s->rows, names, count, at);
    if (s->status != KVT_OK) return 0;
    for (uint32_t i = 0; i < count; i++) {
        if (at[i] == CALIBRATE_NONE) continue;
        if (best == CALIBRATE_NONE) {
            best = i;
        } else if (calibrate_compare(s->rows, at[i], at[best], true).high < 0.0) {
            rival = best;
            best = i;
        } else if (rival == CALIBRATE_NONE ||
                   calibrate_compare(s->rows, at[i], at[rival], true).mean < 0.0) {
            rival = i;
        }
    }
    if (best == CALIBRATE_NONE) {
        answer(s->ladder, question, labels[0], "the layout takes none of the candidates");
        return 0;
    }
    describe_variant(s->rows, at[best], one, sizeof one);
    if (rival == CALIBRATE_NONE) {
        answer(s->ladder, question, labels[best], "%s; the only one for this layout", one);
        return best;
    }
    calibrate_pair pair = calibrate_compare(s->rows, at[best], at[rival], true);
    describe_variant(s->rows, at[rival], other, sizeof other);
    answer(s->ladder, question, labels[best],
           "%s; %s; at even bits %.3g times [%.3g, %.3g], %u entries%s", one, other, exp(pair.mean),
           exp(pair.low), exp(pair.high), (unsigned)pair.entries,
           pair.high < 0.0 ? "" : ": no clear difference, so the default");
    return best;
}

/* What the answers say, for the names of rungs. */
typedef struct calibrate_answers {
    const char *planes_axis, *split, *first; /* ",vchan"; "k6v4"; ",vfirst" */
    const char *entropy_axis, *centroids;
    double v_ratio;      /* V step over K step */
    const char *rotated; /* a variant, or NULL */
    const char *drop;
} calibrate_answers;

static void ask_planes(calibrate_state *s, calibrate_answers *a)
{
    static const char *const axes[] = {"", ",vhead", ",vchan"};
    static const char *const axis_labels[] = {"row", "head", "channel"};
    static const char *const axis_names[] = {"planes:k4v4,g64", "planes:k4v4,g64,vhead",
                                             "planes:k4v4,g64,vchan"};
    static const char *const split_labels[] = {"k6v4", "k4v6"};
    char names[2][QUALITY_NAME_BYTES];
    a->planes_axis = axes[ask(s, "planes: V axis", axis_names, axis_labels, 3)];
    (void)snprintf(names[0], sizeof names[0], "planes:k6v4,g64%s", a->planes_axis);
    (void)snprintf(names[1], sizeof names[1], "planes:k4v6,g64%s,vfirst", a->planes_axis);
    uint32_t v_more =
        ask(s, "planes: K:V bits", (const char *const[]){names[0], names[1]}, split_labels, 2);
    a->split = split_labels[v_more];
    a->first = v_more != 0 ? ",vfirst" : "";
}

static void ask_entropy(calibrate_state *s, calibrate_answers *a)
{
    static const char *const axes[] = {"", ",vchan"};
    static const char *const axis_labels[] = {"token", "channel"};
    static const char *const axis_names[] = {"entropy:k0.25v0.5", "entropy:k0.25v0.5,vchan"};
    static const struct {
        const char *steps, *label;
        double ratio;
    } steps[] = {{"k0.25v0.5", "V step 2 x K step", 2.0},
                 {"k0.25v0.25", "equal steps", 1.0},
                 {"k0.5v0.25", "V step 1/2 x K step", 0.5},
                 {"k0.125v0.5", "V step 4 x K step", 4.0}};
    enum { STEPS = sizeof steps / sizeof steps[0] };
    char names[STEPS][QUALITY_NAME_BYTES];
    const char *places[STEPS], *labels[STEPS];
    a->entropy_axis = axes[ask(s, "entropy: V axis", axis_names, axis_labels, 2)];
    for (uint32_t i = 0; i < STEPS; i++) {
        (void)snprintf(names[i], sizeof names[i], "entropy:%s%s", steps[i].steps, a->entropy_axis);
        places[i] = names[i];
        labels[i] = steps[i].label;
    }
    a->v_ratio = steps[ask(s, "entropy: steps", places, labels, STEPS)].ratio;
    /* At a coarse step, where it can matter. */
    (void)snprintf(names[0], sizeof names[0], "entropy:k%.6gv%.6g%s,middle", 1.0, a->v_ratio,
                   a->entropy_axis);
    (void)snprintf(names[1], sizeof names[1], "entropy:k%.6gv%.6g%s", 1.0, a->v_ratio,
                   a->entropy_axis);
    a->centroids = ask(s, "entropy: centroids", places, (const char *const[]){"no", "yes"}, 2) == 0
                       ? ",middle"
                       : "";
}

static void ask_tables(calibrate_state *s, const calibrate_answers *a)
{
    char name[QUALITY_NAME_BYTES];
    quality_variant variant;
    double own, shared;
    if (s->status != KVT_OK || s->rows->source->tables == NULL) return;
    (void)snprintf(name, sizeof name, "entropy:k%.6gv%.6g%s", 0.5, 0.5 * a->v_ratio,
                   a->entropy_axis);
    if (quality_variant_parse(name, &variant) != KVT_OK) return;
    s->status = s->rows->source->tables(s->rows->source->context, &variant, &own, &shared);
    if (s->status == KVT_E_UNSUPPORTED) s->status = KVT_OK;
    if (s->status != KVT_OK) return;
    answer(s->ladder, "entropy: tables", shared < 0.995 * own ? "shared" : "own",
           "%s: %.4f bits with tables of each matrix' own codes, %.4f with tables of other "
           "entries, which are stored likewise",
           variant.name, own, shared);
}

static void ask_rotation(calibrate_state *s, calibrate_answers *a)
{
    static const char *const rotated[] = {NULL, "rotate:b4", "rotate:b4,row", "rotate:b3,row"};
    char plain[QUALITY_NAME_BYTES];
    (void)snprintf(plain, sizeof plain, "planes:k4v4,g64%s", a->planes_axis);
    const char *const names[] = {plain, rotated[1], rotated[2], rotated[3]};
    static const char *const labels[] = {"no", "head, 4 bits", "row, 4 bits", "row, 3 bits"};
    a->rotated = rotated[ask(s, "rotation", names, labels, 4)];
}

static void ask_drop(calibrate_state *s, calibrate_answers *a)
{
    static const char *const labels[] = {"stream", "knorm", "keydiff", "lagkv"};
    static const char *const names[] = {
        "drop:stream,50+entropy:k0.25v0.5", "drop:knorm,50+entropy:k0.25v0.5",
        "drop:keydiff,50+entropy:k0.25v0.5", "drop:lagkv,50+entropy:k0.25v0.5"};
    a->drop = labels[ask(s, "drop: score", names, labels, 4)];
}

/* ---- rungs ---- */

enum { CALIBRATE_RUNG_NAMES = 20 };

typedef struct calibrate_names {
    char text[CALIBRATE_RUNG_NAMES][QUALITY_NAME_BYTES];
    const char *places[CALIBRATE_RUNG_NAMES];
    uint32_t count;
} calibrate_names;

__attribute__((format(printf, 2, 3))) static void add_name(calibrate_names *names,
                                                           const char *format, ...)
{
    va_list arguments;
    assert(names->count < CALIBRATE_RUNG_NAMES);
    char *text = names->text[names->count];
    va_start(arguments, format);
    (void)vsnprintf(text, QUALITY_NAME_BYTES, format, arguments);
    va_end(arguments);
    names->places[names->count++] = text;
}

/* Planes share axis and order, so that each can be made of those before it by dropping planes. */
static void name_rungs(const calibrate_answers *a, calibrate_names *names)
{
    static const double steps[] = {0.125, 0.25, 0.5, 0.75, 1.0};
    const bool v_more = a->first[0] != '\0';
    const char *const bits[] = {"k8v8", "k6v6", a->split, "k4v4", v_more ? "k3v4" : "k4v3",
                                "k3v3", "k2v2"};
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++)
        add_name(names, "planes:%s,g64%s%s", bits[i], a->planes_axis, a->first);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        add_name(names, "entropy:k%.6gv%.6g%s%s", steps[i], steps[i] * a->v_ratio, a->entropy_axis,
                 a->centroids);
    if (a->rotated != NULL) add_name(names, "%s", a->rotated);
    for (int kept = 75; kept > 0; kept -= 25)
        add_name(names, "drop:%s,%d+entropy:k0.5v%.6g%s%s", a->drop, kept, 0.5 * a->v_ratio,
                 a->entropy_axis, a->centroids);
}

kvt_status calibrate_run(const calibrate_source *source, uint64_t seed,
                         calibrate_ladder *ladder_out, calibrate_rows *rows_out, char *message,
                         size_t message_size)
{
    calibrate_answers answers = {.planes_axis = ""};
    calibrate_names names = {.count = 0};
    uint32_t at[CALIBRATE_RUNG_NAMES], present = 0;
    memset(ladder_out, 0, sizeof *ladder_out);
    calibrate_state s = {.rows = rows_out, .ladder = ladder_out, .status = KVT_OK};
    s.status = rows_make(rows_out, source, seed);
    if (s.status == KVT_OK && source->entries < 2) {
        (void)snprintf(message, message_size, "a calibration takes two entries or more");
        return KVT_E_ARGUMENT;
    }
    ask_planes(&s, &answers);
    ask_entropy(&s, &answers);
    ask_tables(&s, &answers);
    ask_rotation(&s, &answers);
    ask_drop(&s, &answers);
    if (s.status != KVT_OK) return s.status;
    name_rungs(&answers, &names);
    kvt_status status = calibrate_measure(rows_out, names.places, names.count, at);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < names.count; i++)
        if (at[i] != CALIBRATE_NONE) at[present++] = at[i];
    if (present == 0) {
        (void)snprintf(message, message_size, "the layout takes no lossy form");
        return KVT_E_ARGUMENT;
    }
    calibrate_make_rungs(rows_out, at, present, ladder_out);
    return KVT_OK;
}
