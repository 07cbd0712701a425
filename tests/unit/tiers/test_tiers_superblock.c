/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_superblock.c - labels survive torn writes and bad sectors, and foreign bytes, later
 * versions and blank devices are told apart.
 */
#include "device_scratch.h"

#include "fault_device.h"
#include <errno.h>
#include <tiers/devices/superblock.h>
#include <xxhash.h>

enum { SLOT = 4096, CAPACITY = 65536 };

static kvt_device *device;
static unsigned char *slot;

TEST_BEFORE_EACH
{
    kvt_device_config config = scratch_memory(CAPACITY);
    kvt_device *memory = scratch_open(&config);
    assert_ok(tiers_fault_open(memory, &device));
    slot = scratch_buffer(SLOT);
}

TEST_AFTER_EACH
{
    kvt_device_close(device);
}

static tiers_superblock label_of(uint64_t epoch)
{
    tiers_superblock label = {
        .tier = KVT_TIER_SSD, .member = 3, .epoch = epoch, .capacity_bytes = CAPACITY};
    for (unsigned i = 0; i < sizeof label.pool; i++)
        label.pool[i] = (uint8_t)(i * 7 + 1);
    return label;
}

static void write_label(uint64_t epoch)
{
    tiers_superblock label = label_of(epoch);
    assert_ok(tiers_superblock_write(device, &label));
}

static void expect_label(uint64_t epoch)
{
    tiers_superblock want = label_of(epoch);
    tiers_superblock got;
    tiers_label_state state;
    assert_ok(tiers_superblock_read(device, &got, &state));
    assert_int_equal(state, TIERS_LABEL_SOUND);
    assert_memory_equal(&got, &want, sizeof got);
}

static void expect_state(kvt_status status, tiers_label_state expected)
{
    tiers_superblock got;
    tiers_label_state state;
    assert_int_equal(tiers_superblock_read(device, &got, &state), status);
    assert_int_equal(state, expected);
    assert_int_equal(got.epoch, 0);
}

static void slot_move(kvt_io_kind kind, uint64_t index)
{
    assert_ok(kvt_device_transfer(device, kind, index * SLOT, slot, SLOT));
}

/* Changes one byte of a slot as it lies on the device. */
static void slot_damage(uint64_t index, size_t at)
{
    slot_move(KVT_IO_READ, index);
    slot[at] = (unsigned char)(slot[at] ^ 0x10);
    slot_move(KVT_IO_WRITE, index);
}

static void slot_seal(void)
{
    uint64_t checksum = XXH3_64bits(slot, 4088);
    for (int i = 0; i < 8; i++)
        slot[4088 + i] = (unsigned char)(checksum >> (8 * i));
}

TEST(blank)
{
    expect_state(KVT_OK, TIERS_LABEL_BLANK);
}

/* The documented layout, byte by byte. */
TEST(layout)
{
    static const unsigned char head[40] = {
        'K', 'V', 'T', 'L', 'A', 'B', 'E', 'L', 2,  0,  0,  0,   0, 0x10, 0, 0, 1, 8, 15, 22,
        29,  36,  43,  50,  57,  64,  71,  78,  85, 92, 99, 106, 3, 0,    0, 0, 3, 0, 0,  0};
    static const unsigned char tail[24] = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
                                           0,    0,    1,    0,    0,    0,    0,    0,
                                           1,    0,    0,    0,    0,    0,    0,    0};
    write_label(0x1122334455667788u);
    slot_move(KVT_IO_READ, 0);
    assert_memory_equal(slot, head, sizeof head);
    assert_memory_equal(slot + 40, tail, sizeof tail);
    for (size_t i = 64; i < 4088; i++)
        assert_int_equal(slot[i], 0);
    uint64_t checksum = XXH3_64bits(slot, 4088);
    assert_memory_equal(slot + 4088, &checksum, 8); /* tests run on little-endian machines */
}

TEST(epoch_order)
{
    for (uint64_t epoch = 1; epoch <= 9; epoch++) {
        write_label(epoch);
        expect_label(epoch);
        slot_move(KVT_IO_READ, (epoch - 1) % 2); /* in turn */
        assert_int_equal(slot[40], epoch);
        if (epoch == 1) continue;
        slot_move(KVT_IO_READ, epoch % 2); /* the older one is still there */
        assert_int_equal(slot[40], epoch - 1);
    }
}

/* A device that changes pools starts again at a low epoch: the last write counts. */
TEST(lower_epoch_wins_when_newer)
{
    write_label(57);
    write_label(58);
    write_label(1);
    expect_label(1);
    write_label(1);
    write_label(2);
    expect_label(2);
}

/* Whichever byte of the newer slot is bad, the older label is returned and then replaced. */
TEST(damaged_newer_slot)
{
    static const size_t places[] = {0, 8, 12, 16, 33, 40, 48, 56, 64, 2000, 4087, 4088, 4095};
    uint64_t epoch = 2;
    write_label(1);
    write_label(2);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        slot_damage((epoch - 1) % 2, places[i]);
        expect_label(epoch - 1);
        write_label(epoch); /* goes to the damaged slot */
        expect_label(epoch);
        write_label(++epoch);
    }
}

TEST(damaged_older_slot)
{
    write_label(1);
    write_label(2);
    slot_damage(0, 100);
    expect_label(2);
}

/* A write that tears at any length leaves the label before it, or is whole. */
TEST(torn_write)
{
    for (uint32_t torn = 0; torn < SLOT; torn += 64) {
        uint64_t epoch = torn / 64 + 2;
        write_label(epoch - 1);
        const tiers_fault_rule rule = {
            .action = TIERS_FAULT_TEAR, .kinds = TIERS_FAULT_WRITES, .hits = 1, .torn_bytes = torn};
        assert_ok(tiers_fault_add(device, &rule));
        write_label(epoch);
        tiers_fault_clear(device);
        expect_label(epoch - 1);
    }
}

