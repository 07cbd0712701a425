/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve.c - getaddrinfo on a thread of its own, which nobody waits for: the last of asker and
 * thread frees what they share.
 *
 * Thread rule: as resolve.h says.
 */
#include "remote/resolve.h"

#include "base/thread.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct remote_resolution {
    atomic_uint users; /* 2: asker and thread */
    atomic_bool over;
    struct addrinfo *found; /* the thread's until `over` */
    int wake_fd;
    char host[NI_MAXHOST];
    char port[8];
};

bool remote_split(const char *address, size_t bytes, char host[NI_MAXHOST], char port[8])
{
    size_t colon = bytes;
    while (colon > 0 && address[colon - 1] != ':')
        colon--;
    if (colon < 2 || bytes - colon == 0 || bytes - colon > 5) return false;
    size_t host_bytes = colon - 1;
    if (address[0] == '[' && address[host_bytes - 1] == ']') {
        address++;
        host_bytes -= 2;
        memcpy(port, address + host_bytes + 2, bytes - colon);
    } else {
        memcpy(port, address + colon, bytes - colon);
    }
    port[bytes - colon] = '\0';
    if (host_bytes == 0 || host_bytes >= NI_MAXHOST) return false;
    memcpy(host, address, host_bytes);
    host[host_bytes] = '\0';
    const unsigned long number = strtoul(port, NULL, 10);
    if (strspn(port, "0123456789") != strlen(port)) return false;
    return number > 0 && number < 65536 && strpbrk(host, " \t\r\n/") == NULL;
}

const char *remote_addresses_fault(const char *addresses, bool cluster)
{
    char host[NI_MAXHOST], port[8];
    uint32_t count = 0;
    const char *at = addresses != NULL ? addresses : "";
    for (at += strspn(at, ", \t"); *at != '\0'; at += strspn(at, ", \t")) {
        const size_t bytes = strcspn(at, ", \t");
        if (memchr(at, '@', bytes) != NULL)
            return "address: host:port alone; a user and a password have settings of their own";
        if (!remote_split(at, bytes, host, port)) return "address is not host:port";
        count++;
        at += bytes;
    }
    if (count == 0) return "no address is given";
    return count > 1 && !cluster ? "more than one address needs cluster = yes" : NULL;
}

static const struct addrinfo resolve_hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};

struct addrinfo *remote_resolve_now(const char *host, const char *port)
{
    struct addrinfo hints = resolve_hints, *found = NULL;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    return getaddrinfo(host, port, &hints, &found) == 0 ? found : NULL;
}

void remote_resolution_leave(remote_resolution *resolution)
{
    if (resolution == NULL || atomic_fetch_sub(&resolution->users, 1) != 1) return;
    if (resolution->found != NULL) freeaddrinfo(resolution->found);
    close(resolution->wake_fd);
    free(resolution);
}

static void *resolve_main(void *argument)
{
    remote_resolution *resolution = argument;
    const uint64_t one = 1;
    if (getaddrinfo(resolution->host, resolution->port, &resolve_hints, &resolution->found) != 0)
        resolution->found = NULL;
    atomic_store(&resolution->over, true);
    ssize_t written = write(resolution->wake_fd, &one, sizeof one);
    (void)written;
    remote_resolution_leave(resolution);
    return NULL;
}

remote_resolution *remote_resolve(const char *host, const char *port, int wake_fd)
{
    pthread_t thread;
    remote_resolution *resolution = calloc(1, sizeof *resolution);
    if (resolution == NULL) return NULL;
    atomic_init(&resolution->users, 2);
    resolution->wake_fd = dup(wake_fd);
    memcpy(resolution->host, host, strlen(host) + 1);
    memcpy(resolution->port, port, strlen(port) + 1);
    if (base_thread_start(&thread, resolve_main, resolution) == 0) {
        (void)pthread_detach(thread);
        return resolution;
    }
    atomic_store(&resolution->users, 1);
    remote_resolution_leave(resolution);
    return NULL;
}

kvt_status remote_resolved(remote_resolution *resolution, struct addrinfo **found_out)
{
    if (!atomic_load(&resolution->over)) return KVT_QUEUED;
    *found_out = resolution->found;
    resolution->found = NULL;
    return *found_out != NULL ? KVT_OK : KVT_E_GONE;
}
