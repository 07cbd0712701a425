/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_seal.c - encrypted devices: known answers, what lies on the drive, tags, places of
 * units, nonces over kills, keys that are wrong, and their change.
 */
#include "device_scratch.h"

#include "fault_device.h"
#include <errno.h>
#include <sys/stat.h>
#include <tiers/devices/device_internal.h>
#include <tiers/devices/superblock.h>
#include <tiers/seal/seal_device.h>
#include <tiers/seal/seal_internal.h>
#include <tiers/seal/seal_vault.h>

enum { DRIVE = 4 << 20, UNIT = 4096, SPAN = 512 << 10 };

static const char key_a[] = "00112233445566778899aabbccddeeff0123456789ABCDEF0123456789abcdef\n";
static const char key_b[] = "ff112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef\n";

static char folder[64], drive_path[96], key_path[96];

static void write_key(const char *first, const char *second)
{
    FILE *file = fopen(key_path, "we");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    fprintf(file, "# keys of the drives\n\n%s%s", first, second);
    fclose(file);
}

static int set_up(void **state)
{
    (void)state;
    scratch_make(folder, sizeof folder);
    snprintf(drive_path, sizeof drive_path, "%s/drive", folder);
    snprintf(key_path, sizeof key_path, "%s/key", folder);
    write_key(key_a, "");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

TEST_EACH(set_up, tear_down);

static kvt_device_config sealed(void)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = "d0",
                               .backend = "file",
                               .path = drive_path,
                               .capacity_bytes = DRIVE,
                               .key_file = key_path};
}

static kvt_device *open_sealed(void)
{
    const kvt_device_config config = sealed();
    return scratch_open(&config);
}

static void from_hex(const char *text, unsigned char *out)
{
    for (; text[0] != '\0'; text += 2, out++)
        assert_int_equal(sscanf(text, "%2hhx", out), 1);
}

/* AES-256-GCM: the first case of NIST's gcmEncryptExtIV256 with 128 bits of text, and cases 14 and
 * 15 of the submission of GCM to NIST. HKDF: cases 1 and 3 of RFC 5869, as far as a key goes. */
TEST(known_answers)
{
    static const struct {
        const char *key, *nonce, *plain, *sealed, *tag;
    } cases[] = {
        {"31bdadd96698c204aa9ce1448ea94ae1fb4a9a0b3c9d773b51bb1822666b8f22",
         "0d18e06c7c725ac9e362e1ce", "2db5168e932556f8089a0622981d017d",
         "fa4362189661d163fcd6a56d8bf0405a", "d636ac1bbedd5cc3ee727dc2ab4a9489"},
        {"0000000000000000000000000000000000000000000000000000000000000000",
         "000000000000000000000000", "00000000000000000000000000000000",
         "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"},
        {"feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
         "cafebabefacedbaddecaf888",
         "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
         "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
         "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
         "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
         "b094dac5d93471bdec1a502270e3cc6c"},
    };
    assert_true(seal_available());
    unsigned char key[32], nonce[12], plain[64], out[64], tag[16], want[64], want_tag[16];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t bytes = strlen(cases[i].plain) / 2;
        seal_cipher *cipher;
        from_hex(cases[i].key, key);
        from_hex(cases[i].nonce, nonce);
        from_hex(cases[i].plain, plain);
        from_hex(cases[i].sealed, want);
        from_hex(cases[i].tag, want_tag);
        assert_ok(seal_cipher_new(key, &cipher));
        assert_ok(seal_encrypt(cipher, nonce, plain, out, bytes, tag));
        assert_memory_equal(out, want, bytes);
        assert_memory_equal(tag, want_tag, 16);
        assert_ok(seal_decrypt(cipher, nonce, out, bytes, tag));
        assert_memory_equal(out, plain, bytes);
        tag[15] ^= 1;
        memcpy(out, want, bytes);
        assert_int_equal(seal_decrypt(cipher, nonce, out, bytes, tag), KVT_E_CORRUPT);
        for (size_t k = 0; k < bytes; k++)
            assert_int_equal(out[k], 0); /* nothing of it is left */
        seal_cipher_free(cipher);
    }

    unsigned char secret[22], salt[13], info[10], derived[32];
    memset(secret, 0x0b, sizeof secret);
    from_hex("000102030405060708090a0b0c", salt);
    from_hex("f0f1f2f3f4f5f6f7f8f9", info);
    assert_ok(seal_derive(secret, 22, salt, 13, info, 10, derived));
    from_hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf", want);
    assert_memory_equal(derived, want, 32);
    assert_ok(seal_derive(secret, 22, "", 0, "", 0, derived));
    from_hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d", want);
    assert_memory_equal(derived, want, 32);
}

