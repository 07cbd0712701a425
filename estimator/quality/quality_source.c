/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_source.c - what both sources share, and the one pass that learns bases of either: see
 * quality_source.h.
 *
 * One entry is open at a time; those of noise and of the tables are opened again.
 */
#include "estimator/quality/quality_source.h"

#include "codecs/kernels/checksum.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LESSON_NOISY = 2 /* entries with noise */ };

uint64_t quality_identity_chain(const quality_identity *identity, uint64_t digest)
{
    uint64_t parts[3] = {digest};
    memcpy(parts + 1, identity->link, identity->links * sizeof parts[0]);
    return checksum_of(parts, (1 + identity->links) * sizeof parts[0]);
}

kvt_status quality_source_refuse(const quality_source *source, kvt_status status,
                                 const char *format, ...)
{
    int used = 0;
    va_list arguments;
    if (source->at != NULL)
        used = snprintf(source->message, source->message_size, "%.300s: ", source->at);
    if (used < 0 || (size_t)used >= source->message_size) return status;
    va_start(arguments, format);
    (void)vsnprintf(source->message + used, source->message_size - (size_t)used, format, arguments);
    va_end(arguments);
    return status;
}

kvt_status quality_source_open(quality_source *source, const void *entry, quality_kv *kv)
{
    *kv = (quality_kv){.bytes = NULL};
    const kvt_status status = source->type->open(source, entry, kv);
    if (status != KVT_OK) quality_source_close(kv);
    return status;
}

void quality_source_close(quality_kv *kv)
{
    free(kv->bytes);
    evaluate_entry_close(kv->judged);
    quality_attention_close(kv->attention);
    quality_dump_close(&kv->dump);
    *kv = (quality_kv){.bytes = NULL};
}

void quality_source_end(quality_source *source)
{
    evaluate_variant_close(&source->changed);
    model_session_close(source->session);
    source->session = NULL;
}

/* ---- learning ---- */

typedef struct lesson_run {
    const quality_lesson *lesson;
    basis_learners learners;
    quality_kv kv; /* of the present entry */
} lesson_run;

static kvt_status lesson_step(const lesson_run *run, const char *what)
{
    const quality_lesson *lesson = run->lesson;
    return lesson->step == NULL || lesson->step(lesson->context, what) ? KVT_OK : KVT_E_CANCELLED;
}

static kvt_status lesson_open(lesson_run *run, const void *entry, const char *what)
{
    quality_source *source = run->lesson->source;
    kvt_status status = lesson_step(run, what);
    if (status == KVT_OK) status = quality_source_open(source, entry, &run->kv);
    if (status != KVT_OK || run->kv.layout.tokens > KVT_SINK_TOKENS) return status;
    return quality_source_refuse(source, KVT_E_ARGUMENT,
                                 "no token behind the first %u, which are stored raw",
                                 (unsigned)KVT_SINK_TOKENS);
}

static kvt_status lesson_open_learners(lesson_run *run)
{
    quality_source *source = run->lesson->source;
    const quality_rope *rope = &source->rope;
    const transform_shape shape = {.layers = run->kv.layout.layers,
                                   .kv_heads = run->kv.layout.kv_heads,
                                   .head_dim = run->kv.layout.head_dim,
                                   .rotary_dim = rope->rotary_dim,
                                   .sides = 2,
                                   .pairing = rope->pairing};
    kvt_status status = basis_learners_open(&shape, rope->frequencies, &run->learners);
    if (status == KVT_E_ARGUMENT)
        return quality_source_refuse(source, status, "no basis is made for entries of this shape");
    if (status == KVT_OK && source->type->outputs != NULL)
        status = source->type->outputs(source, &run->learners);
    return status;
}

static kvt_status lesson_feed(lesson_run *run, basis_purpose purpose)
{
    kvt_layout layout = run->kv.layout;
    const void *entry = run->kv.bytes;
    void *widened;
    kvt_status status = quality_widen(&layout, &entry, &widened);
    if (status == KVT_OK) status = basis_learners_entry(&run->learners, purpose, &layout, entry);
    free(widened);
    if (status != KVT_E_UNSUPPORTED) return status;
    return quality_source_refuse(run->lesson->source, status,
                                 "elements that are not finite, or from 2^60 on");
}

