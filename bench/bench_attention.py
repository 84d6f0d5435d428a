#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check attention and time it next to cuDNN in the same run: the library, or many variants of the forward template; or next
to all peers that are installed.

  bench/bench_attention.py build OUT SPEC [SPEC ...]   no GPU needed: compile with nvcc; SPEC is head_dim=128,tile_n=176,...
  bench/bench_attention.py run   OUT [--seqlens ...] [--masks ...] [--heads 64:8] [--no-check]        PyTorch and a GPU
  bench/bench_attention.py run --library build/libffa.so [--pass forward|backward|both|all] [--head-dims 64,192:128]
                               [--dtypes bf16,fp16] [--templates DIR,DIR ...] [--tiles auto,0x0,128x96p8,...]
                               [--backward-tiles 64x128,...] [--deterministic] [--cost-tables none,FILE] [...]
  bench/bench_attention.py --peers cudnn,cudnn-flex,fa3,fa4,flex,magi [--table] [--json F] [...]    in turns; --peers= --help
  bench/bench_attention.py table [--below R] F [...]                                                the tables of a run

`run OUT` launches forward cubins directly through the driver, with plans made here (one interval a row), so a change of
templates/ is measured without the library. `run --library` times ffa_forward, ffa_backward (all its launches) or both
in sequence; with --templates it compares template folders, which are compiled at the first use and kept in --store, and
with --cost-tables what is chosen by tables (a file, a folder, none; '': what a context finds).
U is the speed of cuDNN SDPA on the full mask of that length, of the same pass in the same run. FLOPs are 2 * area *
heads * (head_dim + head_dim_v), in the backward pass 2 * area * heads * (3 head_dim + 2 head_dim_v). A figure is the
median over groups of back-to-back calls between CUDA events.
Results are checked first, on fresh random inputs and poisoned outputs: sampled rows, and sampled keys of the backward
pass, against fp64 (with 2048 tokens or fewer, all gradients), and two runs must be bitwise equal (dq only of
deterministic kernels). --json writes a results file.
"""
import argparse, ctypes as C, json, math, os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = os.environ.get("TEMPLATES", os.path.join(HERE, "..", "templates"))


def samples():
    """The settings of the template and their sample values, in the order of its rows."""
    rows = open(os.path.join(TEMPLATES, "attention_forward.spec.def")).read()
    return {name: int(value) for name, value in re.findall(r"^FFA_SPEC\((\w+),\s*(\d+),", rows, re.M)}


def variant(text):
    """The spec that "tile_n=160,..." means, and its name: what differs from the samples."""
    base, given = samples(), {k: int(v) for k, v in (kv.split("=") for kv in text.split(",") if kv)}
    unknown = sorted(set(given) - set(base))
    if unknown:
        sys.exit(f"'{unknown[0]}' is no setting of attention_forward: {', '.join(base)}")
    spec = dict(base, **given)
    spec["head_dim_v"] = given.get("head_dim_v") or spec["head_dim"]
    return spec, "_".join(f"{k}{v}" for k, v in spec.items() if v != base[k]) or "default"


def shared_bytes(s):
    """Shared memory of a launch, as attention_forward_shared_bytes in templates/ has it."""
    m, slots_kv = 64 * s["consumers"], s["kv_slots"]
    qk, pv = (-(-s[k] // 64) * 128 for k in ("head_dim", "head_dim_v"))
    size = lambda slots: 1024 + qk * (slots * m + slots_kv * s["tile_n"]) + pv * slots_kv * s["tile_n"] + 8 * (4 * slots_kv + 2 * slots + 6) + 2 * (64 + 6 * 32 + 10 * 32)
    return size(2) if size(2) <= 232448 else size(1)


def build(out, specs):
    os.makedirs(out, exist_ok=True)
    rows = []
    for text in specs:
        spec, name = variant(text)
        cubin = os.path.join(out, name + ".cubin")
        cmd = ["nvcc", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-DFFA_JIT", "-Xptxas", "-v"]
        cmd += [f"-DFFA_SPEC_{k}={v}" for k, v in spec.items()] + ["-o", cubin, os.path.join(TEMPLATES, "attention_forward.cu")]
        log = subprocess.run(cmd, capture_output=True, text=True)
        if log.returncode:
            sys.exit(log.stderr)
        used = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads[\s\S]*?Used (\d+) registers", log.stderr)
        advisories = sorted(set(re.findall(r"C75\d\d", log.stderr)))
        print(f"{name:40s} spills {used[1]}+{used[2]}  registers {used[3]}  {' '.join(advisories)}", flush=True)
        rows.append(dict(name=name, spec=spec, cubin=os.path.basename(cubin)))
    json.dump(rows, open(os.path.join(out, "variants.json"), "w"))


class Tile(C.Structure):
    _fields_ = [(n, C.c_int) for n in "row_begin row_count sweep_begin sweep_count band_begin band_count block_count list".split()]


class Args(C.Structure):
    _fields_ = [("q", C.c_ubyte * 128), ("k", C.c_ubyte * 128), ("v", C.c_ubyte * 128), ("out", C.c_void_p), ("lse", C.c_void_p),
                ("image", C.c_void_p), ("counter", C.c_void_p),
                ("out_token_stride", C.c_longlong), ("out_head_stride", C.c_longlong), ("lse_token_stride", C.c_longlong),
                ("lse_head_stride", C.c_longlong), ("scale_log2", C.c_float), ("tile_items", C.c_int),
                ("heads_q", C.c_int), ("group", C.c_int), ("l2_heads", C.c_int), ("flags", C.c_int), ("options", C.c_int * 6),
                ("partial", C.c_void_p), ("partial_token_stride", C.c_longlong), ("partial_head_stride", C.c_longlong), ("max_logits", C.c_void_p),
                ("head_dim_v", C.c_int), ("pad", C.c_int * 43)]  # arrivals are last; aligned to 64 bytes


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("token_stride", C.c_int64), ("head_stride", C.c_int64), ("tokens", C.c_int64), ("head_dim", C.c_int64),
                ("batch_stride", C.c_int64), ("batch", C.c_int32), ("heads", C.c_int32), ("dtype", C.c_int32), ("pad", C.c_int32)]


class Error(C.Structure):
    _fields_ = [("status", C.c_int), ("native", C.c_int32), ("message", C.c_char * 496)]


class ForwardArgs(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("heads_q", C.c_int32), ("heads_kv", C.c_int32), ("sm_margin", C.c_int32),
                ("softmax_scale", C.c_double), ("softcap", C.c_double)] + \
               [(n, Tensor) for n in ("q", "k", "v", "out", "lse")] + \
               [("sink", C.c_void_p), ("sink_count", C.c_int32), ("flags", C.c_uint32), ("max_logits", C.c_void_p), ("partial", Tensor), ("workspace", C.c_void_p), ("workspace_bytes", C.c_int64)]


class BackwardArgs(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("heads_q", C.c_int32), ("heads_kv", C.c_int32), ("sm_margin", C.c_int32),
                ("softmax_scale", C.c_double), ("softcap", C.c_double)] + \
               [(n, Tensor) for n in ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv")] + \
               [("dsink", C.c_void_p), ("sink", C.c_void_p), ("sink_count", C.c_int32), ("flags", C.c_uint32),
                ("partial_dk", Tensor), ("partial_dv", Tensor), ("dlse", Tensor), ("workspace", C.c_void_p), ("workspace_bytes", C.c_int64)]


class Spec(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("dtype", C.c_int), ("head_dim", C.c_int32), ("flags", C.c_uint32)] + \
               [(n, C.c_int32) for n in ("tile_m", "tile_n", "head_dim_v", "backward_tile_m", "backward_tile_n", "pack_heads", "heads_q", "heads_kv", "split", "pad")]


class PlanInfo(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("tile_m", C.c_int32), ("tile_n", C.c_int32), ("tile_count", C.c_int32)] + \
               [(n, C.c_int64) for n in ("sweep_count", "block_count", "partial_blocks", "area", "upload_bytes")]


class ContextOpts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("cache_path", C.c_char_p), ("cache_bytes_max", C.c_uint64), ("templates_dir", C.c_char_p),
                ("nvrtc_path", C.c_char_p), ("nccl_path", C.c_char_p), ("log", C.c_void_p), ("log_user", C.c_void_p)] + \
               [(n, C.c_uint32) for n in ("cpu_threads", "pad", "lock_wait_ms", "failure_age_s")] + \
               [("bundles", C.c_void_p), ("bundle_count", C.c_int64), ("worker_path", C.c_char_p), ("worker_timeout_ms", C.c_uint32), ("worker_memory_mib", C.c_uint32),
                ("cudart_path", C.c_char_p), ("cost_tables", C.c_char_p)]


class Library:
    """libffa through ctypes, one context."""

    def __init__(self, path, templates, store, cost_tables=""):
        self.lib, self.context, self.kernels, self.keep = C.CDLL(path), C.c_void_p(), {}, []
        opts = ContextOpts(C.sizeof(ContextOpts), cache_path=store.encode() or None, templates_dir=templates.encode() or None, cost_tables=cost_tables.encode() or None)
        self.call("ffa_open", C.byref(self.context), 0, C.byref(opts))

    def call(self, name, *args):
        err = Error()
        if getattr(self.lib, name)(*args, C.byref(err)):
            sys.exit(f"{name}: {err.message.decode()}")

    def calls(self, mask, spec, t, torch):
        """Two functions, which enqueue the forward and the backward pass. Makes kernels, plan and workspace."""
        heads_q, heads_kv, backward = t["q"].shape[1], t["k"].shape[1], "dq" in t
        key = (spec["head_dim"], spec["head_dim_v"], spec["dtype"], backward, spec["tiles"], spec["forward_tiles"], spec["deterministic"], heads_q, heads_kv)
        tile_m, tile_n, pack = spec["forward_tiles"] or (0, 0, heads_q // heads_kv if heads_q // heads_kv <= 64 else 0)
        if key not in self.kernels:
            kernels = C.c_void_p()
            self.call("ffa_kernels_create", C.byref(kernels), self.context, C.byref(Spec(C.sizeof(Spec), spec["dtype"], spec["head_dim"], (8 | 32 * spec["deterministic"]) if backward else 0, tile_m, tile_n, spec["head_dim_v"], *spec["tiles"], pack, heads_q, heads_kv, 0 if spec["forward_tiles"] else -1)))
            self.kernels[key] = kernels
        kernels, m, plan, info, size = self.kernels[key], C.c_void_p(), C.c_void_p(), PlanInfo(C.sizeof(PlanInfo)), C.c_int64()
        slices = (C.c_int64 * (5 * len(mask["types"])))(*(x for q, k, t_ in zip(mask["q_ranges"], mask["k_ranges"], mask["types"]) for x in (*q, *k, t_)))
        self.call("ffa_mask_create", C.byref(m), (C.c_int64 * 2)(mask["seqlen"], mask["seqlen"]), slices, C.c_int64(len(mask["types"])))
        self.call("ffa_plan_create", C.byref(plan), kernels, m)
        self.call("ffa_plan_info_get", plan, C.byref(info))
        self.call("ffa_workspace_bytes", kernels, plan, C.byref(size))
        if backward:
            self.call("ffa_backward_workspace_bytes", kernels, plan, heads_q, heads_kv, C.byref(size))
        buffer, workspace = (torch.empty(n, dtype=torch.uint8, device="cuda") for n in (info.upload_bytes, size.value))
        stream = C.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("ffa_plan_upload", plan, kernels, C.c_void_p(buffer.data_ptr()), stream)
        self.lib.ffa_mask_destroy(m)

        def enqueue(name, struct, names):
            args = struct(C.sizeof(struct), heads_q, heads_kv, 0, 0.0, 0.0, *(Tensor(t[n].data_ptr(), t[n].stride(0), t[n].stride(1)) for n in names))
            args.workspace, args.workspace_bytes = workspace.data_ptr(), size.value
            return lambda: self.call(name, kernels, plan, C.byref(args), stream)
        self.keep = [buffer, workspace]
        forward = enqueue("ffa_forward", ForwardArgs, ("q", "k", "v", "out", "lse"))
        return forward, enqueue("ffa_backward", BackwardArgs, ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv")) if backward else None


def intervals(np, mask):
    """The interval [lo, hi) of each row, of a mask with one interval a row."""
    n = mask["seqlen"]
    lo, hi = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for (qs, qe), (ks, ke), t in zip(mask["q_ranges"], mask["k_ranges"], mask["types"]):
        i = np.arange(qe - qs)
        l, h = ks + (i if t & 2 else 0 * i), ke - (qe - qs - 1 - i if t & 1 else 0 * i)
        new = hi[qs:qe] <= lo[qs:qe]
        lo[qs:qe] = np.where(new, l, np.minimum(lo[qs:qe], l))
        hi[qs:qe] = np.where(new, h, np.maximum(hi[qs:qe], h))
    assert int(np.maximum(hi - lo, 0).sum()) == mask["area"], "more than one interval a row"
    return lo, hi


def plan(np, lo, hi, tile_m, tile_n, cuts):
    n, tiles = len(lo), []
    starts = sorted({0, n} | (set((np.flatnonzero(lo[1:] >= hi[:-1]) + 1).tolist()) if cuts else set()))
    for a, b in zip(starts, starts[1:]):
        for r in range(a, b, tile_m):
            e = min(r + tile_m, b)
            l, h, bands, at = lo[r:e], hi[r:e], [], 0
            while at < e - r:
                end, steps = at + 1, (0, 0)
                if end < e - r and l[end] - l[at] in (0, 1) and h[end] - h[at] in (0, 1):
                    steps = (int(l[end] - l[at]), int(h[end] - h[at]))
                    while end < e - r and l[end] - l[end - 1] == steps[0] and h[end] - h[end - 1] == steps[1]:
                        end += 1
                bands.append((r + at, r + end, int(l[at]), int(h[at]), *steps, 0, 0))
                at = end
            k0, k1, f0, f1 = int(l.min()), int(h.max()), int(l.max()), int(h.min())
            if f1 <= f0:
                f0 = f1 = k0
            tiles.append((-(-(k1 - k0) // tile_n), r, e - r, (k0, k1, f0, f1, 0, len(bands), 0, 0), bands))
    tiles.sort(key=lambda t: (-t[0], t[1]))
    T, S, B = [], [], []
    for blocks, r, count, sweep, bands in tiles:
        T.append((r, count, len(S), 1, len(B), len(bands), blocks, 0))
        S.append(sweep)
        B += bands
    return [np.array(x, np.int32) for x in (T, S, B)]


def gradient_errors(np, torch, t, lo, hi, scale):
    """The largest relative L2 errors of dq, dk and dv against fp64: of whole heads up to 2048 tokens, else of sampled rows and keys."""
    (n, heads_q, _), heads_kv = t["q"].shape, t["k"].shape[1]
    group, rng = heads_q // heads_kv, np.random.default_rng(2)
    low, high = (torch.from_numpy(x).cuda() for x in (lo, hi))
    worst = dict(dq=0.0, dk=0.0, dv=0.0)

    def weights(head, rows, keys):
        """p and ds of a head, each [rows][keys], from the kernel's out and lse."""
        q, dout, out = (t[x][rows, head].double() for x in ("q", "dout", "out"))
        k, v = (t[x][keys, head // group].double() for x in "kv")
        inside = (keys[None] >= low[rows][:, None]) & (keys[None] < high[rows][:, None])
        p = torch.where(inside, torch.exp(q @ k.T * scale - t["lse"][rows, head].double()[:, None]), 0)
        return p, p * (dout @ v.T - (dout * out).sum(1)[:, None]), q, k, dout

    def note(name, got, want):
        e = float((got.double() - want).norm() / want.norm().clamp(min=1e-3))
        worst[name] = max(worst[name], e if e == e else 9e9)

    whole = torch.arange(n, device="cuda")
    if n <= 2048:
        for kv in range(heads_kv):
            dk = dv = 0
            for head in range(kv * group, kv * group + group):
                p, ds, q, k, dout = weights(head, whole, whole)
                note("dq", t["dq"][:, head], ds @ k * scale)
                dk, dv = dk + ds.T @ q * scale, dv + p.T @ dout
            note("dk", t["dk"][:, kv], dk)
            note("dv", t["dv"][:, kv], dv)
        return worst
    for i in sorted({0, 1, n // 2, n - 2, n - 1, *rng.integers(0, n, 24).tolist()}):
        one, head, kv = whole[i:i + 1], int(rng.integers(0, heads_q)), int(rng.integers(0, heads_kv))
        _, ds, _, k, _ = weights(head, one, whole[int(lo[i]):int(hi[i])])
        if hi[i] - lo[i] > 1:  # with one key, dq is 0
            note("dq", t["dq"][i, head], (ds @ k * scale)[0])
        dk = dv = 0
        for head in range(kv * group, kv * group + group):
            p, ds, q, _, dout = weights(head, whole[(low <= i) & (i < high)], one)
            dk, dv = dk + (ds.T @ q * scale)[0], dv + (p.T @ dout)[0]
        note("dk", t["dk"][i, kv], dk)
        note("dv", t["dv"][i, kv], dv)
    return worst


def run(opts):
    import numpy as np, torch, torch.nn.functional as F, statistics as st
    from torch.nn.attention import sdpa_kernel, SDPBackend
    cuda = C.CDLL("libcuda.so.1")

    def ok(code):
        if code:
            name = C.c_char_p(); cuda.cuGetErrorName(code, C.byref(name)); sys.exit(f"driver: {name.value}")

    torch.zeros(1, device="cuda")
    HQ, HK = map(int, opts.heads.split(":"))
    masks = {}
    for case in json.load(open(opts.cases))["cases"]:
        slices = case["mask"]["slices"]
        masks[case["name"]] = dict(seqlen=case["mask"]["seqlen_q"], area=case["area"], q_ranges=[x[:2] for x in slices], k_ranges=[x[2:4] for x in slices], types=[x[4] for x in slices])
    names, seqlens = opts.masks.split(","), [int(s) for s in opts.seqlens.split(",")]
    if opts.lib:
        tiles = [tuple(map(int, x.split("x"))) for x in opts.backward_tiles.split(",")]
        # auto: the library chooses for the mask; 0x0: no packed heads; 128x96p8: blocks of 128 rows of 8 packed heads by 96 keys
        forward_tiles = [(x, x != "auto" and tuple(int(n or 0) for n in re.fullmatch(r"(\d+)x(\d+)(?:p(\d+))?", x).groups())) for x in opts.tiles.split(",")]
        dims = [(d.split(":") * 2)[:2] for d in opts.head_dims.split(",")]
        variants = []
        for path, folder, costs in ((p, f, c) for p in opts.lib.split(",") for f in opts.templates.split(",") for c in opts.cost_tables.split(",")):
            library, name = Library(path, folder, opts.store, costs), (folder or (path if "," in opts.lib else "libffa")) + (f" {costs}" if costs else "")
            variants += [dict(name=name + ("" if text == "auto" else f" {text}") + ("" if x == (0, 0) else f" {x[0]}x{x[1]}") + " deterministic" * mode, library=library,
                              spec=dict(head_dim=int(d), head_dim_v=int(v), dtype=dict(bf16=1, fp16=2)[t], tiles=x, forward_tiles=y, deterministic=mode))
                         for d, v in dims for t in opts.dtypes.split(",") for text, y in forward_tiles for x in tiles for mode in ((False, True) if opts.deterministic else (False,))]
    else:
        variants = [v for v in json.load(open(os.path.join(opts.out, "variants.json"))) if re.search(opts.only, v["name"])]
    for v in [] if opts.lib else variants:
        mod, v["fn"] = C.c_void_p(), C.c_void_p()
        ok(cuda.cuModuleLoad(C.byref(mod), os.path.join(opts.out, v["cubin"]).encode()))
        ok(cuda.cuModuleGetFunction(C.byref(v["fn"]), mod, b"attention_forward"))
        v["smem"] = shared_bytes(v["spec"])
        ok(cuda.cuFuncSetAttribute(v["fn"], 8, v["smem"]))
    sms = torch.cuda.get_device_properties(0).multi_processor_count

    def tensor_map(dst, t, rows, fp16):
        tokens, heads, dim = t.shape
        i64, i32 = C.c_uint64, C.c_uint32
        raw = (C.c_ubyte * 192)(); base = (C.addressof(raw) + 63) // 64 * 64
        ok(cuda.cuTensorMapEncodeTiled(C.c_void_p(base), 6 if fp16 else 9, 3, C.c_void_p(t.data_ptr()), (i64 * 3)(dim, heads, tokens),
                                       (i64 * 2)(t.stride(1) * 2, t.stride(0) * 2), (i32 * 3)(64, 1, rows), (i32 * 3)(1, 1, 1), 0, 3, 3, 0))
        C.memmove(dst, base, 128)

    def timed(f):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True)
        for _ in range(2): f()
        a.record(); f(); b.record(); torch.cuda.synchronize()
        one = max(a.elapsed_time(b), 1e-3); per = max(1, min(50, int(20 / one))); out = []
        for _ in range(max(3, min(opts.repeat, int(opts.budget_ms / (one * per))))):
            a.record()
            for _ in range(per): f()
            b.record(); torch.cuda.synchronize(); out.append(a.elapsed_time(b) / per)
        return st.median(out)

    def launch_variant(var, lo, hi, q, k, v, out, lse):
        s, (n, _, dim), dim_v = var["spec"], q.shape, v.shape[2]
        tm, tn = 64 * s["consumers"], s["tile_n"]
        T, S, B = plan(np, lo, hi, tm, tn, not opts.no_cuts)
        header = np.zeros(16, np.int32)
        header[:4] = len(T), 2, 2 + len(T), 2 + len(T) + len(S)  # records of 32 bytes: tiles, sweeps, bands
        image = torch.from_numpy(np.concatenate([header] + [np.ascontiguousarray(x).view(np.int32).ravel() for x in (T, S, B)])).cuda()
        args_raw = (C.c_ubyte * (C.sizeof(Args) + 64))(); args = Args.from_address((C.addressof(args_raw) + 63) // 64 * 64)
        for field, t, rows in (("q", q, tm), ("k", k, tn), ("v", v, tn)):
            tensor_map(C.addressof(args) + getattr(Args, field).offset, t, rows, s["dtype"] == 2)
        args.out, args.lse, args.image = (x.data_ptr() for x in (out, lse, image))
        args.counter, args.out_token_stride, args.out_head_stride = counters.data_ptr(), HQ * dim_v, dim_v
        args.max_logits, args.head_dim_v = tops.data_ptr(), dim_v
        args.lse_token_stride, args.lse_head_stride, args.scale_log2 = HQ, 1, 1.4426950408889634 / math.sqrt(dim)
        args.tile_items, args.heads_q, args.group = HQ, HQ, HQ // HK
        groups = -(-HK // max(1, (22 << 20) // (n * (dim + dim_v) * 2)))  # of equal size, as many as 22 MB of L2 hold
        args.l2_heads = -(-HK // groups) * (HQ // HK)
        params, keep = (C.c_void_p * 1)(C.addressof(args)), (args_raw, image)
        stream = C.c_void_p(torch.cuda.current_stream().cuda_stream)

        def launch(keep=keep):
            counters.zero_()
            ok(cuda.cuLaunchKernel(var["fn"], min(sms, len(T) * HQ), 1, 1, 128 * (s["consumers"] + 1), 1, 1, var["smem"], stream, params, None))

        return launch

    counters, tops = torch.zeros(64, dtype=torch.int32, device="cuda"), torch.zeros(HQ, device="cuda")
    passes = ("forward", "backward", "both") if opts.part == "all" else (opts.part,)
    has_backward = opts.part != "forward"
    results, failed = [], False
    for n in seqlens:
        for name in names:
            mask = masks[f"{name}_{n}"]
            lo, hi = intervals(np, mask)
            for dim, dim_v in sorted({(v["spec"]["head_dim"], v["spec"]["head_dim_v"]) for v in variants}):
                flops = 2.0 * mask["area"] * HQ * (dim + dim_v)
                five = (3 * dim + 2 * dim_v) / (dim + dim_v)  # products of a backward pass, in forward passes
                factor = dict(forward=1.0, backward=five, both=1 + five)
                is_of = lambda x: (x["spec"]["head_dim"], x["spec"]["head_dim_v"]) == (dim, dim_v)
                line = []
                for dtype in sorted({v["spec"]["dtype"] for v in variants if is_of(v)}):
                    torch_dtype = torch.bfloat16 if dtype == 1 else torch.float16
                    q = torch.randn(n, HQ, dim, device="cuda", dtype=torch_dtype)
                    k, v_ = (torch.randn(n, HK, d, device="cuda", dtype=torch_dtype) for d in (dim, dim_v))
                    if opts.data == "spiky":  # scores that jump by tens of nats, so that the running maximum must be raised
                        k[torch.rand(n, device="cuda") < 0.01] *= 24
                        q *= 3
                    t = dict(q=q, k=k, v=v_, out=torch.empty(n, HQ, dim_v, device="cuda", dtype=torch_dtype), lse=torch.empty(n, HQ, device="cuda"))
                    if has_backward:
                        t.update(dout=torch.randn_like(t["out"]), dq=torch.empty_like(q), dk=torch.empty_like(k), dv=torch.empty_like(v_))
                    base = {}
                    if opts.peer:
                        Q, K, V = (x.transpose(0, 1)[None].detach().requires_grad_(has_backward) for x in (q, k, v_))
                        def peer(causal):
                            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION): return F.scaled_dot_product_attention(Q, K, V, is_causal=causal, enable_gqa=True)
                        try:
                            for causal in (False, True) if name == "causal" else (False,):
                                with torch.no_grad(): ms = dict(forward=timed(lambda: peer(causal)))
                                if has_backward:
                                    O, dO = peer(causal), t["dout"].transpose(0, 1)[None]
                                    ms["backward"] = timed(lambda: torch.autograd.grad(O, (Q, K, V), dO, retain_graph=True))
                                    ms["both"] = ms["forward"] + ms["backward"]
                                    del O
                                for part in passes:
                                    tf = factor[part] * 2.0 * (mask["area"] if causal else n * n) * HQ * (dim + dim_v) / ms[part] / 1e9
                                    if not causal: base[part] = tf
                                    line.append(f"{part}: cudnn {'causal' if causal else 'full'} {tf:.0f}")
                        except RuntimeError as e:
                            line.append(f"cudnn: {str(e).splitlines()[0]}")
                    for var in [x for x in variants if is_of(x) and x["spec"]["dtype"] == dtype]:
                        out, lse = t["out"].fill_(float("nan")), t["lse"].fill_(float("nan"))
                        calls = var["library"].calls(mask, var["spec"], t, torch) if opts.lib else (launch_variant(var, lo, hi, q, k, v_, out, lse), None)
                        launch = dict(forward=calls[0], backward=calls[1], both=lambda calls=calls: (calls[0](), calls[1]()))
                        error, bad = "", False
                        if not opts.no_check:
                            calls[0](); torch.cuda.synchronize()
                            first = out.clone(), lse.clone()
                            out.fill_(float("nan")); lse.fill_(float("nan")); calls[0](); torch.cuda.synchronize()
                            same = bool((first[0] == out).all() and (first[1] == lse).all())
                            rows = sorted({0, n - 1, n // 2, *np.random.default_rng(1).integers(0, n, 24).tolist()})
                            worst = worst_lse = 0.0
                            for r in rows:
                                h = int(np.random.default_rng(r).integers(0, HQ)); a, b = int(lo[r]), int(hi[r])
                                sc = (k[a:b, h // (HQ // HK)].double() @ q[r, h].double()) / math.sqrt(dim)
                                ref = torch.softmax(sc, 0) @ v_[a:b, h // (HQ // HK)].double()
                                e = float((out[r, h].double() - ref).norm() / ref.norm())
                                worst = max(worst, e if e == e else 9e9)
                                worst_lse = max(worst_lse, abs(float(torch.logsumexp(sc, 0)) - float(lse[r, h])))
                            bad = not same or worst > (2e-2 if dtype == 1 else 3e-3) or worst_lse > 1e-3 or bool(torch.isnan(out).any() or torch.isnan(lse).any())
                            error = f" err {worst:.1e} lse {worst_lse:.1e}{'' if same else ' NOT REPRODUCIBLE'}"
                            if has_backward:
                                names_of = ("dq", "dk", "dv")
                                for _ in range(2):
                                    first = [t[x].clone() for x in names_of]
                                    for x in names_of: t[x].fill_(float("nan"))
                                    calls[1](); torch.cuda.synchronize()
                                same = all(bool((f == t[x]).all()) for f, x in zip(first, names_of) if x != "dq" or var["spec"]["deterministic"])
                                errors = gradient_errors(np, torch, t, lo, hi, 1 / math.sqrt(dim))
                                limit = (8e-3 if dtype == 1 else 1.2e-3) * (2 if n <= 2048 else 4)
                                bad |= not same or max(errors.values()) > limit or any(bool(torch.isnan(t[x]).any()) for x in names_of)
                                error += "".join(f" {x} {e:.1e}" for x, e in errors.items()) + ("" if same else " gradients NOT REPRODUCIBLE")
                            failed |= bad
                            error += " WRONG" if bad else ""
                        calls[0]()  # writes out and lse for the backward pass
                        for part in passes:
                            if not calls[0 if part == "forward" else 1]: continue
                            tf = factor[part] * flops / timed(launch[part]) / 1e9
                            u = tf / base[part] if part in base else None
                            results.append(dict(variant=var["name"], mask=name, seqlen=n, head_dim=dim, head_dim_v=dim_v, dtype=dtype, tflops=tf, u=u, **{"pass": part}))
                            line.append(f"{part}: {var['name']} {tf:.0f}" + (f" ({u:.3f} U)" if u else ""))
                        line[-1] += error
                print(f"{name:22s} {n:7d} d{dim if dim == dim_v else f'{dim}:{dim_v}'}: " + "\n    ".join(line), flush=True)
    if opts.json:
        import datetime
        head = dict(device=torch.cuda.get_device_name(0), driver=subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip(),
                    cudnn=torch.backends.cudnn.version(), torch=torch.__version__, commit=opts.commit, date=str(datetime.date.today()), heads=opts.heads, command=" ".join(["bench/bench_attention.py"] + sys.argv[1:]))
        with open(opts.json, "w") as f:
            f.write("\n".join(json.dumps(x) for x in [head] + results) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if any(word.split("=")[0] == "--peers" for word in sys.argv[1:]):
        import attention_compare
        sys.exit(attention_compare.main(sys.argv[1:]))
    elif len(sys.argv) > 1 and sys.argv[1] == "table":
        import attention_report
        sys.exit(attention_report.main(sys.argv[2:]))
    elif len(sys.argv) > 3 and sys.argv[1] == "build":
        build(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) > 2 and sys.argv[1] == "run":
        ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        ap.add_argument("out", nargs="?", default=""); ap.add_argument("--library", dest="lib", default="")
        ap.add_argument("--pass", dest="part", default="forward", choices=["forward", "backward", "both", "all"]); ap.add_argument("--templates", default=""); ap.add_argument("--cost-tables", default=""); ap.add_argument("--tiles", default="auto"); ap.add_argument("--backward-tiles", default="0x0"); ap.add_argument("--store", default="")
        ap.add_argument("--head-dims", default="128"); ap.add_argument("--dtypes", default="bf16"); ap.add_argument("--seqlens", default="4096,16384,65536"); ap.add_argument("--masks", default="full,causal")
        ap.add_argument("--heads", default="64:8"); ap.add_argument("--cases", default=os.path.join(HERE, "..", "tests", "data", "masks.json"))
        ap.add_argument("--commit", default="", help="recorded in the results file"); ap.add_argument("--no-check", action="store_true"); ap.add_argument("--no-cuts", action="store_true"); ap.add_argument("--json", default="")
        ap.add_argument("--data", default="normal", choices=["normal", "spiky"]); ap.add_argument("--only", default=""); ap.add_argument("--repeat", type=int, default=15); ap.add_argument("--budget-ms", type=float, default=300)
        ap.add_argument("--deterministic", action="store_true", help="each variant of the library in both modes")
        ap.add_argument("--no-peer", dest="peer", action="store_false")
        run(ap.parse_args(sys.argv[2:]))
    else:
        sys.exit(__doc__)
