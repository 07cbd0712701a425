/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_dumps.c - KV dumps as a source: see quality_source.h. Errors of K count by the second
 * moments of the dumps' queries where these are positioned, errors of V alike, because a dump has
 * no output projection.
 */
#include "estimator/quality/quality_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DUMPS_LISTENERS = 32 /* query rows of one, at most, that noise is judged by */ };

/* The shape of the first dump that was looked at is everybody's. */
static kvt_status dumps_fit(quality_source *source, const quality_dump *dump)
{
    const kvt_layout *layout = &dump->layout, *first = &source->first;
    if (first->layers == 0) source->first = *layout;
    if (source->heads == 0) source->heads = dump->query_heads;
    if (layout->layers == first->layers && layout->kv_heads == first->kv_heads &&
        layout->head_dim == first->head_dim &&
        (dump->query_rows == 0 || dump->query_heads == source->heads))
        return KVT_OK;
    return quality_source_refuse(
        source, KVT_E_ARGUMENT,
        "another shape: %u layers x %u KV heads x %u, the first dump %u x %u x %u", layout->layers,
        layout->kv_heads, layout->head_dim, first->layers, first->kv_heads, first->head_dim);
}

static kvt_status source_dumps_identify(quality_source *source, const void *entry,
                                        quality_identity *out)
{
    quality_dump dump;
    kvt_status status = quality_dump_open(entry, &dump, source->message, source->message_size);
    if (status != KVT_OK) return status;
    *out = (quality_identity){.layout = dump.layout,
                              .heads = dump.query_heads,
                              .queries = dump.query_rows,
                              .content = quality_dump_digest(&dump)};
    out->link[0] = out->content;
    out->links = 1;
    source->at = entry;
    status = dumps_fit(source, &dump);
    source->at = NULL;
    quality_dump_close(&dump);
    return status;
}

/* Keys of all dumps turn alike. */
static kvt_status dumps_turn(quality_source *source, const quality_dump *dump)
{
    quality_rope rope;
    if (source->given) return KVT_OK;
    kvt_status status =
        quality_dump_rope(dump, source->at, &rope, source->message, source->message_size);
    if (status == KVT_MISS)
        return quality_source_refuse(source, KVT_E_ARGUMENT,
                                     "the metadata does not say how keys turn (rope_theta or "
                                     "rope_frequencies, rope_pairing), and --rope is not given");
    if (status != KVT_OK) return status;
    if (!source->turns) source->rope = rope;
    source->turns = true;
    if (memcmp(&source->rope, &rope, sizeof rope) == 0) return KVT_OK;
    return quality_source_refuse(source, KVT_E_ARGUMENT,
                                 "its keys turn in another way than those of the first dump that "
                                 "teaches");
}

/* Takes note of whether the dump has queries, and says where they stand. */
static kvt_status dumps_look(quality_source *source, const quality_dump *dump)
{
    kvt_status status = KVT_MISS;
    source->asked = source->asked && dump->query_rows > 0;
    if (dump->query_rows > 0) {
        uint32_t *positions = malloc(dump->query_rows * sizeof *positions);
        if (positions == NULL) return KVT_E_MEMORY;
        status = quality_dump_positions(dump, source->at, positions, source->message,
                                        source->message_size);
        free(positions);
    }
    source->positioned = source->positioned && status == KVT_OK;
    return status == KVT_MISS ? KVT_OK : status;
}

static kvt_status source_dumps_admit(quality_source *source, const void *entry, bool tables)
{
    quality_dump dump;
    kvt_status status = quality_dump_open(entry, &dump, source->message, source->message_size);
    if (status != KVT_OK) return status;
    source->at = entry;
    status = dumps_turn(source, &dump);
    if (status == KVT_OK && !tables) status = dumps_look(source, &dump);
    source->at = NULL;
    quality_dump_close(&dump);
    return status;
}

static kvt_status source_dumps_open(quality_source *source, const void *entry, quality_kv *kv)
{
    uint64_t bytes = 0;
    source->at = entry;
    kvt_status status = quality_dump_open(entry, &kv->dump, source->message, source->message_size);
    if (status == KVT_OK) status = dumps_fit(source, &kv->dump);
    if (status != KVT_OK) return status;
    kv->layout = kv->dump.layout;
    status = kvt_layout_bytes(&kv->layout, &bytes);
    if (status == KVT_OK) kv->bytes = malloc(bytes);
    if (status == KVT_OK && kv->bytes == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) quality_dump_load(&kv->dump, kv->bytes);
    return status;
}

/* Queries turn back by their own positions, which need not follow each other. */
static kvt_status source_dumps_queries(quality_source *source, quality_kv *kv,
                                       basis_learners *learners)
{
    const quality_dump *dump = &kv->dump;
    const size_t row = (size_t)dump->query_heads * dump->layout.head_dim;
    if (source->asked && dump->query_rows == 0)
        return quality_source_refuse(source, KVT_E_ARGUMENT,
                                     "another shape: no queries, which other dumps have");
    if (!source->positioned) return KVT_OK;
    uint32_t *positions = malloc(dump->query_rows * sizeof *positions);
    float *queries = malloc(dump->query_rows * row * sizeof *queries);
    kvt_status status = positions == NULL || queries == NULL ? KVT_E_MEMORY : KVT_OK;
    if (status == KVT_OK)
        status = quality_dump_positions(dump, source->at, positions, source->message,
                                        source->message_size);
    if (status == KVT_MISS)
        status = quality_source_refuse(source, KVT_E_ARGUMENT,
                                       "the dump does not say where its queries stand");
    for (uint32_t layer = 0; status == KVT_OK && layer < dump->layout.layers; layer++) {
        quality_dump_layer_queries(dump, layer, queries);
        for (uint32_t r = 0; r < dump->query_rows; r++)
            basis_learners_queries(learners, layer, queries + r * row, 1, dump->query_heads,
                                   positions[r]);
    }
    free(positions);
    free(queries);
    return status;
}

static kvt_status source_dumps_disturb(quality_source *source, quality_kv *kv, uint32_t layer,
                                       kvt_side side, const float *noise, double *error_out)
{
    const quality_dump *dump = &kv->dump;
    const uint32_t rows =
        dump->query_rows < DUMPS_LISTENERS ? dump->query_rows : (uint32_t)DUMPS_LISTENERS;
    (void)source;
    if (kv->attention == NULL) {
        const kvt_status status =
            quality_attention_open(&dump->layout, dump->query_heads, rows, &kv->attention);
        if (status != KVT_OK) return status;
        quality_dump_load(dump, quality_attention_source(kv->attention));
        quality_dump_load_queries(dump, rows, quality_attention_queries(kv->attention));
        quality_attention_exact(kv->attention);
    }
    quality_attention_disturb(kv->attention, layer, side, noise, error_out);
    return KVT_OK;
}

static const quality_source_type source_dumps = {.method = "attention",
                                                 .entries = "dumps",
                                                 .identify = source_dumps_identify,
                                                 .admit = source_dumps_admit,
                                                 .open = source_dumps_open,
                                                 .queries = source_dumps_queries,
                                                 .disturb = source_dumps_disturb};

quality_source quality_source_of_dumps(const char *name, char *message, size_t message_size)
{
    return (quality_source){.type = &source_dumps,
                            .name = name,
                            .asked = true,
                            .positioned = true,
                            .message = message,
                            .message_size = message_size};
}
