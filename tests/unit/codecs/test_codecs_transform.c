/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_transform.c - codec 8's segments: there and back within half a step, the same bytes
 * on every instruction set, steps that nest, keys that turn, tokens that stand alone, codes that
 * the tables lack, what is not taken, and any bytes.
 */
#include "codecs/kernels/transform_kernels.h"
#include "transform_site.h"

static const transform_shape small_shape = {
    .layers = 6, .kv_heads = 2, .head_dim = 16, .rotary_dim = 16, .sides = 2, .span = 1};

static transform_segment segment_of(const transform_basis *basis, uint32_t index, uint32_t tokens,
                                    uint8_t dtype, uint16_t step)
{
    return (transform_segment){.basis = basis,
                               .index = index,
                               .first_position = 1000,
                               .tokens = tokens,
                               .step = step,
                               .dtype = dtype};
}

/* What weighs token t in frequency f of sixteen. */
static double along_weight(uint32_t f, uint32_t t)
{
    return f == 0 ? 0.25 : cos((2.0 * t + 1.0) * f * 3.14159265358979 / 32.0) / sqrt(8.0);
}

/* The largest distance of a frequency of a component of decoded tokens from the original's, in
 * steps, in the groups of sixteen that are whole. */
static double worst_component(const transform_site *site)
{
    const transform_segment *segment = &site->segment;
    const transform_basis *basis = segment->basis;
    const uint32_t count = site->matrix_count * transform_row(&basis->shape);
    const uint64_t first = (uint64_t)site_first_matrix(segment) * transform_row(&basis->shape);
    float *before = test_alloc(count * sizeof *before);
    float *after = test_alloc(count * sizeof *after);
    double *off_by = test_alloc((uint64_t)count * TRANSFORM_ALONG * sizeof *off_by);
    double worst = 0.0;
    for (uint32_t t = 0; t < segment->tokens / TRANSFORM_ALONG * TRANSFORM_ALONG; t++) {
        site_token(site, t, false, before);
        site_token(site, t, true, after);
        for (uint32_t f = 0; f < TRANSFORM_ALONG; f++) {
            for (uint32_t i = 0; i < count; i++) {
                double *sum = &off_by[(uint64_t)f * count + i];
                if (t % TRANSFORM_ALONG == 0) *sum = 0.0;
                *sum += along_weight(f, t % TRANSFORM_ALONG) * ((double)after[i] - before[i]);
            }
        }
        for (uint32_t at = 0;
             t % TRANSFORM_ALONG == TRANSFORM_ALONG - 1 && at < count * TRANSFORM_ALONG;) {
            const uint32_t f = at / count, in = at % count;
            const uint32_t span = (uint32_t)((first + in) / transform_width(&basis->shape));
            const uint32_t width = transform_width_of(&basis->shape, span);
            const uint16_t *forward = basis->forward + transform_matrix_at(&basis->shape, span);
            for (uint32_t c = 0; c < width; c++) {
                double off = 0.0;
                for (uint32_t e = 0; e < width; e++)
                    off += (double)half_bf16_to_float(forward[(uint64_t)e * width + c]) *
                           off_by[(uint64_t)f * count + in + e];
                off = fabs(off) * TRANSFORM_STEP_ONE / segment->step;
                worst = off > worst ? off : worst;
            }
            at += width;
        }
    }
    return worst;
}

/* Products of inputs in pairs of bf16, and of plain ones before them, have the bits of the
 * specification wherever the pairs begin. */
