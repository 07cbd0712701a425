/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_basis_coding.c - single records with a basis by the public calls: the bytes of record.h's
 * calls, the basis that a record names, and bases that are absent, others, or no bases. Single
 * thread.
 */
#include "basis_record_site.h"

#include "base/struct_size.h"

#include <kvterrace/coding.h>

#include <stdio.h>

/* A basis as a caller reads it. */
typedef struct public_basis {
    _Alignas(KVT_CODING_ALIGN) uint8_t memory[KVT_CODING_BASIS_BYTES];
    kvt_coding_basis_info info;
    const kvt_coding_basis *basis;
} public_basis;

static public_basis *public_basis_read(const basis_made *made)
{
    public_basis *read = test_aligned(KVT_CODING_ALIGN, sizeof *read);
    read->info = (kvt_coding_basis_info){.struct_size = sizeof read->info};
    assert_status(
        kvt_coding_basis_read(made->object, made->bytes, read->memory, &read->info, &read->basis),
        KVT_OK);
    return read;
}

static kvt_coding coding_of(const basis_record *r, const kvt_coding_basis *const *bases,
                            uint32_t count)
{
    return (kvt_coding){.struct_size = sizeof(kvt_coding),
                        .key = r->spec.key,
                        .generation = r->spec.generation,
                        .first_position = r->spec.first_position,
                        .layout = r->spec.layout,
                        .variant = r->spec.variant,
                        .bases = bases,
                        .basis_count = count};
}

/* The record, in memory of exactly the sizes that the plan says; *bytes_out of it. */
static guarded encode(const basis_record *r, const kvt_coding *coding, kvt_status wanted,
                      uint64_t *bytes_out)
{
    kvt_coding_sizes sizes = {.struct_size = sizeof sizes};
    assert_status(kvt_coding_plan(coding, &sizes), KVT_OK);
    assert_int_equal(sizes.source_bytes, r->source.bytes);
    guarded record = guarded_make(sizes.record_bytes), scratch = guarded_make(sizes.scratch_bytes);
    assert_status(kvt_coding_encode(coding, r->source.data, r->source.bytes, record.data,
                                    record.bytes, scratch.data, scratch.bytes, bytes_out),
                  wanted);
    guarded_check(&record, record.bytes);
    guarded_check(&scratch, scratch.bytes);
    return record;
}

static kvt_status decode(const kvt_decoding *decoding, const guarded *record, uint64_t bytes,
                         guarded *decoded)
{
    kvt_coding_info info = {.struct_size = sizeof info};
    assert_status(kvt_coding_verify(record->data, bytes, &info), KVT_OK);
    guarded scratch = guarded_make(info.scratch_bytes);
    memset(decoded->data, 0x5a, decoded->bytes);
    const kvt_status status = kvt_coding_decode(decoding, record->data, bytes, decoded->data,
                                                decoded->bytes, scratch.data, scratch.bytes);
    guarded_check(&scratch, scratch.bytes);
    guarded_check(decoded, decoded->bytes);
    return status;
}

TEST(records_are_those_of_the_store)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        basis_record r = basis_record_make(span, KVT_DTYPE_BF16, 300, 0, 32);
        basis_made stranger = basis_made_of(r.made.basis.shape, 78);
        assert_status(basis_made_write(&stranger), KVT_OK);
        public_basis *own = public_basis_read(&r.made), *other = public_basis_read(&stranger);
        const kvt_coding_basis *const both[] = {other->basis, own->basis};
        const kvt_coding coding = coding_of(&r, both, 2);
        kvt_coding_info info = {.struct_size = sizeof info};
        uint64_t bytes;
        guarded record = encode(&r, &coding, KVT_OK, &bytes);
        assert_int_equal(bytes, r.record.bytes);
        assert_memory_equal(record.data, r.record.data, bytes);
        assert_status(kvt_coding_inspect(record.data, bytes, &info), KVT_OK);
        assert_int_equal(info.basis_span, span);
        assert_memory_equal(info.basis, own->info.hash, sizeof info.basis);

        guarded decoded = guarded_make(r.decoded.bytes);
        kvt_decoding decoding = {.struct_size = sizeof decoding, .bases = both, .basis_count = 2};
        assert_status(decode(&decoding, &record, bytes, &decoded), KVT_OK);
        assert_memory_equal(decoded.data, r.decoded.data, decoded.bytes);
        decoding.key = &r.spec.key;
        assert_status(decode(&decoding, &record, bytes, &decoded), KVT_E_MISMATCH);
        decoding.generation = r.spec.generation;
        assert_status(decode(&decoding, &record, bytes, &decoded), KVT_OK);
        assert_memory_equal(decoded.data, r.decoded.data, decoded.bytes);
    }
}