TEST(both_damaged)
{
    write_label(1);
    write_label(2);
    slot_damage(0, 20);
    slot_damage(1, 20);
    expect_state(KVT_OK, TIERS_LABEL_FOREIGN);
}

TEST(foreign)
{
    memset(slot, 0, SLOT);
    slot[1080] = 0x53; /* one byte, as a file system's magic further in would be */
    slot_move(KVT_IO_WRITE, 1);
    expect_state(KVT_OK, TIERS_LABEL_FOREIGN);
    scratch_fill(slot, SLOT, 1);
    slot_move(KVT_IO_WRITE, 0);
    slot_move(KVT_IO_WRITE, 1);
    expect_state(KVT_OK, TIERS_LABEL_FOREIGN);
    write_label(4); /* whoever decides to take it can */
    expect_label(4);
}

TEST(another_version)
{
    tiers_superblock label = label_of(3);
    write_label(1);
    write_label(2);
    slot_move(KVT_IO_READ, 1);
    for (unsigned char version = 1; version <= 3; version += 2) {
        slot[8] = version;
        slot_seal();
        slot_move(KVT_IO_WRITE, 1);
        expect_state(KVT_E_VERSION, TIERS_LABEL_SOUND);
        assert_int_equal(tiers_superblock_write(device, &label), KVT_E_VERSION);
    }
    slot_damage(1, 3000); /* no longer sound: not another version, just damage */
    expect_label(1);
}

/* Sealed, but with values that no writer writes. */
TEST(impossible_values)
{
    static const size_t places[] = {12, 32, 40, 64, 72, 4087}; /* 9 empty ranges; none, but bytes */
    write_label(1);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        write_label(1); /* slot 1 */
        slot_move(KVT_IO_READ, 1);
        slot[places[i]] = places[i] == 40 ? 0 : 9;
        slot_seal();
        slot_move(KVT_IO_WRITE, 1);
        expect_label(1);
        slot_damage(0, 0);
        expect_state(KVT_OK, TIERS_LABEL_FOREIGN);
        slot_damage(0, 0); /* the same bit again: whole */
    }
}

/* As many ranges as there may be come back, and no more are taken. */
TEST(undone_ranges)
{
    tiers_superblock want = label_of(2), got;
    tiers_label_state found;
    for (uint32_t i = 0; i < TIERS_UNDONE_MAX; i++) {
        want.undone.ranges[i].after = UINT64_C(0x8877665500000000) + 10 * i;
        want.undone.ranges[i].before = want.undone.ranges[i].after + 1 + i;
    }
    want.undone.count = TIERS_UNDONE_MAX;
    write_label(1);
    assert_ok(tiers_superblock_write(device, &want));
    assert_ok(tiers_superblock_read(device, &got, &found));
    assert_int_equal(found, TIERS_LABEL_SOUND);
    assert_memory_equal(&got, &want, sizeof got);
    slot_move(KVT_IO_READ, 1);
    slot[64]++;
    slot_seal();
    slot_move(KVT_IO_WRITE, 1);
    expect_label(1);
}

TEST(bad_sector)
{
    write_label(1);
    write_label(2);
    tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                             .kinds = TIERS_FAULT_READS,
                             .offset = SLOT,
                             .bytes = SLOT,
                             .status = KVT_E_IO,
                             .os_error = EIO};
    assert_ok(tiers_fault_add(device, &rule));
    expect_label(1);
    write_label(3); /* to the slot that cannot be read */
    expect_label(1);
    rule.offset = 0;
    assert_ok(tiers_fault_add(device, &rule));
    expect_state(KVT_E_IO, TIERS_LABEL_FOREIGN);
    tiers_fault_clear(device);
    expect_label(3);
}

TEST(device_errors)
{
    tiers_superblock label = label_of(1);
    const tiers_fault_rule no_write = {
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_WRITES, .hits = 1, .status = KVT_E_IO};
    const tiers_fault_rule no_sync = {
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_SYNCS, .hits = 1, .status = KVT_E_IO};
    assert_ok(tiers_fault_add(device, &no_write));
    assert_int_equal(tiers_superblock_write(device, &label), KVT_E_IO);
    assert_ok(tiers_fault_add(device, &no_sync));
    assert_int_equal(tiers_superblock_write(device, &label), KVT_E_IO);
    tiers_fault_set_gone(device, true);
    expect_state(KVT_E_GONE, TIERS_LABEL_FOREIGN);
    assert_int_equal(tiers_superblock_write(device, &label), KVT_E_GONE);
}

static bool label_is_torn(uint64_t epoch)
{
    tiers_superblock label = label_of(epoch);
    bool torn = false;
    assert_ok(tiers_superblock_torn(device, &label, &torn));
    return torn;
}

/* A first label of which some sectors are missing is known for what it is, and nothing else is. */
TEST(torn_first)
{
    assert_true(label_is_torn(1));
    for (size_t lost = 0; lost < SLOT; lost += 512) {
        write_label(1);
        slot_move(KVT_IO_READ, 0);
        memset(slot + lost, 0, 512);
        slot_move(KVT_IO_WRITE, 0);
        assert_true(label_is_torn(1));
        if (lost == 0 || lost == SLOT - 512) assert_false(label_is_torn(2));
        memset(slot, 0, SLOT);
        slot_move(KVT_IO_WRITE, 0);
    }
    write_label(1);
    slot_damage(0, 700);
    assert_false(label_is_torn(1));
    slot_damage(0, 700);
    slot_damage(1, 9);
    assert_false(label_is_torn(1));
}
