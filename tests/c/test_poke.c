// SPDX-License-Identifier: Apache-2.0
// Hashes, texts of options, and changes of this process's child, whose memory it shares until then.
#include "poke/poke.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/sha256.h"
#include "check.h"
#include "poke/poke_files.h"
#include "poke/poke_process.h"
#include "poke/poke_record.h"
#include "poke/poke_word.h"

static volatile uint64_t word __attribute__((aligned(8)));
static const uint64_t constant = 7;

static bool fails(struct stall_error *err, const char *text)
{
	bool found = err && strstr(err->message, text);

	if (!found)
		fprintf(stderr, "got: %s\n", err ? err->message : "no error");
	stall_error_destroy(err);
	return found;
}

// Of FIPS 180-4's examples.
static void test_hash(void)
{
	static const char *const known[][2] = {
		{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
		 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
	};
	char text[STALL_SHA256_TEXT];
	struct stall_sha256 hash;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		stall_sha256_init(&hash);
		stall_sha256_add(&hash, known[i][0], strlen(known[i][0]));
		stall_sha256_finish(&hash, text);
		CHECK_STRING(text, known[i][1]);
	}
	stall_sha256_init(&hash);
	for (int i = 0; i < 100000; i++)
		stall_sha256_add(&hash, "aaaaaaaaaa", 10);
	stall_sha256_finish(&hash, text);
	CHECK_STRING(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_options(void)
{
	static const char *const wrong_words[] = {
		"",	      "1000",	      "1000:8:0", "1000:8:0:1:2", "1000:3:0:1",
		"1000:8:1:1", "1000:1:0:100", "x:8:0:1",  "1000:8:0:1 ",  "1000:0:0:1",
	};
	static const char *const wrong_files[] = {"", "3", "3:4", "-1:2:3", "3:4:5:6", "a:b:c"};
	struct stall_poke_identity identity;
	struct stall_poke_word parsed;
	struct stall_poke_file file;
	char text[160];

	CHECK_OK(stall_poke_word_parse("f6e2c8:8:0:1", &parsed));
	CHECK(parsed.address == 0xf6e2c8 && parsed.size == 8 && parsed.new_value == 1);
	for (size_t i = 0; i < sizeof(wrong_words) / sizeof(wrong_words[0]); i++)
		CHECK(fails(stall_poke_word_parse(wrong_words[i], &parsed), "--word"));
	CHECK_OK(stall_poke_file_parse("3:65024:9986374", &file));
	CHECK(file.fd == 3 && file.dev == 65024 && file.ino == 9986374);
	for (size_t i = 0; i < sizeof(wrong_files) / sizeof(wrong_files[0]); i++)
		CHECK(fails(stall_poke_file_parse(wrong_files[i], &file), "--file"));
	snprintf(text, sizeof(text), "1:2:3:%064d", 5);
	CHECK_OK(stall_poke_identity_parse(text, &identity));
	CHECK(identity.start_time == 1 && identity.start_stack == 2 && identity.base == 3);
	CHECK(!identity.run[0]);
	CHECK(fails(stall_poke_identity_parse("1:2:3:ab", &identity), "--process"));
	snprintf(text, sizeof(text), "1:2:3:%064d:%064d", 5, 6);
	CHECK_OK(stall_poke_identity_parse(text, &identity));
	CHECK(identity.run[63] == '6');
	text[80] = 0;
	CHECK(fails(stall_poke_identity_parse(text, &identity), "--process"));
	text[10] = 'g';
	CHECK(fails(stall_poke_identity_parse(text, &identity), "--process"));
}

static void test_word(pid_t child)
{
	struct stall_poke poke = {
		.word = {.address = (uintptr_t)&word, .size = 8, .old_value = 0, .new_value = 1},
	};
	struct stall_poke_program program;
	enum stall_poke_state state;

	CHECK_OK(stall_poke_process_init(&poke.process, child, true, &program));
	CHECK_OK(stall_poke_process_check(&poke.process));
	CHECK_OK(stall_poke_check(&poke));
	CHECK_OK(stall_poke_state(&poke, &state));
	CHECK_INT(state, STALL_POKE_OLD);
	CHECK_OK(stall_poke_set(&poke));
	CHECK_INT(word, 0); // that of this process
	CHECK_OK(stall_poke_state(&poke, &state));
	CHECK_INT(state, STALL_POKE_NEW);
	CHECK(fails(stall_poke_set(&poke), "somebody else changed it"));
	CHECK_OK(stall_poke_undo(&poke, &state));
	CHECK_INT(state, STALL_POKE_NEW);
	CHECK_OK(stall_poke_undo(&poke, &state));
	CHECK_INT(state, STALL_POKE_OLD);
	CHECK_OK(stall_poke_word_change(&poke.process, &poke.word, 0, 77));
	CHECK(fails(stall_poke_undo(&poke, &state), "somebody else changed it"));
	poke.word.address = (uintptr_t)&constant & ~UINT64_C(7);
	CHECK(fails(stall_poke_check(&poke), "may not write to its own memory"));
	poke.word.address = (uintptr_t)&word + 1;
	CHECK(fails(stall_poke_check(&poke), "is not aligned"));
	poke.word.address = 8;
	CHECK(fails(stall_poke_check(&poke), "has no memory"));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	poke.word.address = (uintptr_t)&word;
	CHECK(fails(stall_poke_set(&poke), "has ended"));
	stall_poke_process_deinit(&poke.process);
}

// The memory that was opened is not that of the program which the process executes then.
static void test_exec(void)
{
	struct stall_poke poke = {
		.word = {.address = (uintptr_t)&word, .size = 8, .old_value = 0, .new_value = 1},
	};
	struct stall_poke_program program;
	enum stall_poke_state state;
	int go[2], executed[2];
	uint64_t value = 1;
	char byte;

	CHECK_INT(pipe2(go, O_CLOEXEC), 0);
	CHECK_INT(pipe2(executed, O_CLOEXEC), 0);
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(go[1]);
		if (read(go[0], &byte, 1) == 0)
			execl("/proc/self/exe", "again", "again", NULL);
		_exit(1);
	}
	close(executed[1]);
	CHECK_OK(stall_poke_process_init(&poke.process, child, true, &program));
	CHECK_OK(stall_poke_set(&poke));
	close(go[1]);
	CHECK_INT(read(executed[0], &byte, 1), 0);
	struct stall_error *err =
		stall_poke_memory_write(&poke.process, poke.word.address, &value, sizeof(value));
	CHECK(err && err->code == STALL_ERROR_NO_PROCESS);
	CHECK(fails(err, "has executed a program since"));
	CHECK(fails(stall_poke_process_check(&poke.process), "has executed a program since"));
	CHECK(fails(stall_poke_undo(&poke, &state), "has executed a program since"));
	stall_poke_process_deinit(&poke.process);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(go[0]);
	close(executed[0]);
}

static void test_record(void)
{
	char path[] = "/tmp/stallscope-test-XXXXXX";
	int made = mkstemp(path), fd = -1;

	CHECK_OK(stall_poke_record_open(path, &fd));
	int other = stall_poke_record_reopen(fd);
	CHECK(stall_poke_record_lock(fd, 0));
	CHECK(!stall_poke_record_lock(other, 10));
	stall_poke_record_unlock(fd);
	CHECK(stall_poke_record_lock(other, 0));
	CHECK_OK(stall_poke_record_add(fd, STALL_POKE_WRITTEN, "test", NULL));
	CHECK(!stall_poke_record_is_over(fd));
	// A line that was cut off does not swallow the next one.
	CHECK_INT(write(fd, "{\"event\":\"undo", 14), 14);
	CHECK(!stall_poke_record_is_over(fd));
	CHECK_OK(stall_poke_record_add(fd, STALL_POKE_UNDONE, "test", "new"));
	CHECK(stall_poke_record_is_over(fd));
	close(other);
	close(fd);
	chmod(path, 0640);
	CHECK(fails(stall_poke_record_open(path, &fd), "not a file of this user alone"));
	close(made);
	unlink(path);
	CHECK(fails(stall_poke_record_open(path, &fd), "cannot open the undo record"));
}

int main(int argc, char **argv)
{
	(void)argv;
	while (argc > 1) // after test_exec()
		pause();
	test_hash();
	test_options();
	pid_t child = stall_idle_child_create();
	CHECK(child > 0);
	test_word(child);
	test_exec();
	test_record();
	return check_done();
}
