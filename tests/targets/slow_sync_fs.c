// SPDX-License-Identifier: Apache-2.0
// A file system whose syncs take longer: slow_sync_fs FOLDER MOUNTPOINT MICROSECONDS
//
// It shows FOLDER at MOUNTPOINT. Reads and writes go to FOLDER's files inside of the kernel (FUSE
// passthrough), so they cost what they cost there; only fsync and fdatasync come here, and sleep
// before they are passed on. A tracer of system calls sees them as one long call, as on a slow
// disk, which a sleep in a preloaded fsync() would not give. Prints "ready", unmounts at the end of
// its standard input.
//
// With "plain" for the time all of it comes here, and a line of input makes it a disk that does not
// answer: it takes requests, and prints "stopped". With "reads" in that line it still opens files.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// From protocol 7.40 (Linux 6.9): younger than some distributions' headers.
#define PASSTHROUGH_2 (1u << 5) // FUSE_PASSTHROUGH, bit 37, in flags2
#define OPEN_PASSTHROUGH (1u << 7)
struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)
struct init_out {
	uint32_t major, minor, max_readahead, flags;
	uint16_t max_background, congestion_threshold;
	uint32_t max_write, time_gran;
	uint16_t max_pages, map_alignment;
	uint32_t flags2, max_stack_depth, unused[6];
};
struct open_out {
	uint64_t fh;
	uint32_t open_flags;
	int32_t backing_id;
};

enum { WRITE_MAX = 128 << 10, BUFFER = WRITE_MAX + 8192, THREADS = 12 };

struct node {
	struct node *next;
	dev_t dev;
	ino_t ino;
	int path; // O_PATH
	uint64_t lookups;
	int opens, file, backing; // all opens of an inode share one backing file
};

static struct node root = {.lookups = 1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int device;
static struct timespec delay;
static bool plain;
static atomic_bool stopped, reads_stopped;

static struct node *node_of(uint64_t id)
{
	return id == FUSE_ROOT_ID ? &root : (struct node *)(uintptr_t)id;
}

static void fill(struct fuse_attr *attr, const struct stat *st)
{
	*attr = (struct fuse_attr){
		.ino = st->st_ino,
		.size = st->st_size,
		.blocks = st->st_blocks,
		.atime = st->st_atim.tv_sec,
		.mtime = st->st_mtim.tv_sec,
		.ctime = st->st_ctim.tv_sec,
		.atimensec = st->st_atim.tv_nsec,
		.mtimensec = st->st_mtim.tv_nsec,
		.ctimensec = st->st_ctim.tv_nsec,
		.mode = st->st_mode,
		.nlink = st->st_nlink,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.rdev = st->st_rdev,
		.blksize = st->st_blksize,
	};
}

static int look_up(struct node *dir, const char *name, struct fuse_entry_out *ret)
{
	int fd = openat(dir->path, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct node *node;
	struct stat st;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st)) {
		close(fd);
		return -EIO;
	}
	pthread_mutex_lock(&lock);
	for (node = root.next; node; node = node->next)
		if (node->dev == st.st_dev && node->ino == st.st_ino)
			break;
	if (node) {
		close(fd);
	} else {
		node = calloc(1, sizeof(*node));
		if (!node)
			abort();
		*node = (struct node){root.next, st.st_dev, st.st_ino, fd, .file = -1};
		root.next = node;
	}
	node->lookups++;
	pthread_mutex_unlock(&lock);
	*ret = (struct fuse_entry_out){.nodeid = (uintptr_t)node, .attr_valid = 0};
	fill(&ret->attr, &st);
	return 0;
}

static void forget(uint64_t id, uint64_t count)
{
	struct node *node = node_of(id), **link;

	if (node == &root)
		return;
	pthread_mutex_lock(&lock);
	node->lookups -= count;
	if (!node->lookups && !node->opens) {
		for (link = &root.next; *link != node; link = &(*link)->next)
			;
		*link = node->next;
		close(node->path);
		free(node);
	}
	pthread_mutex_unlock(&lock);
}

