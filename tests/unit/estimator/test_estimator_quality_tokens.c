/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts as token ids: entries are cut as the lines say, what does not fit is refused with its line,
 * and tokenizer.json decodes the answers of models whose texts come this way.
 */
#include "quality_scratch.h"

#include "estimator/quality/quality.h"

static char path[128], message[256];

static void write_file(const char *name, const char *text)
{
    snprintf(path, sizeof path, "%s/%s", files.folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    naive_put(file, text, strlen(text));
    assert_int_equal(fclose(file), 0);
}

static kvt_status read_entries(const tokenizer *tokens, quality_entries *entries)
{
    const char *const paths[] = {path};
    return quality_entries_read(paths, 1, tokens, 5, 3, 100, entries, message, sizeof message);
}

static const char three_lines[] =
    "{\"tokens\": [5, 6, 7, 8, 9, 10, 11], \"context\": 3, \"questions\": [[3, 5, 6], [6, 7, 7]],"
    " \"recall\": {\"tokens\": [20, 21, 22], \"scored\": 2}, \"document\": \"a\"}\n"
    "{\"tokens\": [1, 2, 3, 4], \"context\": 2, \"document\": \"a\", \"class\": \"qa\", \"x\": 1}\n"
    "{\"tokens\": [40, 2, 3], \"context\": 1, \"questions\": []}\n";

TEST(entries_are_cut_as_their_lines_say)
{
    quality_entries entries;
    char good[512];
    snprintf(good, sizeof good, "%s", three_lines);
    memcpy(strstr(good, "[6, 7, 7]"), "[6,  6,7]", 9); /* an empty question */
    write_file("ids.jsonl", good);
    assert_int_equal(read_entries(NULL, &entries), KVT_E_PARSE);
    assert_non_null(strstr(message, "ids.jsonl:1: "));
    memcpy(strstr(good, ", [6,  6,7]"), "           ", 11);
    write_file("ids.jsonl", good);
    assert_ok(read_entries(NULL, &entries));
    assert_int_equal(entries.count, 3);
    const quality_entry *e = entries.entries;
    assert_int_equal(e[0].context_tokens, 3);
    assert_int_equal(e[0].continuation_tokens, 4);
    assert_int_equal(e[0].tokens[6], 11);
    assert_int_equal(e[0].question_count, 1);
    assert_int_equal(e[0].questions[0].first, 3);
    assert_int_equal(e[0].questions[0].answer, 5);
    assert_int_equal(e[0].questions[0].end, 6);
    assert_int_equal(e[0].recall_tokens, 3);
    assert_int_equal(e[0].recall_scored, 2);
    assert_int_equal(e[0].recall[0], 20);
    assert_int_equal(e[0].recall[2], 22);
    assert_int_equal(e[1].tokens[0], 1);
    assert_null(e[1].recall);
    assert_int_equal(e[1].question_count, 0);
    assert_int_equal(e[2].tokens[0], 40);
    assert_int_equal(e[2].context_tokens, 1);
    assert_true(e[0].document == e[1].document);
    assert_true(e[0].document != 0);
    assert_int_equal(e[2].document, 0);
    uint64_t digest = entries.digest;
    quality_entries_free(&entries);
    *strstr(good, "scored\": 2") = 's';
    strstr(good, "scored\": 2")[9] = '1';
    write_file("ids.jsonl", good);
    assert_ok(read_entries(NULL, &entries));
    assert_true(entries.digest != digest);
    quality_entries_free(&entries);
}

TEST(what_does_not_fit_is_refused_with_its_line)
{
    static const char *const lines[] = {
        "{\"tokens\": 3, \"context\": 1}",
        "{\"tokens\": [1, 2, -3], \"context\": 1}",
        "{\"tokens\": [1, 2, 3.5], \"context\": 1}",
        "{\"tokens\": [1, 2, 4294967296], \"context\": 1}",
        "{\"tokens\": [1, 2, \"3\"], \"context\": 1}",
        "{\"tokens\": [1, 2, 3]}",
        "{\"tokens\": [1, 2, 3], \"context\": 0}",
        "{\"tokens\": [1, 2, 3], \"context\": 2}",
        "{\"tokens\": [1, 2, 3], \"context\": 3}",
        "{\"tokens\": [1, 2, 3], \"context\": \"1\"}",
        "{\"tokens\": [], \"context\": 1}",
        "{\"tokens\": [1, 2, 3], \"context\": 1, \"questions\": [[0, 1, 2]]}",
        "{\"tokens\": [1, 2, 3], \"context\": 1, \"questions\": [[1, 2, 4]]}",
        "{\"tokens\": [1, 2, 3], \"context\": 1, \"recall\": 5}",
        "{\"tokens\": [1, 2, 3], \"context\": 1, \"recall\": {\"tokens\": [1, 2]}}",
        "{\"tokens\": [1, 2, 3], \"context\": 1, \"recall\": {\"tokens\": [1, 2], \"scored\": 2}}",
        "{\"tokens\": [1, 2, 3], \"context\": 1, \"recall\": {\"tokens\": [1, 2], \"scored\": 0}}",
        "{\"tokens\": [1, 2, 3], \"context\": 1, \"recall\": {\"tokens\": [1, -2], \"scored\": 1}}",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char two[512];
        quality_entries entries;
        snprintf(two, sizeof two, "{\"tokens\": [1, 2, 3], \"context\": 1}\n%s\n", lines[i]);
        write_file("ids.jsonl", two);
        message[0] = '\0';
        if (read_entries(NULL, &entries) != KVT_E_PARSE) fail_msg("taken: %s", lines[i]);
        assert_non_null(strstr(message, "ids.jsonl:2: "));
        assert_int_equal(entries.count, 0);
        assert_null(entries.entries);
    }
}

/* ---- tokenizer.json ---- */

/* 0 special, then "a", " b", a newline and a byte above ASCII. */
static const char small_json[] =
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<|x|>\", \"special\": true}],"
    " \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\":"
    " {\"<|x|>\": 0, \"a\": 1, \"\\u0120b\": 2, \"\\u010a\": 3, \"\\u00e9\": 4}, \"merges\": []}}";

TEST(a_byte_level_vocabulary_decodes)
{
    tokenizer *tokens;
    quality_entries entries;
    char text[32];
    size_t bytes;
    write_file("tokenizer.json", small_json);
    assert_ok(tokenizer_open(path, 5, &tokens, message, sizeof message));
    assert_int_equal(tokenizer_vocab(tokens), 5);
    assert_false(tokenizer_encodes(tokens));
    const uint32_t ids[] = {2, 0, 1, 2, 3, 4};
    assert_ok(tokenizer_decode(tokens, ids, 6, text, sizeof text, &bytes));
    assert_int_equal(bytes, 7);
    assert_memory_equal(text, " ba b\n\xe9", 7);
    assert_int_equal(tokenizer_decode(tokens, ids, 6, text, 6, &bytes), KVT_E_SPACE);
    assert_int_equal(bytes, 7);
    assert_int_equal(tokenizer_decode(tokens, &(uint32_t){5}, 1, text, 6, &bytes), KVT_E_ARGUMENT);
    uint32_t out[8];
    assert_int_equal(tokenizer_encode(tokens, "ab", 2, out, &bytes), KVT_E_UNSUPPORTED);
    /* Ids are taken with such a vocabulary; a text that would have to be encoded is refused. */
    write_file("ids.jsonl", "{\"tokens\": [1, 2, 3], \"context\": 1}\n");
    assert_ok(read_entries(tokens, &entries));
    quality_entries_free(&entries);
    write_file("ids.jsonl", "{\"tokens\": [1, 2, 3], \"context\": 1}\n{\"text\": \"a b\"}\n");
    assert_int_equal(read_entries(tokens, &entries), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "text 2 "));
    tokenizer_close(tokens);
}

