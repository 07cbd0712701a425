/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_store_config.c - any bytes as a configuration file: a value or KVT_E_CONFIG, never a crash.
 *
 * What was accepted is read back as its kind, which must succeed.
 */
#include "base/config_values.h"

#include <kvterrace/config.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const kvt_setting *fuzz_setting(const char *key)
{
    const kvt_setting *setting;
    const char *last = strrchr(key, '.');
    for (size_t i = 0; (setting = kvt_setting_at(i)) != NULL; i++) {
        const char *star = strstr(setting->name, ".*.");
        if (strcmp(setting->name, key) == 0) return setting;
        if (star && strncmp(key, "device.", 7) == 0 && strcmp(star + 2, last) == 0) return setting;
    }
    abort();
}

static void fuzz_read(kvt_config *config, const char *key)
{
    switch (fuzz_setting(key)->kind) {
    case KVT_SETTING_TEXT: (void)kvt_config_text(config, key); break;
    case KVT_SETTING_BYTES:
    case KVT_SETTING_RATE:
    case KVT_SETTING_COUNT: (void)kvt_config_bytes(config, key); break;
    case KVT_SETTING_SECONDS:
    case KVT_SETTING_NUMBER: (void)kvt_config_number(config, key); break;
    case KVT_SETTING_SWITCH: (void)kvt_config_switch(config, key); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64], message[128] = "";
    kvt_config *config;
    int descriptor = memfd_create("config", MFD_CLOEXEC);
    if (descriptor < 0 || write(descriptor, data, size) != (ssize_t)size) abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    if (kvt_config_new(&config) != KVT_OK) abort();
    kvt_status status = kvt_config_read(config, path, message, sizeof message);
    if (status != KVT_OK && (status != KVT_E_CONFIG || message[0] == '\0')) abort();
    const char *key;
    while ((key = kvt_config_unused_get(config, 0)) != NULL)
        fuzz_read(config, key);
    kvt_config_free(config);
    (void)close(descriptor);
    return 0;
}
