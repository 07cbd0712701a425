/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate_text.c - texts from JSONL, and evaluation entries cut from them. Thread rule: see
 * evaluate.h.
 */
#include "estimator/exchange/text_file.h"
#include "estimator/quality/evaluate.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UTF-8 of the cp1252 reading of a UTF-8 mark: E2 80 became a-circumflex, euro sign; the third byte
 * one more character, or nothing where cp1252 has none (9D, the closing quote). Longest first. */
static const struct {
    const char *broken, *ascii;
} evaluate_repairs[] = {
    {"\xc3\xa2\xe2\x82\xac\xe2\x84\xa2", "'"},
    {"\xc3\xa2\xe2\x82\xac\xe2\x80\x9c", "-"},
    {"\xc3\xa2\xe2\x82\xac\xe2\x80\x9d", "-"},
    {"\xc3\xa2\xe2\x82\xac\xc5\x93", "\""},
    {"\xc3\xa2\xe2\x82\xac\xcb\x9c", "'"},
    {"\xc3\xa2\xe2\x82\xac\xc2\xa6", "..."},
    {"\xc3\xa2\xe2\x82\xac", "\""},
};

void evaluate_repair_text(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0';) {
        size_t mark = 0, marks = sizeof evaluate_repairs / sizeof evaluate_repairs[0];
        while (mark < marks && strncmp(from, evaluate_repairs[mark].broken,
                                       strlen(evaluate_repairs[mark].broken)) != 0) {
            mark++;
        }
        if (mark == marks) {
            *to++ = *from++;
            continue;
        }
        size_t length = strlen(evaluate_repairs[mark].ascii);
        memcpy(to, evaluate_repairs[mark].ascii, length);
        to += length;
        from += strlen(evaluate_repairs[mark].broken);
    }
    *to = '\0';
}

