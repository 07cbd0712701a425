/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blas_kernels.c - OpenBLAS chooses its kernels when it is loaded, and on a processor newer than
 * itself takes those of the oldest one, which are several times slower. The environment alone can
 * tell it otherwise, and only before it is loaded. One thread.
 */
#include "command.h"
#include "estimator/model/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
