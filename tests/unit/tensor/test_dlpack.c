/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors from DLPack: shapes and strides that are taken, and those that are refused, each with its
 * sentence; the layout, beside a DLTensor as DLPack's header has it.
 */
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdint.h>
#include <stdio.h>

#define ROWS_OF(table) (int)(sizeof table / sizeof *table)

/* The types of DLPack's header as far as a DLTensor needs them, under its own names: a file may
 * have both. */
typedef enum {
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3,
    kDLROCM = 10,
    kDLCUDAManaged = 13
} DLDeviceType;
typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

_Static_assert(sizeof(ffa_dltensor) == sizeof(DLTensor), "DLTensor");
#define SAME(ours, theirs)                                                                         \
    _Static_assert(offsetof(ffa_dltensor, ours) == offsetof(DLTensor, theirs), #theirs)
SAME(data, data);
SAME(device_type, device.device_type);
SAME(device_id, device.device_id);
SAME(ndim, ndim);
SAME(dtype_code, dtype.code);
SAME(dtype_bits, dtype.bits);
SAME(dtype_lanes, dtype.lanes);
SAME(shape, shape);
SAME(strides, strides);
SAME(byte_offset, byte_offset);

/* ---- what is taken ---- */

#define NO_STRIDES INT64_MAX

static const struct {
    const char *name;
    int32_t ndim;
    int64_t shape[4], strides[4]; /* the first stride NO_STRIDES: there are none */
    /* The tensor's. */
    int64_t token_stride, head_stride, tokens;
    int32_t heads;
    int64_t head_dim;
    int32_t batch;
    int64_t batch_stride;
} taken[] = {
    { "contiguous", 3, { 7, 4, 16 }, { 64, 16, 1 }, 64, 16, 7, 4, 16, 1, 448 },
    { "no strides", 3, { 7, 4, 16 }, { NO_STRIDES }, 64, 16, 7, 4, 16, 1, 448 },
    { "heads outermost", 3, { 7, 4, 16 }, { 16, 112, 1 }, 16, 112, 7, 4, 16, 1, 448 },
    { "expanded along tokens", 3, { 7, 4, 16 }, { 0, 16, 1 }, 0, 16, 7, 4, 16, 1, 448 },
    { "expanded along both", 3, { 7, 4, 16 }, { 0, 0, 1 }, 0, 0, 7, 4, 16, 1, 448 },
    { "rows of one", 3, { 7, 4, 1 }, { 4, 1, 0 }, 4, 1, 7, 4, 1, 1, 28 },
    { "strides over one", 3, { 1, 1, 16 }, { -5, INT64_MIN, 1 }, 16, 16, 1, 1, 16, 1, 16 },
    { "lse", 2, { 7, 4 }, { 4, 1 }, 4, 1, 7, 4, 1, 1, 28 },
    { "lse of heads outermost", 2, { 7, 4 }, { 1, 7 }, 1, 7, 7, 4, 1, 1, 28 },
    { "lse without strides", 2, { 7, 4 }, { NO_STRIDES }, 4, 1, 7, 4, 1, 1, 28 },
    { "batch", 4, { 3, 7, 4, 16 }, { 448, 64, 16, 1 }, 64, 16, 21, 4, 16, 3, 448 },
    { "batch without strides", 4, { 3, 7, 4, 16 }, { NO_STRIDES }, 64, 16, 21, 4, 16, 3, 448 },
    { "batch of one", 4, { 1, 7, 4, 16 }, { 3, 64, 16, 1 }, 64, 16, 7, 4, 16, 1, 448 },
    { "batch with gaps", 4, { 3, 7, 4, 16 }, { 700, 100, 16, 1 }, 100, 16, 21, 4, 16, 3, 700 },
    { "batch of single tokens", 4, { 3, 1, 4, 16 }, { 80, 9, 16, 1 }, 80, 16, 3, 4, 16, 3, 80 },
    { "expanded batch", 4, { 3, 7, 4, 16 }, { 0, 0, 16, 1 }, 0, 16, 21, 4, 16, 3, 0 },
};

static float element;

static ffa_dltensor tensor_of(int32_t ndim, int64_t *shape, int64_t *strides)
{
    return (ffa_dltensor){ .data = &element,
                           .device_type = 1,
                           .ndim = ndim,
                           .dtype_code = 4,
                           .dtype_bits = 16,
                           .dtype_lanes = 1,
                           .shape = shape,
                           .strides = strides[0] == NO_STRIDES ? NULL : strides };
}

START_TEST(shapes_are_taken)
{
    int64_t shape[4], strides[4];
    ffa_dltensor from;
    ffa_tensor got;
    ffa_error err = { FFA_OK, 0, "" };

    memcpy(shape, taken[_i].shape, sizeof shape);
    memcpy(strides, taken[_i].strides, sizeof strides);
    from = tensor_of(taken[_i].ndim, shape, strides);
    memset(&got, 0xa5, sizeof got);
    ck_assert_msg(ffa_tensor_from_dlpack(&got, &from, &err) == FFA_OK, "%s: %s", taken[_i].name,
                  err.message);
    ck_assert_ptr_eq(got.data, &element);
    ck_assert_int_eq(got.token_stride, taken[_i].token_stride);
    ck_assert_int_eq(got.head_stride, taken[_i].head_stride);
    ck_assert_int_eq(got.tokens, taken[_i].tokens);
    ck_assert_int_eq(got.heads, taken[_i].heads);
    ck_assert_int_eq(got.head_dim, taken[_i].head_dim);
    ck_assert_int_eq(got.batch, taken[_i].batch);
    ck_assert_int_eq(got.batch_stride, taken[_i].batch_stride);
    ck_assert_int_eq(got.dtype, FFA_BF16);
    ck_assert_int_eq(got.pad_, 0);
}
END_TEST

/* DLPack's own type, all devices and dtypes, an offset. */
START_TEST(a_dltensor_is_taken)
{
    static const struct {
        uint8_t code, bits;
        int32_t dtype;
    } dtypes[] = {
        { 4, 16, FFA_BF16 }, { 2, 16, FFA_FP16 }, { 2, 32, FFA_FP32 }, { 2, 64, FFA_FP64 }
    };
    static const DLDeviceType devices[] = { kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged };
    int64_t shape[3] = { 2, 3, 4 };
    char memory[512];

    for (int i = 0; i < 4; i++) {
        const DLTensor from = { .data = memory,
                                .device = { devices[i], 1 },
                                .ndim = 3,
                                .dtype = { dtypes[i].code, dtypes[i].bits, 1 },
                                .shape = shape,
                                .byte_offset = 32 };
        ffa_tensor got;
        ffa_error err = { FFA_OK, 0, "" };

        ck_assert_msg(ffa_tensor_from_dlpack(&got, &from, &err) == FFA_OK, "%s", err.message);
        ck_assert_ptr_eq(got.data, memory + 32);
        ck_assert_int_eq(got.dtype, dtypes[i].dtype);
        ck_assert_int_eq(got.token_stride, 12);
    }
}
END_TEST

/* Nothing is known of them, but that nothing is there. */
START_TEST(tensors_without_elements_have_no_data)
{
    for (int d = 0; d < 4; d++) {
        int64_t shape[4] = { 2, 3, 4, 8 }, none[4] = { NO_STRIDES };
        ffa_dltensor from;
        ffa_tensor got;

        shape[d] = 0;
        from = tensor_of(4, shape, none);
        ck_assert_int_eq(ffa_tensor_from_dlpack(&got, &from, NULL), FFA_OK);
        ck_assert_ptr_null(got.data);
    }
}
END_TEST

/* ---- what is refused ---- */

#define SIZES "dlpack: shape"
static const struct {
    int32_t ndim;
    int64_t shape[4], strides[4];
    const char *says;
} refused[] = {
    { 1,
      { 7 },
      { 1 },
      "dlpack: ndim is 1, not 2 [tokens][heads], 3 [tokens][heads][head_dim] or 4" },
    { 5, { 1, 1, 1, 1 }, { NO_STRIDES }, "dlpack: ndim is 5, not 2" },
    { -1, { 1, 1, 1, 1 }, { NO_STRIDES }, "dlpack: ndim is -1, not 2" },
    { INT32_MAX, { 1, 1, 1, 1 }, { NO_STRIDES }, "dlpack: ndim is 2147483647, not 2" },
    { 3, { 7, 4, -16 }, { NO_STRIDES }, SIZES "[2] is -16, not in [0, 72057594037927936]" },
    { 3, { -7, 4, 16 }, { 64, 16, 1 }, SIZES "[0] is -7, not in [0, 72057594037927936]" },
    { 3,
      { 7, INT64_MAX, 1 },
      { NO_STRIDES },
      SIZES "[1] is 9223372036854775807, not in [0, 2147483647]" },
    { 4,
      { (int64_t)1 << 31, 7, 4, 16 },
      { NO_STRIDES },
      SIZES "[0] is 2147483648, not in [0, 2147483647]" },
    { 3,
      { INT64_MAX, 1, 1 },
      { NO_STRIDES },
      SIZES "[0] is 9223372036854775807, times 1 elements" },
    { 3,
      { (int64_t)1 << 40, 1 << 10, 128 },
      { NO_STRIDES },
      SIZES "[0] is 1099511627776, times 131072 elements over 72057594037927936" },
    { 3, { 7, 4, 16 }, { -64, 16, 1 }, "dlpack: strides[0] is -64, below 0" },
    { 3,
      { 7, 4, 16 },
      { 64, INT64_MIN, 1 },
      "dlpack: strides[1] is -9223372036854775808, below 0" },
    { 2, { 7, 4 }, { 4, -1 }, "dlpack: strides[1] is -1, below 0" },
    { 3, { 7, 4, 16 }, { 64, 16, -1 }, "dlpack: strides[2] is -1, below 0" },
    { 3, { 7, 4, 16 }, { 128, 32, 2 }, "dlpack: strides[2] is 2, not 1: rows must be contiguous" },
    { 3,
      { 7, 4, 16 },
      { 0, 0, 0 },
      "dlpack: strides[2] is 0, not 1: the last dimension is expanded, materialise it" },
    { 4,
      { 3, 7, 4, 16 },
      { 512, 64, 16, 0 },
      "dlpack: strides[3] is 0, not 1: the last dimension" },
    { 4,
      { 3, 7, 4, 16 },
      { 512, 64, 16, 1 },
      "dlpack: strides[0] is 512, a batch must be foldable into the tokens: 7 tokens times their "
      "stride of 64" },
    { 4, { 3, 7, 4, 16 }, { 0, 64, 16, 1 }, "dlpack: strides[0] is 0, a batch must be foldable" },
    { 4, { 3, 7, 4, 16 }, { 448, INT64_MAX, 16, 1 }, "dlpack: strides[0] is 448, a batch must be" },
    /* [batch][heads][tokens][head_dim], transposed */
    { 4,
      { 3, 7, 4, 16 },
      { 448, 16, 112, 1 },
      "dlpack: strides[0] is 448, a batch must be foldable" },
};

START_TEST(shapes_are_refused)
{
    int64_t shape[4], strides[4];
    ffa_dltensor from;
    ffa_tensor got;
    ffa_error err = { FFA_OK, 0, "" };

    memcpy(shape, refused[_i].shape, sizeof shape);
    memcpy(strides, refused[_i].strides, sizeof strides);
    from = tensor_of(refused[_i].ndim, shape, strides);
    memset(&got, 0xa5, sizeof got);
    ck_assert_int_eq(ffa_tensor_from_dlpack(&got, &from, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, refused[_i].says) == err.message, "'%s', not '%s'",
                  err.message, refused[_i].says);
    ck_assert_ptr_null(got.data);
}
END_TEST

START_TEST(devices_and_dtypes_are_refused)
{
    static const uint8_t dtypes[][3] = { /* code, bits, lanes */
                                         { 0, 32, 1 }, { 2, 8, 1 },  { 2, 128, 1 }, { 4, 32, 1 },
                                         { 2, 32, 4 }, { 10, 8, 1 }, { 2, 32, 0 }
    };
    static const int32_t devices[] = { 0, -1, 4, 10, 11, 14 };
    int64_t shape[3] = { 2, 3, 4 }, none[1] = { NO_STRIDES };
    ffa_dltensor from = tensor_of(3, shape, none);
    ffa_tensor got;
    ffa_error err = { FFA_OK, 0, "" };
    char says[64];

    for (int i = 0; i < ROWS_OF(dtypes); i++) {
        from.dtype_code = dtypes[i][0];
        from.dtype_bits = dtypes[i][1];
        from.dtype_lanes = dtypes[i][2];
        (void)snprintf(says, sizeof says, "dlpack: dtype has code %d, %d bits and %d lanes, not",
                       dtypes[i][0], dtypes[i][1], dtypes[i][2]);
        ck_assert_int_eq(ffa_tensor_from_dlpack(&got, &from, &err), FFA_INVALID);
        ck_assert_msg(strstr(err.message, says) == err.message, "%s", err.message);
    }
    from = tensor_of(3, shape, none);
    for (int i = 0; i < ROWS_OF(devices); i++) {
        from.device_type = devices[i];
        (void)snprintf(says, sizeof says, "dlpack: device_type is %d, not that of", devices[i]);
        ck_assert_int_eq(ffa_tensor_from_dlpack(&got, &from, &err), FFA_INVALID);
        ck_assert_msg(strstr(err.message, says) == err.message, "%s", err.message);
    }
    from = tensor_of(3, NULL, none);
    ck_assert_int_eq(ffa_tensor_from_dlpack(&got, &from, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "dlpack: shape is NULL");
    ck_assert_int_eq(ffa_tensor_from_dlpack(NULL, &from, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "ffa_tensor_from_dlpack: out is NULL");
    ck_assert_int_eq(ffa_tensor_from_dlpack(&got, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "ffa_tensor_from_dlpack: dltensor is NULL");
    ck_assert_ptr_null(got.data);
}
END_TEST

/* ---- what a call says of them ---- */

static float memory[5][6 * 2 * 8];

/* A call of 6 tokens, 2 heads and 8 columns, in which q is `shape`, of `bits`. */
static ffa_status call(int32_t ndim, int64_t *shape, uint8_t bits, ffa_error *err)
{
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    int64_t none[1] = { NO_STRIDES };
    ffa_dltensor from = tensor_of(ndim, shape, none);
    ffa_context *context;
    ffa_mask *mask;
    ffa_status rc;

    from.data = memory[0];
    from.dtype_code = 2;
    from.dtype_bits = bits;
    ck_assert_int_eq(ffa_tensor_from_dlpack(&args.q, &from, err), FFA_OK);
    args.k.data = memory[1], args.v.data = memory[2];
    args.out.data = memory[3], args.lse.data = memory[4];
    args.heads_q = args.heads_kv = 2;
    spec.dtype = FFA_FP32;
    spec.head_dim = 8;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, NULL, err), FFA_OK);
    ck_assert_int_eq(ffa_mask_parse(&mask, "causal:6", err), FFA_OK);
    rc = ffa_attention(context, mask, &spec, &args, NULL, err);
    ffa_mask_destroy(mask);
    ffa_close(context);
    return rc;
}

START_TEST(calls_check_what_is_known)
{
    static const struct {
        int32_t ndim;
        int64_t shape[4];
        uint8_t bits;
        const char *says; /* NULL: accepted */
    } calls[] = {
        { 3, { 6, 2, 8 }, 32, NULL },
        { 3, { 9, 2, 8 }, 32, NULL },
        { 4, { 2, 3, 2, 8 }, 32, NULL },
        { 3, { 5, 2, 8 }, 32, "q: tokens is 5, the call needs 6" },
        { 4, { 2, 2, 2, 8 }, 32, "q: tokens is 4, the call needs 6" },
        { 3, { 6, 4, 8 }, 32, "q: heads is 4, the call needs 2" },
        { 3, { 6, 2, 4 }, 32, "q: head_dim is 4, the call needs 8" },
        { 3, { 6, 2, 8 }, 16, "q: dtype is 2 (fp16), the call takes 3 (fp32)" },
        { 2, { 6, 2 }, 32, "q: head_dim is 1, the call needs 8" },
        { 3, { 0, 2, 8 }, 32, "q: data is NULL, it has 6 rows" },
    };

    for (int i = 0; i < ROWS_OF(calls); i++) {
        ffa_error err = { FFA_OK, 0, "" };
        int64_t shape[4];

        memcpy(shape, calls[i].shape, sizeof shape);
        ck_assert_int_eq(call(calls[i].ndim, shape, calls[i].bits, &err),
                         calls[i].says ? FFA_INVALID : FFA_OK);
        ck_assert_str_eq(err.message, calls[i].says ? calls[i].says : "");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dlpack");
    TCase *tc = tcase_create("dlpack");

    tcase_add_loop_test(tc, shapes_are_taken, 0, ROWS_OF(taken));
    tcase_add_test(tc, a_dltensor_is_taken);
    tcase_add_test(tc, tensors_without_elements_have_no_data);
    tcase_add_loop_test(tc, shapes_are_refused, 0, ROWS_OF(refused));
    tcase_add_test(tc, devices_and_dtypes_are_refused);
    tcase_add_test(tc, calls_check_what_is_known);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
