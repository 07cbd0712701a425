/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_vault.h - the keys of an open encrypted device, and its units under them.
 *
 * Keys: a master key (given) -> a key for each life (HKDF by the device's id and a random salt of
 * 64 bits) -> one nonce for each unit that is written in this life: its count and its place. A life
 * begins with an open, a rotation, and 2^32 units. A life that was cut off, a device that is put
 * back as it was before, and one that was copied repeat no nonce: the next life has another key.
 *
 * Thread rule: as a device: one thread at a time.
 */
#ifndef TIERS_SEAL_VAULT_H
#define TIERS_SEAL_VAULT_H

#include "seal_header.h"

/* What lies beside a unit. All zeros: it was never written, and reads as zeros. */
typedef struct seal_entry {
    uint8_t tag[SEAL_TAG_BYTES];
    uint64_t salt;   /* of the life */
    uint32_t count;  /* of units written in it before */
    uint32_t number; /* of the master key */
} seal_entry;

_Static_assert(sizeof(seal_entry) * SEAL_BLOCK_UNITS == SEAL_UNIT_BYTES, "entries fill a block");

enum { SEAL_LIVES = 256 }; /* whose ciphers are kept */

typedef struct seal_life {
    seal_cipher *cipher;
    uint64_t salt;
    uint32_t number;
} seal_life;

typedef struct seal_vault {
    seal_header header;
    uint8_t keys[SEAL_KEYS_MAX][SEAL_KEY_BYTES]; /* of the header's rows */
    bool has[SEAL_KEYS_MAX];
    uint32_t current;            /* row of the key that new units are under */
    uint64_t salt;               /* of this life; */
    uint32_t count;              /* units written in it */
    seal_cipher *cipher;         /* its own; NULL: it has not begun */
    seal_life lives[SEAL_LIVES]; /* units are read by, at a place that salt and number give */
} seal_vault;

/* Finds the given keys in the header. With `adds` the first one, when the header lacks it, gets a
 * row, and *added_out says so: the header is to be written before a life begins. KVT_OK;
 * KVT_E_MISMATCH: units are under a key that is not among them, or none of them is the device's;
 * KVT_E_SPACE: the header has no row left; KVT_E_MEMORY. fault_out: a text for a person. On failure
 * the vault is as it was. */
KVT_NODISCARD kvt_status seal_vault_match(seal_vault *vault, const seal_keys *keys, bool adds,
                                          bool *added_out, const char **fault_out);

/* Begins another life under the current key. KVT_OK; KVT_E_MEMORY; KVT_E_IO: no chance was had. */
KVT_NODISCARD kvt_status seal_vault_begin(seal_vault *vault);

/* Encrypts a unit of 4 KiB for a place. KVT_OK; KVT_E_MEMORY, KVT_E_IO. */
KVT_NODISCARD kvt_status seal_vault_close_unit(seal_vault *vault, uint64_t unit, const void *plain,
                                               void *sealed, seal_entry *entry_out);

/* Decrypts a unit in place. KVT_OK; KVT_E_CORRUPT: it is not what was written to this place, and is
 * filled with SEAL_POISON; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status seal_vault_open_unit(seal_vault *vault, uint64_t unit, void *data,
                                              const seal_entry *entry);

/* Whether the entry is of no unit. */
bool seal_entry_is_zero(const seal_entry *entry);

/* Frees what the vault has and wipes the keys. */
void seal_vault_end(seal_vault *vault);

#endif
