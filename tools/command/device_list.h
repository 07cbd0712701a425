/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_list.h - the devices that a measurement is about: the configured ones, or a pair made for
 * the occasion. One thread.
 */
#ifndef TOOLS_DEVICE_LIST_H
#define TOOLS_DEVICE_LIST_H

#include <kvterrace/config.h>
#include <kvterrace/kvterrace.h>

#define DEVICE_LIST_MAX  64u
#define DEVICE_PATH_SIZE 4096u

typedef struct device_item {
    kvt_device_config config;
    kvt_tier tier;
    bool overwrite; /* its content may be overwritten: it has none, or store.format says so */
} device_item;

typedef struct device_list {
    device_item items[DEVICE_LIST_MAX];
    size_t count;
    void *owner;                   /* of the strings in configured items */
    char folder[DEVICE_PATH_SIZE]; /* made for the occasion and removed with it, or "" */
    char file[DEVICE_PATH_SIZE];
} device_list;

/*
 * Fills the list from the settings. Without any device or tier there, the list is a memory device
 * and a file of file_bytes in a new folder inside `directory`. Release with device_list_free in
 * every case. KVT_OK; KVT_E_CONFIG; KVT_E_IO (the folder); KVT_E_MEMORY; message says more.
 */
KVT_NODISCARD kvt_status device_list_make(kvt_config *config, const char *directory,
                                          uint64_t file_bytes, device_list *list, char *message,
                                          size_t message_size);

/* Removes what was made for the occasion. The devices are closed. */
void device_list_free(device_list *list);

#endif
