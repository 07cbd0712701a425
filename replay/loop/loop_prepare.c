/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_prepare.c - what is the same for all contenders: exact KV in files, the seconds that its
 * prefill took, exact answers, and the prefill model that fits those seconds. One thread.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "replay/loop/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- exact KV ---- */

static void kv_path(const loop_site *site, const loop_context *context, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/%016llx.kv", site->folder, (unsigned long long)context->digest);
}

kvt_status loop_kv_map(const loop_site *site, const loop_context *context, const uint8_t **kv_out)
{
    char path[sizeof site->folder + 32];
    kv_path(site, context, path, sizeof path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return KVT_E_IO;
    void *kv = lseek(file, 0, SEEK_END) == (off_t)context->kv_bytes
                   ? mmap(NULL, context->kv_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0)
                   : MAP_FAILED;
    (void)close(file);
    *kv_out = kv != MAP_FAILED ? kv : NULL;
    return kv != MAP_FAILED ? KVT_OK : KVT_E_IO;
}

void loop_kv_unmap(const loop_context *context, const uint8_t *kv)
{
    if (kv == NULL) return;
    union {
        const uint8_t *read_only;
        void *mapped;
    } place = {.read_only = kv};
    (void)munmap(place.mapped, context->kv_bytes);
}

static kvt_status kv_write(const loop_site *site, const loop_context *context, const uint8_t *kv)
{
    char path[sizeof site->folder + 32];
    kv_path(site, context, path, sizeof path);
    FILE *file = fopen(path, "wb");
    if (file == NULL) return KVT_E_IO;
    bool written = fwrite(kv, 1, context->kv_bytes, file) == context->kv_bytes;
    written = fclose(file) == 0 && written;
    return written ? KVT_OK : KVT_E_IO;
}

kvt_status loop_prefill(const loop_site *site, const loop_context *context, uint8_t *kv)
{
    const model_config *c = model_config_of(site->measured.weights);
    const uint32_t tokens = context->entry->context_tokens;
    const size_t matrix = (size_t)tokens * c->kv_heads * c->head_dim;
    uint16_t **places = malloc(2 * c->layers * sizeof *places);
    if (places == NULL) return KVT_E_MEMORY;
    /* Layer by layer, K before V. */
    for (uint32_t i = 0; i < 2 * c->layers; i++)
        places[i % 2 * c->layers + i / 2] = (uint16_t *)(void *)kv + i * matrix;
    kvt_status status =
        evaluate_prefill(site->session, context->entry->tokens, tokens, places, places + c->layers);
    free(places);
    return status;
}

/* The context's KV: computed and timed, or found in the cache. */
static kvt_status prepare_kv(loop_site *site, loop_context *context)
{
    const uint8_t *kv = NULL;
    if (context->prefill_seconds > 0.0 && loop_kv_map(site, context, &kv) == KVT_OK) {
        const bool same = checksum_of(kv, context->kv_bytes) == context->kv_checksum;
        if (same) memcpy(site->scratch, kv, context->kv_bytes);
        loop_kv_unmap(context, kv);
        site->contexts_known += same;
        if (same) return KVT_OK;
    }
    const double begin_s = model_clock_seconds(site->measured.weights);
    kvt_status status = loop_prefill(site, context, site->scratch);
    context->prefill_seconds = model_clock_seconds(site->measured.weights) - begin_s;
    if (status != KVT_OK) return status;
    context->kv_checksum = checksum_of(site->scratch, context->kv_bytes);
    status = kv_write(site, context, site->scratch);
    return status == KVT_OK ? loop_journal_context(site, context) : status;
}

/* ---- exact answers ---- */

/* The draft is what the text says. */
static kvt_status prepare_answer(loop_site *site, loop_context *context, loop_question *question)
{
    const quality_entry *entry = context->entry;
    const uint32_t from = question->first + question->count;
    const uint32_t left = entry->context_tokens + entry->continuation_tokens - from;
    const uint32_t told = left < question->answer_tokens ? left : question->answer_tokens;
    loop_answer *known = loop_answer_find(site, context, question, context->kv_checksum);
    kvt_status status = KVT_OK;
    if (known == NULL) {
        uint32_t *draft = calloc(2 * ((size_t)question->answer_tokens + 1), sizeof *draft);
        if (draft == NULL) return KVT_E_MEMORY;
        uint32_t *answer = draft + question->answer_tokens + 1;
        memcpy(draft, entry->tokens + from, told * sizeof *draft);
        const double begin_s = model_clock_seconds(site->measured.weights);
        loop_generator_load(&site->generator, site->scratch, entry->context_tokens,
                            entry->context_tokens);
        status = loop_generator_ask(&site->generator, entry->tokens + question->first,
                                    question->count, &answer[0]);
        const double ask_seconds = model_clock_seconds(site->measured.weights) - begin_s;
        if (status == KVT_OK)
            status =
                loop_generator_answer(&site->generator, draft, question->answer_tokens, answer);
        if (status == KVT_OK)
            status = loop_answer_add(site, context, question, context->kv_checksum, answer,
                                     ask_seconds, &known);
        free(draft);
    }
    if (status == KVT_OK) question->exact = known->ids;
    return status;
}

/* The model's expectations from exact KV along the text behind the context. */
static kvt_status prepare_text(loop_site *site, loop_context *context)
{
    const uint32_t tokens = context->entry->context_tokens;
    loop_answer *known = loop_answer_find(site, context, &context->text, context->kv_checksum);
    kvt_status status = KVT_OK;
    if (known == NULL) {
        uint32_t *ids = calloc(context->text.answer_tokens + 1, sizeof *ids);
        if (ids == NULL) return KVT_E_MEMORY;
        loop_generator_load(&site->generator, site->scratch, tokens, tokens);
        status = loop_generator_follow(&site->generator, context, ids);
        if (status == KVT_OK)
            status = loop_answer_add(site, context, &context->text, context->kv_checksum, ids, 0.0,
                                     &known);
        free(ids);
    }
    if (status == KVT_OK) context->text.exact = known->ids;
    return status;
}

/* ---- the prefill model ---- */

/* Least squares of a n + b n^2 = seconds with relative weights; neither is below zero. */
static void prepare_fit(loop_site *site)
{
    double nn = 0.0, nm = 0.0, mm = 0.0, ns = 0.0, ms = 0.0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < site->context_count; i++) {
        const loop_context *context = &site->contexts[i];
        if (!context->ready) continue;
        const double n = context->entry->context_tokens / context->prefill_seconds;
        const double m = n * context->entry->context_tokens;
        nn += n * n;
        nm += n * m;
        mm += m * m;
        ns += n;
        ms += m;
        count++;
    }
    const double determinant = nn * mm - nm * nm;
    double a = ns / nn, b = 0.0;
    /* Contexts of one length tell one coefficient. */
    if (determinant > 1e-9 * nn * mm) {
        a = (ns * mm - ms * nm) / determinant;
        b = (ms * nn - ns * nm) / determinant;
        if (b < 0.0) b = 0.0, a = ns / nn;
        if (a < 0.0) a = 0.0, b = ms / mm;
    }
    site->prefill = (kvt_prefill){.linear_seconds_per_token = a, .square_seconds_per_token2 = b};
    double *errors = malloc((count + 1) * sizeof *errors);
    if (errors == NULL) return;
    count = 0;
    for (uint32_t i = 0; i < site->context_count; i++) {
        const loop_context *context = &site->contexts[i];
        if (!context->ready) continue;
        errors[count++] =
            fabs(kvt_prefill_seconds(&site->prefill, 0, context->entry->context_tokens) /
                     context->prefill_seconds -
                 1.0);
    }
    site->prefill_error_p50 = count > 0 ? quality_quantile(errors, count, 0.5) : (double)NAN;
    free(errors);
}

