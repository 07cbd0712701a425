/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_page.h - a profile's document as one HTML page that needs nothing else: style and plots
 * are inside, there is no script. One thread.
 */
#ifndef TOOLS_PROFILE_PAGE_H
#define TOOLS_PROFILE_PAGE_H

#include <kvterrace/types.h>

#include <jansson.h>
#include <stdio.h>

/* Without gnuplot the page has its tables. KVT_OK; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status profile_page_write(const json_t *document, FILE *file);

#endif