static int open_node(struct node *node, struct open_out *ret)
{
	char path[40];
	int error = 0;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", node->path);
	pthread_mutex_lock(&lock);
	if (!node->opens) {
		node->file = open(path, O_RDWR | O_CLOEXEC);
		if (node->file < 0 && plain)
			node->file = open(path, O_RDONLY | O_CLOEXEC); // a program that runs
		struct backing_map map = {.fd = node->file};
		if (plain || node->file < 0)
			node->backing = node->file < 0 ? -1 : 0;
		else
			node->backing = ioctl(device, BACKING_OPEN, &map);
		if (node->backing < 0) {
			error = -errno;
			if (node->file >= 0)
				close(node->file);
			node->file = -1;
		}
	}
	if (!error) {
		node->opens++;
		// What was read stays: else this open would take the pages of programs that run.
		*ret = (struct open_out){1, plain ? FOPEN_KEEP_CACHE : OPEN_PASSTHROUGH,
					 node->backing};
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static void release(struct node *node)
{
	pthread_mutex_lock(&lock);
	if (!--node->opens) {
		uint32_t id = node->backing;

		if (!plain)
			ioctl(device, BACKING_CLOSE, &id);
		close(node->file);
		node->file = -1;
	}
	pthread_mutex_unlock(&lock);
}

static int get_attr(struct node *node, struct fuse_attr_out *ret)
{
	struct stat st;

	if (fstat(node->path, &st))
		return -errno;
	*ret = (struct fuse_attr_out){};
	fill(&ret->attr, &st);
	return 0;
}

static int set_attr(struct node *node, const struct fuse_setattr_in *in, struct fuse_attr_out *ret)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", node->path);
	if ((in->valid & FATTR_MODE) && chmod(path, in->mode))
		return -errno;
	if ((in->valid & (FATTR_UID | FATTR_GID)) &&
	    chown(path, in->valid & FATTR_UID ? in->uid : -1u,
		  in->valid & FATTR_GID ? in->gid : -1u))
		return -errno;
	if ((in->valid & FATTR_SIZE) && truncate(path, in->size))
		return -errno;
	if (in->valid & (FATTR_ATIME | FATTR_MTIME)) {
		struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};

		if (in->valid & FATTR_ATIME)
			times[0] = (struct timespec){in->atime, in->atimensec};
		if (in->valid & FATTR_MTIME)
			times[1] = (struct timespec){in->mtime, in->mtimensec};
		if (in->valid & FATTR_ATIME_NOW)
			times[0].tv_nsec = UTIME_NOW;
		if (in->valid & FATTR_MTIME_NOW)
			times[1].tv_nsec = UTIME_NOW;
		if (utimensat(AT_FDCWD, path, times, 0))
			return -errno;
	}
	return get_attr(node, ret);
}

static int made(struct node *dir, const char *name, const struct fuse_in_header *in, int result,
		struct fuse_entry_out *ret)
{
	if (result < 0)
		return -errno;
	if (fchownat(dir->path, name, in->uid, in->gid, AT_SYMLINK_NOFOLLOW))
		return -errno;
	return look_up(dir, name, ret);
}

// Each call reads from the start and skips: the folders of a server are small.
static int read_dir(struct node *node, const struct fuse_read_in *in, char *ret)
{
	int fd = openat(node->path, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	uint64_t number = 0;
	size_t size = 0;

	if (!dir)
		return -errno;
	while ((entry = readdir(dir))) {
		struct fuse_dirent *out = (struct fuse_dirent *)(ret + size);
		size_t length = strlen(entry->d_name);

		if (++number <= in->offset)
			continue;
		if (size + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length) > in->size)
			break;
		*out = (struct fuse_dirent){entry->d_ino, number, length, entry->d_type};
		memcpy(out->name, entry->d_name, length);
		size += FUSE_DIRENT_SIZE(out);
	}
	closedir(dir);
	return size;
}

static int sync_file(struct node *node, bool data)
{
	if (node->file < 0)
		return 0;
	nanosleep(&delay, NULL);
	return (data ? fdatasync(node->file) : fsync(node->file)) ? -errno : 0;
}

static int read_file(struct node *node, const struct fuse_read_in *in, char *ret)
{
	ssize_t got = pread(node->file, ret, in->size, in->offset);

	return got < 0 ? -errno : (int)got;
}

static int write_file(struct node *node, const struct fuse_write_in *in, struct fuse_write_out *ret)
{
	ssize_t got = pwrite(node->file, in + 1, in->size, in->offset);

	*ret = (struct fuse_write_out){.size = got};
	return got < 0 ? -errno : (int)sizeof(*ret);
}

