/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_common.c - opens and closes the profile of a command, and reads classes of texts. One
 * thread.
 */
#include "profile_measure.h"
#include "tools/command/command.h"

#include "base/config_values.h"
#include "estimator/exchange/exchange.h"
#include "estimator/model/model.h"
#include "estimator/model/whole_file.h"
#include "estimator/quality/promise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *command_profile_path(kvt_config *config)
{
    const char *path = kvt_config_text(config, "store.profile");
    return path ? path : PROFILE_STANDARD_PATH;
}

static kvt_status open_path(const char *path, uint32_t flags, kvt_profile **profile_out,
                            char *message, size_t message_size)
{
    kvt_status status = kvt_profile_open(path, flags, profile_out, message, message_size);
    if (status != KVT_MISS) return status;
    (void)snprintf(message, message_size, "%.400s: no such profile", path);
    return KVT_E_GONE;
}

kvt_status command_profile_open(kvt_config *config, uint32_t flags, kvt_profile **profile_out,
                                char *message, size_t message_size)
{
    if (kvt_config_switch(config, "store.profile_foreign")) flags |= KVT_PROFILE_FOREIGN;
    return open_path(command_profile_path(config), flags, profile_out, message, message_size);
}

kvt_status command_profile_look(const char *path, kvt_profile **profile_out, char *message,
                                size_t message_size)
{
    return open_path(path, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, profile_out, message,
                     message_size);
}

kvt_status command_profile_begin(kvt_config *config, command_profile *out, char *message,
                                 size_t message_size)
{
    *out = (command_profile){.path = command_profile_path(config)};
    out->made = access(out->path, F_OK) != 0;
    return command_profile_open(config, KVT_PROFILE_WRITE, &out->profile, message, message_size);
}

int command_profile_finish(command_profile *profile, int code)
{
    static const char *const tails[] = {"", "-wal", "-shm"};
    bool has_runs = true;
    if (profile->profile != NULL && profile->made && code != EXIT_FINE) {
        json_t *views = json_object();
        has_runs = exchange_view(profile->profile, "runs", views) != KVT_OK ||
                   json_array_size(json_object_get(views, "runs")) > 0;
        json_decref(views);
    }
    kvt_profile_close(profile->profile);
    profile->profile = NULL;
    for (size_t i = 0; !has_runs && i < sizeof tails / sizeof tails[0]; i++) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s%s", profile->path, tails[i]);
        if (length > 0 && (size_t)length < sizeof path) (void)unlink(path);
    }
    return code;
}

/* ---- classes of texts ---- */

#define CLASS_BYTES_MAX 56u /* as calibrations take them: "/recall" is put behind some */

/* What is wrong with [CLASS=]PATH, whose class is so long; NULL: nothing. A class is part of
 * profile:NAME:CLASS, of lists with commas, and of CLASS/recall. */
static const char *class_fault(const char *name, size_t length, const char *path)
{
    if (length == 0) return "no class before the '='";
    if (*path == '\0') return "no file behind the '='";
    if (length > CLASS_BYTES_MAX) return "the name of a class has at most 56 bytes";
    for (size_t i = 0; i < length; i++)
        if (strchr("/:,", name[i]) != NULL || (unsigned char)name[i] < ' ')
            return "the name of a class has no '/', ':' or ','";
    return NULL;
}

kvt_status command_class_of(measure_classes *work, const char *standard, const char *text,
                            uint32_t *class_out, const char **path_out, char *message,
                            size_t message_size)
{
    const char *mark = command_class_mark(text);
    const char *name = mark != NULL ? text : standard;
    size_t length = mark != NULL ? (size_t)(mark - text) : strlen(name);
    uint32_t i = 0;
    *path_out = mark != NULL ? mark + 1 : text;
    const char *fault = class_fault(name, length, *path_out);
    if (fault != NULL) {
        (void)snprintf(message, message_size, "%.200s: %s", mark != NULL ? text : name, fault);
        return KVT_E_ARGUMENT;
    }
    while (i < work->count &&
           (strlen(work->names[i]) != length || memcmp(work->names[i], name, length) != 0)) {
        i++;
    }
    if (i == QUALITY_CLASSES_MAX) {
        (void)snprintf(message, message_size, "%.200s: at most %d classes", text,
                       (int)QUALITY_CLASSES_MAX);
        return KVT_E_ARGUMENT;
    }
    if (i == work->count) {
        (void)snprintf(work->names[i], sizeof work->names[i], "%.*s", (int)length, name);
        work->classes[work->count++] =
            (quality_class){.name = work->names[i], .texts = work->paths[i]};
    }
    *class_out = i;
    return KVT_OK;
}

