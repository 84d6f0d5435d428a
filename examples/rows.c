/* What a context-parallel training step does around attention, on GPUs: four ranks, threads of this
 * process, dispatch tokens and labels of packed documents, and bring what they computed together.
 */
#include <ffa/ffa.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, DOCUMENTS = 3, TOKENS = 700, WIDTH = 8, IGNORED = -100 };

static const int64_t cu_tokens[DOCUMENTS + 1] = { 0, 400, 450, TOKENS };
static ffa_context *contexts[RANKS]; /* of each rank; the ranks of one GPU share one */
static ffa_row_kernels *kernels[RANKS];
static ffa_dispatch *dispatch;
static int64_t tokens[TOKENS];

static void must(ffa_status status, const ffa_error *err)
{
    if (status == FFA_OK)
        return;
    fprintf(stderr, "%s: %s\n", ffa_status_text(status), err->message);
    exit(1);
}

/* ---- an allgather of threads, which communicators are made with ---- */

static pthread_barrier_t barrier;
static unsigned char places[RANKS][4096];

static int allgather(void *user, const void *mine, void *all, size_t bytes)
{
    if (bytes > sizeof places[0])
        return 1;
    memcpy(places[*(const int32_t *)user], mine, bytes);
    pthread_barrier_wait(&barrier);
    for (size_t r = 0; r < RANKS; r++)
        memcpy((unsigned char *)all + r * bytes, places[r], bytes);
    pthread_barrier_wait(&barrier);
    return 0;
}

/* ---- one rank ---- */

enum memory { WHOLE_TOKENS, LABELS, IDS, LOCAL, WHOLE, TABLES, MEMORIES };

struct rank {
    int32_t rank;
    ffa_context *context;
    ffa_comm *comm;
    ffa_stream stream;
    ffa_parallel_rows *rows;
    void *memory[MEMORIES]; /* on the device */
    int64_t count;          /* of own rows */
    int64_t ids[TOKENS], labels[TOKENS];
    float hidden[TOKENS][WIDTH], gradient[WIDTH];
};

static const ffa_row_format integers = { sizeof(int64_t), 1, 1 };
static const ffa_row_format vectors = { sizeof(float), 1, WIDTH };

static void copy(const struct rank *r, void *to, const void *from, size_t bytes,
                 ffa_copy_direction direction)
{
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_device_copy(r->context, to, from, (int64_t)bytes, direction, &err), &err);
}

/* Memory, before ranks wait for each other on a GPU that they share: freeing some would wait, too.
 */
static void allocate(struct rank *r, int64_t table_bytes)
{
    const int64_t bytes[MEMORIES] = { sizeof tokens,    sizeof r->labels, sizeof r->ids,
                                      sizeof r->hidden, sizeof r->hidden, table_bytes };
    ffa_error err = { FFA_OK, 0, "" };

    for (int i = 0; i < MEMORIES; i++)
        must(ffa_device_alloc(&r->memory[i], r->context, bytes[i], &err), &err);
}

/* The tables of the rank's rows, once a dispatch, and its communicator. */
static void prepare(struct rank *r)
{
    ffa_peer_opts peer = FFA_PEER_OPTS_INIT;
    ffa_parallel_rows_opts opts = FFA_PARALLEL_ROWS_OPTS_INIT;
    ffa_parallel_rows_info info = FFA_PARALLEL_ROWS_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.rank = r->rank;
    opts.shift = -1; /* the label of a token is the next token, */
    opts.cu_tokens = cu_tokens;
    opts.document_count = DOCUMENTS; /* of its document */
    must(ffa_parallel_rows_create(&r->rows, dispatch, kernels[r->rank], &opts, &err), &err);
    must(ffa_parallel_rows_info_get(r->rows, &vectors, &info, &err), &err);
    r->count = info.local_rows;
    allocate(r, info.upload_bytes);
    must(ffa_device_stream_create(&r->stream, r->context, &err), &err);
    must(ffa_parallel_rows_upload(r->rows, r->memory[TABLES], r->stream, &err), &err);
    peer.rank = r->rank;
    peer.rank_count = RANKS;
    peer.allgather = allgather;
    peer.user = &r->rank;
    peer.key_bytes =
        info.reduce_bytes > info.undispatch_bytes ? info.reduce_bytes : info.undispatch_bytes;
    must(ffa_comm_create_peer(&r->comm, r->context, &peer, &err), &err);
}

/* Every rank has all tokens. It gets its labels, and position ids for rotary embeddings. */
static void step_begin(struct rank *r)
{
    const uint64_t ignored = (uint64_t)(int64_t)IGNORED;
    const ffa_tensor whole = FFA_TENSOR_INIT(r->memory[WHOLE_TOKENS]);
    const ffa_tensor labels = FFA_TENSOR_INIT(r->memory[LABELS]);
    ffa_error err = { FFA_OK, 0, "" };

    copy(r, r->memory[WHOLE_TOKENS], tokens, sizeof tokens, FFA_TO_DEVICE);
    must(ffa_parallel_rows_position_ids(r->rows, r->memory[IDS], r->stream, &err), &err);
    must(ffa_parallel_rows_dispatch_rolled(r->rows, &integers, &whole, &labels, &ignored, r->stream,
                                           &err),
         &err);
    must(ffa_device_stream_synchronize(r->context, r->stream, &err), &err);
    copy(r, r->ids, r->memory[IDS], (size_t)r->count * sizeof r->ids[0], FFA_FROM_DEVICE);
    copy(r, r->labels, r->memory[LABELS], (size_t)r->count * sizeof r->labels[0], FFA_FROM_DEVICE);
}

