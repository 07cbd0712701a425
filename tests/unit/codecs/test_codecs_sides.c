/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_sides.c - layouts of one side: sizes and places, what the record says of them, whole
 * and in part, and that K's settings alone apply. conform_codecs_all tries every codec on them.
 */
#include "codecs_support.h"

#include "codecs/record_format.h"
#include "codecs/record_note.h"

static const kvt_layout latent = {.layers = 3,
                                  .kv_heads = 1,
                                  .head_dim = 576,
                                  .dtype = KVT_DTYPE_BF16,
                                  .sides = 1,
                                  .tokens = 130};

/* Every codec, and what a side decides in it. */
static const char *const variants[] = {"raw",
                                       "lossless",
                                       "lossless:fast",
                                       "kivi:k4v2,g64,r64",
                                       "planes:k8v2,g64,vfirst",
                                       "planes:k3v6,g128,vhead",
                                       "entropy:k0.25v1,vchan",
                                       "drop:lagkv,50+planes:k4v8",
                                       "drop:knorm,25+lossless"};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

static kvt_layout latent_for(const char *variant)
{
    kvt_layout layout = latent;
    layout.tokens_may_drop = variant[0] == 'd';
    if (layout.tokens_may_drop) layout.tokens = 300; /* two partitions behind the sinks */
    return layout;
}

static record_header header_of(const encoded *e)
{
    record_header header;
    memcpy(&header, e->record.data, sizeof header);
    return header;
}

/* A layout's matrices are side K's of twice as many, and the two names of two sides are one. */
TEST(sizes_follow_the_sides)
{
    uint64_t bytes;
    kvt_layout layout = latent;
    const uint64_t matrix = UINT64_C(576) * 2 * 130;
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
    assert_int_equal(bytes, 3 * matrix);
    for (uint8_t order = 0; order < 2; order++) {
        layout.order = order;
        for (uint32_t layer = 0; layer < 3; layer++) {
            assert_int_equal(kvt_layout_matrix_offset(&layout, layer, KVT_SIDE_K), layer * matrix);
        }
    }
    for (uint8_t sides = 0; sides < 5; sides++) {
        layout.sides = sides;
        assert_status(kvt_layout_bytes(&layout, &bytes), sides < 4 ? KVT_OK : KVT_E_ARGUMENT);
        assert_int_equal(bytes, sides == 4 ? 0 : sides % 2 == 1 ? 3 * matrix : 6 * matrix);
    }
    layout = (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 64, .sides = 1};
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_E_ARGUMENT);
    layout = latent;
    layout.tokens =
        UINT32_MAX; /* 3 * 576 * 2 * 2^32 are below 2^46, twice as many layers are not */
    layout.layers = 14;
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
    layout.sides = 0;
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_E_ARGUMENT);
}

/* Two sides are written as they were before there was another number: 0 and 2 alike. */
TEST(records_of_two_sides_are_unchanged)
{
    for (uint32_t i = 0; i < VARIANTS; i++) {
        kvt_layout layout = latent_for(variants[i]);
        layout.sides = 0;
        encoded old = encoded_make(layout, variants[i], NULL);
        layout.sides = 2;
        encoded same = encoded_make(layout, variants[i], NULL);
        assert_int_equal(old.record.bytes, same.record.bytes);
        assert_memory_equal(old.record.data, same.record.data, old.record.bytes);
        assert_int_equal(header_of(&old).critical_flags & ~1u, 0);
    }
}

/* A library that knows one critical flag refuses these records as of a later version. */
TEST(records_say_so)
{
    for (uint32_t i = 0; i < VARIANTS; i++) {
        kvt_record_info info;
        encoded e = encoded_make(latent_for(variants[i]), variants[i], NULL);
        const record_header header = header_of(&e);
        assert_int_equal(header.critical_flags & ~1u, 2);
        assert_int_equal(header.reserved[0] | header.reserved[1] | header.reserved[2], 0);
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
        assert_memory_equal(&info.spec.layout, &e.spec.layout, sizeof info.spec.layout);
        /* Without the flag the table is another layout's. */
        record_header wrong = header;
        wrong.critical_flags &= 1u;
        memcpy(e.record.data, &wrong, sizeof wrong);
        record_seal_slot(e.record.data);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_E_CORRUPT);
        wrong.critical_flags = header.critical_flags | 32u;
        memcpy(e.record.data, &wrong, sizeof wrong);
        record_seal_slot(e.record.data);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_E_VERSION);
    }
}

