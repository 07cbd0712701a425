/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_parse.h - one value of a setting from its text, by kind; private to the configuration.
 *
 * kvt_parse_bytes and kvt_parse_seconds are in config_values.h. Pure; any thread.
 */
#ifndef STORE_CONFIG_PARSE_H
#define STORE_CONFIG_PARSE_H

#include "config_values.h"

/* As kvt_parse_bytes, with an optional "/s" at the end. */
kvt_status store_parse_rate(const char *text, uint64_t *bytes_out);

/* A finite decimal number; "inf", "nan" and hexadecimal forms are refused. */
kvt_status store_parse_number(const char *text, double *number_out);

/* Decimal digits only, below 2^64. */
kvt_status store_parse_count(const char *text, uint64_t *count_out);

/* yes/no, true/false, on/off, 1/0. */
kvt_status store_parse_switch(const char *text, bool *on_out);

/* Whether text is one of choices, "a|b|c". */
bool store_parse_choice(const char *text, const char *choices);

/* Checks text against a setting's kind and choices. When it does not fit, reason_out says what
 * would (static storage) and KVT_E_CONFIG is returned. */
kvt_status store_check_value(const kvt_setting *setting, const char *text, const char **reason_out);

/* The row of a key, which need not end with '\0', in the table of settings; NULL = there is none.
 */
const kvt_setting *base_setting_find(const char *key, size_t length);

#endif
