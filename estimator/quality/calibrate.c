/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate.c - measuring candidates and answering the questions of a ladder. Thread rule: see
 * calibrate.h.
 */
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality_rows.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CALIBRATE_CANDIDATES_MAX = 6,
    CALIBRATE_FIRST_MAX = 24,  /* candidates of the questions that are asked first */
    CALIBRATE_PILOTS_SHARE = 4 /* one entry in so many at most, for rungs to be tried on them */
};

/* ---- measuring ---- */

/* A pilot of more than half of what is asked saves less than the exact runs that it takes. */
static calibrate_reach rows_reach(const calibrate_rows *rows, calibrate_reach reach)
{
    if (reach == CALIBRATE_PILOT && 2 * rows->pilot_count > rows->asked_count)
        reach = CALIBRATE_ASKED;
    if (reach == CALIBRATE_ASKED && rows->source->asked == NULL) reach = CALIBRATE_ALL;
    return reach;
}

static const bool *rows_mask(const calibrate_rows *rows, calibrate_reach reach)
{
    if (reach == CALIBRATE_PILOT) return rows->pilot;
    return reach == CALIBRATE_ASKED ? rows->source->asked : NULL;
}

kvt_status calibrate_rows_make(calibrate_rows *rows, const calibrate_source *source, uint64_t seed)
{
    const size_t entries = source->entries;
    *rows = (calibrate_rows){.source = source, .seed = seed};
    rows->rows = calloc(entries * CALIBRATE_VARIANTS_MAX + 1, sizeof *rows->rows);
    rows->curves = calloc(CALIBRATE_VARIANTS_MAX, sizeof *rows->curves);
    rows->documents = calloc(entries + 1, sizeof *rows->documents);
    rows->pilot = calloc(entries + 1, sizeof *rows->pilot);
    rows->sums = calloc(2 * entries + 1, sizeof *rows->sums);
    if (rows->rows == NULL || rows->curves == NULL || rows->documents == NULL ||
        rows->pilot == NULL || rows->sums == NULL)
        return KVT_E_MEMORY;
    for (uint32_t i = 0; i < CALIBRATE_VARIANTS_MAX; i++)
        rows->beaten_by[i] = CALIBRATE_NONE;
    (void)quality_number_documents(source->documents, source->entries, rows->documents);
    quality_pilot_choose(rows);
    return KVT_OK;
}

void calibrate_rows_free(calibrate_rows *rows)
{
    free(rows->rows);
    free(rows->curves);
    free(rows->documents);
    free(rows->pilot);
    free(rows->sums);
    *rows = (calibrate_rows){.source = NULL};
}

static uint32_t rows_find(const calibrate_rows *rows, const char *name)
{
    for (uint32_t i = 0; i < rows->count; i++)
        if (strcmp(rows->variants[i].name, name) == 0) return i;
    return CALIBRATE_NONE;
}

