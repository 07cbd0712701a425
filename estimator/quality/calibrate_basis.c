/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_basis.c - the bases of a calibration: learnt on documents of the classes that teach
 * which are judged nowhere, kept in the profile as soon as they are there, and found again by what
 * they follow from, so that a calibration that goes on learns nothing twice. Thread rule: see
 * calibrate_internal.h.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate_internal.h"
#include "estimator/quality/quality_basis.h"
#include "estimator/quality/quality_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEARN_DOCUMENTS = 3, /* entries that are read for each that teaches: some share a document
                              with one that judges */
    LEARN_TEXT_BYTES = 256
};

/* The contexts that teach and those of the tables. */
typedef struct learn_work {
    calibration *c;
    const quality_entry **teach, **tables;
    uint32_t teach_count, table_count, room;
    uint64_t tokens, digest;
    char lesson[LEARN_TEXT_BYTES];
    calibrate_steps steps;
} learn_work;

bool calibrate_teaches(const calibrate_options *o, uint32_t class_index)
{
    return o->teaches != NULL ? o->teaches[class_index] : class_index == 0;
}

uint32_t calibrate_entries_read(const calibrate_options *o, uint32_t class_index)
{
    if (!o->basis || !calibrate_teaches(o, class_index)) return o->contexts;
    return o->contexts + LEARN_DOCUMENTS * o->teach_contexts;
}

/* ---- which documents teach ---- */

/* Of one document, or the same text: a file may be given for two classes. */
static bool learn_is_same(const quality_entry *a, const quality_entry *b)
{
    if (a->document != 0 && a->document == b->document) return true;
    return a->context_tokens == b->context_tokens &&
           memcmp(a->tokens, b->tokens, a->context_tokens * sizeof *a->tokens) == 0;
}

static bool learn_is_judged(const calibration *c, const quality_entry *entry)
{
    for (uint32_t i = 0; i < c->entry_count; i++)
        if (learn_is_same(&c->entries[i], entry)) return true;
    return false;
}

static bool learn_is_taken(const learn_work *work, const quality_entry *entry)
{
    for (uint32_t i = 0; i < work->teach_count + work->table_count; i++) {
        const quality_entry *taken =
            i < work->teach_count ? work->teach[i] : work->tables[i - work->teach_count];
        if (learn_is_same(taken, entry)) return true;
    }
    return false;
}

/* The next entry of a class from *next on that may teach; NULL: there is none. */
static const quality_entry *learn_next(const learn_work *work, uint32_t class_index, uint32_t *next)
{
    const quality_entries *texts = &work->c->texts[class_index];
    while (*next < texts->count) {
        const quality_entry *entry = &texts->entries[(*next)++];
        if (entry->context_tokens <= KVT_SINK_TOKENS) continue;
        if (!learn_is_judged(work->c, entry) && !learn_is_taken(work, entry)) return entry;
    }
    return NULL;
}

static void learn_add(learn_work *work, const quality_entry *entry)
{
    const uint64_t parts[3] = {
        work->digest, entry->context_tokens,
        checksum_of(entry->tokens,
                    (entry->context_tokens + entry->continuation_tokens) * sizeof *entry->tokens)};
    work->digest = checksum_of(parts, sizeof parts);
    if ((work->teach_count + work->table_count) % CALIBRATE_TABLES_TURN ==
        CALIBRATE_TABLES_TURN - 1) {
        work->tables[work->table_count++] = entry;
        return;
    }
    work->teach[work->teach_count++] = entry;
    work->tokens += entry->context_tokens - KVT_SINK_TOKENS;
}

/* Entries of the classes that teach in turn, until there are enough of them or of their tokens. */
static kvt_status learn_choose(learn_work *work)
{
    calibration *c = work->c;
    const calibrate_options *o = c->options;
    uint32_t next[QUALITY_CLASSES_MAX] = {0}, before;
    for (uint32_t i = 0; i < o->class_count; i++)
        next[i] = c->taken[i];
    do {
        before = work->teach_count + work->table_count;
        for (uint32_t i = 0; i < o->class_count; i++) {
            if (!calibrate_teaches(o, i) || work->teach_count + work->table_count >= work->room)
                continue;
            if (work->tokens >= o->teach_tokens && work->table_count > 0) continue;
            const quality_entry *entry = learn_next(work, i, &next[i]);
            if (entry != NULL) learn_add(work, entry);
        }
    } while (work->teach_count + work->table_count > before);
    return work->table_count > 0 ? KVT_OK : calibrate_lacks_documents(c, work->teach_count);
}

/* ---- learning, or finding what was learnt ---- */

bool calibrate_step(void *steps, const char *what)
{
    calibrate_steps *at = steps;
    const calibrate_options *o = at->c->options;
    const double share = (double)at->done++ / at->all;
    return o->progress == NULL || o->progress(o->progress_context, share, what);
}