TEST(other_tokenizers_are_refused)
{
    static const struct {
        const char *what, *instead;
        kvt_status status;
    } changes[] = {
        {"\"ByteLevel\"", "\"Metaspace\"", KVT_E_UNSUPPORTED},
        {"\"vocab\"", "\"pieces\"", KVT_E_UNSUPPORTED},
        {"\\u0120b", "\\u20acb", KVT_E_UNSUPPORTED}, /* no character of the table */
        {"\\u0120b", "\\u0150b", KVT_E_UNSUPPORTED},
        {": 4}", ": 6}", KVT_E_CORRUPT},  /* another number */
        {": 3,", ": -3,", KVT_E_CORRUPT}, /* no id */
        {": 3,", ": 2,", KVT_E_CORRUPT},  /* a piece is missing */
        {": 4}", ": 4", KVT_E_PARSE},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char text[512];
        tokenizer *tokens;
        const char *at = strstr(small_json, changes[i].what);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - small_json), small_json,
                 changes[i].instead, at + strlen(changes[i].what));
        write_file("tokenizer.json", text);
        message[0] = '\0';
        kvt_status status = tokenizer_open(path, 5, &tokens, message, sizeof message);
        if (status != changes[i].status) fail_msg("%zu: %s", i, kvt_status_name(status));
        assert_non_null(strstr(message, "tokenizer.json: "));
        assert_null(tokens);
    }
}

static int remove_files(void **state)
{
    snprintf(path, sizeof path, "%s/ids.jsonl", files.folder);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", files.folder);
    (void)unlink(path);
    return scratch_remove_files(state);
}

TEST_ALL(scratch_make_files, remove_files);
