/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_basis_dumps.c - learns bases on KV dumps: see quality_basis.h.
 *
 * Dumps are loaded one after the other; those of noise and of the tables are loaded again where
 * they are needed again, so that one entry is in memory at a time.
 */
#include "estimator/quality/quality_basis.h"

#include "estimator/quality/basis_learners.h"
#include "estimator/quality/quality_round_trip.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DUMPS_NOISY = 2,     /* dumps with noise */
    DUMPS_LISTENERS = 32 /* query rows of one, at most, that noise is judged by */
};

typedef struct dump_run {
    const quality_dump_lesson *lesson;
    basis_learners learners;
    kvt_layout first; /* of the first dump; its shape is everybody's */
    uint32_t heads;   /* of queries */
    quality_dump dump;
    const char *path; /* of the dump */
    uint8_t *source;  /* its entry */
    char *message;
    size_t message_size;
} dump_run;

__attribute__((format(printf, 3, 4))) static kvt_status
dump_fail(const dump_run *run, kvt_status status, const char *format, ...)
{
    const int used = snprintf(run->message, run->message_size, "%.300s: ", run->path);
    va_list arguments;
    if (used < 0 || (size_t)used >= run->message_size) return status;
    va_start(arguments, format);
    (void)vsnprintf(run->message + used, run->message_size - (size_t)used, format, arguments);
    va_end(arguments);
    return status;
}

static kvt_status dump_step(const dump_run *run, const char *what)
{
    const quality_dump_lesson *lesson = run->lesson;
    return lesson->step == NULL || lesson->step(lesson->context, what) ? KVT_OK : KVT_E_CANCELLED;
}

static void dump_close(dump_run *run)
{
    free(run->source);
    run->source = NULL;
    quality_dump_close(&run->dump);
}

static kvt_status dump_check(const dump_run *run)
{
    const kvt_layout *layout = &run->dump.layout, *first = &run->first;
    if (layout->layers != first->layers || layout->kv_heads != first->kv_heads ||
        layout->head_dim != first->head_dim || (run->lesson->asked && run->dump.query_rows == 0) ||
        (run->dump.query_rows > 0 && run->heads > 0 && run->dump.query_heads != run->heads))
        return dump_fail(run, KVT_E_ARGUMENT, "another shape than that of the first dump");
    if (layout->tokens <= KVT_SINK_TOKENS)
        return dump_fail(run, KVT_E_ARGUMENT, "no token behind the first %u, which are stored raw",
                         (unsigned)KVT_SINK_TOKENS);
    return KVT_OK;
}

/* Opens a dump and loads its entry. */
static kvt_status dump_load(dump_run *run, const char *path)
{
    uint64_t bytes = 0;
    run->path = path;
    kvt_status status = quality_dump_open(path, &run->dump, run->message, run->message_size);
    if (status != KVT_OK) return status;
    if (run->first.layers == 0) run->first = run->dump.layout;
    if (run->heads == 0) run->heads = run->dump.query_heads;
    status = dump_check(run);
    if (status == KVT_OK) status = kvt_layout_bytes(&run->dump.layout, &bytes);
    if (status == KVT_OK) run->source = malloc(bytes);
    if (status == KVT_OK && run->source == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) quality_dump_load(&run->dump, run->source);
    return status;
}

static kvt_status dump_open_learners(dump_run *run)
{
    const quality_rope *rope = run->lesson->rope;
    const transform_shape shape = {.layers = run->first.layers,
                                   .kv_heads = run->first.kv_heads,
                                   .head_dim = run->first.head_dim,
                                   .rotary_dim = rope->rotary_dim,
                                   .sides = 2,
                                   .pairing = rope->pairing};
    const kvt_status status = basis_learners_open(&shape, rope->frequencies, &run->learners);
    if (status != KVT_E_ARGUMENT) return status;
    return dump_fail(run, status, "no basis is made for entries of this shape");
}

/* Queries turn back by their own positions, which need not follow each other. */
static kvt_status dump_give_queries(dump_run *run)
{
    const quality_dump *dump = &run->dump;
    const size_t row = (size_t)dump->query_heads * dump->layout.head_dim;
    uint32_t *positions = malloc(dump->query_rows * sizeof *positions);
    float *queries = malloc(dump->query_rows * row * sizeof *queries);
    kvt_status status = positions == NULL || queries == NULL ? KVT_E_MEMORY : KVT_OK;
    if (status == KVT_OK)
        status =
            quality_dump_positions(dump, run->path, positions, run->message, run->message_size);
    if (status == KVT_MISS)
        status = dump_fail(run, KVT_E_ARGUMENT, "the dump does not say where its queries stand");
    for (uint32_t layer = 0; status == KVT_OK && layer < dump->layout.layers; layer++) {
        quality_dump_layer_queries(dump, layer, queries);
        for (uint32_t r = 0; r < dump->query_rows; r++)
            basis_learners_queries(&run->learners, layer, queries + r * row, 1, dump->query_heads,
                                   positions[r]);
    }
    free(positions);
    free(queries);
    return status;
}

static kvt_status dump_feed(dump_run *run, basis_purpose purpose)
{
    const kvt_status status =
        basis_learners_entry(&run->learners, purpose, &run->dump.layout, run->source);
    if (status != KVT_E_UNSUPPORTED) return status;
    return dump_fail(run, status, "elements that are not finite, or from 2^60 on");
}

