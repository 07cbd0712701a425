/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_device.c - the layer that encrypts a device.
 *
 * A unit of 4 KiB is the least that is read or written, so no unit is read to write a part of it.
 * Its entry (tag, life, count, key) lies in a block with those of 127 neighbours:
 *
 *     read    block, unless it is in memory, and data at once -> decrypted where the data came
 *     write   encrypted into memory of the layer -> data and block at once; the operation ends when
 *             both are on the device, so what has ended survives the process
 *
 * A block that has more writes while it is written is written once more, for all of them. The
 * entries of units that nobody writes are the same in both, so a write that tears loses none.
 * A reader beside the owner (`reads`) keeps no block, as the owner changes them.
 *
 * Thread rule: as seal_device.h says. The stock of slots and memory is made at open.
 */
#include "seal_device.h"

#include "base/clock.h"
#include "base/file_mark.h"
#include "seal_device_internal.h"
#include "tiers/devices/device_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    SEAL_CACHED_MAX = 2048, /* blocks in memory: the entries of 1 GiB */
    SEAL_SLOTS = 64,
    SEAL_WRITES = 16, /* of them at most; each has memory of a request */
    SEAL_REQUEST_MAX = SEAL_BLOCK_SPAN,
    SEAL_PATIENCE_NS = 1000000,
    SEAL_REFRESH_NS = 1000000000
};

/* An operation of the inner device: a slot's or a block's. */
typedef enum seal_part_state { PART_REST, PART_WAITS, PART_INSIDE } seal_part_state;
typedef struct seal_part {
    kvt_io io;
    seal_part_state state;
} seal_part;

typedef enum seal_block_state {
    BLOCK_EMPTY,
    BLOCK_LOADS, /* its part reads it */
    BLOCK_READY, /* its part may write it */
    BLOCK_FAILED /* it could not be read or written; empty again when nobody pins it */
} seal_block_state;

/* The entries of 128 units, in the place of the cache that the number gives. */
typedef struct seal_block {
    seal_part part;
    uint64_t number;
    seal_block_state state;
    uint32_t pins;
    uint32_t rekeys;                  /* of the core when it was read */
    uint64_t version, flying, stored; /* changes made, being written, on the device */
    kvt_status fault;
    seal_entry *entries;
} seal_block;

typedef enum seal_slot_state { SLOT_FREE, SLOT_BUSY, SLOT_DONE } seal_slot_state;

/* An operation of the caller. */
typedef struct seal_slot {
    seal_part part; /* the data */
    kvt_io *outer;
    seal_slot_state state;
    seal_block *blocks[2];
    uint32_t block_count;
    bool put[2];       /* writes: its entries are in the block, */
    uint64_t wants[2]; /* and on the device when it has stored this version */
    bool outside;      /* of a device that was never written: no entries */
    struct seal_bounce *bounce;
    kvt_status status;
    int os_error;
} seal_slot;

/* Memory of a write. */
typedef struct seal_bounce {
    bool taken;
    unsigned char *memory;
    seal_entry entries[SEAL_REQUEST_MAX / SEAL_UNIT_BYTES];
} seal_bounce;

typedef struct seal_device {
    seal_core core;
    bool reads;
    char *key_file; /* looked at again with each sync; NULL: keys of a command */
    base_file_mark key_mark;
    const char *key_fault; /* why the file was not taken when it was looked at last; NULL: it was */
    uint64_t refreshed_ns; /* readers: when header and key file were read again last; 0: never */
    atomic_bool woken;
    uint32_t block_count; /* places of the cache */
    seal_block *blocks;
    void *memory;  /* of blocks and bounces */
    uint32_t busy; /* slots that are not free */
    seal_slot slots[SEAL_SLOTS];
    seal_bounce bounces[SEAL_WRITES];
} seal_device;

static kvt_device *seal_inner(const seal_device *seal)
{
    return seal->core.layer.inner;
}

/* ---- parts ---- */

/* Gives a part to the inner device; one that it has no room for waits for the next look. */
static void part_push(seal_device *seal, seal_part *part)
{
    part->state = PART_WAITS;
    part->io.user = part;
    const kvt_status status = kvt_device_submit(seal_inner(seal), &part->io);
    if (status != KVT_BUSY) part->state = status == KVT_QUEUED ? PART_INSIDE : PART_REST;
}