/* All of the drive by its file, past the layer. */
static unsigned char *raw_read(void)
{
    unsigned char *raw = scratch_buffer(DRIVE);
    FILE *file = fopen(drive_path, "re");
    assert_non_null(file);
    assert_int_equal(fread(raw, 1, DRIVE, file), DRIVE);
    fclose(file);
    return raw;
}

static void raw_write(uint64_t offset, const void *bytes, size_t count)
{
    FILE *file = fopen(drive_path, "r+e");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

static uint64_t data_offset(const unsigned char *raw)
{
    uint64_t offset;
    assert_memory_equal(raw, "KVTSEALD", 8);
    memcpy(&offset, raw + 32, sizeof offset);
    return offset;
}

/* Reads give the bytes that were written, over opens, in parts; and the drive has none of it. */
TEST(units)
{
    enum { BYTES = 2 << 20, AT = 300 << 10 };
    unsigned char *plain = scratch_buffer(BYTES), *got = scratch_buffer(BYTES);
    scratch_fill(plain, BYTES, 7);
    kvt_device *device = open_sealed();
    assert_true((device->facts.flags & KVT_DEVICE_ENCRYPTED) != 0);
    assert_null(kvt_device_memory(device));
    assert_int_equal(kvt_device_address(device), 0);
    for (uint32_t at = 0; at < BYTES; at += 256 << 10)
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, AT + at, plain + at, 256 << 10));
    for (int open = 0; open < 2; open++) {
        for (uint32_t at = 0; at < BYTES; at += UNIT * 5) {
            const uint32_t part = BYTES - at < UNIT * 5 ? BYTES - at : UNIT * 5;
            assert_ok(kvt_device_transfer(device, KVT_IO_READ, AT + at, got, part));
            assert_memory_equal(got, plain + at, part);
        }
        /* Units that nobody wrote are zeros. */
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, AT + BYTES, got, UNIT));
        for (int i = 0; i < UNIT; i++)
            assert_int_equal(got[i], 0);
        assert_int_equal(tiers_seal_faults(device), 0);
        kvt_device_close(device);
        device = open_sealed();
    }
    kvt_device_close(device);
    unsigned char *raw = raw_read();
    for (uint32_t at = 0; at < BYTES; at += UNIT)
        assert_null(memmem(raw, DRIVE, plain + at, 16));
}

static void expect_poison(const unsigned char *got)
{
    for (int i = 0; i < UNIT; i++)
        assert_int_equal(got[i], SEAL_POISON);
}

/* A bit of any unit, of any field of its entry, and a unit that another one's place has: that unit
 * alone is poison, and is counted. */
TEST(damage)
{
    enum { UNITS = 8 };
    unsigned char *plain = scratch_buffer(UNITS * UNIT), *got = scratch_buffer(UNITS * UNIT);
    scratch_fill(plain, UNITS * UNIT, 9);
    kvt_device *device = open_sealed();
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, plain, UNITS * UNIT));
    kvt_device_close(device);
    unsigned char *raw = raw_read();
    const uint64_t at = data_offset(raw);
    for (int unit = 0; unit < UNITS; unit++) {
        for (int kind = 0; kind < 6; kind++) {
            static const uint64_t fields[] = {0, 15, 16, 24, 28};
            const uint64_t offset = kind == 0
                                        ? at + (uint64_t)unit * UNIT + 77
                                        : SEAL_BLOCKS_AT + (uint64_t)unit * 32 + fields[kind - 1];
            const unsigned char flipped = raw[offset] ^ 1;
            raw_write(offset, &flipped, 1);
            device = open_sealed();
            assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, got, UNITS * UNIT));
            assert_int_equal(tiers_seal_faults(device), 1);
            kvt_device_close(device);
            expect_poison(got + (size_t)unit * UNIT);
            memcpy(got + (size_t)unit * UNIT, plain + (size_t)unit * UNIT, UNIT);
            assert_memory_equal(got, plain, UNITS * UNIT);
            raw_write(offset, &raw[offset], 1);
        }
    }
    /* Two units change places, with their entries and without. */
    for (int entries = 0; entries < 2; entries++) {
        raw_write(at, raw + at + UNIT, UNIT);
        raw_write(at + UNIT, raw + at, UNIT);
        if (entries != 0) {
            raw_write(SEAL_BLOCKS_AT, raw + SEAL_BLOCKS_AT + 32, 32);
            raw_write(SEAL_BLOCKS_AT + 32, raw + SEAL_BLOCKS_AT, 32);
        }
        device = open_sealed();
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, got, UNITS * UNIT));
        assert_int_equal(tiers_seal_faults(device), 2);
        kvt_device_close(device);
        expect_poison(got);
        expect_poison(got + UNIT);
        assert_memory_equal(got + 2 * UNIT, plain + 2 * UNIT, (UNITS - 2) * UNIT);
    }
}

