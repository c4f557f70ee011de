// SPDX-License-Identifier: Apache-2.0
// The file of a ring: what is in it from the start, and what becomes of it when the server ends,
// forks, is killed, or has no room for it.
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "recording.h"

#define THREADS 64

/* Scenes. */

__attribute__((noreturn)) static int print_and_wait(void)
{
	recording_wait_once(); // tries to make the ring
	bool recorded = recording_wait_once();

	printf("%s\n", recorded ? "recorded" : "nothing");
	fflush(stdout);
	for (;;)
		pause();
}

static int scene_exit(void)
{
	recording_wait_once();
	recorder_exits();
	return 0;
}

static int scene_fork(void)
{
	recording_wait_once();
	pid_t child = fork();
	if (child == 0) {
		recorder_forked();
		recording_wait_once();
		recorder_exits();
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	printf("%d\n", child);
	fflush(stdout);
	recording_wait_once();
	return status;
}

static void *wait_often(void *arg)
{
	pthread_mutex_t mutex[THREADS];
	char deep[8192];

	memset(deep, 1, sizeof(deep));
	for (int i = 0; i < THREADS; i++) {
		struct recorder_wait wait = recording_lock(&mutex[i]);
		recording_wait(&wait, true);
	}
	return deep[0] ? arg : NULL;
}

static int scene_many(void)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, wait_often, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	print_and_wait();
}

static int scene_file_limit(void)
{
	struct rlimit limit = {4 << 20, 4 << 20};

	setrlimit(RLIMIT_FSIZE, &limit);
	return scene_many();
}

// MADV_POPULATE_WRITE is 23, Linux 5.14.
static int scene_old_kernel(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 23, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 6, .filter = filter};

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 1;
	return scene_many();
}

static int scene_ordinary_user(void)
{
	if (setgid(65534) || setuid(65534))
		return 1;
	print_and_wait();
}

/* Tests. */

static uint64_t start_time_of(pid_t pid)
{
	char path[32], text[512] = "";
	unsigned long long value = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *file = fopen(path, "re");
	if (!file || !fgets(text, sizeof(text), file))
		abort();
	fclose(file);
	char *at = strrchr(text, ')') + 2;
	for (int field = 3; field < 22; field++)
		at = strchr(at, ' ') + 1;
	sscanf(at, "%llu", &value);
	return value;
}

static void check_layout(const struct stall_ring_header *header, uint64_t file_size)
{
	const uint64_t parts[][2] = {
		{0, header->header_size},
		{header->slots_offset, header->slot_count * sizeof(struct stall_wait_slot)},
		{header->stacks_offset, (uint64_t)header->slot_count * header->stack_stride},
		{header->stats_offset,
		 (header->stat_count + STALL_WAIT_KINDS) * sizeof(struct stall_wait_stat)},
		{header->names_offset, header->stat_count * sizeof(struct stall_ring_name)},
		{header->records_offset, (uint64_t)header->cell_count * header->cell_stride},
		{header->maps_offset, 2ULL * header->maps_stride},
	};
	const size_t count = sizeof(parts) / sizeof(parts[0]);

	for (size_t i = 0; i < count; i++) {
		CHECK_INT(parts[i][0] % STALL_RING_PAGE, 0);
		CHECK(parts[i][0] + parts[i][1] <=
		      (i + 1 < count ? parts[i + 1][0] : header->file_size));
	}
	CHECK_INT(header->file_size, file_size);
	CHECK_INT(header->stat_count & (header->stat_count - 1), 0);
	CHECK_INT(header->cell_count & (header->cell_count - 1), 0);
	CHECK_INT(header->stack_stride % STALL_RING_PAGE, 0);
}

static void check_identity(const struct stall_ring_header *header, pid_t pid)
{
	struct stat st;
	char exe[PATH_MAX], own[256] = "";

	snprintf(exe, sizeof(exe), "/proc/%d/exe", pid);
	CHECK(readlink(exe, own, sizeof(own) - 1) > 0);
	CHECK_STRING(header->exe, own);
	CHECK_INT(header->pid, pid);
	CHECK_INT(header->uid, geteuid());
	CHECK_INT(header->start_time, start_time_of(pid));
	CHECK_INT(stat("/proc/self/ns/pid", &st), 0);
	CHECK_INT(header->pid_namespace, st.st_ino);
	CHECK_INT(strlen(header->boot_id), 36);
	CHECK_STRING(header->comm, "exe"); // of /proc/self/exe
	CHECK_STRING(header->library, STALL_VERSION);
}

