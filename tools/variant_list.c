/* SPDX-License-Identifier: Apache-2.0 */
/*
 * variant_list.c - see variant_list.h. One thread.
 */
#include "variant_list.h"

#include "command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *list_usual_at(size_t index)
{
    return quality_variant_usual((uint32_t)index, false);
}

void command_unknown_variant(const char *name, char *message, size_t message_size)
{
    (void)snprintf(message, message_size, "unknown variant '%.200s'", name);
    command_suggest(message, message_size, name, list_usual_at);
}

static kvt_status list_add(const char *name, quality_variant *variants, uint32_t capacity,
                           uint32_t *count, char *message, size_t message_size)
{
    if (*count == capacity) {
        (void)snprintf(message, message_size, "more than %u variants", (unsigned)capacity);
        return KVT_E_ARGUMENT;
    }
    if (quality_variant_parse(name, &variants[*count]) == KVT_OK) {
        ++*count;
        return KVT_OK;
    }
    command_unknown_variant(name, message, message_size);
    return KVT_E_ARGUMENT;
}

kvt_status command_parse_variants(const char *list, bool quick, quality_variant *variants,
                                  uint32_t capacity, uint32_t *count_out, char *message,
                                  size_t message_size)
{
    kvt_status status = KVT_OK;
    const char *usual;
    *count_out = 0;
    if (list == NULL) {
        for (uint32_t i = 0; status == KVT_OK; i++) {
            if ((usual = quality_variant_usual(i, quick)) == NULL) break;
            status = list_add(usual, variants, capacity, count_out, message, message_size);
        }
        return status;
    }
    char *copy = strdup(list), *rest = NULL;
    if (copy == NULL) return KVT_E_MEMORY;
    for (char *name = strtok_r(copy, "; \t\n", &rest); status == KVT_OK && name != NULL;
         name = strtok_r(NULL, "; \t\n", &rest)) {
        status = list_add(name, variants, capacity, count_out, message, message_size);
    }
    free(copy);
    return status;
}
