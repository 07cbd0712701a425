/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_nvme.h - the nvme back end: commands to a namespace through its character device
 * (/dev/ng0n1), past file system, page cache and block layer.
 *
 * This header is the part of it that needs no drive: what identify pages and completions mean.
 * Their bytes come from the drive and are not trusted.
 *
 * Sources: NVM Express Base and NVM Command Set specifications 2.0 (identify, status codes);
 * <linux/nvme_ioctl.h> (passthrough).
 *
 * Thread rule: pure.
 */
#ifndef TIERS_DEVICE_NVME_H
#define TIERS_DEVICE_NVME_H

#include <kvterrace/types.h>

enum {
    NVME_PAGE_BYTES = 4096, /* of an identify page */
    NVME_IDENTITY_BYTES = 96,
    /* Passthrough is never split: the kernel refuses what is too large. Little is gained above
     * this, and the limits of drives begin there. */
    NVME_REQUEST_BYTES_MAX = 256 * 1024
};

enum { NVME_OPCODE_FLUSH = 0, NVME_OPCODE_WRITE = 1, NVME_OPCODE_READ = 2, NVME_OPCODE_DSM = 9 };

/* The facts of a controller that matter here. */
typedef struct nvme_controller {
    char serial[21];             /* printable, no blanks at its ends */
    uint64_t transfer_bytes_max; /* 0 = none stated */
    bool write_cache;            /* a flush is needed */
    bool deallocates;            /* knows Dataset Management */
} nvme_controller;

/* The facts of a namespace. bytes fits a signed 64-bit number, so offsets never overflow. */
typedef struct nvme_namespace {
    uint64_t bytes;
    uint32_t block_shift; /* 9..12 */
    bool read_only;
    char name[33]; /* NGUID or EUI64 in hexadecimal digits, or empty */
} nvme_namespace;

/* identify, CNS 01h. Any bytes give some controller. */
void nvme_parse_controller(const uint8_t page[NVME_PAGE_BYTES], nvme_controller *out);

/* identify, CNS 00h. KVT_OK; KVT_E_UNSUPPORTED (*reason_out says why). */
KVT_NODISCARD kvt_status nvme_parse_namespace(const uint8_t page[NVME_PAGE_BYTES],
                                              nvme_namespace *out, const char **reason_out);

/* The name of a namespace for profiles. */
void nvme_identity(const nvme_controller *controller, const nvme_namespace *space, uint32_t number,
                   char identity[NVME_IDENTITY_BYTES]);

/* The result of a command, as io_uring and ioctl give it: 0, a negative errno, or the status field
 * of the completion, which has the type in bits 8..10 and the code in bits 0..7; the bits above
 * ("do not retry", "more", retry delay) are ignored. Fills what kvt_io has. */
kvt_status nvme_status_of_result(int32_t result, int *os_error_out);

#endif