static void test_layout(const char *directory)
{
	const char *env[] = {"STALLSCOPE_THREADS=100", "STALLSCOPE_THRESHOLD=lock=50,fsync=200",
			     NULL};
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	struct recording scene;
	char line[64], path[PATH_MAX], *maps = NULL;
	uint64_t read_ns;
	struct stat st;
	bool truncated;

	recording_start(&scene, "stay", directory, env);
	CHECK(recording_read_line(&scene, line, sizeof(line)));
	CHECK_STRING(line, "recorded");
	ring = recording_open(directory, scene.pid);
	const struct stall_ring_header *header = stall_ring_header(ring);
	CHECK_INT(stat(stall_ring_path(ring), &st), 0);
	CHECK_INT(st.st_mode & 07777, 0600);
	check_layout(header, st.st_size);
	check_identity(header, scene.pid);
	CHECK_INT(header->slot_count, 100);
	volatile struct stall_ring_header *live = stall_ring_live(ring);
	CHECK_INT(live->enabled, 1);
	CHECK_INT(live->state, STALL_RING_LIVE);
	CHECK_INT(live->threshold_ns[STALL_WAIT_FUTEX], 50000000);
	CHECK_INT(live->threshold_ns[STALL_WAIT_FSYNC], 200000000);
	CHECK_INT(live->threshold_ns[STALL_WAIT_UNLINK], 100000000);
	CHECK_INT(live->slots_used, 1);
	CHECK(live->waits >= 2);
	CHECK_INT(live->maps_failed, 0);
	CHECK_OK(stall_ring_read_maps(ring, &maps, &read_ns, &truncated));
	CHECK(maps && strstr(maps, header->exe) && strstr(maps, "[stack]") && !truncated);
	CHECK(maps && !strstr(maps, "[heap]"));
	free(maps);
	CHECK_INT(recording_end(&scene, SIGKILL), -SIGKILL);
	CHECK_STRING(scene.text, "");
	CHECK_INT(recording_rings(directory, scene.pid, path), 1); // it stays
	CHECK_INT(unlink(path), 0);
}

static void test_end(const char *directory)
{
	const char *keep[] = {"STALLSCOPE_KEEP_RING=1", NULL};
	struct recording scene;

	recording_start(&scene, "exit", directory, NULL);
	CHECK_INT(recording_end(&scene, 0), 0);
	CHECK_INT(recording_rings(directory, 0, NULL), 0);
	recording_start(&scene, "exit", directory, keep);
	CHECK_INT(recording_end(&scene, 0), 0);
	_cleanup_(stall_ring_closep) struct stall_ring *ring = recording_open(directory, scene.pid);
	CHECK_INT(stall_ring_live(ring)->state, STALL_RING_ENDED);
	unlink(stall_ring_path(ring));
}

static void test_fork(const char *directory)
{
	const char *keep[] = {"STALLSCOPE_KEEP_RING=1", NULL};
	struct recording scene;
	char line[64] = "";

	recording_start(&scene, "fork", directory, keep);
	CHECK(recording_read_line(&scene, line, sizeof(line)));
	pid_t child = atoi(line);
	CHECK_INT(recording_end(&scene, 0), 0);
	CHECK_INT(recording_rings(directory, 0, NULL), 2);
	_cleanup_(stall_ring_closep) struct stall_ring *of_child = recording_open(directory, child);
	_cleanup_(stall_ring_closep) struct stall_ring *of_parent =
		recording_open(directory, scene.pid);
	CHECK_INT(stall_ring_header(of_child)->pid, child);
	CHECK_INT(stall_ring_live(of_child)->state, STALL_RING_ENDED);
	CHECK_INT(stall_ring_live(of_parent)->state, STALL_RING_LIVE);
	CHECK_INT(stall_ring_live(of_child)->slots_used, 1);
	CHECK_INT(stall_ring_live(of_parent)->slots_used, 1);
	unlink(stall_ring_path(of_child));
	unlink(stall_ring_path(of_parent));
}

