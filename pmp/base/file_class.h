// SPDX-License-Identifier: Apache-2.0
// What a database server keeps in a file, by the file's name.
#ifndef STALL_FILE_CLASS_H
#define STALL_FILE_CLASS_H

#include <stdbool.h>

enum stall_file_class {
	STALL_FILE_REDO,
	STALL_FILE_DOUBLEWRITE,
	STALL_FILE_DATA,
	STALL_FILE_BINLOG,
	STALL_FILE_UNDO,
	STALL_FILE_TEMPORARY,
	STALL_FILE_RELAY,
	STALL_FILE_OTHER,
	STALL_FILE_CLASSES,
};

const char *stall_file_class_name(enum stall_file_class class);

// MySQL and MariaDB 5.1 and later, RocksDB, PostgreSQL. `deleted`: unlinked while it is in use.
enum stall_file_class stall_file_class(const char *path, bool deleted);

#endif
