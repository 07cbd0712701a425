/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_scratch.h - a random model, a vocabulary of bytes and some words, and texts, as files of
 * one folder. One thread; cmocka's headers come first.
 */
#ifndef SUPPORT_QUALITY_SCRATCH_H
#define SUPPORT_QUALITY_SCRATCH_H

#include "model_support.h"

#include <unistd.h>

enum { SCRATCH_BYTE_IDS = 259, SCRATCH_PIECES = 3, SCRATCH_VOCAB = 262 };

typedef struct quality_scratch {
    char folder[64], model[96], tokenizer[96], plain[96], asked[96], database[96];
} quality_scratch;

static quality_scratch files;

static inline void scratch_write_vocabulary(void)
{
    static const char *const pieces[SCRATCH_PIECES] = {" ", " a", "bo"};
    const int32_t longest = 8;
    FILE *file = fopen(files.tokenizer, "wb");
    assert_non_null(file);
    naive_put(file, &longest, sizeof longest);
    for (int id = 0; id < SCRATCH_VOCAB; id++) {
        char text[16];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)(id - 3) & 0xffu);
        if (id < 3) snprintf(text, sizeof text, "<%d>", id);
        if (id >= SCRATCH_BYTE_IDS)
            snprintf(text, sizeof text, "%s", pieces[id - SCRATCH_BYTE_IDS]);
        const float score = id < SCRATCH_BYTE_IDS ? 0.0f : -(float)id;
        const int32_t length = (int32_t)strlen(text);
        naive_put(file, &score, sizeof score);
        naive_put(file, &length, sizeof length);
        naive_put(file, text, (size_t)length);
    }
    assert_int_equal(fclose(file), 0);
}

/* Lines without questions, each longer than an entry; two lines with. */
static inline void scratch_write_texts(void)
{
    FILE *file = fopen(files.plain, "w");
    assert_non_null(file);
    for (int line = 0; line < 6; line++) {
        fprintf(file, "{\"text\": \"");
        for (int i = 0; i < 20; i++)
            fprintf(file, "bobo ran %d. ", i * 7 + line);
        fprintf(file, "\"}\n");
    }
    assert_int_equal(fclose(file), 0);
    file = fopen(files.asked, "w");
    assert_non_null(file);
    /*                        0         1         2         3         4         5        */
    /*                        0123456789012345678901234567890123456789012345678901234567 */
    fprintf(file, "{\"text\": \"bobo has a 12 and a zebo too. ? bobo has 12. ? zebo too. x\", "
                  "\"context\": 29, \"questions\": [[29, 40, 44], [44, 51, 56]]}\n");
    fprintf(file, "{\"text\": \"abobo is here. ? who bobo.\", \"context\": 14, \"questions\": "
                  "[[14, 20, 26]]}\n");
    assert_int_equal(fclose(file), 0);
}

static inline int scratch_make_files(void **state)
{
    (void)state;
    snprintf(files.folder, sizeof files.folder, "quality-scratch-XXXXXX");
    if (mkdtemp(files.folder) == NULL) return -1;
    snprintf(files.model, sizeof files.model, "%s/small.bin", files.folder);
    snprintf(files.tokenizer, sizeof files.tokenizer, "%s/tokenizer.bin", files.folder);
    snprintf(files.plain, sizeof files.plain, "%s/plain.jsonl", files.folder);
    snprintf(files.asked, sizeof files.asked, "%s/asked.jsonl", files.folder);
    snprintf(files.database, sizeof files.database, "%s/profile.db", files.folder);
    naive_model m = naive_make((model_config){.dim = 64,
                                              .ffn_dim = 40,
                                              .layers = 2,
                                              .heads = 2,
                                              .kv_heads = 2,
                                              .head_dim = 32,
                                              .vocab = SCRATCH_VOCAB,
                                              .context = 64,
                                              .norm_eps = 1e-5f,
                                              .rope_theta = 10000.0,
                                              .tied = true},
                               11);
    naive_write(&m, files.model);
    scratch_write_vocabulary();
    scratch_write_texts();
    return 0;
}

static inline void scratch_remove_database(void)
{
    static const char *const endings[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < 4; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", files.database, endings[i]);
        (void)unlink(name);
    }
}

static inline int scratch_remove_files(void **state)
{
    (void)state;
    scratch_remove_database();
    (void)unlink(files.model);
    (void)unlink(files.tokenizer);
    (void)unlink(files.plain);
    (void)unlink(files.asked);
    return rmdir(files.folder);
}

#endif
