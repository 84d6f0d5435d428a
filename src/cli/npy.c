/* SPDX-License-Identifier: Apache-2.0
 *
 * The format (numpy.lib.format): "\x93NUMPY", two version bytes, the header's length (2 bytes
 * in version 1, 4 in version 2, little endian), a Python dict literal with the keys descr,
 * fortran_order and shape, padded with blanks to a multiple of 64, then the elements.
 */
#include "cli/npy.h"

#include "cli/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 65535, PREFIX_MAX = 12 };

static const char magic[6] = { '\x93', 'N', 'U', 'M', 'P', 'Y' };

static const struct {
    enum npy_type type;
    const char *descr;
    const char *name;
    size_t bytes;
} types[] = {
    { NPY_FLOAT16, "<f2", "float16", 2 },
    { NPY_FLOAT32, "<f4", "float32", 4 },
    { NPY_FLOAT64, "<f8", "float64", 8 },
    { NPY_UINT16, "<u2", "uint16", 2 },
};
enum { TYPE_COUNT = sizeof types / sizeof *types };

const char *npy_type_name(enum npy_type type)
{
    for (int i = 0; i < TYPE_COUNT; i++)
        if (types[i].type == type)
            return types[i].name;
    return "unknown";
}

size_t npy_type_bytes(enum npy_type type)
{
    for (int i = 0; i < TYPE_COUNT; i++)
        if (types[i].type == type)
            return types[i].bytes;
    return 0;
}

static const char *type_descr(enum npy_type type)
{
    for (int i = 0; i < TYPE_COUNT; i++)
        if (types[i].type == type)
            return types[i].descr;
    return "";
}

/* ---- the dict literal ---- */

/* A terminated text and where we are in it. */
struct scan {
    const char *name; /* of the file */
    const char *at;
    struct npy *out;
    ffa_error *err;
    bool has_descr, has_order, has_shape;
};