static kvt_status learn_now(learn_work *work)
{
    calibration *c = work->c;
    quality_bases bases;
    quality_basis_lesson lesson = {.target = &c->measured,
                                   .teach = work->teach,
                                   .teach_count = work->teach_count,
                                   .tables = work->tables,
                                   .table_count = work->table_count,
                                   .digest = work->digest,
                                   .step = calibrate_step,
                                   .context = &work->steps};
    work->steps = (calibrate_steps){.c = c, .all = quality_bases_runs(&lesson)};
    kvt_status status = quality_bases_learn(&lesson, &bases);
    if (status == KVT_OK) status = calibrate_put_bases(c, work->lesson, &bases);
    quality_bases_free(&bases);
    if (status == KVT_E_CORRUPT || status == KVT_E_UNSUPPORTED)
        (void)snprintf(c->message, c->message_size,
                       "no basis follows from these documents: %s (elements that are not finite, "
                       "or keys without queries)",
                       kvt_status_text(status));
    if (status != KVT_OK) return status;
    c->report->taught = work->teach_count;
    c->report->taught_tokens = work->tokens;
    return KVT_OK;
}

kvt_status calibrate_learn_texts(calibration *c)
{
    const calibrate_options *o = c->options;
    learn_work work = {.c = c, .room = o->teach_contexts};
    work.teach = calloc(work.room + 1u, sizeof *work.teach);
    work.tables = calloc(work.room + 1u, sizeof *work.tables);
    kvt_status status = work.teach == NULL || work.tables == NULL ? KVT_E_MEMORY : KVT_OK;
    if (status == KVT_OK) status = learn_choose(&work);
    (void)snprintf(work.lesson, sizeof work.lesson,
                   "{\"texts\":\"%016llx\",\"teach\":%u,\"tables\":%u,\"library\":\"%s\"}",
                   (unsigned long long)work.digest, (unsigned)work.teach_count,
                   (unsigned)work.table_count, profile_library_version);
    if (status == KVT_OK) status = calibrate_find_bases(c, work.lesson);
    if (status == KVT_MISS) status = o->finish ? KVT_OK : learn_now(&work);
    c->bases.metric = "queries and output projections, layers weighed by KL";
    free((void *)work.teach);
    free((void *)work.tables);
    return status;
}

/* ---- bases of the profile ---- */

kvt_status calibrate_lacks_documents(const calibration *c, uint32_t left)
{
    (void)snprintf(c->message, c->message_size,
                   "a basis takes four documents or more of the classes that teach which do not "
                   "judge, and %u are left: fewer --contexts, or more documents",
                   (unsigned)left);
    return KVT_E_ARGUMENT;
}

kvt_status calibrate_find_bases(calibration *c, const char *lesson)
{
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < TRANSFORM_SPAN_LAYERS4; s++) {
        status = profile_basis_find(c->profile, c->model, lesson, s + 1, &c->owned[s]);
        if (status == KVT_MISS && s > 0) status = KVT_OK; /* too wide, or too large for a profile */
    }
    return status;
}

kvt_status calibrate_put_bases(calibration *c, const char *lesson, const quality_bases *bases)
{
    sqlite3 *database = c->profile->database;
    kvt_status status = profile_status(sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL));
    if (status != KVT_OK) return status;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        if (bases->objects[s] == NULL) continue;
        status = profile_basis_put(c->profile, c->run, c->model, lesson, bases->objects[s],
                                   bases->bytes[s]);
        if (status == KVT_E_SPACE && s > 0) status = KVT_OK;
        if (status == KVT_EXISTS) status = KVT_OK;
    }
    if (status == KVT_OK)
        status = profile_status(sqlite3_exec(database, "COMMIT", NULL, NULL, NULL));
    if (status != KVT_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status == KVT_OK ? calibrate_find_bases(c, lesson) : status;
}

static void learn_list(calibration *c)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < TRANSFORM_SPAN_LAYERS4; s++) {
        if (c->owned[s].object == NULL) continue;
        c->views[count++] = &c->owned[s].view;
        c->bases.present[s] = true;
        c->bases.starts[s] = transform_hash_start(c->owned[s].view.hash);
    }
    c->listed = (kvt_record_bases){c->views, count};
    for (uint32_t i = 0; i < c->options->class_count; i++)
        c->bases.taught[i] = calibrate_teaches(c->options, i);
}

kvt_status calibrate_learn(calibration *c)
{
    const kvt_status status =
        c->options->model != NULL ? calibrate_learn_texts(c) : calibrate_learn_dumps(c);
    if (status == KVT_OK) learn_list(c);
    return status;
}
