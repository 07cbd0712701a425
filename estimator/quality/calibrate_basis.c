/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_basis.c - the bases of a calibration: learnt on entries of the classes that teach which
 * are judged nowhere, kept in the profile as soon as they are there, and found again by what they
 * follow from, so that a calibration that goes on learns nothing twice. Thread rule: see
 * calibrate_internal.h.
 */
#include "codecs/kernels/checksum.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEARN_TURN = 4,      /* of so many entries that teach one makes tables */
    LEARN_DOCUMENTS = 3, /* entries that are read for each that teaches: some share a document
                              with one that judges */
    LEARN_TEXT_BYTES = 256
};

/* The entries that teach, and those of the tables. */
typedef struct learn_work {
    calibration *c;
    const void **teach, **tables;
    quality_identity *taken; /* of both, in the order of taking */
    uint32_t teach_count, table_count, count;
    uint64_t tokens, digest;
    char lesson[LEARN_TEXT_BYTES];
    uint32_t steps, steps_all;
} learn_work;

static bool learn_teaches(const calibrate_options *o, uint32_t class_index)
{
    return o->teaches != NULL ? o->teaches[class_index] : class_index == 0;
}

uint32_t calibrate_entries_read(const calibrate_options *o, uint32_t class_index)
{
    if (!o->basis || !learn_teaches(o, class_index)) return o->contexts;
    return o->contexts + LEARN_DOCUMENTS * o->teach_contexts;
}

/* ---- which entries teach ---- */

/* Of one document, or the same KV: a file may be given for two classes. */
static bool learn_is_same(const quality_identity *a, const quality_identity *b)
{
    if (a->document != 0 && a->document == b->document) return true;
    return a->layout.tokens == b->layout.tokens && a->content == b->content;
}

static bool learn_is_known(const learn_work *work, const quality_identity *identity)
{
    const calibration *c = work->c;
    for (uint32_t i = 0; i < c->entry_count; i++)
        if (learn_is_same(&c->identities[i], identity)) return true;
    for (uint32_t i = 0; i < work->count; i++)
        if (learn_is_same(&work->taken[i], identity)) return true;
    return false;
}

/* Takes the next entry of a class from *next on that may teach, if there is one. */
static kvt_status learn_next(learn_work *work, uint32_t class_index, uint32_t *next)
{
    calibration *c = work->c;
    const quality_source_type *type = c->source.type;
    const bool tables = work->count % LEARN_TURN == LEARN_TURN - 1;
    quality_identity *identity = &work->taken[work->count];
    const void *entry;
    do {
        entry = calibrate_candidate(c, class_index, (*next)++);
        if (entry == NULL) return KVT_OK;
        kvt_status status = type->identify(&c->source, entry, identity);
        if (status != KVT_OK) return status;
    } while (identity->layout.tokens <= KVT_SINK_TOKENS || learn_is_known(work, identity));
    kvt_status status = type->admit != NULL ? type->admit(&c->source, entry, tables) : KVT_OK;
    if (status != KVT_OK) return status;
    work->digest = quality_identity_chain(identity, work->digest);
    work->count++;
    if (tables) {
        work->tables[work->table_count++] = entry;
    } else {
        work->teach[work->teach_count++] = entry;
        work->tokens += identity->layout.tokens - KVT_SINK_TOKENS;
    }
    return KVT_OK;
}

/* Takes entries of the teaching classes, one of each class in turn, until there are enough entries
 * or enough tokens. */
static kvt_status learn_choose(learn_work *work)
{
    const calibration *c = work->c;
    const calibrate_options *o = c->options;
    uint32_t next[QUALITY_CLASSES_MAX] = {0}, before;
    for (uint32_t i = 0; i < o->class_count; i++)
        next[i] = c->taken[i];
    do {
        before = work->count;
        for (uint32_t i = 0; i < o->class_count; i++) {
            if (!learn_teaches(o, i) || work->count >= o->teach_contexts) continue;
            if (work->tokens >= o->teach_tokens && work->table_count > 0) continue;
            const kvt_status status = learn_next(work, i, &next[i]);
            if (status != KVT_OK) return status;
        }
    } while (work->count > before);
    if (work->table_count > 0) return KVT_OK;
    (void)snprintf(c->message, c->message_size,
                   "a basis takes four documents or more of the classes that teach which do not "
                   "judge, and %u are left: fewer --contexts, or more documents",
                   (unsigned)work->teach_count);
    return KVT_E_ARGUMENT;
}

/* ---- bases of the profile ---- */

/* KVT_MISS: it has none of heads, and so none. */
static kvt_status learn_find(learn_work *work)
{
    calibration *c = work->c;
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        status = profile_basis_find(c->profile, c->model, work->lesson, s + 1, &c->owned[s]);
        if (status == KVT_MISS && s > 0) status = KVT_OK; /* too wide, or too large for a profile */
    }
    return status;
}

