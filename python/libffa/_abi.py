# SPDX-License-Identifier: Apache-2.0
# Made by python/tools/generate_abi.py from include/ffa. A test compares it with the headers: do not edit it.
"""The C API of libffa: constants, structs, callbacks, and the types of all functions (declare())."""
import ctypes as C

FFA_LOG_ERROR = 0
FFA_LOG_WARNING = 1
FFA_LOG_INFO = 2
FFA_LOG_DEBUG = 3
FFA_OK = 0
FFA_INVALID = 1
FFA_NOMEM = 2
FFA_UNSUPPORTED = 3
FFA_COMPILE = 4
FFA_CACHE = 5
FFA_GPU = 6
FFA_COMM = 7
FFA_TIMEOUT = 8
FFA_BUG = 9
FFA_IO = 10
FFA_NOT_FOUND = 11
FFA_VERSION_MAJOR = 0
FFA_VERSION_MINOR = 1
FFA_VERSION_PATCH = 0
FFA_DEVICE_CPU = -1
FFA_DEVICE_AUTO = -2
FFA_OPEN_NEVER_COMPILE = 1
FFA_OPEN_EXACT_TOOLCHAIN = 2
FFA_OPEN_CPU_FP64 = 4
FFA_OPEN_CACHE_READONLY = 8
FFA_OPEN_LOG_MISSES = 16
FFA_OPEN_RETRY_FAILED = 32
FFA_OPEN_NETWORK_STORE = 64
FFA_OPEN_GROUP_STORE = 128
FFA_OPEN_COPY_HITS = 256
FFA_COST_NONE = 0
FFA_COST_TUNED = 1
FFA_COST_BUILT_IN = 2
FFA_COST_NEAREST = 3
FFA_COST_DEFAULT = 4
FFA_BF16 = 1
FFA_FP16 = 2
FFA_FP32 = 3
FFA_FP64 = 4
FFA_LAYER_NONE = 0
FFA_LAYER_TABLE = 1
FFA_LAYER_STORE = 2
FFA_LAYER_COMPILED = 3
FFA_LAYER_BUNDLE = 4
FFA_COMPILE_FORCE = 1
FFA_COMPILE_PTX = 2
FFA_PRECOMPILE_DRAIN = 1
FFA_PRECOMPILE_CUT = 2
FFA_SPEC_DEBUG = 1
FFA_SPEC_SOFTCAP = 2
FFA_SPEC_OUT_FP32 = 4
FFA_SPEC_BACKWARD = 8
FFA_SPEC_GRAD_FP32 = 16
FFA_SPEC_DETERMINISTIC = 32
FFA_SPEC_MAX_LOGITS = 64
FFA_SPEC_STAGED = 128
FFA_SPEC_SPLIT = 256
FFA_SPEC_PARALLEL = 512
FFA_PACK_AUTO = -1
FFA_SPLIT_AUTO = -1
FFA_HEADS_MAX = 65536
FFA_SINKS_MAX = 8
FFA_SLICE_FULL = 0
FFA_SLICE_CAUSAL = 1
FFA_SLICE_INVCAUSAL = 2
FFA_SLICE_BICAUSAL = 3
FFA_CONTIGUOUS = -9223372036854775808
FFA_PLAN_ISOLATE = 1
FFA_FORWARD_ACCUMULATE = 1
FFA_BACKWARD_ACCUMULATE = 1
FFA_CACHE_READONLY = 1
FFA_CACHE_CREATE = 2
FFA_CACHE_GROUP = 4
FFA_CACHE_NETWORK = 8
FFA_CACHE_FOLLOW_LINKS = 16
FFA_CACHE_GC_DRY_RUN = 1
FFA_CACHE_FAILURES = 1
FFA_CACHE_MISSES = 2
FFA_BUNDLE_ONLY_A = 1
FFA_BUNDLE_ONLY_B = 2
FFA_BUNDLE_DIFFERENT = 3
FFA_DISPATCH_AFFINITY = 0
FFA_DISPATCH_MIN_HEAP = 1
FFA_DISPATCH_SEQUENTIAL = 2
FFA_DISPATCH_ZIGZAG = 3
FFA_DISPATCH_EXACT = 4
FFA_KEYS_WITH_QUERIES = 0
FFA_KEYS_REPLICATED = 1
FFA_KEYS_DISPATCHED = 2
FFA_PARALLEL_MOVE_KEYS = 0
FFA_PARALLEL_MOVE_QUERIES = 1
FFA_PARALLEL_MOVE_AUTO = 2
FFA_TRANSPORT_AUTO = 0
FFA_TRANSPORT_PULL = 1
FFA_TRANSPORT_EXCHANGE = 2
FFA_TRANSPORT_RELAY = 3
FFA_TO_DEVICE = 0
FFA_FROM_DEVICE = 1
FFA_REDUCE_SUM = 0
FFA_REDUCE_AVG = 1
FFA_REDUCE_LSE = 2
FFA_PARALLEL_LANE_COMPUTE = 0
FFA_PARALLEL_LANE_FETCH = 1
FFA_PARALLEL_LANE_REDUCE = 2
FFA_PARALLEL_SPAN_WAIT = 0
FFA_PARALLEL_SPAN_PUBLISH = 1
FFA_PARALLEL_SPAN_COPY = 2
FFA_PARALLEL_SPAN_ATTENTION = 3
FFA_PARALLEL_SPAN_SUMS = 4
FFA_PARALLEL_SPAN_TOTALS = 5
FFA_PARALLEL_SPAN_KEEP = 6
FFA_PARALLEL_SPANS_MAX = 128
FFA_SIDE_QUERIES = 0
FFA_SIDE_KEYS = 1
FFA_SIM_PLAN = 0
FFA_SIM_RELAYED = 1
FFA_SIM_ALL_GATHER = 2
FFA_SIM_RING = 3
FFA_SIM_ZIGZAG = 4
FFA_SIM_ULYSSES = 5
FFA_SIM_METHODS = 6
FFA_SIM_BEST = -1
FFA_TUNE_COMPILE = 1
FFA_TUNE_CHECK = 2
FFA_TUNE_RACE = 3
FFA_TUNE_RESUME = 1
FFA_TUNE_COMPILE_ONLY = 2
FFA_TUNE_BACKWARD_ONLY = 4
FFA_TUNE_REPORT = 1
FFA_TUNE_TABLE = 2
FFA_TUNE_SAMPLES = 3

ffa_log_fn = C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_char_p, C.c_char_p)


