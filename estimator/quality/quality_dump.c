/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_dump.c - reads and writes KV dumps, and makes them of a model. Thread rule:
 * quality_round_trip.h.
 */
#include "estimator/quality/quality_round_trip.h"

#include "codecs/kernels/checksum.h"
#include "estimator/model/safetensors.h"
#include "estimator/quality/evaluate.h"
#include "estimator/quality/quality.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    DUMP_NAME_BYTES = 32,
    DUMP_QUERY_ROWS_MAX = 1 << 20,
    DUMP_SIDES = 3, /* K, V, queries */
    DUMP_NOTES_MAX = 4
};

/* A dump that is being checked. */
typedef struct dump_check {
    quality_dump *dump;
    const char *path;
    bool bytes; /* 8-bit floats are taken as well */
    char *message;
    size_t message_size;
} dump_check;

__attribute__((format(printf, 2, 3))) static kvt_status dump_refuse(const dump_check *check,
                                                                    const char *format, ...)
{
    va_list arguments;
    int used = snprintf(check->message, check->message_size, "%s: ", check->path);
    if (used < 0 || (size_t)used >= check->message_size) return KVT_E_PARSE;
    va_start(arguments, format);
    vsnprintf(check->message + used, check->message_size - (size_t)used, format, arguments);
    va_end(arguments);
    return KVT_E_PARSE;
}

static const safetensors_tensor *dump_tensor(const quality_dump *dump, const char *side,
                                             uint32_t layer, char name[DUMP_NAME_BYTES])
{
    snprintf(name, DUMP_NAME_BYTES, "%s.%u", side, (unsigned)layer);
    return safetensors_find(dump->file, name);
}

/* The layer that a name such as "k.12" is of; false for any other name. */
static bool dump_layer(const char *name, char side, uint32_t *layer_out)
{
    uint32_t layer = 0;
    if (name[0] != side || name[1] != '.' || name[2] == '\0') return false;
    if (name[2] == '0' && name[3] != '\0') return false; /* k.01 is not k.1 */
    for (const char *at = name + 2; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || layer > UINT16_MAX) return false;
        layer = layer * 10 + (uint32_t)(*at - '0');
    }
    *layer_out = layer;
    return layer < UINT16_MAX;
}

/* Counts layers by the highest number, and tensors that are neither K, V nor queries. */
static uint32_t dump_count_layers(quality_dump *dump, bool *queries_out)
{
    uint32_t layers = 0, layer;
    *queries_out = false;
    for (size_t i = 0; i < safetensors_count(dump->file); i++) {
        const char *name = safetensors_at(dump->file, i)->name;
        if (dump_layer(name, 'k', &layer) || dump_layer(name, 'v', &layer)) {
            if (layer + 1 > layers) layers = layer + 1;
        } else if (dump_layer(name, 'q', &layer)) {
            *queries_out = true;
        } else {
            dump->ignored++;
        }
    }
    return layers;
}

/* Whether elements are numbers that are read, or bytes that are carried: F8_E5M2 is. */
static kvt_status dump_check_type(const dump_check *check, const safetensors_tensor *tensor,
                                  bool bytes)
{
    const bool small = tensor->dtype == KVT_DTYPE_FP8;
    const bool read = strcmp(tensor->type, "F8_E4M3") == 0 && tensor->name[0] != 'q';
    if (tensor->dtype != KVT_DTYPE_OPAQUE && (!small || bytes || read)) return KVT_OK;
    return dump_refuse(check,
                       "%s: the element type %s is not F16, BF16 or F32, nor F8_E4M3 of K or V",
                       tensor->name, tensor->type);
}