/* V alone has a flag besides, which says nothing where there are two sides. */
TEST(records_of_v_say_so)
{
    for (uint32_t i = 0; i < VARIANTS; i++) {
        kvt_record_info info;
        kvt_layout layout = latent_for(variants[i]);
        if (layout.tokens_may_drop) continue;
        layout.sides = KVT_SIDES_V;
        encoded e = encoded_make(layout, variants[i], NULL);
        record_header header = header_of(&e);
        assert_int_equal(header.critical_flags & ~1u, 18);
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
        assert_memory_equal(&info.spec.layout, &layout, sizeof layout);
        header.critical_flags &= ~2u;
        memcpy(e.record.data, &header, sizeof header);
        record_seal_slot(e.record.data);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_E_CORRUPT);
    }
}

/* Of an opaque entry there are no sides to count. */
TEST(opaque_records_have_no_sides)
{
    kvt_record_info info;
    const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 5000};
    const uint8_t bytes[5000] = {1};
    encoded e = encoded_make(layout, "raw", bytes);
    record_header header = header_of(&e);
    header.critical_flags = 2;
    memcpy(e.record.data, &header, sizeof header);
    record_seal_slot(e.record.data);
    assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_E_CORRUPT);
}

/* Notes, matrices alone, and there is no V. */
TEST(parts_of_records_are_read)
{
    for (uint32_t i = 0; i < VARIANTS; i++) {
        kvt_record_info info;
        uint8_t note[48] = {7};
        encoded e = encoded_make(latent_for(variants[i]), variants[i], NULL);
        assert_status(record_note_set(e.record.data, note, sizeof note), KVT_OK);
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
        guarded whole = guarded_make(info.decoded_bytes);
        assert_status(kvt_record_decode(e.record.data, e.record.bytes, &e.spec, whole.data,
                                        whole.bytes, e.scratch.data, e.scratch.bytes),
                      KVT_OK);
        guarded one = guarded_make(info.decoded_bytes / 3);
        for (uint32_t layer = 0; layer < 3; layer++) {
            assert_status(kvt_record_decode_matrix(e.record.data, e.record.bytes, NULL, layer,
                                                   KVT_SIDE_K, one.data, one.bytes, e.scratch.data,
                                                   e.scratch.bytes),
                          KVT_OK);
            assert_memory_equal(one.data, whole.data + layer * one.bytes, one.bytes);
            assert_status(kvt_record_decode_matrix(e.record.data, e.record.bytes, NULL, layer,
                                                   KVT_SIDE_V, one.data, one.bytes, e.scratch.data,
                                                   e.scratch.bytes),
                          KVT_E_ARGUMENT);
        }
        guarded_check(&one, one.bytes);
    }
}

/* A layer's one matrix is coded as K of two sides is, whatever is asked for V. */
TEST(settings_of_k_apply)
{
    for (uint32_t i = 0; i < VARIANTS; i++) {
        kvt_layout both = latent_for(variants[i]);
        if (strstr(variants[i], "lagkv") != NULL) continue; /* chooses tokens by V as well */
        encoded one = encoded_make(both, variants[i], NULL);
        const uint64_t matrix = kvt_layout_matrix_bytes(&both);
        both.sides = 0;
        uint8_t *source = test_alloc(6 * matrix);
        for (uint32_t layer = 0; layer < 3; layer++) {
            memcpy(source + 2 * layer * matrix, one.source.data + layer * matrix, matrix);
            memset(source + (2 * layer + 1) * matrix, 0, matrix);
        }
        encoded two = encoded_make(both, variants[i], source);
        kvt_record_info info;
        assert_status(kvt_record_parse(one.record.data, one.record.bytes, &info), KVT_OK);
        const uint64_t kept = info.decoded_bytes / 3;
        guarded k = guarded_make(kept), alone = guarded_make(kept);
        for (uint32_t layer = 0; layer < 3; layer++) {
            assert_status(kvt_record_decode_matrix(one.record.data, one.record.bytes, NULL, layer,
                                                   KVT_SIDE_K, alone.data, kept, one.scratch.data,
                                                   one.scratch.bytes),
                          KVT_OK);
            assert_status(kvt_record_decode_matrix(two.record.data, two.record.bytes, NULL, layer,
                                                   KVT_SIDE_K, k.data, kept, two.scratch.data,
                                                   two.scratch.bytes),
                          KVT_OK);
            assert_memory_equal(k.data, alone.data, kept);
        }
    }
}

