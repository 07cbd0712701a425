/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - names and sentences of the statuses. Any thread; no state.
 */
#include <kvterrace/status.h>

typedef struct status_entry {
    kvt_status status;
    const char *name;
    const char *text;
} status_entry;

/* A status that is added needs a row here; the text has no full stop, so that it fits behind a
 * colon. */
static const status_entry status_table[] = {
    {KVT_OK, "KVT_OK", "success"},
    {KVT_MISS, "KVT_MISS", "the entry is not stored"},
    {KVT_BUSY, "KVT_BUSY", "busy now, try again"},
    {KVT_RAW, "KVT_RAW", "stored raw because encoding did not shrink it"},
    {KVT_QUEUED, "KVT_QUEUED", "accepted, the completion comes later"},
    {KVT_EXISTS, "KVT_EXISTS", "the entry is stored already"},
    {KVT_REFUSED, "KVT_REFUSED", "the policy chose not to store the entry"},
    {KVT_END, "KVT_END", "no further item"},
    {KVT_COARSE, "KVT_COARSE", "there in its coarse form alone"},
    {KVT_E_ARGUMENT, "KVT_E_ARGUMENT", "an argument is out of range"},
    {KVT_E_CONFIG, "KVT_E_CONFIG", "a setting is unknown, malformed or without effect"},
    {KVT_E_UNSUPPORTED, "KVT_E_UNSUPPORTED", "not available in this build or on this machine"},
    {KVT_E_STATE, "KVT_E_STATE", "not allowed in the present state"},
    {KVT_E_MEMORY, "KVT_E_MEMORY", "out of memory"},
    {KVT_E_SPACE, "KVT_E_SPACE", "too small or full"},
    {KVT_E_THREAD, "KVT_E_THREAD",
     "the system starts no further thread (a limit on processes or threads)"},
    {KVT_E_IO, "KVT_E_IO", "a read or write failed"},
    {KVT_E_GONE, "KVT_E_GONE", "missing or vanished"},
    {KVT_E_READ_ONLY, "KVT_E_READ_ONLY", "refuses writes"},
    {KVT_E_LOCKED, "KVT_E_LOCKED", "open in another process"},
    {KVT_E_TIMEOUT, "KVT_E_TIMEOUT", "the deadline passed first"},
    {KVT_E_CORRUPT, "KVT_E_CORRUPT", "bytes fail their checksum or their format"},
    {KVT_E_VERSION, "KVT_E_VERSION", "written by a format version that this build does not read"},
    {KVT_E_MISMATCH, "KVT_E_MISMATCH", "belongs to another pool, machine or layout"},
    {KVT_E_DATABASE, "KVT_E_DATABASE", "SQLite reports an error"},
    {KVT_E_PARSE, "KVT_E_PARSE", "a text file is malformed"},
    {KVT_E_CANCELLED, "KVT_E_CANCELLED", "stopped before it finished"},
};

/* The entry of a status, or NULL for a number that is none. */
static const status_entry *status_find(kvt_status status)
{
    for (unsigned i = 0; i < sizeof status_table / sizeof status_table[0]; i++) {
        if (status_table[i].status == status) return &status_table[i];
    }
    return 0;
}

const char *kvt_status_name(kvt_status status)
{
    const status_entry *entry = status_find(status);
    return entry ? entry->name : "unknown status";
}

const char *kvt_status_text(kvt_status status)
{
    const status_entry *entry = status_find(status);
    return entry ? entry->text : "unknown status";
}