/* The ranks' rows to all ranks, and the gradient of that: every rank has a part of the sum. */
static void step_end(struct rank *r)
{
    const size_t row_bytes = sizeof r->hidden[0];
    const ffa_tensor local = FFA_TENSOR_INIT(r->memory[LOCAL]);
    const ffa_tensor whole = FFA_TENSOR_INIT(r->memory[WHOLE]);
    ffa_error err = { FFA_OK, 0, "" };

    for (int64_t row = 0; row < r->count; row++) /* the model: the row of token t is full of t */
        for (int c = 0; c < WIDTH; c++)
            r->hidden[row][c] = (float)r->ids[row];
    copy(r, local.data, r->hidden, (size_t)r->count * row_bytes, FFA_TO_DEVICE);
    must(ffa_parallel_rows_undispatch(r->rows, r->comm, &vectors, &local, &whole, r->stream, &err),
         &err);
    must(ffa_parallel_rows_reduce(r->rows, r->comm, &vectors, &whole, &local, r->stream, &err),
         &err);
    must(ffa_device_stream_synchronize(r->context, r->stream, &err), &err);
    must(ffa_comm_status(r->comm, &err), &err);
    copy(r, r->hidden, whole.data, sizeof r->hidden, FFA_FROM_DEVICE);
    copy(r, r->gradient, local.data, row_bytes, FFA_FROM_DEVICE); /* of its first row */
}

static void *run_rank(void *user)
{
    struct rank *r = user;

    prepare(r);
    step_begin(r);
    step_end(r);
    pthread_barrier_wait(&barrier); /* nobody leaves before all have ended their calls */
    ffa_comm_destroy(r->comm);
    ffa_parallel_rows_destroy(r->rows);
    for (int i = 0; i < MEMORIES; i++)
        ffa_device_free(r->context, r->memory[i]);
    ffa_device_stream_destroy(r->context, r->stream);
    return NULL;
}

/* ---- all ---- */

/* A GPU a rank, or one for all. */
static void open_devices(void)
{
    int32_t devices;
    ffa_row_kernels_opts opts = FFA_ROW_KERNELS_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.dtype = FFA_FP32;
    opts.reduces = FFA_ROW_KERNELS_SUM;
    for (devices = 0; devices < RANKS; devices++)
        if (ffa_open(&contexts[devices], devices, NULL, &err) != FFA_OK)
            break;
    if (devices == 0) {
        fprintf(stderr, "no GPU: %s\n", err.message);
        exit(77);
    }
    while (devices > 1 && devices < RANKS)
        ffa_close(contexts[--devices]);
    for (int32_t r = 0; r < RANKS; r++) {
        contexts[r] = contexts[r < devices ? r : 0];
        must(ffa_row_kernels_create(&kernels[r], contexts[r], &opts, &err), &err);
    }
}

static void report(const struct rank *r)
{
    int64_t last = r->count - 1, ignored = 0, wrong = 0;

    for (int64_t row = 0; row < r->count; row++)
        ignored += r->labels[row] == IGNORED;
    for (int t = 0; t < TOKENS; t++)
        wrong += r->hidden[t][WIDTH - 1] != (float)t;
    printf("rank %d: %lld rows, the last is token %lld with label %lld; %lld ignored; "
           "%lld wrong rows of all; gradient of token %lld: %g\n",
           r->rank, (long long)r->count, (long long)r->ids[last], (long long)r->labels[last],
           (long long)ignored, (long long)wrong, (long long)r->ids[0], (double)r->gradient[0]);
}

int main(void)
{
    static struct rank ranks[RANKS];
    const ffa_topology topology = { RANKS, 0 };
    ffa_dispatch_mask one = { NULL, 1 };
    ffa_error err = { FFA_OK, 0, "" };
    pthread_t threads[RANKS];
    ffa_mask *mask;

    /* Ranks that share a GPU: streams that wait for each other share no hardware queue. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    open_devices();
    must(ffa_mask_parse(&mask, "varlen-causal:400,50,250", &err), &err);
    one.mask = mask;
    must(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, &err), &err);
    for (int t = 0; t < TOKENS; t++)
        tokens[t] = 1000 + t;
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (int32_t r = 0; r < RANKS; r++) {
        ranks[r].rank = r;
        ranks[r].context = contexts[r];
        if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]))
            return 1;
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++)
        report(&ranks[r]);
    for (int r = RANKS; r-- > 0;) {
        ffa_row_kernels_destroy(kernels[r]);
        if (r == 0 || contexts[r] != contexts[0])
            ffa_close(contexts[r]);
    }
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
    return 0;
}