TEST(pairs_round_as_the_specification)
{
    enum { WIDTH = 24, INPUTS = 15, TOKENS = 250 };
    static uint16_t matrix[WIDTH * WIDTH], rows[INPUTS];
    static int16_t codes[INPUTS][TRANSFORM_LANES];
    static float in[INPUTS * TRANSFORM_LANES], panel[WIDTH * TRANSFORM_PANEL];
    static float out[WIDTH * TRANSFORM_LANES], wanted[WIDTH * TRANSFORM_LANES];
    const transform_kernels *kernels = transform_kernels_choose();
    uint64_t seed = 7;
    for (uint32_t i = 0; i < WIDTH * WIDTH; i++) /* of many sizes, so that sums round */
        matrix[i] = half_bf16_from_float(
            (float)ldexp(basis_made_random(&seed), (int)(8.0 * basis_made_random(&seed))));
    for (uint32_t k = 0; k < INPUTS; k++) {
        rows[k] = (uint16_t)(k + k / 2);
        for (uint32_t t = 0; t < TRANSFORM_LANES; t++)
            codes[k][t] = (int16_t)(TRANSFORM_PAIR_MOST * basis_made_random(&seed));
        kernels->widen(codes[k], TRANSFORM_LANES, in + (size_t)k * TRANSFORM_LANES);
    }
    codes[3][5] = TRANSFORM_PAIR_MOST;
    codes[4][5] = -TRANSFORM_PAIR_MOST;
    in[3 * TRANSFORM_LANES + 5] = TRANSFORM_PAIR_MOST;
    in[4 * TRANSFORM_LANES + 5] = -TRANSFORM_PAIR_MOST;
    transform_product product = {.matrix = matrix,
                                 .width = WIDTH,
                                 .rows = rows,
                                 .row_count = INPUTS,
                                 .plain = INPUTS,
                                 .first = 1,
                                 .count = WIDTH - 3,
                                 .tokens = TOKENS,
                                 .in = in,
                                 .out = wanted,
                                 .panel = panel};
    transform_kernels_scalar.multiply(&product);
    product.out = out;
    for (uint32_t plain = 0; plain <= INPUTS && kernels->pair != NULL; plain++) {
        float *pair = in + (size_t)plain * TRANSFORM_LANES;
        for (uint32_t k = 0; k < plain; k++)
            kernels->widen(codes[k], TRANSFORM_LANES, in + (size_t)k * TRANSFORM_LANES);
        for (uint32_t k = plain; k < INPUTS; k += 2, pair += TRANSFORM_LANES)
            kernels->pair(codes[k], k + 1 < INPUTS ? codes[k + 1] : NULL, TRANSFORM_LANES, pair);
        product.plain = plain;
        kernels->multiply(&product);
        for (uint32_t o = 0; o < product.count; o++)
            assert_memory_equal(out + o * TRANSFORM_LANES, wanted + o * TRANSFORM_LANES,
                                TOKENS * sizeof *out);
    }
}

/* Sums of the codes that are not 0 have the bits of those of all codes: of none and all, in one
 * part and two, of rows that no panel, group of eight components or part of the block holds. */