static void skip_blanks(struct scan *scan)
{
    while (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n')
        scan->at++;
}

static bool take(struct scan *scan, const char *word)
{
    size_t bytes = strlen(word);

    skip_blanks(scan);
    if (strncmp(scan->at, word, bytes) != 0)
        return false;
    scan->at += bytes;
    return true;
}

static ffa_status malformed(struct scan *scan, const char *wanted)
{
    return cli_error(scan->err, FFA_INVALID, 0, "%s: the header is malformed at '%.20s': %s wanted",
                     scan->name, scan->at, wanted);
}

/* A Python string without escapes, cut to size. */
static ffa_status take_string(struct scan *scan, char *out, size_t size)
{
    const char *end;
    char quote;

    skip_blanks(scan);
    quote = *scan->at;
    end = quote == '\'' || quote == '"' ? strchr(scan->at + 1, quote) : NULL;
    if (!end)
        return malformed(scan, "a string");
    (void)snprintf(out, size, "%.*s", (int)(end - scan->at - 1), scan->at + 1);
    scan->at = end + 1;
    return FFA_OK;
}

static ffa_status take_descr(struct scan *scan)
{
    char descr[32];

    skip_blanks(scan);
    if (*scan->at == '[')
        return cli_error(scan->err, FFA_INVALID, 0,
                         "%s: the dtype is structured: float16, float32, float64 or uint16 wanted",
                         scan->name);
    if (take_string(scan, descr, sizeof descr) != FFA_OK)
        return FFA_INVALID;
    for (int i = 0; i < TYPE_COUNT; i++)
        if (strcmp(descr, types[i].descr) == 0) {
            scan->out->type = types[i].type;
            scan->has_descr = true;
            return FFA_OK;
        }
    if (descr[0] == '>')
        return cli_error(scan->err, FFA_INVALID, 0,
                         "%s: the dtype is '%s', big endian: little endian wanted, such as '<%s'",
                         scan->name, descr, descr + 1);
    return cli_error(scan->err, FFA_INVALID, 0,
                     "%s: the dtype is '%s': '<f2', '<f4', '<f8' or '<u2' wanted", scan->name,
                     descr);
}

static ffa_status take_order(struct scan *scan)
{
    if (take(scan, "True"))
        return cli_error(scan->err, FFA_INVALID, 0,
                         "%s: the array is in Fortran order: C order wanted "
                         "(numpy.ascontiguousarray)",
                         scan->name);
    if (!take(scan, "False"))
        return malformed(scan, "True or False");
    scan->has_order = true;
    return FFA_OK;
}

static ffa_status take_dimension(struct scan *scan)
{
    struct npy *out = scan->out;
    char *end = NULL;
    long long value;

    skip_blanks(scan);
    if (*scan->at < '0' || *scan->at > '9')
        return malformed(scan, "a dimension");
    errno = 0;
    value = strtoll(scan->at, &end, 10);
    if (errno == ERANGE)
        return malformed(scan, "a dimension below 2^63");
    scan->at = end;
    if (out->dims == NPY_DIMS_MAX)
        return cli_error(scan->err, FFA_INVALID, 0, "%s: more than %d dimensions", scan->name,
                         NPY_DIMS_MAX);
    out->shape[out->dims++] = value;
    return FFA_OK;
}

static ffa_status take_shape(struct scan *scan)
{
    scan->out->dims = 0;
    if (!take(scan, "("))
        return malformed(scan, "'(' of the shape");
    while (!take(scan, ")")) {
        if (take_dimension(scan) != FFA_OK)
            return FFA_INVALID;
        if (!take(scan, ",")) {
            if (!take(scan, ")"))
                return malformed(scan, "',' or ')'");
            break;
        }
    }
    scan->has_shape = true;
    return FFA_OK;
}

static ffa_status take_entry(struct scan *scan)
{
    char key[32];

    if (take_string(scan, key, sizeof key) != FFA_OK)
        return FFA_INVALID;
    if (!take(scan, ":"))
        return malformed(scan, "':'");
    if (strcmp(key, "descr") == 0)
        return take_descr(scan);
    if (strcmp(key, "fortran_order") == 0)
        return take_order(scan);
    if (strcmp(key, "shape") == 0)
        return take_shape(scan);
    return cli_error(scan->err, FFA_INVALID, 0,
                     "%s: the header has the key '%s': descr, fortran_order and shape wanted",
                     scan->name, key);
}

static ffa_status take_dict(struct scan *scan)
{
    if (!take(scan, "{"))
        return malformed(scan, "'{'");
    while (!take(scan, "}")) {
        if (take_entry(scan) != FFA_OK)
            return FFA_INVALID;
        if (!take(scan, ",")) {
            if (!take(scan, "}"))
                return malformed(scan, "',' or '}'");
            break;
        }
    }
    skip_blanks(scan);
    if (*scan->at)
        return malformed(scan, "the end of the header");
    if (!scan->has_descr || !scan->has_order || !scan->has_shape)
        return cli_error(scan->err, FFA_INVALID, 0, "%s: the header lacks the key '%s'", scan->name,
                         !scan->has_descr   ? "descr"
                         : !scan->has_order ? "fortran_order"
                                            : "shape");
    return FFA_OK;
}

/* ---- reading ---- */

static ffa_status count_elements(struct npy *out, const char *name, ffa_error *err)
{
    const int64_t most = INT64_MAX / 8;

    out->count = 1;
    for (int32_t i = 0; i < out->dims; i++) {
        if (out->shape[i] && out->count > most / out->shape[i])
            return cli_error(err, FFA_INVALID, 0, "%s: the shape has more than 2^60 elements",
                             name);
        out->count *= out->shape[i];
    }
    return FFA_OK;
}

/* Everything before the header's text; *bytes is the length of that. */
static ffa_status read_prefix(const char *name, FILE *in, size_t *bytes, ffa_error *err)
{
    unsigned char prefix[PREFIX_MAX];
    size_t length_bytes;

    if (fread(prefix, 1, 8, in) != 8 || memcmp(prefix, magic, sizeof magic) != 0)
        return cli_error(err, FFA_INVALID, 0, "%s: no .npy file: it does not begin with \\x93NUMPY",
                         name);
    if (prefix[6] != 1 && prefix[6] != 2)
        return cli_error(err, FFA_INVALID, 0, "%s: version %d.%d of the format: 1.0 or 2.0 wanted",
                         name, prefix[6], prefix[7]);
    length_bytes = prefix[6] == 1 ? 2 : 4;
    if (fread(prefix + 8, 1, length_bytes, in) != length_bytes)
        return cli_error(err, FFA_INVALID, 0, "%s: the file ends inside its header", name);
    *bytes = 0;
    for (size_t i = length_bytes; i-- > 0;)
        *bytes = *bytes << 8 | prefix[8 + i];
    if (*bytes > HEADER_MAX)
        return cli_error(err, FFA_INVALID, 0, "%s: the header is %zu bytes long, more than %d",
                         name, *bytes, HEADER_MAX);
    return FFA_OK;
}

static ffa_status read_header(struct npy *out, const char *name, FILE *in, ffa_error *err)
{
    struct scan scan = { .name = name, .out = out, .err = err };
    char *text = NULL;
    size_t bytes = 0;
    ffa_status rc = read_prefix(name, in, &bytes, err);

    if (rc != FFA_OK)
        return rc;
    text = malloc(bytes + 1);
    if (!text)
        return cli_error(err, FFA_NOMEM, 0, "no memory for the header of %s", name);
    if (fread(text, 1, bytes, in) != bytes) {
        rc = cli_error(err, FFA_INVALID, 0, "%s: the file ends inside its header", name);
    } else {
        text[bytes] = '\0';
        scan.at = text;
        rc = strlen(text) == bytes ? take_dict(&scan) : malformed(&scan, "a header without zeros");
    }
    free(text);
    return rc == FFA_OK ? count_elements(out, name, err) : rc;
}

/* Bytes from here to the end. */
static ffa_status bytes_left(const char *name, FILE *in, int64_t *left, ffa_error *err)
{
    long at = ftell(in);
    long end;

    if (at < 0 || fseek(in, 0, SEEK_END) != 0 || (end = ftell(in)) < 0 ||
        fseek(in, at, SEEK_SET) != 0)
        return cli_error(err, FFA_IO, errno, "%s: %s", name, strerror(errno));
    *left = end - at;
    return FFA_OK;
}

static ffa_status read_data(struct npy *out, const char *name, FILE *in, ffa_error *err)
{
    int64_t wanted = out->count * (int64_t)npy_type_bytes(out->type);
    int64_t left = 0;
    ffa_status rc = bytes_left(name, in, &left, err);

    if (rc != FFA_OK)
        return rc;
    if (left != wanted)
        return cli_error(err, FFA_INVALID, 0,
                         "%s: %" PRId64 " bytes of data, the shape wants %" PRId64 "%s", name, left,
                         wanted, left < wanted ? ": the file is truncated" : "");
    out->data = malloc(wanted ? (size_t)wanted : 1);
    if (!out->data)
        return cli_error(err, FFA_NOMEM, 0, "no memory for the %" PRId64 " bytes of %s", wanted,
                         name);
    if (fread(out->data, 1, (size_t)wanted, in) != (size_t)wanted)
        return cli_error(err, FFA_IO, errno, "cannot read '%s': %s", name, strerror(errno));
    return FFA_OK;
}

ffa_status npy_read_stream(struct npy *out, const char *name, FILE *in, ffa_error *err)
{
    ffa_status rc;

    memset(out, 0, sizeof *out);
    rc = read_header(out, name, in, err);
    if (rc == FFA_OK)
        rc = read_data(out, name, in, err);
    if (rc != FFA_OK)
        npy_finish(out);
    return rc;
}

ffa_status npy_read(struct npy *out, const char *path, ffa_error *err)
{
    FILE *in = file_open(path);
    ffa_status rc;

    memset(out, 0, sizeof *out);
    if (!in)
        return cli_error(err, FFA_IO, errno, "cannot open '%s': %s", path, strerror(errno));
    rc = npy_read_stream(out, path, in, err);
    (void)fclose(in);
    return rc;
}

void npy_finish(struct npy *array)
{
    free(array->data);
    memset(array, 0, sizeof *array);
}

static void shape_text(char *out, size_t size, const int64_t *shape, int32_t dims)
{
    size_t used = (size_t)snprintf(out, size, "(");

    for (int32_t i = 0; i < dims && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < size)
        (void)snprintf(out + used, size - used, dims == 1 ? ",)" : ")");
}

ffa_status npy_expect(const struct npy *array, const char *name, const int64_t *shape, int32_t dims,
                      const char *what, ffa_error *err)
{
    char found[128];
    char wanted[128];

    if (array->dims == dims && memcmp(array->shape, shape, (size_t)dims * sizeof *shape) == 0)
        return FFA_OK;
    shape_text(found, sizeof found, array->shape, array->dims);
    shape_text(wanted, sizeof wanted, shape, dims);
    return cli_error(err, FFA_INVALID, 0, "%s: the shape is %s: %s %s wanted", name, found, what,
                     wanted);
}

/* ---- writing ---- */

ffa_status npy_write(const char *path, const struct npy *array, ffa_error *err)
{
    unsigned char header[256];
    char shape[128];
    struct file_part parts[2];
    int bytes;
    const int total = array->dims > 2 ? 192 : 128; /* a multiple of 64 with room for any shape */

    shape_text(shape, sizeof shape, array->shape, array->dims);
    bytes = snprintf((char *)header + 10, sizeof header - 10,
                     "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                     type_descr(array->type), shape);
    if (bytes < 0 || bytes + 11 > total)
        return cli_error(err, FFA_BUG, 0, "the header of %s has no room", path);
    memset(header + 10 + bytes, ' ', (size_t)(total - 10 - bytes));
    header[total - 1] = '\n';
    memcpy(header, magic, sizeof magic);
    header[6] = 1;
    header[7] = 0;
    header[8] = (unsigned char)((total - 10) & 255);
    header[9] = (unsigned char)((total - 10) >> 8);
    parts[0] = (struct file_part){ header, (size_t)total };
    parts[1] =
        (struct file_part){ array->data, (size_t)array->count * npy_type_bytes(array->type) };
    return file_write_parts(path, parts, 2, err);
}
