/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cluster.c - starts servers on free ports, joins them to a cluster, and speaks to them by
 * lines. The file knows nothing of clients.
 *
 * Thread rule: as bench_cluster.h says.
 */
#include "bench_cluster.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLUSTER_SLOTS   16384u
#define CLUSTER_WAIT_NS UINT64_C(10000000000)
#define CLUSTER_ASK_NS  UINT64_C(20000000)
#define CLUSTER_TRIES   8 /* of ports that others may have taken */

/* ---- words with a server ---- */

static int cluster_connect(const bench_cluster *cluster, uint32_t node)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(cluster->nodes[node].port)};
    const struct timeval wait = {.tv_sec = 2};
    const int found = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (found < 0 || inet_pton(AF_INET, cluster->address, &to.sin_addr) != 1) return found;
    (void)setsockopt(found, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    (void)setsockopt(found, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (connect(found, (const struct sockaddr *)&to, sizeof to) == 0) return found;
    close(found);
    return -1;
}

/* The bytes that an answer has in all, as its head says; 0: not known yet. */
static size_t cluster_answer_bytes(const char *answer, size_t got)
{
    const char *end = memchr(answer, '\n', got);
    if (end == NULL) return 0;
    const size_t head = (size_t)(end + 1 - answer);
    if (answer[0] != '$') return head;
    const long bytes = strtol(answer + 1, NULL, 10);
    return bytes < 0 ? head : head + (size_t)bytes + 2;
}

bool bench_cluster_say(const bench_cluster *cluster, uint32_t node, const char *line, char *answer,
                       uint32_t answer_size)
{
    char command[512];
    size_t got = 0, want = 0;
    const int bytes = snprintf(command, sizeof command, "%s\r\n", line);
    const int talk = cluster_connect(cluster, node);
    answer[0] = '\0';
    if (talk < 0) return false;
    if (send(talk, command, (size_t)bytes, MSG_NOSIGNAL) != bytes) {
        close(talk);
        return false;
    }
    while (got + 1 < answer_size && (want == 0 || got < want)) {
        const ssize_t more = recv(talk, answer + got, answer_size - got - 1, 0);
        if (more <= 0) break;
        got += (size_t)more;
        want = cluster_answer_bytes(answer, got);
    }
    answer[got] = '\0';
    close(talk);
    return got > 0;
}

double bench_cluster_info(const bench_cluster *cluster, uint32_t node, const char *name)
{
    char answer[16384], key[64];
    if (!bench_cluster_say(cluster, node, "INFO", answer, sizeof answer)) return -1;
    snprintf(key, sizeof key, "\n%s:", name);
    const char *found = strstr(answer, key);
    return found != NULL ? strtod(found + strlen(key), NULL) : -1;
}

double bench_cluster_cpu_seconds(const bench_cluster *cluster)
{
    double seconds = 0;
    for (uint32_t i = 0; i < cluster->count; i++) {
        char path[64], text[1024];
        snprintf(path, sizeof path, "/proc/%d/stat", (int)cluster->nodes[i].pid);
        FILE *file = cluster->nodes[i].pid > 0 ? fopen(path, "re") : NULL;
        if (file == NULL) continue;
        const size_t bytes = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[bytes] = '\0';
        /* The name in brackets may hold blanks; utime and stime are the 12th and 13th behind it. */
        char *at = strrchr(text, ')');
        for (int field = 0; at != NULL && field < 12; field++)
            at = strchr(at + 1, ' ');
        if (at == NULL) continue;
        char *end = NULL;
        const double user = strtod(at, &end);
        seconds += (user + strtod(end, NULL)) / (double)sysconf(_SC_CLK_TCK);
    }
    return seconds;
}

/* ---- servers ---- */

bool bench_cluster_enter(pid_t space)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)space);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool entered = setns(file, CLONE_NEWNET) == 0;
    close(file);
    return entered;
}

/* The first port that the system gives to connections without one. */
static uint32_t cluster_given_ports(void)
{
    char line[64] = "";
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    if (file == NULL) return 32768;
    const bool got = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    const unsigned long first = got ? strtoul(line, NULL, 10) : 0;
    return first > 0 && first < 65536 ? (uint32_t)first : 32768;
}

/* Whether a port is free now; of another namespace, whether it is here. */
static bool cluster_port_is_free(const bench_cluster *cluster, uint16_t port)
{
    const char *address = cluster->options.space == 0 ? cluster->address : "0.0.0.0";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (probe < 0) return false;
    const bool bound = inet_pton(AF_INET, address, &at.sin_addr) == 1 &&
                       bind(probe, (const struct sockaddr *)&at, sizeof at) == 0;
    close(probe);
    return bound;
}

/* A port that is free now and that the system gives to no connection by itself. A server may take
 * it before ours does. */
static uint16_t cluster_free_port(const bench_cluster *cluster)
{
    const uint32_t end = cluster_given_ports(), first = end / 2;
    for (int i = 0; i < 100; i++) {
        uint32_t draw = 0;
        if (getrandom(&draw, sizeof draw, 0) != sizeof draw) return 0;
        const uint16_t port = (uint16_t)(first + draw % (end - first));
        if (port >= 1024 && cluster_port_is_free(cluster, port)) return port;
    }
    return 0;
}

