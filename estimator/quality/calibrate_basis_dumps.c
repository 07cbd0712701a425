/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_basis_dumps.c - the bases of a calibration from KV dumps: which dumps teach, how their
 * keys turn, and what an error costs in a basis without a model. Thread rule: see
 * calibrate_internal.h.
 */
#include "codecs/kernels/checksum.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate_internal.h"
#include "estimator/quality/quality_basis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DUMPS_LESSON_BYTES = 256 };

/* The dumps that teach, and those of the tables. */
typedef struct dumps_lesson {
    calibration *c;
    const char **teach, **tables;
    uint64_t *taken; /* digests of both */
    uint32_t teach_count, table_count;
    uint64_t tokens;
    quality_rope rope;
    bool turns; /* rope is known */
    bool positioned, asked;
    uint64_t digest;
    char lesson[DUMPS_LESSON_BYTES];
    calibrate_steps steps;
} dumps_lesson;

/* ---- which dumps teach ---- */

/* The number-th dump of a class that teaches and comes behind those that judge; NULL: none. */
static const char *dumps_next(const calibration *c, uint32_t class_index, uint32_t number)
{
    const calibrate_options *o = c->options;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < o->dump_count; i++) {
        const uint32_t of = o->dump_classes != NULL ? o->dump_classes[i] : 0;
        if (of == class_index && seen++ == c->taken[class_index] + number) return o->dumps[i];
    }
    return NULL;
}

/* The same entry as one that judges, or as one that was taken. */
static bool dumps_are_known(const dumps_lesson *work, uint64_t digest)
{
    const calibration *c = work->c;
    for (uint32_t i = 0; i < c->entry_count; i++)
        if (c->digests[i] == digest) return true;
    for (uint32_t i = 0; i < work->teach_count + work->table_count; i++)
        if (work->taken[i] == digest) return true;
    return false;
}

/* Keys of all dumps turn alike. */
static kvt_status dumps_turn(dumps_lesson *work, const quality_dump *dump, const char *path)
{
    const calibration *c = work->c;
    quality_rope rope;
    if (c->options->rope != NULL) return KVT_OK;
    kvt_status status = quality_dump_rope(dump, path, &rope, c->message, c->message_size);
    if (status == KVT_MISS) {
        (void)snprintf(c->message, c->message_size,
                       "%.300s: the metadata does not say how keys turn (rope_theta or "
                       "rope_frequencies, rope_pairing), and --rope is not given",
                       path);
        return KVT_E_ARGUMENT;
    }
    if (status != KVT_OK) return status;
    if (!work->turns) work->rope = rope;
    work->turns = true;
    if (memcmp(&work->rope, &rope, sizeof rope) == 0) return KVT_OK;
    (void)snprintf(c->message, c->message_size,
                   "%.300s: its keys turn in another way than those of the first dump that teaches",
                   path);
    return KVT_E_ARGUMENT;
}

/* Whether the dump has queries, and says where they stand. */
static kvt_status dumps_look(dumps_lesson *work, const quality_dump *dump, const char *path)
{
    const calibration *c = work->c;
    kvt_status status = KVT_MISS;
    work->asked = work->asked && dump->query_rows > 0;
    if (dump->query_rows > 0) {
        uint32_t *positions = malloc(dump->query_rows * sizeof *positions);
        if (positions == NULL) return KVT_E_MEMORY;
        status = quality_dump_positions(dump, path, positions, c->message, c->message_size);
        free(positions);
    }
    work->positioned = work->positioned && status == KVT_OK;
    return status == KVT_MISS ? KVT_OK : status;
}

static kvt_status dumps_add(dumps_lesson *work, const char *path)
{
    const calibration *c = work->c;
    quality_dump dump;
    kvt_status status = quality_dump_open(path, &dump, c->message, c->message_size);
    if (status != KVT_OK) return status;
    const uint64_t parts[2] = {work->digest, quality_dump_digest(&dump)};
    const uint32_t count = work->teach_count + work->table_count;
    const bool tables = count % CALIBRATE_TABLES_TURN == CALIBRATE_TABLES_TURN - 1;
    if (dumps_are_known(work, parts[1])) goto out;
    if (!calibrate_shape_fits(c, &dump, path)) status = KVT_E_ARGUMENT;
    if (status == KVT_OK) status = dumps_turn(work, &dump, path);
    if (status == KVT_OK && !tables) status = dumps_look(work, &dump, path);
    if (status != KVT_OK) goto out;
    work->digest = checksum_of(parts, sizeof parts);
    work->taken[count] = parts[1];
    if (tables) {
        work->tables[work->table_count++] = path;
        goto out;
    }
    work->teach[work->teach_count++] = path;
    if (dump.layout.tokens > KVT_SINK_TOKENS) work->tokens += dump.layout.tokens - KVT_SINK_TOKENS;
out:
    quality_dump_close(&dump);
    return status;
}

