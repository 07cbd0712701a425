/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_file.c - opens a profile database: made whole or not at all, checked before anything is
 * written, never overwritten when it is something else.
 *
 * Order at open: raw file header (no SQLite call has touched the file yet, so a foreign database is
 * not even recovered or locked), then the version, quick_check, the schema's text, then the host.
 * Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define PROFILE_HEADER_BYTES    100u
#define PROFILE_BUSY_TIMEOUT_MS 5000

static uint32_t profile_big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* ---- the identity of this machine ---- */

/*
 * Missing files leave "unknown", never an error: a profile can then still tell machines apart by
 * what is left.
 */

/* One line of a small file, printable characters only, trimmed. */
static bool host_read_line(FILE *file, char *text, size_t size)
{
    if (fgets(text, (int)size, file) == NULL) return false;
    size_t length = 0;
    for (size_t i = 0; text[i] != '\0'; i++) {
        if (isprint((unsigned char)text[i])) text[length++] = text[i];
    }
    while (length > 0 && text[length - 1] == ' ')
        length--;
    text[length] = '\0';
    return true;
}

static void host_read_cpu_model(char *model, size_t size)
{
    snprintf(model, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL) return;
    char line[256];
    while (host_read_line(file, line, sizeof line)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        colon++;
        while (*colon == ' ')
            colon++;
        snprintf(model, size, "%.*s", (int)size - 1, colon);
        break;
    }
    fclose(file);
}

/* The machine id is private to the machine (machine-id(5)), and profiles are passed around, so only
 * a 64-bit digest (FNV-1a) of its 128 bits is kept: enough to tell machines apart. */
static uint64_t host_digest(const char *text)
{
    uint64_t digest = UINT64_C(14695981039346656037);
    static const char salt[] = "kvterrace profile:";
    for (const char *c = salt; *c != '\0'; c++) {
        digest = (digest ^ (unsigned char)*c) * UINT64_C(1099511628211);
    }
    for (const char *c = text; *c != '\0'; c++) {
        digest = (digest ^ (unsigned char)*c) * UINT64_C(1099511628211);
    }
    return digest;
}

static bool host_read_machine_id(char *identity, size_t size)
{
    char line[80];
    FILE *file = fopen("/etc/machine-id", "re");
    if (file == NULL) return false;
    bool found = host_read_line(file, line, sizeof line) && strlen(line) == 32;
    fclose(file);
    if (found) snprintf(identity, size, "machine:%016" PRIx64, host_digest(line));
    return found;
}

static void estimator_host_read(estimator_host *host)
{
    struct utsname names;
    memset(host, 0, sizeof *host);
    host_read_cpu_model(host->cpu_model, sizeof host->cpu_model);
    snprintf(host->name, sizeof host->name, "unknown");
    snprintf(host->kernel, sizeof host->kernel, "unknown");
    if (uname(&names) == 0) {
        snprintf(host->name, sizeof host->name, "%.64s", names.nodename);
        snprintf(host->kernel, sizeof host->kernel, "%.40s %.64s %.40s", names.sysname,
                 names.release, names.machine);
    }
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGESIZE);
    host->cpu_count = cpus > 0 ? (uint32_t)cpus : 0;
    if (pages > 0 && page_bytes > 0) host->memory_bytes = (uint64_t)pages * (uint64_t)page_bytes;
    if (host_read_machine_id(host->identity, sizeof host->identity)) return;
    snprintf(host->identity, sizeof host->identity, "host:%s/%s", host->name, host->cpu_model);
}

/* ---- opening a file ---- */

/*
 * Reads the first bytes through SQLite's own file, which neither locks nor recovers anything. A
 * descriptor of ours would do harm when it is closed: it would drop the locks of every connection
 * that this process has to the file.
 */
