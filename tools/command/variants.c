/* SPDX-License-Identifier: Apache-2.0 */
/*
 * variants.c - names of variants in options, and the kernels that a model runs on. One thread.
 */
#include "variants.h"

#include "command.h"

#include "estimator/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- kernels of OpenBLAS ---- */

#define BLAS_VARIABLE "OPENBLAS_CORETYPE"

/* The kernels for this processor; NULL: the oldest ones are right. */
static const char *blas_kernels(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return "SkylakeX";
    if (__builtin_cpu_supports("avx2")) return "Haswell";
#endif
    return NULL;
}

/* The words of /proc/self/cmdline, as main got them before anyone changed argv. */
static char **blas_arguments(char *text, size_t bytes)
{
    size_t count = 0, index = 0;
    for (size_t i = 0; i < bytes; i++)
        count += text[i] == '\0';
    char **arguments = calloc(count + 1, sizeof *arguments);
    for (size_t at = 0; arguments != NULL && at < bytes; at += strlen(text + at) + 1)
        arguments[index++] = text + at;
    return arguments;
}

void command_choose_blas(void)
{
    const char *wanted = blas_kernels();
    char *text = NULL;
    size_t capacity = 0;
    if (wanted == NULL || strcmp(model_blas_kernels(), "Prescott") != 0) return;
    if (getenv(BLAS_VARIABLE) != NULL || setenv(BLAS_VARIABLE, wanted, 1) != 0) return;
    FILE *file = fopen("/proc/self/cmdline", "rb");
    if (file == NULL) return;
    /* Words end with a zero byte, and no other character is missing from a command line. */
    ssize_t bytes = getdelim(&text, &capacity, EOF, file);
    (void)fclose(file);
    char **arguments = bytes > 0 ? blas_arguments(text, (size_t)bytes) : NULL;
    /* Comes back only where it fails; then the slow kernels do. */
    if (arguments != NULL) (void)execv("/proc/self/exe", arguments);
    free(arguments);
    free(text);
}