TEST(a_basis_says_what_it_is_for)
{
    basis_record r = basis_record_make(TRANSFORM_SPAN_LAYER, KVT_DTYPE_FP16, 20, 0, 32);
    public_basis *own = public_basis_read(&r.made);
    const kvt_coding_basis_info *info = &own->info;
    assert_int_equal(info->span, KVT_BASIS_LAYER);
    assert_memory_equal(info->hash, r.made.basis.hash, sizeof info->hash);
    assert_int_equal(info->layers, 6);
    assert_int_equal(info->kv_heads, 2);
    assert_int_equal(info->head_dim, 16);
    assert_int_equal(info->rotary_dim, 16);
    assert_int_equal(info->sides, 2);
    assert_int_equal(info->tokens, 1000);
    assert_string_equal(info->model, "made");
    kvt_variant variant;
    char name[48];
    (void)snprintf(name, sizeof name, "transform:%02X%02X%X,s0.5", info->hash[0], info->hash[1],
                   info->hash[2] >> 4);
    assert_status(kvt_variant_parse(name, &variant), KVT_OK);
    assert_int_equal(variant.rate, r.spec.variant.rate);
}

TEST(a_coarser_record_is_made_with_the_basis)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        basis_record fine = basis_record_make(span, KVT_DTYPE_BF16, 290, 0, 21);
        basis_record coarse = basis_record_make(span, KVT_DTYPE_BF16, 290, 0, 63);
        public_basis *own = public_basis_read(&fine.made);
        const kvt_variant to = coarse.spec.variant;
        kvt_coding_info info = {.struct_size = sizeof info};
        kvt_decoding decoding = {.struct_size = sizeof decoding,
                                 .bases = &own->basis,
                                 .basis_count = 1,
                                 .key = &fine.spec.key,
                                 .generation = fine.spec.generation};
        uint64_t bytes;
        assert_status(kvt_coding_inspect(fine.record.data, fine.record.bytes, &info), KVT_OK);
        guarded made = guarded_make(fine.record.bytes), scratch = guarded_make(info.scratch_bytes);
        for (int keyed = 1; keyed >= 0; keyed--) {
            if (!keyed) decoding.key = NULL;
            assert_status(kvt_coding_derive(&decoding, fine.record.data, fine.record.bytes, to,
                                            made.data, made.bytes, scratch.data, scratch.bytes,
                                            &bytes),
                          KVT_OK);
            guarded_check(&made, made.bytes);
            guarded_check(&scratch, scratch.bytes);
            assert_int_equal(bytes, coarse.record.bytes);
            assert_memory_equal(made.data, coarse.record.data, bytes);
        }
        assert_status(kvt_coding_derive(NULL, fine.record.data, fine.record.bytes, to, made.data,
                                        made.bytes, scratch.data, scratch.bytes, &bytes),
                      KVT_E_MISMATCH);
        decoding.key = &fine.spec.key;
        decoding.generation = 8;
        assert_status(kvt_coding_derive(&decoding, fine.record.data, fine.record.bytes, to,
                                        made.data, made.bytes, scratch.data, scratch.bytes, &bytes),
                      KVT_E_MISMATCH);
        assert_int_equal(bytes, 0);
    }
}

TEST(a_basis_that_is_absent_is_a_mismatch)
{
    basis_record r = basis_record_make(TRANSFORM_SPAN_LAYERS4, KVT_DTYPE_FP32, 90, 0, 40);
    basis_made stranger = basis_made_of(r.made.basis.shape, 78);
    assert_status(basis_made_write(&stranger), KVT_OK);
    public_basis *other = public_basis_read(&stranger), *twin = public_basis_read(&r.made);
    guarded decoded = guarded_make(r.decoded.bytes);
    const kvt_coding_basis *const *lists[] = {NULL, &other->basis};
    for (uint32_t count = 0; count < 2; count++) {
        const kvt_coding coding = coding_of(&r, lists[count], count);
        const kvt_decoding decoding = {
            .struct_size = sizeof decoding, .bases = lists[count], .basis_count = count};
        uint64_t bytes;
        (void)encode(&r, &coding, KVT_E_MISMATCH, &bytes);
        assert_int_equal(bytes, 0);
        assert_status(decode(&decoding, &r.record, r.record.bytes, &decoded), KVT_E_MISMATCH);
    }
    assert_status(decode(NULL, &r.record, r.record.bytes, &decoded), KVT_E_MISMATCH);
    /* Of equal first digits, but another basis: a record is never decoded by it. */
    ((transform_basis *)(void *)twin->memory)->hash[31] ^= 1;
    const kvt_decoding decoding = {
        .struct_size = sizeof decoding, .bases = &twin->basis, .basis_count = 1};
    assert_status(decode(&decoding, &r.record, r.record.bytes, &decoded), KVT_E_MISMATCH);
}