class ffa_error(C.Structure):
    _fields_ = [("status", C.c_int), ("native", C.c_int32), ("message", C.c_char * 496)]


class ffa_context_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("cache_path", C.c_char_p),
                ("cache_bytes_max", C.c_uint64), ("templates_dir", C.c_char_p), ("nvrtc_path", C.c_char_p),
                ("nccl_path", C.c_char_p), ("log", ffa_log_fn), ("log_user", C.c_void_p), ("cpu_threads", C.c_uint32),
                ("pad_", C.c_uint32), ("lock_wait_ms", C.c_uint32), ("failure_age_s", C.c_uint32),
                ("bundles", C.c_void_p), ("bundle_count", C.c_int64), ("worker_path", C.c_char_p),
                ("worker_timeout_ms", C.c_uint32), ("worker_memory_mib", C.c_uint32), ("cudart_path", C.c_char_p),
                ("cost_tables", C.c_char_p)]

ffa_environment_fn = C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_char_p)


class ffa_environment_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("reason_count", C.c_int32), ("store_path", C.c_char_p),
                ("chosen_by", C.c_char_p), ("reasons", C.c_void_p)]


class ffa_context_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("device", C.c_int32), ("sm_count", C.c_int32),
                ("cpu_threads", C.c_int32), ("device_name", C.c_char * 128), ("arch", C.c_char * 16),
                ("nvrtc_path", C.c_char * 256), ("nvrtc_version", C.c_char * 32), ("store_path", C.c_char * 256),
                ("store_state", C.c_char * 160), ("bundle_count", C.c_int32), ("bundles_used", C.c_int32),
                ("cudart_path", C.c_char * 256), ("cudart_version", C.c_char * 32), ("driver_version", C.c_char * 32),
                ("device_count", C.c_int32), ("pad_", C.c_int32), ("device_uuid", C.c_uint8 * 16)]


class ffa_version_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("version", C.c_char * 32),
                ("commit", C.c_char * 48), ("templates_digest", C.c_char * 40), ("cuda_built", C.c_char * 32),
                ("cudart_path", C.c_char * 256), ("cudart_version", C.c_char * 32), ("driver_version", C.c_char * 32),
                ("nvrtc_path", C.c_char * 256), ("nvrtc_version", C.c_char * 32)]


class ffa_context_stats(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("hits_table", C.c_uint64),
                ("hits_store", C.c_uint64), ("misses", C.c_uint64), ("compiles", C.c_uint64),
                ("compile_fails", C.c_uint64), ("compile_us", C.c_uint64), ("store_bad", C.c_uint64),
                ("store_errors", C.c_uint64), ("forward_calls", C.c_uint64), ("lock_waits", C.c_uint64),
                ("lock_timeouts", C.c_uint64), ("waited_us", C.c_uint64), ("lock_errors", C.c_uint64),
                ("hits_bundle", C.c_uint64), ("fails_known", C.c_uint64), ("backward_calls", C.c_uint64)]


class ffa_cost_table_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("source", C.c_int32), ("device", C.c_char * 32),
                ("digest", C.c_char * 40), ("templates", C.c_char * 40), ("origin", C.c_char * 160),
                ("path", C.c_char * 256), ("skipped", C.c_char * 256), ("sm_count", C.c_int32), ("pad_", C.c_int32),
                ("l2_bytes", C.c_int64), ("device_name", C.c_char * 128)]

ffa_cost_table_fn = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p)


class ffa_kernel_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("registers", C.c_int32), ("shared_bytes", C.c_int32),
                ("spill_bytes", C.c_int32), ("advisory_count", C.c_int32), ("threads", C.c_int32),
                ("cubin_bytes", C.c_int64), ("compile_us", C.c_int64), ("resolve_us", C.c_int64), ("layer", C.c_int),
                ("key", C.c_char * 33), ("toolchain", C.c_char * 47), ("template_name", C.c_char * 32),
                ("arch", C.c_char * 16)]


class ffa_compile_request(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("template_name", C.c_char_p),
                ("settings", C.c_void_p), ("setting_count", C.c_int64), ("arch", C.c_char_p)]


class ffa_precompile_event(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("index", C.c_int64), ("status", C.c_int),
                ("busy", C.c_int32), ("info", C.c_void_p), ("message", C.c_char_p), ("log", C.c_char_p),
                ("worker", C.c_int32), ("worker_signal", C.c_int32), ("worker_status", C.c_int32),
                ("pad2_", C.c_int32)]


class ffa_precompile_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("threads", C.c_uint32), ("pad_", C.c_uint32),
                ("deadline_ms", C.c_int64),
                ("progress", C.CFUNCTYPE(None, C.c_void_p, C.c_int64, C.c_int, C.c_void_p, C.c_char_p)),
                ("user", C.c_void_p), ("stop", C.c_void_p), ("event", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)),
                ("tick_ms", C.c_int64)]


class ffa_precompile_report(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("requested", C.c_int64), ("compiled", C.c_int64),
                ("hit", C.c_int64), ("failed", C.c_int64), ("unfinished", C.c_int64), ("first_failed", C.c_int64),
                ("spent_us", C.c_int64), ("saved_us", C.c_int64), ("wall_us", C.c_int64)]


class ffa_spec_row(C.Structure):
    _fields_ = [("name", C.c_char_p), ("doc", C.c_char_p), ("initial", C.c_int32), ("min", C.c_int32),
                ("max", C.c_int32)]


class ffa_attention_spec(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("dtype", C.c_int), ("head_dim", C.c_int32), ("flags", C.c_uint32),
                ("tile_m", C.c_int32), ("tile_n", C.c_int32), ("head_dim_v", C.c_int32),
                ("backward_tile_m", C.c_int32), ("backward_tile_n", C.c_int32), ("pack_heads", C.c_int32),
                ("heads_q", C.c_int32), ("heads_kv", C.c_int32), ("split", C.c_int32), ("pad_", C.c_int32)]


class ffa_slice(C.Structure):
    _fields_ = [("q_begin", C.c_int64), ("q_end", C.c_int64), ("k_begin", C.c_int64), ("k_end", C.c_int64),
                ("type", C.c_int32), ("pad_", C.c_int32)]


class ffa_mask_shape(C.Structure):
    _fields_ = [("seqlen_q", C.c_int64), ("seqlen_k", C.c_int64)]


class ffa_slice_list(C.Structure):
    _fields_ = [("slices", C.c_void_p), ("count", C.c_int64)]


