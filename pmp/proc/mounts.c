// SPDX-License-Identifier: Apache-2.0
#include "proc/mounts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proc/proc_file.h"

#define MAX_MOUNTS_BYTES (1 << 20)

// Space, tab, newline and backslash are written as three octal digits.
static void unescape(char *text)
{
	char *to = text;

	for (; *text; text++, to++) {
		if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] >= '0' &&
		    text[2] <= '7' && text[3] >= '0' && text[3] <= '7') {
			*to = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
			text += 3;
		} else {
			*to = *text;
		}
	}
	*to = '\0';
}

bool stall_mount_parse(char *line, struct stall_mount *ret)
{
	enum { ID, PARENT, DEVICE_NUMBER, ROOT, POINT, OPTIONS, FIELDS };
	char *fields[FIELDS], *rest, *save = NULL;

	rest = strstr(line, " - ");
	if (!rest)
		return false;
	*rest = '\0';
	for (int i = 0; i < FIELDS; i++) {
		fields[i] = strtok_r(i ? NULL : line, " ", &save);
		if (!fields[i])
			return false;
	}
	char *type = strtok_r(rest + strlen(" - "), " ", &save);
	char *device = strtok_r(NULL, " ", &save);
	if (!type || !device)
		return false;
	unescape(fields[ROOT]);
	unescape(fields[POINT]);
	unescape(device);
	*ret = (struct stall_mount){
		.id = atoi(fields[ID]),
		.device_number = fields[DEVICE_NUMBER],
		.root = fields[ROOT],
		.point = fields[POINT],
		.type = type,
		.device = device,
	};
	return true;
}

char *stall_mounts_read(const struct stall_target *target)
{
	char *text = malloc(MAX_MOUNTS_BYTES);

	if (text && stall_proc_read(target, "mountinfo", text, MAX_MOUNTS_BYTES) < 0) {
		free(text);
		return NULL;
	}
	return text;
}

int stall_proc_mount_id(const struct stall_target *target, int fd)
{
	char path[32], text[512];
	int id = -1;

	snprintf(path, sizeof(path), "fdinfo/%d", fd);
	if (stall_proc_read(target, path, text, sizeof(text)) <= 0)
		return -1;
	const char *field = stall_proc_field(text, "mnt_id:");
	return field && sscanf(field, "%d", &id) == 1 ? id : -1;
}
