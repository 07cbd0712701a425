/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_manage_print.c - rows of a profile as CSV or JSON, and what two profiles differ in. One
 * thread.
 */
#include "profile_document.h"
#include "profile_manage.h"

#include <kvterrace/codec.h>
#include <kvterrace/kvterrace.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The shortest of the digits that read back as the same number. */
static const char *print_real(char text[32], double value)
{
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return text;
}

/* ---- CSV ---- */

static void print_csv_text(const char *text)
{
    bool plain = text[0] != '#' && text[0] != '[' && strpbrk(text, ",\"\r\n") == NULL;
    if (plain) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"') putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void print_csv_cell(const kvt_profile_cell *cell)
{
    char text[32];
    switch (cell->kind) {
    case KVT_CELL_INTEGER: printf("%" PRId64, cell->integer); break;
    case KVT_CELL_REAL: fputs(print_real(text, cell->real), stdout); break;
    case KVT_CELL_TEXT: print_csv_text(cell->text); break;
    default: break;
    }
}

bool manage_print_csv(void *context, const char *table, const kvt_profile_cell *cells, size_t count)
{
    manage_export *export = context;
    if (export->table == NULL || strcmp(export->table, table) != 0) {
        printf("%s[%s]\n", export->table != NULL ? "\n" : "", table);
        for (size_t i = 0; i < count; i++)
            printf("%s%s", i ? "," : "", cells[i].column);
        putchar('\n');
    }
    export->table = table;
    export->rows++;
    for (size_t i = 0; i < count; i++) {
        if (i > 0) putchar(',');
        print_csv_cell(&cells[i]);
    }
    putchar('\n');
    return !ferror(stdout);
}

/* ---- JSON ---- */

bool manage_print_json(void *context, const char *table, const kvt_profile_cell *cells,
                       size_t count)
{
    manage_export *export = context;
    json_t *rows = json_object_get(export->tables, table);
    json_t *row = json_object();
    if (rows == NULL) {
        rows = json_array();
        if (json_object_set_new(export->tables, table, rows) != 0) rows = NULL;
    }
    bool sound = rows != NULL && row != NULL;
    for (size_t i = 0; sound && i < count; i++)
        sound = json_object_set_new(row, cells[i].column, view_cell(&cells[i])) == 0;
    export->rows++;
    export->lost = export->lost || !sound;
    if (!sound) {
        json_decref(row);
        return false;
    }
    if (json_array_append_new(rows, row) == 0) return true;
    export->lost = true;
    return false;
}

kvt_status manage_print_document(json_t *document)
{
    if (document == NULL) return KVT_E_MEMORY;
    int result = json_dumpf(document, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(document);
    return result == 0 ? KVT_OK : KVT_E_MEMORY;
}

/* ---- a ladder ---- */

void manage_print_ladder(const kvt_codec_curve *curves, uint32_t count, const char *model,
                         const char *class_name, const char *path)
{
    char text[32], name[128];
    printf("# %s, %s, from the profile %s.\n", model, class_name, path);
    printf("variant,bits,loss,loss_upper,encode_bytes_per_s,decode_bytes_per_s,source\n");
    for (uint32_t i = 0; i < count; i++) {
        const kvt_codec_curve *curve = &curves[i];
        (void)kvt_variant_format(curve->variant, name, sizeof name);
        for (char *c = name; *c != '\0'; c++)
            if (*c == ',') *c = ' ';
        printf("%s,%s", name, print_real(text, curve->stored_share * 16));
        printf(",%s", print_real(text, curve->loss));
        printf(",%s", print_real(text, curve->loss_upper));
        printf(",%s", print_real(text, curve->encode_bytes_per_s));
        printf(",%s,profile\n", print_real(text, curve->decode_bytes_per_s));
    }
}

/* ---- differences ---- */

static const char *const print_spreads[] = {"unknown", "within", "beyond"};

bool manage_print_change(void *context, const kvt_profile_change *change)
{
    manage_diff *diff = context;
    bool missing = isnan(change->before) || isnan(change->after);
    bool above =
        missing || (fabs(change->change) > diff->threshold && change->spread != KVT_SPREAD_WITHIN);
    diff->curves++;
    diff->different += above;
    if (diff->rows != NULL) {
        json_t *row =
            json_pack("{s:o, s:s, s:o, s:o, s:o, s:s, s:b}", "curve", view_string(change->curve),
                      "quantity", change->quantity, "before", view_real(change->before), "after",
                      view_real(change->after), "change", view_real(change->change), "spread",
                      print_spreads[change->spread], "differs", above);
        diff->lost = diff->lost || row == NULL || json_array_append_new(diff->rows, row) != 0;
        return !diff->lost;
    }
    if (!above && !diff->all) return true;
    char before[32] = "-", after[32] = "-", amount[32] = "-";
    if (!isnan(change->before)) (void)snprintf(before, sizeof before, "%.4g", change->before);
    if (!isnan(change->after)) (void)snprintf(after, sizeof after, "%.4g", change->after);
    if (isfinite(change->change))
        (void)snprintf(amount, sizeof amount, "%+.1f %%", change->change * 100);
    if (diff->printed == 0) {
        printf("%-52s %-26s %10s %10s %9s  %s\n", "curve", "quantity", "before", "after", "change",
               "spread");
    }
    diff->printed++;
    printf("%-52s %-26s %10s %10s %9s  %s\n", change->curve, change->quantity, before, after,
           amount,
           missing ? (isnan(change->before) ? "only after" : "only before")
                   : print_spreads[change->spread]);
    return !ferror(stdout);
}
