/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size_machine.c - what the options of kvterrace size say: a machine in words, prices, sizes, a
 * model. One thread.
 */
#include "size.h"

#include "base/config_values.h"

#include <stdlib.h>
#include <string.h>

enum { MACHINE_PART_BYTES = 96, MACHINE_DRIVES_MAX = 64 };
#define MACHINE_BYTES_MIN (UINT64_C(1) << 16)
#define MACHINE_BYTES_MAX (UINT64_MAX >> 8) /* of one drive, so that a sum of them stays a number */

/* Copies the part up to the next comma; false behind the last one. */
static bool machine_part(const char **at, char part[MACHINE_PART_BYTES])
{
    if (*at == NULL) return false;
    const size_t length = strcspn(*at, ",");
    (void)snprintf(part, MACHINE_PART_BYTES, "%.*s", (int)length, *at);
    *at = (*at)[length] == ',' ? *at + length + 1 : NULL;
    return true;
}

/* A size, or with /s behind it a rate. Of the sizes that are a memory's or drive's, none has fewer
 * bytes than MACHINE_BYTES_MIN: "64" lacks its unit. */
static bool machine_bytes(char *word, bool rate, uint64_t *bytes_out)
{
    const size_t length = word != NULL ? strlen(word) : 0;
    if (rate && length > 2 && strcmp(word + length - 2, "/s") == 0) word[length - 2] = '\0';
    return length > 0 && kvt_parse_bytes(word, bytes_out) == KVT_OK &&
           *bytes_out < MACHINE_BYTES_MAX &&
           (*bytes_out >= MACHINE_BYTES_MIN || (*bytes_out == 0 && !rate));
}

/* What a part sets: capacity, bandwidth of reads and of writes; 0 = not said. */
typedef struct machine_values {
    size_axis_name axis;
    uint64_t values[3];
} machine_values;

/* "ssd 2TB at 6GB/s writing 3GB/s x2". NULL, or what is wrong with *word. */
static const char *machine_read_part(char *part, machine_values *out, const char **word)
{
    char *rest = NULL, *at = strtok_r(part, " \t", &rest);
    uint32_t drives = 1;
    *word = at != NULL ? at : "";
    *out = (machine_values){.axis = SIZE_AXES};
    for (size_axis_name axis = 0; axis < SIZE_AXES; axis++)
        if (strcmp(*word, kvt_tier_name(tools_size_tiers[axis])) == 0) out->axis = axis;
    if (out->axis == SIZE_AXES) return "is no tier: dram or ssd";
    at = strtok_r(NULL, " \t", &rest);
    if (at != NULL) *word = at;
    if (!machine_bytes(at, false, &out->values[0])) return "is no size such as 64GiB or 2TB";
    while ((at = strtok_r(NULL, " \t", &rest)) != NULL) {
        *word = at;
        const bool writing = strcmp(at, "writing") == 0;
        if (writing || strcmp(at, "at") == 0) {
            at = strtok_r(NULL, " \t", &rest);
            if (at != NULL) *word = at;
            if (!machine_bytes(at, true, &out->values[writing ? 2 : 1]))
                return "is no rate such as 6GB/s";
        } else if (at[0] != 'x' || !command_parse_count(at + 1, 1, MACHINE_DRIVES_MAX, &drives)) {
            return "is none of 'at RATE', 'writing RATE' and x1 to x64, a number of drives";
        }
    }
    for (size_t i = 0; i < 3; i++)
        out->values[i] *= drives;
    return NULL;
}

