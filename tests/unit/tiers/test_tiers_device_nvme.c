/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_nvme.c - the nvme device without a drive: identify pages, hostile ones
 * included, completion statuses, what is refused at open; and the marks of foreign file systems.
 */
#include "device_scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <tiers/devices/device_file.h>
#include <tiers/devices/device_nvme.h>
#include <tiers/devices/device_signature.h>

static uint8_t page[NVME_PAGE_BYTES];

static void put(size_t at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        page[at + i] = (uint8_t)(value >> (8 * i));
}

/* A namespace of 1 GiB in blocks of 512 bytes, as the second of three formats. */
static void make_namespace(void)
{
    memset(page, 0, sizeof page);
    put(0, (UINT64_C(1) << 30) / 512, 8);
    page[25] = 2;
    page[26] = 1;
    put(128 + 4 * 1 + 2, 9, 1);
    put(128 + 4 * 2 + 2, 12, 1);
}

static kvt_status parse(nvme_namespace *space)
{
    const char *reason = "untouched";
    kvt_status status = nvme_parse_namespace(page, space, &reason);
    assert_int_equal(status == KVT_OK, reason == NULL);
    return status;
}

TEST(namespace)
{
    nvme_namespace space;
    make_namespace();
    assert_ok(parse(&space));
    assert_int_equal(space.bytes, 1 << 30);
    assert_int_equal(space.block_shift, 9);
    assert_false(space.read_only);
    assert_string_equal(space.name, "");
    page[26] = 2;
    put(0, (UINT64_C(1) << 30) / 4096, 8);
    page[99] = 1;
    put(120, 0x0102030405060708u, 8);
    assert_ok(parse(&space));
    assert_int_equal(space.bytes, 1 << 30);
    assert_int_equal(space.block_shift, 12);
    assert_true(space.read_only);
    assert_string_equal(space.name, "0807060504030201");
    page[104] = 0xAB;
    assert_ok(parse(&space));
    assert_string_equal(space.name, "ab000000000000000000000000000000");
    /* With more than 16 formats bits 5 and 6 are the upper half of the number. */
    page[25] = 35;
    page[26] = 1u << 5 | 3;
    put(128 + 4 * 19 + 2, 12, 1);
    assert_ok(parse(&space));
    assert_int_equal(space.block_shift, 12);
    page[25] = 15;
    put(128 + 4 * 3 + 2, 9, 1);
    assert_ok(parse(&space));
    assert_int_equal(space.block_shift, 9);
}

TEST(namespace_refused)
{
    nvme_namespace space;
    make_namespace();
    page[26] = 3; /* no such format */
    assert_int_equal(parse(&space), KVT_E_UNSUPPORTED);
    make_namespace();
    page[25] = 255;
    assert_int_equal(parse(&space), KVT_E_UNSUPPORTED);
    make_namespace();
    put(128 + 4, 8, 2); /* metadata behind each block */
    assert_int_equal(parse(&space), KVT_E_UNSUPPORTED);
    const uint8_t shifts[] = {0, 8, 13, 31, 63, 64, 255};
    for (size_t i = 0; i < sizeof shifts; i++) {
        make_namespace();
        put(128 + 4 + 2, shifts[i], 1);
        assert_int_equal(parse(&space), KVT_E_UNSUPPORTED);
    }
    make_namespace();
    put(0, UINT64_MAX, 8);
    assert_int_equal(parse(&space), KVT_E_UNSUPPORTED);
    put(0, (uint64_t)INT64_MAX >> 9, 8);
    assert_ok(parse(&space));
    put(0, ((uint64_t)INT64_MAX >> 9) + 1, 8);
    assert_int_equal(parse(&space), KVT_E_UNSUPPORTED);
}

