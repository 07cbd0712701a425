/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_parse.c - sizes, rates, times, numbers and switches from text.
 *
 * Numbers are read the same way under every locale, sizes in integer arithmetic, so that 0.1TiB is
 * the same count everywhere. Pure; any thread.
 */
#include "config_parse.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PARSE_SECONDS_MAX 1e9 /* nanoseconds of it still fit into 63 bits */

/* A unit's name as a user writes it, and its factor in the smallest unit. */
typedef struct parse_unit {
    const char *name;
    uint64_t factor;
} parse_unit;

/* A letter alone is a power of 1024, as in fio, dd and llama.cpp. */
static const parse_unit parse_byte_units[] = {
    {"", 1},
    {"B", 1},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
    {"kib", UINT64_C(1) << 10},
    {"mib", UINT64_C(1) << 20},
    {"gib", UINT64_C(1) << 30},
    {"tib", UINT64_C(1) << 40},
    {"k", UINT64_C(1) << 10},
    {"m", UINT64_C(1) << 20},
    {"g", UINT64_C(1) << 30},
    {"t", UINT64_C(1) << 40},
    {"K", UINT64_C(1) << 10},
    {"M", UINT64_C(1) << 20},
    {"G", UINT64_C(1) << 30},
    {"T", UINT64_C(1) << 40},
    {"kB", UINT64_C(1000)},
    {"KB", UINT64_C(1000)},
    {"MB", UINT64_C(1000000)},
    {"GB", UINT64_C(1000000000)},
    {"TB", UINT64_C(1000000000000)},
    {"kb", UINT64_C(1000)},
    {"mb", UINT64_C(1000000)},
    {"gb", UINT64_C(1000000000)},
    {"tb", UINT64_C(1000000000000)},
};

/* Of things that are counted a thousand is a thousand. */
static const parse_unit parse_count_units[] = {
    {"", 1},
    {"k", UINT64_C(1000)},
    {"m", UINT64_C(1000000)},
    {"g", UINT64_C(1000000000)},
    {"K", UINT64_C(1000)},
    {"M", UINT64_C(1000000)},
    {"G", UINT64_C(1000000000)},
};

/* In nanoseconds. */
static const parse_unit parse_time_units[] = {
    {"", UINT64_C(1000000000)},
    {"ns", 1},
    {"us", 1000},
    {"ms", 1000000},
    {"s", UINT64_C(1000000000)},
    {"min", UINT64_C(60000000000)},
    {"h", UINT64_C(3600000000000)},
    {"d", UINT64_C(86400000000000)},
};

/* A decimal split into its digits: whole + fraction / divisor, and the unit's text behind it. */
typedef struct parse_decimal {
    uint64_t whole;
    uint64_t fraction;
    uint64_t divisor;
    const char *rest;
} parse_decimal;

/* As isdigit, without a locale. */
static bool parse_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads digits[.digits] and the blanks behind. More than 18 digits behind the point are refused. A
 * sign, an exponent and a second point are no part of it. False also when the whole part passes 64
 * bits. */
static bool parse_read_decimal(const char *text, parse_decimal *out)
{
    const char *at = text;
    *out = (parse_decimal){.divisor = 1};
    if (!parse_is_digit(*at)) return false;
    for (; parse_is_digit(*at); at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (out->whole > (UINT64_MAX - digit) / 10) return false;
        out->whole = out->whole * 10 + digit;
    }
    if (*at == '.') {
        at++;
        if (!parse_is_digit(*at)) return false;
        for (; parse_is_digit(*at); at++) {
            if (out->divisor > UINT64_C(100000000000000000)) return false;
            out->fraction = out->fraction * 10 + (uint64_t)(*at - '0');
            out->divisor *= 10;
        }
    }
    while (*at == ' ')
        at++;
    out->rest = at;
    return true;
}

/* The unit of a name, which is not terminated, or NULL. Upper and lower case are told apart: kB and
 * KiB differ, and so would mb and Mb. */
static const parse_unit *parse_find_unit(const parse_unit *units, size_t count, const char *name,
                                         size_t length)
{
    for (size_t i = 0; i < count; i++) {
        if (strlen(units[i].name) == length && memcmp(units[i].name, name, length) == 0) {
            return &units[i];
        }
    }
    return NULL;
}

/* The text up to end, times its unit, rounded down. The product has 128 bits, so it cannot overflow
 * before it is checked. */
static kvt_status parse_scaled(const char *text, const char *end, const parse_unit *units,
                               size_t unit_count, uint64_t *sum_out)
{
    parse_decimal decimal;
    if (!parse_read_decimal(text, &decimal) || decimal.rest > end) return KVT_E_CONFIG;
    const parse_unit *unit =
        parse_find_unit(units, unit_count, decimal.rest, (size_t)(end - decimal.rest));
    if (!unit) return KVT_E_CONFIG;
    if (unit->factor == 1 && decimal.fraction != 0) return KVT_E_CONFIG;
    unsigned __int128 sum = (unsigned __int128)decimal.whole * unit->factor +
                            (unsigned __int128)decimal.fraction * unit->factor / decimal.divisor;
    if (sum > UINT64_MAX) return KVT_E_CONFIG;
    *sum_out = (uint64_t)sum;
    return KVT_OK;
}

