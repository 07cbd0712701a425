/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_nvme_parse.c - turns the bytes of identify pages into facts, and the results of commands
 * into statuses. The file talks to no drive, so it is tested without one, also with hostile pages.
 *
 * A page that makes no sense is refused with a reason; a page that lies within the rules is
 * believed, because nothing else can be.
 *
 * Thread rule: pure.
 */
#include "device_nvme.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "device_internal.h"

/* Byte offsets in the identify pages. */
enum {
    CONTROLLER_AT_SERIAL = 4, /* 20 characters */
    CONTROLLER_AT_MDTS = 77,
    CONTROLLER_AT_ONCS = 520,
    CONTROLLER_AT_VWC = 525,
    CONTROLLER_ONCS_DSM = 1 << 2,
    NAMESPACE_AT_SIZE = 0,
    NAMESPACE_AT_FORMATS = 25, /* their number less one */
    NAMESPACE_AT_FORMAT = 26,  /* bits 0..3, and 5..6 above them */
    NAMESPACE_AT_ATTRIBUTES = 99,
    NAMESPACE_AT_NGUID = 104, /* 16 bytes */
    NAMESPACE_AT_EUI64 = 120, /* 8 bytes */
    NAMESPACE_AT_FORMAT_LIST = 128,
    NAMESPACE_FORMATS_MAX = 64,
    NAMESPACE_WRITE_PROTECTED = 1
};

/* Largest exponents for which sizes in bytes stay sane. */
enum { NVME_MDTS_MAX = 16, NVME_BLOCK_SHIFT_MIN = 9, NVME_BLOCK_SHIFT_MAX = 12 };

