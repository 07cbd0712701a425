/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings_fields.h - which field of an options struct each setting fills.
 *
 * The table of settings (settings.c) says name, kind, default, range and text of every setting. A
 * room that reads settings has a table of its own beside its options struct: a row binds a setting
 * to the offset of a field and says in which modes it has an effect. So a default and a range
 * stand in one place, and a setting that a mode does not read is reported as
 * without effect. Text that must outlive the configuration is not bound; its reader copies it.
 *
 * Thread rule: one thread at a time per configuration and struct.
 */
#ifndef BASE_SETTINGS_FIELDS_H
#define BASE_SETTINGS_FIELDS_H

#include <kvterrace/config.h>

#include <stddef.h>

typedef enum settings_type {
    SETTINGS_BOOL,
    SETTINGS_U32, /* and enums; a larger value becomes UINT32_MAX */
    SETTINGS_U64,
    SETTINGS_DOUBLE
} settings_type;

/*
 * A setting's kind and its field's type decide what is stored: sizes, rates, counts and numbers as
 * they are; seconds in a double, or as nanoseconds in an integer; a choice as its place in the list
 * of choices; a switch as a bool, turned round where `negated`.
 */
typedef struct settings_field {
    const char *setting; /* its name in the table; "*" stands for the name that is given */
    size_t offset;
    settings_type type;
    bool negated;
    uint32_t modes; /* bits of which one must be asked for; 0 = it has an effect in all */
} settings_field;

#define SETTINGS_TYPE(options, member)                                                             \
    _Generic(((options *)0)->member, bool                                                          \
             : SETTINGS_BOOL, uint32_t                                                             \
             : SETTINGS_U32, uint64_t                                                              \
             : SETTINGS_U64, double                                                                \
             : SETTINGS_DOUBLE)

/* A row; options is the struct's type, and the rest are the row's other members. */
#define SETTINGS_FIELD(options, name, member, ...)                                                 \
    {                                                                                              \
        .setting = (name), .offset = offsetof(options, member),                                    \
        .type = SETTINGS_TYPE(options, member), __VA_ARGS__                                        \
    }

#define SETTINGS_ALL_MODES UINT32_MAX

/* Fills the fields that have an effect in one of the modes and marks their settings used. config:
 * NULL = the defaults alone. name: what "*" stands for, or NULL. A field whose setting has neither
 * a value nor a default stays as it is. */
void settings_read(kvt_config *config, const char *name, const settings_field *fields, size_t count,
                   uint32_t modes, void *options);

/* False when a field is out of its setting's range; message: the first one and its range. */
bool settings_hold(const settings_field *fields, size_t count, const void *options, char *message,
                   size_t message_size);

#endif