static void part_begin(seal_device *seal, seal_part *part, kvt_io_kind kind, uint64_t offset,
                       void *buffer, uint32_t bytes)
{
    assert(part->state == PART_REST);
    part->io = (kvt_io){.kind = kind, .bytes = bytes, .offset = offset, .buffer = buffer};
    part_push(seal, part);
}

/* ---- blocks ---- */

static uint64_t block_offset(const seal_block *block)
{
    return SEAL_BLOCKS_AT + block->number * SEAL_UNIT_BYTES;
}

/* Takes what has become of a block's part, and begins what follows. */
static void block_look(seal_device *seal, seal_block *block)
{
    if (block->part.state == PART_WAITS) part_push(seal, &block->part);
    while (block->part.state == PART_REST) {
        const kvt_status status = block->part.io.status;
        if (block->state == BLOCK_LOADS || block->flying != block->stored) {
            block->fault = status;
            block->state = status == KVT_OK ? BLOCK_READY : BLOCK_FAILED;
            if (status == KVT_OK) block->stored = block->flying;
        }
        if (block->state != BLOCK_READY || block->version == block->stored) return;
        block->flying = block->version;
        part_begin(seal, &block->part, KVT_IO_WRITE, block_offset(block), block->entries,
                   SEAL_UNIT_BYTES);
    }
}

/* Whether a slot may have a block now: its place has this one, or none that is in use. */
static bool block_is_open(const seal_device *seal, uint64_t number)
{
    const seal_block *block = &seal->blocks[number % seal->block_count];
    if (block->pins == 0) return true;
    return block->number == number && block->state != BLOCK_FAILED && !seal->reads;
}

static seal_block *block_pin(seal_device *seal, uint64_t number)
{
    seal_block *block = &seal->blocks[number % seal->block_count];
    if (block->pins == 0 && (block->number != number || block->state != BLOCK_READY ||
                             block->rekeys != seal->core.rekeys || seal->reads)) {
        assert(block->part.state == PART_REST && block->flying == block->stored);
        block->number = number;
        block->rekeys = seal->core.rekeys;
        block->version = block->flying = block->stored = 0;
        block->fault = KVT_OK;
        block->state = BLOCK_LOADS;
        part_begin(seal, &block->part, KVT_IO_READ, block_offset(block), block->entries,
                   SEAL_UNIT_BYTES);
    }
    block->pins++;
    return block;
}

/* A block that failed may be behind its entries: it is read again before its next use. */
static void block_unpin(seal_block *block)
{
    assert(block->pins > 0);
    if (--block->pins > 0) return;
    if (block->state == BLOCK_FAILED) {
        block->state = BLOCK_EMPTY;
        block->version = block->flying = block->stored = 0;
    }
}

static seal_entry *slot_entry(const seal_slot *slot, uint64_t unit)
{
    const seal_block *first = slot->blocks[0];
    const uint64_t number = unit / SEAL_BLOCK_UNITS;
    return &slot->blocks[number == first->number ? 0 : 1]->entries[unit % SEAL_BLOCK_UNITS];
}

/* ---- slots ---- */

static void seal_refresh(seal_device *seal);

/* Decrypts what has come. A damaged unit is counted and reads as poison, which fails the checksum
 * of whatever it is a part of, as other damage does. */
static void slot_open_units(seal_device *seal, seal_slot *slot)
{
    unsigned char *data = slot->outer->buffer;
    const uint64_t first = slot->outer->offset / SEAL_UNIT_BYTES;
    for (uint32_t i = 0; i < slot->outer->bytes / SEAL_UNIT_BYTES; i++, data += SEAL_UNIT_BYTES) {
        const kvt_status status =
            seal_vault_open_unit(&seal->core.vault, first + i, data, slot_entry(slot, first + i));
        if (status == KVT_E_CORRUPT) atomic_fetch_add(&seal->core.faults, 1);
        if (status == KVT_E_CORRUPT && seal->reads) seal_refresh(seal);
        if (status == KVT_OK || status == KVT_E_CORRUPT) continue;
        slot->status = KVT_E_IO;
        slot->os_error = ENOMEM;
    }
}

/* Reads of a device that was never written give what lies where labels do, and else zeros. */
static void slot_clear_outside(seal_slot *slot)
{
    const uint64_t kept =
        slot->outer->offset < SEAL_SLOTS_BYTES ? SEAL_SLOTS_BYTES - slot->outer->offset : 0;
    if (slot->outer->bytes > kept)
        memset((char *)slot->outer->buffer + kept, 0, slot->outer->bytes - kept);
}

