# SPDX-License-Identifier: Apache-2.0
"""The few names of vLLM 0.32.0 that kvterrace.vllm stands on, so that its tests need no engine.

They have vLLM's signatures and none of its work; python/tests/engines runs the real one.
"""

import dataclasses
import enum
import sys
import types
import typing


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(enum.Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class LookupResult(enum.Enum):
    MISS = 1
    HIT = 2
    HIT_PENDING = 3
    RETRY = 4


class Metric:
    def __init__(self, documentation, labelnames=()):
        self.documentation, self.labelnames = documentation, labelnames


@dataclasses.dataclass
class OffloadingEvent:
    keys: list
    medium: Medium
    removed: bool
    locality: object = None
    ownership: str = None
    removal_expected: bool = False


@dataclasses.dataclass
class RequestOffloadingContext:
    policy: object = None


@dataclasses.dataclass
class TransferResult:
    job_id: int
    success: bool
    transfer_size: int = None
    transfer_time: float = None


@dataclasses.dataclass
class TransferJob:
    job_id: int
    keys: list
    chunk_ids: list
    is_promotion: bool
    req_context: object


@dataclasses.dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: object = None
    transfer_time: float = None
    transfer_bytes: int = None


class SecondaryTierManager:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        self._primary_kv_view, self.tier_type, self.locality = primary_kv_view, tier_type, None


class OffloadingConnectorStats:
    def __init__(self):
        self.counters, self.gauges = {}, {}

    def increase_counter(self, name, value, labels=()):
        self.counters[name, labels] = self.counters.get((name, labels), 0) + value

    def set_gauge(self, name, value, labels=()):
        self.gauges[name, labels] = value


class KvHintAction:
    def __init__(self, action_type, payload):
        self.action_type, self.payload = action_type, payload


class KvHintsEnvelope:
    def __init__(self, *actions):
        self.actions = list(actions)


class ScheduleEndContext(typing.NamedTuple):
    new_req_ids: tuple = ()
    preempted_req_ids: tuple = ()


class ReqContext:
    def __init__(self, req_id, positions=None, kv_transfer_params=None, kv_hints=None):
        self.req_id, self.positions, self._state = req_id, positions or {}, {}
        self.kv_transfer_params, self.kv_hints = kv_transfer_params, kv_hints

    def set_state(self, value):
        self._state[type(value)] = value

    def get_state(self, kind):
        return self._state.get(kind)

    def get_offload_key_position(self, key):
        return self.positions.get(key)


def install(version="0.32.0"):
    """Puts a vLLM of this version where imports find it."""
    def module(name, **content):
        made = types.ModuleType(name)
        made.__dict__.update(content)
        sys.modules[name] = made

    for name in ("vllm.distributed", "vllm.distributed.kv_transfer",
                 "vllm.distributed.kv_transfer.kv_connector",
                 "vllm.distributed.kv_transfer.kv_connector.v1",
                 "vllm.distributed.kv_transfer.kv_connector.v1.offloading", "vllm.v1",
                 "vllm.v1.kv_offload", "vllm.v1.kv_offload.cpu", "vllm.v1.kv_offload.tiering"):
        module(name)
    module("vllm", __version__=version)
    module("vllm.platforms", current_platform=types.SimpleNamespace(device_name="cpu"))
    module("vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics",
           OffloadingConnectorStats=OffloadingConnectorStats)
    module("vllm.v1.kv_offload.base", Locality=Locality, LookupResult=LookupResult, Medium=Medium,
           OffloadingCounterMetadata=Metric, OffloadingGaugeMetadata=Metric,
           OffloadingEvent=OffloadingEvent, OffloadingWorker=object, ReqContext=ReqContext,
           RequestOffloadingContext=RequestOffloadingContext,
           ScheduleEndContext=ScheduleEndContext, TransferResult=TransferResult,
           get_offload_block_hash=lambda key: key[:-4],
           get_offload_group_idx=lambda key: int.from_bytes(key[-4:], "big"))
    module("vllm.v1.core", kv_cache_utils=types.SimpleNamespace(
        DEFAULT_NONE_HASH_SEED="vllm-none-hash", get_none_hash_seed=lambda: "vllm-none-hash"))
    module("vllm.v1.kv_offload.cpu.shared_offload_region", SharedOffloadRegion=object)
    module("vllm.v1.kv_offload.tiering.base", JobResult=JobResult,
           SecondaryTierManager=SecondaryTierManager)
    module("vllm.v1.kv_offload.tiering.spec", TieringOffloadingSpec=object)


def spec(*, layers=3, world_size=1, tokens_per_block=32, blocks_per_chunk=2, dtype="bfloat16",
         block_bytes=0, name="model", events=False, groups=None):
    """An OffloadingSpec as the tier sees it."""
    group = types.SimpleNamespace(tokens_per_block=tokens_per_block, group_id=0,
                                  layer_names=tuple(f"layer.{index}" for index in range(layers)))
    parallel = types.SimpleNamespace(rank=0, world_size=world_size, tp_size=world_size, pp_size=1,
                                     pcp_size=1, dcp_size=1, data_parallel_index=0,
                                     is_parallelism_agnostic=False)
    config = types.SimpleNamespace(
        groups=groups or (group,), worker_kv_bytes_per_block=block_bytes,
        model=types.SimpleNamespace(name=name, dtype=dtype), kv_cache_layout="LBHNC",
        cache=types.SimpleNamespace(tokens_per_hash=tokens_per_block,
                                    blocks_per_chunk=blocks_per_chunk),
        parallel=parallel, replicated_layout=False, canonical_layout=False, engine_id="engine")
    return types.SimpleNamespace(
        config=config, replicated_layout=False,
        kv_events_config=types.SimpleNamespace(enable_kv_cache_events=events))