/* The server's program, and the name that it is to be called by. False: there is none. */
static bool cluster_program(const char **path_out, const char **name_out)
{
    static const char *const programs[][2] = {{"/usr/bin/valkey-server", "valkey-server"},
                                              {"/usr/local/bin/valkey-server", "valkey-server"},
                                              {"/usr/bin/redis-server", "redis-server"},
                                              {"/usr/local/bin/redis-server", "redis-server"},
                                              /* Of redis-tools: a server by another name. */
                                              {"/usr/bin/redis-check-rdb", "redis-server"}};
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        if (access(programs[i][0], X_OK) != 0) continue;
        *path_out = programs[i][0];
        *name_out = programs[i][1];
        return true;
    }
    return false;
}

/* The name of a node's socket in its folder: it is there once the node has all of its ports. */
static void cluster_socket_path(const bench_cluster *cluster, uint32_t node, char *path,
                                size_t path_size)
{
    snprintf(path, path_size, "%s/socket-%u", cluster->folder, node);
}

/* Becomes a server; returns only when it cannot. */
static void cluster_become(const bench_cluster *cluster, uint32_t node, const char *path,
                           const char *name, pid_t parent)
{
    char port[8], bus[8], tls[8], memory[32], nodes_file[32], log_file[32], path_file[128];
    const char *arguments[64];
    uint32_t count = 0;
    snprintf(port, sizeof port, "%u", cluster->nodes[node].port);
    snprintf(bus, sizeof bus, "%u", cluster->nodes[node].bus_port);
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)cluster->options.memory_bytes);
    snprintf(nodes_file, sizeof nodes_file, "nodes-%u.conf", node);
    snprintf(log_file, sizeof log_file, "log-%u", node);
    snprintf(tls, sizeof tls, "%u", cluster->nodes[node].tls_port);
    cluster_socket_path(cluster, node, path_file, sizeof path_file);
    const char *const fixed[] = {name,
                                 "--port",
                                 port,
                                 "--bind",
                                 cluster->address,
                                 "--dir",
                                 cluster->folder,
                                 "--save",
                                 "",
                                 "--appendonly",
                                 "no",
                                 "--logfile",
                                 log_file,
                                 "--loglevel",
                                 "warning",
                                 "--protected-mode",
                                 "no",
                                 "--maxmemory",
                                 memory,
                                 "--maxmemory-policy",
                                 cluster->options.policy,
                                 "--unixsocket",
                                 path_file,
                                 "--daemonize",
                                 "no"};
    const char *const joined[] = {"--cluster-enabled",
                                  "yes",
                                  "--cluster-config-file",
                                  nodes_file,
                                  "--cluster-port",
                                  bus,
                                  "--cluster-node-timeout",
                                  "1000",
                                  "--cluster-require-full-coverage",
                                  "no"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        arguments[count++] = fixed[i];
    for (size_t i = 0; !cluster->options.single && i < sizeof joined / sizeof joined[0]; i++)
        arguments[count++] = joined[i];
    if (cluster->options.tls) arguments[count++] = "--tls-port";
    if (cluster->options.tls) arguments[count++] = tls;
    const char *const *more = cluster->options.arguments;
    while (more != NULL && *more != NULL && count < 63)
        arguments[count++] = *more++;
    arguments[count] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return;
    if (cluster->options.space != 0 && !bench_cluster_enter(cluster->options.space)) return;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int nowhere = open("/dev/null", O_RDWR);
    for (int i = 0; nowhere >= 0 && i < 3; i++)
        (void)dup2(nowhere, i);
    execv(path, (char *const *)(uintptr_t)arguments);
}

/* Starts a server and waits until it answers. False: it does not, or has found a port taken. */
static bool cluster_launch(bench_cluster *cluster, uint32_t node)
{
    const char *path, *name;
    char answer[64], socket_path[128];
    if (!cluster_program(&path, &name)) return false;
    cluster_socket_path(cluster, node, socket_path, sizeof socket_path);
    (void)unlink(socket_path);
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        cluster_become(cluster, node, path, name, parent);
        _exit(127);
    }
    if (pid < 0) return false;
    cluster->nodes[node].pid = pid;
    const uint64_t end_ns = base_clock_ns() + CLUSTER_WAIT_NS;
    while (base_clock_ns() < end_ns) {
        /* The one that answers at the port is this server; one with a password answers, too. */
        if (access(socket_path, F_OK) == 0 &&
            bench_cluster_say(cluster, node, "PING", answer, sizeof answer))
            return true;
        if (waitpid(pid, NULL, WNOHANG) == pid) {
            cluster->nodes[node].pid = 0;
            return false;
        }
        base_sleep(CLUSTER_ASK_NS);
    }
    return false;
}