/* Puts a write's entries into those of its blocks that are there. Returns whether all are on the
 * device. */
static bool slot_put_entries(seal_device *seal, seal_slot *slot)
{
    const uint64_t first = slot->outer->offset / SEAL_UNIT_BYTES;
    const uint32_t units = slot->outer->bytes / SEAL_UNIT_BYTES;
    bool stored = true;
    for (uint32_t b = 0; b < slot->block_count; b++) {
        seal_block *block = slot->blocks[b];
        if (block->state == BLOCK_READY && !slot->put[b]) {
            for (uint32_t i = 0; i < units; i++)
                if ((first + i) / SEAL_BLOCK_UNITS == block->number)
                    block->entries[(first + i) % SEAL_BLOCK_UNITS] = slot->bounce->entries[i];
            slot->put[b] = true;
            slot->wants[b] = ++block->version;
            block_look(seal, block);
        }
        if (block->state == BLOCK_FAILED) continue;
        stored = stored && slot->put[b] && block->stored >= slot->wants[b];
    }
    return stored;
}

/* Whether an operation has ended: its data and blocks are through. */
static bool slot_has_ended(seal_device *seal, seal_slot *slot)
{
    bool ended = true;
    if (slot->part.state == PART_WAITS) part_push(seal, &slot->part);
    for (uint32_t b = 0; b < slot->block_count; b++)
        block_look(seal, slot->blocks[b]);
    if (slot->outer->kind == KVT_IO_WRITE) ended = slot_put_entries(seal, slot);
    for (uint32_t b = 0; b < slot->block_count; b++)
        ended = ended && slot->blocks[b]->state != BLOCK_LOADS;
    return ended && slot->part.state == PART_REST;
}

/* Ends an operation that has: the first failure is its status. */
static void slot_end(seal_device *seal, seal_slot *slot)
{
    slot->status = slot->part.io.status;
    slot->os_error = slot->part.io.os_error;
    for (uint32_t b = 0; b < slot->block_count; b++) {
        const seal_block *block = slot->blocks[b];
        if (slot->status != KVT_OK || block->state != BLOCK_FAILED) continue;
        slot->status = block->fault;
        slot->os_error = block->part.io.os_error;
    }
    if (slot->status == KVT_OK && slot->outer->kind == KVT_IO_READ) {
        if (slot->outside)
            slot_clear_outside(slot);
        else
            slot_open_units(seal, slot);
    }
    for (uint32_t b = 0; b < slot->block_count; b++)
        block_unpin(slot->blocks[b]);
    if (slot->bounce != NULL) slot->bounce->taken = false;
    slot->bounce = NULL;
    slot->state = SLOT_DONE;
}

/* Hands a slot that is done to its owner. */
static kvt_io *slot_release(seal_device *seal, seal_slot *slot)
{
    assert(slot->state == SLOT_DONE && seal->busy > 0);
    tiers_io_finish(slot->outer, slot->status, slot->os_error, base_clock_ns());
    slot->state = SLOT_FREE;
    seal->busy--;
    return slot->outer;
}

/* Looks at every slot until nothing ends any more: a block that was written may end several. */
static void seal_settle(seal_device *seal)
{
    for (bool again = seal->busy > 0; again;) {
        again = false;
        for (uint32_t i = 0; i < SEAL_SLOTS; i++) {
            seal_slot *slot = &seal->slots[i];
            if (slot->state != SLOT_BUSY || !slot_has_ended(seal, slot)) continue;
            slot_end(seal, slot);
            again = true;
        }
    }
}

/* ---- keys ---- */

/* Makes the header of a device that gets its first write. */
static kvt_status seal_format(seal_device *seal)
{
    seal_vault *vault = &seal->core.vault;
    seal_header header = vault->header;
    uint8_t check[SEAL_CHECK_BYTES];
    if (getrandom(header.id, sizeof header.id, 0) != (ssize_t)sizeof header.id) return KVT_E_IO;
    kvt_status status = seal_header_check(&header, vault->keys[0], check);
    if (status != KVT_OK) return status;
    header.count = 1;
    header.rows[0].number = 1;
    memcpy(header.rows[0].check, check, sizeof check);
    status = seal_header_write(seal_inner(seal), &header);
    if (status != KVT_OK) return status;
    vault->header = header;
    vault->has[0] = true;
    vault->current = 0;
    seal->core.formatted = true;
    return KVT_OK;
}

