/* SPDX-License-Identifier: Apache-2.0 */
/* shared_memory.c - memfd with seals, and eventfd. */
#include "serve/wire/shared_memory.h"

#include "serve/wire/messages.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define HUGE_PAGES_MAGIC 0x958458f6 /* of hugetlbfs, whose block is its page */

/* Whether a file may have so many bytes: beyond its limit a process gets a signal. */
static bool may_grow_to(uint64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes <= limit.rlim_cur;
}

uint64_t wire_memory_page(int descriptor)
{
    struct statfs system;
    if (fstatfs(descriptor, &system) != 0) return 0;
    return (uint64_t)system.f_type == HUGE_PAGES_MAGIC ? (uint64_t)system.f_bsize : WIRE_PAGE;
}

/* Whether a range is whole pages of the memory: a part of a huge page would be mapped as a whole,
 * and could not be unmapped. */
static bool is_whole_pages(int descriptor, uint64_t offset, uint64_t bytes)
{
    const uint64_t page = wire_memory_page(descriptor);
    return page > 0 && offset % page == 0 && bytes % page == 0;
}

kvt_status wire_memory_make(const char *name, uint64_t bytes, int *descriptor_out)
{
    *descriptor_out = -1;
    if (bytes == 0 || bytes > WIRE_MEMORY_MAX || bytes % WIRE_PAGE != 0) return KVT_E_ARGUMENT;
    if (!may_grow_to(bytes)) return KVT_E_MEMORY;
    const int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0) return errno == ENOSYS ? KVT_E_UNSUPPORTED : KVT_E_MEMORY;
    if (ftruncate(made, (off_t)bytes) != 0 ||
        fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(made);
        return KVT_E_MEMORY;
    }
    *descriptor_out = made;
    return KVT_OK;
}

kvt_status wire_memory_map(int descriptor, uint64_t offset, uint64_t bytes, wire_sealed sealed,
                           void **address_out)
{
    *address_out = NULL;
    if (bytes == 0 || bytes > WIRE_MEMORY_MAX || offset > WIRE_MEMORY_MAX - bytes)
        return KVT_E_ARGUMENT;
    if (offset % WIRE_PAGE != 0 || bytes % WIRE_PAGE != 0) return KVT_E_ARGUMENT;
    const int needed = sealed == WIRE_SEALED_SIZE ? F_SEAL_SHRINK | F_SEAL_GROW : F_SEAL_SHRINK;
    const int seals = fcntl(descriptor, F_GET_SEALS);
    if (seals < 0 || (seals & needed) != needed) return KVT_E_UNSUPPORTED;
    if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) return KVT_E_UNSUPPORTED;
    /* It cannot fall any more. */
    struct stat found;
    if (fstat(descriptor, &found) != 0) return KVT_E_UNSUPPORTED;
    if (found.st_size < 0 || (uint64_t)found.st_size < offset + bytes) return KVT_E_ARGUMENT;
    if (!is_whole_pages(descriptor, offset, bytes)) return KVT_E_ARGUMENT;
    void *address =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)offset);
    if (address != MAP_FAILED) {
        *address_out = address;
        return KVT_OK;
    }
    return errno == EACCES || errno == EPERM ? KVT_E_READ_ONLY
           : errno == EINVAL                 ? KVT_E_ARGUMENT
                                             : KVT_E_MEMORY;
}

void wire_memory_unmap(void *address, uint64_t bytes)
{
    if (address == NULL) return;
    const int result = munmap(address, bytes);
    assert(result == 0);
    (void)result;
}

kvt_status wire_bell_make(int *bell_out)
{
    *bell_out = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return *bell_out >= 0 ? KVT_OK : KVT_E_MEMORY;
}

kvt_status wire_bell_ring(int bell)
{
    const uint64_t one = 1;
    if (write(bell, &one, sizeof one) == (ssize_t)sizeof one) return KVT_OK;
    /* A counter that is full is readable: the bell has been rung. */
    if (errno == EAGAIN) return KVT_OK;
    return errno == EINTR ? KVT_E_CANCELLED : KVT_E_IO;
}

void wire_bell_clear(int bell)
{
    uint64_t count;
    const ssize_t result = read(bell, &count, sizeof count);
    (void)result;
}
