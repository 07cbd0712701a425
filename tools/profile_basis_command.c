/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_basis_command.c - kvterrace profile basis: the lesson of a calibration by itself, into
 * files. What bases save is asked by profile calibrate --basis. One thread.
 */
#include "estimator/model/whole_file.h"
#include "estimator/quality/basis_learners.h"
#include "profile_document.h"
#include "profile_measure.h"

#include <stdlib.h>
#include <string.h>

typedef struct basis_work {
    measure_work measured;
    calibrate_report report;
    json_t *bases;
} basis_work;

static const command_option basis_table[] = {
    MEASURE_MODEL,
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("[CLASS=]FILE", QUALITY_CLASSES_MAX *MEASURE_TEXTS_MAX),
    MEASURE_CLASS_ROW,
    MEASURE_TEXT(learn, "learn", "LIST", "Classes that teach, with commas between them (all)"),
    MEASURE_TEACH,
    MEASURE_LENGTHS,
    OUTPUT_OPTION(measure_arguments, output, "Write the bases to FILE-head.kvtbasis and so on"),
    {0},
};

/* Each basis of the lesson to a file, and as an object of the document. */
static kvt_status basis_write_files(kvt_profile *profile, const char *output, json_t *list,
                                    char *message, size_t message_size)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK; i++) {
        profile_basis basis;
        char path[4096], hash[2 * TRANSFORM_HASH_BYTES + 1];
        status = profile_basis_at(profile, i, &basis);
        if (status != KVT_OK) break;
        const char *span = quality_basis_span_name(basis.view.shape.span);
        for (uint32_t b = 0; b < TRANSFORM_HASH_BYTES; b++)
            (void)snprintf(hash + (size_t)2 * b, 3, "%02x", (unsigned)basis.view.hash[b]);
        (void)snprintf(path, sizeof path, "%s-%s.kvtbasis", output != NULL ? output : "", span);
        if (output != NULL)
            status = whole_file_write(path, basis.object, basis.bytes, message, message_size);
        (void)json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "span", span, "bytes",
                                                    (json_int_t)basis.bytes, "hash", hash));
        profile_basis_free(&basis);
    }
    return status == KVT_MISS ? KVT_OK : status;
}

static kvt_status basis_learn(measure_arguments *arguments, basis_work *work, char *message,
                              size_t message_size)
{
    kvt_profile *profile = NULL;
    measure_work *measured = &work->measured;
    kvt_status status = measure_prepare(arguments, measured, message, message_size);
    if (status == KVT_OK)
        status = command_choose_classes(arguments->learn, &measured->classes, measured->teaches,
                                        message, message_size);
    if (status == KVT_OK)
        status = kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, message, message_size);
    if (status != KVT_OK) return status;
    measured->options.basis = measured->options.lesson = true;
    measure_begin(arguments);
    status =
        calibrate_profile_run(profile, &measured->options, &work->report, message, message_size);
    progress_end(&arguments->bar);
    if (status == KVT_OK)
        status = basis_write_files(profile, arguments->output, work->bases, message, message_size);
    kvt_profile_close(profile);
    return status;
}

static const document_table basis_tables[] = {
    {"", "model taught taught_tokens seconds"},
    {"bases", "span bytes hash"},
    {0},
};

static json_t *basis_document(const basis_work *work)
{
    return json_pack("{s:s, s:o, s:I, s:I, s:f, s:O}", "schema", "kvterrace-profile-basis-3",
                     "model", view_string(work->report.model.name), "taught",
                     (json_int_t)work->report.taught, "taught_tokens",
                     (json_int_t)work->report.taught_tokens, "seconds", work->report.seconds,
                     "bases", work->bases);
}

static int basis_run(void *context)
{
    measure_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    command_choose_blas();
    basis_work *work = calloc(1, sizeof *work);
    if (work == NULL) return command_fail(KVT_E_MEMORY, "");
    work->bases = json_array();
    const kvt_status status = basis_learn(arguments, work, message, sizeof message);
    int code = EXIT_FINE;
    if (status == KVT_OK)
        code = command_print_tables(&arguments->common, basis_document(work), basis_tables);
    else
        code = command_fail_content(status, status == KVT_E_CANCELLED ? "interrupted" : message);
    json_decref(work->bases);
    free(work);
    return code;
}

const command_spec profile_basis_spec = {
    .name = "basis",
    .summary = "learn bases of the transform codec into files",
    .about =
        "Learns bases of the transform codec on KV of a model: of a head, a layer and four "
        "layers. With --output they are written, which kvt_basis_add gives to a store; nothing "
        "else is stored. What they save on other texts is asked by profile calibrate --basis, "
        "which learns the same.",
    .synopsis = "--model FILE --text [CLASS=]FILE...",
    .example = "  kvterrace profile basis --model reference_model/model \\\n"
               "    --text reference_model/texts/recall-768.jsonl -o tiny",
    .options = basis_table,
    .argument_bytes = sizeof(measure_arguments),
    .check = measure_need_model,
    .run = basis_run,
};
