/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate_tokens.c - texts that come as token ids, as a script wrote them that has the model's own
 * tokenizer. Whether the ids are within a vocabulary is seen when a model runs them. Thread rule:
 * any thread.
 */
#include "codecs/kernels/checksum.h"
#include "estimator/quality/evaluate.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Array members as ids. False when one is no whole number of 32 bits. */
static bool tokens_copy(const json_t *array, uint32_t *ids)
{
    size_t count = json_array_size(array);
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > UINT32_MAX) {
            return false;
        }
        ids[i] = (uint32_t)json_integer_value(value);
    }
    return true;
}

/* What is wrong with a line's "recall", which may be absent; else NULL. */
static const char *tokens_check_recall(const json_t *recall)
{
    if (recall == NULL) return NULL;
    const json_t *ids = json_object_get(recall, "tokens");
    const json_t *scored = json_object_get(recall, "scored");
    if (!json_is_array(ids) || json_array_size(ids) > UINT32_MAX || !json_is_integer(scored) ||
        json_integer_value(scored) < 1 ||
        (json_int_t)json_array_size(ids) <= json_integer_value(scored)) {
        return "\"recall\" is no object of \"tokens\" and fewer \"scored\" ones";
    }
    return NULL;
}

kvt_status evaluate_tokens_read(const json_t *line, evaluate_tokens **tokens_out,
                                const char **wrong_out)
{
    const json_t *ids = json_object_get(line, "tokens"), *recall = json_object_get(line, "recall");
    const json_t *recalled = json_object_get(recall, "tokens");
    const char *document = json_string_value(json_object_get(line, "document"));
    *tokens_out = NULL;
    *wrong_out = tokens_check_recall(recall);
    if (!json_is_array(ids) || json_array_size(ids) > UINT32_MAX)
        *wrong_out = "\"tokens\" is no array of ids";
    if (*wrong_out != NULL) return KVT_E_PARSE;
    size_t count = json_array_size(ids), recall_count = json_array_size(recalled);
    evaluate_tokens *tokens = malloc(sizeof *tokens + (count + recall_count) * sizeof(uint32_t));
    if (tokens == NULL) return KVT_E_MEMORY;
    uint32_t *at = (uint32_t *)(tokens + 1);
    *tokens = (evaluate_tokens){
        .ids = at,
        .count = (uint32_t)count,
        .recall_count = (uint32_t)recall_count,
        .recall_scored = (uint32_t)json_integer_value(json_object_get(recall, "scored")),
        .document = document != NULL ? checksum_of(document, strlen(document)) : 0};
    if (!tokens_copy(ids, at) || !tokens_copy(recalled, at + count)) {
        free(tokens);
        *wrong_out = "an id is no whole number of 32 bits";
        return KVT_E_PARSE;
    }
    *tokens_out = tokens;
    return KVT_OK;
}