static int profile_read_header(const char *path, unsigned char header[PROFILE_HEADER_BYTES])
{
    sqlite3 *database = NULL;
    sqlite3_file *file = NULL;
    int result = sqlite3_open_v2(path, &database, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL);
    if (result == SQLITE_OK)
        result = sqlite3_file_control(database, "main", SQLITE_FCNTL_FILE_POINTER, &file);
    if (result == SQLITE_OK) {
        bool is_open = file != NULL && file->pMethods != NULL;
        result = is_open ? file->pMethods->xRead(file, header, PROFILE_HEADER_BYTES, 0)
                         : SQLITE_CANTOPEN;
    }
    sqlite3_close(database);
    return result & 0xff;
}

/* Looks at the first bytes of the file. KVT_OK; KVT_MISS; KVT_E_CORRUPT; KVT_E_VERSION;
 * KVT_E_DATABASE. */
static kvt_status profile_check_header(const char *path, char *message, size_t size)
{
    unsigned char header[PROFILE_HEADER_BYTES];
    struct stat facts;
    if (stat(path, &facts) != 0) {
        profile_say(message, size,
                    errno == ENOENT ? "%s: no such profile" : "%s: cannot be reached", path);
        return errno == ENOENT ? KVT_MISS : KVT_E_DATABASE;
    }
    int result = S_ISREG(facts.st_mode) ? profile_read_header(path, header) : SQLITE_NOTADB;
    if (result == SQLITE_CANTOPEN || result == SQLITE_NOMEM) {
        profile_say(message, size, "%s: %s", path, sqlite3_errstr(result));
        return KVT_E_DATABASE;
    }
    if (result != SQLITE_OK || memcmp(header, "SQLite format 3", 16) != 0) {
        profile_say(message, size, "%s: %s", path,
                    S_ISDIR(facts.st_mode) ? "this is a folder"
                                           : "not an SQLite database; left as it is");
        return KVT_E_CORRUPT;
    }
    if (profile_big_endian(header + 68) != PROFILE_APPLICATION_ID) {
        profile_say(message, size, "%s: not a kvterrace profile; left as it is", path);
        return KVT_E_CORRUPT;
    }
    return profile_compare_version(path, profile_big_endian(header + 60), message, size);
}

static int profile_create_tables(sqlite3 *database)
{
    char marks[128];
    int result = sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    for (size_t i = 0; result == SQLITE_OK && profile_table_at(i) != NULL; i++) {
        result = sqlite3_exec(database, profile_table_at(i)->sql, NULL, NULL, NULL);
    }
    snprintf(marks, sizeof marks, "PRAGMA application_id = %d; PRAGMA user_version = %d",
             PROFILE_APPLICATION_ID, PROFILE_SCHEMA_VERSION);
    if (result == SQLITE_OK) result = sqlite3_exec(database, marks, NULL, NULL, NULL);
    if (result == SQLITE_OK) result = sqlite3_exec(database, "COMMIT", NULL, NULL, NULL);
    return result;
}

static kvt_status profile_create_failed(const char *path, int error, char *message, size_t size)
{
    profile_say(message, size, "%s: cannot make it: %s", path, strerror(error));
    return error == EACCES || error == EPERM || error == EROFS ? KVT_E_READ_ONLY : KVT_E_DATABASE;
}

/* Makes the database under another name and gives it its own name when it is whole, so that nobody
 * ever sees half a profile. Another process that was faster wins. */
static kvt_status profile_create(const char *path, char *message, size_t size)
{
    char draft[PATH_MAX];
    int length = snprintf(draft, sizeof draft, "%s.new-XXXXXX", path);
    if (length < 0 || (size_t)length >= sizeof draft) {
        return profile_create_failed(path, ENAMETOOLONG, message, size);
    }
    int file = mkostemp(draft, O_CLOEXEC);
    if (file < 0) return profile_create_failed(path, errno, message, size);
    (void)fchmod(file, 0600);
    close(file); /* no connection has the file yet */

    kvt_status status = KVT_OK;
    sqlite3 *database = NULL;
    int result = sqlite3_open_v2(draft, &database, SQLITE_OPEN_READWRITE, NULL);
    if (result == SQLITE_OK) result = profile_create_tables(database);
    if (result != SQLITE_OK) {
        profile_say(message, size, "%s: cannot make it: %s", path, sqlite3_errstr(result));
        status = profile_status(result);
    }
    sqlite3_close(database);
    /* link refuses to replace a file; file systems without links fall back to rename. */
    if (status == KVT_OK && link(draft, path) != 0 && errno != EEXIST) {
        if (access(path, F_OK) != 0 && rename(draft, path) != 0) {
            status = profile_create_failed(path, errno, message, size);
        }
    }
    (void)unlink(draft);
    return status;
}

