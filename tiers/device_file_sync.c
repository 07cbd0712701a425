/*
 * device_file_sync.c - the blocking engine of the file back end: pread and pwrite.
 *
 * Used where io_uring is refused or unwanted, to fill a new file, and to finish what a broken ring
 * left behind.
 *
 * Thread rule: as device.h.
 */
#include "device_file.h"

#include <errno.h>
#include <unistd.h>

void file_sync_run(file_device *file, kvt_io *io, uint32_t moved)
{
    uint32_t retries = 0;
    while (moved < io->bytes) {
        char *buffer = (char *)io->buffer + moved;
        off_t at = (off_t)(io->offset + moved);
        size_t rest = io->bytes - moved;
        ssize_t result = io->kind == KVT_IO_READ ? pread(file->fd, buffer, rest, at)
                                                 : pwrite(file->fd, buffer, rest, at);
        if (result == 0) {
            tiers_io_finish(io, file_status_of_end(file), 0, tiers_device_now_ns());
            return;
        }
        uint32_t before = moved;
        if (result > 0) {
            moved += (uint32_t)result;
            if (moved < io->bytes) moved = file_round_moved(file, moved);
        } else if (errno != EINTR && errno != EAGAIN) {
            int os_error = errno;
            tiers_io_finish(io, file_status_of_transfer(os_error), os_error, tiers_device_now_ns());
            return;
        }
        retries = moved > before ? 0 : retries + 1;
        if (retries > FILE_RETRIES_MAX) {
            tiers_io_finish(io, KVT_E_IO, EIO, tiers_device_now_ns());
            return;
        }
    }
    tiers_io_finish(io, KVT_OK, 0, tiers_device_now_ns());
}
