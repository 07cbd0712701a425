/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ladder_csv.c - a ladder of forms from a CSV file: size and loss as published or measured
 * elsewhere, each row with its source. Used until a calibration of the own model exists. Any
 * thread.
 */
#include "estimator/profile/csv_input.h"

#include "profile.h"
#include <kvterrace/codec.h>

#include <assert.h>
#include <string.h>

enum {
    LADDER_VARIANT,
    LADDER_BITS,
    LADDER_LOSS,
    LADDER_UPPER,
    LADDER_ENCODE,
    LADDER_DECODE,
    LADDER_SOURCE,
    LADDER_FIELDS
};

static const char *const ladder_columns[LADDER_FIELDS] = {
    "variant", "bits", "loss", "loss_upper", "encode_bytes_per_s", "decode_bytes_per_s", "source"};

#define LADDER_BITS_MAX 64.0

/* A CSV field cannot hold commas, so blanks stand for them. */
static kvt_status ladder_variant(csv_input *input, kvt_variant *variant)
{
    const csv_field *field = &input->fields[LADDER_VARIANT];
    char name[128];
    if (field->length >= sizeof name) return csv_fail(input, "no variant has so long a name");
    memcpy(name, field->text, field->length);
    name[field->length] = '\0';
    for (char *c = name; *c != '\0'; c++)
        if (*c == ' ') *c = ',';
    if (kvt_variant_parse(name, variant) != KVT_OK) return csv_fail(input, "no such variant");
    return KVT_OK;
}

static kvt_status ladder_row(csv_input *input, kvt_codec_curve *curve)
{
    double bits;
    memset(curve, 0, sizeof *curve);
    kvt_status status = ladder_variant(input, &curve->variant);
    if (status == KVT_OK) status = csv_number(input, LADDER_BITS, LADDER_BITS_MAX, &bits);
    if (status == KVT_OK) status = csv_number(input, LADDER_LOSS, 1.0, &curve->loss);
    if (status == KVT_OK) status = csv_number(input, LADDER_UPPER, 1.0, &curve->loss_upper);
    if (status == KVT_OK)
        status = csv_number(input, LADDER_ENCODE, 1e18, &curve->encode_bytes_per_s);
    if (status == KVT_OK)
        status = csv_number(input, LADDER_DECODE, 1e18, &curve->decode_bytes_per_s);
    if (status != KVT_OK) return status;
    if (bits <= 0.0) return csv_fail(input, "bits must be above 0");
    if (curve->encode_bytes_per_s < 1.0 || curve->decode_bytes_per_s < 1.0) {
        return csv_fail(input, "encode and decode are at least 1 byte/s");
    }
    if (curve->loss_upper < curve->loss) return csv_fail(input, "loss_upper is below loss");
    if (input->fields[LADDER_SOURCE].length == 0) return csv_fail(input, "a row without a source");
    curve->stored_share = bits / 16.0;
    return KVT_OK;
}

static kvt_status ladder_header(csv_input *input)
{
    kvt_status status = csv_next(input, LADDER_FIELDS);
    if (status == KVT_END) return csv_fail(input, "no header line");
    for (size_t i = 0; status == KVT_OK && i < LADDER_FIELDS; i++)
        if (!csv_is(input, i, ladder_columns[i])) return csv_fail(input, "another header line");
    return status;
}

kvt_status kvt_ladder_read_csv(const char *path, kvt_codec_curve *curves, uint32_t capacity,
                               uint32_t *count_out, char *message, size_t message_size)
{
    assert(path != NULL && curves != NULL && count_out != NULL);
    csv_input input;
    uint32_t count = 0;
    *count_out = 0;
    kvt_status status = csv_open(&input, path, message, message_size);
    if (status != KVT_OK) return status;
    status = ladder_header(&input);
    while (status == KVT_OK) {
        status = csv_next(&input, LADDER_FIELDS);
        if (status != KVT_OK) break;
        if (count == capacity) {
            status = csv_fail(&input, "more forms than a ladder can have");
            break;
        }
        status = ladder_row(&input, &curves[count]);
        if (status == KVT_OK && count > 0 &&
            curves[count].stored_share >= curves[count - 1].stored_share) {
            status = csv_fail(&input, "sizes must fall from row to row");
        }
        count += status == KVT_OK;
    }
    if (status == KVT_END) status = count > 0 ? KVT_OK : csv_fail(&input, "no form");
    csv_close(&input);
    if (status == KVT_OK) *count_out = count;
    return status;
}
