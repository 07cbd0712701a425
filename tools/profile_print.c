/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_print.c - kvterrace profile show, and a profile's document as text. The terminal gets the
 * best instruction set and the figures that decisions are made on; the JSON document and the page
 * have the rest. One thread.
 */
#include "profile_document.h"
#include "tools/command/command.h"

#include <math.h>
#include <string.h>

static void print_head(const json_t *document)
{
    const json_t *runs = json_object_get(document, "runs");
    const size_t count = json_array_size(runs);
    const json_t *last = count > 0 ? json_array_get(runs, count - 1) : NULL;
    if (last == NULL) {
        printf("%s: nothing measured yet\n", view_text(document, "database"));
        return;
    }
    printf("%s: %zu run%s, the last one on %s (%s, %.0f CPUs) %s%s\n",
           view_text(document, "database"), count, count == 1 ? "" : "s",
           view_text(last, "host_name"), view_text(last, "cpu_model"),
           view_number(last, "cpu_count", 0), view_text(last, "started_utc"),
           view_number(last, "complete", 0) > 0 ? "" : ", interrupted");
}

/* A machine that does other work as well measures that work too. */
static void print_busy(const json_t *document)
{
    const json_t *device;
    size_t i, count = 0;
    double repeat = 0, fit = 0;
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        if (!json_is_true(json_object_get(device, "busy"))) continue;
        repeat = fmax(repeat, view_number(device, "repeat_error", 0));
        fit = fmax(fit, view_number(json_object_get(device, "read"), "residual", 0));
        fit = fmax(fit, view_number(json_object_get(device, "write"), "residual", 0));
        printf(count++ == 0 ? "\nwarning: this machine was busy while it was measured: %s" : ", %s",
               view_text(device, "device"));
    }
    if (count == 0) return;
    printf(
        ".\n         Repetitions differ by up to %.0f %% (median over the points), and the model "
        "is off by up to %.0f %%;\n         above 50 %% and 100 %% figures are too uncertain to "
        "compare anything by. Measure again when the machine is quiet.\n",
        repeat * 100, fit * 100);
}

static const document_table device_tables[] = {
    {"devices", "device tier engine read=read.bytes_per_s each=read.request_seconds "
                "off=read.residual write=write.bytes_per_s each=write.request_seconds "
                "off=write.residual begin=begins_at direct emulated imported"},
    {"break_even.devices", "device prefill codec threads loading_wins from=tokens"},
    {0},
};

static const document_table codec_tables[] = {
    {"codecs:best", "codec=name KV=source isa threads stored=stored_share "
                    "encode=encode_bytes_per_s decode=decode_bytes_per_s import_source"},
    {"break_even.codecs", "codec KV=source threads pays from=bytes_per_s"},
    {0},
};

static const document_table quality_tables[] = {
    {"quality_sets/curves", "variant=name bits=bits_per_element loss=loss_mean low=loss_low "
                            "high=loss_high p90=loss_p90 kl top1 source"},
    {"calibrations/rungs", "variant=name bits=bits_per_element loss at_most=loss_upper accepted "
                           "evidence"},
    {"calibrations/choices", "question chosen evidence"},
    {"bases", "variants span tokens model bytes hash"},
    {"learned", "kind of=name part value seen=observations error_p50 error_p90"},
    {"passes", "name new_tokens prefix_tokens layer_seconds source"},
    {0},
};

void profile_print_text(json_t *document, unsigned parts)
{
    static const document_table *const of_part[] = {device_tables, codec_tables, quality_tables};
    document_table tables[12] = {{0}};
    size_t count = 0;
    for (unsigned part = 0; part < 3; part++)
        for (const document_table *one = of_part[part];
             one->list != NULL && (parts >> part & 1u) != 0; one++)
            tables[count++] = *one;
    print_head(document);
    putchar('\n');
    document_print_tables(document, tables, stdout);
    if (parts & PROFILE_PRINT_DEVICES) print_busy(document);
}

/* ---- the command ---- */

#define SHOW_PAGES "pages and figures come from --json | kvterrace report - -o PAGE.html"

typedef struct show_arguments {
    command_common common;
    uint64_t token_bytes;
} show_arguments;

static const command_option show_rows[] = {
    DATABASE_OPTION,
    GONE_OPTION("html", SHOW_PAGES),
    GONE_OPTION("plot", SHOW_PAGES),
    {.name = "token-bytes",
     .letter = 'b',
     .argument = "SIZE",
     .text = "Decoded KV of a token, for break-even lengths (that of the prefill's model; 128KiB)",
     .kind = OPTION_SIZE,
     .offset = offsetof(show_arguments, token_bytes),
     .least = 1,
     .most = 1.0995116e12},
    {0},
};

/* A database without devices has no table of its own rows: their counts, and what comes next. */
static void show_text(json_t *document)
{
    static const struct {
        const char *key, *name;
    } parts[] = {{"codecs", "codec curves"},
                 {"models", "models"},
                 {"quality_sets", "sets of losses"},
                 {"calibrations", "calibrations"},
                 {"bases", "bases"},
                 {"learned", "learned figures"},
                 {"passes", "rows of seconds per layer"}};
    const char *path = view_text(document, "database");
    const json_t *row;
    size_t i, prefills = 0;
    profile_print_text(document, PROFILE_PRINT_ALL);
    if (json_array_size(json_object_get(document, "devices")) > 0) return;
    json_array_foreach(json_object_get(document, "prefill"), i, row)
    {
        prefills += strcmp(view_text(row, "source"), "preset") != 0;
    }
    printf("\nIt holds no device, %zu prefill curves", prefills);
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++)
        printf(", %zu %s", json_array_size(json_object_get(document, parts[i].key)), parts[i].name);
    printf(".\nkvterrace profile devices codecs --database %s measures this machine;\n"
           "kvterrace profile export --database %s prints every row.\n",
           path, path);
}

static int show_run(void *context)
{
    const show_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    json_t *document = NULL;
    kvt_config *config = arguments->common.config;
    const profile_view view = {.path = command_profile_path(config),
                               .token_bytes = (double)arguments->token_bytes};
    kvt_status status =
        command_profile_open(config, KVT_PROFILE_READ, &profile, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    status = profile_document_make(profile, &view, &document);
    if (status == KVT_OK && arguments->common.json)
        status = command_print_exact(json_incref(document));
    else if (status == KVT_OK)
        show_text(document);
    json_decref(document);
    kvt_profile_close(profile);
    return status == KVT_OK ? EXIT_FINE : command_fail(status, message);
}

const command_spec profile_show_spec = {
    .name = "show",
    .summary = "show what was measured",
    .about = "Shows what a profile database holds.",
    .example = "  kvterrace profile show --database profile.db --json >profile.json\n"
               "  kvterrace report profile.json -o profile.html",
    .options = show_rows,
    .argument_bytes = sizeof(show_arguments),
    .run = show_run,
    .settings = SETTINGS_PROFILE,
};
