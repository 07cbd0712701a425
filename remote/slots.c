/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.c - which node a key lies on: the hash slots of a cluster, their map, and the errors that
 * say that the map is old.
 *
 * Thread rule: the client's thread.
 */
#include "remote/valkey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CRC16 of XMODEM, as the specification of the cluster names it, half a byte at a time. */
static uint16_t slots_crc(const char *bytes, size_t count)
{
    static const uint16_t table[16] = {0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5,
                                       0x60c6, 0x70e7, 0x8108, 0x9129, 0xa14a, 0xb16b,
                                       0xc18c, 0xd1ad, 0xe1ce, 0xf1ef};
    uint32_t crc = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t byte = (uint8_t)bytes[i];
        crc = (crc << 4 ^ table[(crc >> 12 ^ byte >> 4) & 15]) & 0xffff;
        crc = (crc << 4 ^ table[(crc >> 12 ^ byte) & 15]) & 0xffff;
    }
    return (uint16_t)crc;
}

uint32_t valkey_key_slot(const char *key, size_t bytes)
{
    const char *open = memchr(key, '{', bytes);
    if (open != NULL) {
        const size_t rest = bytes - (size_t)(open + 1 - key);
        const char *end = memchr(open + 1, '}', rest);
        if (end != NULL && end > open + 1) {
            key = open + 1;
            bytes = (size_t)(end - key);
        }
    }
    return slots_crc(key, bytes) % VALKEY_HASH_SLOTS;
}

/* A range of the map is whole: its slots are the node's. */
static void slots_assign(valkey_client *client, const valkey_node *node, int64_t port_number)
{
    const valkey_map_reading *reading = &node->reading;
    const int64_t from = reading->numbers[0], to = reading->numbers[1];
    char port[8];
    if (reading->number_count < 2 || from < 0 || from > to || to >= VALKEY_HASH_SLOTS) return;
    if (port_number < 1 || port_number > 65535) return;
    snprintf(port, sizeof port, "%u", (unsigned)port_number);
    const uint32_t owner =
        valkey_find_node(client, reading->host[0] != '\0' ? reading->host : node->host, port);
    if (owner == UINT32_MAX) return;
    for (int64_t slot = from; slot <= to; slot++)
        atomic_store_explicit(&client->map[slot], (unsigned char)owner, memory_order_relaxed);
}

void valkey_map_token(valkey_client *client, valkey_node *node, const resp_token *token)
{
    valkey_map_reading *reading = &node->reading;
    if (token->depth == 1) *reading = (valkey_map_reading){.number_count = 0};
    if (token->depth == 2 && token->type == ':' && reading->number_count < 2)
        reading->numbers[reading->number_count++] = token->number;
    if (token->depth == 2 && token->type == '*') {
        reading->node_count++; /* the first one is the master */
        reading->field_count = 0;
    }
    if (token->depth != 3 || reading->node_count != 1) return;
    if (++reading->field_count == 1) {
        reading->host[0] = '\0'; /* without one the host is the one that was asked */
        const bool fits = token->text != NULL && token->text_bytes < sizeof reading->host;
        if (fits && memchr(token->text, '\0', token->text_bytes) == NULL && token->text[0] != '?')
            snprintf(reading->host, sizeof reading->host, "%.*s", (int)token->text_bytes,
                     token->text);
    } else if (reading->field_count == 2 && token->type == ':') {
        slots_assign(client, node, token->number);
    }
}

bool valkey_redirect(valkey_client *client, valkey_node *node, remote_request *request,
                     const char *text, size_t bytes)
{
    const bool asking = bytes > 4 && memcmp(text, "ASK ", 4) == 0;
    const bool moved = bytes > 6 && memcmp(text, "MOVED ", 6) == 0;
    char line[160], host[NI_MAXHOST], port[8];
    if ((!asking && !moved) || bytes >= sizeof line) return false;
    snprintf(line, sizeof line, "%.*s", (int)bytes, text);
    char *end = NULL;
    const unsigned long slot = strtoul(line + (asking ? 4 : 6), &end, 10);
    if (end == NULL || *end != ' ' || slot >= VALKEY_HASH_SLOTS) return false;
    const char *address = end + 1;
    if (address[0] == ':') { /* the same host */
        snprintf(host, sizeof host, "%s", node->host);
        snprintf(port, sizeof port, "%.7s", address + 1);
    } else if (!remote_split(address, strlen(address), host, port)) {
        return false;
    }
    if (request->redirected || !client->config.cluster) return false;
    const uint32_t target = valkey_find_node(client, host, port);
    if (target == UINT32_MAX) return false;
    request->redirected = true;
    client->stats.redirections++;
    if (moved) {
        atomic_store_explicit(&client->map[slot], (unsigned char)target, memory_order_relaxed);
        client->map_wanted = true;
    }
    valkey_route(client, request, target, asking);
    return true;
}