static kvt_status evaluate_texts_add(evaluate_texts *texts, size_t *capacity, const char *text,
                                     evaluate_marks marks)
{
    if (texts->count == *capacity) {
        size_t more = *capacity == 0 ? 64 : 2 * *capacity;
        char **grown = realloc(texts->texts, more * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        texts->texts = grown;
        evaluate_marks *grown_marks = realloc(texts->marks, more * sizeof *grown_marks);
        if (grown_marks == NULL) return KVT_E_MEMORY;
        texts->marks = grown_marks;
        *capacity = more;
    }
    char *copy = strdup(text);
    if (copy == NULL) return KVT_E_MEMORY;
    if (marks.context == 0) evaluate_repair_text(copy);
    texts->marks[texts->count] = marks;
    texts->texts[texts->count++] = copy;
    return KVT_OK;
}

/* One [first, answer, end] that begins at or behind `from`. */
static bool evaluate_question_read(const json_t *value, size_t from, size_t bytes,
                                   evaluate_question *question)
{
    size_t at[3];
    if (json_array_size(value) != 3) return false;
    for (size_t i = 0; i < 3; i++) {
        const json_t *number = json_array_get(value, i);
        json_int_t offset = json_is_integer(number) ? json_integer_value(number) : -1;
        if (offset < 0 || (size_t)offset > bytes) return false;
        at[i] = (size_t)offset;
    }
    *question = (evaluate_question){at[0], at[1], at[2]};
    return from <= at[0] && at[0] < at[1] && at[1] < at[2];
}

static void evaluate_marks_free(evaluate_marks *marks)
{
    free(marks->questions);
    free(marks->tokens);
    *marks = (evaluate_marks){.context = 0};
}

/* The context's bytes (or tokens) and the questions of one line. KVT_E_PARSE when they are not
 * within the text. */
static kvt_status evaluate_marks_read(const json_t *root, size_t bytes, evaluate_marks *marks)
{
    const json_t *context = json_object_get(root, "context");
    const json_t *questions = json_object_get(root, "questions");
    if (!json_is_integer(context)) return KVT_OK;
    json_int_t offset = json_integer_value(context);
    if (offset < 1 || (size_t)offset >= bytes) return KVT_E_PARSE;
    marks->context = (size_t)offset;
    size_t count = json_array_size(questions), from = marks->context;
    if (count == 0) return KVT_OK;
    marks->questions = calloc(count, sizeof *marks->questions);
    if (marks->questions == NULL) return KVT_E_MEMORY;
    for (; marks->count < count; marks->count++) {
        evaluate_question *question = &marks->questions[marks->count];
        if (!evaluate_question_read(json_array_get(questions, marks->count), from, bytes,
                                    question)) {
            return KVT_E_PARSE;
        }
        from = question->end;
    }
    return KVT_OK;
}

/* The text of a line; of one with token ids none, and its ids in the marks. *fault says what is
 * wrong. */
static kvt_status evaluate_text_find(const json_t *root, const char **text, evaluate_marks *marks,
                                     const char **fault)
{
    static const char *const members[] = {"text", "context", "input"};
    *fault = "no string \"text\", \"context\" or \"input\"";
    *text = NULL;
    if (json_object_get(root, "tokens") != NULL) {
        kvt_status status = evaluate_tokens_read(root, &marks->tokens, fault);
        if (status == KVT_OK) *text = "";
        return status;
    }
    for (size_t i = 0; i < 3 && (*text == NULL || *text[0] == '\0'); i++)
        *text = json_string_value(json_object_get(root, members[i]));
    return *text != NULL ? KVT_OK : KVT_E_PARSE;
}

static kvt_status evaluate_line_read(const json_t *root, evaluate_texts *texts, size_t *capacity,
                                     const char **fault)
{
    const char *text;
    evaluate_marks marks = {.context = 0};
    kvt_status status = evaluate_text_find(root, &text, &marks, fault);
    if (status != KVT_OK) return status;
    const bool ids = marks.tokens != NULL;
    const size_t size = ids ? marks.tokens->count : strlen(text);
    *fault = "\"context\" or \"questions\" do not fit the text";
    status = evaluate_marks_read(root, size, &marks);
    /* Ids say what is their context, and two tokens follow it at least. */
    if (status == KVT_OK && ids && (marks.context == 0 || marks.context + 2 > size))
        status = KVT_E_PARSE;
    if (status == KVT_OK) status = evaluate_texts_add(texts, capacity, text, marks);
    if (status != KVT_OK) evaluate_marks_free(&marks);
    return status;
}

static kvt_status evaluate_texts_parse(const text_file *file, evaluate_texts *texts, char *message,
                                       size_t message_size)
{
    const char *end = file->bytes + file->size, *line = file->bytes, *next;
    size_t capacity = 0;
    kvt_status status = KVT_OK;
    for (unsigned number = 1; status == KVT_OK && line < end; number++, line = next) {
        const char *newline = memchr(line, '\n', (size_t)(end - line)), *fault;
        json_error_t error;
        next = newline != NULL ? newline + 1 : end;
        json_t *root = json_loadb(line, (size_t)((newline != NULL ? newline : end) - line),
                                  JSON_REJECT_DUPLICATES, &error);
        fault = error.text;
        status = root != NULL ? evaluate_line_read(root, texts, &capacity, &fault) : KVT_E_PARSE;
        json_decref(root);
        if (status == KVT_E_PARSE && message != NULL)
            (void)snprintf(message, message_size, "%s:%u: %s", file->path, number, fault);
    }
    return status;
}

kvt_status evaluate_texts_read(const char *path, evaluate_texts *texts_out, char *message,
                               size_t message_size)
{
    text_file file;
    *texts_out = (evaluate_texts){NULL, NULL, 0};
    kvt_status status = text_file_read(&file, path, message, message_size);
    if (status != KVT_OK) return status;
    status = evaluate_texts_parse(&file, texts_out, message, message_size);
    text_file_free(&file);
    if (status != KVT_OK) evaluate_texts_free(texts_out);
    return status;
}

void evaluate_texts_free(evaluate_texts *texts)
{
    for (size_t i = 0; i < texts->count; i++) {
        free(texts->texts[i]);
        evaluate_marks_free(&texts->marks[i]);
    }
    free(texts->texts);
    free(texts->marks);
    *texts = (evaluate_texts){NULL, NULL, 0};
}
