/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_vault.c - finds keys, begins lives, encrypts and decrypts units.
 *
 * Thread rule: as seal_vault.h says.
 */
#include "seal_vault.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

bool seal_entry_is_zero(const seal_entry *entry)
{
    static const seal_entry zero;
    return memcmp(entry, &zero, sizeof zero) == 0;
}

/* The row of a key number, or the count of rows. */
static uint32_t vault_row(const seal_vault *vault, uint32_t number)
{
    uint32_t row = 0;
    while (row < vault->header.count && vault->header.rows[row].number != number)
        row++;
    return row;
}

/* Gives the first key a row behind the others. KVT_OK; KVT_E_SPACE. */
static kvt_status vault_add(seal_header *header, const uint8_t check[SEAL_CHECK_BYTES])
{
    uint32_t number = 0;
    if (header->count == SEAL_KEYS_MAX) return KVT_E_SPACE;
    for (uint32_t i = 0; i < header->count; i++)
        if (header->rows[i].number > number) number = header->rows[i].number;
    if (number == UINT32_MAX) return KVT_E_SPACE;
    header->rows[header->count].number = number + 1;
    memcpy(header->rows[header->count++].check, check, SEAL_CHECK_BYTES);
    return KVT_OK;
}

kvt_status seal_vault_match(seal_vault *vault, const seal_keys *keys, bool adds, bool *added_out,
                            const char **fault_out)
{
    seal_header header = vault->header;
    uint8_t checks[SEAL_KEYS_MAX][SEAL_CHECK_BYTES];
    uint32_t source[SEAL_KEYS_MAX]; /* the key of a row, or the count of keys */
    uint32_t found = 0, first = SEAL_KEYS_MAX;
    *added_out = false;
    *fault_out = "no memory, or libcrypto fails";
    assert(keys->count > 0);
    for (uint32_t k = 0; k < keys->count; k++)
        if (seal_header_check(&header, keys->keys[k], checks[k]) != KVT_OK) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < header.count; i++) {
        uint32_t k = 0;
        while (k < keys->count && memcmp(checks[k], header.rows[i].check, SEAL_CHECK_BYTES) != 0)
            k++;
        source[i] = k;
        found += k < keys->count;
        if (k == 0) first = i;
    }
    *fault_out = found == 0 ? "it is the wrong key: the device was encrypted under another one"
                            : "a key that units of the device are under is missing: put it back "
                              "behind the new one, or run kvterrace rekey with both";
    if (found != header.count) return KVT_E_MISMATCH;
    if (first == SEAL_KEYS_MAX) {
        *fault_out = "the device has units under 16 keys: run kvterrace rekey first";
        if (!adds) {
            first = header.count - 1; /* a reader needs none of its own */
        } else {
            if (vault_add(&header, checks[0]) != KVT_OK) return KVT_E_SPACE;
            first = header.count - 1;
            source[first] = 0;
            *added_out = true;
        }
    }
    for (uint32_t i = 0; i < header.count; i++) {
        memcpy(vault->keys[i], keys->keys[source[i]], SEAL_KEY_BYTES);
        vault->has[i] = true;
    }
    vault->header = header;
    vault->current = first;
    *fault_out = NULL;
    return KVT_OK;
}

/* Makes the cipher of a life. */
static kvt_status vault_derive(const seal_vault *vault, uint32_t row, uint64_t salt,
                               seal_cipher **cipher_out)
{
    static const char text[] = "kvterrace unit 1";
    uint8_t key[SEAL_KEY_BYTES], info[sizeof text - 1 + sizeof salt];
    memcpy(info, text, sizeof text - 1);
    memcpy(info + sizeof text - 1, &salt, sizeof salt);
    *cipher_out = NULL;
    kvt_status status = seal_derive(vault->keys[row], SEAL_KEY_BYTES, vault->header.id,
                                    sizeof vault->header.id, info, sizeof info, key);
    if (status == KVT_OK) status = seal_cipher_new(key, cipher_out);
    explicit_bzero(key, sizeof key);
    return status;
}

kvt_status seal_vault_begin(seal_vault *vault)
{
    uint64_t salt = 0;
    seal_cipher *cipher;
    while (salt == 0)
        if (getrandom(&salt, sizeof salt, 0) != (ssize_t)sizeof salt) return KVT_E_IO;
    const kvt_status status = vault_derive(vault, vault->current, salt, &cipher);
    if (status != KVT_OK) return status;
    seal_cipher_free(vault->cipher);
    vault->cipher = cipher;
    vault->salt = salt;
    vault->count = 0;
    return KVT_OK;
}

/* The cipher of a unit that is there; NULL with *status_out. */
static seal_cipher *vault_find(seal_vault *vault, const seal_entry *entry, kvt_status *status_out)
{
    seal_life *life = &vault->lives[(entry->salt ^ entry->number) % SEAL_LIVES];
    *status_out = KVT_OK;
    if (life->cipher != NULL && life->salt == entry->salt && life->number == entry->number)
        return life->cipher;
    const uint32_t row = vault_row(vault, entry->number);
    *status_out = KVT_E_CORRUPT;
    if (row == vault->header.count || !vault->has[row]) return NULL;
    seal_cipher *cipher;
    *status_out = vault_derive(vault, row, entry->salt, &cipher);
    if (*status_out != KVT_OK) return NULL;
    seal_cipher_free(life->cipher);
    *life = (seal_life){.cipher = cipher, .salt = entry->salt, .number = entry->number};
    return cipher;
}

static void vault_nonce(uint8_t nonce[SEAL_NONCE_BYTES], uint32_t count, uint64_t unit)
{
    memcpy(nonce, &count, sizeof count);
    memcpy(nonce + sizeof count, &unit, sizeof unit);
}

/* The count rises before the unit is encrypted, so that one that fails has used its nonce. */
kvt_status seal_vault_close_unit(seal_vault *vault, uint64_t unit, const void *plain, void *sealed,
                                 seal_entry *entry_out)
{
    uint8_t nonce[SEAL_NONCE_BYTES];
    if (vault->cipher == NULL || vault->count == UINT32_MAX) {
        const kvt_status status = seal_vault_begin(vault);
        if (status != KVT_OK) return status;
    }
    *entry_out = (seal_entry){.salt = vault->salt,
                              .count = vault->count++,
                              .number = vault->header.rows[vault->current].number};
    vault_nonce(nonce, entry_out->count, unit);
    return seal_encrypt(vault->cipher, nonce, plain, sealed, SEAL_UNIT_BYTES, entry_out->tag);
}

kvt_status seal_vault_open_unit(seal_vault *vault, uint64_t unit, void *data,
                                const seal_entry *entry)
{
    uint8_t nonce[SEAL_NONCE_BYTES];
    kvt_status status = KVT_OK;
    if (seal_entry_is_zero(entry)) {
        memset(data, 0, SEAL_UNIT_BYTES);
        return KVT_OK;
    }
    seal_cipher *cipher = vault_find(vault, entry, &status);
    vault_nonce(nonce, entry->count, unit);
    if (cipher != NULL) status = seal_decrypt(cipher, nonce, data, SEAL_UNIT_BYTES, entry->tag);
    if (status != KVT_OK) memset(data, SEAL_POISON, SEAL_UNIT_BYTES);
    return status;
}

void seal_vault_end(seal_vault *vault)
{
    for (uint32_t i = 0; i < SEAL_LIVES; i++)
        seal_cipher_free(vault->lives[i].cipher);
    seal_cipher_free(vault->cipher);
    explicit_bzero(vault, sizeof *vault);
}