static kvt_status dump_check_first(const dump_check *check, uint32_t layers)
{
    char name[DUMP_NAME_BYTES];
    const safetensors_tensor *tensor = dump_tensor(check->dump, "k", 0, name);
    if (tensor == NULL) return dump_refuse(check, "k.0 is missing");
    if (dump_check_type(check, tensor, check->bytes) != KVT_OK) return KVT_E_PARSE;
    if (tensor->rank != 3) return dump_refuse(check, "k.0 has %u axes, not 3", tensor->rank);
    const uint64_t *shape = tensor->shape;
    if (shape[0] == 0 || shape[1] == 0 || shape[2] == 0)
        return dump_refuse(check, "k.0 has no elements");
    if (shape[0] > UINT32_MAX || shape[1] > UINT16_MAX || shape[2] > UINT16_MAX)
        return dump_refuse(check, "k.0 is too large");
    check->dump->type = tensor->type;
    check->dump->layout = (kvt_layout){.layers = (uint16_t)layers,
                                       .kv_heads = (uint16_t)shape[1],
                                       .head_dim = (uint16_t)shape[2],
                                       .dtype = tensor->dtype,
                                       .tokens = (uint32_t)shape[0]};
    uint64_t bytes;
    if (kvt_layout_bytes(&check->dump->layout, &bytes) != KVT_OK)
        return dump_refuse(check, "the entry is too large");
    return KVT_OK;
}

/* One K or V tensor against the first. */
static kvt_status dump_check_matrix(const dump_check *check, const char *side, uint32_t layer)
{
    char name[DUMP_NAME_BYTES];
    const kvt_layout *layout = &check->dump->layout;
    const safetensors_tensor *tensor = dump_tensor(check->dump, side, layer, name);
    if (tensor == NULL) return dump_refuse(check, "%s is missing", name);
    if (dump_check_type(check, tensor, check->bytes) != KVT_OK) return KVT_E_PARSE;
    if (strcmp(tensor->type, check->dump->type) != 0)
        return dump_refuse(check, "%s has another element type than k.0", name);
    if (tensor->rank != 3 || tensor->shape[0] != layout->tokens ||
        tensor->shape[1] != layout->kv_heads || tensor->shape[2] != layout->head_dim) {
        return dump_refuse(check, "%s has another shape than k.0", name);
    }
    return KVT_OK;
}

static kvt_status dump_check_queries(const dump_check *check)
{
    char name[DUMP_NAME_BYTES];
    quality_dump *dump = check->dump;
    for (uint32_t layer = 0; layer < dump->layout.layers; layer++) {
        const safetensors_tensor *tensor = dump_tensor(dump, "q", layer, name);
        if (tensor == NULL) return dump_refuse(check, "%s is missing", name);
        if (dump_check_type(check, tensor, false) != KVT_OK) return KVT_E_PARSE;
        const uint64_t *shape = tensor->shape;
        if (tensor->rank != 3 || shape[0] == 0 || shape[0] > DUMP_QUERY_ROWS_MAX ||
            shape[2] != dump->layout.head_dim || shape[1] == 0 || shape[1] > UINT16_MAX ||
            shape[1] % dump->layout.kv_heads != 0) {
            return dump_refuse(check,
                               "%s is not [rows, heads, head_dim] with the head_dim of k.0 and a "
                               "multiple of its heads",
                               name);
        }
        if (layer == 0) {
            dump->query_rows = (uint32_t)shape[0];
            dump->query_heads = (uint32_t)shape[1];
        }
        if (shape[0] != dump->query_rows || shape[1] != dump->query_heads)
            return dump_refuse(check, "%s has another shape than q.0", name);
    }
    return KVT_OK;
}

static kvt_status dump_check_all(const dump_check *check)
{
    bool queries;
    uint32_t layers = dump_count_layers(check->dump, &queries);
    if (layers == 0) return dump_refuse(check, "there is no k.<layer> and no v.<layer>");
    kvt_status status = dump_check_first(check, layers);
    for (uint32_t layer = 0; status == KVT_OK && layer < layers; layer++) {
        status = dump_check_matrix(check, "k", layer);
        if (status == KVT_OK) status = dump_check_matrix(check, "v", layer);
    }
    if (status == KVT_OK && queries) status = dump_check_queries(check);
    return status;
}

static kvt_status dump_open(const char *path, bool bytes, quality_dump *dump_out, char *message,
                            size_t message_size)
{
    const dump_check check = {.dump = dump_out,
                              .path = path,
                              .bytes = bytes,
                              .message = message,
                              .message_size = message_size};
    *dump_out = (quality_dump){.file = NULL};
    kvt_status status = safetensors_open(path, &dump_out->file, message, message_size);
    if (status == KVT_OK) status = dump_check_all(&check);
    if (status != KVT_OK) quality_dump_close(dump_out);
    return status;
}

