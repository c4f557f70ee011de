// SPDX-License-Identifier: Apache-2.0
// writes FOLDER: writes to files on request, exactly what is asked for. A command is
//
//   WAY FILE COUNT SIZE    COUNT requests of SIZE bytes, one after the other, at the end of FILE
//                          where WAY writes: write, pwrite, writev, pwritev, pwritev2, direct
//                          (O_DIRECT), dsync (O_DSYNC), osync (O_SYNC), rwf (RWF_DSYNC), aio, aiov,
//                          aiodirect, uring, uringv, uringdirect, uringfixed, linked (io_uring: a
//                          write and the fsync behind it), refused (writes that fail);
//                          from its beginning on: again (pwrite), mapped (a byte of each page)
//                          of the others only COUNT matters: fsync, fdatasync, aiofsync,
//                          aiofdatasync, uringfsync, uringfdatasync, fixedfsync, msync, range
//                          (sync_file_range), syncfs, failed (an fsync that fails)
//   close FILE, unlink FILE, rename FILE TO, forget (all files, which stay open)
//
// Each command answers with {"done": COUNT}; 0: this kernel or file system cannot do it.
#include "uring.h"

#include <linux/aio_abi.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define MAX_FILES 64
#define MAX_BYTES (4u << 20)
#define ALIGNED 4096

struct open_file {
	char name[64];
	int fd, direct, dsync, osync; // -1: not opened yet
	off_t size;
};

static const char *folder;
static struct open_file files[MAX_FILES];
static size_t file_count;
static char *buffer;
static aio_context_t aio;

static char *path_of(const char *name, char *buf, size_t size)
{
	snprintf(buf, size, "%s/%s", folder, name);
	return buf;
}

static int open_as(const char *name, int flags)
{
	char path[512];

	return open(path_of(name, path, sizeof(path)), O_CREAT | O_RDWR | O_CLOEXEC | flags, 0600);
}

static struct open_file *find_file(const char *name)
{
	for (size_t i = 0; i < file_count; i++)
		if (strcmp(files[i].name, name) == 0)
			return &files[i];
	if (file_count == MAX_FILES)
		target_die("too many files");
	struct open_file *file = &files[file_count++];
	struct stat status;
	*file = (struct open_file){.fd = open_as(name, 0), .direct = -1, .dsync = -1, .osync = -1};
	if (file->fd < 0 || fstat(file->fd, &status) < 0)
		target_die(name);
	snprintf(file->name, sizeof(file->name), "%s", name);
	file->size = status.st_size;
	return file;
}