TEST(sparse_sums_are_those_of_all_codes)
{
    enum { WIDTH = 150, INPUTS = 133, FIRST = 3 };
    static const double shares[] = {0.0, 0.02, 0.3, 0.7, 1.0};
    static const uint32_t counts[] = {5, 64, 70, 147};
    static uint16_t matrix[WIDTH * WIDTH], rows[INPUTS];
    static int16_t codes[WIDTH * TRANSFORM_LANES];
    static float in[INPUTS * TRANSFORM_LANES], wanted[WIDTH * TRANSFORM_LANES];
    static float sums[TRANSFORM_SPARSE_TOKENS * WIDTH];
    static float terms[TRANSFORM_SPARSE_TOKENS * TRANSFORM_SPARSE_ROOM];
    static uint32_t at[TRANSFORM_SPARSE_TOKENS * TRANSFORM_SPARSE_ROOM];
    static _Alignas(64) uint16_t panel[TRANSFORM_SPARSE_ROWS * TRANSFORM_SPARSE_PANEL];
    uint64_t seed = 11;
    codecs_cpu_force(CODECS_CPU_AVX2);
    const transform_kernels *kernels = transform_kernels_choose();
    codecs_cpu_force(codecs_cpu_best());
    if (kernels->list == NULL) skip();
    for (uint32_t i = 0; i < WIDTH * WIDTH; i++)
        matrix[i] = half_bf16_from_float(
            (float)ldexp(basis_made_random(&seed), (int)(8.0 * basis_made_random(&seed))));
    for (uint32_t k = 0; k < INPUTS; k++)
        rows[k] = (uint16_t)(k + k / 9);
    for (uint32_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        for (uint32_t e = 0; e < WIDTH * TRANSFORM_LANES; e++) {
            const bool some = fabs(basis_made_random(&seed)) < shares[i];
            codes[e] = (int16_t)(some ? INT16_MAX * basis_made_random(&seed) : 0);
        }
        for (uint32_t k = 0; k < INPUTS; k++)
            kernels->widen(codes + rows[k] * TRANSFORM_LANES, TRANSFORM_LANES,
                           in + k * TRANSFORM_LANES);
        for (uint32_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            const uint32_t count = counts[c], part = c % 2 == 0 ? TRANSFORM_SPARSE_ROWS : 77;
            transform_sparse sparse = {.matrix = matrix,
                                       .width = WIDTH,
                                       .first_token = 16 * c,
                                       .tokens = TRANSFORM_SPARSE_TOKENS - 32 * c,
                                       .codes = codes,
                                       .out = sums,
                                       .terms = terms,
                                       .at = at,
                                       .panel = panel};
            transform_product product = {.matrix = matrix,
                                         .width = WIDTH,
                                         .rows = rows,
                                         .row_count = INPUTS,
                                         .plain = INPUTS,
                                         .first = FIRST,
                                         .count = count,
                                         .tokens = TRANSFORM_LANES,
                                         .in = in,
                                         .out = wanted};
            transform_kernels_scalar.multiply(&product);
            for (uint32_t done = 0; done < INPUTS; done += part) {
                sparse.rows = rows + done;
                sparse.row_count = INPUTS - done < part ? INPUTS - done : part;
                sparse.more = done > 0;
                kernels->list(&sparse);
                kernels->sum(&sparse, FIRST, count);
            }
            for (uint32_t t = 0; t < sparse.tokens; t++)
                for (uint32_t o = 0; o < count; o++)
                    assert_memory_equal(&sums[t * WIDTH + FIRST + o],
                                        &wanted[o * TRANSFORM_LANES + sparse.first_token + t],
                                        sizeof *sums);
        }
    }
}

/* Plain products of every instruction set, of all numbers of outputs and tokens that tiles cut. */
TEST(products_round_as_the_specification)
{
    enum { WIDTH = 40, INPUTS = 33 };
    static uint16_t matrix[WIDTH * WIDTH], rows[INPUTS];
    static float in[INPUTS * TRANSFORM_LANES], panel[INPUTS * TRANSFORM_PANEL];
    static float out[WIDTH * TRANSFORM_LANES], wanted[WIDTH * TRANSFORM_LANES];
    uint64_t seed = 21;
    for (uint32_t i = 0; i < WIDTH * WIDTH; i++) /* of many sizes, so that sums round */
        matrix[i] = half_bf16_from_float(
            (float)ldexp(basis_made_random(&seed), (int)(8.0 * basis_made_random(&seed))));
    for (uint32_t i = 0; i < INPUTS * TRANSFORM_LANES; i++)
        in[i] = (float)(int16_t)(32767.0 * basis_made_random(&seed));
    for (uint32_t k = 0; k < INPUTS; k++)
        rows[k] = (uint16_t)(k + k / 8);
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        const transform_kernels *kernels = transform_kernels_choose();
        for (uint32_t tokens = 1; tokens <= TRANSFORM_LANES; tokens += tokens < 52 ? 1 : 17) {
            const uint32_t inputs = tokens % (INPUTS + 1);
            transform_product product = {.matrix = matrix,
                                         .width = WIDTH,
                                         .rows = tokens % 2 == 0 ? rows : NULL,
                                         .row_count = inputs,
                                         .plain = inputs,
                                         .first = tokens % 3,
                                         .count = 1 + tokens % (WIDTH - 3),
                                         .tokens = tokens,
                                         .in = in,
                                         .out = wanted,
                                         .panel = panel};
            transform_kernels_scalar.multiply(&product);
            product.out = out;
            kernels->multiply(&product);
            for (uint32_t o = 0; o < product.count; o++)
                assert_memory_equal(out + o * TRANSFORM_LANES, wanted + o * TRANSFORM_LANES,
                                    tokens * sizeof *out);
        }
    }
    codecs_cpu_force(codecs_cpu_best());
}

