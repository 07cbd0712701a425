/*
 * judge_text.c - texts from JSONL, and evaluation entries cut from them. Thread rule: see judge.h.
 */
#include "estimator/csv_input.h"
#include "estimator/judge.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UTF-8 of the cp1252 reading of a UTF-8 mark: E2 80 became a-circumflex, euro sign; the third byte
 * one more character, or nothing where cp1252 has none (9D, the closing quote). Longest first. */
static const struct {
    const char *broken, *ascii;
} judge_marks[] = {
    {"\xc3\xa2\xe2\x82\xac\xe2\x84\xa2", "'"},
    {"\xc3\xa2\xe2\x82\xac\xe2\x80\x9c", "-"},
    {"\xc3\xa2\xe2\x82\xac\xe2\x80\x9d", "-"},
    {"\xc3\xa2\xe2\x82\xac\xc5\x93", "\""},
    {"\xc3\xa2\xe2\x82\xac\xcb\x9c", "'"},
    {"\xc3\xa2\xe2\x82\xac\xc2\xa6", "..."},
    {"\xc3\xa2\xe2\x82\xac", "\""},
};

void judge_repair_text(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0';) {
        size_t mark = 0, marks = sizeof judge_marks / sizeof judge_marks[0];
        while (mark < marks &&
               strncmp(from, judge_marks[mark].broken, strlen(judge_marks[mark].broken)) != 0) {
            mark++;
        }
        if (mark == marks) {
            *to++ = *from++;
            continue;
        }
        size_t length = strlen(judge_marks[mark].ascii);
        memcpy(to, judge_marks[mark].ascii, length);
        to += length;
        from += strlen(judge_marks[mark].broken);
    }
    *to = '\0';
}

static kvt_status judge_texts_add(judge_texts *texts, size_t *capacity, const char *text)
{
    if (texts->count == *capacity) {
        size_t more = *capacity == 0 ? 64 : 2 * *capacity;
        char **grown = realloc(texts->texts, more * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        texts->texts = grown;
        *capacity = more;
    }
    char *copy = strdup(text);
    if (copy == NULL) return KVT_E_MEMORY;
    judge_repair_text(copy);
    texts->texts[texts->count++] = copy;
    return KVT_OK;
}

/* The reader of CSV files is used for its bytes alone: plain or compressed, of limited size. */
static kvt_status judge_texts_parse(csv_input *input, judge_texts *texts)
{
    size_t capacity = 0;
    while (input->position < input->byte_count) {
        const char *line = input->bytes + input->position;
        const char *newline = memchr(line, '\n', input->byte_count - input->position);
        size_t length =
            newline != NULL ? (size_t)(newline - line) : input->byte_count - input->position;
        json_error_t error;
        input->position += length + (newline != NULL);
        input->line++;
        json_t *root = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
        if (root == NULL) return csv_fail(input, error.text);
        const char *text = json_string_value(json_object_get(root, "text"));
        kvt_status status = text != NULL ? judge_texts_add(texts, &capacity, text)
                                         : csv_fail(input, "no string \"text\"");
        json_decref(root);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

kvt_status judge_texts_read(const char *path, judge_texts *texts_out, char *message,
                            size_t message_size)
{
    csv_input *input = malloc(sizeof *input);
    *texts_out = (judge_texts){NULL, 0};
    if (input == NULL) return KVT_E_MEMORY;
    kvt_status status = csv_open(input, path, message, message_size);
    if (status == KVT_OK) {
        status = judge_texts_parse(input, texts_out);
        csv_close(input);
    }
    free(input);
    if (status != KVT_OK) judge_texts_free(texts_out);
    return status;
}

void judge_texts_free(judge_texts *texts)
{
    for (size_t i = 0; i < texts->count; i++)
        free(texts->texts[i]);
    free(texts->texts);
    *texts = (judge_texts){NULL, 0};
}

/* Makes room for `more` further ids behind the `used` ones. */
static kvt_status judge_ids_grow(uint32_t **ids, size_t *capacity, size_t used, size_t more)
{
    if (more <= *capacity - used) return KVT_OK;
    size_t wanted = 2 * (used + more);
    uint32_t *grown = realloc(*ids, wanted * sizeof *grown);
    if (grown == NULL) return KVT_E_MEMORY;
    *ids = grown;
    *capacity = wanted;
    return KVT_OK;
}

kvt_status judge_set_make(const judge_texts *texts, const tokenizer *tokens,
                          uint32_t context_tokens, uint32_t continuation_tokens, uint32_t limit,
                          judge_set *set_out)
{
    size_t each = (size_t)context_tokens + continuation_tokens, used = 0, capacity = 0, count = 0;
    uint32_t *ids = NULL;
    kvt_status status = KVT_OK;
    *set_out = (judge_set){context_tokens, continuation_tokens, 0, NULL};
    /* Whole entries stand first in ids; the text that overfills one is cut off there. */
    for (size_t i = 0; i < texts->count && set_out->count < limit; i++) {
        size_t bytes = strlen(texts->texts[i]);
        status = judge_ids_grow(&ids, &capacity, used, tokenizer_bound(bytes));
        if (status == KVT_OK)
            status = tokenizer_encode(tokens, texts->texts[i], bytes, ids + used, &count);
        if (status != KVT_OK) break;
        used += count;
        if (used < (set_out->count + 1) * each) continue;
        set_out->count++;
        used = set_out->count * each;
    }
    set_out->tokens = ids;
    if (status != KVT_OK) judge_set_free(set_out);
    return status;
}

void judge_set_free(judge_set *set)
{
    free(set->tokens);
    *set = (judge_set){0, 0, 0, NULL};
}

const uint32_t *judge_set_entry(const judge_set *set, uint32_t index)
{
    return set->tokens + (size_t)index * (set->context_tokens + set->continuation_tokens);
}
