/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a template's text includes only what a key can cover: files of the templates, which are
 * given to the compiler in memory, and its own headers. An absolute path, one through a parent
 * folder, or a name that a macro makes could be any file of the machine, whose text is in no key.
 *
 * Directives are read as NVRTC reads them: lines are spliced, comments are blanks, raw strings and
 * digit separators are known, so that none of them hides a directive. What no compiler reaches
 * (#if 0) is refused, too.
 */
#include "jit/source.h"

#include <stdio.h>

/* A text, read without its spliced line ends and its comments. */
struct scan {
    const char *at;
    bool in_string, in_character;
    char word[4], last; /* the begin and the end of the name or number that is being read */
    size_t word_bytes;  /* 0: none is */
};

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_word(char c)
{
    return is_letter(c) || (c >= '0' && c <= '9');
}

static bool in_number(const struct scan *scan)
{
    return scan->word_bytes > 0 && scan->word[0] >= '0' && scan->word[0] <= '9';
}

/* A number takes in more than a value can have: "1e+", "1.2.3", "1\\u00e4". */
static bool number_takes(const struct scan *scan, char c)
{
    return in_number(scan) &&
           (c == '.' || c == '\\' || ((c == '+' || c == '-') && strchr("eEpP", scan->last)));
}

static void word_step(struct scan *scan, char c)
{
    if (!is_word(c) && !number_takes(scan, c)) {
        scan->word_bytes = 0;
        return;
    }
    if (scan->word_bytes < sizeof scan->word)
        scan->word[scan->word_bytes] = c;
    scan->word_bytes++;
    scan->last = c;
}

/* What follows at once is the suffix of a literal, and no prefix of the next. */
static void literal_end(struct scan *scan)
{
    scan->in_string = scan->in_character = false;
    scan->word[0] = scan->last = '"';
    scan->word_bytes = 1;
}

static void skip_splices(struct scan *scan)
{
    for (;;) {
        if (scan->at[0] == '\\' && scan->at[1] == '\n')
            scan->at += 2;
        else if (scan->at[0] == '\\' && scan->at[1] == '\r' && scan->at[2] == '\n')
            scan->at += 3;
        else
            break;
    }
}

static char raw_next(struct scan *scan)
{
    char c;

    skip_splices(scan);
    c = *scan->at;
    scan->at += c != '\0';
    skip_splices(scan);
    return c;
}

/* From after the opening slash on. */
static void skip_comment(struct scan *scan)
{
    const bool is_block = raw_next(scan) == '*';
    char before = '\0';

    while (*scan->at && (is_block || *scan->at != '\n')) {
        const char c = raw_next(scan);

        if (is_block && before == '*' && c == '/')
            break;
        before = c;
    }
}

/* Whether a quote after the word begins a raw string. */
static bool begins_raw(const struct scan *scan)
{
    static const char *const prefixes[] = { "R", "LR", "uR", "UR", "u8R" };

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (scan->word_bytes == strlen(prefixes[i]) &&
            memcmp(scan->word, prefixes[i], scan->word_bytes) == 0)
            return true;
    return false;
}

/* From after the opening quote on, to the closing one. Nothing in it is spliced. */
static void skip_raw_string(struct scan *scan)
{
    const char *const mark = scan->at;
    const size_t bytes = strcspn(mark, "()\\\" \t\v\f\n");
    const char *at = mark + bytes;

    if (*at != '(')
        return; /* the compiler refuses it */
    scan->at = mark + strlen(mark);
    for (at = strchr(at, ')'); at; at = strchr(at + 1, ')'))
        if (strncmp(at + 1, mark, bytes) == 0 && at[1 + bytes] == '"') {
            scan->at = at + bytes + 2;
            return;
        }
}

/* The next character; a comment is a blank, so is a raw string, and an unfinished literal ends with
 * its line. '\0': none. */
static char next(struct scan *scan)
{
    const char c = raw_next(scan);

    if (c == '\n')
        scan->in_string = scan->in_character = false;
    if (scan->in_string || scan->in_character) {
        if (c == '\\' && *scan->at != '\n')
            (void)raw_next(scan); /* an escaped quote ends nothing */
        else if (c == (scan->in_string ? '"' : '\''))
            literal_end(scan);
        return c;
    }
    if (c == '/' && (*scan->at == '/' || *scan->at == '*')) {
        scan->word_bytes = 0;
        skip_comment(scan);
        return ' ';
    }
    if (c == '"' && begins_raw(scan)) {
        skip_raw_string(scan);
        literal_end(scan);
        return ' ';
    }
    if (c == '\'' && in_number(scan) && is_word(*scan->at))
        return c; /* 1'000 */
    word_step(scan, c);
    scan->in_string = c == '"';
    scan->in_character = c == '\'';
    return c;
}

/* A name that may lead out of the templates. */
static bool leads_out(const char *name, size_t bytes)
{
    if (name[0] == '/')
        return true;
    for (size_t at = 0; at < bytes; at += strcspn(name + at, "/>\"") + 1)
        if (strncmp(name + at, "..", 2) == 0 && strchr("/>\"", name[at + 2]))
            return true;
    return false;
}

static const char blanks[] = " \t\v\f\r";

/* Whether the scan read the name as the compiler does, to which nothing in it is a comment (here a
 * blank), a literal or an escape. */
static bool is_plain(const char *name, size_t bytes)
{
    return strcspn(name, "\"'\\ \t\v\f\r") >= bytes;
}

static ffa_status refuse_macro(const struct embedded_file *file, const char *what, ffa_error *err)
{
    return error_fail(err, FFA_INVALID, 0,
                      "template '%s' includes what a macro names, '%.100s': the key cannot cover "
                      "it; write the name of a file of the templates",
                      file->name, what);
}

/* The operand of #include or __has_include: a name in quotes or angles, and one of the templates'
 * or the compiler's. */
static ffa_status check_operand(const struct embedded_file *file, const char *operand,
                                ffa_error *err)
{
    size_t bytes;

    while (*operand && strchr(" \t\v\f\r(", *operand))
        operand++;
    bytes = strcspn(operand + (*operand != '\0'), *operand == '<' ? ">" : "\"");
    if (is_letter(*operand) || *operand == '\\' || *operand == '$' || (*operand & 0x80))
        return refuse_macro(file, operand, err);
    if (*operand != '"' && *operand != '<')
        return FFA_OK; /* the compiler refuses it */
    if (leads_out(operand + 1, bytes))
        return error_fail(err, FFA_INVALID, 0,
                          "template '%s' includes '%.*s', which is outside of the templates: the "
                          "key cannot cover it; copy the file beside the template",
                          file->name, bytes > 200 ? 200 : (int)bytes, operand + 1);
    if (!is_plain(operand + 1, bytes))
        return error_fail(err, FFA_INVALID, 0,
                          "template '%s' includes '%.*s', a name with a blank, a quote, a comment "
                          "or a backslash: the key cannot cover it",
                          file->name, bytes > 200 ? 200 : (int)bytes, operand + 1);
    return FFA_OK;
}

/* What a directive that is none of include's asks with __has_include. A macro of that name by
 * another name would hide what it asks for; defined(__has_include) and #ifdef ask for no file. */
static ffa_status check_questions(const struct embedded_file *file, const char *text,
                                  ffa_error *err)
{
    static const char asked[] = "__has_include";
    const bool is_define = strncmp(text, "define", 6) == 0;
    ffa_status rc = FFA_OK;

    while (rc == FFA_OK && (text = strstr(text, asked))) {
        const char *const name = text;

        text += sizeof asked - 1;
        if (strncmp(text, "_next", 5) == 0)
            text += 5;
        if (text[strspn(text, blanks)] == '(')
            rc = check_operand(file, text, err);
        else if (is_define)
            rc = refuse_macro(file, name, err);
    }
    return rc;
}

/* `text` is a directive, from after its '#' on. */
static ffa_status check_directive(const struct embedded_file *file, const char *text,
                                  ffa_error *err)
{
    static const char *const names[] = { "include", "include_next", "import", "embed" };
    size_t bytes;

    text += strspn(text, blanks);
    bytes = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == bytes && strncmp(text, names[i], bytes) == 0)
            return check_operand(file, text + bytes, err);
    return check_questions(file, text, err);
}

ffa_status include_check(const struct embedded_file *file, ffa_error *err)
{
    struct scan scan = { .at = file->text };
    struct text line = { 0 };
    bool is_more = true;
    ffa_status rc = FFA_OK;

    while (rc == FFA_OK && is_more) {
        const char *directive;
        char c;

        line.bytes = 0;
        while ((c = next(&scan)) != '\0' && c != '\n')
            text_add_bytes(&line, &c, 1);
        is_more = c != '\0';
        text_add_bytes(&line, "", 0);
        if (line.failed) {
            rc = error_nomem(err, "a line of a template");
            break;
        }
        directive = line.at + strspn(line.at, blanks);
        if (directive[0] == '#')
            rc = check_directive(file, directive + 1, err);
        else if (strncmp(directive, "%:", 2) == 0)
            rc = check_directive(file, directive + 2, err);
    }
    text_finish(&line);
    return rc;
}
