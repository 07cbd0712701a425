/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_site.c - the model, the contexts with their questions, and which request asks what. One
 * thread.
 */
#include "codecs/kernels/checksum.h"
#include "replay/loop/loop.h"
#include "replay/random.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Up to LOOP_QUESTIONS_MAX of an entry's questions, spread over all; without any it goes on from
 * its first token after the context. */
static void site_take_questions(const loop_site *site, loop_context *context)
{
    const quality_entry *entry = context->entry;
    const uint32_t most = site->options.answer_tokens, all = entry->question_count;
    context->question_count = all < LOOP_QUESTIONS_MAX ? all : (uint32_t)LOOP_QUESTIONS_MAX;
    for (uint32_t i = 0; i < context->question_count; i++) {
        const quality_question *from =
            &entry->questions[(uint64_t)i * all / context->question_count];
        const uint32_t told = from->end - from->answer;
        context->questions[i] = (loop_question){.first = from->first,
                                                .count = from->answer - from->first,
                                                .answer_tokens = told < most ? told : most};
    }
    if (all > 0) return;
    context->question_count = 1;
    context->questions[0] =
        (loop_question){.first = entry->context_tokens, .count = 1, .answer_tokens = most};
}

static void site_add_context(loop_site *site, uint32_t class_index, const quality_entry *entry)
{
    loop_context *context = &site->contexts[site->context_count++];
    const size_t tokens = (size_t)entry->context_tokens + entry->continuation_tokens;
    const uint64_t weights =
        checksum_of(site->measured.facts.digest, strlen(site->measured.facts.digest));
    *context = (loop_context){.entry = entry, .class_index = class_index};
    context->digest = replay_mix(checksum_of(entry->tokens, tokens * sizeof *entry->tokens) ^
                                 replay_mix(weights ^ entry->context_tokens));
    context->key = live_key(context->digest, site->context_count);
    kvt_layout layout = loop_layout(site, entry->context_tokens);
    if (kvt_layout_bytes(&layout, &context->kv_bytes) != KVT_OK) context->kv_bytes = 0;
    site_take_questions(site, context);
    const uint32_t recalled = entry->recall != NULL ? entry->recall_tokens : 0;
    context->text = (loop_question){.answer_tokens = entry->continuation_tokens +
                                                     (recalled > 0 ? entry->recall_scored : 0)};
    if (entry->continuation_tokens > site->tail_max) site->tail_max = entry->continuation_tokens;
    if (recalled > site->tail_max) site->tail_max = recalled;
    if (entry->context_tokens > site->tokens_max) site->tokens_max = entry->context_tokens;
    for (uint32_t i = 0; i < context->question_count; i++) {
        const loop_question *question = &context->questions[i];
        if (question->count + question->answer_tokens > site->tail_max)
            site->tail_max = question->count + question->answer_tokens;
        if (question->answer_tokens > site->answer_max) site->answer_max = question->answer_tokens;
    }
}

/* Classes take turns, so that any number of contexts has some of each. */
static kvt_status site_make_contexts(loop_site *site)
{
    uint32_t total = 0, taken[LOOP_CLASSES_MAX] = {0};
    for (uint32_t i = 0; i < site->options.text_count; i++)
        total += site->entries[i].count;
    const uint32_t most = site->options.contexts;
    if (most != 0 && most < total) total = most;
    site->contexts = calloc(total, sizeof *site->contexts);
    if (site->contexts == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; site->context_count < total; i = (i + 1) % site->options.text_count) {
        if (taken[i] == site->entries[i].count) continue;
        site_add_context(site, i, &site->entries[i].entries[taken[i]++]);
    }
    return KVT_OK;
}

static kvt_status site_check_texts(const loop_options *options, char *message, size_t size)
{
    if (options->text_count == 0 || options->text_count > LOOP_CLASSES_MAX) {
        (void)snprintf(message, size, "texts of 1 to %d classes are needed", LOOP_CLASSES_MAX);
        return KVT_E_ARGUMENT;
    }
    for (uint32_t i = 0; i < options->text_count; i++) {
        const char *name = options->texts[i].class_name;
        if (name[0] == '\0') {
            (void)snprintf(message, size, "%.200s: a class has 1 to 63 bytes",
                           options->texts[i].path);
            return KVT_E_ARGUMENT;
        }
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(name, options->texts[j].class_name) != 0) continue;
            (void)snprintf(message, size, "class %s is named twice", name);
            return KVT_E_ARGUMENT;
        }
    }
    return KVT_OK;
}

static kvt_status site_open_folder(loop_site *site, char *message, size_t size)
{
    const char *cache = site->options.cache;
    if (cache == NULL) {
        (void)snprintf(site->folder, sizeof site->folder, "%s/kvterrace-loop-%ld-XXXXXX", P_tmpdir,
                       (long)getpid());
        site->folder_is_temporary = mkdtemp(site->folder) != NULL;
        if (site->folder_is_temporary) return KVT_OK;
        (void)snprintf(message, size, "%s: no folder can be made", P_tmpdir);
        return KVT_E_IO;
    }
    if (strlen(cache) >= sizeof site->folder) {
        (void)snprintf(message, size, "%.100s...: a path that is too long", cache);
        return KVT_E_ARGUMENT;
    }
    (void)snprintf(site->folder, sizeof site->folder, "%s", cache);
    if (mkdir(cache, 0777) != 0 && errno != EEXIST) {
        (void)snprintf(message, size, "%.200s: %s", cache, strerror(errno));
        return KVT_E_IO;
    }
    return KVT_OK;
}