TEST(controller)
{
    nvme_controller controller;
    nvme_namespace space = {.name = "ab"};
    char identity[NVME_IDENTITY_BYTES];
    memset(page, 0, sizeof page);
    memcpy(page + 4, "  kv 1\n\xff 2           ", 20);
    page[77] = 7;
    put(520, 1 << 2, 2);
    page[525] = 1;
    nvme_parse_controller(page, &controller);
    assert_string_equal(controller.serial, "kv_1___2");
    assert_int_equal(controller.transfer_bytes_max, 512 * 1024);
    assert_true(controller.deallocates && controller.write_cache);
    nvme_identity(&controller, &space, 3, identity);
    assert_string_equal(identity, "nvme serial=kv_1___2 ns=3 id=ab");
    page[77] = 255; /* no drive takes that: as good as unknown */
    put(520, 0xFFFB, 2);
    page[525] = 0xFE;
    nvme_parse_controller(page, &controller);
    assert_int_equal(controller.transfer_bytes_max, 0);
    assert_false(controller.deallocates || controller.write_cache);
}

/* Any bytes give a value or a refusal, and everything stays in its bounds. */
TEST(hostile_pages)
{
    uint64_t seed = 11;
    uint32_t accepted = 0;
    char identity[NVME_IDENTITY_BYTES];
    for (int round = 0; round < 20000; round++) {
        nvme_controller controller;
        nvme_namespace space;
        const char *reason;
        scratch_fill(page, sizeof page, scratch_random(&seed));
        if (round % 2 == 0) { /* near enough to sense to get further */
            page[25] = (uint8_t)(round % 64);
            page[26] = (uint8_t)(round % 16);
            put(6, 0, 2);
            for (size_t i = 0; i < 64; i++) {
                put(128 + 4 * i, (uint64_t)(round % 7 == 0), 2);
                put(128 + 4 * i + 2, (uint64_t)(round % 16), 1);
            }
        }
        nvme_parse_controller(page, &controller);
        assert_true(strlen(controller.serial) <= 20);
        for (const char *at = controller.serial; *at != '\0'; at++)
            assert_true(*at > ' ' && *at <= '~');
        if (nvme_parse_namespace(page, &space, &reason) != KVT_OK) continue;
        accepted++;
        assert_true(space.block_shift >= 9 && space.block_shift <= 12);
        assert_true(space.bytes <= INT64_MAX);
        nvme_identity(&controller, &space, UINT32_MAX, identity);
        assert_true(strlen(identity) < sizeof identity);
    }
    assert_true(accepted > 100);
}