/* Takes keys in, and a row for a new one. KVT_OK, or why not, with the vault as it was. */
static kvt_status seal_take_keys(seal_device *seal, const seal_keys *keys, const char **fault)
{
    seal_vault *vault = &seal->core.vault;
    bool added;
    *fault = "the header cannot be written";
    seal_vault *before = malloc(sizeof *before);
    if (before == NULL) return KVT_E_MEMORY;
    *before = *vault;
    const uint32_t number = vault->header.count > 0 ? vault->header.rows[vault->current].number : 0;
    kvt_status status = seal_vault_match(vault, keys, !seal->reads, &added, fault);
    if (status == KVT_OK && added) status = seal_header_write(seal_inner(seal), &vault->header);
    if (status != KVT_OK) {
        *vault = *before;
    } else if (vault->header.rows[vault->current].number != number) {
        seal_cipher_free(vault->cipher);
        vault->cipher = NULL; /* the next unit begins a life */
    }
    explicit_bzero(before, sizeof *before);
    free(before);
    return status;
}

/* Reads a key file that has changed, or is gone. Keys that cannot be used leave those before in
 * use. */
static void seal_renew(seal_device *seal)
{
    base_file_mark now;
    char message[256];
    const char *fault;
    seal_keys keys;
    if (seal->key_file == NULL || !seal->core.formatted || seal_inner(seal)->in_flight > 0) return;
    (void)base_file_look(seal->key_file, &now);
    if (memcmp(&now, &seal->key_mark, sizeof now) == 0) return;
    seal->key_mark = now;
    seal->key_fault = seal_keys_read(seal->key_file, NULL, &keys, message, sizeof message);
    if (seal->key_fault == NULL && seal_take_keys(seal, &keys, &fault) != KVT_OK)
        seal->key_fault = fault;
    explicit_bzero(&keys, sizeof keys);
}

/* A reader meets units under a key that its owner took later: header and key file are read again,
 * once a second at most, for the next read of them. */
static void seal_refresh(seal_device *seal)
{
    seal_vault *vault = &seal->core.vault;
    const seal_header before = vault->header;
    const uint64_t now_ns = base_clock_ns();
    seal_header_state state;
    seal_keys keys;
    const char *fault;
    char message[256];
    if (seal->key_file == NULL || !seal->core.formatted || seal_inner(seal)->in_flight > 0 ||
        (seal->refreshed_ns != 0 && now_ns - seal->refreshed_ns < SEAL_REFRESH_NS))
        return;
    seal->refreshed_ns = now_ns;
    const bool sound = seal_header_read(seal_inner(seal), &vault->header, &state) == KVT_OK &&
                       state == SEAL_HEADER_SOUND &&
                       memcmp(vault->header.id, before.id, sizeof before.id) == 0 &&
                       vault->header.data_offset == before.data_offset &&
                       vault->header.data_bytes == before.data_bytes;
    bool taken = false;
    if (sound && seal_keys_read(seal->key_file, NULL, &keys, message, sizeof message) == NULL)
        taken = seal_take_keys(seal, &keys, &fault) == KVT_OK;
    if (!taken) vault->header = before;
    explicit_bzero(&keys, sizeof keys);
}

/* ---- the device ---- */

/* Begins a read or write of slots and blocks that are there. */
static void seal_begin(seal_device *seal, seal_slot *slot, kvt_io *io)
{
    const uint64_t first = io->offset / SEAL_BLOCK_SPAN;
    slot->outer = io;
    slot->state = SLOT_BUSY;
    slot->outside = !seal->core.formatted;
    slot->block_count = 0;
    slot->put[0] = slot->put[1] = false;
    seal->busy++;
    tiers_io_begin(io, base_clock_ns());
    if (slot->outside) {
        assert(io->kind == KVT_IO_READ);
        slot->part.io = (kvt_io){.status = KVT_OK};
        if (io->offset < SEAL_SLOTS_BYTES)
            part_begin(seal, &slot->part, KVT_IO_READ, io->offset, io->buffer, io->bytes);
        return;
    }
    slot->block_count = (io->offset + io->bytes - 1) / SEAL_BLOCK_SPAN == first ? 1 : 2;
    for (uint32_t b = 0; b < slot->block_count; b++)
        slot->blocks[b] = block_pin(seal, first + b);
    part_begin(seal, &slot->part, io->kind, seal->core.vault.header.data_offset + io->offset,
               slot->bounce != NULL ? slot->bounce->memory : io->buffer, io->bytes);
}