static void test_two(const char *directory)
{
	struct recording scenes[2];
	char line[64];

	for (int i = 0; i < 2; i++) {
		recording_start(&scenes[i], "stay", directory, NULL);
		CHECK(recording_read_line(&scenes[i], line, sizeof(line)));
	}
	CHECK_INT(recording_rings(directory, 0, NULL), 2);
	for (int i = 0; i < 2; i++) {
		struct stall_ring *ring = recording_open(directory, scenes[i].pid);
		CHECK_INT(stall_ring_header(ring)->pid, scenes[i].pid);
		unlink(stall_ring_path(ring));
		stall_ring_close(ring);
		recording_end(&scenes[i], SIGKILL);
	}
}

// One line, and the program continues.
static void check_refused(const char *scene_name, const char *directory, const char *words)
{
	struct recording scene;
	char line[64] = "";

	recording_start(&scene, scene_name, directory, NULL);
	CHECK(recording_read_line(&scene, line, sizeof(line)));
	recording_end(&scene, SIGKILL);
	CHECK_STRING(line, "nothing");
	CHECK_INT(recording_lines(scene.text), 1);
	CHECK(strstr(scene.text, "stallscope: nothing is recorded: ") == scene.text);
	CHECK(strstr(scene.text, words) != NULL);
}

static void test_refused(const char *directory)
{
	char missing[PATH_MAX + 16];

	snprintf(missing, sizeof(missing), "%s/missing", directory);
	check_refused("stay", missing, "no such folder");
	check_refused("stay", "/proc", "/proc");
	if (geteuid()) {
		printf("full and read-only folders: not root\n");
		return;
	}
	check_refused("ordinary-user", directory, "not permitted"); // mkdtemp(3) makes it 0700
	CHECK_INT(mount("none", directory, "tmpfs", MS_RDONLY, NULL), 0);
	check_refused("stay", directory, "read-only");
	recording_unmount(directory);
	CHECK_INT(mount("none", directory, "tmpfs", 0, "size=4k,mode=700"), 0);
	check_refused("stay", directory, "no space left");
	CHECK_INT(recording_rings(directory, 0, NULL), 0);
	recording_unmount(directory);
}

static uint64_t sum_of_lost(const volatile struct stall_ring_header *header)
{
	uint64_t sum = 0;

	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		sum += header->lost[i];
	return sum;
}

// What there is no room for is lost and counted, and no SIGBUS.
static void check_short_of_room(const char *scene_name, const char *directory,
				const char *const *env)
{
	struct recording scene;
	char line[64] = "";

	recording_start(&scene, scene_name, directory, env);
	CHECK(recording_read_line(&scene, line, sizeof(line)));
	CHECK_STRING(line, "recorded");
	struct stall_ring *ring = recording_open(directory, scene.pid);
	CHECK(sum_of_lost(stall_ring_live(ring)) > 0);
	CHECK_INT(recording_end(&scene, SIGKILL), -SIGKILL);
	CHECK_STRING(scene.text, "");
	unlink(stall_ring_path(ring));
	stall_ring_close(ring);
}

static void test_short_of_room(const char *directory)
{
	if (geteuid()) {
		printf("a folder that is full soon: not root\n");
		return;
	}
	CHECK_INT(mount("none", directory, "tmpfs", 0, "size=200k,mode=700"), 0);
	check_short_of_room("many", directory, NULL);
	recording_unmount(directory);
	CHECK_INT(mount("none", directory, "tmpfs", 0, "size=5m,mode=700"), 0);
	check_short_of_room("old-kernel", directory, NULL);
	recording_unmount(directory);
}

static void test_old_kernel(const char *directory)
{
	struct recording scene;
	char line[64] = "";
	struct stat st;

	recording_start(&scene, "old-kernel", directory, NULL);
	CHECK(recording_read_line(&scene, line, sizeof(line)));
	CHECK_STRING(line, "recorded");
	struct stall_ring *ring = recording_open(directory, scene.pid);
	CHECK_INT(stat(stall_ring_path(ring), &st), 0);
	check_layout(stall_ring_header(ring), st.st_size);
	CHECK(st.st_size < 16000000);
	CHECK(st.st_blocks * 512 >= st.st_size); // all of it is there
	CHECK_INT(stall_ring_header(ring)->slot_count, 1024);
	recording_end(&scene, SIGKILL);
	unlink(stall_ring_path(ring));
	stall_ring_close(ring);
}

