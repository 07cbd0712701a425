/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nearest.c - edit distances between one text and known names. Pure; any thread.
 *
 * Longer texts than NEAREST_LENGTH get no suggestion: three rows of the table of distances are on
 * the stack, and no name is that long.
 */
#include "nearest.h"

#include <string.h>

#define NEAREST_LENGTH 96u

/* As tolower, without a locale. */
static char nearest_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static size_t nearest_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The edits between two texts of at most NEAREST_LENGTH characters (optimal string alignment).
 * Three rows are enough, because an exchange of neighbours looks back two. */
static size_t nearest_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][NEAREST_LENGTH + 1];
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            const char x = nearest_lower(a[i - 1]), y = nearest_lower(b[j - 1]);
            size_t edits = above[j - 1] + (x != y);
            edits = nearest_least(edits, 1 + nearest_least(above[j], row[j - 1]));
            if (i > 1 && j > 1 && x == nearest_lower(b[j - 2]) && y == nearest_lower(a[i - 2]))
                edits = nearest_least(edits, before[j - 2] + 1);
            row[j] = edits;
        }
    }
    return rows[a_length % 3][b_length];
}

/* Takes a name as the best one so far when it is nearer than the last, and near at all: a third of
 * the text's length in edits, at least one. Of two names as near the first one stays. */
static void nearest_offer_span(nearest *search, const char *name, size_t length)
{
    const size_t most = search->length / 3 > 0 ? search->length / 3 : 1;
    if (search->length > NEAREST_LENGTH || length > NEAREST_LENGTH || search->length < 2) return;
    size_t distance = nearest_distance(search->text, search->length, name, length);
    /* A text that is the beginning of a name, or its end behind a point, counts as near, however
     * much of the name is missing. */
    if (distance > most && search->length >= 3 && length > search->length) {
        const char *end = name + (length - search->length);
        if (memcmp(search->text, name, search->length) == 0 ||
            (end[-1] == '.' && memcmp(search->text, end, search->length) == 0))
            distance = most;
    }
    if (distance == 0 && memcmp(search->text, name, length) == 0) return;
    if (distance > most || (search->best != NULL && distance >= search->distance)) return;
    search->best = name;
    search->distance = distance;
}

void nearest_offer(nearest *search, const char *name)
{
    nearest_offer_span(search, name, strlen(name));
}

/* The names are not copied: the list must stay. */
void nearest_offer_list(nearest *search, const char *list)
{
    for (;;) {
        const size_t span = strcspn(list, "|");
        nearest_offer_span(search, list, span);
        if (list[span] == '\0') return;
        list += span + 1;
    }
}

/* A name in a list ends at the next bar. */
size_t nearest_span(const nearest *search)
{
    return strcspn(search->best, "|");
}
