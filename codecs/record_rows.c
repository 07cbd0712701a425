/*
 * record_rows.c - see record_rows.h. Re-entrant.
 */
#include "record_rows.h"

kvt_status record_rows_plan(const kvt_record_spec *spec, const kvt_codec_extras *extras,
                            kvt_variant variant, uint32_t *tokens_out, uint32_t *index_count_out)
{
    (void)spec;
    (void)extras;
    (void)variant;
    (void)tokens_out;
    (void)index_count_out;
    return KVT_E_UNSUPPORTED;
}

uint64_t record_rows_scratch(const record_plan *plan, const kvt_record_spec *spec,
                             kvt_variant variant)
{
    (void)plan;
    (void)spec;
    (void)variant;
    return 0;
}

kvt_status record_rows_open(record_rows *rows, const record_plan *plan, const kvt_record_spec *spec,
                            const kvt_codec_extras *extras, kvt_variant variant, const void *source,
                            uint8_t *scratch)
{
    (void)plan;
    (void)spec;
    (void)extras;
    (void)variant;
    (void)scratch;
    *rows = (record_rows){.source = source};
    return KVT_OK;
}

const uint8_t *record_rows_index(const record_rows *rows, const record_plan *plan, uint32_t index)
{
    return rows->indexes + index * plan->index_bytes;
}

const uint8_t *record_rows_of(const record_rows *rows, const record_plan *plan, uint32_t layer,
                              kvt_side side)
{
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE) {
        return rows->source + layer * plan->segment_bytes;
    }
    return rows->source + kvt_layout_matrix_offset(&plan->layout, layer, side);
}