/* V alone is coded as V of two sides is, whatever is asked for K. */
TEST(settings_of_v_apply)
{
    for (uint32_t i = 0; i < VARIANTS; i++) {
        kvt_layout both = latent_for(variants[i]);
        if (both.tokens_may_drop) continue;
        both.sides = KVT_SIDES_V;
        encoded one = encoded_make(both, variants[i], NULL);
        const uint64_t matrix = kvt_layout_matrix_bytes(&both);
        both.sides = 0;
        uint8_t *source = test_zeros(6 * matrix);
        for (uint32_t layer = 0; layer < 3; layer++)
            memcpy(source + (2 * layer + 1) * matrix, one.source.data + layer * matrix, matrix);
        encoded two = encoded_make(both, variants[i], source);
        assert_status(encoded_decode(&one), KVT_OK);
        assert_status(encoded_decode(&two), KVT_OK);
        for (uint32_t layer = 0; layer < 3; layer++)
            assert_memory_equal(one.decoded.data + layer * matrix,
                                two.decoded.data + (2 * layer + 1) * matrix, matrix);
    }
}

/* No tokens of V alone are dropped: they are chosen by K. */
TEST(v_alone_keeps_its_tokens)
{
    uint64_t bound, scratch;
    for (uint32_t i = 0; i < VARIANTS; i++) {
        kvt_record_spec spec = codecs_support_spec(latent_for(variants[i]), variants[i]);
        spec.layout.sides = KVT_SIDES_V;
        assert_status(kvt_record_bound(&spec, &bound, &scratch),
                      spec.layout.tokens_may_drop ? KVT_E_UNSUPPORTED : KVT_OK);
    }
}

/* Planes are dropped, and steps made coarser, to what encoding gives. */
TEST(coarser_records_are_made)
{
    static const char *const pairs[][2] = {{"planes:k8v8,g64", "planes:k3v2,g64"},
                                           {"planes:k6v4,g64,vfirst", "planes:k2v4,g64,vfirst"},
                                           {"entropy:k0.25v0.5", "entropy:k0.75v1.5"}};
    for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        kvt_record_info info;
        encoded fine = encoded_make(latent, pairs[i][0], NULL);
        encoded coarse = encoded_make(latent, pairs[i][1], NULL);
        guarded wanted = guarded_make(fine.decoded.bytes), made = guarded_make(fine.record.bytes);
        assert_status(encoded_decode(&coarse), KVT_OK);
        if (i < 2) {
            kvt_record_drop drop;
            assert_status(kvt_record_drop_planes(fine.record.data, fine.record.bytes,
                                                 coarse.spec.variant, &drop),
                          KVT_OK);
            assert_int_equal(drop.record_bytes, coarse.record.bytes);
            /* K's last planes lie last: nothing moves. */
            assert_int_equal(drop.moved_from, drop.record_bytes);
            memcpy(made.data, fine.record.data, drop.record_bytes);
        } else {
            uint64_t bytes;
            assert_status(kvt_record_derive(fine.record.data, fine.record.bytes, NULL,
                                            coarse.spec.variant, made.data, made.bytes,
                                            fine.scratch.data, fine.scratch.bytes, &bytes),
                          KVT_OK);
        }
        assert_status(kvt_record_verify(made.data, made.bytes, &info), KVT_OK);
        assert_int_equal(info.spec.layout.sides, 1);
        assert_status(kvt_record_decode(made.data, made.bytes, &fine.spec, wanted.data,
                                        wanted.bytes, fine.scratch.data, fine.scratch.bytes),
                      KVT_OK);
        if (i < 2) assert_memory_equal(wanted.data, coarse.decoded.data, wanted.bytes);
    }
}

