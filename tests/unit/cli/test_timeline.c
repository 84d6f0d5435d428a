/* SPDX-License-Identifier: Apache-2.0
 *
 * Timelines of given spans: the whole text of a small one, both formats well-formed for many ranks,
 * and refused where memory runs out.
 */
#include "cli/timeline.h"
#include "support/suite.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory that runs out: the linker sends every realloc here ---- */

static long realloc_left = -1; /* calls until one fails; -1: none does */

void *__real_realloc(void *at, size_t bytes); /* NOLINT: the linker's names */
void *__wrap_realloc(void *at, size_t bytes);

void *__wrap_realloc(void *at, size_t bytes)
{
    if (realloc_left == 0)
        return NULL;
    realloc_left -= realloc_left > 0;
    return __real_realloc(at, bytes);
}

/* ---- spans ---- */

#define SPAN(lane, kind, stage, rank, begin_us, end_us, bytes)                                     \
    {                                                                                              \
        (uint32_t)sizeof(ffa_parallel_span), FFA_PARALLEL_LANE_##lane, FFA_PARALLEL_SPAN_##kind,   \
            stage, rank, 0, begin_us, end_us, bytes                                                \
    }

static const ffa_parallel_span forward[] = {
    SPAN(COMPUTE, PUBLISH, -1, -1, 0.0, 20.0, 4096),
    SPAN(COMPUTE, ATTENTION, -1, -1, 20.0, 500.0, 0),
    SPAN(FETCH, WAIT, 1, 3, 1.5, 50.25, 0),
    SPAN(FETCH, COPY, 1, 3, 50.25, 150.5, 1048576),
};
static const ffa_parallel_span backward[] = {
    SPAN(COMPUTE, ATTENTION, -1, -1, 0.0, 900.0, 0), SPAN(COMPUTE, WAIT, -1, -1, 900.0, 950.0, 0),
    SPAN(COMPUTE, SUMS, -1, -1, 950.0, 1000.0, 0),   SPAN(FETCH, COPY, 2, -1, 10.0, 60.0, 64),
    SPAN(REDUCE, WAIT, 2, 1, 0.0, 700.0, 0),         SPAN(REDUCE, COPY, 2, 1, 700.0, 940.0, 128),
};
enum { FORWARD = sizeof forward / sizeof *forward, BACKWARD = sizeof backward / sizeof *backward };

/* A rank that has run one pass, or both, or none. */
static void fill(struct timeline_rank *rank, int32_t number, bool has_forward, bool has_backward)
{
    memset(rank, 0, sizeof *rank);
    rank->rank = number;
    rank->passes[0].count = has_forward ? FORWARD : 0;
    rank->passes[1].count = has_backward ? BACKWARD : 0;
    memcpy(rank->passes[0].spans, forward, has_forward ? sizeof forward : 0);
    memcpy(rank->passes[1].spans, backward, has_backward ? sizeof backward : 0);
}

static struct timeline small(void)
{
    static struct timeline_rank rank;

    fill(&rank, 1, true, false);
    return (struct timeline){ &rank, 1 };
}

static char *text_of(ffa_status (*make)(char **, const struct timeline *, ffa_error *),
                     const struct timeline *timeline)
{
    ffa_error err = { FFA_OK, 0, "" };
    char *text;

    ck_assert_msg(!make(&text, timeline, &err), "%s", err.message);
    return text;
}

/* ---- texts ---- */

START_TEST(small_trace_is_this)
{
    static const char want[] =
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"rank "
        "1\"}},\n"
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":0,"
        "\"args\":{\"name\":\"compute\"}},\n"
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":1,"
        "\"args\":{\"name\":\"fetch\"}},\n"
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":2,"
        "\"args\":{\"name\":\"reduce\"}},\n"
        "{\"ph\":\"X\",\"name\":\"publish\",\"cat\":\"forward\",\"pid\":1,\"tid\":0,"
        "\"ts\":0.000,\"dur\":20.000,\"args\":{\"stage\":-1,\"rank\":-1,"
        "\"bytes\":4096}},\n"
        "{\"ph\":\"X\",\"name\":\"attention\",\"cat\":\"forward\",\"pid\":1,\"tid\":0,"
        "\"ts\":20.000,\"dur\":480.000,\"args\":{\"stage\":-1,\"rank\":-1,"
        "\"bytes\":0}},\n"
        "{\"ph\":\"X\",\"name\":\"wait "
        "1\",\"cat\":\"forward\",\"pid\":1,\"tid\":1,\"ts\":1.500,\"dur\":48.750,"
        "\"args\":{\"stage\":1,\"rank\":3,\"bytes\":0}},\n"
        "{\"ph\":\"X\",\"name\":\"copy "
        "1\",\"cat\":\"forward\",\"pid\":1,\"tid\":1,\"ts\":50.250,\"dur\":100.250,"
        "\"args\":{\"stage\":1,\"rank\":3,\"bytes\":1048576}},\n"
        "{\"ph\":\"i\",\"name\":\"stage 1 is "
        "there\",\"cat\":\"forward\",\"pid\":1,\"tid\":0,\"ts\":150.500,\"s\":\"t\"}\n"
        "]}\n";
    const struct timeline timeline = small();
    char *text = text_of(timeline_trace, &timeline);

    ck_assert_str_eq(text, want);
    free(text);
}
END_TEST