class ffa_window(C.Structure):
    _fields_ = [("left", C.c_int64), ("right", C.c_int64)]


class ffa_documents(C.Structure):
    _fields_ = [("cu_q", C.c_void_p), ("cu_k", C.c_void_p), ("document_count", C.c_int64), ("cu_q32", C.c_void_p),
                ("cu_k32", C.c_void_p)]


class ffa_block_size(C.Structure):
    _fields_ = [("block_q", C.c_int64), ("block_k", C.c_int64)]


class ffa_dense_mask(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("heads", C.c_int32), ("shape", ffa_mask_shape), ("cells", C.c_void_p),
                ("row_stride", C.c_int64), ("head_stride", C.c_int64)]


class ffa_mask_box(C.Structure):
    _fields_ = [("q_begin", C.c_int64), ("q_end", C.c_int64), ("k_begin", C.c_int64), ("k_end", C.c_int64)]

ffa_mask_mod = C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p)


class ffa_block_list(C.Structure):
    _fields_ = [("num_blocks", C.c_void_p), ("indices", C.c_void_p), ("num_head_stride", C.c_int64),
                ("index_head_stride", C.c_int64), ("index_row_stride", C.c_int64), ("blocks_max", C.c_int64)]


class ffa_block_mask(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("heads", C.c_int32), ("shape", ffa_mask_shape),
                ("block", ffa_block_size), ("kv", ffa_block_list), ("full", ffa_block_list),
                ("mask_mod", ffa_mask_mod), ("user", C.c_void_p)]


class ffa_mask_offset(C.Structure):
    _fields_ = [("q", C.c_int64), ("k", C.c_int64)]


class ffa_mask_report(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("overlap_head", C.c_int32), ("overlap_row", C.c_int64),
                ("overlap_key", C.c_int64), ("area", C.c_int64), ("area_of_slices", C.c_int64),
                ("empty_rows", C.c_int64), ("unattended_keys", C.c_int64), ("empty_slices", C.c_int64)]


class ffa_tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("token_stride", C.c_int64), ("head_stride", C.c_int64), ("tokens", C.c_int64),
                ("head_dim", C.c_int64), ("batch_stride", C.c_int64), ("batch", C.c_int32), ("heads", C.c_int32),
                ("dtype", C.c_int32), ("pad_", C.c_int32)]


class ffa_plan_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("heads_q", C.c_int32),
                ("backward_parts_max", C.c_int32), ("capacity_bytes", C.c_int64), ("like", C.c_void_p)]


class ffa_plan_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("tile_m", C.c_int32), ("tile_n", C.c_int32), ("tile_count", C.c_int32),
                ("sweep_count", C.c_int64), ("block_count", C.c_int64), ("partial_blocks", C.c_int64),
                ("area", C.c_int64), ("upload_bytes", C.c_int64), ("backward_tile_m", C.c_int32),
                ("backward_tile_n", C.c_int32), ("backward_tile_count", C.c_int32),
                ("backward_whole_heads", C.c_int32), ("backward_block_count", C.c_int64),
                ("backward_partial_blocks", C.c_int64), ("pack_heads", C.c_int32), ("is_isolated", C.c_int32),
                ("split_heads", C.c_int32), ("split_tiles", C.c_int32), ("l2_heads_kv", C.c_int32),
                ("backward_parts", C.c_int32), ("backward_waves", C.c_int32), ("backward_l2_head_groups", C.c_int32),
                ("cost_table", C.c_char * 32), ("image_bytes", C.c_int64), ("capacity_bytes", C.c_int64),
                ("cost_digest", C.c_char * 20), ("cost_source", C.c_int32)]


class ffa_forward_args(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("heads_q", C.c_int32), ("heads_kv", C.c_int32),
                ("sm_margin", C.c_int32), ("softmax_scale", C.c_double), ("softcap", C.c_double), ("q", ffa_tensor),
                ("k", ffa_tensor), ("v", ffa_tensor), ("out", ffa_tensor), ("lse", ffa_tensor), ("sink", C.c_void_p),
                ("sink_count", C.c_int32), ("flags", C.c_uint32), ("max_logits", C.c_void_p), ("partial", ffa_tensor),
                ("workspace", C.c_void_p), ("workspace_bytes", C.c_int64)]


class ffa_backward_args(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("heads_q", C.c_int32), ("heads_kv", C.c_int32),
                ("sm_margin", C.c_int32), ("softmax_scale", C.c_double), ("softcap", C.c_double), ("q", ffa_tensor),
                ("k", ffa_tensor), ("v", ffa_tensor), ("out", ffa_tensor), ("lse", ffa_tensor), ("dout", ffa_tensor),
                ("dq", ffa_tensor), ("dk", ffa_tensor), ("dv", ffa_tensor), ("dsink", C.c_void_p),
                ("sink", C.c_void_p), ("sink_count", C.c_int32), ("flags", C.c_uint32), ("partial_dk", ffa_tensor),
                ("partial_dv", ffa_tensor), ("dlse", ffa_tensor), ("workspace", C.c_void_p),
                ("workspace_bytes", C.c_int64)]


class ffa_cache_stats(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("schema", C.c_int32), ("kernels", C.c_int64), ("blobs", C.c_int64),
                ("blob_bytes", C.c_int64), ("file_bytes", C.c_int64), ("free_bytes", C.c_int64),
                ("compile_us", C.c_int64), ("oldest_s", C.c_int64), ("newest_s", C.c_int64), ("failures", C.c_int64),
                ("misses", C.c_int64)]


class ffa_cache_counters(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("sessions", C.c_uint64),
                ("hits_table", C.c_uint64), ("hits_store", C.c_uint64), ("hits_bundle", C.c_uint64),
                ("misses", C.c_uint64), ("compiles", C.c_uint64), ("compile_fails", C.c_uint64),
                ("compile_us", C.c_uint64), ("saved_us", C.c_uint64)]


class ffa_cache_entry(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("key", C.c_char_p), ("toolchain", C.c_char_p),
                ("template_name", C.c_char_p), ("arch", C.c_char_p), ("record", C.c_char_p), ("digest", C.c_char_p),
                ("cubin_bytes", C.c_int64), ("created_s", C.c_int64), ("used_s", C.c_int64),
                ("compile_us", C.c_int64), ("registers", C.c_int32), ("shared_bytes", C.c_int32),
                ("spill_bytes", C.c_int32), ("advisory_count", C.c_int32), ("threads", C.c_int32),
                ("is_bad", C.c_int32)]