static int init(const struct fuse_init_in *in, struct init_out *ret)
{
	if (plain) {
		*ret = (struct init_out){.major = 7, .minor = 31, .max_write = WRITE_MAX};
		return sizeof(*ret);
	}
	if (!(in->flags & (1u << 30)) || !(in->flags2 & PASSTHROUGH_2)) // FUSE_INIT_EXT
		return -EOPNOTSUPP;
	*ret = (struct init_out){
		.major = 7,
		.minor = 40,
		.max_readahead = in->max_readahead,
		.flags = (1u << 30) | FUSE_BIG_WRITES | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS,
		.max_background = 64,
		.congestion_threshold = 48,
		.max_write = WRITE_MAX,
		.time_gran = 1,
		.flags2 = PASSTHROUGH_2,
		.max_stack_depth = 1,
	};
	return sizeof(*ret);
}

static int rename_node(struct node *dir, uint64_t to, const char *names, unsigned int flags)
{
	const char *name = names + strlen(names) + 1;

	return renameat2(dir->path, names, node_of(to)->path, name, flags) ? -errno : 0;
}

// Returns the size of the reply, or -errno.
static int answer(const struct fuse_in_header *in, void *body, char *ret)
{
	struct node *node = node_of(in->nodeid);
	struct fuse_entry_out *entry = (void *)ret;
	int error;

	switch (in->opcode) {
	case FUSE_INIT:
		return init(body, (void *)ret);
	case FUSE_LOOKUP:
		error = look_up(node, body, entry);
		return error ?: (int)sizeof(*entry);
	case FUSE_GETATTR:
		error = get_attr(node, (void *)ret);
		return error ?: (int)sizeof(struct fuse_attr_out);
	case FUSE_SETATTR:
		error = set_attr(node, body, (void *)ret);
		return error ?: (int)sizeof(struct fuse_attr_out);
	case FUSE_MKDIR: {
		struct fuse_mkdir_in *arg = body;
		const char *name = (char *)(arg + 1);

		error = made(node, name, in, mkdirat(node->path, name, arg->mode), entry);
		return error ?: (int)sizeof(*entry);
	}
	case FUSE_MKNOD: {
		struct fuse_mknod_in *arg = body;
		const char *name = (char *)(arg + 1);

		error = made(node, name, in, mknodat(node->path, name, arg->mode, arg->rdev),
			     entry);
		return error ?: (int)sizeof(*entry);
	}
	case FUSE_CREATE: {
		struct fuse_create_in *arg = body;
		const char *name = (char *)(arg + 1);
		int flags = O_CREAT | O_RDWR | O_CLOEXEC | (arg->flags & (O_EXCL | O_TRUNC));
		int fd = openat(node->path, name, flags, arg->mode);

		error = made(node, name, in, fd, entry);
		if (fd >= 0)
			close(fd);
		if (!error)
			error = open_node(node_of(entry->nodeid), (void *)(entry + 1));
		return error ?: (int)(sizeof(*entry) + sizeof(struct open_out));
	}
	case FUSE_OPEN: {
		struct fuse_open_in *arg = body;

		error = open_node(node, (void *)ret);
		if (!error && (arg->flags & O_TRUNC) && ftruncate(node->file, 0))
			error = -errno;
		return error ?: (int)sizeof(struct open_out);
	}
	case FUSE_READ:
		return read_file(node, body, ret);
	case FUSE_WRITE:
		return write_file(node, body, (void *)ret);
	case FUSE_RELEASE:
		release(node);
		return 0;
	case FUSE_FLUSH:
	case FUSE_RELEASEDIR:
	case FUSE_FSYNCDIR:
		return 0;
	case FUSE_FSYNC:
		return sync_file(node, ((struct fuse_fsync_in *)body)->fsync_flags & 1);
	case FUSE_OPENDIR:
		*(struct fuse_open_out *)ret = (struct fuse_open_out){};
		return sizeof(struct fuse_open_out);
	case FUSE_READDIR:
		return read_dir(node, body, ret);
	case FUSE_UNLINK:
		return unlinkat(node->path, body, 0) ? -errno : 0;
	case FUSE_RMDIR:
		return unlinkat(node->path, body, AT_REMOVEDIR) ? -errno : 0;
	case FUSE_RENAME: {
		struct fuse_rename_in *arg = body;

		return rename_node(node, arg->newdir, (char *)(arg + 1), 0);
	}
	case FUSE_RENAME2: {
		struct fuse_rename2_in *arg = body;

		return rename_node(node, arg->newdir, (char *)(arg + 1), arg->flags);
	}
	case FUSE_FALLOCATE: {
		struct fuse_fallocate_in *arg = body;

		if (fallocate(node->file, arg->mode, arg->offset, arg->length))
			return -errno;
		return 0;
	}
	case FUSE_STATFS: {
		struct fuse_statfs_out *out = (void *)ret;
		struct statfs fs;

		if (fstatfs(node->path, &fs))
			return -errno;
		*out = (struct fuse_statfs_out){{fs.f_blocks,
						 fs.f_bfree,
						 fs.f_bavail,
						 fs.f_files,
						 fs.f_ffree,
						 fs.f_bsize,
						 fs.f_namelen,
						 fs.f_frsize,
						 0,
						 {0}}};
		return sizeof(*out);
	}
	default:
		return -ENOSYS;
	}
}

