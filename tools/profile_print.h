/*
 * profile_print.h - what a profile holds, as a table or as one JSON document on stdout. One thread.
 */
#ifndef TOOLS_PROFILE_PRINT_H
#define TOOLS_PROFILE_PRINT_H

#include <kvterrace/profile.h>

/* JSON: schema "kvterrace-profile-1". KVT_OK; KVT_E_DATABASE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status profile_print(kvt_profile *profile, const char *path, bool as_json);

#endif