/* Into a paged pool whose layers have addresses of their own; a view of other sides is refused. */
TEST(views_have_one_side)
{
    enum { BLOCK = 16, BLOCKS = 12 };
    static const uint32_t table[] = {7, 2, 11, 0, 4, 9, 1, 10, 3};
    kvt_layout other = latent;
    other.sides = 0;
    for (uint32_t i = 0; i < 7; i++) { /* all that keep tokens */
        encoded e = encoded_make(latent, variants[i], NULL);
        const uint64_t row = UINT64_C(576) * 2;
        guarded pools[3];
        void *bases[3];
        kvt_view view;
        assert_status(encoded_decode(&e), KVT_OK);
        assert_status(kvt_view_make(&latent, "bth", BLOCK, BLOCKS, &view), KVT_OK);
        assert_int_equal(view.bases_kind, KVT_BASES_LAYERS);
        for (uint32_t layer = 0; layer < 3; layer++) {
            pools[layer] = guarded_make(row * BLOCK * BLOCKS);
            bases[layer] = pools[layer].data;
        }
        view.bases = bases;
        view.blocks = table;
        view.block_count = sizeof table / sizeof table[0];
        view.first_slot = 5;
        assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, &e.spec, NULL, &latent,
                                             &view, 0, 0, e.scratch.data, e.scratch.bytes),
                      KVT_OK);
        for (uint32_t layer = 0; layer < 3; layer++) {
            for (uint32_t token = 0; token < latent.tokens; token++) {
                const uint32_t slot = 5 + token;
                const uint64_t at = table[slot / BLOCK] * BLOCK + slot % BLOCK;
                assert_memory_equal(pools[layer].data + at * row,
                                    e.decoded.data + (layer * latent.tokens + token) * row, row);
            }
        }
        assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, &e.spec, NULL, &other,
                                             &view, 0, 0, e.scratch.data, e.scratch.bytes),
                      KVT_E_SPACE);
        kvt_layout values = latent;
        values.sides = KVT_SIDES_V;
        assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, &e.spec, NULL, &values,
                                             &view, 0, 0, e.scratch.data, e.scratch.bytes),
                      KVT_E_SPACE);
    }
}

/* Levels and counts have places for both sides, of which one is read. */
static void extras_of_one_side(uint8_t sides)
{
    kvt_layout layout = latent;
    layout.sides = sides;
    const bool v = sides == KVT_SIDES_V;
    static uint32_t counts[2][KVT_ENTROPY_SYMBOLS];
    const int8_t of_k[2][6] = {{-1, 0, 1, 0, 0, 0}, {-1, 100, 1, -100, 0, 3}};
    const int8_t of_v[2][6] = {{0, -1, 0, 1, 0, 0}, {100, -1, -100, 1, 3, 0}};
    const int8_t(*levels)[6] = v ? of_v : of_k;
    memset(counts, 0, sizeof counts);
    for (uint32_t i = 0; i < KVT_ENTROPY_SYMBOLS; i++) {
        counts[v][i] = i;
    }
    for (uint32_t i = 0; i < 2; i++) {
        guarded records[2];
        for (uint32_t k = 0; k < 2; k++) {
            encoded e = encoded_make(layout, i == 0 ? "planes:k4v4,g64" : "entropy", NULL);
            kvt_codec_extras extras = {.struct_size = sizeof extras, .sink_tokens = 1030};
            uint64_t bound, scratch, written;
            if (i == 0) extras.levels = levels[k];
            if (i == 1) extras.symbol_counts = counts[0];
            if (i == 1) extras.count_layers = 1;
            counts[!v][0] = k; /* the other's: none is no reason to refuse */
            assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
            records[k] = guarded_make(bound);
            assert_status(kvt_record_encode_with(&e.spec, &extras, e.source.data, e.source.bytes,
                                                 records[k].data, bound, e.scratch.data, scratch,
                                                 &written),
                          KVT_OK);
            kvt_record_info info;
            assert_status(kvt_record_verify(records[k].data, written, &info), KVT_OK);
        }
        assert_memory_equal(records[0].data, records[1].data, records[0].bytes);
    }
}

TEST(extras_for_v_count_for_nothing)
{
    extras_of_one_side(KVT_SIDES_ONE);
}

TEST(extras_for_k_count_for_nothing_of_v)
{
    extras_of_one_side(KVT_SIDES_V);
}
