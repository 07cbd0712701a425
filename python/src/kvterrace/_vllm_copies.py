# SPDX-License-Identifier: Apache-2.0
"""Blocks between vLLM's KV cache and its offload region, both in host memory, and the order of
the elements in a block of vLLM's CPU attention. Imported by vllm.py, which has checked vLLM."""

import time

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult

from ._errors import failure
from ._kvt import lib


class _Order:
    """Where the elements of a block lie that kvterrace's order has one after the other, and which
    of a row's heads they are: those of this worker."""

    def __init__(self, places, itemsize, shape, rank, all_heads):
        self.places, self.bytes, self.kind = places, len(places) * itemsize, f"u{itemsize}"
        self.tokens, self.heads, self.dim = shape
        self.all_heads, self.mine = all_heads, slice(0, self.heads)
        if all_heads != self.heads:
            self.mine = slice(rank * self.heads, (rank + 1) * self.heads)

    def rows(self, region, blocks, tensors):
        """A view of this worker's heads in the region's rows for each tensor, which is a layer:
        [chunk][K, V][block][token][head][dim]. All workers map whole rows."""
        layer = 2 * blocks * self.tokens * self.all_heads * self.dim
        every = region.base_tensor.numpy().view(self.kind).reshape(region.num_chunks, -1)
        return [every[:, index * layer:(index + 1) * layer].reshape(
            region.num_chunks, 2, blocks, self.tokens, self.all_heads, self.dim)[
                :, :, :, :, self.mine] for index in range(tensors)]

    def copy(self, cache, ids, kept, rows, subs, storing):
        half, shape = len(self.places) // 2, (-1, self.tokens, self.heads, self.dim)
        if storing:
            taken = cache[ids][:, self.places]
            kept[rows, 0, subs] = taken[:, :half].reshape(shape)
            kept[rows, 1, subs] = taken[:, half:].reshape(shape)
            return
        blocks = cache[ids]
        blocks[:, self.places[:half]] = kept[rows, 0, subs].reshape(len(blocks), half)
        blocks[:, self.places[half:]] = kept[rows, 1, subs].reshape(len(blocks), half)
        cache[ids] = blocks


def learn_order(heads, dim, tokens, dtype, rank=0, all_heads=None):
    """The order of a block of vLLM's CPU attention, which differs between processors: marks are
    written through its own kernel and looked for. heads: of this worker, the rank-th of those that
    part all_heads among them."""
    import numpy
    import torch
    from vllm import _custom_ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    kind = getattr(torch, str(dtype).removeprefix("torch."), None)
    if kind not in (torch.float16, torch.bfloat16, torch.float32):
        raise failure(lib.KVT_E_UNSUPPORTED, f"blocks of {dtype} cannot be put into kvterrace's "
                      "order: leave kv_heads and head_dim out")
    shape, size = (tokens, heads, dim), 2 * tokens * heads * dim
    isa, found = _get_attn_isa(kind, tokens, dim), []
    token, head, place = (grid.to(torch.int64) for grid in torch.meshgrid(
        *map(torch.arange, shape), indexing="ij"))
    zero = torch.zeros_like(token)
    # Digits up to 255, which every element type holds exactly; 0 is what nothing was written to.
    for key, value in ((zero, zero + 1), (token % 128, token % 128), (token // 128, token // 128),
                       (head % 128, head % 128), (head // 128, head // 128),
                       (place % 128, place % 128), (place // 128, place // 128)):
        block = torch.zeros((1, heads, 2 * tokens, dim), dtype=kind)
        keys, values = block.chunk(2, dim=2)
        _custom_ops.cpu_attn_reshape_and_cache((key + 1).to(kind), (value + 1).to(kind), keys,
                                               values, torch.arange(tokens), isa)
        found.append(block.flatten().to(torch.int64).numpy() - 1)
    side, low, high, head_low, head_high, dim_low, dim_high = found
    index = ((side * tokens + low + 128 * high) * heads + head_low + 128 * head_high) * dim + \
        dim_low + 128 * dim_high
    if not numpy.array_equal(numpy.sort(index), numpy.arange(size)):
        raise failure(lib.KVT_E_UNSUPPORTED, f"vLLM's kernel {isa!r} keeps blocks in a way that is "
                      "no order of elements: leave kv_heads and head_dim out")
    places = numpy.empty(size, dtype=numpy.int64)
    places[index] = numpy.arange(size)
    return _Order(places, torch.empty((), dtype=kind).element_size(), shape, rank,
                  all_heads or heads)


class HostCopyWorker(OffloadingWorker):
    """Copies blocks between the KV cache and vLLM's offload region, both in host memory. A copy is
    done when its submit returns: on the CPU platform nothing else writes the cache then."""

    def __init__(self, kv_caches, blocks_per_chunk, region, order=None):
        self._region, self._per_chunk, self._finished = region, blocks_per_chunk, []
        self._cache = [one.tensor.numpy() for one in kv_caches.tensors]
        self._rows, self._order = [], order
        for one in kv_caches.tensors:
            page = one.tensor.shape[1]
            if order is None:
                row = region.create_next_worker_view(page * blocks_per_chunk).numpy()
                self._rows.append(row.reshape(len(row), blocks_per_chunk, page))
            elif page != order.bytes:
                raise failure(lib.KVT_E_CONFIG, f"kv_heads and head_dim make blocks of "
                              f"{order.bytes} bytes, vLLM's have {page}")
        if order is not None:
            self._rows = order.rows(region, blocks_per_chunk, len(self._cache))
            self._cache = [one.view(order.kind) for one in self._cache]
        self._refs = [[(ref.tensor_idx, ref.page_size_bytes) for ref in refs]
                      for refs in kv_caches.group_data_refs]

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec.block_ids, True)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        return self._copy(job_id, dst_spec, src_spec.block_ids, False)

    def _copy(self, job_id, blocks, chunks, storing):
        """Blocks of each group against their slots: block i of a group lies in slot
        (first + i) % per_chunk of its chunk, where first is the group's block index."""
        began, copied, at, chunk_at = time.perf_counter(), 0, 0, 0
        for group, (count, first) in enumerate(zip(blocks.group_sizes, blocks.block_indices)):
            if count == 0:
                continue
            skipped = first % self._per_chunk
            slots = [skipped + index for index in range(count)]
            rows = [int(chunks[chunk_at + slot // self._per_chunk]) for slot in slots]
            subs = [slot % self._per_chunk for slot in slots]
            ids = blocks.block_ids[at:at + count]
            for tensor, size in self._refs[group]:
                cache, kept = self._cache[tensor], self._rows[tensor]
                if self._order is not None:
                    self._order.copy(cache, ids, kept, rows, subs, storing)
                elif storing:
                    kept[rows, subs, :size] = cache[ids, :size]
                else:
                    cache[ids, :size] = kept[rows, subs, :size]
                copied += count * size
            at += count
            chunk_at += (skipped + count + self._per_chunk - 1) // self._per_chunk
        self._finished.append(TransferResult(job_id, True, copied, time.perf_counter() - began))
        return True

    def get_finished(self):
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids):
        return

    def shutdown(self):
        self._cache, self._rows = [], []
        region, self._region = self._region, None
        if region is not None:
            region.cleanup()
