/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_memory.c - a node's account of its memory: three lines of the reply to INFO memory, which is
 * a text of a server that nobody trusts.
 *
 * Thread rule: the client's thread.
 */
#include "remote/valkey.h"

#include <string.h>

/* A piece of a text. */
typedef struct memory_piece {
    const char *at;
    size_t bytes;
} memory_piece;

/* The value of "name:value", a line of the text; no bytes: there is no such line. */
static memory_piece memory_field(memory_piece text, const char *name)
{
    const size_t length = strlen(name);
    while (text.bytes > 0) {
        const char *end = memchr(text.at, '\n', text.bytes);
        const size_t line = end != NULL ? (size_t)(end - text.at) : text.bytes;
        if (line > length && memcmp(text.at, name, length) == 0 && text.at[length] == ':') {
            memory_piece value = {text.at + length + 1, line - length - 1};
            if (value.bytes > 0 && value.at[value.bytes - 1] == '\r') value.bytes--;
            return value;
        }
        const size_t step = line + (end != NULL);
        text = (memory_piece){text.at + step, text.bytes - step};
    }
    return (memory_piece){NULL, 0};
}

/* False: it is no number, or one that no machine has bytes for. */
static bool memory_number(memory_piece value, uint64_t *out)
{
    if (value.bytes == 0 || value.bytes > 18) return false;
    *out = 0;
    for (size_t i = 0; i < value.bytes; i++) {
        if (value.at[i] < '0' || value.at[i] > '9') return false;
        *out = *out * 10 + (uint64_t)(value.at[i] - '0');
    }
    return true;
}

/* False: it is no name of a policy, or a longer one than there are. */
static bool memory_name(memory_piece value, char out[24])
{
    if (value.bytes == 0 || value.bytes >= 24) return false;
    for (size_t i = 0; i < value.bytes; i++)
        if ((value.at[i] < 'a' || value.at[i] > 'z') && value.at[i] != '-') return false;
    memcpy(out, value.at, value.bytes);
    out[value.bytes] = '\0';
    return true;
}

void valkey_memory_token(valkey_node *node, const resp_token *token)
{
    remote_node_stats said = {.opened = 0};
    if (token->depth != 0) return;
    /* A node that may not be asked would write a line of its log for each question. */
    if (token->type == '-' || token->type == '!')
        node->memory_ns += (VALKEY_REFUSED - 1) * node->client->config.memory_ns;
    const bool whole = token->text != NULL && (token->type == '$' || token->type == '=');
    const memory_piece text = {token->text, whole ? token->text_bytes : 0};
    if (!memory_number(memory_field(text, "used_memory"), &said.memory_bytes) ||
        !memory_number(memory_field(text, "maxmemory"), &said.memory_bytes_max) ||
        !memory_name(memory_field(text, "maxmemory_policy"), said.eviction))
        said = (remote_node_stats){.opened = 0};
    node->stats.memory_bytes = said.memory_bytes;
    node->stats.memory_bytes_max = said.memory_bytes_max;
    memcpy(node->stats.eviction, said.eviction, sizeof said.eviction);
}