ffa_cache_visit = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p)


class ffa_cache_verdict(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("checked", C.c_int64), ("bad", C.c_int64)]


class ffa_cache_gc_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("unused_s", C.c_int64), ("bytes_max", C.c_int64)]


class ffa_cache_gc_report(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("removed", C.c_int64), ("kept", C.c_int64),
                ("bytes_before", C.c_int64), ("bytes_after", C.c_int64)]


class ffa_cache_failure(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("key", C.c_char_p), ("toolchain", C.c_char_p),
                ("template_name", C.c_char_p), ("arch", C.c_char_p), ("record", C.c_char_p), ("message", C.c_char_p),
                ("log", C.c_char_p), ("failed_s", C.c_int64)]


class ffa_cache_miss(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("key", C.c_char_p), ("template_name", C.c_char_p),
                ("arch", C.c_char_p), ("record", C.c_char_p), ("noted", C.c_int64), ("first_s", C.c_int64),
                ("last_s", C.c_int64)]

ffa_cache_failure_visit = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p)

ffa_cache_miss_visit = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p)


class ffa_bundle_filter(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("template_name", C.c_char_p),
                ("arch", C.c_char_p), ("toolchain", C.c_char_p), ("digest", C.c_char_p), ("stop", C.c_void_p)]


class ffa_bundle_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("schema", C.c_int32), ("kernels", C.c_int64), ("blobs", C.c_int64),
                ("blob_bytes", C.c_int64), ("file_bytes", C.c_int64), ("created_s", C.c_int64),
                ("left_out", C.c_int64), ("digest", C.c_char * 65), ("pad_", C.c_char * 7), ("fitting", C.c_int64),
                ("library_version", C.c_char * 32), ("templates_digest", C.c_char * 40)]


class ffa_bundle_report(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("added", C.c_int64), ("present", C.c_int64),
                ("conflicts", C.c_int64), ("bad", C.c_int64)]


class ffa_bundle_verdict(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("checked", C.c_int64), ("bad", C.c_int64),
                ("missing", C.c_int64)]


class ffa_bundle_difference(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("same", C.c_int64), ("only_a", C.c_int64),
                ("only_b", C.c_int64), ("different", C.c_int64)]

ffa_bundle_visit = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int, C.c_void_p)


class ffa_topology(C.Structure):
    _fields_ = [("rank_count", C.c_int32), ("ranks_per_node", C.c_int32)]


class ffa_dispatch_mask(C.Structure):
    _fields_ = [("mask", C.c_void_p), ("weight", C.c_int64)]


class ffa_dispatch_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("algorithm", C.c_int32), ("chunk_tokens", C.c_int64),
                ("cu_chunks", C.c_void_p), ("chunk_count", C.c_int64), ("slack_permille", C.c_int32),
                ("flags", C.c_uint32), ("swap_max", C.c_int64), ("keys", C.c_int32), ("pad_", C.c_int32),
                ("key_chunk_tokens", C.c_int64)]


class ffa_dispatch_chunk(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("rank", C.c_int32), ("begin", C.c_int64), ("end", C.c_int64),
                ("local_begin", C.c_int64), ("load", C.c_int64), ("area", C.c_int64)]


class ffa_dispatch_load(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_int32), ("tokens", C.c_int64), ("load", C.c_int64),
                ("area", C.c_int64), ("visited", C.c_int64), ("received_node", C.c_int64),
                ("received_network", C.c_int64), ("sent_node", C.c_int64), ("sent_network", C.c_int64),
                ("received_relayed", C.c_int64), ("fragments", C.c_int64)]


class ffa_dispatch_report(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("algorithm", C.c_int32), ("chunk_count", C.c_int64),
                ("total", ffa_dispatch_load), ("most", ffa_dispatch_load), ("load_imbalance", C.c_double),
                ("visited_imbalance", C.c_double), ("swap_gain", C.c_double)]


class ffa_parallel_model(C.Structure):
    _fields_ = [("heads_q", C.c_int32), ("heads_kv", C.c_int32), ("head_dim", C.c_int32),
                ("element_bytes", C.c_int32), ("forward_gflops", C.c_int64), ("backward_gflops", C.c_int64),
                ("node_mbytes_s", C.c_int64), ("network_mbytes_s", C.c_int64), ("node_latency_ns", C.c_int64),
                ("network_latency_ns", C.c_int64), ("launch_ns", C.c_int64)]


class ffa_parallel_plan_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("tile_m", C.c_int32), ("tile_n", C.c_int32), ("backward_m", C.c_int32),
                ("backward_n", C.c_int32), ("forward_stages", C.c_int32), ("backward_stages", C.c_int32),
                ("stages_max", C.c_int32), ("buffers", C.c_int32), ("flags", C.c_uint32), ("moves", C.c_int32),
                ("sms", C.c_int32), ("stage_rows_min", C.c_int64), ("model", ffa_parallel_model),
                ("head_dim_v", C.c_int32), ("pad_end_", C.c_int32), ("memory_bytes", C.c_int64),
                ("forward_begin_keys", C.c_int32), ("backward_begin_rows", C.c_int32), ("window_mbytes_s", C.c_int64)]


class ffa_parallel_plan_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("rank", C.c_int32), ("rank_count", C.c_int32),
                ("forward_stages", C.c_int32), ("backward_stages", C.c_int32), ("steps", C.c_int32),
                ("moves", C.c_int32), ("pad_", C.c_int32), ("tokens_q", C.c_int64), ("tokens_k", C.c_int64),
                ("area", C.c_int64), ("received_rows", C.c_int64), ("sent_rows", C.c_int64),
                ("stage_rows", C.c_int64), ("forward_ns", C.c_int64), ("backward_ns", C.c_int64),
                ("forward_slowest_ns", C.c_int64), ("backward_slowest_ns", C.c_int64), ("forward_work_ns", C.c_int64),
                ("backward_work_ns", C.c_int64), ("forward_work_most_ns", C.c_int64),
                ("backward_work_most_ns", C.c_int64), ("forward_uniform_ns", C.c_int64),
                ("backward_uniform_ns", C.c_int64), ("forward_compute_ns", C.c_int64),
                ("backward_compute_ns", C.c_int64), ("forward_bytes", C.c_int64), ("backward_bytes", C.c_int64),
                ("model", ffa_parallel_model), ("head_dim_v", C.c_int32), ("rounds", C.c_int32),
                ("key_bytes", C.c_int64), ("sum_bytes", C.c_int64), ("received_sum_bytes", C.c_int64),
                ("workspace_bytes", C.c_int64), ("memory_bytes", C.c_int64), ("memory_most_bytes", C.c_int64)]