/* Encodes on every instruction set to the same bytes, decodes to the same elements. */
static void code_everywhere(transform_site *site)
{
    uint8_t *bytes = NULL;
    uint8_t *elements = NULL;
    uint64_t written = 0;
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        assert_status(site_encode(site), KVT_OK);
        assert_status(site_decode(site, 0, site->segment.tokens), KVT_OK);
        if (level == CODECS_CPU_SCALAR) {
            written = site->written;
            bytes = test_alloc(written);
            elements = test_alloc(site->matrix_bytes * site->matrix_count);
            memcpy(bytes, site->stored.data, written);
        }
        assert_int_equal(site->written, written);
        assert_memory_equal(site->stored.data, bytes, written);
        for (uint32_t m = 0; m < site->matrix_count; m++) {
            uint8_t *kept = elements + m * site->matrix_bytes;
            if (level == CODECS_CPU_SCALAR) memcpy(kept, site->decoded[m].data, site->matrix_bytes);
            assert_memory_equal(site->decoded[m].data, kept, site->matrix_bytes);
        }
    }
    codecs_cpu_force(codecs_cpu_best());
}

TEST(components_come_back_within_half_a_step)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32};
    static const double slack[] = {0.1, 0.6, 0.1}; /* of rounding an element of up to 30 */
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        transform_shape shape = small_shape;
        shape.span = span;
        basis_made made = basis_made_of(shape, 11);
        for (uint32_t d = 0; d < 3; d++) {
            const uint32_t last = transform_segment_count(&shape) - 1;
            transform_site site =
                site_make(segment_of(&made.basis, last, 300, dtypes[d], 64), 5 + d);
            code_everywhere(&site);
            const double worst = worst_component(&site);
            assert_true(worst <= 0.5 + slack[d]);
            assert_true(worst > 0.3); /* it was quantised */
        }
    }
}

/* Without a rounding of its own: an identity, means of zero, elements that are whole steps and stay
 * for sixteen tokens. */
TEST(whole_steps_come_back_exactly)
{
    transform_shape shape = small_shape;
    shape.rotary_dim = 0;
    basis_made made = basis_made_of(shape, 2);
    for (uint64_t i = 0; i < transform_elements(&shape) * shape.head_dim; i++) {
        made.forward[i] = i % 256 % 17 == 0 ? 0x3f80 : 0;
        made.inverse[i] = made.forward[i];
    }
    memset(made.means, 0, transform_elements(&shape) * sizeof(float));
    transform_site site = site_make(segment_of(&made.basis, 3, 77, KVT_DTYPE_FP16, 1), 9);
    for (uint64_t i = 0; i < site.matrix_bytes / 2; i++) {
        const uint64_t row = transform_row(&shape), token = i / row / 16 * 16;
        const float value =
            roundf(site_element(&site, 0, token * row + i % row, false) * 64.0f) / 64.0f;
        codecs_element_store(site.matrices[0], i, KVT_DTYPE_FP16,
                             fabsf(value) < 16.0f ? value + 0.0f : 0.0f);
    }
    code_everywhere(&site);
    assert_memory_equal(site.decoded[0].data, site.matrices[0], site.matrix_bytes);
}

/* Hadamard's matrix of 16 over 4, which bf16 has exactly, is orthonormal. At the finest step that
 * codes of 16 bits leave it, what comes back is the input but for a thousandth: exact where the
 * element's own rounding is coarser than that. */