static kvt_status lesson_teach(lesson_run *run, const void *entry)
{
    quality_source *source = run->lesson->source;
    kvt_status status = lesson_open(run, entry, source->type->entries);
    if (status == KVT_OK && run->learners.logs == NULL) status = lesson_open_learners(run);
    if (status == KVT_OK) status = source->type->queries(source, &run->kv, &run->learners);
    if (status == KVT_OK) status = lesson_feed(run, BASIS_LEARN);
    quality_source_close(&run->kv);
    return status;
}

/* Hears what noise does to what follows an entry, of each layer and side. */
static kvt_status lesson_listen(lesson_run *run, const void *entry)
{
    quality_source *source = run->lesson->source;
    float *noise = NULL;
    kvt_status status = lesson_open(run, entry, source->type->entries);
    const kvt_layout *layout = &run->kv.layout;
    const size_t row = (size_t)layout->kv_heads * layout->head_dim;
    if (status == KVT_OK) noise = malloc(layout->tokens * row * sizeof *noise);
    if (status == KVT_OK && noise == NULL) status = KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < 2u * layout->layers; i++) {
        const kvt_side side = i % 2 == 0 ? KVT_SIDE_K : KVT_SIDE_V;
        double size, error;
        status = lesson_step(run, "noise");
        if (status == KVT_OK)
            status = basis_learners_noise(&run->learners, i / 2, side, layout->tokens,
                                          source->rope.frequencies, noise, &size);
        if (status == KVT_E_CORRUPT)
            status = quality_source_refuse(source, status, "queries that are not finite");
        if (status != KVT_OK) break;
        memset(noise, 0, KVT_SINK_TOKENS * row * sizeof *noise);
        status = source->type->disturb(source, &run->kv, i / 2, side, noise, &error);
        if (status == KVT_OK) basis_learners_hear(&run->learners, i / 2, side, size, error);
    }
    run->learners.heard++;
    free(noise);
    quality_source_close(&run->kv);
    return status;
}

static uint32_t lesson_noisy(const quality_lesson *lesson)
{
    if (!lesson->source->asked) return 0;
    return lesson->teach_count < LESSON_NOISY ? lesson->teach_count : (uint32_t)LESSON_NOISY;
}

/* Spreads of all entries of the tables, then their codes. */
static kvt_status lesson_count(lesson_run *run)
{
    static const basis_purpose purposes[] = {BASIS_SPREAD, BASIS_COUNT};
    const quality_lesson *lesson = run->lesson;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < 2 * lesson->table_count; i++) {
        status = lesson_open(run, lesson->tables[i % lesson->table_count], "tables");
        if (status == KVT_OK) status = lesson_feed(run, purposes[i / lesson->table_count]);
        quality_source_close(&run->kv);
    }
    return status;
}

uint32_t quality_lesson_steps(const quality_lesson *lesson, uint32_t layers)
{
    return lesson->teach_count + 2 * lesson->table_count + lesson_noisy(lesson) * (1 + 2 * layers);
}

kvt_status quality_lesson_learn(const quality_lesson *lesson, quality_bases *bases_out)
{
    lesson_run run = {.lesson = lesson};
    quality_source *source = lesson->source;
    kvt_status status = KVT_OK;
    memset(bases_out, 0, sizeof *bases_out);
    if (lesson->teach_count == 0 || lesson->table_count == 0) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; status == KVT_OK && i < lesson->teach_count; i++)
        status = lesson_teach(&run, lesson->teach[i]);
    for (uint32_t i = 0; status == KVT_OK && i < lesson_noisy(lesson); i++)
        status = lesson_listen(&run, lesson->teach[i]);
    if (status == KVT_OK) status = basis_learners_solve(&run.learners);
    if (status == KVT_OK) status = lesson_count(&run);
    if (status == KVT_OK)
        status = basis_learners_finish(&run.learners, source->name, lesson->digest, bases_out);
    source->at = NULL;
    if ((status == KVT_E_CORRUPT || status == KVT_E_UNSUPPORTED) && source->message[0] == '\0')
        (void)quality_source_refuse(source, status,
                                    "no basis follows from these %s: elements or queries that do "
                                    "not vary, or are not finite",
                                    source->type->entries);
    basis_learners_close(&run.learners);
    return status;
}
