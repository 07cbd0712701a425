/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_basis_kernels.c - the kernels of codec transform, compiled for this processor: what they
 * decode into the pages of engines is bit for bit what the CPU's scalar reference decodes, and
 * damaged codes are told as it tells them.
 */
#include "basis_record_site.h"
#include "kernel_site.h"

#include "dice.h"

/* Puts elements far from where the basis has them into an entry, so that codes are large, escape,
 * or are of components that have none. */
static void spike(basis_record *r)
{
    const uint8_t dtype = r->spec.layout.dtype;
    const uint64_t elements = r->source.bytes / kvt_dtype_bytes(dtype);
    uint64_t dice = 23;
    for (uint64_t i = 0; i < elements; i += 1 + dice_shift(&dice) % 5000)
        codecs_element_store(r->source.data, i, dtype,
                             (float)(int)(dice_shift(&dice) % 801) - 400.0f);
    basis_record_again(r);
}

static void check_transform(basis_record *r, uint32_t view, uint32_t layer, uint32_t layers,
                            bool ranged)
{
    basis_record_bind(r);
    encoded e = {.spec = r->spec, .record = r->record, .scratch = r->scratch};
    codecs_cpu_force(CODECS_CPU_SCALAR);
    site_check(&e, &engine_views[view], layer, layers, ranged, false);
    codecs_cpu_force(codecs_cpu_best());
}

/* Every span, element and kind of entry: with tokens that are raw, or of the sequence's middle;
 * blocks and groups that are full, or not; codes near what the basis says, and far from it. */
TEST(kernels_decode_transform)
{
    static const struct {
        uint32_t tokens, first;
        uint16_t step;
    } entries[] = {{40, 0, 64}, {275, 3, 200}, {70, 4000, 24}};
    for (uint32_t i = 0; i < 3 * 4; i++) {
        const size_t ends = test_ends();
        const uint8_t span = (uint8_t)(1 + i % 3), dtype = (uint8_t)(KVT_DTYPE_FP16 + i / 3);
        const uint32_t which = (i + i / 3) % 3;
        basis_record r = basis_record_make(span, dtype, entries[which].tokens, entries[which].first,
                                           entries[which].step);
        if (i % 2 == 0 && dtype != KVT_DTYPE_FP8) spike(&r);
        if (r.status != KVT_OK) fail_msg("case %u is %d", i, (int)r.status);
        check_transform(&r, i % ENGINE_VIEWS, 0, 6, i % 2 == 0);
        test_end(ends);
    }
}

/* Heads wider than a warp's work, of odd widths, that turn in part or by neighbours or not at all,
 * and one side. */
TEST(kernels_decode_shapes_of_transform)
{
    static const transform_shape shapes[] = {
        {.layers = 2, .kv_heads = 1, .head_dim = 136, .rotary_dim = 64, .sides = 2, .span = 1},
        {.layers = 2,
         .kv_heads = 3,
         .head_dim = 7,
         .rotary_dim = 4,
         .sides = 2,
         .span = 2,
         .pairing = 1},
        {.layers = 5, .kv_heads = 1, .head_dim = 24, .sides = 2, .span = 3},
        {.layers = 5, .kv_heads = 2, .head_dim = 10, .rotary_dim = 2, .sides = 1, .span = 3},
        {.layers = 3,
         .kv_heads = 2,
         .head_dim = 12,
         .rotary_dim = 12,
         .sides = 1,
         .span = 1,
         .pairing = 1},
    };
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const size_t ends = test_ends();
        basis_record r =
            basis_record_of(shapes[i], (uint8_t)(KVT_DTYPE_FP16 + i % 4), 60 + 57 * i, 100, 48);
        assert_int_equal(r.status, KVT_OK);
        for (uint32_t view = i % 3; view < 4; view += 2)
            check_transform(&r, view, 0, shapes[i].layers, view < 2);
        test_end(ends);
    }
}