TEST(an_orthonormal_basis_gives_the_input_back)
{
    enum { TOKENS = 300, SCALE = 16 };
    /* The sum of |G| half steps, of sixteen frequencies with weights whose squares are 1 in all. */
    const double most = 4.0 * 16.0 / (4.0 * SCALE) * 0.5 / TRANSFORM_STEP_ONE;
    transform_shape shape = small_shape;
    uint64_t seed = 3, exact = 0, elements;
    shape.rotary_dim = 0;
    basis_made made = basis_made_of(shape, 2);
    for (uint64_t i = 0; i < transform_elements(&shape) * shape.head_dim; i++) {
        const bool minus = __builtin_popcount((unsigned)(i / 16 % 16 & i % 16)) % 2 != 0;
        made.forward[i] = half_bf16_from_float((minus ? -0.25f : 0.25f) * SCALE);
        made.inverse[i] = half_bf16_from_float((minus ? -0.25f : 0.25f) / SCALE);
    }
    for (uint64_t i = 0; i < transform_elements(&shape) * TRANSFORM_BANDS; i++) {
        made.means[i / TRANSFORM_BANDS] = 0.0f;
        made.spreads[i] = 8 * 4; /* 2^4: elements of about 1, times the scale */
    }
    transform_site site = site_make(segment_of(&made.basis, 5, TOKENS, KVT_DTYPE_BF16, 1), 9);
    elements = site.matrix_bytes / 2;
    for (uint64_t i = 0; i < elements; i++) /* seven bits: bf16 has them exactly */
        codecs_element_store(site.matrices[0], i, KVT_DTYPE_BF16,
                             (float)(int)(127.0 * basis_made_random(&seed)) / 64.0f + 0.0f);
    code_everywhere(&site);
    for (uint64_t i = 0; i < elements; i++) {
        const double before = site_element(&site, 0, i, false);
        const double after = site_element(&site, 0, i, true);
        const double half_unit = fabs(before) * 0x1p-8; /* of bf16, at the most */
        assert_true(fabs(after - before) <= most + half_unit);
        exact += after == before;
    }
    assert_true(exact * 10 > elements * 7);
}

TEST(a_derived_step_is_the_encoded_one)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        transform_shape shape = small_shape;
        shape.span = span;
        basis_made made = basis_made_of(shape, 23);
        transform_site site = site_make(segment_of(&made.basis, 1, 530, KVT_DTYPE_BF16, 7), 3);
        assert_status(site_encode(&site), KVT_OK);
        for (uint16_t step = 7; 3 * step <= TRANSFORM_STEP_MAX; step = (uint16_t)(3 * step)) {
            guarded derived = guarded_make(site.stored.bytes);
            uint64_t bytes;
            site.segment.step = step;
            assert_status(transform_derive_step3(&site.segment, site.stored.data, site.written,
                                                 derived.data, derived.bytes, site.scratch, &bytes),
                          KVT_OK);
            assert_status(transform_derive_step3(&site.segment, site.stored.data, site.written,
                                                 derived.data, bytes - 1, site.scratch, &bytes),
                          KVT_E_SPACE);
            assert_status(transform_derive_step3(&site.segment, site.stored.data, site.written,
                                                 derived.data, derived.bytes, site.scratch, &bytes),
                          KVT_OK);
            site.segment.step = (uint16_t)(3 * step);
            assert_status(site_encode(&site), KVT_OK);
            assert_int_equal(bytes, site.written);
            assert_memory_equal(derived.data, site.stored.data, bytes);
        }
        uint64_t bytes;
        assert_status(transform_derive_step3(&site.segment, site.stored.data, site.written,
                                             site.decoded[0].data, 0, site.scratch, &bytes),
                      KVT_E_ARGUMENT);
    }
}

/* The segment of keys at their positions is the one of keys turned back by kvt_keys_rerotate, under
 * a basis that turns nothing; and decoding turns them as that call does. */
