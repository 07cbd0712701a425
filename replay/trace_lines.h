/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_lines.h - the lines of a text file, plain or packed with zstd or gzip, with bounds.
 *
 * The packing is told by the file's first bytes, and a byte order mark of UTF-8 is left out. The
 * file is streamed: memory stays at one line and the decoder's window (at most 128 MiB). One thread
 * per reader.
 */
#ifndef REPLAY_TRACE_LINES_H
#define REPLAY_TRACE_LINES_H

#include <kvterrace/config.h>

#define REPLAY_LINE_BYTES_MAX (4u << 20)

typedef struct replay_line_reader replay_line_reader;

/* KVT_OK; KVT_E_GONE (no such file); KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status replay_lines_open(const char *path, replay_line_reader **reader_out,
                                           char *message, size_t message_size);

/*
 * The next line without its end ("\n" or "\r\n"), terminated, valid until the next call.
 * KVT_OK; KVT_END; KVT_E_PARSE (a NUL byte, a line longer than REPLAY_LINE_BYTES_MAX, damaged or
 * cut zstd or gzip data, or bytes of another kind of file; message: file, line, reason); KVT_E_IO;
 * KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status replay_lines_next(replay_line_reader *reader, char **line_out,
                                           size_t *bytes_out, char *message, size_t message_size);

/* Number of the line that was returned last, from 1. */
uint64_t replay_lines_number(const replay_line_reader *reader);

/* NULL is allowed. */
void replay_lines_close(replay_line_reader *reader);

#endif