TEST(statuses)
{
    static const struct {
        int32_t result;
        kvt_status status;
        int os_error;
    } cases[] = {
        {0, KVT_OK, 0},
        {-EIO, KVT_E_IO, EIO},
        {-EINVAL, KVT_E_IO, EINVAL},
        {-ENODEV, KVT_E_GONE, ENODEV},
        {-ENXIO, KVT_E_GONE, ENXIO},
        {-EOPNOTSUPP, KVT_E_IO, EOPNOTSUPP},
        {-ENOMEM, KVT_E_IO, ENOMEM},
        {0x281, KVT_E_IO, EIO},        /* unrecovered read error */
        {0x4281, KVT_E_IO, EIO},       /* ... do not retry */
        {0x280, KVT_E_IO, EIO},        /* write fault */
        {0x4080, KVT_E_IO, EIO},       /* LBA out of range */
        {0x4002, KVT_E_IO, EIO},       /* invalid field */
        {0x4081, KVT_E_SPACE, ENOSPC}, /* capacity exceeded */
        {0x020, KVT_E_READ_ONLY, EROFS},
        {0x6020, KVT_E_READ_ONLY, EROFS},
        {0x182, KVT_E_READ_ONLY, EROFS},
        {0x286, KVT_E_READ_ONLY, EACCES},
        {0x400B, KVT_E_GONE, ENODEV}, /* no such namespace any more */
        {0x084, KVT_E_GONE, ENODEV},
        {0x301, KVT_E_GONE, ENODEV},
        {0x370, KVT_E_GONE, ENODEV},
        {0x371, KVT_E_IO, EIO}, /* aborted, as by a reset: the next one may work */
        {0x7FF, KVT_E_IO, EIO},
        {INT32_MAX, KVT_E_IO, EIO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int os_error = -1;
        assert_int_equal(nvme_status_of_result(cases[i].result, &os_error), cases[i].status);
        assert_int_equal(os_error, cases[i].os_error);
    }
    /* Any result means something that an operation may end with. */
    for (int32_t result = -200; result < 0x8000; result++) {
        int os_error;
        kvt_status status = nvme_status_of_result(result, &os_error);
        assert_int_equal(status == KVT_OK, result == 0);
        assert_true(status == KVT_OK || status == KVT_E_IO || status == KVT_E_GONE ||
                    status == KVT_E_SPACE || status == KVT_E_READ_ONLY);
        assert_int_equal(os_error == 0, result == 0);
    }
}

TEST(refused)
{
    kvt_device_config config = {
        .struct_size = sizeof config, .name = "n0", .backend = "nvme", .path = "/dev/absent-ng"};
    scratch_refused(&config, KVT_E_GONE, "No such file");
    config.path = "/dev/null";
    scratch_refused(&config, KVT_E_ARGUMENT, "no character device of an NVMe namespace");
    config.path = "/dev";
    scratch_refused(&config, KVT_E_ARGUMENT, "no character device");
    config.path = NULL;
    scratch_refused(&config, KVT_E_ARGUMENT, "needs a path");
    config.path = "/dev/null";
    config.buffered = true;
    scratch_refused(&config, KVT_E_ARGUMENT, "only for file devices");
    config.buffered = false;
    config.depth = 5000;
    scratch_refused(&config, KVT_E_ARGUMENT, "depth");
    config.backend = "memory";
    config.path = NULL;
    config.depth = 0;
    config.capacity_bytes = 1 << 20;
    config.trim = true;
    scratch_refused(&config, KVT_E_ARGUMENT, "only for file and nvme");
}

/* A drive of 1 MiB and a half block with one mark at a time. */
TEST(signatures)
{
    enum { DRIVE = (1 << 20) + 512 };
    static const struct {
        long at; /* negative: from the end */
        const char *mark;
        size_t bytes;
        bool found;
    } cases[] = {
        {65536 + 64, "_BHRfS_M", 8, true},
        {65536 + 65, "_BHRfS_M", 8, false},
        {65536 + 52, "ReIsEr2Fs", 9, true},
        {32768, "JFS1", 4, true},
        {32769, "CD001", 5, true},
        {131072, "\x0c\xb1\xba\0", 4, true},
        {-512, "EFI PART", 8, true},
        {-1024, "EFI PART", 8, false},
        {(1 << 20) - 4096, "EFI PART", 8, true},
        {(1 << 20) - 65536, "\xfc\x4e\x2b\xa9", 4, true},
        {(1 << 20) - 8192, "\xfc\x4e\x2b\xa9", 4, true},
        {0, "kvt", 3, false},
    };
    char folder[64];
    char path[96];
    scratch_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/drive", folder);
    void *block = scratch_buffer(TIERS_SIGNATURE_BYTES);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        off_t at = cases[i].at < 0 ? DRIVE + cases[i].at : cases[i].at;
        assert_int_equal(ftruncate(fd, DRIVE), 0);
        assert_int_equal(pwrite(fd, cases[i].mark, cases[i].bytes, at), cases[i].bytes);
        assert_int_equal(ftruncate(fd, DRIVE), 0);
        close(fd);
        kvt_device_config config = {.struct_size = sizeof config,
                                    .name = "d0",
                                    .backend = "file",
                                    .path = path,
                                    .capacity_bytes = 65536,
                                    .buffered = true};
        kvt_device *device = scratch_open(&config);
        device->facts.align_bytes = 512;
        assert_int_equal(tiers_signature_found(device, file_run, DRIVE, block), cases[i].found);
        assert_false(tiers_signature_found(device, file_run, 8192, block));
        kvt_device_close(device);
    }
    scratch_remove(folder);
}