/* Measures the variants at places `at`, and makes the curves of all. */
static kvt_status rows_fill(calibrate_rows *rows, const uint32_t *at, uint32_t count,
                            calibrate_reach reach)
{
    const uint32_t entries = rows->source->entries;
    quality_variant variants[CALIBRATE_VARIANTS_MAX];
    quality_spread spread;
    if (count == 0) return KVT_OK;
    quality_row *fresh = calloc((size_t)entries * count, sizeof *fresh);
    if (fresh == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        variants[i] = rows->variants[at[i]];
    kvt_status status = rows->source->measure(rows->source->context, variants, count,
                                              rows_mask(rows, reach), fresh);
    for (uint32_t e = 0; status == KVT_OK && e < entries; e++)
        for (uint32_t i = 0; i < count; i++)
            rows->rows[(size_t)e * CALIBRATE_VARIANTS_MAX + at[i]] = fresh[(size_t)e * count + i];
    if (status == KVT_OK)
        status = quality_summarise(rows->rows, rows->source->documents, entries,
                                   CALIBRATE_VARIANTS_MAX, rows->seed, rows->curves, &spread);
    free(fresh);
    return status;
}

kvt_status calibrate_measure(calibrate_rows *rows, const char *const *names, uint32_t count,
                             calibrate_reach reach, uint32_t *indices_out)
{
    uint32_t at[CALIBRATE_VARIANTS_MAX] = {0}, missing = 0;
    const uint32_t first = rows->count;
    reach = rows_reach(rows, reach);
    for (uint32_t i = 0; i < count; i++) {
        quality_variant variant;
        if (quality_variant_parse(names[i], &variant) != KVT_OK) return KVT_E_ARGUMENT;
        uint32_t found = indices_out[i] = rows_find(rows, variant.name);
        if (found != CALIBRATE_NONE && rows->reach[found] >= reach) continue;
        assert(rows->count < CALIBRATE_VARIANTS_MAX || found != CALIBRATE_NONE);
        if (found == CALIBRATE_NONE) {
            found = indices_out[i] = rows->count;
            rows->variants[rows->count++] = variant;
        }
        at[missing++] = found;
        rows->reach[found] = reach;
    }
    kvt_status status = rows_fill(rows, at, missing, reach);
    if (status != KVT_OK) rows->count = first;
    for (uint32_t i = 0; status == KVT_OK && i < count; i++)
        if (rows->curves[indices_out[i]].entries == 0) indices_out[i] = CALIBRATE_NONE;
    return status;
}

/* ---- questions ---- */

typedef struct calibrate_state {
    calibrate_rows *rows;
    calibrate_ladder *ladder;
    kvt_status status;
} calibrate_state;

/* Distortion with its unit and size, over the entries that both variants have. */
static void describe_variant(const calibrate_rows *rows, uint32_t index, uint32_t other, char *text,
                             size_t size)
{
    double distortion = 0.0, bits = 0.0;
    uint32_t entries = 0;
    bool kl = false;
    for (uint32_t e = 0; e < rows->source->entries; e++) {
        const quality_row *row = calibrate_row_at(rows, e, index);
        if (!row->present || !calibrate_row_at(rows, e, other)->present) continue;
        kl = isfinite(row->kl);
        distortion += kl ? row->kl : row->attention_error;
        bits += row->bits_per_element;
        entries++;
    }
    (void)snprintf(text, size, "%s: %s %.3g%s at %.2f bits", rows->variants[index].name,
                   kl ? "KL" : "attention error", distortion / entries, kl ? " nat" : "",
                   bits / entries);
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

static calibrate_pair compare_all(const calibrate_rows *rows, uint32_t a, uint32_t b)
{
    return calibrate_compare(rows, a, b, true, CALIBRATE_ALL_CLASSES);
}

/* Adds to the last answer every class in which another candidate is better beyond doubt. */
static void answer_classes(calibrate_state *s, const uint32_t *at, const char *const *labels,
                           uint32_t count, uint32_t best)
{
    const calibrate_source *source = s->rows->source;
    calibrate_choice *choice = &s->ladder->choices[s->ladder->choice_count - 1];
    for (uint32_t c = 0; source->class_count > 1 && c < source->class_count; c++) {
        uint32_t other = CALIBRATE_NONE;
        calibrate_pair least = {.mean = 0.0};
        for (uint32_t i = 0; i < count; i++) {
            if (at[i] == CALIBRATE_NONE || i == best) continue;
            calibrate_pair pair = calibrate_compare(s->rows, at[i], at[best], true, (int)c);
            if (pair.entries == 0 || !(pair.high < 0.0) || pair.mean >= least.mean) continue;
            least = pair;
            other = i;
        }
        if (other == CALIBRATE_NONE) continue;
        const size_t used = strlen(choice->evidence);
        (void)snprintf(choice->evidence + used, sizeof choice->evidence - used,
                       "; %s disagrees: %s, %.3g times [%.3g, %.3g], %u entries",
                       source->class_names[c], labels[other], exp(least.mean), exp(least.low),
                       exp(least.high), (unsigned)least.entries);
    }
}

typedef uint32_t pilot_verdict(const calibrate_rows *rows, const uint32_t *at, uint32_t count,
                               bool *left);

/* Measures the candidates on the pilot, and what it leaves of them, if more than one, on all that
 * is asked. */
static kvt_status ask_measure(calibrate_state *s, const char *const *names, uint32_t count,
                              pilot_verdict *leaves, uint32_t *at)
{
    const char *more[CALIBRATE_CANDIDATES_MAX];
    uint32_t more_at[CALIBRATE_CANDIDATES_MAX], more_count = 0;
    bool left[CALIBRATE_CANDIDATES_MAX];
    kvt_status status = calibrate_measure(s->rows, names, count, CALIBRATE_PILOT, at);
    if (status != KVT_OK || leaves(s->rows, at, count, left) < 2) return status;
    for (uint32_t i = 0; i < count; i++)
        if (left[i]) more[more_count++] = names[i];
    return calibrate_measure(s->rows, more, more_count, CALIBRATE_ASKED, more_at);
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
    if (s->status == KVT_OK) s->status = ask_measure(s, names, count, quality_pilot_leaves, at);
    if (s->status != KVT_OK) return 0;
    for (uint32_t i = 0; i < count; i++) {
        if (at[i] == CALIBRATE_NONE) continue;
        if (best == CALIBRATE_NONE) {
            best = i;
        } else if (compare_all(s->rows, at[i], at[best]).high < 0.0) {
            rival = best;
            best = i;
        } else if (rival == CALIBRATE_NONE || compare_all(s->rows, at[i], at[rival]).mean < 0.0) {
            rival = i;
        }
    }
    if (best == CALIBRATE_NONE) {
        answer(s->ladder, question, labels[0], "none of the candidates was measured");
        return 0;
    }
    describe_variant(s->rows, at[best], at[rival == CALIBRATE_NONE ? best : rival], one,
                     sizeof one);
    if (rival == CALIBRATE_NONE) {
        answer(s->ladder, question, labels[best], "%s; the only one that was measured", one);
        return best;
    }
    calibrate_pair pair = compare_all(s->rows, at[best], at[rival]);
    describe_variant(s->rows, at[rival], at[best], other, sizeof other);
    answer(s->ladder, question, labels[best],
           "%s; %s; at even bits %.3g times [%.3g, %.3g], %u entries%s", one, other, exp(pair.mean),
           exp(pair.low), exp(pair.high), (unsigned)pair.entries,
           pair.high < 0.0 ? "" : ": no clear difference, so the default");
    answer_classes(s, at, labels, count, best);
    return best;
}

/* The answers so far, from which the names of the ladder's variants are made. */
typedef struct calibrate_answers {
    const char *planes_axis, *split, *first; /* ",vchan"; "k6v4"; ",vfirst" */
    const char *entropy_axis, *centroids;
    double v_ratio; /* V step over K step */
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

/* ---- bases ---- */

/* Whether a basis is better than entropy beyond doubt, and does not lose on any class that did not
 * teach it, of which there is at least one. The verdict goes behind the answer's evidence. */
static bool judge_basis(calibrate_state *s, uint32_t entropy, uint32_t basis, const char *span,
                        double *mean_out)
{
    const calibrate_source *source = s->rows->source;
    calibrate_choice *choice = &s->ladder->choices[s->ladder->choice_count - 1];
    const calibrate_pair all = compare_all(s->rows, basis, entropy);
    const char *refused = all.high < 0.0 ? NULL : "no clear gain";
    char others[160] = "", reason[96];
    uint32_t judged = 0;
    for (uint32_t c = 0; c < source->class_count; c++) {
        if (source->bases->taught[c]) continue;
        const calibrate_pair pair = calibrate_compare(s->rows, basis, entropy, true, (int)c);
        const size_t used = strlen(others);
        if (pair.entries == 0) continue;
        judged++;
        (void)snprintf(others + used, sizeof others - used, ", %.3g on %s", exp(pair.mean),
                       source->class_names[c]);
        if (refused != NULL || pair.mean < 0.0) continue;
        (void)snprintf(reason, sizeof reason, "loses to entropy on %s, which did not teach",
                       source->class_names[c]);
        refused = reason;
    }
    if (judged == 0 && refused == NULL) refused = "judged on no class that did not teach";
    const size_t used = strlen(choice->evidence);
    (void)snprintf(choice->evidence + used, sizeof choice->evidence - used,
                   "; %s %.3g times [%.3g, %.3g]%s%s%s", span, exp(all.mean), exp(all.low),
                   exp(all.high), others, refused != NULL ? ": refused, " : "",
                   refused != NULL ? refused : "");
    *mean_out = all.mean;
    return refused == NULL;
}

/* The candidates of `entropy: basis`, entropy first; of[] is the span of each other one. */
typedef struct basis_names {
    char text[1 + TRANSFORM_SPAN_LAYERS4][QUALITY_NAME_BYTES];
    const char *places[1 + TRANSFORM_SPAN_LAYERS4];
    uint32_t of[1 + TRANSFORM_SPAN_LAYERS4], count;
} basis_names;

static void name_candidates(const calibrate_bases *bases, const calibrate_answers *a,
                            basis_names *names)
{
    (void)snprintf(names->text[0], sizeof names->text[0], "entropy:k0.5v%.6g%s", 0.5 * a->v_ratio,
                   a->entropy_axis);
    names->count = 1;
    for (uint32_t i = 0; i < TRANSFORM_SPAN_LAYERS4; i++) {
        if (!bases->present[i]) continue;
        (void)snprintf(names->text[names->count], sizeof names->text[0], "transform:%05X,s1",
                       (unsigned)bases->starts[i]);
        names->of[names->count++] = i;
    }
    for (uint32_t i = 0; i < names->count; i++)
        names->places[i] = names->text[i];
}

/* Every span that is accepted gives rungs; the answer is the one with the least distortion. */
static void ask_bases(calibrate_state *s, const calibrate_answers *a)
{
    static const char *const spans[] = {"head", "layer", "layers4"};
    const calibrate_bases *bases = s->rows->source->bases;
    char label[32], text[160];
    basis_names names;
    uint32_t at[1 + TRANSFORM_SPAN_LAYERS4];
    double best = 0.0, mean;
    if (bases == NULL || s->status != KVT_OK) return;
    name_candidates(bases, a, &names);
    s->status = ask_measure(s, names.places, names.count, quality_pilot_leaves_bases, at);
    if (s->status != KVT_OK) return;
    answer(s->ladder, "entropy: basis", "none", "none of the candidates was measured");
    calibrate_choice *choice = &s->ladder->choices[s->ladder->choice_count - 1];
    if (at[0] == CALIBRATE_NONE) {
        (void)snprintf(choice->evidence, sizeof choice->evidence,
                       "%s, which bases are compared with, was not measured", names.text[0]);
        return;
    }
    describe_variant(s->rows, at[0], at[0], text, sizeof text);
    (void)snprintf(choice->evidence, sizeof choice->evidence, "%s, at even bits (metric: %s)", text,
                   bases->metric);
    for (uint32_t i = 1; i < names.count; i++) {
        const uint32_t span = names.of[i];
        (void)snprintf(label, sizeof label, "%s %05X:", spans[span], (unsigned)bases->starts[span]);
        if (at[i] == CALIBRATE_NONE) {
            const size_t used = strlen(choice->evidence);
            (void)snprintf(choice->evidence + used, sizeof choice->evidence - used,
                           "; %s not measured", label);
            continue;
        }
        s->rows->accepted[span] = judge_basis(s, at[0], at[i], label, &mean);
        if (!s->rows->accepted[span] || mean >= best) continue;
        best = mean;
        (void)snprintf(choice->chosen, sizeof choice->chosen, "%s", spans[span]);
    }
}

static void ask_drop(calibrate_state *s, calibrate_answers *a)
{
    static const char *const labels[] = {"stream", "knorm", "keydiff", "lagkv"};
    static const char *const names[] = {
        "drop:stream,50+entropy:k0.25v0.5", "drop:knorm,50+entropy:k0.25v0.5",
        "drop:keydiff,50+entropy:k0.25v0.5", "drop:lagkv,50+entropy:k0.25v0.5"};
    a->drop = labels[ask(s, "drop: score", names, labels, 4)];
}

/* The questions that are measured at once, since each measurement of an entry begins with its exact
 * run: first the pilot's rows of all of them, then what it leaves. */
typedef struct first_work {
    const char *names[CALIBRATE_FIRST_MAX], *left[CALIBRATE_FIRST_MAX];
    uint32_t count, left_count;
} first_work;

static void first_leave(calibrate_state *s, first_work *work, const char *const *names,
                        uint32_t count, pilot_verdict *leaves)
{
    uint32_t at[CALIBRATE_CANDIDATES_MAX] = {0};
    bool left[CALIBRATE_CANDIDATES_MAX];
    for (uint32_t i = 0; i < count; i++) {
        at[i] = rows_find(s->rows, names[i]);
        if (at[i] != CALIBRATE_NONE && s->rows->curves[at[i]].entries == 0) at[i] = CALIBRATE_NONE;
    }
    if (leaves(s->rows, at, count, left) < 2) return;
    for (uint32_t i = 0; i < count; i++)
        if (left[i]) work->left[work->left_count++] = names[i];
}

/* Bases first, and then the questions as they follow if every answer is the default one. */
static void ask_first(calibrate_state *s, const calibrate_answers *a, bool questions)
{
    static const struct {
        const char *names[CALIBRATE_CANDIDATES_MAX];
        uint32_t count;
    } usual[] = {
        {{"planes:k4v4,g64", "planes:k4v4,g64,vhead", "planes:k4v4,g64,vchan"}, 3},
        {{"planes:k6v4,g64", "planes:k4v6,g64,vfirst"}, 2},
        {{"entropy:k0.25v0.5", "entropy:k0.25v0.5,vchan"}, 2},
        {{"entropy:k0.25v0.5", "entropy:k0.25v0.25", "entropy:k0.5v0.25", "entropy:k0.125v0.5"}, 4},
        {{"entropy:k1v2,middle", "entropy:k1v2"}, 2},
        {{"drop:stream,50+entropy:k0.25v0.5", "drop:knorm,50+entropy:k0.25v0.5",
          "drop:keydiff,50+entropy:k0.25v0.5", "drop:lagkv,50+entropy:k0.25v0.5"},
         4}};
    const uint32_t groups = questions ? sizeof usual / sizeof usual[0] : 0;
    const calibrate_bases *bases = s->rows->source->bases;
    uint32_t at[CALIBRATE_FIRST_MAX];
    basis_names basis = {.count = 0};
    first_work work = {.count = 0};
    if (s->status != KVT_OK) return;
    if (bases != NULL) name_candidates(bases, a, &basis);
    for (uint32_t i = 0; i < basis.count; i++)
        work.names[work.count++] = basis.places[i];
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t i = 0; i < usual[g].count; i++)
            work.names[work.count++] = usual[g].names[i];
    s->status = calibrate_measure(s->rows, work.names, work.count, CALIBRATE_PILOT, at);
    if (s->status != KVT_OK) return;
    if (basis.count > 0)
        first_leave(s, &work, basis.places, basis.count, quality_pilot_leaves_bases);
    for (uint32_t g = 0; g < groups; g++)
        first_leave(s, &work, usual[g].names, usual[g].count, quality_pilot_leaves);
    s->status = calibrate_measure(s->rows, work.left, work.left_count, CALIBRATE_ASKED, at);
}

/* ---- rungs ---- */

typedef struct calibrate_names {
    char text[CALIBRATE_RUNGS_MAX][QUALITY_NAME_BYTES];
    const char *places[CALIBRATE_RUNGS_MAX];
    uint32_t count;
} calibrate_names;

__attribute__((format(printf, 2, 3))) static void add_name(calibrate_names *names,
                                                           const char *format, ...)
{
    va_list arguments;
    assert(names->count < CALIBRATE_RUNGS_MAX);
    char *text = names->text[names->count];
    va_start(arguments, format);
    (void)vsnprintf(text, QUALITY_NAME_BYTES, format, arguments);
    va_end(arguments);
    names->places[names->count++] = text;
}

/* Planes share axis and order, so that each can be made of those before it by dropping planes. */
static void name_rungs(const calibrate_answers *a, calibrate_names *names)
{
    static const double steps[] = {0.0625, 0.125, 0.25, 0.5, 0.75, 1.0};
    const bool v_more = a->first[0] != '\0';
    const char *const bits[] = {"k8v8", "k6v6", a->split, "k4v4", v_more ? "k3v4" : "k4v3",
                                "k3v3", "k2v2"};
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++)
        add_name(names, "planes:%s,g64%s%s", bits[i], a->planes_axis, a->first);
    /* No step of V is finer than the finest of K. */
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * a->v_ratio >= steps[0])
            add_name(names, "entropy:k%.6gv%.6g%s%s", steps[i], steps[i] * a->v_ratio,
                     a->entropy_axis, a->centroids);
    for (int kept = 75; kept > 0; kept -= 25)
        add_name(names, "drop:%s,%d+entropy:k0.5v%.6g%s%s", a->drop, kept, 0.5 * a->v_ratio,
                 a->entropy_axis, a->centroids);
}