class ffa_parallel_rank(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("forward_stages", C.c_int32), ("backward_stages", C.c_int32),
                ("pad_", C.c_int32), ("tokens_q", C.c_int64), ("tokens_k", C.c_int64), ("received_rows", C.c_int64),
                ("forward_ns", C.c_int64), ("backward_ns", C.c_int64), ("forward_work_ns", C.c_int64),
                ("backward_work_ns", C.c_int64)]


class ffa_parallel_stage(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_int32), ("rows", C.c_int64), ("blocks", C.c_int64),
                ("fetch_begin_ns", C.c_int64), ("fetch_end_ns", C.c_int64), ("compute_begin_ns", C.c_int64),
                ("compute_end_ns", C.c_int64), ("reduce_begin_ns", C.c_int64), ("reduce_end_ns", C.c_int64)]


class ffa_parallel_receive(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("source", C.c_int32), ("source_row", C.c_int64), ("row", C.c_int64),
                ("rows", C.c_int64)]


class ffa_parallel_cache_counts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_int32), ("hits", C.c_int64), ("misses", C.c_int64),
                ("evictions", C.c_int64), ("entries", C.c_int64)]


class ffa_link_rate(C.Structure):
    _fields_ = [("range_bytes", C.c_int64), ("mbytes_s", C.c_int64)]


class ffa_kernel_rate(C.Structure):
    _fields_ = [("is_backward", C.c_int32), ("head_dim", C.c_int32), ("head_dim_v", C.c_int32), ("tile_m", C.c_int32),
                ("tile_n", C.c_int32), ("begin_tokens", C.c_int32), ("gflops", C.c_int64)]


class ffa_calibration(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("link_count", C.c_int32), ("kernel_count", C.c_int32),
                ("sms", C.c_int32), ("links", C.c_void_p), ("kernels", C.c_void_p), ("node_latency_ns", C.c_int64),
                ("launch_ns", C.c_int64), ("window_mbytes_s", C.c_int64)]


class ffa_loopback_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("delay", C.c_int32), ("seed", C.c_uint64), ("timeout_ms", C.c_int64)]

ffa_comm_allgather = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t)


class ffa_peer_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("rank", C.c_int32), ("rank_count", C.c_int32),
                ("ranks_per_node", C.c_int32), ("allgather", ffa_comm_allgather), ("user", C.c_void_p),
                ("key_bytes", C.c_int64), ("sum_bytes", C.c_int64), ("timeout_ms", C.c_int64),
                ("transport", C.c_int32), ("max_ctas", C.c_int32), ("nccl_path", C.c_char_p)]


class ffa_nccl_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("transport", C.c_int32), ("comm", C.c_void_p), ("key_bytes", C.c_int64),
                ("sum_bytes", C.c_int64), ("timeout_ms", C.c_int64), ("max_ctas", C.c_int32),
                ("ranks_per_node", C.c_int32), ("nccl_path", C.c_char_p)]


class ffa_dltensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int32), ("device_id", C.c_int32), ("ndim", C.c_int32),
                ("dtype_code", C.c_uint8), ("dtype_bits", C.c_uint8), ("dtype_lanes", C.c_uint16),
                ("shape", C.c_void_p), ("strides", C.c_void_p), ("byte_offset", C.c_uint64)]


class ffa_explain_query(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("plan_flags", C.c_uint32), ("spec", C.c_void_p), ("mask", C.c_void_p),
                ("device", C.c_char_p)]


class ffa_explain_candidate(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("is_backward", C.c_int32), ("is_chosen", C.c_int32),
                ("tile_m", C.c_int32), ("tile_n", C.c_int32), ("consumers", C.c_int32), ("is_apart", C.c_int32),
                ("is_split", C.c_int32), ("tile_count", C.c_int64), ("parts", C.c_int32), ("waves", C.c_int32),
                ("l2_head_groups", C.c_int32), ("whole_heads", C.c_int32), ("time", C.c_double), ("us", C.c_double),
                ("whole_time", C.c_double)]

ffa_explain_fn = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p)


class ffa_explain_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("sm_count", C.c_int32), ("l2_bytes", C.c_int64),
                ("device", C.c_char * 128), ("forward_why", C.c_char * 200), ("backward_why", C.c_char * 200)]


class ffa_row_kernels_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("dtype", C.c_int32), ("wire_dtype", C.c_int32), ("reduces", C.c_uint32)]


class ffa_group_lists(C.Structure):
    _fields_ = [("input_rows", C.c_void_p), ("dst_begin", C.c_void_p), ("dst", C.c_void_p),
                ("output_rows", C.c_void_p), ("src", C.c_void_p), ("input_count", C.c_int64),
                ("output_count", C.c_int64)]


class ffa_group_copy(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("rank", C.c_int32), ("input_row", C.c_int64), ("output_row", C.c_int64),
                ("rows", C.c_int64)]


class ffa_group_size(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_int32), ("input_rows", C.c_int64),
                ("output_rows", C.c_int64), ("sent_rows", C.c_int64), ("received_rows", C.c_int64)]


class ffa_group_format(C.Structure):
    _fields_ = [("dtype", C.c_int32), ("heads", C.c_int32), ("head_dim", C.c_int64)]


class ffa_group_source(C.Structure):
    _fields_ = [("data", C.c_void_p), ("lse", C.c_void_p)]


class ffa_group_target(C.Structure):
    _fields_ = [("data", C.c_void_p), ("lse", C.c_void_p)]


class ffa_group_device_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_int32), ("upload_bytes", C.c_int64),
                ("cast_bytes", C.c_int64), ("reduce_bytes", C.c_int64)]


class ffa_parallel_args(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("heads_q", C.c_int32), ("heads_kv", C.c_int32), ("head_dim", C.c_int32),
                ("dtype", C.c_int32), ("sum_dtype", C.c_int32), ("softmax_scale", C.c_double),
                ("softcap", C.c_double), ("q", ffa_tensor), ("k", ffa_tensor), ("v", ffa_tensor), ("out", ffa_tensor),
                ("lse", ffa_tensor), ("sink", C.c_void_p), ("sink_count", C.c_int32), ("threads", C.c_int32),
                ("max_logits", C.c_void_p), ("dout", ffa_tensor), ("dq", ffa_tensor), ("dk", ffa_tensor),
                ("dv", ffa_tensor), ("dsink", C.c_void_p), ("dlse", ffa_tensor), ("head_dim_v", C.c_int32),
                ("sm_margin", C.c_int32), ("workspace", C.c_void_p), ("workspace_bytes", C.c_int64),
                ("trace", C.c_void_p), ("wire_dtype", C.c_int32), ("pad_", C.c_int32), ("kept_keys", C.c_void_p),
                ("kept_bytes", C.c_int64)]


