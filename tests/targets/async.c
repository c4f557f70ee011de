// SPDX-License-Identifier: Apache-2.0
// async FOLDER: asynchronous I/O on request, exactly as many as asked, by raw system calls.
//
//   aio OPERATION COUNT    read, write, extend, fsync, fdatasync, readv, writev
//   uring OPERATION COUNT  read, write, extend, fsync, fdatasync, readv, writev, fallocate,
//                          sync_file_range, unlink, rename, fixed (a read of a registered file)
//   refused                an io_submit(2) of which the kernel takes two of three
//   left COUNT             aio reads whose ends are not fetched, and then are
//
// Each command answers with the longest time from a submission to its end, in ns.
#include "uring.h"

#include <linux/aio_abi.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define BLOCK 4096
#define BATCH 64

static const char *folder;
static int file = -1;
static off_t size;
static aio_context_t aio;
static char *buffer;
static struct iovec vector;

static char *path_of(const char *name, unsigned long i, char *buf, size_t buf_size)
{
	snprintf(buf, buf_size, "%s/%s%lu", folder, name, i);
	return buf;
}

/* libaio */

static void fill_iocb(struct iocb *iocb, const char *operation)
{
	*iocb = (struct iocb){.aio_fildes = (unsigned)file,
			      .aio_buf = (uintptr_t)buffer,
			      .aio_nbytes = BLOCK};
	if (strcmp(operation, "read") == 0)
		iocb->aio_lio_opcode = IOCB_CMD_PREAD;
	else if (strcmp(operation, "fsync") == 0)
		iocb->aio_lio_opcode = IOCB_CMD_FSYNC;
	else if (strcmp(operation, "fdatasync") == 0)
		iocb->aio_lio_opcode = IOCB_CMD_FDSYNC;
	else
		iocb->aio_lio_opcode = IOCB_CMD_PWRITE;
	if (strcmp(operation, "readv") == 0 || strcmp(operation, "writev") == 0) {
		iocb->aio_lio_opcode = *operation == 'r' ? IOCB_CMD_PREADV : IOCB_CMD_PWRITEV;
		iocb->aio_buf = (uintptr_t)&vector;
		iocb->aio_nbytes = 1;
	}
	if (iocb->aio_lio_opcode == IOCB_CMD_FSYNC || iocb->aio_lio_opcode == IOCB_CMD_FDSYNC)
		iocb->aio_buf = iocb->aio_nbytes = 0;
	if (strcmp(operation, "extend") == 0) {
		iocb->aio_offset = size;
		size += BLOCK;
	}
}

static void fetch(unsigned long count)
{
	struct io_event events[BATCH];

	while (count) {
		long want = count < BATCH ? (long)count : BATCH;
		long got = syscall(SYS_io_getevents, aio, want, want, events, NULL);

		if (got <= 0)
			target_die("io_getevents");
		for (long i = 0; i < got; i++) {
			if ((long)events[i].res < 0) {
				errno = -(int)events[i].res;
				target_die("an iocb");
			}
		}
		count -= (unsigned long)got;
	}
}

static void submit(struct iocb *iocbs, unsigned long count)
{
	struct iocb *pointers[BATCH];

	for (unsigned long i = 0; i < count; i++)
		pointers[i] = &iocbs[i];
	if (syscall(SYS_io_submit, aio, count, pointers) != (long)count)
		target_die("io_submit");
}

static uint64_t do_aio(const char *operation, unsigned long count)
{
	struct iocb iocbs[BATCH];
	uint64_t longest = 0;

	for (unsigned long done = 0; done < count;) {
		unsigned long batch = count - done < BATCH ? count - done : BATCH;
		uint64_t start = target_now();

		for (unsigned long i = 0; i < batch; i++)
			fill_iocb(&iocbs[i], operation);
		submit(iocbs, batch);
		fetch(batch);
		if (target_now() - start > longest)
			longest = target_now() - start;
		done += batch;
	}
	return longest;
}

// The third has a descriptor that is none.
static uint64_t do_refused(void)
{
	struct iocb iocbs[3], *pointers[3];

	for (int i = 0; i < 3; i++) {
		fill_iocb(&iocbs[i], "read");
		pointers[i] = &iocbs[i];
	}
	iocbs[2].aio_reserved2 = 1; // must be 0
	if (syscall(SYS_io_submit, aio, 3, pointers) != 2)
		target_die("io_submit");
	fetch(2);
	return 1;
}

static struct iocb left[BATCH];

static uint64_t do_left(unsigned long count)
{
	for (unsigned long i = 0; i < count; i++)
		fill_iocb(&left[i], "read");
	submit(left, count);
	return 1;
}

/* io_uring */

