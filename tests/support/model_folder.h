/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_folder.h - the folder that tests of the reference decoder write their models into, and its
 * removal with the files that such tests make. Single thread.
 */
#ifndef SUPPORT_MODEL_FOLDER_H
#define SUPPORT_MODEL_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];

static inline const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "model-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

/* Not 0 when a test has left another file there. */
static inline int remove_folder(void **state)
{
    static const char *const names[] = {"model.bin", "config.json", "model.safetensors",
                                        "texts.jsonl", "vocabulary.bin"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unlink(in_folder(names[i]));
    return rmdir(folder);
}

#endif