TEST(wrong_bases_are_named)
{
    basis_record r = basis_record_make(TRANSFORM_SPAN_HEAD, KVT_DTYPE_BF16, 40, 0, 40);
    public_basis *own = public_basis_read(&r.made);
    const kvt_coding_basis *const none[] = {own->basis, NULL};
    guarded decoded = guarded_make(r.decoded.bytes);
    kvt_coding_sizes sizes = {.struct_size = sizeof sizes};
    kvt_coding coding = coding_of(&r, none, 2);
    kvt_decoding decoding = {.struct_size = sizeof decoding, .bases = none, .basis_count = 2};
    assert_status(kvt_coding_plan(&coding, &sizes), KVT_E_ARGUMENT);
    assert_status(decode(&decoding, &r.record, r.record.bytes, &decoded), KVT_E_ARGUMENT);
    coding.bases = NULL;
    decoding.bases = NULL;
    assert_status(kvt_coding_plan(&coding, &sizes), KVT_E_ARGUMENT);
    assert_status(decode(&decoding, &r.record, r.record.bytes, &decoded), KVT_E_ARGUMENT);
    coding = coding_of(&r, none, 1);
    coding.reserved = 1;
    assert_status(kvt_coding_plan(&coding, &sizes), KVT_E_ARGUMENT);
    decoding = (kvt_decoding){.struct_size = sizeof decoding, .reserved2 = 1};
    assert_status(decode(&decoding, &r.record, r.record.bytes, &decoded), KVT_E_ARGUMENT);
    coding = coding_of(&r, none, 1);
    coding.layout.layers = 5;
    assert_status(kvt_coding_plan(&coding, &sizes), KVT_E_UNSUPPORTED);
    /* Of no use to other codecs, which do not look at it. */
    coding = coding_of(&r, none, 1);
    assert_status(kvt_variant_parse("entropy:k0.5v0.5", &coding.variant), KVT_OK);
    assert_status(kvt_coding_plan(&coding, &sizes), KVT_OK);
}

TEST(objects_are_not_trusted)
{
    const transform_shape shape = {
        .layers = 2, .kv_heads = 1, .head_dim = 16, .rotary_dim = 16, .sides = 2, .span = 2};
    basis_made made = basis_made_of(shape, 3);
    assert_status(basis_made_write(&made), KVT_OK);
    static _Alignas(64) uint8_t memory[KVT_CODING_BASIS_BYTES];
    const kvt_coding_basis *basis = (const kvt_coding_basis *)(void *)memory;
    for (uint64_t bytes = 0; bytes < made.bytes; bytes += 1021) {
        assert_status(kvt_coding_basis_read(made.object, bytes, memory, NULL, &basis),
                      KVT_E_CORRUPT);
        assert_null(basis);
    }
    for (uint64_t at = 0; at < made.bytes; at += 509) {
        made.object[at] ^= 16;
        assert_true(kvt_coding_basis_read(made.object, made.bytes, memory, NULL, &basis) < 0);
        made.object[at] ^= 16;
    }
    kvt_coding_basis_info info = {.struct_size = 8};
    assert_status(kvt_coding_basis_read(made.object, made.bytes, memory, &info, &basis),
                  KVT_E_ARGUMENT);
    assert_status(kvt_coding_basis_read(NULL, made.bytes, memory, NULL, &basis), KVT_E_ARGUMENT);
    assert_status(kvt_coding_basis_read(made.object, made.bytes, NULL, NULL, &basis),
                  KVT_E_ARGUMENT);
    assert_status(kvt_coding_basis_read(made.object, made.bytes, memory + 8, NULL, &basis),
                  KVT_E_ARGUMENT);
    assert_status(kvt_coding_basis_read(made.object + 8, made.bytes, memory, NULL, &basis),
                  KVT_E_ARGUMENT);
    assert_status(kvt_coding_basis_read(made.object, made.bytes, memory, NULL, NULL),
                  KVT_E_ARGUMENT);
    assert_status(kvt_coding_basis_read(made.object, made.bytes, memory, NULL, &basis), KVT_OK);
    assert_non_null(basis);
}