kvt_status quality_dump_open(const char *path, quality_dump *dump_out, char *message,
                             size_t message_size)
{
    return dump_open(path, false, dump_out, message, message_size);
}

kvt_status quality_dump_open_bytes(const char *path, quality_dump *dump_out, char *message,
                                   size_t message_size)
{
    return dump_open(path, true, dump_out, message, message_size);
}

void quality_dump_close(quality_dump *dump)
{
    safetensors_close(dump->file);
    *dump = (quality_dump){.file = NULL};
}

void quality_dump_load(const quality_dump *dump, void *source)
{
    const kvt_layout *layout = &dump->layout;
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    char name[DUMP_NAME_BYTES];
    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
            const safetensors_tensor *tensor =
                dump_tensor(dump, side == KVT_SIDE_K ? "k" : "v", layer, name);
            memcpy((uint8_t *)source + kvt_layout_matrix_offset(layout, layer, (kvt_side)side),
                   tensor->data, matrix);
        }
    }
}

void quality_dump_load_queries(const quality_dump *dump, uint32_t rows, float *queries)
{
    const uint32_t width = dump->layout.head_dim, heads = dump->query_heads;
    char name[DUMP_NAME_BYTES];
    for (uint32_t layer = 0; layer < dump->layout.layers; layer++) {
        const safetensors_tensor *tensor = dump_tensor(dump, "q", layer, name);
        for (uint32_t head = 0; head < heads; head++) { /* heads of a group follow each other */
            for (uint32_t row = 0; row < rows; row++, queries += width) {
                /* The middles of `rows` equal parts. */
                uint64_t at = (2 * (uint64_t)row + 1) * dump->query_rows / (2 * (uint64_t)rows);
                safetensors_read_fp32(tensor, (at * heads + head) * width, width, queries);
            }
        }
    }
}

void quality_dump_layer_queries(const quality_dump *dump, uint32_t layer, float *queries)
{
    char name[DUMP_NAME_BYTES];
    const safetensors_tensor *tensor = dump_tensor(dump, "q", layer, name);
    safetensors_read_fp32(tensor, 0, tensor->elements, queries);
}

uint64_t quality_dump_digest(const quality_dump *dump)
{
    uint64_t digest = 0;
    char name[DUMP_NAME_BYTES];
    for (uint32_t i = 0; i < (uint32_t)dump->layout.layers * DUMP_SIDES; i++) {
        const char side[] = {"kvq"[i % DUMP_SIDES], '\0'};
        const safetensors_tensor *tensor = dump_tensor(dump, side, i / DUMP_SIDES, name);
        if (tensor == NULL) continue; /* no queries */
        const uint64_t parts[2] = {digest, checksum_of(tensor->data, tensor->bytes)};
        digest = checksum_of(parts, sizeof parts);
    }
    return digest;
}

/* The metadata of a dump that is written. */
typedef struct dump_notes {
    safetensors_note list[DUMP_NOTES_MAX];
    char *texts[DUMP_NOTES_MAX];
    size_t count;
} dump_notes;

/* A note with numbers and commas between them; false without memory. */
static bool dump_note(dump_notes *notes, const char *name, const double *numbers, size_t count)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) return false;
    for (size_t i = 0; i < count; i++)
        (void)fprintf(out, "%s%.17g", i > 0 ? "," : "", numbers[i]);
    if (fclose(out) != 0) {
        free(text);
        return false;
    }
    notes->texts[notes->count] = text;
    notes->list[notes->count++] = (safetensors_note){name, text};
    return true;
}

static bool dump_note_rope(dump_notes *notes, const quality_rope *rope)
{
    const double width = rope->rotary_dim;
    if (rope->rotary_dim == 0) {
        notes->list[notes->count++] = (safetensors_note){"rope_theta", "none"};
        return true;
    }
    notes->list[notes->count++] = (safetensors_note){
        "rope_pairing", rope->pairing == KVT_ROPE_HALVES ? "halves" : "neighbours"};
    return dump_note(notes, "rope_dim", &width, 1) &&
           dump_note(notes, "rope_frequencies", rope->frequencies, rope->rotary_dim / 2);
}

