/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_settings.c - what settings fill of the options of other hosts' tier, and which options no
 * open takes. Thread rule: one thread at a time per object.
 */
#include "base/secret.h"
#include "base/settings_fields.h"
#include "remote/resolve.h"
#include "store/hosts/remote_tier.h"

#include <stdio.h>
#include <string.h>

#define REMOTE_FIELD(name, member) SETTINGS_FIELD(kvt_remote_options, name, member, .modes = 0)

static const settings_field remote_fields[] = {
    REMOTE_FIELD("tier.remote.publish", publish),
    REMOTE_FIELD("tier.remote.write_rate", write_bytes_per_s),
    REMOTE_FIELD("tier.remote.ttl", ttl_seconds),
    REMOTE_FIELD("tier.remote.hint_ttl", hint_ttl_seconds),
    REMOTE_FIELD("tier.remote.feed", feed),
    REMOTE_FIELD("tier.remote.deadline", deadline_seconds),
    REMOTE_FIELD("tier.remote.chunk", chunk_bytes),
    REMOTE_FIELD("tier.remote.queue", queue),
    REMOTE_FIELD("remote.*.cluster", cluster),
    REMOTE_FIELD("remote.*.tls", tls),
};

#define REMOTE_FIELDS (sizeof remote_fields / sizeof remote_fields[0])

void remote_settings_read(kvt_config *config, const char *name, kvt_remote_options *options)
{
    settings_read(config, name, remote_fields, REMOTE_FIELDS, 0, options);
}

bool remote_settings_hold(const kvt_remote_options *options, char *message, size_t message_size)
{
    return settings_hold(remote_fields, REMOTE_FIELDS, options, message, message_size);
}

const char *remote_options_fault(const kvt_remote_options *options)
{
    const char *text = options->namespace_text;
    if (text == NULL || text[0] == '\0' || strlen(text) > 255)
        return "namespace has 1 to 255 bytes, and is required";
    if (options->backend == NULL) return "backend is not set";
    if (options->publish > KVT_PUBLISH_SECOND_USE && options->publish != KVT_PUBLISH_NONE)
        return "publish is none of the three";
    if (!options->tls && (options->ca != NULL || options->cert != NULL))
        return "ca and cert need tls = yes";
    if ((options->cert == NULL) != (options->cert_key == NULL))
        return "cert and cert_key come together";
    if (options->user != NULL && strlen(options->user) > BASE_PASSWORD_MAX)
        return "user has at most 256 bytes";
    if (strcmp(options->backend, "valkey") == 0)
        return remote_addresses_fault(options->address, options->cluster);
    return NULL;
}