START_TEST(small_picture_is_this)
{
    static const char want[] =
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        "<text class=\"t\" x=\"64\" y=\"28\">What 1 rank did, and when</text>\n"
        "<text class=\"s\" x=\"64\" y=\"46\">measured by events on each GPU; 0 is "
        "where the rank's own pass began; a tick is when the keys of a stage were "
        "there</text>\n"
        "<rect x=\"64\" y=\"60\" width=\"11\" height=\"11\" fill=\"#dde2e9\"/>\n"
        "<text class=\"s\" x=\"79\" y=\"70\">wait</text>\n"
        "<rect x=\"118\" y=\"60\" width=\"11\" height=\"11\" fill=\"#8a94a3\"/>\n"
        "<text class=\"s\" x=\"133\" y=\"70\">publish</text>\n"
        "<rect x=\"188\" y=\"60\" width=\"11\" height=\"11\" fill=\"#37414f\"/>\n"
        "<text class=\"s\" x=\"203\" y=\"70\">attention</text>\n"
        "<rect x=\"268\" y=\"60\" width=\"11\" height=\"11\" fill=\"#6b7583\"/>\n"
        "<text class=\"s\" x=\"283\" y=\"70\">sums, totals</text>\n"
        "<rect x=\"372\" y=\"60\" width=\"11\" height=\"11\" fill=\"#3a9cce\"/>\n"
        "<text class=\"s\" x=\"387\" y=\"70\">copies: stage 1</text>\n"
        "<text class=\"h\" x=\"64\" y=\"104\">Forward: 500.0 us</text>\n"
        "<text class=\"s e\" x=\"56\" y=\"129\">rank 1</text>\n"
        "<text class=\"s\" x=\"64\" y=\"129\">compute</text>\n"
        "<rect x=\"124\" y=\"116\" width=\"916\" height=\"17\" fill=\"#f6f8fa\"/>\n"
        "<text class=\"s\" x=\"64\" y=\"149\">fetch</text>\n"
        "<rect x=\"124\" y=\"136\" width=\"916\" height=\"17\" fill=\"#f6f8fa\"/>\n"
        "<rect x=\"124\" y=\"116\" width=\"36.64\" height=\"17\" fill=\"#8a94a3\" "
        "stroke=\"#fff\" stroke-width=\".6\"><title>publish, 20.0 us, 4,096 "
        "bytes</title></rect>\n"
        "<rect x=\"160.64\" y=\"116\" width=\"879.36\" height=\"17\" fill=\"#37414f\" "
        "stroke=\"#fff\" stroke-width=\".6\"><title>attention, 480.0 us</title></rect>\n"
        "<text class=\"w\" x=\"600\" y=\"129\">attention</text>\n"
        "<rect x=\"126.74\" y=\"136\" width=\"89.31\" height=\"17\" fill=\"#dde2e9\" "
        "stroke=\"#fff\" stroke-width=\".6\"><title>wait, stage 1, rank 3, 48.7 "
        "us</title></rect>\n"
        "<rect x=\"216.05\" y=\"136\" width=\"183.66\" height=\"17\" fill=\"#3a9cce\" "
        "stroke=\"#fff\" stroke-width=\".6\"><title>copy, stage 1, rank 3, 100.2 us, "
        "1,048,576 bytes</title></rect>\n"
        "<text class=\"w\" x=\"307\" y=\"149\">1</text>\n"
        "<path stroke=\"#3a9cce\" stroke-width=\"2\" d=\"M399.71 112v20\"/>\n"
        "<text class=\"s\" x=\"124\" y=\"172\">0.0 us</text>\n"
        "<text class=\"s m\" x=\"353\" y=\"172\">125.0 us</text>\n"
        "<text class=\"s m\" x=\"582\" y=\"172\">250.0 us</text>\n"
        "<text class=\"s m\" x=\"811\" y=\"172\">375.0 us</text>\n"
        "<text class=\"s e\" x=\"1040\" y=\"172\">500.0 us</text>\n"
        "</svg>\n";
    const struct timeline timeline = small();
    char *text = text_of(timeline_svg, &timeline);
    const char *body = strstr(text, "</style>\n");

    ck_assert_ptr_nonnull(body);
    ck_assert_str_eq(body + strlen("</style>\n"), want);
    ck_assert_ptr_eq(strstr(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1104\" "
                                  "height=\"188\" viewBox=\"0 0 1104 188\">\n"),
                     text);
    free(text);
}
END_TEST

/* ---- many ranks ---- */

enum { MANY = 256 };

static struct timeline many(int32_t count)
{
    static struct timeline_rank ranks[MANY];

    for (int32_t r = 0; r < count; r++)
        fill(&ranks[r], r, r % 2, true);
    return (struct timeline){ ranks, count };
}