/* SQLite cannot open a WAL database in a folder that it may not write, unless told that the file
 * never changes; that is true when no -wal file lies beside it and the folder is read-only. */
static int profile_open_immutable(const char *path, sqlite3 **database_out)
{
    char uri[3 * PATH_MAX + 64];
    char wal[PATH_MAX];
    int length = snprintf(wal, sizeof wal, "%s-wal", path);
    if (length < 0 || (size_t)length >= sizeof wal) return SQLITE_CANTOPEN;
    if (access(wal, F_OK) == 0) return SQLITE_CANTOPEN;
    size_t used = (size_t)snprintf(uri, sizeof uri, "file:");
    for (const char *c = path; *c != '\0'; c++) {
        static const char digits[] = "0123456789abcdef";
        unsigned char byte = (unsigned char)*c;
        uri[used++] = '%';
        uri[used++] = digits[byte >> 4];
        uri[used++] = digits[byte & 15];
    }
    snprintf(uri + used, sizeof uri - used, "?immutable=1");
    return sqlite3_open_v2(uri, database_out,
                           SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, NULL);
}

static int profile_configure(sqlite3 *database)
{
    int result = sqlite3_busy_timeout(database, PROFILE_BUSY_TIMEOUT_MS);
    if (result == SQLITE_OK) {
        result = sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    }
    if (result == SQLITE_OK) {
        result = sqlite3_exec(database,
                              "PRAGMA foreign_keys = ON; SELECT count(*) FROM "
                              "sqlite_schema",
                              NULL, NULL, NULL);
    }
    return result;
}