// A file beyond RLIMIT_FSIZE would be a SIGXFSZ.
static void test_file_limit(const char *directory)
{
	check_refused("file-limit", directory, "limit of file sizes");
}

static void check_environment(const char *directory, const char *value)
{
	const char *env[] = {value, NULL};
	struct recording scene;
	char line[64] = "";

	recording_start(&scene, "stay", directory, env);
	CHECK(recording_read_line(&scene, line, sizeof(line)));
	CHECK_STRING(line, "recorded");
	struct stall_ring *ring = recording_open(directory, scene.pid);
	CHECK_INT(stall_ring_live(ring)->threshold_ns[STALL_WAIT_FUTEX], 100000000);
	CHECK_INT(stall_ring_live(ring)->enabled, 1);
	recording_end(&scene, SIGKILL);
	CHECK_INT(recording_lines(scene.text), 1);
	CHECK(strstr(scene.text, "is not understood") != NULL);
	unlink(stall_ring_path(ring));
	stall_ring_close(ring);
}

static void test_environment(const char *directory)
{
	const char *values[] = {
		"STALLSCOPE_THRESHOLD=lock",
		"STALLSCOPE_THRESHOLD=lock=-1",
		"STALLSCOPE_THRESHOLD=99999999999999999999",
		"STALLSCOPE_THRESHOLD=lock=1x",
		"STALLSCOPE_THRESHOLD=nosuchkindofwaitwithalongname=1",
		"STALLSCOPE_THRESHOLD==",
		"STALLSCOPE_THREADS=0",
		"STALLSCOPE_THREADS=16385",
		"STALLSCOPE_THREADS=9999999999999999999999",
		"STALLSCOPE_OFF=yes",
		"STALLSCOPE_KEEP_RING=maybe",
		"XDG_RUNTIME_DIR=relative",
	};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		check_environment(directory, values[i]);
}

static void test_off(const char *directory)
{
	const char *env[] = {"STALLSCOPE_OFF=1", NULL};
	struct recording scene;
	char line[64] = "";

	recording_start(&scene, "stay", directory, env);
	CHECK(recording_read_line(&scene, line, sizeof(line)));
	_cleanup_(stall_ring_closep) struct stall_ring *ring = recording_open(directory, scene.pid);
	CHECK_INT(stall_ring_live(ring)->enabled, 0);
	CHECK_INT(stall_ring_live(ring)->waits, 0);
	recording_end(&scene, SIGKILL);
	unlink(stall_ring_path(ring));
}

// Of those that died the latest four stay.
static void test_stale(const char *directory)
{
	struct recording scene;
	char line[64], path[PATH_MAX];
	pid_t pids[7];

	for (int i = 0; i < 7; i++) {
		recording_start(&scene, "stay", directory, NULL);
		CHECK(recording_read_line(&scene, line, sizeof(line)));
		recording_end(&scene, SIGKILL);
		pids[i] = scene.pid;
	}
	CHECK_INT(recording_rings(directory, 0, NULL), 5);
	for (int i = 0; i < 7; i++)
		CHECK_INT(recording_rings(directory, pids[i], NULL), i >= 2);
	while (recording_rings(directory, 0, path))
		unlink(path);
}

static const struct {
	const char *name;
	int (*run)(void);
} scenes[] = {
	{"stay", print_and_wait},
	{"exit", scene_exit},
	{"fork", scene_fork},
	{"many", scene_many},
	{"file-limit", scene_file_limit},
	{"old-kernel", scene_old_kernel},
	{"ordinary-user", scene_ordinary_user},
};

int main(int argc, char **argv)
{
	char directory[PATH_MAX];

	for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(scenes[0]); i++)
		if (!strcmp(argv[1], scenes[i].name))
			return scenes[i].run();
	recording_make_directory(directory);
	test_layout(directory);
	test_end(directory);
	test_fork(directory);
	test_two(directory);
	test_refused(directory);
	test_short_of_room(directory);
	test_old_kernel(directory);
	test_file_limit(directory);
	test_environment(directory);
	test_off(directory);
	test_stale(directory);
	recording_remove_directory(directory);
	return check_done();
}