static kvt_status dump_teach(dump_run *run, const char *path)
{
    kvt_status status = dump_step(run, "dumps");
    if (status == KVT_OK) status = dump_load(run, path);
    if (status == KVT_OK && run->learners.logs == NULL) status = dump_open_learners(run);
    if (status == KVT_OK && run->lesson->positioned) status = dump_give_queries(run);
    if (status == KVT_OK) status = dump_feed(run, BASIS_LEARN);
    dump_close(run);
    return status;
}

/* ---- noise ---- */

static kvt_status dump_listen_to(dump_run *run, quality_attention *attention, float *noise)
{
    const kvt_layout *layout = &run->dump.layout;
    const uint64_t row = (uint64_t)layout->kv_heads * layout->head_dim;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < 2u * layout->layers; i++) {
        const kvt_side side = i % 2 == 0 ? KVT_SIDE_K : KVT_SIDE_V;
        double size, error;
        status = dump_step(run, "noise");
        if (status == KVT_OK)
            status = basis_learners_noise(&run->learners, i / 2, side, layout->tokens,
                                          run->lesson->rope->frequencies, noise, &size);
        if (status != KVT_OK) break;
        memset(noise, 0, KVT_SINK_TOKENS * row * sizeof *noise);
        quality_attention_disturb(attention, i / 2, side, noise, &error);
        basis_learners_hear(&run->learners, i / 2, side, size, error);
    }
    if (status == KVT_E_CORRUPT) return dump_fail(run, status, "queries that are not finite");
    return status;
}

/* Hears what noise does to attention over one dump, of each layer and side. */
static kvt_status dump_listen(dump_run *run, const char *path)
{
    quality_attention *attention = NULL;
    float *noise = NULL;
    kvt_status status = dump_load(run, path);
    const quality_dump *dump = &run->dump;
    const uint32_t rows =
        dump->query_rows < DUMPS_LISTENERS ? dump->query_rows : (uint32_t)DUMPS_LISTENERS;
    if (status == KVT_OK)
        status = quality_attention_open(&dump->layout, dump->query_heads, rows, &attention);
    if (status == KVT_OK)
        noise = malloc((size_t)dump->layout.tokens * dump->layout.kv_heads * dump->layout.head_dim *
                       sizeof *noise);
    if (status == KVT_OK && noise == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) {
        quality_dump_load(dump, quality_attention_source(attention));
        quality_dump_load_queries(dump, rows, quality_attention_queries(attention));
        quality_attention_exact(attention);
        status = dump_listen_to(run, attention, noise);
    }
    run->learners.heard++;
    free(noise);
    quality_attention_close(attention);
    dump_close(run);
    return status;
}

/* ---- the whole ---- */

static kvt_status dump_learn(dump_run *run)
{
    const quality_dump_lesson *lesson = run->lesson;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < lesson->teach_count; i++)
        status = dump_teach(run, lesson->teach[i]);
    for (uint32_t i = 0; lesson->asked && i < lesson->teach_count && i < DUMPS_NOISY; i++)
        if (status == KVT_OK) status = dump_listen(run, lesson->teach[i]);
    return status == KVT_OK ? basis_learners_solve(&run->learners) : status;
}

/* Spreads of all dumps of the tables, then their codes. */
static kvt_status dump_count(dump_run *run)
{
    static const basis_purpose purposes[] = {BASIS_SPREAD, BASIS_COUNT};
    const quality_dump_lesson *lesson = run->lesson;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < 2 * lesson->table_count; i++) {
        status = dump_step(run, "tables");
        if (status == KVT_OK) status = dump_load(run, lesson->tables[i % lesson->table_count]);
        if (status == KVT_OK) status = dump_feed(run, purposes[i / lesson->table_count]);
        dump_close(run);
    }
    return status;
}

uint32_t quality_dump_lesson_steps(const quality_dump_lesson *lesson, uint32_t layers)
{
    const uint32_t noisy =
        lesson->teach_count < DUMPS_NOISY ? lesson->teach_count : (uint32_t)DUMPS_NOISY;
    return lesson->teach_count + 2 * lesson->table_count + (lesson->asked ? 2 * noisy * layers : 0);
}

kvt_status quality_bases_learn_dumps(const quality_dump_lesson *lesson, quality_bases *bases_out,
                                     char *message, size_t message_size)
{
    dump_run run = {
        .lesson = lesson, .path = lesson->model, .message = message, .message_size = message_size};
    memset(bases_out, 0, sizeof *bases_out);
    if (lesson->teach_count == 0 || lesson->table_count == 0) return KVT_E_ARGUMENT;
    kvt_status status = dump_learn(&run);
    if (status == KVT_OK) status = dump_count(&run);
    if (status == KVT_OK)
        status = basis_learners_finish(&run.learners, lesson->model, lesson->digest, bases_out);
    if (status == KVT_E_CORRUPT && message[0] == '\0')
        (void)snprintf(message, message_size,
                       "no basis follows from these dumps: elements or queries that do not vary, "
                       "or are not finite");
    basis_learners_close(&run.learners);
    return status;
}
