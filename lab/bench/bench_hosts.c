/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_hosts.c - makes network namespaces, each held by a process that does nothing, and joins
 * them by veth links to a bridge, by the command `ip`.
 *
 * Thread rule: as bench_hosts.h says.
 */
#include "bench_hosts.h"

#include "bench_cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOSTS_WORDS 24

/* Runs `ip` with the words of a line, in the namespace of a holder; 0: in this one. */
static bool hosts_ip(pid_t holder, const char *format, ...)
{
    char line[256], *words[HOSTS_WORDS] = {(char *)(uintptr_t) "ip"};
    va_list rest;
    va_start(rest, format);
    vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    int count = 1, status = -1;
    char *at = NULL;
    for (char *word = strtok_r(line, " ", &at); word != NULL && count + 1 < HOSTS_WORDS;
         word = strtok_r(NULL, " ", &at))
        words[count++] = word;
    const pid_t child = fork();
    if (child == 0) {
        const int nowhere = open("/dev/null", O_WRONLY);
        if (nowhere >= 0) (void)dup2(nowhere, STDERR_FILENO);
        if (holder == 0 || bench_cluster_enter(holder)) execvp("ip", words);
        _exit(127);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Starts a process in a namespace of its own. 0: it may not. */
static pid_t hosts_hold(void)
{
    int ready[2];
    char told = 0;
    const pid_t parent = getpid();
    if (pipe(ready) != 0) return 0;
    const pid_t child = fork();
    if (child == 0) {
        close(ready[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || unshare(CLONE_NEWNET) != 0) _exit(1);
        (void)!write(ready[1], "1", 1);
        for (;;)
            pause();
    }
    close(ready[1]);
    const bool good = child > 0 && read(ready[0], &told, 1) == 1;
    close(ready[0]);
    if (good) return child;
    if (child > 0) (void)waitpid(child, NULL, 0);
    return 0;
}

/* Joins a host's namespace, or this one, to the bridge. */
static bool hosts_join(const bench_hosts *hosts, uint32_t index, pid_t holder, const char *net)
{
    char name[16];
    if (holder != 0)
        snprintf(name, sizeof name, "kvt0");
    else
        snprintf(name, sizeof name, "kvt%u", (unsigned)getpid() % 100000);
    return hosts_ip(hosts->nodes, "link add link%u type veth peer name %s netns %d", index, name,
                    (int)(holder != 0 ? holder : getpid())) &&
           hosts_ip(hosts->nodes, "link set link%u master hub up", index) &&
           hosts_ip(holder, "addr add %s.%u/24 dev %s", net, 10 + index, name) &&
           hosts_ip(holder, "link set %s up", name) &&
           (holder == 0 || hosts_ip(holder, "link set lo up"));
}

int bench_hosts_open(uint32_t count, bench_hosts *out)
{
    char net[24];
    *out = (bench_hosts){.count = count};
    snprintf(net, sizeof net, "10.231.%u", 1 + (unsigned)getpid() % 250);
    snprintf(out->address, sizeof out->address, "%s.1", net);
    out->nodes = hosts_hold();
    bool good = out->nodes != 0 && hosts_ip(out->nodes, "link set lo up") &&
                hosts_ip(out->nodes, "link add hub type bridge") &&
                hosts_ip(out->nodes, "addr add %s/24 dev hub", out->address) &&
                hosts_ip(out->nodes, "link set hub up");
    if (!good) {
        bench_hosts_close(out);
        return 77;
    }
    for (uint32_t i = 0; i < count && good; i++) {
        out->hosts[i] = hosts_hold();
        good = out->hosts[i] != 0 && hosts_join(out, i, out->hosts[i], net);
    }
    if (good && hosts_join(out, count, 0, net)) return 0;
    bench_hosts_close(out);
    return 1;
}

static void hosts_end(pid_t *holder)
{
    if (*holder == 0) return;
    (void)kill(*holder, SIGKILL);
    (void)waitpid(*holder, NULL, 0);
    *holder = 0;
}

void bench_hosts_close(bench_hosts *hosts)
{
    for (uint32_t i = 0; i < BENCH_HOSTS_MOST; i++)
        hosts_end(&hosts->hosts[i]);
    hosts_end(&hosts->nodes);
}

bool bench_hosts_cut(const bench_hosts *hosts, uint32_t link, bool down)
{
    return hosts_ip(hosts->nodes, "link set link%u %s", link, down ? "down" : "up");
}