/* The same with ports that are free, also when others take them meanwhile. */
static bool cluster_launch_new(bench_cluster *cluster, uint32_t node)
{
    for (int i = 0; i < CLUSTER_TRIES; i++) {
        cluster->nodes[node].port = cluster_free_port(cluster);
        cluster->nodes[node].bus_port = cluster_free_port(cluster);
        cluster->nodes[node].tls_port = cluster->options.tls ? cluster_free_port(cluster) : 0;
        if (cluster_launch(cluster, node)) return true;
        if (cluster->nodes[node].pid != 0) return false; /* it runs, and does not answer */
    }
    return false;
}

/* Gives each node its part of the slots and joins all to the first. */
static bool cluster_join(const bench_cluster *cluster)
{
    char line[160], answer[256];
    for (uint32_t i = 0; i < cluster->count; i++) {
        const uint32_t from = CLUSTER_SLOTS * i / cluster->count;
        const uint32_t end = CLUSTER_SLOTS * (i + 1) / cluster->count;
        snprintf(line, sizeof line, "CLUSTER ADDSLOTSRANGE %u %u", from, end - 1);
        if (!bench_cluster_say(cluster, i, line, answer, sizeof answer) || answer[0] != '+')
            return false;
        snprintf(line, sizeof line, "CLUSTER MEET %s %u %u", cluster->address,
                 cluster->nodes[i].port, cluster->nodes[i].bus_port);
        if (i > 0 &&
            (!bench_cluster_say(cluster, 0, line, answer, sizeof answer) || answer[0] != '+'))
            return false;
    }
    return true;
}

/* Waits until every node that runs sees all slots served. */
static bool cluster_wait(const bench_cluster *cluster)
{
    char answer[2048], known[64];
    snprintf(known, sizeof known, "cluster_known_nodes:%u\r", cluster->count);
    const uint64_t end_ns = base_clock_ns() + CLUSTER_WAIT_NS;
    for (uint32_t i = 0; i < cluster->count;) {
        if (bench_cluster_say(cluster, i, "CLUSTER INFO", answer, sizeof answer) &&
            strstr(answer, "cluster_state:ok") != NULL && strstr(answer, known) != NULL &&
            strstr(answer, "cluster_slots_ok:16384") != NULL) {
            i++;
            continue;
        }
        if (base_clock_ns() >= end_ns) return false;
        base_sleep(CLUSTER_ASK_NS);
    }
    return true;
}

int bench_cluster_start(const bench_cluster_options *options, bench_cluster *out)
{
    const char *path, *name;
    *out = (bench_cluster){.count = options->nodes, .options = *options};
    if (out->options.policy == NULL) out->options.policy = "allkeys-lru";
    if (!cluster_program(&path, &name)) return 77;
    snprintf(out->address, sizeof out->address, "%s",
             options->address != NULL ? options->address : "127.0.0.1");
    snprintf(out->folder, sizeof out->folder, "/tmp/kvterrace-cluster-XXXXXX");
    if (mkdtemp(out->folder) == NULL) {
        out->folder[0] = '\0';
        return 1;
    }
    bool good = true;
    for (uint32_t i = 0; i < out->count && good; i++) {
        const size_t used = strlen(out->addresses);
        good = cluster_launch_new(out, i);
        snprintf(out->addresses + used, sizeof out->addresses - used, "%s%s:%u", i > 0 ? "," : "",
                 out->address, out->nodes[i].port);
    }
    if (good && !out->options.single) good = cluster_join(out) && cluster_wait(out);
    if (good) return 0;
    fprintf(stderr, "a server of %u does not serve\n", out->count);
    bench_cluster_stop(out);
    return 1;
}

void bench_cluster_signal(const bench_cluster *cluster, uint32_t node, int signal_number)
{
    if (cluster->nodes[node].pid > 0) kill(cluster->nodes[node].pid, signal_number);
}

void bench_cluster_kill(bench_cluster *cluster, uint32_t node)
{
    bench_cluster_signal(cluster, node, SIGKILL);
    if (cluster->nodes[node].pid > 0) (void)waitpid(cluster->nodes[node].pid, NULL, 0);
    cluster->nodes[node].pid = 0;
}

bool bench_cluster_restart(bench_cluster *cluster, uint32_t node)
{
    if (cluster->nodes[node].pid > 0) bench_cluster_kill(cluster, node);
    if (!cluster_launch(cluster, node)) return false;
    return cluster->options.single || cluster_wait(cluster);
}

void bench_cluster_stop(bench_cluster *cluster)
{
    char path[160];
    for (uint32_t i = 0; i < cluster->count; i++)
        bench_cluster_kill(cluster, i);
    for (uint32_t i = 0; cluster->folder[0] != '\0' && i < cluster->count; i++) {
        snprintf(path, sizeof path, "%s/nodes-%u.conf", cluster->folder, i);
        (void)unlink(path);
        snprintf(path, sizeof path, "%s/log-%u", cluster->folder, i);
        (void)unlink(path);
        cluster_socket_path(cluster, i, path, sizeof path);
        (void)unlink(path);
    }
    if (cluster->folder[0] != '\0') (void)rmdir(cluster->folder);
    cluster->folder[0] = '\0';
}