static bool is_wanted(const calibrate_wanted *wanted, const char *name)
{
    quality_variant variant;
    const bool parsed = quality_variant_parse(name, &variant) == KVT_OK;
    for (uint32_t i = 0; parsed && wanted != NULL && i < wanted->count; i++)
        if (quality_same_variant(wanted->variants[i].variant, variant.variant)) return true;
    return false;
}

/* Those of accepted bases that were not named: 1.5 and 4.5 derive from 0.5, 3 from 1. */
static void name_bases(const calibrate_rows *rows, const calibrate_wanted *wanted,
                       calibrate_names *names)
{
    static const double steps[CALIBRATE_BASIS_STEPS] = {0.5, 1.0, 1.5, 3.0, 4.5};
    for (size_t s = 0; s < TRANSFORM_SPAN_LAYERS4; s++)
        for (size_t i = 0; rows->accepted[s] && i < CALIBRATE_BASIS_STEPS; i++) {
            char name[QUALITY_NAME_BYTES];
            (void)snprintf(name, sizeof name, "transform:%05X,s%g",
                           (unsigned)rows->source->bases->starts[s], steps[i]);
            if (!is_wanted(wanted, name)) add_name(names, "%s", name);
        }
}

/* Measures the rungs: where the pilot is a small part of the entries, those behind the first `kept`
 * that lose there to a cheaper one beyond doubt are measured no further. */