/* ---- nonces ---- */

enum { NONCES_MAX = 4096 };
static struct {
    unsigned char key[32];
    unsigned char nonce[12];
} nonces[NONCES_MAX];
static size_t nonce_count;
static struct {
    EVP_CIPHER_CTX *context;
    unsigned char key[32];
} contexts[512];
static __typeof__(&EVP_CipherInit_ex) real_init;

static int record_init(EVP_CIPHER_CTX *context, const EVP_CIPHER *type, ENGINE *engine,
                       const unsigned char *key, const unsigned char *nonce, int encrypts)
{
    size_t at = 0;
    while (at < 511 && contexts[at].context != context && contexts[at].context != NULL)
        at++;
    if (key != NULL) {
        contexts[at].context = context;
        memcpy(contexts[at].key, key, 32);
    }
    if (nonce != NULL && encrypts == 1) {
        assert_true(nonce_count < NONCES_MAX && contexts[at].context == context);
        memcpy(nonces[nonce_count].key, contexts[at].key, 32);
        memcpy(nonces[nonce_count++].nonce, nonce, 12);
    }
    return real_init(context, type, engine, key, nonce, encrypts);
}

static int compare_nonces(const void *a, const void *b)
{
    return memcmp(a, b, sizeof nonces[0]);
}

/* The same places are written again and again: in one life, over closes, over lives that a copy of
 * the drive and of its header undid, and under another key. No nonce comes twice under a key. */
TEST(nonces)
{
    enum { BYTES = 64 << 10 };
    unsigned char *plain = scratch_buffer(BYTES);
    scratch_fill(plain, BYTES, 1);
    assert_true(seal_available());
    real_init = seal_library.call_EVP_CipherInit_ex;
    seal_library.call_EVP_CipherInit_ex = record_init;
    nonce_count = 0;
    memset(contexts, 0, sizeof contexts);
    unsigned char *before = NULL;
    for (int life = 0; life < 12; life++) {
        if (life == 8) write_key(key_b, key_a);
        kvt_device *device = open_sealed();
        for (int again = 0; again < 4; again++)
            assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, plain, BYTES));
        kvt_device_close(device);
        if (life == 2) before = raw_read();
        if (life > 2 && life < 8) raw_write(0, before, DRIVE); /* as it was, nonces and all */
    }
    seal_library.call_EVP_CipherInit_ex = real_init;
    assert_int_equal(nonce_count, 12 * 4 * BYTES / UNIT);
    qsort(nonces, nonce_count, sizeof nonces[0], compare_nonces);
    for (size_t i = 1; i < nonce_count; i++)
        assert_true(compare_nonces(&nonces[i - 1], &nonces[i]) != 0);
}

/* ---- keys ---- */