/* Puts a text to the others of its class. */
static kvt_status classes_add(measure_classes *work, const char *standard, const char *text,
                              char *message, size_t message_size)
{
    const char *path;
    uint32_t i;
    const kvt_status status =
        command_class_of(work, standard, text, &i, &path, message, message_size);
    if (status != KVT_OK) return status;
    if (work->classes[i].text_count == MEASURE_TEXTS_MAX) {
        (void)snprintf(message, message_size, "%.200s: at most %d texts of a class", text,
                       (int)MEASURE_TEXTS_MAX);
        return KVT_E_ARGUMENT;
    }
    work->paths[i][work->classes[i].text_count++] = path;
    return KVT_OK;
}

kvt_status command_choose_classes(const char *list, const measure_classes *classes,
                                  bool chosen[QUALITY_CLASSES_MAX], char *message,
                                  size_t message_size)
{
    for (uint32_t c = 0; c < classes->count; c++)
        chosen[c] = list == NULL;
    while (list != NULL && *list != '\0') {
        const size_t length = strcspn(list, ",");
        uint32_t c = 0;
        while (c < classes->count && (strlen(classes->names[c]) != length ||
                                      strncmp(classes->names[c], list, length) != 0))
            c++;
        if (c == classes->count) {
            (void)snprintf(message, message_size, "nothing is of class '%.*s'", (int)length, list);
            return KVT_E_ARGUMENT;
        }
        chosen[c] = true;
        list += length + (list[length] == ',');
    }
    return KVT_OK;
}

kvt_status command_parse_classes(const measure_arguments *arguments, measure_classes *classes,
                                 char *message, size_t message_size)
{
    const char *standard = arguments->class_name != NULL ? arguments->class_name : MEASURE_CLASS;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK && i < arguments->texts.count; i++)
        status = classes_add(classes, standard, arguments->texts.items[i], message, message_size);
    return status;
}

/* ---- a measurement ---- */

kvt_status measure_prepare(measure_arguments *arguments, measure_work *work, char *message,
                           size_t message_size)
{
    const kvt_status status =
        command_parse_classes(arguments, &work->classes, message, message_size);
    work->wanted.variants = work->variants;
    work->options = (calibrate_options){
        .name = arguments->name,
        .model = arguments->model,
        .tokenizer = arguments->tokenizer,
        .classes = work->classes.classes,
        .class_count = work->classes.count,
        .context_tokens = measure_or(arguments->context_tokens, MEASURE_CONTEXT_TOKENS),
        .continuation_tokens =
            measure_or(arguments->continuation_tokens, MEASURE_CONTINUATION_TOKENS),
        .metric = (quality_metric)arguments->metric,
        .use = (quality_use)arguments->use,
        .seconds = 60.0 * arguments->minutes,
        .teaches = work->teaches,
        .teach_contexts = measure_or(arguments->teach, MEASURE_TEACH_CONTEXTS),
        .teach_tokens = measure_or(arguments->teach_tokens, MEASURE_TEACH_TOKENS),
        .finish = arguments->finish,
        .rope = arguments->rope,
        .queries = arguments->queries,
        .threads = arguments->threads,
        .command_line = arguments->common.line,
        .progress = progress_ask,
        .progress_context = &arguments->bar};
    if (arguments->model == NULL && arguments->name == NULL) work->options.name = "model";
    return status;
}

int measure_into_profile(measure_arguments *arguments,
                         kvt_status (*more)(measure_arguments *arguments, measure_work *work,
                                            char *message, size_t message_size),
                         int (*run)(measure_arguments *arguments, measure_work *work,
                                    kvt_profile *profile))
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    command_profile profile = {0};
    command_choose_blas();
    measure_work *work = calloc(1, sizeof *work);
    if (work == NULL) return command_fail(KVT_E_MEMORY, "");
    kvt_status status = measure_prepare(arguments, work, message, sizeof message);
    if (status == KVT_OK) status = more(arguments, work, message, sizeof message);
    if (status == KVT_OK)
        status = command_profile_begin(arguments->common.config, &profile, message, sizeof message);
    int code = status == KVT_OK ? run(arguments, work, profile.profile)
                                : command_fail_input(status, message);
    code = command_profile_finish(&profile, code);
    measure_dumps_free(&work->dumps);
    free(work);
    return code;
}

/* The sentences of "verdict" on stdout. */
static void print_verdict(const json_t *document)
{
    const json_t *sentences = json_object_get(document, "verdict");
    for (size_t i = 0; i < json_array_size(sentences); i++)
        printf("%s%s\n", i == 0 ? "\nVerdict\n" : "",
               json_string_value(json_array_get(sentences, i)));
}

int command_print_tables(const command_common *common, json_t *document,
                         const document_table *tables)
{
    if (common->json || document == NULL) return command_print_document(document);
    document_print_tables(document, tables, stdout);
    print_verdict(document);
    json_decref(document);
    return EXIT_FINE;
}
