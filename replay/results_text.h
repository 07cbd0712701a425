/*
 * results_text.h - numbers as people read them; private to the room. Any thread.
 */
#ifndef REPLAY_RESULTS_TEXT_H
#define REPLAY_RESULTS_TEXT_H

#include <kvterrace/config.h>

#define RESULTS_TEXT_BYTES 24u

/* "1.23 s", "45.6 ms", "789 us"; "-" when not finite. text holds RESULTS_TEXT_BYTES. */
const char *results_format_seconds(double seconds, char *text);

/* "12.3 GB", decimal prefixes; "0" for none. */
const char *results_format_bytes(double bytes, char *text);

#endif
