/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nearest.h - the known name that a misspelt one was probably meant to be, by edit distance.
 *
 *     nearest search = {.text = "utilty", .length = 6};
 *     nearest_offer(&search, "utility");       for every known name
 *     if (search.best) ... "did you mean 'utility'?"
 *
 * An edit is a character too many, too few, another one, or two that changed places. Upper and
 * lower case are alike. A third of the text may be edits; all of a name may be missing behind the
 * text, or before it up to a point. Pure; any thread.
 */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stddef.h>

/* Text and length are set before the first offer, the rest is zero. The strings stay the caller's.
 */
typedef struct nearest {
    const char *text;
    size_t length;
    const char *best; /* the nearest name so far; NULL: none is near enough */
    size_t distance;  /* of best */
} nearest;

/* Takes the name as best when it is nearer than the present one; of equals the first one stays. A
 * name that equals the text is no suggestion. */
void nearest_offer(nearest *search, const char *name);

/* Every name of a list such as "lru|utility", which stays the caller's. The best name is then not
 * terminated: it ends at '|' or at the end of the list, as nearest_span says. */
void nearest_offer_list(nearest *search, const char *list);
size_t nearest_span(const nearest *search);

#endif