static kvt_status measure_rungs(calibrate_rows *rows, const calibrate_names *names, uint32_t kept,
                                uint32_t *at)
{
    const char *places[CALIBRATE_RUNGS_MAX];
    uint32_t more_at[CALIBRATE_RUNGS_MAX], count = 0;
    bool rungs[CALIBRATE_VARIANTS_MAX] = {false};
    if (CALIBRATE_PILOTS_SHARE * rows->pilot_count > rows->source->entries)
        return calibrate_measure(rows, names->places, names->count, CALIBRATE_ALL, at);
    kvt_status status = calibrate_measure(rows, names->places, names->count, CALIBRATE_PILOT, at);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < names->count; i++)
        if (at[i] != CALIBRATE_NONE) rungs[at[i]] = true;
    for (uint32_t i = kept; i < names->count; i++)
        if (at[i] != CALIBRATE_NONE)
            rows->beaten_by[at[i]] = quality_pilot_beaten_by(rows, rungs, at[i]);
    for (uint32_t i = 0; i < names->count; i++) {
        if (at[i] == CALIBRATE_NONE) continue;
        uint32_t *by = &rows->beaten_by[at[i]];
        if (*by == CALIBRATE_NONE) places[count++] = names->places[i];
        while (*by != CALIBRATE_NONE && rows->beaten_by[*by] != CALIBRATE_NONE)
            *by = rows->beaten_by[*by]; /* bits fall, so this ends at one that is measured on */
    }
    return calibrate_measure(rows, places, count, CALIBRATE_ALL, more_at);
}