/* Encrypts a write into memory of the layer. */
static kvt_status seal_close_units(seal_device *seal, const kvt_io *io, seal_bounce *bounce)
{
    const uint64_t first = io->offset / SEAL_UNIT_BYTES;
    for (uint32_t i = 0; i < io->bytes / SEAL_UNIT_BYTES; i++) {
        const size_t at = (size_t)i * SEAL_UNIT_BYTES;
        const kvt_status status =
            seal_vault_close_unit(&seal->core.vault, first + i, (const char *)io->buffer + at,
                                  bounce->memory + at, &bounce->entries[i]);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

static kvt_status seal_submit(kvt_device *device, kvt_io *io)
{
    seal_device *seal = (seal_device *)device;
    seal_slot *slot = NULL;
    seal_bounce *bounce = NULL;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; slot == NULL && i < SEAL_SLOTS; i++)
        if (seal->slots[i].state == SLOT_FREE) slot = &seal->slots[i];
    if (slot == NULL) return KVT_BUSY;
    const uint64_t first = io->offset / SEAL_BLOCK_SPAN;
    const uint64_t last = (io->offset + io->bytes - 1) / SEAL_BLOCK_SPAN;
    if (!block_is_open(seal, first) || !block_is_open(seal, last)) return KVT_BUSY;
    if (io->kind == KVT_IO_WRITE) {
        for (uint32_t i = 0; bounce == NULL && i < SEAL_WRITES; i++)
            if (!seal->bounces[i].taken) bounce = &seal->bounces[i];
        if (bounce == NULL) return KVT_BUSY;
        if (!seal->core.formatted) {
            if (seal_inner(seal)->in_flight > 0 || seal->busy > 0) return KVT_BUSY;
            status = seal_format(seal);
        }
        if (status == KVT_OK) status = seal_close_units(seal, io, bounce);
        if (status != KVT_OK) {
            tiers_io_begin(io, base_clock_ns());
            const bool memory = status == KVT_E_MEMORY;
            tiers_io_finish(io, memory ? KVT_E_IO : status, memory ? ENOMEM : EIO, base_clock_ns());
            return KVT_OK;
        }
        bounce->taken = true;
    }
    slot->bounce = bounce;
    seal_begin(seal, slot, io);
    if (slot_has_ended(seal, slot)) slot_end(seal, slot);
    if (slot->state != SLOT_DONE) return KVT_QUEUED;
    (void)slot_release(seal, slot);
    return KVT_OK;
}

/* Takes completions of the inner device, waiting for one up to timeout_ns. */
static size_t seal_land(seal_device *seal, uint64_t timeout_ns)
{
    kvt_io *done[32];
    const size_t count =
        kvt_device_reap(seal_inner(seal), done, timeout_ns != 0 ? 1 : 0, 32, timeout_ns);
    for (size_t i = 0; i < count; i++) {
        seal_part *part = done[i]->user;
        assert(part->state == PART_INSIDE && "the inner device had it");
        part->state = PART_REST;
    }
    return count;
}

static size_t seal_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                        uint64_t timeout_ns)
{
    seal_device *seal = (seal_device *)device;
    const uint64_t deadline_ns = tiers_device_deadline(base_clock_ns(), timeout_ns);
    size_t count = 0;
    for (uint64_t wait_ns = 0;;) {
        while (seal_land(seal, wait_ns) == 32)
            wait_ns = 0;
        seal_settle(seal);
        for (uint32_t i = 0; count < max && i < SEAL_SLOTS; i++)
            if (seal->slots[i].state == SLOT_DONE)
                done[count++] = slot_release(seal, &seal->slots[i]);
        const uint64_t now_ns = base_clock_ns();
        device->wakes = seal_inner(seal)->wakes;
        if (count >= min || now_ns >= deadline_ns || atomic_exchange(&seal->woken, false))
            return count;
        wait_ns = deadline_ns - now_ns;
        if (seal_inner(seal)->in_flight > 0) continue;
        base_sleep(wait_ns < SEAL_PATIENCE_NS ? wait_ns : SEAL_PATIENCE_NS); /* it says busy */
        wait_ns = 0;
    }
}

