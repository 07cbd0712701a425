/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_remote_rivals.c - finds the other clients' calls. The replies' layouts are those of their
 * public headers (hiredis 0.14 to 1.x, libvalkey 0.x); nothing of either is linked.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_remote_rivals.h"

#include <dlfcn.h>
#include <stdio.h>

enum { RIVAL_TEXT = 1, RIVAL_STATUS = 5 };

/* hiredis before 1.0, and everything since. */
typedef struct rival_reply {
    int type;
    long long integer;
    size_t bytes;
    char *text;
} rival_reply;

typedef struct rival_reply_double {
    int type;
    long long integer;
    double number;
    size_t bytes;
    char *text;
} rival_reply_double;

/* A call of a library; NULL: it has none of that name. */
static void *rival_call(const rival_library *library, const char *prefix, const char *name)
{
    char whole[64];
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    return dlsym(library->handle, whole);
}

static bool rival_open(const char *path, const char *prefix, rival_library *out)
{
    out->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (out->handle == NULL) return false;
    *(void **)&out->connect = rival_call(out, prefix, "Connect");
    *(void **)&out->free_context = rival_call(out, prefix, "Free");
    *(void **)&out->append = rival_call(out, prefix, "AppendCommandArgv");
    *(void **)&out->get_reply = rival_call(out, prefix, "GetReply");
    *(void **)&out->free_reply = dlsym(out->handle, "freeReplyObject");
    if (out->connect != NULL && out->free_context != NULL && out->append != NULL &&
        out->get_reply != NULL && out->free_reply != NULL)
        return true;
    rival_close(out);
    return false;
}

bool rival_open_hiredis(rival_library *out)
{
    static const char *const names[] = {"libhiredis.so.1.1.0", "libhiredis.so.1.0.0",
                                        "libhiredis.so.0.14"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        *out = (rival_library){.name = "hiredis", .has_double = i < 2};
        if (rival_open(names[i], "redis", out)) return true;
    }
    return false;
}

bool rival_open_libvalkey(const char *path, rival_library *out)
{
    *out = (rival_library){.name = "libvalkey", .has_double = true};
    return path != NULL && rival_open(path, "valkey", out);
}

void rival_close(rival_library *library)
{
    if (library->handle != NULL) dlclose(library->handle);
    library->handle = NULL;
}

const char *rival_text(const rival_library *library, const void *reply, size_t *bytes_out)
{
    const rival_reply *plain = reply;
    const rival_reply_double *wide = reply;
    if (plain == NULL || plain->type != RIVAL_TEXT) return NULL;
    *bytes_out = library->has_double ? wide->bytes : plain->bytes;
    return library->has_double ? wide->text : plain->text;
}

bool rival_is_status(const void *reply)
{
    const rival_reply *plain = reply;
    return plain != NULL && plain->type == RIVAL_STATUS;
}