static void close_file(struct open_file *file)
{
	int fds[] = {file->fd, file->direct, file->dsync, file->osync};

	for (size_t i = 0; i < 4; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	*file = files[--file_count];
}

static int descriptor(struct open_file *file, const char *way)
{
	int *fd = &file->fd, flags = 0;

	if (strstr(way, "direct")) {
		fd = &file->direct;
		flags = O_DIRECT;
	} else if (strcmp(way, "dsync") == 0) {
		fd = &file->dsync;
		flags = O_DSYNC;
	} else if (strcmp(way, "osync") == 0) {
		fd = &file->osync;
		flags = O_SYNC;
	}
	if (*fd < 0)
		*fd = open_as(file->name, flags);
	return *fd;
}

/* libaio */

static ssize_t do_aio(int fd, int opcode, void *data, size_t size, off_t at)
{
	struct iocb iocb = {.aio_fildes = (unsigned)fd,
			    .aio_lio_opcode = (unsigned short)opcode,
			    .aio_buf = (uintptr_t)data,
			    .aio_nbytes = size,
			    .aio_offset = at};
	struct iocb *pointer = &iocb;
	struct io_event event;

	if (syscall(SYS_io_submit, aio, 1, &pointer) != 1)
		return -1;
	if (syscall(SYS_io_getevents, aio, 1, 1, &event, NULL) != 1)
		target_die("io_getevents");
	return (ssize_t)event.res;
}

/* io_uring */

static struct io_uring_sqe write_entry(const char *way, int fd, struct iovec *vector, off_t at)
{
	struct io_uring_sqe entry = {.opcode = IORING_OP_WRITE,
				     .fd = fd,
				     .addr = (uintptr_t)vector->iov_base,
				     .len = (unsigned)vector->iov_len,
				     .off = (unsigned long)at};

	if (strcmp(way, "uringv") == 0) {
		entry.opcode = IORING_OP_WRITEV;
		entry.addr = (uintptr_t)vector;
		entry.len = 1;
	}
	if (strcmp(way, "uringfixed") == 0)
		uring_fix(&entry, fd);
	return entry;
}

static ssize_t sync_by_ring(const char *way, int fd)
{
	struct io_uring_sqe entry = {.opcode = IORING_OP_FSYNC, .fd = fd};

	if (strcmp(way, "uringfdatasync") == 0)
		entry.fsync_flags = IORING_FSYNC_DATASYNC;
	if (strcmp(way, "fixedfsync") == 0)
		uring_fix(&entry, fd);
	return uring_run(&entry, 1);
}

static ssize_t write_by_ring(const char *way, int fd, struct iovec *vector, off_t at)
{
	struct io_uring_sqe entries[2] = {write_entry(way, fd, vector, at),
					  {.opcode = IORING_OP_FSYNC, .fd = fd}};

	if (strcmp(way, "linked") != 0)
		return uring_run(entries, 1);
	entries[0].flags |= IOSQE_IO_LINK;
	return uring_run(entries, 2) < 0 ? -1 : (ssize_t)vector->iov_len;
}

/* What is asked for. */

static ssize_t write_once(const char *way, int fd, size_t size, off_t at)
{
	// Two pieces, so that an address of vectors is no address of data.
	struct iovec whole = {buffer, size},
		     vector[2] = {{buffer, size / 2}, {buffer, size - size / 2}};

	if (strcmp(way, "write") == 0)
		return lseek(fd, at, SEEK_SET) < 0 ? -1 : write(fd, buffer, size);
	if (strcmp(way, "writev") == 0)
		return lseek(fd, at, SEEK_SET) < 0 ? -1 : writev(fd, vector, 2);
	if (strcmp(way, "pwritev") == 0)
		return pwritev(fd, vector, 2, at);
	if (strcmp(way, "pwritev2") == 0)
		return pwritev2(fd, vector, 2, at, 0);
	if (strcmp(way, "rwf") == 0)
		return pwritev2(fd, vector, 2, at, RWF_DSYNC);
	if (strcmp(way, "aio") == 0 || strcmp(way, "aiodirect") == 0)
		return do_aio(fd, IOCB_CMD_PWRITE, buffer, size, at);
	if (strcmp(way, "aiov") == 0)
		return do_aio(fd, IOCB_CMD_PWRITEV, vector, 2, at);
	if (strncmp(way, "uring", 5) == 0 || strcmp(way, "linked") == 0)
		return write_by_ring(way, fd, &whole, at);
	if (strcmp(way, "refused") == 0)
		return pwrite(fd, NULL, size, at) < 0 ? (ssize_t)size : -1;
	return pwrite(fd, buffer, size, at); // pwrite, direct, dsync, osync, again
}

static int sync_once(const char *way, int fd)
{
	if (strcmp(way, "fsync") == 0)
		return fsync(fd);
	if (strcmp(way, "fdatasync") == 0)
		return fdatasync(fd);
	if (strcmp(way, "aiofsync") == 0)
		return (int)do_aio(fd, IOCB_CMD_FSYNC, NULL, 0, 0);
	if (strcmp(way, "aiofdatasync") == 0)
		return (int)do_aio(fd, IOCB_CMD_FDSYNC, NULL, 0, 0);
	if (strcmp(way, "uringfsync") == 0 || strcmp(way, "uringfdatasync") == 0 ||
	    strcmp(way, "fixedfsync") == 0)
		return (int)sync_by_ring(way, fd);
	if (strcmp(way, "msync") == 0)
		return msync(buffer, ALIGNED, MS_SYNC);
	if (strcmp(way, "range") == 0)
		return sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	if (strcmp(way, "syncfs") == 0)
		return syncfs(fd);
	if (strcmp(way, "failed") == 0)
		return fsync(STDIN_FILENO) < 0 ? 0 : -1; // of a pipe
	return 1;					 // none of these
}

static unsigned long map_pages(struct open_file *file, unsigned long count)
{
	size_t size = count * ALIGNED;

	if (ftruncate(file->fd, file->size < (off_t)size ? (off_t)size : file->size) < 0)
		target_die("ftruncate");
	if (file->size < (off_t)size)
		file->size = (off_t)size;
	char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
	if (pages == MAP_FAILED)
		target_die("mmap");
	for (unsigned long i = 0; i < count; i++)
		pages[i * ALIGNED]++;
	munmap(pages, size);
	return count;
}

static unsigned long do_requests(const char *way, struct open_file *file, unsigned long count,
				 size_t size)
{
	int fd = descriptor(file, way);
	unsigned long done = 0;
	off_t at = 0;

	if (fd < 0 || (uring.fd < 0 && (strstr(way, "uring") || strstr(way, "linked"))))
		return 0;
	if (strcmp(way, "mapped") == 0)
		return map_pages(file, count);
	for (; done < count; done++) {
		int synced = sync_once(way, fd);

		if (synced < 0)
			target_die(way);
		if (synced == 0)
			continue;
		if (strcmp(way, "again") != 0 && strcmp(way, "refused") != 0)
			at = file->size;
		if (write_once(way, fd, size, at) != (ssize_t)size)
			break;
		at += (off_t)size;
		if (at > file->size)
			file->size = at;
	}
	return done;
}

static unsigned long do_names(const char *way, const char *name, const char *to)
{
	char from_path[512], to_path[512];

	path_of(name, from_path, sizeof(from_path));
	if (strcmp(way, "close") == 0)
		close_file(find_file(name));
	else if (strcmp(way, "unlink") == 0 && unlink(from_path) < 0)
		target_die("unlink");
	else if (strcmp(way, "rename") == 0 &&
		 rename(from_path, path_of(to, to_path, sizeof(to_path))) < 0)
		target_die("rename");
	else if (strcmp(way, "forget") == 0)
		file_count = 0;
	return 1;
}

static void answer(const char *command)
{
	char way[32] = "", name[64] = "", third[64] = "";
	unsigned long size = 0, done;

	sscanf(command, "%31s %63s %63s %lu", way, name, third, &size);
	if (size > MAX_BYTES)
		target_die("too many bytes at once");
	if (third[0] >= '0' && third[0] <= '9')
		done = do_requests(way, find_file(name), strtoul(third, NULL, 10), size);
	else
		done = do_names(way, name, third);
	printf("{\"done\": %lu}\n", done);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	folder = argv[1];
	buffer = mmap(NULL, MAX_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buffer == MAP_FAILED || syscall(SYS_io_setup, 16, &aio) < 0)
		target_die("start");
	memset(buffer, 'w', MAX_BYTES);
	uring_init();
	printf("{\"fact\": \"ring\", \"count\": %d}\n", uring.fd >= 0);
	target_ready();
	target_serve(answer);
}