/* Layers of spans that hold four, one of them alone too, and spans that are stored raw. */
TEST(kernels_decode_layers_of_a_span)
{
    for (uint32_t spoiled = 0; spoiled < 2; spoiled++) {
        basis_record r = basis_record_make(TRANSFORM_SPAN_LAYERS4, KVT_DTYPE_BF16, 50, 2, 64);
        if (spoiled) basis_record_spoil(&r, 9);
        check_transform(&r, 1, 0, 4, true);
        check_transform(&r, 2, 1, 2, true);
        check_transform(&r, 3, 3, 2, false);
        check_transform(&r, 3, 5, 1, true);
    }
}

/* Without the basis in the GPU's memory nothing is planned but what is raw. */
TEST(a_plan_without_a_basis)
{
    basis_record r = basis_record_make(TRANSFORM_SPAN_LAYERS4, KVT_DTYPE_BF16, 50, 2, 64);
    basis_record_spoil(&r, 9);
    basis_record_bind(&r);
    const encoded e = {.spec = r.spec, .record = r.record, .scratch = r.scratch};
    const kvt_layout *layout = &r.spec.layout;
    engine_pool pool;
    kernel_site site;
    assert_true(engine_pool_open(&pool, &engine_views[0], layout, 1, SITE_FILL));
    site_open(&site, &e, 0, 6, false);
    const kernel_place place = {.payload = (uint64_t)(uintptr_t)site.payload.data};
    assert_status(kvt_record_head_jobs(site.head, layout, &pool.view, 0, 6, &place, &site.plan),
                  KVT_E_UNSUPPORTED);
    assert_int_equal(site.plan.verdict_count, 0);
    assert_status(kvt_record_head_jobs(site.head, layout, &pool.view, 4, 2, &place, &site.plan),
                  KVT_OK);
    assert_int_equal(kvt_record_head_room(site.head, 4, 2), 0);
    engine_pool_close(&pool);
}

/* Bytes of a segment of transform that no encoder writes are told, wherever they are, as by the
 * CPU; the checksum is left out. */
TEST(damaged_codes_are_told)
{
    basis_record r = basis_record_make(TRANSFORM_SPAN_LAYER, KVT_DTYPE_BF16, 270, 8, 40);
    const kvt_layout *layout = &r.spec.layout;
    uint32_t told = 0;
    uint64_t dice = 3;
    spike(&r);
    assert_int_equal(r.status, KVT_OK);
    basis_record_bind(&r);
    encoded e = {.spec = r.spec, .record = r.record, .scratch = r.scratch};
    for (uint32_t turn = 0; turn < 16; turn++) {
        const size_t ends = test_ends();
        engine_pool pool;
        kernel_site site;
        assert_true(engine_pool_open(&pool, &engine_views[0], layout, 1, SITE_FILL));
        site_open(&site, &e, 0, 1, false);
        assert_status(site_plan(&site, layout, &pool, 0, 1), KVT_OK);
        const kernel_codes_job *job = site.plan.batches[KERNEL_CODES].jobs;
        uint8_t *bytes = (uint8_t *)(uintptr_t)job->source;
        /* Heads first, then anywhere. */
        const uint64_t at = turn < 8 ? 4 * turn : dice_shift(&dice) % job->bytes;
        bytes[at] ^= (uint8_t)(1u << dice_shift(&dice) % 8);
        view_rows rows[2];
        const view_rows *targets[2] = {&rows[0], &rows[1]};
        uint8_t *own = test_aligned(64, 2 * kvt_layout_matrix_bytes(layout));
        for (uint32_t m = 0; m < 2; m++)
            rows[m] = view_rows_packed(own + m * kvt_layout_matrix_bytes(layout),
                                       kvt_layout_matrix_bytes(layout));
        const transform_segment segment = {.basis = &r.made.basis,
                                           .first_position = job->first_position,
                                           .tokens = job->tokens,
                                           .step = job->step,
                                           .dtype = layout->dtype};
        const kvt_status status =
            transform_decode(&segment, bytes, job->bytes, 0, job->tokens, targets,
                             test_aligned(64, transform_scratch_bytes(&r.made.basis.shape)));
        site_skip_checks(&site);
        assert_true(site_launch(&site, &pool));
        assert_status(kernel_plan_verdict(&site.plan, 0, site.plan.verdict_count), status);
        told += status != KVT_OK;
        guarded_check(&site.room, site.room.bytes);
        engine_pool_close(&pool);
        test_end(ends);
    }
    assert_true(told >= 8);
}