TEST(bad_keys)
{
    unsigned char *plain = scratch_buffer(UNIT), *got = scratch_buffer(UNIT);
    scratch_fill(plain, UNIT, 3);
    kvt_device *device = open_sealed();
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, plain, UNIT));
    kvt_device_close(device);
    unsigned char *raw = raw_read();
    kvt_device_config config = sealed();
    const struct {
        const char *text, *words;
        kvt_status status;
    } bad[] = {
        {key_b, "wrong key", KVT_E_MISMATCH},
        {"0011\n", "line 3: it is not 64 hexadecimal digits", KVT_E_CONFIG},
        {"zz112233445566778899aabbccddeeff0123456789ABCDEF0123456789abcdef", "line 3",
         KVT_E_CONFIG},
        {"", "there is no key", KVT_E_CONFIG},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_key(bad[i].text, "");
        scratch_refused(&config, bad[i].status, bad[i].words);
    }
    write_key(key_a, key_a);
    scratch_refused(&config, KVT_E_CONFIG, "the key is there twice");
    write_key(key_a, "");
    assert_int_equal(chmod(key_path, 0640), 0);
    scratch_refused(&config, KVT_E_CONFIG, "may be read by others");
    assert_int_equal(unlink(key_path), 0);
    scratch_refused(&config, KVT_E_CONFIG, "cannot be read");
    config.key_file = NULL;
    scratch_refused(&config, KVT_E_MISMATCH, "is encrypted");
    char message[256];
    assert_int_equal(kvt_device_open_reader(&config, &device, message, sizeof message),
                     KVT_E_MISMATCH);
    config.key_command = "exit 3";
    scratch_refused(&config, KVT_E_CONFIG, "key_command exit 3 failed");
    config.key_command = "/no/such/command";
    scratch_refused(&config, KVT_E_CONFIG, "failed");
    config.key_command = "head -c 5000 /dev/zero";
    scratch_refused(&config, KVT_E_CONFIG, "4 KiB");
    config.key_file = key_path;
    scratch_refused(&config, KVT_E_ARGUMENT, "both set");
    config.key_file = NULL;
    /* Nothing was written by any of them, and the right key still reads. */
    unsigned char *now = raw_read();
    assert_memory_equal(raw, now, DRIVE);
    config.key_command =
        "echo 00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef; exit 0";
    device = scratch_open(&config);
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, got, UNIT));
    assert_memory_equal(got, plain, UNIT);
    kvt_device_close(device);
    config.backend = "null";
    config.path = NULL;
    scratch_refused(&config, KVT_E_ARGUMENT, "only for file, nvme and memory");
}

/* A store's label without encryption is refused, bytes of nobody's read as they are until the first
 * write, and too small a drive is refused. */
TEST(plain_drives)
{
    kvt_device_config config = sealed();
    config.key_file = NULL;
    kvt_device *device = scratch_open(&config);
    const tiers_superblock label = {.tier = 3, .epoch = 1, .capacity_bytes = DRIVE};
    assert_ok(tiers_superblock_write(device, &label));
    kvt_device_close(device);
    unsigned char *raw = raw_read();
    config.key_file = key_path;
    scratch_refused(&config, KVT_E_MISMATCH, "is not encrypted");
    unsigned char *now = raw_read();
    assert_memory_equal(raw, now, DRIVE);

    raw_write(0, "somebody's data", 15);
    device = open_sealed();
    tiers_superblock found;
    tiers_label_state is;
    assert_ok(tiers_superblock_read(device, &found, &is));
    assert_int_equal(is, TIERS_LABEL_FOREIGN);
    kvt_device_close(device);
    now = raw_read();
    assert_memory_equal(now, "somebody's data", 15);
    assert_memory_equal(now + 15, raw + 15, DRIVE - 15);

    assert_int_equal(unlink(drive_path), 0);
    device = open_sealed();
    assert_ok(tiers_superblock_read(device, &found, &is));
    assert_int_equal(is, TIERS_LABEL_BLANK);
    assert_ok(tiers_superblock_write(device, &label));
    kvt_device_close(device);
    device = open_sealed();
    assert_ok(tiers_superblock_read(device, &found, &is));
    assert_int_equal(is, TIERS_LABEL_SOUND);
    kvt_device_close(device);
    assert_int_equal(truncate(drive_path, DRIVE / 2), 0);
    config.capacity_bytes = 0;
    scratch_refused(&config, KVT_E_SPACE, "smaller than it was");
    assert_int_equal(unlink(drive_path), 0);
    config.capacity_bytes = 640 << 10;
    scratch_refused(&config, KVT_E_SPACE, "too small");
}

/* A new first line counts at the next sync, while old units are read under the old key; a file that
 * cannot be used changes nothing; rekey puts the rest under the new key, and the old one can go. */