/* ---- */

static kvt_status prepare_context(loop_site *site, loop_context *context)
{
    kvt_status status = prepare_kv(site, context);
    for (uint32_t i = 0; status == KVT_OK && i < context->question_count; i++)
        status = prepare_answer(site, context, &context->questions[i]);
    if (status == KVT_OK) status = prepare_text(site, context);
    context->ready = status == KVT_OK;
    return status;
}

/* Answers that came from the journal were read before the exact ones were known. */
static kvt_status prepare_compare(loop_site *site, const loop_context *context)
{
    kvt_status status = KVT_OK;
    for (size_t j = 0; status == KVT_OK && j < site->answer_count; j++) {
        loop_answer *answer = &site->answers[j];
        const loop_question *question = answer->count == 0 ? &context->text : NULL;
        if (answer->context != context->digest) continue;
        for (uint32_t i = 0; question == NULL && i < context->question_count; i++)
            if (answer->first == context->questions[i].first) question = &context->questions[i];
        if (question != NULL) status = loop_answer_compare(site, context, question, answer);
    }
    return status;
}

kvt_status loop_prepare(loop_site *site, const loop_requests *requests, char *message, size_t size)
{
    uint32_t done = 0;
    kvt_status status = KVT_OK;
    /* The first product of a process warms the BLAS library up; nobody times it. */
    for (uint64_t i = 0; status == KVT_OK && i < requests->count; i++) {
        loop_context *context = &site->contexts[requests->requests[i].context];
        char what[96];
        if (context->ready) continue;
        (void)snprintf(what, sizeof what, "exact KV and answers: context %u of %u", done + 1,
                       requests->distinct);
        if (site->options.proceed != NULL &&
            !site->options.proceed(site->options.proceed_context, (double)done / requests->distinct,
                                   what)) {
            (void)snprintf(message, size, "interrupted");
            return KVT_E_CANCELLED;
        }
        if (done == 0 && context->prefill_seconds <= 0.0)
            status = loop_prefill(site, context, site->scratch);
        if (status == KVT_OK) status = prepare_context(site, context);
        if (status == KVT_OK) status = prepare_compare(site, context);
        done++;
    }
    if (status != KVT_OK) {
        (void)snprintf(message, size, "exact KV and answers: %s", kvt_status_text(status));
        return status;
    }
    prepare_fit(site);
    return KVT_OK;
}
