/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_memory.c - memory is mapped only when its owner can no longer take it away; a bell that
 * a peer has spoilt keeps its ringer only until a signal.
 */
#include "cases.h"

#include "serve/wire/messages.h"
#include "serve/wire/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u

/* A client's memory of four pages with seals. */
static int sealed(int seals)
{
    const int made = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(made >= 0);
    assert_int_equal(ftruncate(made, 4 * PAGE), 0);
    assert_int_equal(fcntl(made, F_ADD_SEALS, seals), 0);
    return made;
}

static kvt_status maps(int descriptor, uint64_t offset, uint64_t bytes, wire_sealed needed)
{
    void *address = &address;
    const kvt_status status = wire_memory_map(descriptor, offset, bytes, needed, &address);
    assert_true((address != NULL) == (status == KVT_OK));
    if (status != KVT_OK) return status;
    memset(address, 0x5a, bytes);
    wire_memory_unmap(address, bytes);
    return KVT_OK;
}

TEST(an_area_keeps_its_size)
{
    int area;
    void *address;
    struct stat found;
    assert_int_equal(wire_memory_make("area", 0, &area), KVT_E_ARGUMENT);
    assert_int_equal(wire_memory_make("area", PAGE + 1, &area), KVT_E_ARGUMENT);
    assert_int_equal(wire_memory_make("area", WIRE_MEMORY_MAX + PAGE, &area), KVT_E_ARGUMENT);
    assert_int_equal(area, -1);
    assert_ok(wire_memory_make("area", 4 * PAGE, &area));
    assert_ok(wire_memory_map(area, 0, 4 * PAGE, WIRE_SEALED_SIZE, &address));
    assert_int_equal(((char *)address)[4 * PAGE - 1], 0);
    assert_int_equal(ftruncate(area, PAGE), -1);
    assert_int_equal(ftruncate(area, 8 * PAGE), -1);
    assert_int_equal(fcntl(area, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_int_equal(fstat(area, &found), 0);
    assert_int_equal(found.st_size, 4 * PAGE);
    ((char *)address)[4 * PAGE - 1] = 1;
    wire_memory_unmap(address, 4 * PAGE);
    wire_memory_unmap(NULL, PAGE);
    close(area);
}

TEST(memory_is_taken_only_with_its_seals)
{
    const struct {
        int seals;
        kvt_status client, area;
    } rows[] = {
        {0, KVT_E_UNSUPPORTED, KVT_E_UNSUPPORTED},
        {F_SEAL_GROW, KVT_E_UNSUPPORTED, KVT_E_UNSUPPORTED},
        {F_SEAL_SHRINK, KVT_OK, KVT_E_UNSUPPORTED},
        {F_SEAL_SHRINK | F_SEAL_SEAL, KVT_OK, KVT_E_UNSUPPORTED},
        {F_SEAL_SHRINK | F_SEAL_GROW, KVT_OK, KVT_OK},
        {F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, KVT_E_UNSUPPORTED, KVT_E_UNSUPPORTED},
        {F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, KVT_E_UNSUPPORTED, KVT_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int made = sealed(rows[i].seals);
        assert_int_equal(maps(made, 0, 4 * PAGE, WIRE_SEALED_SHRINK), rows[i].client);
        assert_int_equal(maps(made, 0, 4 * PAGE, WIRE_SEALED_SIZE), rows[i].area);
        close(made);
    }
}

TEST(only_whole_pages_that_are_there_are_mapped)
{
    const int made = sealed(F_SEAL_SHRINK);
    const struct {
        uint64_t offset, bytes;
        kvt_status status;
    } rows[] = {
        {0, PAGE, KVT_OK},
        {3 * PAGE, PAGE, KVT_OK},
        {0, 0, KVT_E_ARGUMENT},
        {0, 5 * PAGE, KVT_E_ARGUMENT},
        {PAGE, 4 * PAGE, KVT_E_ARGUMENT},
        {4 * PAGE, PAGE, KVT_E_ARGUMENT},
        {1, PAGE, KVT_E_ARGUMENT},
        {0, PAGE - 1, KVT_E_ARGUMENT},
        {UINT64_MAX - PAGE + 1, PAGE, KVT_E_ARGUMENT},
        {PAGE, UINT64_MAX - PAGE + 1, KVT_E_ARGUMENT},
        {WIRE_MEMORY_MAX, PAGE, KVT_E_ARGUMENT},
        {PAGE, WIRE_MEMORY_MAX, KVT_E_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(maps(made, rows[i].offset, rows[i].bytes, WIRE_SEALED_SHRINK),
                         rows[i].status);
    close(made);
}

TEST(other_descriptors_are_refused)
{
    char name[] = "/dev/shm/kvterrace_XXXXXX";
    int made[9], pair[2], count = 0;
    made[count++] = open("/dev/null", O_RDWR | O_CLOEXEC);
    made[count++] = open("/dev/zero", O_RDWR | O_CLOEXEC);
    made[count++] = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    made[count++] = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    made[count++] = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    made[count++] = pair[0];
    made[count++] = pair[1];
    made[count++] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    /* An engine's own region: its size can change, and no seal can be added. */
    made[count] = mkostemp(name, O_CLOEXEC);
    if (made[count] >= 0) {
        assert_int_equal(unlink(name), 0);
        assert_int_equal(ftruncate(made[count], 4 * PAGE), 0);
        assert_int_equal(fcntl(made[count], F_ADD_SEALS, F_SEAL_SHRINK), -1);
    }
    for (int i = 0; i <= count; i++) {
        assert_int_equal(maps(made[i], 0, PAGE, WIRE_SEALED_SHRINK), KVT_E_UNSUPPORTED);
        if (made[i] >= 0) close(made[i]);
    }
    assert_int_equal(maps(-1, 0, PAGE, WIRE_SEALED_SHRINK), KVT_E_UNSUPPORTED);
}

TEST(memory_to_read_alone_is_refused)
{
    const int made = sealed(F_SEAL_SHRINK);
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", made);
    const int reads = open(name, O_RDONLY | O_CLOEXEC);
    assert_true(reads >= 0);
    assert_int_equal(maps(reads, 0, PAGE, WIRE_SEALED_SHRINK), KVT_E_READ_ONLY);
    close(reads);
    close(made);
}

/* A process whose files may not grow so far gets a status, and no signal. */
TEST(memory_beyond_the_limit_of_files_is_refused)
{
    struct rlimit before;
    int made;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit few = {.rlim_cur = 4 * PAGE, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
    assert_int_equal(wire_memory_make("large", 5 * PAGE, &made), KVT_E_MEMORY);
    assert_ok(wire_memory_make("small", 4 * PAGE, &made));
    close(made);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
}

/* Where there are no huge pages the mapping fails, and not a later access. */
TEST(huge_pages_are_reserved_or_refused)
{
    const uint64_t huge = 2 << 20;
    const int made = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (made < 0) skip();
    if (ftruncate(made, (off_t)(1024 * huge)) != 0 ||
        fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        close(made);
        skip();
    }
    const kvt_status one = maps(made, 0, huge, WIRE_SEALED_SHRINK);
    assert_true(one == KVT_OK || one == KVT_E_MEMORY);
    assert_int_equal(maps(made, PAGE, huge, WIRE_SEALED_SHRINK), KVT_E_ARGUMENT);
    assert_int_equal(maps(made, 0, PAGE, WIRE_SEALED_SHRINK), KVT_E_ARGUMENT);
    close(made);
}

/* Whatever the owner does to sealed memory, whoever has mapped it reads and writes on. */
TEST(an_owner_cannot_take_pages_away)
{
    const int made = sealed(F_SEAL_SHRINK);
    void *address;
    assert_ok(wire_memory_map(made, 0, 4 * PAGE, WIRE_SEALED_SHRINK, &address));
    memset(address, 1, 4 * PAGE);
    assert_int_equal(ftruncate(made, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(made, 64 * PAGE), 0);
    assert_int_equal(ftruncate(made, 4 * PAGE), -1);
    assert_int_equal(fallocate(made, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, 2 * PAGE),
                     0);
    assert_int_equal(((char *)address)[PAGE], 0);
    memset(address, 2, 4 * PAGE);
    close(made);
    assert_int_equal(((char *)address)[4 * PAGE - 1], 2);
    wire_memory_unmap(address, 4 * PAGE);
}

/* ---- bells ---- */

TEST(a_bell_that_is_never_read_wakes_each_time)
{
    int bell;
    assert_ok(wire_bell_make(&bell));
    const int poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    assert_int_equal(epoll_ctl(poller, EPOLL_CTL_ADD, bell, &event), 0);
    for (int i = 0; i < 100; i++) {
        assert_ok(wire_bell_ring(bell));
        assert_int_equal(epoll_wait(poller, &event, 1, -1), 1);
        assert_int_equal(epoll_wait(poller, &event, 1, 0), 0);
    }
    uint64_t count = 0;
    assert_int_equal(read(bell, &count, sizeof count), sizeof count);
    assert_int_equal(count, 100);
    wire_bell_clear(bell);
    assert_int_equal(wire_bell_ring(-1), KVT_E_IO);
    close(poller);
    close(bell);
}

TEST(a_full_bell_is_rung)
{
    int bell;
    const uint64_t most = UINT64_MAX - 1;
    assert_ok(wire_bell_make(&bell));
    assert_int_equal(write(bell, &most, sizeof most), sizeof most);
    assert_ok(wire_bell_ring(bell));
    wire_bell_clear(bell);
    wire_bell_clear(bell);
    assert_ok(wire_bell_ring(bell));
    close(bell);
}

typedef struct ringer {
    int bell;
    _Atomic int status;
    atomic_bool began;
} ringer;

static void *ringer_runs(void *argument)
{
    ringer *one = argument;
    atomic_store(&one->began, true);
    atomic_store(&one->status, wire_bell_ring(one->bell));
    return NULL;
}

static void handle_nothing(int signal_number)
{
    (void)signal_number;
}

/* The flags of a bell belong to both sides, so a peer can make a ring wait. */
TEST(a_spoilt_bell_keeps_its_ringer_until_a_signal)
{
    ringer one = {.status = 1000};
    const uint64_t most = UINT64_MAX - 1;
    const struct sigaction action = {.sa_handler = handle_nothing};
    struct sigaction before;
    pthread_t thread;
    assert_ok(wire_bell_make(&one.bell));
    assert_int_equal(fcntl(one.bell, F_SETFL, 0), 0);
    assert_int_equal(write(one.bell, &most, sizeof most), sizeof most);
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    assert_int_equal(pthread_create(&thread, NULL, ringer_runs, &one), 0);
    while (!atomic_load(&one.began))
        usleep(100);
    while (atomic_load(&one.status) == 1000) {
        assert_int_equal(pthread_kill(thread, SIGUSR1), 0);
        usleep(1000);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(one.status, KVT_E_CANCELLED);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
    close(one.bell);
}