class ffa_parallel_pass_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("forward_stages", C.c_int32), ("backward_stages", C.c_int32),
                ("rounds", C.c_int32), ("received_rows", C.c_int64), ("upload_bytes", C.c_int64),
                ("key_bytes", C.c_int64), ("sum_bytes", C.c_int64), ("forward_workspace_bytes", C.c_int64),
                ("backward_workspace_bytes", C.c_int64), ("received_sum_bytes", C.c_int64),
                ("memory_bytes", C.c_int64), ("kept_bytes", C.c_int64)]


class ffa_parallel_span(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("lane", C.c_int32), ("kind", C.c_int32), ("stage", C.c_int32),
                ("rank", C.c_int32), ("pad_", C.c_int32), ("begin_us", C.c_double), ("end_us", C.c_double),
                ("bytes", C.c_int64)]


class ffa_rows(C.Structure):
    _fields_ = [("dispatch", C.c_void_p), ("side", C.c_int32), ("rank", C.c_int32), ("dtype", C.c_int32),
                ("heads", C.c_int32), ("head_dim", C.c_int64)]


class ffa_parallel_rows_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("side", C.c_int32), ("rank", C.c_int32), ("pad_", C.c_int32),
                ("shift", C.c_int64), ("cu_tokens", C.c_void_p), ("document_count", C.c_int64)]


class ffa_row_format(C.Structure):
    _fields_ = [("element_bytes", C.c_int32), ("heads", C.c_int32), ("columns", C.c_int64)]


class ffa_parallel_rows_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_int32), ("whole_rows", C.c_int64),
                ("local_rows", C.c_int64), ("upload_bytes", C.c_int64), ("undispatch_bytes", C.c_int64),
                ("roll_bytes", C.c_int64), ("direct_bytes", C.c_int64), ("reduce_bytes", C.c_int64)]


class ffa_sim_pass(C.Structure):
    _fields_ = [("ns", C.c_int64), ("compute_ns", C.c_int64), ("efficiency", C.c_double)]


class ffa_sim_result(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("method", C.c_int32), ("is_possible", C.c_int32), ("stages", C.c_int32),
                ("forward", ffa_sim_pass), ("backward", ffa_sim_pass), ("node_bytes", C.c_int64),
                ("network_bytes", C.c_int64), ("why_not", C.c_char * 104)]


class ffa_sim_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("algorithm", C.c_int32), ("chunk_tokens", C.c_int64),
                ("model", ffa_parallel_model), ("head_dim_v", C.c_int32), ("sms", C.c_int32),
                ("memory_bytes", C.c_int64), ("forward_begin_keys", C.c_int32), ("backward_begin_rows", C.c_int32),
                ("window_mbytes_s", C.c_int64)]


class ffa_tune_event(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("phase", C.c_int), ("done", C.c_int64), ("total", C.c_int64),
                ("spent_ms", C.c_int64), ("budget_ms", C.c_int64), ("configuration", C.c_int32),
                ("tile_m", C.c_int32), ("tile_n", C.c_int32), ("pad_", C.c_int32), ("state", C.c_char_p),
                ("reason", C.c_char_p), ("is_backward", C.c_int32), ("parts", C.c_int32), ("waves", C.c_int32),
                ("whole_heads", C.c_int32), ("is_unlocked", C.c_int32), ("pad2_", C.c_int32)]


class ffa_tune_opts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("session_path", C.c_char_p),
                ("masks", C.c_void_p), ("mask_count", C.c_int64), ("tiles", C.c_void_p), ("tile_count", C.c_int64),
                ("budget_ms", C.c_int64), ("run_timeout_ms", C.c_int64),
                ("event", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)), ("user", C.c_void_p), ("stop", C.c_void_p),
                ("device", C.c_char_p), ("part", C.c_int32), ("part_count", C.c_int32), ("join_path", C.c_char_p)]


class ffa_tune_outcome(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("pad_", C.c_uint32), ("is_over", C.c_int32),
                ("must_restart", C.c_int32), ("spent_ms", C.c_int64)]


class ffa_tune_info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("session_count", C.c_int32), ("is_published", C.c_int32),
                ("pad_", C.c_int32), ("sample_count", C.c_int64), ("gain", C.c_double), ("noise", C.c_double),
                ("device", C.c_char * 128), ("templates_digest", C.c_char * 40), ("table_digest", C.c_char * 40),
                ("samples_digest", C.c_char * 40)]