static kvt_status profile_connect(kvt_profile *profile, const char *path, char *message,
                                  size_t size)
{
    /* A reader that may write removes the -wal and -shm files when it is the last to close; one
     * that may not would leave them. A file that may not be written is opened for reading. */
    int result = sqlite3_open_v2(path, &profile->database,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (result == SQLITE_OK) result = profile_configure(profile->database);
    if (result == SQLITE_OK && !profile->writable)
        result = sqlite3_exec(profile->database, "PRAGMA query_only = ON", NULL, NULL, NULL);
    if (result != SQLITE_OK && !profile->writable &&
        ((result & 0xff) == SQLITE_CANTOPEN || (result & 0xff) == SQLITE_READONLY)) {
        sqlite3_close(profile->database);
        profile->database = NULL;
        result = profile_open_immutable(path, &profile->database);
        if (result == SQLITE_OK) result = profile_configure(profile->database);
    }
    if (result != SQLITE_OK) {
        profile_say(message, size, "%s: %s", path, sqlite3_errstr(result));
        return profile_status(result);
    }
    if (profile->writable && sqlite3_db_readonly(profile->database, "main") == 1) {
        profile_say(message, size, "%s: may not be written", path);
        return KVT_E_READ_ONLY;
    }
    return KVT_OK;
}

/* Once the file is known to be a sound profile. Checkpoints after a few rows: a person may copy the
 * file without its -wal file while a measurement of hours runs. */
static kvt_status profile_prepare_writing(kvt_profile *profile, const char *path, char *message,
                                          size_t size)
{
    int result = sqlite3_exec(profile->database,
                              "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; "
                              "PRAGMA journal_size_limit = 16777216; "
                              "PRAGMA wal_autocheckpoint = 16",
                              NULL, NULL, NULL);
    if (result == SQLITE_OK) return KVT_OK;
    profile_say(message, size, "%s: %s", path, sqlite3_errmsg(profile->database));
    return profile_status(result);
}

static kvt_status profile_open_file(kvt_profile *profile, const char *path, uint32_t flags,
                                    char *message, size_t size)
{
    bool foreign = (flags & KVT_PROFILE_FOREIGN) != 0;
    kvt_status status = profile_check_header(path, message, size);
    if (status == KVT_MISS && profile->writable) {
        status = profile_create(path, message, size);
        if (status == KVT_OK) status = profile_check_header(path, message, size);
    }
    if (status == KVT_OK) status = profile_connect(profile, path, message, size);
    if (status == KVT_OK) status = profile_check_version(profile, path, message, size);
    if (status == KVT_OK) status = profile_check_content(profile, path, message, size);
    if (status == KVT_OK && !foreign) status = profile_check_host(profile, path, message, size);
    if (status == KVT_OK && profile->writable) {
        status = profile_prepare_writing(profile, path, message, size);
    }
    return status;
}

static kvt_status profile_open_memory(kvt_profile *profile, char *message, size_t size)
{
    int result =
        sqlite3_open_v2(":memory:", &profile->database,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (result == SQLITE_OK) result = profile_create_tables(profile->database);
    if (result == SQLITE_OK) result = profile_configure(profile->database);
    if (result != SQLITE_OK) profile_say(message, size, ":memory:: %s", sqlite3_errstr(result));
    return profile_status(result);
}

kvt_status kvt_profile_open(const char *path, uint32_t flags, kvt_profile **profile_out,
                            char *message, size_t message_size)
{
    assert(path != NULL && profile_out != NULL);
    char plain[PATH_MAX];
    *profile_out = NULL;
    if (message != NULL && message_size > 0) message[0] = '\0';
    /* A leading "./" keeps SQLite from reading "file:..." as a URI. */
    bool rooted = path[0] == '/';
    int length = snprintf(plain, sizeof plain, "%s%s", rooted ? "" : "./", path);
    if (path[0] == '\0' || length < 0 || (size_t)length >= sizeof plain) {
        profile_say(message, message_size, "the profile's path is empty or too long");
        return KVT_E_DATABASE;
    }
    kvt_profile *profile = calloc(1, sizeof *profile);
    if (profile == NULL) {
        profile_say(message, message_size, "out of memory");
        return KVT_E_MEMORY;
    }
    profile->writable = (flags & KVT_PROFILE_WRITE) != 0;
    estimator_host_read(&profile->host);
    kvt_status status = profile->writable && strcmp(path, ":memory:") == 0
                            ? profile_open_memory(profile, message, message_size)
                            : profile_open_file(profile, plain, flags, message, message_size);
    if (status != KVT_OK) {
        kvt_profile_close(profile);
        return status;
    }
    *profile_out = profile;
    return KVT_OK;
}

void kvt_profile_close(kvt_profile *profile)
{
    if (profile == NULL) return;
    sqlite3_close(profile->database);
    free(profile);
}

/* ---- a copy of a profile ---- */

/*
 * SQLite's backup makes the copy: it is sound while others write the profile, and has what still
 * lies in its -wal file.
 */

kvt_status kvt_profile_copy(kvt_profile *profile, const char *path, char *message,
                            size_t message_size)
{
    sqlite3 *target = NULL;
    /* The file is made here, so that nobody's file is written over, and for its owner alone. */
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) {
        profile_say(message, message_size, "%s: cannot be made", path);
        return KVT_E_IO;
    }
    (void)close(file);
    int result = sqlite3_open_v2(path, &target, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    sqlite3_backup *backup = NULL;
    if (result == SQLITE_OK) {
        backup = sqlite3_backup_init(target, "main", profile->database, "main");
        if (backup == NULL) result = sqlite3_errcode(target);
    }
    if (backup != NULL) {
        result = sqlite3_backup_step(backup, -1);
        int finished = sqlite3_backup_finish(backup);
        if (result == SQLITE_DONE) result = finished;
    }
    sqlite3_close(target);
    if (result == SQLITE_OK) return KVT_OK;
    profile_say(message, message_size, "%s: %s", path, sqlite3_errstr(result));
    (void)unlink(path);
    return profile_status(result);
}
