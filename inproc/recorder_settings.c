// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_settings.h"

#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ebpf/wait_kinds.h"
#include "inproc/raw_call.h"
#include "inproc/ring.h"

#define DEFAULT_THRESHOLD_NS 100000000ULL
#define DEFAULT_SLOTS 4096
#define MAX_THRESHOLD_MS 86400000ULL
#define MAX_PARTS 8
#define MAX_KIND 24

// Programs write over their environment, to change how they are listed: copies.
static char directory[192], xdg[192];
static struct recorder_settings settings;
static uint32_t are_read;
static struct stat first_stderr; // st_nlink 0: there was none

static const char *variable(const char *name)
{
	size_t length = strlen(name);

	for (char **at = environ; at && *at; at++) {
		if (!strncmp(*at, name, length) && (*at)[length] == '=')
			return *at + length + 1;
	}
	return NULL;
}

static const char *read_directory(const char *name, char *copy, size_t size)
{
	const char *value = variable(name);

	if (!value || !*value)
		return NULL;
	if (*value != '/' || strlen(value) >= size) {
		settings.bad = name;
		return NULL;
	}
	strcpy(copy, value);
	return copy;
}

// Digits up to one of `ends` or the end; *at moves there.
static bool read_number(const char **at, const char *ends, uint64_t max, uint64_t *ret)
{
	uint64_t value = 0;
	const char *text = *at;

	for (; *text >= '0' && *text <= '9'; text++) {
		value = value * 10 + (*text - '0');
		if (value > max)
			return false;
	}
	if (text == *at || (*text && !strchr(ends, *text)))
		return false;
	*at = text;
	*ret = value;
	return true;
}

// "50" is for all kinds, "lock=50,fsync=200" for some: those of `stallscope waits --threshold`.
static bool read_threshold(const char **at)
{
	const char *equals = strchr(*at, '='), *comma = strchr(*at, ',');
	uint32_t kinds = ~0u;
	char name[MAX_KIND];
	uint64_t ms;

	if (equals && (!comma || equals < comma)) {
		size_t length = equals - *at;
		if (length >= sizeof(name))
			return false;
		memcpy(name, *at, length);
		name[length] = '\0';
		kinds = stall_watch_wait_kinds(stall_watch_kinds_parse(name));
		*at = equals + 1;
	}
	if (!kinds || !read_number(at, ",", MAX_THRESHOLD_MS, &ms))
		return false;
	for (int i = 0; i < STALL_WAIT_KINDS; i++) {
		if (kinds >> i & 1)
			settings.threshold_ns[i] = ms * 1000000;
	}
	return true;
}

static void read_thresholds(const char *name)
{
	const char *at = variable(name);

	while (at && *at) {
		if (!read_threshold(&at)) {
			settings.bad = name;
			at = strchr(at, ',');
		}
		if (at && *at == ',')
			at++;
	}
}

static bool read_switch(const char *name)
{
	const char *value = variable(name);

	if (!value || !*value || !strcmp(value, "0"))
		return false;
	if (strcmp(value, "1"))
		settings.bad = name;
	return !strcmp(value, "1");
}

static void read_slots(const char *name)
{
	const char *value = variable(name);
	uint64_t slots;

	if (!value || !*value)
		return;
	if (read_number(&value, "", STALL_RING_MAX_SLOTS, &slots) && slots)
		settings.slots = slots;
	else
		settings.bad = name;
}

// At the start, when no other thread changes the environment.
__attribute__((constructor)) static void read_settings(void)
{
	if (__atomic_load_n(&are_read, __ATOMIC_ACQUIRE))
		return;
	settings.slots = DEFAULT_SLOTS;
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		settings.threshold_ns[i] = DEFAULT_THRESHOLD_NS;
	if (!getauxval(AT_SECURE)) {
		settings.directory =
			read_directory("STALLSCOPE_RUNTIME_DIR", directory, sizeof(directory));
		settings.xdg = read_directory("XDG_RUNTIME_DIR", xdg, sizeof(xdg));
		read_thresholds("STALLSCOPE_THRESHOLD");
		read_slots("STALLSCOPE_THREADS");
		settings.keep = read_switch("STALLSCOPE_KEEP_RING");
		settings.off = read_switch("STALLSCOPE_OFF");
	}
	if (raw_call2(SYS_fstat, STDERR_FILENO, &first_stderr))
		first_stderr.st_nlink = 0;
	__atomic_store_n(&are_read, 1, __ATOMIC_RELEASE);
}

const struct recorder_settings *recorder_settings(void)
{
	read_settings();
	return &settings;
}

// A server that closed standard error may have a file of its data under that number now.
static bool is_stderr(void)
{
	struct stat now;

	return !raw_call2(SYS_fstat, STDERR_FILENO, &now) &&
	       (S_ISCHR(now.st_mode) ||
		(now.st_dev == first_stderr.st_dev && now.st_ino == first_stderr.st_ino) ||
		(raw_call2(SYS_fcntl, STDERR_FILENO, F_GETFL) & O_APPEND));
}

void recorder_print(const char *const *parts)
{
	struct iovec vector[MAX_PARTS + 2] = {{(void *)"stallscope: ", 12}};
	size_t count = 1;

	for (; parts[count - 1] && count <= MAX_PARTS; count++)
		vector[count] = (struct iovec){(void *)parts[count - 1], strlen(parts[count - 1])};
	vector[count++] = (struct iovec){(void *)"\n", 1};
	if (is_stderr())
		raw_call3(SYS_writev, STDERR_FILENO, vector, count);
}
