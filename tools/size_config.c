/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size_config.c - the configuration file of an advice: the settings of the run, with the advised
 * sizes and policy.
 *
 * A tier that stays within what the run was given keeps its devices, and its capacity bounds them.
 * One that is to be larger, or that was given as figures, is written as a simulation has it, with
 * speeds and without devices, for its drives are not there; a comment says what a store needs in
 * its place. One thread.
 */
#include "size.h"

#include "base/config_values.h"
#include "estimator/model/whole_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG_KEYS_MAX = 512 };

typedef struct config_writer {
    size_study *study; /* its message is of what failed */
    const size_advice *advice;
    kvt_config *out; /* what the file will say */
} config_writer;

static kvt_status config_set(config_writer *writer, const char *key, const char *value)
{
    char *text = NULL;
    if (asprintf(&text, "%s=%s", key, value) < 0) return KVT_E_MEMORY;
    const kvt_status status =
        kvt_config_set(writer->out, text, writer->study->message, sizeof writer->study->message);
    free(text);
    return status;
}

/* Whether a key is of a device of this tier. */
static bool config_is_device(const kvt_config *config, const char *key, const char *tier)
{
    char name[128];
    if (strncmp(key, "device.", 7) != 0) return false;
    (void)snprintf(name, sizeof name, "%.*s.tier", (int)(strrchr(key, '.') - key), key);
    const char *value = kvt_config_peek(config, name);
    return value != NULL && strcmp(value, tier) == 0;
}

/* Whether the advice leaves a key of the run out. */
static bool config_drops(const config_writer *writer, const char *key)
{
    for (size_axis_name axis = 0; axis < SIZE_AXES; axis++) {
        const char *tier = kvt_tier_name(tools_size_tiers[axis]);
        const uint64_t bytes = writer->advice->run->bytes[axis];
        char section[32];
        const int length = snprintf(section, sizeof section, "tier.%s.", tier);
        if (bytes == 0 && strncmp(key, section, (size_t)length) == 0) return true;
        if ((bytes == 0 || bytes > writer->study->owned[axis]) &&
            config_is_device(writer->study->common->config, key, tier))
            return true;
    }
    return false;
}

/* A tier's capacity, and speeds where neither devices nor this host's memory stand for it. */
static kvt_status config_set_tier(config_writer *writer, size_axis_name axis)
{
    static const char *const names[] = {"capacity", "read_bandwidth", "write_bandwidth"};
    const char *tier = kvt_tier_name(tools_size_tiers[axis]), *key;
    const replay_tier *model = &writer->study->options.tiers[tools_size_tiers[axis]];
    const double bytes = (double)writer->advice->run->bytes[axis];
    const double values[] = {bytes, model->read.bytes_per_s, model->write.bytes_per_s};
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    bool stands = axis == SIZE_DRAM && bytes <= memory;
    kvt_status status = KVT_OK;
    for (size_t i = 0; (key = kvt_config_key_at(writer->out, i)) != NULL; i++)
        stands |= config_is_device(writer->out, key, tier);
    for (size_t i = 0; bytes > 0 && i < (stands ? 1u : 3u) && status == KVT_OK; i++) {
        char name[64], value[32];
        (void)snprintf(name, sizeof name, "tier.%s.%s", tier, names[i]);
        (void)snprintf(value, sizeof value, "%.0f", values[i]);
        status = config_set(writer, name, value);
    }
    return status;
}

static kvt_status config_fill(config_writer *writer)
{
    const kvt_config *config = writer->study->common->config;
    const char *key;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK && (key = kvt_config_key_at(config, i)) != NULL; i++)
        if (!config_drops(writer, key))
            status = config_set(writer, key, kvt_config_peek(config, key));
    for (size_axis_name axis = 0; axis < SIZE_AXES && status == KVT_OK; axis++)
        status = config_set_tier(writer, axis);
    return status == KVT_OK ? config_set(writer, "store.policy",
                                         tools_size_policy_names[writer->advice->run->policy])
                            : status;
}

static int config_order(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Section by section; what has lost its effect is left out. */
static void config_print(const config_writer *writer, FILE *file)
{
    const char *keys[CONFIG_KEYS_MAX], *before = "";
    char reason[256];
    size_t count = 0;
    fprintf(file, "; The advice of kvterrace size %s.\n", kvt_version());
    if (kvt_config_has(writer->out, "tier.ssd.read_bandwidth"))
        fprintf(file, "; A store needs a [device.NAME] with tier = ssd for each drive in the place "
                      "of [tier.ssd]:\n; docs/GUIDE.md, 3.\n");
    while (count < CONFIG_KEYS_MAX && kvt_config_key_at(writer->out, count) != NULL) {
        keys[count] = kvt_config_key_at(writer->out, count);
        count++;
    }
    qsort(keys, count, sizeof keys[0], config_order);
    for (size_t i = 0; i < count; i++) {
        const char *name = strrchr(keys[i], '.') + 1;
        const size_t length = (size_t)(name - keys[i]);
        if (!kvt_config_has_effect(writer->out, keys[i], reason, sizeof reason)) continue;
        if (strncmp(before, keys[i], length) != 0 || strchr(before + length, '.') != NULL)
            fprintf(file, "\n[%.*s]\n", (int)length - 1, keys[i]);
        fprintf(file, "%s = %s\n", name, kvt_config_peek(writer->out, keys[i]));
        before = keys[i];
    }
}

kvt_status tools_size_config_write(size_study *study, const size_advice *advice, const char *path)
{
    config_writer writer = {.study = study, .advice = advice};
    char *text = NULL;
    size_t bytes = 0;
    kvt_status status = kvt_config_new(&writer.out);
    if (status == KVT_OK) status = config_fill(&writer);
    FILE *file = status == KVT_OK ? open_memstream(&text, &bytes) : NULL;
    if (file != NULL) config_print(&writer, file);
    if (status == KVT_OK && (file == NULL || fclose(file) != 0)) status = KVT_E_MEMORY;
    if (status == KVT_OK)
        status = whole_file_write(path, text, bytes, study->message, sizeof study->message);
    free(text);
    kvt_config_free(writer.out);
    return status;
}