static bool dump_annotate(const quality_dump_content *content, dump_notes *notes)
{
    if (content->rope != NULL && !dump_note_rope(notes, content->rope)) return false;
    if (content->positions == NULL) return true;
    double *positions = malloc(content->query_rows * sizeof *positions);
    if (positions == NULL) return false;
    for (uint32_t r = 0; r < content->query_rows; r++)
        positions[r] = content->positions[r];
    const bool fine = dump_note(notes, "query_positions", positions, content->query_rows);
    free(positions);
    return fine;
}

kvt_status quality_dump_write(const char *path, const quality_dump_content *content, char *message,
                              size_t message_size)
{
    const kvt_layout *layout = &content->layout;
    const size_t count = (size_t)layout->layers * DUMP_SIDES;
    char(*names)[DUMP_NAME_BYTES] = calloc(count, sizeof *names);
    safetensors_tensor *tensors = calloc(count, sizeof *tensors);
    dump_notes notes = {.count = 0};
    kvt_status status = KVT_E_MEMORY;
    if (names == NULL || tensors == NULL || !dump_annotate(content, &notes)) goto out;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t layer = i / DUMP_SIDES, side = i % DUMP_SIDES;
        bool query = side == 2;
        snprintf(names[i], sizeof names[i], "%c.%u", "kvq"[side], (unsigned)layer);
        tensors[i] = (safetensors_tensor){
            .name = names[i],
            .dtype = query ? KVT_DTYPE_FP32 : layout->dtype,
            .rank = 3,
            .shape = {query ? content->query_rows : layout->tokens,
                      query ? content->query_heads : layout->kv_heads, layout->head_dim},
            .data = side == 0
                        ? content->k[layer]
                        : (side == 1 ? content->v[layer] : (const void *)content->queries[layer])};
    }
    status =
        safetensors_write(path, tensors, count, notes.list, notes.count, message, message_size);
out:
    for (size_t i = 0; i < notes.count; i++)
        free(notes.texts[i]);
    free(names);
    free(tensors);
    return status;
}

/* ---- dumps of a model over texts ---- */

/* The continuation's token whose queries are the r-th of `count` rows. */
static uint32_t make_row(const evaluate_entry *entry, uint32_t count, uint32_t r)
{
    return (uint32_t)((2 * (uint64_t)r + 1) * entry->continuation_tokens / (2 * (uint64_t)count));
}

/* `count` of the continuation's query rows, evenly spread, as quality_dump_content takes them. */
static kvt_status make_queries(const evaluate_entry *entry, uint32_t count, float ***queries_out)
{
    const model_config *c = entry->config;
    const size_t row = (size_t)c->heads * c->head_dim;
    float **places = malloc(c->layers * sizeof *places);
    float *memory = malloc(c->layers * count * row * sizeof *memory);
    *queries_out = places;
    if (places == NULL || memory == NULL) {
        free(memory);
        free(places);
        *queries_out = NULL;
        return KVT_E_MEMORY;
    }
    for (uint32_t l = 0; l < c->layers; l++) {
        places[l] = memory + (size_t)l * count * row;
        for (uint32_t r = 0; r < count; r++) {
            const size_t at = make_row(entry, count, r);
            memcpy(places[l] + r * row, entry->queries[l] + at * row, row * sizeof *memory);
        }
    }
    return KVT_OK;
}

static kvt_status make_write(const evaluate_entry *entry, uint32_t queries, const char *path,
                             char *message, size_t message_size)
{
    const model_config *c = entry->config;
    quality_rope rope;
    float **places = NULL;
    uint32_t *positions = malloc(queries * sizeof *positions);
    quality_rope_of(c, &rope);
    kvt_status status = positions != NULL ? make_queries(entry, queries, &places) : KVT_E_MEMORY;
    if (status != KVT_OK) {
        free(positions);
        return status;
    }
    for (uint32_t r = 0; r < queries; r++)
        positions[r] = entry->context_tokens + make_row(entry, queries, r);
    const quality_dump_content content = {.layout = {.layers = (uint16_t)c->layers,
                                                     .kv_heads = (uint16_t)c->kv_heads,
                                                     .head_dim = (uint16_t)c->head_dim,
                                                     .dtype = KVT_DTYPE_FP16,
                                                     .tokens = entry->context_tokens},
                                          .k = (const void *const *)(const void *)entry->k,
                                          .v = (const void *const *)(const void *)entry->v,
                                          .queries = (const float *const *)(const void *)places,
                                          .query_heads = c->heads,
                                          .query_rows = queries,
                                          .rope = &rope,
                                          .positions = positions};
    status = quality_dump_write(path, &content, message, message_size);
    free(places[0]);
    free(places);
    free(positions);
    return status;
}