TEST(keys_turn_as_rerotate_turns_them)
{
    for (uint32_t form = 0; form < 4; form++) {
        transform_shape shape = small_shape;
        shape.pairing = form % 2 == 0 ? KVT_ROPE_HALVES : KVT_ROPE_NEIGHBOURS;
        shape.rotary_dim = form == 2 ? 10 : 16;
        basis_made made = basis_made_of(shape, 31);
        for (uint32_t i = 0; form == 3 && i < shape.rotary_dim / 2; i++)
            made.frequencies[i] *= i < 3 ? 1.0 : 0.125; /* as scaled models have them */
        transform_basis still = made.basis;
        still.shape.rotary_dim = 0;
        transform_site site = site_make(segment_of(&made.basis, 4, 270, KVT_DTYPE_FP32, 20), form);
        transform_site back = site_make(segment_of(&still, 4, 270, KVT_DTYPE_FP32, 20), form);
        const uint32_t row = transform_row(&shape);
        float *turned = back.matrices[0];
        memcpy(turned, site.matrices[0], site.matrix_bytes);
        for (uint32_t t = 0; t < 270; t++)
            site_turn(&made.basis, turned + (uint64_t)t * row, 1000 + t, 0);
        assert_status(site_encode(&site), KVT_OK);
        assert_status(site_encode(&back), KVT_OK);
        assert_int_equal(site.written, back.written);
        assert_memory_equal(site.stored.data, back.stored.data, site.written);
        assert_status(site_decode(&site, 0, 270), KVT_OK);
        assert_status(site_decode(&back, 0, 270), KVT_OK);
        turned = (float *)(void *)back.decoded[0].data;
        for (uint32_t t = 0; t < 270; t++)
            site_turn(&made.basis, turned + (uint64_t)t * row, 0, 1000 + t);
        assert_memory_equal(turned, site.decoded[0].data, site.matrix_bytes);
    }
}

/* Any run of tokens, and a segment of the first tokens alone. */
TEST(tokens_stand_alone)
{
    static const uint32_t runs[][2] = {{0, 1}, {255, 2}, {256, 256}, {511, 89}, {599, 1}, {17, 0}};
    transform_shape shape = small_shape;
    shape.span = TRANSFORM_SPAN_LAYER;
    basis_made made = basis_made_of(shape, 41);
    transform_site site = site_make(segment_of(&made.basis, 2, 600, KVT_DTYPE_FP16, 40), 8);
    const uint64_t row_bytes = site.matrix_bytes / 600;
    assert_status(site_encode(&site), KVT_OK);
    assert_status(site_decode(&site, 0, 600), KVT_OK);
    uint8_t *whole[2];
    for (uint32_t m = 0; m < 2; m++) {
        whole[m] = test_alloc(site.matrix_bytes);
        assert_non_null(whole[m]);
        memcpy(whole[m], site.decoded[m].data, site.matrix_bytes);
    }
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        assert_status(site_decode(&site, runs[i][0], runs[i][1]), KVT_OK);
        for (uint32_t m = 0; m < 2; m++)
            assert_memory_equal(site.decoded[m].data, whole[m] + runs[i][0] * row_bytes,
                                runs[i][1] * row_bytes);
    }
    /* V alone. */
    const view_rows rows = view_rows_packed(site.decoded[0].data, site.matrix_bytes);
    const view_rows *targets[2] = {NULL, &rows};
    assert_status(transform_decode(&site.segment, site.stored.data, site.written, 0, 600, targets,
                                   site.scratch),
                  KVT_OK);
    assert_memory_equal(site.decoded[0].data, whole[1], site.matrix_bytes);
    site.segment.tokens = 300;
    assert_status(site_encode(&site), KVT_OK);
    assert_status(site_decode(&site, 0, 300), KVT_OK);
    for (uint32_t m = 0; m < 2; m++) { /* the last group is another one there */
        assert_memory_equal(site.decoded[m].data, whole[m], 300 / 16 * 16 * row_bytes);
    }
}

/* Elements far outside of what the spreads say: escapes, and exceptions where nothing is stored. */
TEST(codes_that_tables_lack_come_back)
{
    basis_made made = basis_made_of(small_shape, 53);
    for (uint16_t step = 1; step <= 243; step = (uint16_t)(step * 9)) {
        transform_site site = site_make(segment_of(&made.basis, 1, 290, KVT_DTYPE_FP32, step), 4);
        float *elements = site.matrices[0];
        uint64_t random = step;
        for (uint64_t i = 0; i < site.matrix_bytes / 4; i += 37)
            elements[i] += (float)(150.0 * basis_made_random(&random));
        code_everywhere(&site);
        /* A coordinate is lost in rounding the inverse: a share of 2^-8 of the largest ones. */
        assert_true(worst_component(&site) <= 0.5 + 64.0 * 600.0 / 256.0 / step);
    }
}

