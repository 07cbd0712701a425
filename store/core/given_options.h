/* SPDX-License-Identifier: Apache-2.0 */
/*
 * given_options.h - a caller's options as structs of this library's size (types.h has the rule), so
 * that nothing behind kvt_store_open and kvt_store_recover meets another one. No range is checked
 * here.
 *
 * Thread rule: any thread.
 */
#ifndef STORE_GIVEN_OPTIONS_H
#define STORE_GIVEN_OPTIONS_H

#include <kvterrace/kvterrace.h>

typedef struct given_options {
    kvt_store_options
        options; /* its devices and workers are those below; strings are the caller's */
    kvt_codec_workers workers;
    kvt_device_config *devices; /* of all tiers, one tier after the other */
    char **texts;               /* copies of strings, of given_options_keep; or NULL */
    size_t text_count;
} given_options;

/*
 * Takes the caller's options in. KVT_OK; KVT_E_ARGUMENT (a struct_size; an array that is missing);
 * KVT_E_UNSUPPORTED (a tier that this version does not have, a member that it does not know);
 * KVT_E_MEMORY; message names the fault. Release it after KVT_OK.
 */
KVT_NODISCARD kvt_status given_options_take(const kvt_store_options *given, given_options *out,
                                            char *message, size_t message_size);
void given_options_release(given_options *taken);

/* Copies the strings, so that they last until the release. What `remote` and `pass_rows` lead to
 * stays the caller's. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status given_options_keep(given_options *taken);

/* Takes one device's configuration in. KVT_OK; KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status given_device_take(const kvt_device_config *given, kvt_device_config *out);

#endif