kvt_layout loop_layout(const loop_site *site, uint32_t tokens)
{
    const model_config *config = model_config_of(site->measured.weights);
    return (kvt_layout){.layers = (uint16_t)config->layers,
                        .kv_heads = (uint16_t)config->kv_heads,
                        .head_dim = (uint16_t)config->head_dim,
                        .dtype = KVT_DTYPE_FP16,
                        .order = KVT_ORDER_LAYER_SIDE,
                        .tokens_may_drop = 1,
                        .tokens = tokens};
}

kvt_status loop_open(const loop_options *options, loop_site *site, char *message, size_t size)
{
    char reason[300] = "";
    *site = (loop_site){.options = *options};
    kvt_status status = site_check_texts(options, message, size);
    if (status != KVT_OK) return status;
    status = quality_model_open(options->model, options->tokenizer, options->name, &site->measured,
                                message, size);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; status == KVT_OK && i < options->text_count; i++) {
        status = quality_entries_read(&options->texts[i].path, 1, site->measured.tokens,
                                      options->context_tokens, options->continuation_tokens,
                                      options->contexts != 0 ? options->contexts : UINT32_MAX,
                                      &site->entries[i], reason, sizeof reason);
        const char *path = options->texts[i].path; /* reasons of a file begin with it */
        const bool named = strncmp(reason, path, strlen(path)) == 0;
        if (status != KVT_OK)
            (void)snprintf(message, size, "class %s%s%.150s: %s", options->texts[i].class_name,
                           named ? "" : ", ", named ? "" : path, reason);
    }
    if (status != KVT_OK) return status;
    (void)snprintf(message, size, "out of memory");
    status = site_make_contexts(site);
    if (status == KVT_OK) status = model_session_open(site->measured.weights, &site->session);
    if (status == KVT_OK)
        status = loop_generator_open(site->session, site->tokens_max + site->tail_max,
                                     site->answer_max, &site->generator);
    if (status != KVT_OK) return status;
    uint64_t most = 0;
    for (uint32_t i = 0; i < site->context_count; i++)
        if (site->contexts[i].kv_bytes > most) most = site->contexts[i].kv_bytes;
    site->scratch = malloc(most);
    if (site->scratch == NULL) return KVT_E_MEMORY;
    status = site_open_folder(site, message, size);
    if (status == KVT_OK && options->cache != NULL) status = loop_journal_open(site, message, size);
    return status;
}

static void site_remove_folder(const loop_site *site)
{
    if (!site->folder_is_temporary) return;
    for (uint32_t i = 0; i < site->context_count; i++) {
        char path[sizeof site->folder + 32];
        (void)snprintf(path, sizeof path, "%s/%016llx.kv", site->folder,
                       (unsigned long long)site->contexts[i].digest);
        (void)unlink(path);
    }
    (void)rmdir(site->folder);
}

void loop_close(loop_site *site)
{
    site_remove_folder(site);
    if (site->journal != NULL) (void)fclose(site->journal);
    for (size_t i = 0; i < site->answer_count; i++)
        free(site->answers[i].ids);
    free(site->answers);
    free(site->contexts);
    free(site->scratch);
    loop_generator_close(&site->generator);
    model_session_close(site->session);
    for (uint32_t i = 0; i < LOOP_CLASSES_MAX; i++)
        quality_entries_free(&site->entries[i]);
    quality_model_close(&site->measured);
    *site = (loop_site){.context_count = 0};
}

/* ---- requests ---- */

kvt_status loop_requests_make(const loop_site *site, const replay_workload *workload,
                              double arrival_scale, loop_requests *out)
{
    *out = (loop_requests){.count = workload->request_count};
    uint32_t *of_block = malloc((workload->distinct_blocks + 1) * sizeof *of_block);
    uint32_t *asked = calloc(site->context_count, sizeof *asked), next = 0;
    out->requests = calloc(workload->request_count + 1, sizeof *out->requests);
    if (of_block == NULL || asked == NULL || out->requests == NULL) {
        free(of_block);
        free(asked);
        free(out->requests);
        out->requests = NULL;
        return KVT_E_MEMORY;
    }
    for (uint64_t i = 0; i < workload->distinct_blocks; i++)
        of_block[i] = UINT32_MAX;
    for (uint64_t i = 0; i < workload->request_count; i++) {
        const replay_request *from = &workload->requests[i];
        loop_request *to = &out->requests[i];
        /* A request without a block is one of its own. */
        uint32_t alone = UINT32_MAX;
        uint32_t *place =
            from->block_count > 0 ? &of_block[workload->blocks[from->first_block]] : &alone;
        if (*place == UINT32_MAX) *place = next++ % site->context_count;
        to->arrival_ns = (uint64_t)((double)from->arrival_ns * arrival_scale);
        to->context = *place;
        out->distinct += asked[*place] == 0;
        to->question = asked[*place]++ % site->contexts[*place].question_count;
        out->fingerprint = replay_mix(out->fingerprint ^ to->arrival_ns);
        out->fingerprint = replay_mix(out->fingerprint ^ site->contexts[to->context].digest);
        out->fingerprint = replay_mix(out->fingerprint ^ to->question);
    }
    free(of_block);
    free(asked);
    return KVT_OK;
}
