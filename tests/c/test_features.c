// SPDX-License-Identifier: Apache-2.0
#include "base/features.h"
#include "ebpf/bpf_features.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#ifdef STALL_HAVE_BPF
#include <bpf/bpf.h>

#define BPF_FEATURES stall_bpf_features
#define BPF_FEATURE_COUNT stall_bpf_feature_count
#define WAITS_FEATURES stall_waits_features
#define WAITS_FEATURE_COUNT stall_waits_feature_count
#else
#define BPF_FEATURES NULL
#define BPF_FEATURE_COUNT ((size_t)0)
#define WAITS_FEATURES NULL
#define WAITS_FEATURE_COUNT ((size_t)0)
#endif

// What is missing is one line: why, and behind "; " how to fix it.
static size_t count_missing(const struct stall_feature *features, size_t count)
{
	size_t missing = 0;

	for (size_t i = 0; i < count; i++) {
		struct stall_error *err = features[i].check();

		if (!err)
			continue;
		missing++;
		const char *fix = strstr(err->message, "; ");
		if (!fix || fix == err->message || !fix[2])
			fprintf(stderr, "%s: %s\n", features[i].name, err->message);
		CHECK(fix && fix > err->message && fix[2]);
		stall_error_destroy(err);
	}
	return missing;
}

static const struct stall_feature *find(const char *name)
{
	for (size_t i = 0; i < stall_feature_count; i++) {
		if (!strcmp(stall_features[i].name, name))
			return &stall_features[i];
	}
	return NULL;
}

static void test_names(void)
{
	for (size_t i = 0; i < stall_feature_count; i++) {
		CHECK(stall_features[i].name[0]);
		CHECK(find(stall_features[i].name) == &stall_features[i]);
	}
}

#ifdef STALL_HAVE_BPF
#define LARGE_PAGE 16384

static bool has_large_pages;

long __sysconf(int name);

// In place of the C library's, and of libbpf's: those of a kernel with larger pages.
long sysconf(int name)
{
	return has_large_pages && name == _SC_PAGESIZE ? LARGE_PAGE : __sysconf(name);
}

int bpf_map_create(enum bpf_map_type type, const char *name, __u32 key_size, __u32 value_size,
		   __u32 max_entries, const struct bpf_map_create_opts *options)
{
	__typeof__(bpf_map_create) *real = dlsym(RTLD_NEXT, "bpf_map_create");

	if (!has_large_pages)
		return real(type, name, key_size, value_size, max_entries, options);
	errno = EINVAL;
	return type == BPF_MAP_TYPE_RINGBUF && max_entries % LARGE_PAGE
		       ? -EINVAL
		       : memfd_create("map", MFD_CLOEXEC);
}

static void test_large_pages(void)
{
	for (size_t i = 0; i < stall_bpf_feature_count; i++) {
		if (strcmp(stall_bpf_features[i].name, "bpf-ring-buffer"))
			continue;
		has_large_pages = true;
		CHECK_OK(stall_bpf_features[i].check());
		has_large_pages = false;
	}
}
#else
static void test_large_pages(void)
{
}
#endif

// As nobody, without capabilities: some things work, and what does not says which are missing.
static void test_unprivileged(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
			_exit(2);
		prctl(PR_SET_DUMPABLE, 0); // as the probe does
		check_failed = check_passed = 0;
		struct stall_error *err = find("capabilities")->check();
		CHECK(err && strstr(err->message, "CAP_BPF") && strstr(err->message, "setcap "));
		stall_error_destroy(err);
		CHECK_OK(find("pidfd")->check());
		CHECK_OK(find("process-vm-readv")->check());
		CHECK(count_missing(stall_features, stall_feature_count) >= 1);
		CHECK(!BPF_FEATURE_COUNT || count_missing(BPF_FEATURES, BPF_FEATURE_COUNT) >= 1);
		// Each part of the wait programs takes capabilities.
		CHECK_INT(count_missing(WAITS_FEATURES, WAITS_FEATURE_COUNT), WAITS_FEATURE_COUNT);
		_exit(check_failed != 0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	CHECK_INT(WEXITSTATUS(status), 0);
}

int main(void)
{
	test_names();
	test_large_pages();
	printf("%zu, %zu and %zu missing here\n",
	       count_missing(stall_features, stall_feature_count),
	       count_missing(BPF_FEATURES, BPF_FEATURE_COUNT),
	       count_missing(WAITS_FEATURES, WAITS_FEATURE_COUNT));
	if (geteuid() == 0)
		test_unprivileged();
	return check_done();
}