int tools_size_machine_read(command_common *common, const char *text)
{
    static const char *const keys[] = {"capacity", "read_bandwidth", "write_bandwidth"};
    bool given[SIZE_AXES] = {false};
    char part[MACHINE_PART_BYTES];
    for (const char *at = text; machine_part(&at, part);) {
        const char *word;
        machine_values own;
        const char *fault = machine_read_part(part, &own, &word);
        if (fault == NULL && given[own.axis])
            fault = "is the second part of a tier: equal drives are one part with x2 behind it";
        if (fault != NULL) return command_misuse("--machine: '%s' %s", word, fault);
        given[own.axis] = true;
        for (size_t i = 0; i < 3; i++) {
            char key[64], value[32];
            /* Speeds of a tier without room have no effect, and would be errors. */
            if (i > 0 && (own.values[i] == 0 || own.values[0] == 0)) continue;
            (void)snprintf(key, sizeof key, "tier.%s.%s", kvt_tier_name(tools_size_tiers[own.axis]),
                           keys[i]);
            (void)snprintf(value, sizeof value, "%llu", (unsigned long long)own.values[i]);
            command_add_setting(common, key, value);
        }
    }
    return EXIT_FINE;
}

int tools_size_prices_read(const char *text, double prices[SIZE_AXES + 1])
{
    static const char *const names[SIZE_AXES + 1] = {"dram=", "ssd=", "gpu_hour="};
    char part[MACHINE_PART_BYTES];
    for (const char *at = text; machine_part(&at, part);) {
        size_t row = 0;
        while (row <= SIZE_AXES && strncmp(names[row], part, strlen(names[row])) != 0)
            row++;
        if (row > SIZE_AXES)
            return command_misuse("--price: '%s' is none of dram=, ssd= (of a GB a month) and "
                                  "gpu_hour=",
                                  part);
        char *const from = part + strlen(names[row]), *end = NULL;
        prices[row] = strtod(from, &end);
        if (end == from || *end != '\0' || !(prices[row] >= 0.0 && prices[row] <= 1e9))
            return command_misuse("--price: '%s' is no price from 0 to 1e9", part);
    }
    return EXIT_FINE;
}

int tools_size_axis_read(const char *option, const char *text, size_axis *axis)
{
    char part[MACHINE_PART_BYTES];
    for (const char *at = text; machine_part(&at, part);) {
        uint64_t bytes = 0;
        if (axis->count == SIZE_AXIS_MAX ||
            !machine_bytes(part + strspn(part, " "), false, &bytes) ||
            (axis->count > 0 && bytes <= axis->bytes[axis->count - 1]))
            return command_misuse("--%s: '%s' is no larger size than the one before it, of at most "
                                  "%d sizes such as 64GiB or 2TB",
                                  option, part, SIZE_AXIS_MAX);
        axis->bytes[axis->count++] = bytes;
    }
    return EXIT_FINE;
}

int tools_size_model_read(command_common *common, const char *model, const char *gpu)
{
    static const char preset_model[] = "llama-3.1-8b";
    char name[128];
    kvt_prefill prefill;
    if (model == NULL && gpu == NULL) return EXIT_FINE;
    const bool file = common->files.count > 0;
    (void)snprintf(name, sizeof name, "%.60s:%.60s", model != NULL ? model : preset_model,
                   gpu != NULL ? gpu : "a100");
    if (kvt_prefill_preset_get(name, &prefill) == KVT_OK) {
        if (gpu != NULL) command_add_setting(common, "prefill.gpu", gpu);
        return EXIT_FINE;
    }
    if (!command_was_set(common, "store.profile") && !file)
        return command_misuse("no preset is called %s: of llama-3.1-8b there are a100 and h100; "
                              "others are prefill models of a profile, --database FILE, into "
                              "which profile import brings profiles/prefill.json or your own "
                              "(docs/PROFILE.md, Prefill)",
                              name);
    if (model != NULL && strcmp(model, preset_model) != 0 && !file &&
        !command_was_set(common, "replay.bytes_per_token"))
        return command_misuse("--model %s: how many bytes of KV has a token? --set "
                              "replay.bytes_per_token=320KiB (docs/GUIDE.md, 1)",
                              model);
    command_add_setting(common, "prefill.profile", name);
    return EXIT_FINE;
}