/* Reads a little-endian number of up to 8 bytes. */
static uint64_t nvme_get(const uint8_t *at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

/* Blanks inside the serial number become underscores, because identities are words. A transfer
 * limit beyond 2^16 pages counts as none. */
void nvme_parse_controller(const uint8_t page[NVME_PAGE_BYTES], nvme_controller *out)
{
    memset(out, 0, sizeof *out);
    size_t length = 0;
    for (size_t i = 0; i < 20; i++) {
        uint8_t letter = page[CONTROLLER_AT_SERIAL + i];
        bool blank = letter <= ' ' || letter > '~';
        if (blank && length == 0) continue;
        out->serial[length++] = blank ? '_' : (char)letter;
    }
    while (length > 0 && out->serial[length - 1] == '_')
        out->serial[--length] = '\0';
    /* In units of the controller's smallest page, of which 4 KiB is the least. */
    uint8_t mdts = page[CONTROLLER_AT_MDTS];
    if (mdts != 0 && mdts <= NVME_MDTS_MAX) out->transfer_bytes_max = UINT64_C(4096) << mdts;
    out->write_cache = (page[CONTROLLER_AT_VWC] & 1) != 0;
    out->deallocates = (nvme_get(page + CONTROLLER_AT_ONCS, 2) & CONTROLLER_ONCS_DSM) != 0;
}

/* Writes bytes as hexadecimal digits; false, with an empty name, when all are 0: the drive has no
 * such number. */
static bool nvme_name_from(const uint8_t *bytes, size_t count, char *name)
{
    bool some = false;
    for (size_t i = 0; i < count; i++) {
        some |= bytes[i] != 0;
        snprintf(name + 2 * i, 3, "%02x", bytes[i]);
    }
    if (!some) name[0] = '\0';
    return some;
}

kvt_status nvme_parse_namespace(const uint8_t page[NVME_PAGE_BYTES], nvme_namespace *out,
                                const char **reason_out)
{
    memset(out, 0, sizeof *out);
    uint32_t count = page[NAMESPACE_AT_FORMATS] + 1u;
    uint32_t flags = page[NAMESPACE_AT_FORMAT];
    uint32_t index = flags & 15u;
    /* The upper bits mean something only where there are more than 16 formats. */
    if (count > 16) index |= (flags >> 5 & 3u) << 4;
    *reason_out = "its identify page names a format that it does not have";
    if (count > NAMESPACE_FORMATS_MAX || index >= count) return KVT_E_UNSUPPORTED;
    const uint8_t *format = page + NAMESPACE_AT_FORMAT_LIST + 4 * index;
    *reason_out = "its blocks carry metadata";
    if (nvme_get(format, 2) != 0) return KVT_E_UNSUPPORTED;
    *reason_out = "its blocks are not of 512 bytes to 4 KiB";
    out->block_shift = format[2];
    if (out->block_shift < NVME_BLOCK_SHIFT_MIN || out->block_shift > NVME_BLOCK_SHIFT_MAX)
        return KVT_E_UNSUPPORTED;
    *reason_out = "its size is absurd";
    uint64_t blocks = nvme_get(page + NAMESPACE_AT_SIZE, 8);
    if (blocks > (uint64_t)INT64_MAX >> out->block_shift) return KVT_E_UNSUPPORTED;
    out->bytes = blocks << out->block_shift;
    out->read_only = (page[NAMESPACE_AT_ATTRIBUTES] & NAMESPACE_WRITE_PROTECTED) != 0;
    if (!nvme_name_from(page + NAMESPACE_AT_NGUID, 16, out->name))
        (void)nvme_name_from(page + NAMESPACE_AT_EUI64, 8, out->name);
    *reason_out = NULL;
    return KVT_OK;
}

/* A drive keeps its name when it moves to another slot or gets another number from the kernel. */
void nvme_identity(const nvme_controller *controller, const nvme_namespace *space, uint32_t number,
                   char identity[NVME_IDENTITY_BYTES])
{
    snprintf(identity, NVME_IDENTITY_BYTES, "nvme serial=%s ns=%u%s%s", controller->serial, number,
             space->name[0] != '\0' ? " id=" : "", space->name);
}

/* Codes of the status types that need telling apart; all others are KVT_E_IO. */
enum {
    NVME_STATUS_MASK = 0x7FF,
    NVME_GENERIC_POWER_LOSS = 0x005,
    NVME_GENERIC_INVALID_NAMESPACE = 0x00B,
    NVME_GENERIC_WRITE_PROTECTED = 0x020,
    NVME_GENERIC_CAPACITY_EXCEEDED = 0x081,
    NVME_GENERIC_FORMAT_IN_PROGRESS = 0x084,
    NVME_COMMAND_READ_ONLY_RANGE = 0x182,
    NVME_MEDIA_ACCESS_DENIED = 0x286,
    NVME_PATH_PERSISTENT_LOSS = 0x301,
    NVME_PATH_HOST_ERROR = 0x370 /* the kernel's: the controller was lost or removed */
};

/* The errno beside a status lets a message say what the block layer would have said. */
kvt_status nvme_status_of_result(int32_t result, int *os_error_out)
{
    *os_error_out = 0;
    if (result == 0) return KVT_OK;
    if (result < 0) {
        *os_error_out = -result;
        return tiers_status_of_transfer(-result);
    }
    switch (result & NVME_STATUS_MASK) {
    case NVME_GENERIC_WRITE_PROTECTED:
    case NVME_COMMAND_READ_ONLY_RANGE: *os_error_out = EROFS; return KVT_E_READ_ONLY;
    case NVME_MEDIA_ACCESS_DENIED: *os_error_out = EACCES; return KVT_E_READ_ONLY;
    case NVME_GENERIC_CAPACITY_EXCEEDED: *os_error_out = ENOSPC; return KVT_E_SPACE;
    case NVME_GENERIC_POWER_LOSS:
    case NVME_GENERIC_INVALID_NAMESPACE:
    case NVME_GENERIC_FORMAT_IN_PROGRESS:
    case NVME_PATH_PERSISTENT_LOSS:
    case NVME_PATH_HOST_ERROR: *os_error_out = ENODEV; return KVT_E_GONE;
    default: *os_error_out = EIO; return KVT_E_IO;
    }
}