TEST(rotation)
{
    enum { BYTES = 1 << 20 };
    unsigned char *plain = scratch_buffer(BYTES), *got = scratch_buffer(BYTES);
    scratch_fill(plain, BYTES, 5);
    kvt_device *device = open_sealed();
    for (uint32_t at = 0; at < BYTES; at += SPAN)
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, at, plain + at, SPAN));
    write_key("half of a", "");
    assert_ok(kvt_device_sync(device));
    write_key(key_b, ""); /* the old one is missing: not taken */
    assert_ok(kvt_device_sync(device));
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, plain, UNIT));
    unsigned char *raw = raw_read();
    assert_int_equal(raw[SEAL_BLOCKS_AT + 28], 1);
    write_key(key_b, key_a);
    assert_ok(kvt_device_sync(device));
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, plain, UNIT));
    raw = raw_read();
    assert_int_equal(raw[SEAL_BLOCKS_AT + 28], 2);
    assert_int_equal(raw[SEAL_BLOCKS_AT + 32 + 28], 1);
    kvt_device_close(device);

    const kvt_device_config config = sealed();
    write_key(key_b, "");
    scratch_refused(&config, KVT_E_MISMATCH, "is missing");
    write_key(key_b, key_a);
    device = open_sealed();
    tiers_rekeyed done;
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, got, SPAN));
    assert_ok(tiers_seal_rekey(device, NULL, NULL, &done));
    assert_int_equal(done.units, BYTES / UNIT - 1);
    assert_int_equal(done.bad, 0);
    for (int open = 0; open < 2; open++) {
        for (uint32_t at = 0; at < BYTES; at += SPAN) {
            assert_ok(kvt_device_transfer(device, KVT_IO_READ, at, got + at, SPAN));
        }
        assert_memory_equal(got, plain, BYTES);
        assert_int_equal(tiers_seal_faults(device), 0);
        kvt_device_close(device);
        write_key(key_b, "");
        device = open_sealed();
    }
    kvt_device_close(device);
    write_key(key_a, "");
    scratch_refused(&config, KVT_E_MISMATCH, "wrong key");
}

/* A reader beside the owner reads what the owner writes, without a block that is old, and after a
 * rotation knows the new key from the second read on. */
TEST(readers)
{
    unsigned char *plain = scratch_buffer(UNIT), *got = scratch_buffer(UNIT);
    const kvt_device_config config = sealed();
    char message[256];
    kvt_device *owner = open_sealed(), *reader = NULL;
    scratch_fill(plain, UNIT, 1);
    assert_ok(kvt_device_transfer(owner, KVT_IO_WRITE, 0, plain, UNIT));
    assert_ok(kvt_device_open_reader(&config, &reader, message, sizeof message));
    for (uint64_t again = 2; again < 5; again++) {
        assert_ok(kvt_device_transfer(reader, KVT_IO_READ, 0, got, UNIT));
        assert_memory_equal(got, plain, UNIT);
        scratch_fill(plain, UNIT, again);
        assert_ok(kvt_device_transfer(owner, KVT_IO_WRITE, 0, plain, UNIT));
    }
    assert_int_equal(tiers_seal_faults(reader), 0);
    write_key(key_b, key_a);
    assert_ok(kvt_device_sync(owner));
    assert_ok(kvt_device_transfer(owner, KVT_IO_WRITE, 0, plain, UNIT));
    assert_ok(kvt_device_transfer(reader, KVT_IO_READ, 0, got, UNIT));
    expect_poison(got);
    assert_ok(kvt_device_transfer(reader, KVT_IO_READ, 0, got, UNIT));
    assert_memory_equal(got, plain, UNIT);
    assert_int_equal(kvt_device_transfer(reader, KVT_IO_WRITE, 0, got, UNIT), KVT_E_IO);
    kvt_device_close(reader);
    kvt_device_close(owner);
}

/* The drive at each write of a rekey is kept, as a kill or a power cut would leave it: each of them
 * has every byte, and a second rekey ends what the first began. */
