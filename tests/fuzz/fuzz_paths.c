// SPDX-License-Identifier: Apache-2.0
// The input is what a child in a sandbox asks its parent to open: whether below a folder that the user
// has named, how, and the path.
#include "proc/path_broker.c" // NOLINT: for its messages

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

static int sockets[2], root;

static void make_file(const char *folder, const char *name, mode_t mode)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, mode);
	must(fd >= 0);
	close(fd);
}

static char folder[] = "/tmp/fuzz-paths-XXXXXX";
static pid_t owner; // the reading child ends too

static void remove_folder(void)
{
	char path[PATH_MAX];

	if (getpid() != owner)
		return;
	for (const char *const *name = (const char *const[]){"file", "link", NULL}; *name; name++) {
		snprintf(path, sizeof(path), "%s/%s", folder, *name);
		unlink(path);
	}
	rmdir(folder);
}

static void prepare(void)
{
	char link[PATH_MAX];

	must(mkdtemp(folder));
	owner = getpid();
	atexit(remove_folder);
	make_file(folder, "file", 0600);
	snprintf(link, sizeof(link), "%s/link", folder);
	must(symlink("/etc/shadow", link) == 0);
	must(!stall_path_add_root(folder, 0, &root));
	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
}

static void check(const struct request *request, const struct answer *answer, int fd)
{
	struct stat st;

	must(memchr(answer->text, '\0', sizeof(answer->text)));
	must((fd >= 0) == !answer->errnum);
	if (fd < 0)
		return;
	must((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && fstat(fd, &st) == 0);
	// What any user may read, or what is in the folder.
	must(request->root == root || (S_ISREG(st.st_mode) && st.st_mode & S_IROTH));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct request request = {};
	struct answer answer;
	struct iovec in = {&answer, sizeof(answer)};
	int fd;

	if (!owner)
		prepare();
	if (size < 5)
		return 0;
	request.root = data[0] & 1 ? root : data[0] - 128;
	memcpy(&request.how, data + 1, sizeof(request.how));
	size -= 5;
	memcpy(request.name, data + 5, size < PATH_MAX ? size : PATH_MAX);
	// Names that are not cut are its parent's task.
	must(send(sockets[1], &request, sizeof(request), 0) == (ssize_t)sizeof(request));
	must(stall_path_answer(sockets[0]));
	must(stall_receive_descriptor(sockets[1], &in, 1, &fd) == (ssize_t)sizeof(answer));
	check(&request, &answer, fd);
	if (fd >= 0)
		close(fd);
	return 0;
}