TEST(bits_are_near_the_entropy_of_the_codes)
{
    transform_shape shape = small_shape;
    shape.kv_heads = 8;
    shape.head_dim = 64;
    shape.layers = 1;
    basis_made made = basis_made_of(shape, 61);
    for (uint16_t step = 16; step <= 256; step = (uint16_t)(step * 4)) {
        transform_site site = site_make(segment_of(&made.basis, 1, 1024, KVT_DTYPE_BF16, step), 6);
        double entropy = 0.0;
        assert_status(site_encode(&site), KVT_OK);
        for (uint32_t i = 0; i < 8 * 64; i++) {
            const double deviation =
                pow(2.0, made.spreads[(512 + i) * TRANSFORM_BANDS] / 8.0) * 64.0 / step;
            for (int code = -2000; code <= 2000; code++) {
                const double p = 0.5 * (erf((code + 0.5) / deviation * 0.70710678) -
                                        erf((code - 0.5) / deviation * 0.70710678));
                if (p > 1e-12) entropy -= p * log2(p) * 1024.0 / 8.0;
            }
        }
        /* The tables of this basis are of geometric codes, the codes are normal: a tenth. */
        assert_true((double)site.written < 1.12 * entropy);
        assert_true((double)site.written > 0.98 * entropy);
    }
}

TEST(some_elements_are_not_taken)
{
    static const float wrong[] = {NAN, INFINITY, -INFINITY, 2e18f, 1e5f};
    basis_made made = basis_made_of(small_shape, 71);
    transform_site site = site_make(segment_of(&made.basis, 1, 260, KVT_DTYPE_FP32, 4), 4);
    float *elements = site.matrices[0];
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            const float before = elements[8319];
            elements[8319] = wrong[i];
            assert_status(site_encode(&site), KVT_RAW);
            elements[8319] = before;
        }
    }
    codecs_cpu_force(codecs_cpu_best());
    assert_status(site_encode(&site), KVT_OK);
    for (uint64_t room = 0; room < site.written; room += 41) {
        uint64_t written;
        guarded little = guarded_make(room);
        assert_status(transform_encode(&site.segment, (const void *const *)site.matrices,
                                       little.data, room, site.scratch, &written),
                      KVT_E_SPACE);
        guarded_check(&little, room);
    }
}

/* Cut short, and every byte changed: a status, and nothing past the targets. */
TEST(any_bytes_give_a_status)
{
    basis_made made = basis_made_of(small_shape, 83);
    transform_site site = site_make(segment_of(&made.basis, 0, 258, KVT_DTYPE_FP16, 100), 4);
    uint32_t refused = 0;
    assert_status(site_encode(&site), KVT_OK);
    for (uint64_t bytes = 0; bytes < site.written; bytes += bytes < 64 ? 1 : 29) {
        uint8_t *cut = test_alloc(bytes + 1);
        memcpy(cut, site.stored.data, bytes);
        assert_status(site_decode_from(&site, cut, bytes, 0, 258), KVT_E_CORRUPT);
    }
    for (uint64_t at = 0; at < site.written; at += at < 64 ? 1 : 7) {
        site.stored.data[at] ^= 0x55;
        const kvt_status status = site_decode(&site, 0, 258);
        assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
        refused += status == KVT_E_CORRUPT;
        assert_true(at >= 32 || status == KVT_E_CORRUPT); /* both heads */
        site.stored.data[at] ^= 0x55;
    }
    assert_true(refused > 100);
    site.segment.step = 101;
    assert_status(site_decode(&site, 0, 258), KVT_E_CORRUPT);
    site.segment.step = 100;
    assert_status(site_decode(&site, 0, 258), KVT_OK);
}
