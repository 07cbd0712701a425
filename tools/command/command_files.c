/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command_files.c - files that a command writes, never over one that it reads, and the files that
 * come with kvterrace (profiles/, reference_model/), from a checkout or from where they were
 * installed. estimator/model/whole_file.h writes files whole. One thread.
 */
#include "command.h"

#include "base/config_values.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Two names are one file when device and inode agree. A terminal or a pipe may be both. */
static bool output_is_same(const struct stat *target, const char *path)
{
    struct stat facts;
    if (path == NULL || stat(path, &facts) != 0) return false;
    return facts.st_dev == target->st_dev && facts.st_ino == target->st_ino;
}

/* Whether a path in the settings is the target. The settings are read anew, because reading marks
 * them as used. */
static bool output_is_setting(const command_common *common, const struct stat *target)
{
    static const char *const keys[] = {"store.profile", "store.catalog", "replay.ladder"};
    char message[COMMAND_MESSAGE_BYTES], key[96];
    kvt_config *config = NULL;
    bool same = false;
    kvt_status status = kvt_config_new(&config);
    for (size_t i = 0; status == KVT_OK && i < common->files.count; i++)
        status = kvt_config_read(config, common->files.items[i], message, sizeof message);
    for (size_t i = 0; status == KVT_OK && i < common->settings.count; i++)
        status = kvt_config_set(config, common->settings.items[i], message, sizeof message);
    for (size_t i = 0; status == KVT_OK && i < sizeof keys / sizeof keys[0]; i++)
        same = same || output_is_same(target, kvt_config_text(config, keys[i]));
    const char *device;
    for (size_t i = 0; status == KVT_OK && (device = kvt_config_device_at(config, i)); i++) {
        (void)snprintf(key, sizeof key, "device.%s.path", device);
        same = same || output_is_same(target, kvt_config_text(config, key));
    }
    kvt_config_free(config);
    return same;
}

static bool output_is_used(const command_common *common, const struct stat *target)
{
    struct stat input;
    if (!S_ISREG(target->st_mode) && !S_ISBLK(target->st_mode)) return false;
    /* Standard input may be that file, too: `--trace -` reads it. */
    if (fstat(STDIN_FILENO, &input) == 0 && input.st_dev == target->st_dev &&
        input.st_ino == target->st_ino) {
        return true;
    }
    for (size_t i = 0; i < common->files.count; i++)
        if (output_is_same(target, common->files.items[i])) return true;
    for (size_t i = 0; i < common->inputs.count; i++)
        if (output_is_same(target, common->inputs.items[i])) return true;
    return output_is_setting(common, target);
}

kvt_status command_check_target(const command_common *common, const char *what, const char *path,
                                char *message, size_t message_size)
{
    struct stat facts;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    bool exists = stat(path, &facts) == 0;
    const char *reason = NULL;
    if (!folder) return KVT_E_MEMORY;
    if (exists && S_ISDIR(facts.st_mode)) {
        reason = strerror(EISDIR);
    } else if (exists && output_is_used(common, &facts)) {
        reason = "this run uses that file for something else; it is left as it is";
    } else if (access(exists ? path : folder, exists ? W_OK : W_OK | X_OK) != 0) {
        reason = strerror(errno);
    }
    free(folder);
    if (!reason) return KVT_OK;
    (void)snprintf(message, message_size, "%s %.300s: %s", what, path, reason);
    return KVT_E_CONFIG;
}

/* ---- files that come with kvterrace ---- */

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

const char *command_class_mark(const char *text)
{
    const char *mark = strchr(text, '=');
    if (mark != NULL && access(text, F_OK) == 0 && access(mark + 1, F_OK) != 0) return NULL;
    return mark;
}

const char *command_data_text(command_common *common, const char *text)
{
    const char *mark = command_class_mark(text);
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