/* Puts bases into the profile and takes them from there: all of them, or none. */
static kvt_status learn_put(learn_work *work, const quality_bases *bases)
{
    const calibration *c = work->c;
    sqlite3 *database = c->profile->database;
    kvt_status status = profile_status(sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL));
    if (status != KVT_OK) return status;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        if (bases->objects[s] == NULL) continue;
        status = profile_basis_put(c->profile, c->run, c->model, work->lesson, bases->objects[s],
                                   bases->bytes[s]);
        if (status == KVT_E_SPACE && s > 0) status = KVT_OK;
        if (status == KVT_EXISTS) status = KVT_OK;
    }
    if (status == KVT_OK)
        status = profile_status(sqlite3_exec(database, "COMMIT", NULL, NULL, NULL));
    if (status != KVT_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status == KVT_OK ? learn_find(work) : status;
}

/* ---- learning, or finding what was learnt ---- */

static bool learn_step(void *context, const char *what)
{
    learn_work *work = context;
    const calibrate_options *o = work->c->options;
    const double share = (double)work->steps++ / work->steps_all;
    return o->progress == NULL || o->progress(o->progress_context, share, what);
}

static kvt_status learn_now(learn_work *work)
{
    calibration *c = work->c;
    quality_bases bases;
    const quality_lesson lesson = {.source = &c->source,
                                   .teach = work->teach,
                                   .teach_count = work->teach_count,
                                   .tables = work->tables,
                                   .table_count = work->table_count,
                                   .digest = work->digest,
                                   .step = learn_step,
                                   .context = work};
    work->steps_all = quality_lesson_steps(&lesson, c->layout.layers);
    kvt_status status = quality_lesson_learn(&lesson, &bases);
    if (status == KVT_OK) status = learn_put(work, &bases);
    quality_bases_free(&bases);
    if (status != KVT_OK) return status;
    c->report->taught = work->teach_count;
    c->report->taught_tokens = work->tokens;
    return KVT_OK;
}

/* The settings that bases follow from, as JSON: equal ones make equal bases. */
static void learn_describe(learn_work *work)
{
    const quality_source *source = &work->c->source;
    const bool texts = source->type->outputs != NULL;
    char more[64] = "";
    if (!texts)
        (void)snprintf(more, sizeof more, "\"rope\":\"%016llx\",\"queries\":%d,",
                       (unsigned long long)checksum_of(&source->rope, sizeof source->rope),
                       source->asked + source->positioned);
    (void)snprintf(work->lesson, sizeof work->lesson,
                   "{\"%s\":\"%016llx\",\"teach\":%u,\"tables\":%u,%s\"library\":\"%s\"}",
                   texts ? "texts" : "dumps", (unsigned long long)work->digest,
                   (unsigned)work->teach_count, (unsigned)work->table_count, more,
                   profile_library_version);
}

static const char *learn_metric(const quality_source *source)
{
    if (source->type->outputs != NULL)
        return "queries and output projections, layers weighed by KL";
    if (!source->asked) return "plain, layers weighed by their deviation";
    return source->positioned ? "queries, layers weighed by attention error"
                              : "plain, layers weighed by attention error";
}

static void learn_list(calibration *c)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (c->owned[s].object == NULL) continue;
        c->views[count++] = &c->owned[s].view;
        c->bases.present[s] = true;
        c->bases.starts[s] = transform_hash_start(c->owned[s].view.hash);
    }
    c->listed = (kvt_record_bases){c->views, count};
    c->bases.metric = learn_metric(&c->source);
    for (uint32_t i = 0; i < c->options->class_count; i++)
        c->bases.taught[i] = learn_teaches(c->options, i);
}

kvt_status calibrate_learn(calibration *c)
{
    const size_t room = c->options->teach_contexts + (size_t)1;
    learn_work work = {.c = c,
                       .teach = calloc(room, sizeof *work.teach),
                       .tables = calloc(room, sizeof *work.tables),
                       .taken = calloc(room, sizeof *work.taken)};
    kvt_status status =
        work.teach == NULL || work.tables == NULL || work.taken == NULL ? KVT_E_MEMORY : KVT_OK;
    if (status == KVT_OK) status = learn_choose(&work);
    learn_describe(&work);
    if (status == KVT_OK) status = learn_find(&work);
    if (status == KVT_MISS) status = c->options->finish ? KVT_OK : learn_now(&work);
    if (status == KVT_OK) learn_list(c);
    free((void *)work.teach);
    free((void *)work.tables);
    free(work.taken);
    return status;
}