TEST(rekey_cut)
{
    enum { BYTES = 1 << 20 };
    unsigned char *plain = scratch_buffer(BYTES), *got = scratch_buffer(SPAN);
    scratch_fill(plain, BYTES, 6);
    uint64_t cuts = 0;
    bool ended = false;
    for (uint64_t skip = 0; !ended; skip++) {
        (void)unlink(drive_path);
        write_key(key_a, "");
        kvt_device *device = open_sealed();
        for (uint32_t at = 0; at < BYTES; at += SPAN)
            assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, at, plain + at, SPAN));
        kvt_device_close(device);
        write_key(key_b, key_a);
        const kvt_device_config config = sealed();
        kvt_device *inner = NULL, *faulty = NULL;
        assert_ok(tiers_file_ops.open(&config, &inner, (char[256]){0}, 256));
        assert_ok(tiers_fault_open(inner, &faulty));
        assert_ok(tiers_seal_wrap(faulty, &config, false, &device, (char[256]){0}, 256));
        const tiers_fault_rule rule = {.action = TIERS_FAULT_TEAR,
                                       .kinds = TIERS_FAULT_WRITES,
                                       .skip = skip,
                                       .torn_bytes = 8192,
                                       .status = KVT_E_IO,
                                       .os_error = EIO};
        assert_ok(tiers_fault_add(faulty, &rule));
        tiers_rekeyed done;
        ended = tiers_seal_rekey(device, NULL, NULL, &done) == KVT_OK;
        cuts += !ended;
        tiers_fault_clear(faulty);
        kvt_device_close(device);
        for (int rest = 0; rest < 2; rest++) {
            device = open_sealed();
            if (rest == 1) assert_ok(tiers_seal_rekey(device, NULL, NULL, &done));
            for (uint32_t at = 0; at < BYTES; at += SPAN) {
                assert_ok(kvt_device_transfer(device, KVT_IO_READ, at, got, SPAN));
                assert_memory_equal(got, plain + at, SPAN);
            }
            assert_int_equal(tiers_seal_faults(device), 0);
            kvt_device_close(device);
        }
        write_key(key_b, "");
        kvt_device_close(open_sealed());
    }
    assert_true(cuts >= 6);
}

/* ---- libcrypto that fails ---- */

static uint64_t calls_left;
static __typeof__(&EVP_CipherUpdate) real_update;
static __typeof__(&EVP_CIPHER_CTX_new) real_new;
static __typeof__(&HMAC) real_hmac;

static bool call_fails(void)
{
    return calls_left == 0 || --calls_left == 0;
}

static int failing_init(EVP_CIPHER_CTX *context, const EVP_CIPHER *type, ENGINE *engine,
                        const unsigned char *key, const unsigned char *nonce, int encrypts)
{
    return call_fails() ? 0 : real_init(context, type, engine, key, nonce, encrypts);
}

static int failing_update(EVP_CIPHER_CTX *context, unsigned char *to, int *bytes,
                          const unsigned char *from, int count)
{
    return call_fails() ? 0 : real_update(context, to, bytes, from, count);
}

static EVP_CIPHER_CTX *failing_new(void)
{
    return call_fails() ? NULL : real_new();
}

static unsigned char *failing_hmac(const EVP_MD *kind, const void *key, int key_bytes,
                                   const unsigned char *data, size_t bytes, unsigned char *out,
                                   unsigned int *out_bytes)
{
    return call_fails() ? NULL : real_hmac(kind, key, key_bytes, data, bytes, out, out_bytes);
}

/* From its nth call on libcrypto fails: an open is refused, a transfer fails, and what was written
 * before is there afterwards. Nothing reads wrong. */
TEST(library_fails)
{
    enum { BYTES = 32 << 10 };
    unsigned char *plain = scratch_buffer(BYTES), *got = scratch_buffer(BYTES);
    scratch_fill(plain, BYTES, 8);
    kvt_device *device = open_sealed();
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, plain, BYTES));
    kvt_device_close(device);
    const seal_calls whole = seal_library;
    real_init = whole.call_EVP_CipherInit_ex;
    real_update = whole.call_EVP_CipherUpdate;
    real_new = whole.call_EVP_CIPHER_CTX_new;
    real_hmac = whole.call_HMAC;
    const kvt_device_config config = sealed();
    bool ended = false;
    uint64_t failed = 0;
    for (uint64_t nth = 1; !ended; nth++) {
        calls_left = nth;
        seal_library.call_EVP_CipherInit_ex = failing_init;
        seal_library.call_EVP_CipherUpdate = failing_update;
        seal_library.call_EVP_CIPHER_CTX_new = failing_new;
        seal_library.call_HMAC = failing_hmac;
        kvt_status status = kvt_device_open(&config, &device, NULL, 0);
        if (status == KVT_OK) {
            status = kvt_device_transfer(device, KVT_IO_READ, 0, got, BYTES);
            if (status == KVT_OK) assert_memory_equal(got, plain, BYTES);
            if (status == KVT_OK)
                status = kvt_device_transfer(device, KVT_IO_WRITE, SPAN, plain, BYTES);
            assert_int_equal(tiers_seal_faults(device), 0);
            kvt_device_close(device);
        }
        seal_library = whole;
        ended = status == KVT_OK;
        failed += !ended;
        device = open_sealed();
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, got, BYTES));
        assert_memory_equal(got, plain, BYTES);
        kvt_device_close(device);
    }
    assert_true(failed > 20);
}