static bool without_answer(const struct fuse_in_header *in, void *body)
{
	struct fuse_batch_forget_in *batch = body;
	struct fuse_forget_one *one = (void *)(batch + 1);

	switch (in->opcode) {
	case FUSE_FORGET:
		forget(in->nodeid, ((struct fuse_forget_in *)body)->nlookup);
		return true;
	case FUSE_BATCH_FORGET:
		for (uint32_t i = 0; i < batch->count; i++)
			forget(one[i].nodeid, one[i].nlookup);
		return true;
	case FUSE_INTERRUPT:
		return true;
	}
	return false;
}

static void *serve(void *unused)
{
	char *request = malloc(BUFFER), *reply = malloc(BUFFER);

	(void)unused;
	for (;;) {
		ssize_t size = read(device, request, BUFFER);
		struct fuse_in_header *in = (void *)request;
		struct fuse_out_header out = {.unique = in->unique};

		if (size < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
			continue;
		if (size < 0)
			return NULL; // unmounted
		if (stopped ||
		    (reads_stopped && (in->opcode == FUSE_READ || in->opcode == FUSE_FLUSH)))
			continue;
		if (without_answer(in, in + 1))
			continue;
		out.unique = in->unique;
		int result = answer(in, in + 1, reply);
		out.error = result < 0 ? result : 0;
		out.len = sizeof(out) + (result > 0 ? result : 0);
		struct iovec parts[] = {{&out, sizeof(out)}, {reply, out.len - sizeof(out)}};
		if (writev(device, parts, 2) < 0 && errno != ENOENT)
			return NULL;
	}
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	char options[160];

	if (argc != 4) {
		fprintf(stderr, "usage: slow_sync_fs FOLDER MOUNTPOINT MICROSECONDS|plain\n");
		return 2;
	}
	plain = !strcmp(argv[3], "plain");
	long long ns = atoll(argv[3]) * 1000;
	delay = (struct timespec){ns / 1000000000, ns % 1000000000};
	umask(0);
	root.path = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
	root.file = -1;
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof(options),
		 "fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions",
		 device);
	if (root.path < 0 || device < 0 ||
	    mount("slow_sync_fs", argv[2], "fuse.slow_sync_fs", MS_NOSUID | MS_NODEV, options)) {
		fprintf(stderr, "slow_sync_fs: %s: %s\n", argv[2], strerror(errno));
		return 1;
	}
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, serve, NULL))
			return 1;
	// A mount whose kernel has no passthrough answers nothing: its caller sees that here.
	struct stat st;
	if (stat(argv[2], &st)) {
		fprintf(stderr, "slow_sync_fs: no FUSE passthrough here: %s\n", strerror(errno));
		umount2(argv[2], MNT_DETACH);
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	char line[16];
	while (fgets(line, sizeof(line), stdin)) {
		*(strcmp(line, "reads\n") ? &stopped : &reads_stopped) = true;
		printf("stopped\n");
		fflush(stdout);
	}
	umount2(argv[2], MNT_DETACH);
	return 0;
}
