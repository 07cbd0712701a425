/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_files.c - see data_files.h. One thread.
 */
#include "data_files.h"
#include "base/config_values.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Readers of texts and tables add .zst themselves. */
static bool data_exists(const char *path)
{
    char packed[PATH_MAX];
    if (access(path, F_OK) == 0) return true;
    int length = snprintf(packed, sizeof packed, "%s.zst", path);
    return length > 0 && (size_t)length < sizeof packed && access(packed, F_OK) == 0;
}

/* ../share/kvterrace/PATH from the folder of this program, so that an installed tree may be moved.
 */
static char *data_beside_program(const char *path)
{
    char program[PATH_MAX], *found = NULL;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return NULL;
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (slash == NULL) return NULL;
    *slash = '\0';
    if (asprintf(&found, "%s/%s/%s", program, KVT_DATA_FROM_BIN, path) < 0) return NULL;
    return found;
}

const char *command_data_path(command_common *common, const char *path)
{
    if (path[0] == '/' || data_exists(path)) return path;
    char *found = data_beside_program(path);
    if (found == NULL || !data_exists(found)) {
        free(found);
        found = NULL;
        if (asprintf(&found, "%s/%s", KVT_DATA_INSTALLED, path) < 0) return path;
    }
    if (data_exists(found)) return command_keep(common, found);
    free(found);
    return path;
}

const char *command_data_text(command_common *common, const char *text)
{
    const char *mark = strchr(text, '=');
    if (mark == NULL) return command_data_path(common, text);
    const char *path = command_data_path(common, mark + 1);
    char *whole = NULL;
    if (path == mark + 1 || asprintf(&whole, "%.*s=%s", (int)(mark - text), text, path) < 0)
        return text;
    return command_keep(common, whole);
}

void command_data_setting(command_common *common, const char *key, const char *except)
{
    char message[COMMAND_MESSAGE_BYTES], *assignment = NULL;
    if (!kvt_config_has(common->config, key)) return;
    const char *path = kvt_config_text(common->config, key);
    if (strncmp(path, except, strlen(except)) != 0) path = command_data_path(common, path);
    if (asprintf(&assignment, "%s=%s", key, path) < 0) return;
    /* Setting it anew also makes it unread again: whether it has an effect is found later. */
    (void)!kvt_config_set(common->config, assignment, message, sizeof message);
    free(assignment);
}
