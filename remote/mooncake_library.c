/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake_library.c - loads the library of Mooncake Store. It is never unloaded: threads of its
 * own may run.
 *
 * Thread rule: any thread.
 */
#include "remote/mooncake_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

static pthread_once_t mooncake_once = PTHREAD_ONCE_INIT;
static mooncake_library mooncake_calls;
static bool mooncake_found;

static void mooncake_load(void)
{
    void *library = dlopen("libmooncake_store.so", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    bool found = library != NULL;
#define MOONCAKE_FIND(result, name, arguments)                                                     \
    if (found) *(void **)&mooncake_calls.name = dlsym(library, "mooncake_store_" #name);           \
    found = found && mooncake_calls.name != NULL;
    MOONCAKE_CALLS(MOONCAKE_FIND)
#undef MOONCAKE_FIND
    mooncake_found = found;
}

const mooncake_library *mooncake_library_get(void)
{
    pthread_once(&mooncake_once, mooncake_load);
    return mooncake_found ? &mooncake_calls : NULL;
}