static json_int_t number(const json_t *object, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(object, key)), "%s is no integer", key);
    return json_integer_value(json_object_get(object, key));
}

static bool is(const json_t *object, const char *key, const char *value)
{
    ck_assert_msg(json_is_string(json_object_get(object, key)), "%s is no text", key);
    return strcmp(json_string_value(json_object_get(object, key)), value) == 0;
}

START_TEST(traces_are_json)
{
    static const int32_t counts[] = { 1, 2, 8, MANY };
    const int32_t count = counts[_i];
    const struct timeline timeline = many(count);
    char *text = text_of(timeline_trace, &timeline);
    json_t *trace = json_loads(text, 0, NULL);
    const json_t *events = json_object_get(trace, "traceEvents"), *event;
    int spans = 0, arrivals = 0, names = 0;
    size_t i;

    ck_assert_ptr_nonnull(trace);
    json_array_foreach(events, i, event)
    {
        ck_assert_int_ge(number(event, "pid"), 0);
        ck_assert_int_lt(number(event, "pid"), count);
        names += is(event, "ph", "M");
        if (is(event, "ph", "M"))
            continue;
        spans += is(event, "ph", "X");
        arrivals += is(event, "ph", "i");
        ck_assert_int_lt(number(event, "tid"), 3);
        ck_assert(json_is_real(json_object_get(event, "ts")));
        /* Backward passes are behind the longest forward one. */
        if (count > 1)
            ck_assert_int_eq(is(event, "cat", "backward"),
                             json_real_value(json_object_get(event, "ts")) >= 500.0);
    }
    ck_assert_int_eq(names, 4 * count);
    ck_assert_int_eq(spans, count / 2 * FORWARD + count * BACKWARD);
    ck_assert_int_eq(arrivals, count / 2 + count);
    json_decref(trace);
    free(text);
}
END_TEST

static int count_of(const char *text, const char *what)
{
    int count = 0;

    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
        count++;
    return count;
}

START_TEST(pictures_are_well_formed)
{
    static const int32_t counts[] = { 1, 2, 8, MANY };
    const int32_t count = counts[_i];
    const struct timeline timeline = many(count);
    char *text = text_of(timeline_svg, &timeline);
    int height, last = 0;

    for (const char *at = text; *at; at++)
        if (*at != '\n' && (*at < ' ' || *at > '~'))
            ck_abort_msg("character %d", *at);
    ck_assert_int_eq(count_of(text, "<"), count_of(text, ">"));
    ck_assert_int_eq(count_of(text, "<title>"), count_of(text, "</title></rect>"));
    ck_assert_int_eq(count_of(text, "<title>"), count / 2 * FORWARD + count * BACKWARD);
    ck_assert_int_eq(count_of(text, "<text"), count_of(text, "</text>"));
    ck_assert_int_eq(count_of(text, "<path stroke"), count / 2 + count); /* ticks */
    ck_assert_int_eq(count_of(text, ">Forward: "), count > 1);
    ck_assert_int_eq(count_of(text, ">Backward: 1.00 ms"), 1);
    ck_assert_str_eq(text + strlen(text) - 7, "</svg>\n");
    ck_assert_int_eq(sscanf(text,
                            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1104\" "
                            "height=\"%d\"",
                            &height),
                     1);
    for (const char *at = strstr(text, " y=\""); at; at = strstr(at + 1, " y=\"")) {
        const int y = atoi(at + 4);

        last = y > last ? y : last;
    }
    ck_assert_int_gt(height, last);
    ck_assert_int_lt(height, last + 40);
    free(text);
}
END_TEST

START_TEST(no_spans_make_an_empty_timeline)
{
    static struct timeline_rank rank;
    const struct timeline timeline = { &rank, 1 };
    char *text = text_of(timeline_svg, &timeline);

    ck_assert_int_eq(count_of(text, "<title>"), 0);
    free(text);
    text = text_of(timeline_trace, &timeline);
    ck_assert_int_eq(count_of(text, "\"ph\""), 4);
    free(text);
}
END_TEST

START_TEST(memory_that_runs_out)
{
    ffa_status (*const makes[])(char **, const struct timeline *, ffa_error *) = { timeline_svg,
                                                                                   timeline_trace };
    const struct timeline timeline = many(8);

    for (long left = 0;; left++) {
        ffa_error err = { FFA_OK, 0, "" };
        char *text = (char *)&err;
        ffa_status rc;

        realloc_left = left;
        rc = makes[_i](&text, &timeline, &err);
        realloc_left = -1;
        if (rc == FFA_OK) {
            ck_assert_int_gt(left, 1);
            free(text);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(text);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("timeline");
    TCase *tc = tcase_create("timeline");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, small_trace_is_this);
    tcase_add_test(tc, small_picture_is_this);
    tcase_add_loop_test(tc, traces_are_json, 0, 4);
    tcase_add_loop_test(tc, pictures_are_well_formed, 0, 4);
    tcase_add_test(tc, no_spans_make_an_empty_timeline);
    tcase_add_loop_test(tc, memory_that_runs_out, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