static void seal_wake(kvt_device *device)
{
    seal_device *seal = (seal_device *)device;
    atomic_store(&seal->woken, true);
    kvt_device_wake(seal_inner(seal));
}

static kvt_status seal_sync(kvt_device *device)
{
    seal_renew((seal_device *)device);
    return tiers_layer_sync(device);
}

static void seal_attach(kvt_device *device)
{
    tiers_layer_attach(device);
    device->wakes = ((seal_device *)device)->core.layer.inner->wakes;
}

static kvt_status seal_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    const seal_device *seal = (const seal_device *)device;
    if (!seal->core.formatted) return KVT_OK;
    return tiers_layer_trim(device, seal->core.vault.header.data_offset + offset, bytes);
}

/* Frees what the layer has; the inner device is not touched. */
static void seal_free(seal_device *seal)
{
    seal_vault_end(&seal->core.vault);
    free(seal->key_file);
    free(seal->blocks);
    free(seal->memory);
    free(seal);
}

static void seal_close(kvt_device *device)
{
    seal_device *seal = (seal_device *)device;
    assert(seal->busy == 0);
    kvt_device_close(seal_inner(seal));
    seal_free(seal);
}

/* ---- open ---- */

bool tiers_seal_is_asked(const kvt_device_config *config)
{
    return (config->key_file != NULL && config->key_file[0] != '\0') ||
           (config->key_command != NULL && config->key_command[0] != '\0');
}

kvt_status tiers_seal_refuse(kvt_device *inner, const kvt_device_config *config, char *message,
                             size_t message_size)
{
    seal_header header;
    seal_header_state state;
    const kvt_status status = seal_header_read(inner, &header, &state);
    const bool sealed = (status == KVT_OK && state == SEAL_HEADER_SOUND) || status == KVT_E_VERSION;
    if (!sealed) return KVT_OK; /* what fails here fails when the label is read */
    tiers_device_message(message, message_size, config,
                         "%s is encrypted, and the configuration has no key_file or key_command "
                         "for it",
                         config->path != NULL ? config->path : config->backend);
    return KVT_E_MISMATCH;
}

/* Sets the facts that the layer changes. */
static void seal_set_facts(seal_device *seal)
{
    kvt_device_facts *facts = &seal->core.layer.base.facts;
    facts->capacity_bytes = seal->core.vault.header.data_bytes;
    facts->align_bytes = SEAL_UNIT_BYTES;
    facts->request_bytes_max &= ~(SEAL_UNIT_BYTES - 1);
    if (facts->request_bytes_max > SEAL_REQUEST_MAX) facts->request_bytes_max = SEAL_REQUEST_MAX;
    if (facts->depth_max > SEAL_SLOTS) facts->depth_max = SEAL_SLOTS;
    facts->flags |= KVT_DEVICE_ENCRYPTED;
    facts->prepared_bytes = 0;
}

/* Makes the cache and the memory of writes; pages of either take room when they are used. */
static kvt_status seal_make_room(seal_device *seal)
{
    const uint64_t request = seal->core.layer.base.facts.request_bytes_max;
    const uint64_t blocks = (seal->core.vault.header.data_bytes - 1) / SEAL_BLOCK_SPAN + 1;
    seal->block_count = blocks < SEAL_CACHED_MAX ? (uint32_t)blocks : SEAL_CACHED_MAX;
    if (seal->block_count < 2) seal->block_count = 2;
    seal->blocks = calloc(seal->block_count, sizeof *seal->blocks);
    seal->memory = aligned_alloc(
        SEAL_UNIT_BYTES, (size_t)(seal->block_count * SEAL_UNIT_BYTES + SEAL_WRITES * request));
    if (seal->blocks == NULL || seal->memory == NULL) return KVT_E_MEMORY;
    unsigned char *at = seal->memory;
    for (uint32_t i = 0; i < seal->block_count; i++, at += SEAL_UNIT_BYTES)
        seal->blocks[i].entries = (seal_entry *)(void *)at;
    for (uint32_t i = 0; i < SEAL_WRITES; i++, at += request)
        seal->bounces[i].memory = at;
    return KVT_OK;
}

