// SPDX-License-Identifier: Apache-2.0
// A build without libbpf.
#include "storage/storage.h"

struct stall_error *stall_storage_create(const pid_t *pids, size_t pid_count,
					 struct stall_storage **ret)
{
	return stall_error_create(STALL_ERROR_UNSUPPORTED,
				  "this stallscope-probe was built without BPF, which counts "
				  "writes; install libbpf-dev, clang and bpftool, and build it "
				  "again");
}

void stall_storage_destroy(struct stall_storage *storage)
{
}

int stall_storage_fd(const struct stall_storage *storage)
{
	return -1;
}

struct stall_error *stall_storage_dispatch(struct stall_storage *storage)
{
	return NULL;
}

size_t stall_storage_alive(const struct stall_storage *storage)
{
	return 0;
}

struct stall_error *stall_storage_write(struct stall_storage *storage, bool final,
					struct stall_json *json)
{
	return NULL;
}

struct stall_error *stall_storage_write_ended(struct stall_storage *storage,
					      struct stall_json *json)
{
	return NULL;
}