static uint32_t count_rows(const calibrate_rows *rows, uint32_t variant, uint32_t class_index)
{
    const calibrate_source *source = rows->source;
    uint32_t count = 0;
    for (uint32_t e = 0; variant != CALIBRATE_NONE && e < source->entries; e++)
        count += (source->classes == NULL || source->classes[e] == class_index) &&
                 calibrate_row_at(rows, e, variant)->present;
    return count;
}

/* Rungs that have rows on at least half of the entries of each class that the best known one of the
 * first `named` has; others were measured for a question alone. */
static uint32_t choose_rungs(calibrate_rows *rows, const calibrate_names *names, uint32_t named,
                             bool are_wanted, const uint32_t *at, uint32_t *rungs)
{
    const uint32_t classes = rows->source->class_count > 1 ? rows->source->class_count : 1;
    uint32_t most[QUALITY_CLASSES_MAX] = {0}, kept = 0;
    for (uint32_t c = 0; c < classes; c++)
        for (uint32_t i = 0; i < named; i++) {
            const uint32_t count = count_rows(rows, at[i], c);
            if (count > most[c]) most[c] = count;
        }
    for (uint32_t i = 0; i < names->count; i++) {
        bool enough = at[i] != CALIBRATE_NONE;
        for (uint32_t c = 0; enough && c < classes; c++)
            enough = rows->beaten_by[at[i]] != CALIBRATE_NONE ||
                     2 * count_rows(rows, at[i], c) >= most[c];
        if (enough) rungs[kept++] = at[i];
        if (enough || (i < named && !are_wanted)) continue;
        struct calibrate_left *left = &rows->left[rows->left_count++];
        *left = (struct calibrate_left){
            .entries = at[i] != CALIBRATE_NONE ? rows->curves[at[i]].entries : 0,
            .named = i < named};
        (void)snprintf(left->name, sizeof left->name, "%s", names->places[i]);
    }
    return kept;
}