static void fill_entry(struct io_uring_sqe *entry, const char *operation, unsigned long i)
{
	static char from[512], to[512];
	static const struct {
		const char *name;
		int opcode;
	} opcodes[] = {
		{"read", IORING_OP_READ},	    {"write", IORING_OP_WRITE},
		{"extend", IORING_OP_WRITE},	    {"fixed", IORING_OP_READ},
		{"readv", IORING_OP_READV},	    {"writev", IORING_OP_WRITEV},
		{"fsync", IORING_OP_FSYNC},	    {"fdatasync", IORING_OP_FSYNC},
		{"fallocate", IORING_OP_FALLOCATE}, {"sync_file_range", IORING_OP_SYNC_FILE_RANGE},
		{"unlink", IORING_OP_UNLINKAT},	    {"rename", IORING_OP_RENAMEAT},
	};

	*entry = (struct io_uring_sqe){.fd = file, .addr = (uintptr_t)buffer, .len = BLOCK};
	for (size_t n = 0; n < sizeof(opcodes) / sizeof(opcodes[0]); n++) {
		if (strcmp(opcodes[n].name, operation) == 0)
			entry->opcode = (unsigned char)opcodes[n].opcode;
	}
	switch (entry->opcode) {
	case IORING_OP_READV:
	case IORING_OP_WRITEV:
		entry->addr = (uintptr_t)&vector;
		entry->len = 1;
		break;
	case IORING_OP_FSYNC:
		entry->addr = entry->len = 0;
		entry->fsync_flags = *(operation + 1) == 'd' ? IORING_FSYNC_DATASYNC : 0;
		break;
	case IORING_OP_FALLOCATE:
		entry->off = (unsigned long)size;
		entry->addr = BLOCK; // the length
		entry->len = 0;	     // the mode
		size += BLOCK;
		break;
	case IORING_OP_SYNC_FILE_RANGE:
		entry->addr = 0;
		break;
	case IORING_OP_UNLINKAT:
	case IORING_OP_RENAMEAT:
		close(open(path_of("async-", i, from, sizeof(from)), O_CREAT | O_WRONLY, 0600));
		entry->fd = AT_FDCWD;
		entry->addr = (uintptr_t)from;
		entry->len = 0;
		if (entry->opcode == IORING_OP_RENAMEAT) {
			entry->off = (uintptr_t)path_of("renamed-", 0, to, sizeof(to));
			entry->len = (unsigned)AT_FDCWD;
		}
		break;
	}
	if (strcmp(operation, "fixed") == 0)
		uring_fix(entry, file);
	if (strcmp(operation, "extend") == 0) {
		entry->off = (unsigned long)size;
		size += BLOCK;
	}
}

static uint64_t do_uring(const char *operation, unsigned long count)
{
	uint64_t longest = 0;

	if (uring.fd < 0)
		return 0;
	for (unsigned long i = 0; i < count; i++) {
		struct io_uring_sqe entry;

		fill_entry(&entry, operation, i);
		uint64_t start = target_now();
		ssize_t result = uring_run(&entry, 1);
		if (target_now() - start > longest)
			longest = target_now() - start;
		if (result < 0) {
			errno = -(int)result;
			target_die(operation);
		}
	}
	return longest;
}

static void answer(const char *command)
{
	char way[16], operation[32] = "";
	unsigned long count = 0;
	uint64_t longest = 0;

	sscanf(command, "%15s %31s %lu", way, operation, &count);
	if (strcmp(way, "aio") == 0) {
		longest = do_aio(operation, count);
	} else if (strcmp(way, "uring") == 0) {
		longest = do_uring(operation, count);
	} else if (strcmp(way, "refused") == 0) {
		longest = do_refused();
	} else if (strcmp(way, "left") == 0) {
		longest = do_left(strtoul(operation, NULL, 10));
	} else if (strcmp(way, "fetch") == 0) {
		fetch(strtoul(operation, NULL, 10));
		longest = 1;
	}
	printf("{\"longest\": %llu}\n", (unsigned long long)longest);
}

int main(int argc, char **argv)
{
	struct stat st;
	char path[512];

	if (argc != 2)
		return 2;
	folder = argv[1];
	buffer = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	vector = (struct iovec){buffer, BLOCK};
	file = open(path_of("data-", 0, path, sizeof(path)), O_CREAT | O_RDWR, 0600);
	if (buffer == MAP_FAILED || file < 0 || write(file, buffer, BLOCK) != BLOCK ||
	    fstat(file, &st) < 0)
		target_die(path);
	size = st.st_size;
	if (syscall(SYS_io_setup, 256, &aio) < 0)
		target_die("io_setup");
	uring_init();
	printf("{\"inode\": %lu, \"uring\": %d}\n", (unsigned long)st.st_ino, uring.fd >= 0);
	target_ready();
	target_serve(answer);
}