FUNCTIONS = {  # name: (result, arguments)
    "ffa_status_text": (C.c_char_p, [C.c_int]),
    "ffa_version": (C.c_char_p, []),
    "ffa_free": (None, [C.c_void_p]),
    "ffa_context_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_context_opts_from_environment": (C.c_int, [C.c_void_p, C.c_void_p, ffa_environment_fn, C.c_void_p,
                                                    C.c_void_p]),
    "ffa_environment_destroy": (None, [C.c_void_p]),
    "ffa_environment_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_environment_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_open": (C.c_int, [C.c_void_p, C.c_int, C.c_void_p, C.c_void_p]),
    "ffa_close": (None, [C.c_void_p]),
    "ffa_context_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_context_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_context_open_compiler": (C.c_int, [C.c_void_p, C.c_void_p]),
    "ffa_version_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_version_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_context_stats_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_context_stats_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_cost_source_text": (C.c_char_p, [C.c_int]),
    "ffa_cost_table_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_cost_tables_list": (C.c_int, [C.c_void_p, ffa_cost_table_fn, C.c_void_p, C.c_void_p]),
    "ffa_cost_table_get": (C.c_int, [C.c_void_p, C.c_char_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_dtype_bytes": (C.c_size_t, [C.c_int]),
    "ffa_layer_text": (C.c_char_p, [C.c_int]),
    "ffa_kernel_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_compile_request_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_compile": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_compiled_destroy": (None, [C.c_void_p]),
    "ffa_compiled_info": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_compiled_cubin": (C.c_void_p, [C.c_void_p, C.c_void_p]),
    "ffa_compiled_ptx": (C.c_char_p, [C.c_void_p]),
    "ffa_compiled_log": (C.c_char_p, [C.c_void_p]),
    "ffa_compiled_record": (C.c_char_p, [C.c_void_p]),
    "ffa_compile_command": (C.c_int, [C.c_void_p, C.c_void_p, C.c_char_p, C.c_char_p, C.c_void_p, C.c_void_p]),
    "ffa_compile_key": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_precompile_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_precompile_report_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_precompile": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_worker_main": (C.c_int, []),
    "ffa_template_count": (C.c_int32, []),
    "ffa_template_name": (C.c_char_p, [C.c_int32]),
    "ffa_template_doc": (C.c_char_p, [C.c_int32]),
    "ffa_template_row": (C.c_int, [C.c_int32, C.c_int32, C.c_void_p]),
    "ffa_templates_digest": (None, [C.c_void_p]),
    "ffa_attention_spec_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_attention_spec_parse": (C.c_int, [C.c_void_p, C.c_char_p, C.c_void_p]),
    "ffa_spec_requests": (C.c_int, [C.c_void_p, C.c_void_p, C.c_char_p, C.c_void_p]),
    "ffa_spec_requests_on": (C.c_int, [C.c_void_p, C.c_void_p, C.c_char_p, C.c_void_p, C.c_char_p, C.c_void_p]),
    "ffa_requests_get": (C.c_void_p, [C.c_void_p, C.c_void_p]),
    "ffa_requests_destroy": (None, [C.c_void_p]),
    "ffa_kernels_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_kernels_destroy": (None, [C.c_void_p]),
    "ffa_kernels_info": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_mask_create_per_head": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p]),
    "ffa_mask_destroy": (None, [C.c_void_p]),
    "ffa_mask_full": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_causal": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_window": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_varlen_full": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_varlen_causal": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_varlen_window": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_mask_block_causal": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_mask_shared_prefix": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_shared_question": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_global_window": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_mask_block_sparse": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_block_sparse_variable": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p, C.c_int64, C.c_void_p,
                                                 C.c_void_p]),
    "ffa_mask_block_topk": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_dense_mask_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_mask_from_dense": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_block_mask_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_mask_from_block_mask": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_concat": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_mask_crop": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_shift": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_union": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_mask_parse": (C.c_int, [C.c_void_p, C.c_char_p, C.c_void_p]),
    "ffa_mask_parse_json": (C.c_int, [C.c_void_p, C.c_char_p, C.c_size_t, C.c_void_p]),
    "ffa_mask_to_json": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_seqlen_q": (C.c_int64, [C.c_void_p]),
    "ffa_mask_seqlen_k": (C.c_int64, [C.c_void_p]),
    "ffa_mask_head_count": (C.c_int32, [C.c_void_p]),
    "ffa_mask_slices": (ffa_slice_list, [C.c_void_p, C.c_int32]),
    "ffa_mask_area": (C.c_int64, [C.c_void_p, C.c_int32]),
    "ffa_mask_report_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_mask_check": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_mask_svg": (C.c_int, [C.c_void_p, C.c_int32, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_mask_text_picture": (C.c_int, [C.c_void_p, C.c_int32, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_tensor_init": (None, [C.c_void_p, C.c_void_p]),
    "ffa_plan_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_plan_destroy": (None, [C.c_void_p]),
    "ffa_plan_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_plan_create_with": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_plan_create_stages": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_plan_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_plan_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_plan_kernel": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_plan_upload": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_forward_args_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_workspace_bytes": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_forward": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_backward_args_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_backward_workspace_bytes": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int32, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_backward": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_attention": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_cache_open": (C.c_int, [C.c_void_p, C.c_char_p, C.c_uint32, C.c_void_p]),
    "ffa_cache_close": (None, [C.c_void_p]),
    "ffa_cache_stats_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_cache_stats_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_cache_counters_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_cache_counters_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_cache_list": (C.c_int, [C.c_void_p, C.c_char_p, ffa_cache_visit, C.c_void_p, C.c_void_p]),
    "ffa_cache_cubin": (C.c_int, [C.c_void_p, C.c_char_p, C.c_char_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_cache_verdict_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_cache_verify": (C.c_int, [C.c_void_p, C.c_void_p, ffa_cache_visit, C.c_void_p, C.c_void_p]),
    "ffa_cache_gc_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_cache_gc_report_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_cache_gc": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, ffa_cache_visit, C.c_void_p, C.c_void_p]),
    "ffa_cache_remove": (C.c_int, [C.c_void_p, C.c_char_p, C.c_void_p, C.c_void_p]),
    "ffa_cache_clear": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_cache_list_failures": (C.c_int, [C.c_void_p, ffa_cache_failure_visit, C.c_void_p, C.c_void_p]),
    "ffa_cache_list_misses": (C.c_int, [C.c_void_p, ffa_cache_miss_visit, C.c_void_p, C.c_void_p]),
    "ffa_cache_forget": (C.c_int, [C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p]),
    "ffa_bundle_filter_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_bundle_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_bundle_export": (C.c_int, [C.c_void_p, C.c_void_p, C.c_char_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_bundle_report_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_bundle_import": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_bundle_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_bundle_manifest": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_bundle_verdict_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_bundle_verify": (C.c_int, [C.c_void_p, C.c_void_p, ffa_cache_visit, C.c_void_p, C.c_void_p]),
    "ffa_bundle_difference_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_bundle_diff": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, ffa_bundle_visit, C.c_void_p, C.c_void_p]),
    "ffa_dispatch_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_dispatch_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_dispatch_destroy": (None, [C.c_void_p]),
    "ffa_dispatch_chunk_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_dispatch_chunk_count": (C.c_int64, [C.c_void_p]),
    "ffa_dispatch_chunk_get": (C.c_int, [C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p]),
    "ffa_dispatch_key_chunk_count": (C.c_int64, [C.c_void_p]),
    "ffa_dispatch_key_chunk_get": (C.c_int, [C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p]),
    "ffa_dispatch_rank_chunks": (C.c_void_p, [C.c_void_p, C.c_int32, C.c_void_p]),
    "ffa_dispatch_query_rows": (C.c_int64, [C.c_void_p, C.c_int32]),
    "ffa_dispatch_key_rows": (C.c_int64, [C.c_void_p, C.c_int32]),
    "ffa_dispatch_digest": (C.c_char_p, [C.c_void_p]),
    "ffa_dispatch_load_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_dispatch_report_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_dispatch_report_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_plan_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_plan_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_parallel_plan_destroy": (None, [C.c_void_p]),
    "ffa_dispatch_create_best": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p,
                                           C.c_void_p]),
    "ffa_parallel_plan_digest": (C.c_char_p, [C.c_void_p]),
    "ffa_parallel_plan_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_plan_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_rank_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_plan_rank_get": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_parallel_stage_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_plan_stage_get": (C.c_int, [C.c_void_p, C.c_int32, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_parallel_receive_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_plan_receive_count": (C.c_int64, [C.c_void_p, C.c_int32, C.c_int32]),
    "ffa_parallel_plan_receive_get": (C.c_int, [C.c_void_p, C.c_int32, C.c_int32, C.c_int64, C.c_void_p, C.c_void_p]),
    "ffa_parallel_plan_save": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_plan_load": (C.c_int, [C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p]),
    "ffa_parallel_cache_create": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p]),
    "ffa_parallel_cache_destroy": (None, [C.c_void_p]),
    "ffa_parallel_cache_dispatch": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p,
                                              C.c_void_p]),
    "ffa_parallel_cache_best": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p,
                                          C.c_void_p, C.c_void_p]),
    "ffa_parallel_cache_plan": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p,
                                          C.c_void_p]),
    "ffa_parallel_cache_counts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_cache_counts_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_calibration_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_model_calibrate": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int32, C.c_int64, C.c_void_p]),
    "ffa_parallel_plan_opts_calibrate": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_loopback_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_loopback_create": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_peer_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_comm_create_peer": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_nccl_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_comm_create_nccl": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_comm_transport": (C.c_int, [C.c_void_p]),
    "ffa_comm_reserve": (C.c_int, [C.c_void_p, C.c_int64, C.c_int64, C.c_void_p]),
    "ffa_comm_status": (C.c_int, [C.c_void_p, C.c_void_p]),
    "ffa_comm_destroy": (None, [C.c_void_p]),
    "ffa_comm_rank": (C.c_int32, [C.c_void_p]),
    "ffa_comm_rank_count": (C.c_int32, [C.c_void_p]),
    "ffa_comm_cancel": (None, [C.c_void_p, C.c_char_p]),
    "ffa_device_alloc": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_device_free": (None, [C.c_void_p, C.c_void_p]),
    "ffa_device_copy": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64, C.c_int, C.c_void_p]),
    "ffa_device_fill": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int, C.c_int64, C.c_void_p]),
    "ffa_device_stream_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_device_stream_destroy": (None, [C.c_void_p, C.c_void_p]),
    "ffa_device_stream_synchronize": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_device_synchronize": (C.c_int, [C.c_void_p, C.c_void_p]),
    "ffa_device_time_begin": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_device_time_end": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_tensor_from_dlpack": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_explain_query_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_explain_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_explain": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, ffa_explain_fn, C.c_void_p,
                              C.c_void_p]),
    "ffa_row_kernels_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_row_kernels_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_row_kernels_destroy": (None, [C.c_void_p]),
    "ffa_group_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p]),
    "ffa_group_destroy": (None, [C.c_void_p]),
    "ffa_group_copy_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_group_receive_count": (C.c_int64, [C.c_void_p, C.c_int32]),
    "ffa_group_receive_get": (C.c_int, [C.c_void_p, C.c_int32, C.c_int64, C.c_void_p, C.c_void_p]),
    "ffa_group_send_count": (C.c_int64, [C.c_void_p, C.c_int32]),
    "ffa_group_send_get": (C.c_int, [C.c_void_p, C.c_int32, C.c_int64, C.c_void_p, C.c_void_p]),
    "ffa_group_size_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_group_size_get": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_group_cast_host": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_group_reduce_host": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_group_device_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_group_device_destroy": (None, [C.c_void_p]),
    "ffa_group_device_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_group_device_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p]),
    "ffa_group_device_upload": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_group_cast": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p, C.c_void_p,
                                 C.c_void_p]),
    "ffa_group_reduce": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_int, C.c_void_p, C.c_void_p, C.c_void_p,
                                   C.c_void_p]),
    "ffa_parallel_plan_agree": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_args_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_pass_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_pass_destroy": (None, [C.c_void_p]),
    "ffa_parallel_pass_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_pass_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int32, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_parallel_pass_upload": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_forward": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_backward": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_span_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_trace_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_trace_destroy": (None, [C.c_void_p]),
    "ffa_parallel_trace_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p]),
    "ffa_parallel_forward_host": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_backward_host": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_rows_position_ids": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_rows_dispatch": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_rows_undispatch": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_rows_reduce": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_rows_roll": (C.c_int, [C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_rows_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_rows_create": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_rows_destroy": (None, [C.c_void_p]),
    "ffa_parallel_rows_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_parallel_rows_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_rows_upload": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_rows_position_ids": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_rows_dispatch": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_parallel_rows_dispatch_rolled": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p,
                                                    C.c_void_p, C.c_void_p]),
    "ffa_parallel_rows_scatter": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_uint32, C.c_void_p,
                                            C.c_void_p]),
    "ffa_parallel_rows_undispatch": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p,
                                               C.c_void_p]),
    "ffa_parallel_rows_reduce": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p,
                                           C.c_void_p]),
    "ffa_parallel_rows_roll": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p,
                                         C.c_void_p, C.c_void_p]),
    "ffa_sim_method_text": (C.c_char_p, [C.c_int32]),
    "ffa_sim_result_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_sim_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_simulate": (C.c_int, [C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_tune_opts_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_tune_outcome_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_tune_run": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_tune_preview": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_tune_open": (C.c_int, [C.c_void_p, C.c_void_p, C.c_int64, C.c_void_p]),
    "ffa_tune_destroy": (None, [C.c_void_p]),
    "ffa_tune_info_init": (None, [C.c_void_p, C.c_size_t]),
    "ffa_tune_info_get": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p]),
    "ffa_tune_text": (C.c_int, [C.c_void_p, C.c_int, C.c_void_p, C.c_void_p]),
    "ffa_tune_merge": (C.c_int, [C.c_char_p, C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p]),
    "ffa_tune_import": (C.c_int, [C.c_char_p, C.c_char_p, C.c_size_t, C.c_void_p, C.c_void_p]),
}


def declare(library):
    """Give the functions of a loaded library their types."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