uint32_t calibrate_ladder_count(const calibrate_source *source)
{
    return source->class_count > 1 ? source->class_count + 1 : 1;
}

static kvt_status make_ladders(const calibrate_rows *rows, const uint32_t *rungs, uint32_t count,
                               calibrate_ladder *ladders, char *message, size_t message_size)
{
    const calibrate_source *source = rows->source;
    const uint32_t ladder_count = calibrate_ladder_count(source);
    for (uint32_t c = 0; c < ladder_count; c++) {
        const int class_index =
            c > 0 && c == source->class_count ? (int)CALIBRATE_NEW_CLASS : (int)c;
        if (c > 0) memcpy(ladders[c].choices, ladders[0].choices, sizeof ladders[0].choices);
        ladders[c].choice_count = ladders[0].choice_count;
        kvt_status status = calibrate_make_ladder(rows, rungs, count, class_index, &ladders[c]);
        if (status == KVT_E_ARGUMENT)
            (void)snprintf(
                message, message_size,
                "a calibration needs at least two entries that were measured in every variant%s%s",
                ladder_count > 1 ? ": too few of class " : "",
                ladder_count > 1 ? source->class_names[c] : "");
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

kvt_status calibrate_run(const calibrate_source *source, uint64_t seed,
                         const calibrate_wanted *wanted, calibrate_ladder *ladders_out,
                         calibrate_rows *rows_out, char *message, size_t message_size)
{
    calibrate_answers answers = {.entropy_axis = "", .v_ratio = 2.0};
    calibrate_names names = {.count = 0};
    uint32_t at[CALIBRATE_RUNGS_MAX], rungs[CALIBRATE_RUNGS_MAX];
    memset(ladders_out, 0, calibrate_ladder_count(source) * sizeof *ladders_out);
    calibrate_state s = {.rows = rows_out, .ladder = ladders_out, .status = KVT_OK};
    s.status = calibrate_rows_make(rows_out, source, seed);
    if (s.status == KVT_OK && source->entries < 2) {
        (void)snprintf(message, message_size, "a calibration needs at least two entries");
        return KVT_E_ARGUMENT;
    }
    const bool questions = wanted == NULL || wanted->answers;
    ask_first(&s, &answers, questions);
    if (questions) {
        ask_planes(&s, &answers);
        ask_entropy(&s, &answers);
        ask_tables(&s, &answers);
    }
    ask_bases(&s, &answers);
    if (questions) ask_drop(&s, &answers);
    if (s.status != KVT_OK) return s.status;
    if (wanted == NULL) name_rungs(&answers, &names);
    for (uint32_t i = 0; wanted != NULL && i < wanted->count; i++)
        names.places[names.count++] = wanted->variants[i].name;
    const uint32_t named = names.count;
    name_bases(rows_out, wanted, &names);
    kvt_status status = measure_rungs(rows_out, &names, wanted != NULL ? named : 0, at);
    if (status != KVT_OK) return status;
    const uint32_t count = choose_rungs(rows_out, &names, named, wanted != NULL, at, rungs);
    if (count == 0) {
        (void)snprintf(message, message_size, "the layout takes no lossy variant");
        return KVT_E_ARGUMENT;
    }
    return make_ladders(rows_out, rungs, count, ladders_out, message, message_size);
}
