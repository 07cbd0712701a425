/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_identity.c - reads who this machine is. Missing files leave "unknown", never an error: a
 * profile can then still tell machines apart by what is left. Any thread.
 */
#include "estimator/profile/host_identity.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

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

void estimator_host_read(estimator_host *host)
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
