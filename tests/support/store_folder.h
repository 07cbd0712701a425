/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_folder.h - a folder of its own for each case and the names of a store's files in it, by
 * TEST_EACH(store_folder_make, NULL).
 */
#ifndef TESTS_STORE_FOLDER_H
#define TESTS_STORE_FOLDER_H

#include "store_support.h"

static char folder[64], profile_path[96], ssd_path[96], catalog_path[96];

static inline int store_folder_make(void **state)
{
    (void)state;
    support_make_folder(folder, sizeof folder);
    (void)snprintf(profile_path, sizeof profile_path, "%s/profile.db", folder);
    (void)snprintf(ssd_path, sizeof ssd_path, "%s/ssd", folder);
    (void)snprintf(catalog_path, sizeof catalog_path, "%s/catalog.db", folder);
    return 0;
}

#endif
