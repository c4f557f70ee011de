// SPDX-License-Identifier: Apache-2.0
// The file of a ring: what is in it from the start, and on kernels and with options that few have.
// Servers that fork, die or have no room for it: tests/root/test_inproc_faults.py.
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "proc/target.h"
#include "recording.h"
#include "refused_call.h"

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
		recording_create(&threads[i], NULL, wait_often, NULL);
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
	if (!refuse_call(SYS_madvise, EINVAL, 2, BPF_JEQ, 23))
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

// Runs until it is ended, with its ring open.
struct run {
	struct recording scene;
	struct stall_ring *ring;
};

static void run_start(struct run *run, const char *scene, const char *directory,
		      const char *const *env)
{
	char line[64] = "";

	recording_start(&run->scene, scene, directory, env);
	CHECK(recording_read_line(&run->scene, line, sizeof(line)));
	CHECK_STRING(line, "recorded");
	run->ring = recording_open(directory, run->scene.pid);
}

static void run_end(struct run *run)
{
	CHECK_INT(recording_end(&run->scene, SIGKILL), -SIGKILL);
	CHECK_INT(unlink(stall_ring_path(run->ring)), 0); // it stays
	stall_ring_close(run->ring);
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
	struct stall_target target;
	char exe[PATH_MAX], own[256] = "";

	snprintf(exe, sizeof(exe), "/proc/%d/exe", pid);
	CHECK(readlink(exe, own, sizeof(own) - 1) > 0);
	CHECK_STRING(header->exe, own);
	CHECK_INT(header->pid, pid);
	CHECK_INT(header->uid, geteuid());
	CHECK_OK(stall_target_init(&target, pid));
	CHECK_INT(header->start_time, target.start_time);
	stall_target_deinit(&target);
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
	struct run run;
	char *maps = NULL;
	uint64_t read_ns;
	struct stat st;
	bool truncated;

	run_start(&run, "stay", directory, env);
	const struct stall_ring_header *header = stall_ring_header(run.ring);
	CHECK_INT(stat(stall_ring_path(run.ring), &st), 0);
	CHECK_INT(st.st_mode & 07777, 0600);
	check_layout(header, st.st_size);
	check_identity(header, run.scene.pid);
	CHECK_INT(header->slot_count, 100);
	volatile struct stall_ring_header *live = stall_ring_live(run.ring);
	CHECK_INT(live->enabled, 1);
	CHECK_INT(live->state, STALL_RING_LIVE);
	CHECK_INT(live->threshold_ns[STALL_WAIT_FUTEX], 50000000);
	CHECK_INT(live->threshold_ns[STALL_WAIT_FSYNC], 200000000);
	CHECK_INT(live->threshold_ns[STALL_WAIT_UNLINK], 100000000);
	CHECK_INT(live->slots_used, 1);
	CHECK(live->waits >= 2);
	CHECK_INT(live->maps_failed, 0);
	CHECK_OK(stall_ring_read_maps(run.ring, &maps, &read_ns, &truncated));
	CHECK(maps && strstr(maps, header->exe) && strstr(maps, "[stack]") && !truncated);
	CHECK(maps && !strstr(maps, "[heap]"));
	free(maps);
	run_end(&run);
	CHECK_STRING(run.scene.text, "");
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

static uint64_t sum_of_lost(const volatile struct stall_ring_header *header)
{
	uint64_t sum = 0;

	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		sum += header->lost[i];
	return sum;
}

// What does not fit is lost and counted, and raises no SIGBUS.
static void test_short_of_room(const char *directory)
{
	struct run run;

	if (!recording_mount(directory, "size=5m,mode=700"))
		return;
	run_start(&run, "old-kernel", directory, NULL);
	CHECK(sum_of_lost(stall_ring_live(run.ring)) > 0);
	run_end(&run);
	CHECK_STRING(run.scene.text, "");
	recording_unmount(directory);
}

static void test_old_kernel(const char *directory)
{
	struct run run;
	struct stat st;

	run_start(&run, "old-kernel", directory, NULL);
	CHECK_INT(stat(stall_ring_path(run.ring), &st), 0);
	check_layout(stall_ring_header(run.ring), st.st_size);
	CHECK(st.st_size < 16000000);
	CHECK(st.st_blocks * 512 >= st.st_size); // all of it is there
	CHECK_INT(stall_ring_header(run.ring)->slot_count, 1024);
	run_end(&run);
}

// One line with these words, and the program continues.
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
	check_refused("stay", "/no/such/folder", "no such folder");
	check_refused("stay", "/proc", "/proc");
	check_refused("file-limit", directory, "limit of file sizes"); // else a SIGXFSZ
	if (geteuid()) {
		printf("full folders and those of others: not root\n");
		return;
	}
	check_refused("ordinary-user", directory, "not permitted"); // mkdtemp(3) makes it 0700
	if (!recording_mount(directory, "size=4k,mode=700"))
		return;
	check_refused("stay", directory, "no space left");
	recording_unmount(directory);
}

static void check_environment(const char *directory, const char *value)
{
	const char *env[] = {value, NULL};
	struct run run;

	run_start(&run, "stay", directory, env);
	CHECK_INT(stall_ring_live(run.ring)->threshold_ns[STALL_WAIT_FUTEX], 100000000);
	CHECK_INT(stall_ring_live(run.ring)->enabled, 1);
	run_end(&run);
	CHECK_INT(recording_lines(run.scene.text), 1);
	CHECK(strstr(run.scene.text, "is not understood") != NULL);
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

static const struct {
	const char *name;
	int (*run)(void);
} scenes[] = {
	{"stay", print_and_wait},
	{"exit", scene_exit},
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
	test_short_of_room(directory);
	test_old_kernel(directory);
	test_refused(directory);
	test_environment(directory);
	test_off(directory);
	recording_remove_directory(directory);
	return check_done();
}
