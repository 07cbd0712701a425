/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_page_part.c - see profile_page_part.h. One thread.
 */
#include "profile_page_part.h"

#include "command.h"
#include "profile_document.h"
#include "replay/report_page.h"

#include <math.h>

void show_table(FILE *file, const char *const *heads, size_t count, size_t left)
{
    fprintf(file, "<div class=\"wide\"><table><thead><tr>");
    for (size_t i = 0; i < count; i++)
        fprintf(file, "<th%s>%s</th>", i < left ? " class=\"left\"" : "", heads[i]);
    fprintf(file, "</tr></thead><tbody>\n");
}

void show_table_end(FILE *file)
{
    fprintf(file, "</tbody></table></div>\n");
}

void show_text(FILE *file, const char *class, const char *text)
{
    fprintf(file, "<td%s%s%s>", class[0] ? " class=\"" : "", class, class[0] ? "\"" : "");
    page_text(file, text);
    fprintf(file, "</td>");
}

void show_number(FILE *file, const json_t *row, const char *key, int digits, double factor,
                 const char *unit)
{
    const double value = view_number(row, key, NAN) * factor;
    char text[64] = "-";
    if (isfinite(value) && digits >= 0) {
        (void)snprintf(text, sizeof text, "%.*f%s", digits, value, unit);
    } else if (isfinite(value)) {
        (void)snprintf(text, sizeof text, "%.*g%s", -digits, value, unit);
    }
    show_text(file, "", text);
}

void show_rate(FILE *file, double bytes_per_s)
{
    char text[32] = "-";
    if (bytes_per_s > 0 && isfinite(bytes_per_s)) format_rate(text, bytes_per_s);
    show_text(file, "", text);
}

void show_seconds(FILE *file, double seconds)
{
    char text[32] = "-";
    if (isfinite(seconds)) format_seconds(text, seconds);
    show_text(file, "", text);
}

void show_size(FILE *file, double bytes)
{
    char text[32];
    show_text(file, "", format_bytes(text, (uint64_t)bytes));
}

void show_fact(FILE *file, const char *name, const char *value)
{
    if (value[0] == '\0') return;
    fprintf(file, "<dt>%s</dt><dd>", name);
    page_text(file, value);
    fprintf(file, "</dd>\n");
}

size_t show_count(const json_t *document, const char *section)
{
    return json_array_size(json_object_get(document, section));
}