/* Finds out what the device is, and takes the keys. */
static kvt_status seal_recognise(seal_device *seal, const seal_keys *keys, const char **fault)
{
    seal_header *header = &seal->core.vault.header;
    const uint64_t capacity = seal_inner(seal)->facts.capacity_bytes;
    seal_header_state state;
    *fault = "its header cannot be read";
    kvt_status status = seal_header_read(seal_inner(seal), header, &state);
    if (status == KVT_E_VERSION) *fault = "it was encrypted by another version";
    if (status != KVT_OK) return status;
    if (state == SEAL_HEADER_PLAIN) {
        *fault = "it has a store's label and is not encrypted: drain and retire it, then begin "
                 "with an empty one";
        return KVT_E_MISMATCH;
    }
    if (state == SEAL_HEADER_NONE) {
        *fault = "its capacity is too small to be encrypted";
        memcpy(seal->core.vault.keys[0], keys->keys[0], SEAL_KEY_BYTES);
        return seal_header_plan(header, capacity) ? KVT_OK : KVT_E_SPACE;
    }
    *fault = "it is smaller than it was when it was encrypted";
    if (header->data_offset + header->data_bytes > capacity) return KVT_E_SPACE;
    status = seal_take_keys(seal, keys, fault);
    if (status != KVT_OK) return status;
    seal->core.formatted = true;
    *fault = "a change of its keys that was cut off cannot be ended";
    return seal->reads ? KVT_OK : seal_journal_replay(seal_inner(seal), header);
}

kvt_status tiers_seal_wrap(kvt_device *inner, const kvt_device_config *config, bool reads,
                           kvt_device **device_out, char *message, size_t message_size)
{
    char why[300] = "no memory for encryption";
    const char *fault = why;
    seal_keys keys = {.count = 0};
    kvt_status status = KVT_E_UNSUPPORTED;
    seal_device *seal = calloc(1, sizeof *seal);
    if (seal == NULL) {
        status = KVT_E_MEMORY;
        goto out;
    }
    tiers_layer_init(&seal->core.layer, &tiers_seal_ops, inner);
    seal->reads = reads || (inner->facts.flags & KVT_DEVICE_READ_ONLY) != 0;
    fault = "encryption needs libcrypto.so.3, and there is none here";
    if (!seal_available()) goto out;
    fault = "its blocks are too large for encryption";
    if (inner->facts.align_bytes > SEAL_UNIT_BYTES ||
        inner->facts.request_bytes_max < SEAL_UNIT_BYTES)
        goto out;
    fault = why;
    if (config->key_file != NULL && config->key_file[0] != '\0') {
        status = KVT_E_MEMORY;
        seal->key_file = strdup(config->key_file);
        if (seal->key_file == NULL) goto out;
        (void)base_file_look(seal->key_file, &seal->key_mark);
    }
    status = KVT_E_CONFIG;
    if (seal_keys_read(config->key_file, config->key_command, &keys, why, sizeof why) != NULL)
        goto out;
    status = seal_recognise(seal, &keys, &fault);
    if (status != KVT_OK) goto out;
    fault = "no memory for encryption";
    seal_set_facts(seal);
    status = seal_make_room(seal);
out:
    explicit_bzero(&keys, sizeof keys);
    if (status == KVT_OK) {
        *device_out = &seal->core.layer.base;
        return KVT_OK;
    }
    tiers_device_message(message, message_size, config, "%s%s%s",
                         config->path != NULL && fault != why ? config->path : "",
                         config->path != NULL && fault != why ? ": " : "", fault);
    if (seal != NULL) seal_free(seal);
    return status;
}

uint64_t tiers_seal_faults(const kvt_device *device)
{
    if (device->ops != &tiers_seal_ops) return 0;
    return atomic_load(&((const seal_core *)(const void *)device)->faults);
}

const char *tiers_seal_key_fault(const kvt_device *device)
{
    return device->ops == &tiers_seal_ops ? ((const seal_device *)(const void *)device)->key_fault
                                          : NULL;
}

const kvt_device_ops tiers_seal_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "aes",
    .close = seal_close,
    .submit = seal_submit,
    .flush = tiers_layer_flush,
    .reap = seal_reap,
    .sync = seal_sync,
    .attach = seal_attach,
    .detach = tiers_layer_detach,
    .register_buffers = tiers_layer_register_buffers,
    .trim = seal_trim,
    .wake = seal_wake,
};
