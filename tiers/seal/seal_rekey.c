/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_rekey.c - puts the units of an encrypted device under its current key, where they
 * are.
 *
 * A unit and its entry change together, in two places, so each block goes through the journal:
 *
 *     journal: head, block, data -> sync -> block and data in place -> sync -> the next block
 *
 * The head has a checksum over all three, so a journal that was cut off is none; one that is whole
 * goes to its place at the next open, where it may already be.
 *
 * Thread rule: as seal_device.h says.
 */
#include "seal_device.h"

#include "base/kill_point.h"
#include "seal_device_internal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define JOURNAL_MAGIC "KVTSEALJ"
#define JOURNAL_BYTES ((size_t)2 * SEAL_UNIT_BYTES + SEAL_BLOCK_SPAN)

/* Begins the journal's first page; zeros follow. The checksum covers all else of the journal. */
typedef struct journal_head {
    char magic[8];
    uint64_t block;
    uint64_t bytes; /* of data */
    uint8_t id[16]; /* the device's */
    uint64_t sum;
} journal_head;

/* A journal in memory: the head's page, the block's, the data. */
typedef struct seal_journal {
    unsigned char *memory;
    journal_head *head;
    seal_entry *entries;
    unsigned char *data;
} seal_journal;

static kvt_status journal_make(seal_journal *out)
{
    out->memory = aligned_alloc(SEAL_UNIT_BYTES, JOURNAL_BYTES);
    if (out->memory == NULL) return KVT_E_MEMORY;
    memset(out->memory, 0, JOURNAL_BYTES);
    out->head = (journal_head *)(void *)out->memory;
    out->entries = (seal_entry *)(void *)(out->memory + SEAL_UNIT_BYTES);
    out->data = out->memory + (size_t)2 * SEAL_UNIT_BYTES;
    return KVT_OK;
}

static uint64_t journal_sum(const seal_journal *journal)
{
    const uint64_t seed = XXH3_64bits(journal->head, offsetof(journal_head, sum));
    return XXH3_64bits_withSeed(journal->entries, SEAL_UNIT_BYTES + journal->head->bytes, seed);
}

/* Moves a range in requests that the device takes. */
static kvt_status journal_move(kvt_device *inner, kvt_io_kind kind, uint64_t offset,
                               unsigned char *memory, uint64_t bytes)
{
    const uint64_t most = inner->facts.request_bytes_max & ~(uint64_t)(SEAL_UNIT_BYTES - 1);
    for (uint64_t at = 0; at < bytes;) {
        const uint64_t part = bytes - at < most ? bytes - at : most;
        const kvt_status status =
            kvt_device_transfer(inner, kind, offset + at, memory + at, (uint32_t)part);
        if (status != KVT_OK) return status;
        at += part;
    }
    return KVT_OK;
}

/* Writes a journal's block and data to their place. */
static kvt_status journal_apply(kvt_device *inner, const seal_header *header, seal_journal *journal)
{
    const uint64_t block = journal->head->block;
    kvt_status status = journal_move(inner, KVT_IO_WRITE, SEAL_BLOCKS_AT + block * SEAL_UNIT_BYTES,
                                     (unsigned char *)journal->entries, SEAL_UNIT_BYTES);
    KILL_POINT("seal: block in place, data not");
    if (status == KVT_OK)
        status = journal_move(inner, KVT_IO_WRITE, header->data_offset + block * SEAL_BLOCK_SPAN,
                              journal->data, journal->head->bytes);
    return status == KVT_OK ? kvt_device_sync(inner) : status;
}

/* Bytes of data of a block. */
static uint64_t journal_span(const seal_header *header, uint64_t block)
{
    const uint64_t rest = header->data_bytes - block * SEAL_BLOCK_SPAN;
    return rest < SEAL_BLOCK_SPAN ? rest : SEAL_BLOCK_SPAN;
}

static kvt_status journal_clear(kvt_device *inner, seal_journal *journal)
{
    memset(journal->memory, 0, SEAL_UNIT_BYTES);
    kvt_status status =
        journal_move(inner, KVT_IO_WRITE, SEAL_JOURNAL_AT, journal->memory, SEAL_UNIT_BYTES);
    return status == KVT_OK ? kvt_device_sync(inner) : status;
}

/* The journal's head is read alone first: most opens find none. */
kvt_status seal_journal_replay(kvt_device *inner, const seal_header *header)
{
    seal_journal journal;
    kvt_status status = journal_make(&journal);
    if (status != KVT_OK) return status;
    const journal_head *head = journal.head;
    status = journal_move(inner, KVT_IO_READ, SEAL_JOURNAL_AT, journal.memory, SEAL_UNIT_BYTES);
    if (status == KVT_OK && memcmp(head->magic, JOURNAL_MAGIC, sizeof head->magic) == 0 &&
        memcmp(head->id, header->id, sizeof head->id) == 0 &&
        head->block <= (header->data_bytes - 1) / SEAL_BLOCK_SPAN &&
        head->bytes == journal_span(header, head->block)) {
        status = journal_move(inner, KVT_IO_READ, SEAL_JOURNAL_AT, journal.memory, JOURNAL_BYTES);
        if (status == KVT_OK && head->sum == journal_sum(&journal))
            status = journal_apply(inner, header, &journal);
        if (status == KVT_OK) status = journal_clear(inner, &journal);
    }
    free(journal.memory);
    return status;
}