/* A number of bytes with its unit, up to `end`. */
static kvt_status parse_bytes_until(const char *text, const char *end, uint64_t *bytes_out)
{
    return parse_scaled(text, end, parse_byte_units,
                        sizeof parse_byte_units / sizeof parse_byte_units[0], bytes_out);
}

kvt_status kvt_parse_bytes(const char *text, uint64_t *bytes_out)
{
    return parse_bytes_until(text, text + strlen(text), bytes_out);
}

/* "/s" may be left out, since nothing else could be meant. */
kvt_status store_parse_rate(const char *text, uint64_t *bytes_out)
{
    size_t length = strlen(text);
    if (length >= 2 && strcmp(text + length - 2, "/s") == 0) length -= 2;
    return parse_bytes_until(text, text + length, bytes_out);
}

/* A number without a unit is in seconds. */
kvt_status kvt_parse_seconds(const char *text, double *seconds_out)
{
    parse_decimal decimal;
    if (!parse_read_decimal(text, &decimal)) return KVT_E_CONFIG;
    const parse_unit *unit =
        parse_find_unit(parse_time_units, sizeof parse_time_units / sizeof parse_time_units[0],
                        decimal.rest, strlen(decimal.rest));
    if (!unit) return KVT_E_CONFIG;
    /* One division at the end keeps values such as 0.05 the nearest double. */
    double scaled = ((double)decimal.whole * (double)decimal.divisor + (double)decimal.fraction) *
                    (double)unit->factor;
    double seconds = scaled / ((double)decimal.divisor * 1e9);
    if (seconds > PARSE_SECONDS_MAX) return KVT_E_CONFIG;
    *seconds_out = seconds;
    return KVT_OK;
}

/* Letters are refused before strtod sees them, because it would read "inf", "nan" and hexadecimal
 * numbers. A '%' behind it divides by 100. */
kvt_status store_parse_number(const char *text, double *number_out)
{
    const size_t digits = strspn(text, "0123456789+-.eE");
    const bool percent = text[digits] == '%';
    if (digits == 0 || text[digits + percent] != '\0') return KVT_E_CONFIG;
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) return KVT_E_CONFIG;
    char *end = NULL;
    double number = strtod_l(text, &end, plain);
    freelocale(plain);
    if (end != text + digits || !isfinite(number)) return KVT_E_CONFIG;
    *number_out = percent ? number / 100 : number;
    return KVT_OK;
}

/* Blanks are refused: "1 0" is no number. */
kvt_status store_parse_count(const char *text, uint64_t *count_out)
{
    const char *end = text + strlen(text);
    if (memchr(text, ' ', (size_t)(end - text)) != NULL) return KVT_E_CONFIG;
    return parse_scaled(text, end, parse_count_units,
                        sizeof parse_count_units / sizeof parse_count_units[0], count_out);
}

/* A switch in any case: Python has True, YAML has Yes. */
kvt_status store_parse_switch(const char *text, bool *on_out)
{
    char lower[8] = "";
    for (size_t i = 0; text[i] != '\0' && i < sizeof lower - 1; i++)
        lower[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i]);
    if (strlen(text) == strlen(lower)) text = lower;
    *on_out = store_parse_choice(text, "yes|true|on|1");
    return *on_out || store_parse_choice(text, "no|false|off|0") ? KVT_OK : KVT_E_CONFIG;
}

/* Choices are compared whole and with their case. */
bool store_parse_choice(const char *text, const char *choices)
{
    size_t length = strlen(text);
    for (const char *at = choices;;) {
        size_t span = strcspn(at, "|");
        if (span == length && memcmp(at, text, length) == 0) return true;
        if (at[span] == '\0') return false;
        at += span + 1;
    }
}

/* *reason_out completes "is not ...", in words for the user. */
kvt_status store_check_value(const kvt_setting *setting, const char *text, const char **reason_out)
{
    uint64_t integer;
    double number;
    bool on;
    switch (setting->kind) {
    case KVT_SETTING_TEXT:
        *reason_out = setting->choices ? setting->choices : "a text that is not empty";
        if (setting->choices && !store_parse_choice(text, setting->choices)) return KVT_E_CONFIG;
        return text[0] != '\0' ? KVT_OK : KVT_E_CONFIG;
    case KVT_SETTING_BYTES:
        *reason_out = "a size such as 4096, 64KiB, 64k or 1.5GB, below 16EiB";
        return kvt_parse_bytes(text, &integer);
    case KVT_SETTING_RATE:
        *reason_out = "bytes per second such as 150MB/s";
        return store_parse_rate(text, &integer);
    case KVT_SETTING_SECONDS:
        *reason_out = "a time such as 0.5, 500ms, 80us or 2h";
        return kvt_parse_seconds(text, &number);
    case KVT_SETTING_NUMBER:
        *reason_out = "a finite number";
        /* Half a request a second is no share of anything. */
        if (strchr(text, '%') != NULL && !(setting->most > 0 && setting->most <= 1))
            return KVT_E_CONFIG;
        return store_parse_number(text, &number);
    case KVT_SETTING_COUNT:
        *reason_out = "a whole number from 0, such as 500 or 10k";
        return store_parse_count(text, &integer);
    case KVT_SETTING_SWITCH: *reason_out = "yes or no"; return store_parse_switch(text, &on);
    }
    *reason_out = "a known kind";
    return KVT_E_CONFIG;
}