static kvt_status make_one(const quality_dumps_make_options *o, model_session *session,
                           const quality_entry *cut, uint32_t index, double *nats_out,
                           char *message, size_t message_size)
{
    evaluate_entry *entry = NULL;
    char path[1024];
    int length = snprintf(path, sizeof path, "%s/%04u.safetensors", o->folder, (unsigned)index);
    if (length < 0 || (size_t)length >= sizeof path) return KVT_E_ARGUMENT;
    kvt_status status = evaluate_entry_open(session, cut->tokens, cut->context_tokens,
                                            cut->continuation_tokens, &entry);
    if (status == KVT_OK) {
        uint32_t queries =
            o->queries < cut->continuation_tokens ? o->queries : cut->continuation_tokens;
        *nats_out = entry->nll;
        status = make_write(entry, queries, path, message, message_size);
    }
    evaluate_entry_close(entry);
    return status;
}

/* Whether the model understands the texts: a ladder is made of dumps, which say nothing of it. */
static kvt_status make_judge(const quality_model *measured, const quality_entries *entries,
                             const double *nats, char *message, size_t message_size)
{
    quality_likelihood likelihood;
    const quality_entry **judged = calloc(entries->count, sizeof *judged);
    if (judged == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < entries->count; i++)
        judged[i] = &entries->entries[i];
    kvt_status status =
        quality_likelihood_of(judged, nats, entries->count, measured->facts.vocab, &likelihood);
    if (status == KVT_OK)
        status = quality_likelihood_check(&likelihood, NULL, message, message_size);
    free((void *)judged);
    return status;
}

static kvt_status make_all(const quality_dumps_make_options *o, const quality_model *measured,
                           const quality_entries *entries, uint32_t *count_out, char *message,
                           size_t message_size)
{
    model_session *session = NULL;
    double *nats = NULL;
    if (mkdir(o->folder, 0777) != 0 && errno != EEXIST) {
        (void)snprintf(message, message_size, "%s: %s", o->folder, strerror(errno));
        return KVT_E_IO;
    }
    kvt_status status = model_session_open(measured->weights, &session);
    if (status == KVT_OK) nats = calloc(entries->count, sizeof *nats);
    if (status == KVT_OK && nats == NULL) status = KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < entries->count; i++) {
        status = make_one(o, session, &entries->entries[i], i, &nats[i], message, message_size);
        if (status != KVT_OK) break;
        ++*count_out;
        if (o->progress != NULL &&
            !o->progress(o->progress_context, (double)*count_out / entries->count, "dumps"))
            status = KVT_E_CANCELLED;
    }
    if (status == KVT_OK && !o->unjudged)
        status = make_judge(measured, entries, nats, message, message_size);
    free(nats);
    model_session_close(session);
    return status;
}

kvt_status quality_dumps_make(const quality_dumps_make_options *options, uint32_t *count_out,
                              char *message, size_t message_size)
{
    quality_model measured;
    quality_entries entries = {.entries = NULL};
    *count_out = 0;
    message[0] = '\0';
    if (options->queries == 0) return KVT_E_ARGUMENT;
    kvt_status status = quality_model_open(options->model, options->tokenizer, NULL, &measured,
                                           message, message_size);
    if (status != KVT_OK) return status;
    status = quality_entries_read(options->texts, options->text_count, measured.tokens,
                                  options->context_tokens, options->continuation_tokens,
                                  options->contexts, &entries, message, message_size);
    if (status == KVT_OK)
        status = make_all(options, &measured, &entries, count_out, message, message_size);
    quality_entries_free(&entries);
    quality_model_close(&measured);
    return status;
}