/* Encrypts the units of a block anew that are under another key; a damaged one stays as it is.
 * Returns whether there was one. */
static kvt_status rekey_units(seal_vault *vault, seal_journal *journal, tiers_rekeyed *out,
                              bool *changed_out)
{
    const uint32_t number = vault->header.rows[vault->current].number;
    const uint64_t first = journal->head->block * SEAL_BLOCK_UNITS;
    unsigned char unit[SEAL_UNIT_BYTES];
    kvt_status status = KVT_OK;
    *changed_out = false;
    for (uint32_t i = 0; status == KVT_OK && i < journal->head->bytes / SEAL_UNIT_BYTES; i++) {
        unsigned char *data = journal->data + (size_t)i * SEAL_UNIT_BYTES;
        seal_entry *entry = &journal->entries[i];
        if (seal_entry_is_zero(entry) || entry->number == number) continue;
        memcpy(unit, data, sizeof unit);
        status = seal_vault_open_unit(vault, first + i, unit, entry);
        if (status == KVT_E_CORRUPT) {
            out->bad++;
            status = KVT_OK;
            continue;
        }
        if (status == KVT_OK) status = seal_vault_close_unit(vault, first + i, unit, data, entry);
        out->units++;
        *changed_out = true;
    }
    explicit_bzero(unit, sizeof unit);
    return status;
}

/* Whether a block has a unit under another key than the current one. */
static bool rekey_is_due(const seal_vault *vault, const seal_journal *journal)
{
    const uint32_t number = vault->header.rows[vault->current].number;
    for (uint32_t i = 0; i < journal->head->bytes / SEAL_UNIT_BYTES; i++)
        if (!seal_entry_is_zero(&journal->entries[i]) && journal->entries[i].number != number)
            return true;
    return false;
}

/* Carries one block through the journal. */
static kvt_status rekey_block(seal_core *core, uint64_t block, seal_journal *journal,
                              tiers_rekeyed *out)
{
    kvt_device *inner = core->layer.inner;
    const seal_header *header = &core->vault.header;
    bool changed;
    memset(journal->memory, 0, SEAL_UNIT_BYTES);
    memcpy(journal->head->magic, JOURNAL_MAGIC, sizeof journal->head->magic);
    memcpy(journal->head->id, header->id, sizeof header->id);
    journal->head->block = block;
    journal->head->bytes = journal_span(header, block);
    kvt_status status = journal_move(inner, KVT_IO_READ, SEAL_BLOCKS_AT + block * SEAL_UNIT_BYTES,
                                     (unsigned char *)journal->entries, SEAL_UNIT_BYTES);
    if (status != KVT_OK || !rekey_is_due(&core->vault, journal)) return status;
    status = journal_move(inner, KVT_IO_READ, header->data_offset + block * SEAL_BLOCK_SPAN,
                          journal->data, journal->head->bytes);
    if (status == KVT_OK) status = rekey_units(&core->vault, journal, out, &changed);
    if (status != KVT_OK || !changed) return status;
    journal->head->sum = journal_sum(journal);
    status = journal_move(inner, KVT_IO_WRITE, SEAL_JOURNAL_AT, journal->memory, JOURNAL_BYTES);
    KILL_POINT("seal: journal written, not synced");
    if (status == KVT_OK) status = kvt_device_sync(inner);
    return status == KVT_OK ? journal_apply(inner, header, journal) : status;
}

/* Forgets all keys but the current one, when no unit is under them. */
static kvt_status rekey_forget(seal_core *core)
{
    seal_vault *vault = &core->vault;
    seal_header header = vault->header;
    header.rows[0] = header.rows[vault->current];
    header.count = 1;
    const kvt_status status = seal_header_write(core->layer.inner, &header);
    if (status != KVT_OK) return status;
    memmove(vault->keys[0], vault->keys[vault->current], SEAL_KEY_BYTES);
    vault->header = header;
    vault->current = 0;
    for (uint32_t i = 1; i < SEAL_KEYS_MAX; i++) {
        explicit_bzero(vault->keys[i], SEAL_KEY_BYTES);
        vault->has[i] = false;
    }
    return KVT_OK;
}

kvt_status tiers_seal_rekey(kvt_device *device,
                            bool (*progress)(void *context, uint64_t done, uint64_t total),
                            void *context, tiers_rekeyed *out)
{
    seal_core *core = (seal_core *)(void *)device;
    seal_journal journal;
    *out = (tiers_rekeyed){.units = 0};
    if (device->ops != &tiers_seal_ops) return KVT_E_UNSUPPORTED;
    if (!core->formatted || core->vault.header.count == 1) return KVT_OK;
    const uint64_t total = core->vault.header.data_bytes;
    kvt_status status = journal_make(&journal);
    if (status != KVT_OK) return status;
    for (uint64_t at = 0; status == KVT_OK && at < total; at += SEAL_BLOCK_SPAN) {
        if (progress != NULL && !progress(context, at, total))
            status = KVT_E_CANCELLED;
        else
            status = rekey_block(core, at / SEAL_BLOCK_SPAN, &journal, out);
    }
    if (status == KVT_OK || status == KVT_E_CANCELLED) {
        const kvt_status cleared = journal_clear(core->layer.inner, &journal);
        if (cleared != KVT_OK) status = cleared;
    }
    core->rekeys++;
    free(journal.memory);
    return status == KVT_OK ? rekey_forget(core) : status;
}