/* Dumps of the classes that teach in turn, until there are enough of them or of their tokens. */
static kvt_status dumps_choose(dumps_lesson *work)
{
    const calibration *c = work->c;
    const calibrate_options *o = c->options;
    bool more = true;
    kvt_status status = KVT_OK;
    for (uint32_t number = 0; more; number++) {
        more = false;
        for (uint32_t i = 0; i < o->class_count; i++) {
            const char *path = calibrate_teaches(o, i) ? dumps_next(c, i, number) : NULL;
            if (path == NULL || work->teach_count + work->table_count >= o->teach_contexts)
                continue;
            if (work->tokens >= o->teach_tokens && work->table_count > 0) continue;
            more = true;
            status = dumps_add(work, path);
            if (status != KVT_OK) return status;
        }
    }
    return work->table_count > 0 ? KVT_OK : calibrate_lacks_documents(c, work->teach_count);
}

/* ---- learning, or finding what was learnt ---- */

static kvt_status dumps_learn(dumps_lesson *work)
{
    calibration *c = work->c;
    quality_bases bases;
    const quality_dump_lesson lesson = {.model = c->report->model.name,
                                        .teach = work->teach,
                                        .teach_count = work->teach_count,
                                        .tables = work->tables,
                                        .table_count = work->table_count,
                                        .rope = &work->rope,
                                        .positioned = work->positioned,
                                        .asked = work->asked,
                                        .digest = work->digest,
                                        .step = calibrate_step,
                                        .context = &work->steps};
    work->steps =
        (calibrate_steps){.c = c, .all = quality_dump_lesson_steps(&lesson, c->layout.layers)};
    kvt_status status = quality_bases_learn_dumps(&lesson, &bases, c->message, c->message_size);
    if (status == KVT_OK) status = calibrate_put_bases(c, work->lesson, &bases);
    quality_bases_free(&bases);
    if (status != KVT_OK) return status;
    c->report->taught = work->teach_count;
    c->report->taught_tokens = work->tokens;
    return KVT_OK;
}

static const char *dumps_metric(const dumps_lesson *work)
{
    if (!work->asked) return "plain, layers weighed by their deviation";
    return work->positioned ? "queries, layers weighed by attention error"
                            : "plain, layers weighed by attention error";
}

static kvt_status dumps_make_room(dumps_lesson *work)
{
    const size_t room = work->c->options->teach_contexts + (size_t)1;
    work->teach = calloc(room, sizeof *work->teach);
    work->tables = calloc(room, sizeof *work->tables);
    work->taken = calloc(room, sizeof *work->taken);
    return work->teach == NULL || work->tables == NULL || work->taken == NULL ? KVT_E_MEMORY
                                                                              : KVT_OK;
}

static kvt_status dumps_prepare(dumps_lesson *work)
{
    const calibration *c = work->c;
    const calibrate_options *o = c->options;
    if (o->rope != NULL && quality_rope_parse(o->rope, c->layout.head_dim, &work->rope) != KVT_OK) {
        (void)snprintf(c->message, c->message_size,
                       "%.80s: keys turn by THETA,halves or THETA,neighbours[,DIM] of at most %u "
                       "channels, or none",
                       o->rope, (unsigned)c->layout.head_dim);
        return KVT_E_ARGUMENT;
    }
    const kvt_status status = dumps_choose(work);
    (void)snprintf(work->lesson, sizeof work->lesson,
                   "{\"dumps\":\"%016llx\",\"teach\":%u,\"tables\":%u,\"rope\":\"%016llx\","
                   "\"queries\":%d,\"library\":\"%s\"}",
                   (unsigned long long)work->digest, (unsigned)work->teach_count,
                   (unsigned)work->table_count,
                   (unsigned long long)checksum_of(&work->rope, sizeof work->rope),
                   work->asked + work->positioned, profile_library_version);
    return status;
}

kvt_status calibrate_learn_dumps(calibration *c)
{
    dumps_lesson *work = calloc(1, sizeof *work);
    if (work == NULL) return KVT_E_MEMORY;
    work->c = c;
    work->positioned = work->asked = true;
    kvt_status status = dumps_make_room(work);
    if (status == KVT_OK) status = dumps_prepare(work);
    if (status == KVT_OK) status = calibrate_find_bases(c, work->lesson);
    if (status == KVT_MISS) status = c->options->finish ? KVT_OK : dumps_learn(work);
    c->bases.metric = dumps_metric(work);
    free((void *)work->teach);
    free((void *)work->tables);
    free(work->taken);
    free(work);
    return status;
}
