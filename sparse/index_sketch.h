/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_sketch.h - sketches of an index's centroids. Thread rule: as index.h.
 */
#ifndef SPARSE_INDEX_SKETCH_H
#define SPARSE_INDEX_SKETCH_H

#include "index.h"

/* Fills sketch, axis, axis_step and centre of an index whose scatters are known. means: fp32
 * [clusters][head_dim], finite. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status index_sketch_write(const float *means, sparse_index *index);

#endif
