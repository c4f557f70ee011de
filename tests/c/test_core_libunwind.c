// SPDX-License-Identifier: Apache-2.0
// test-core_libunwind [CORE EXE [SYSROOT]]: the stacks of all threads of a core file against
// libunwind's; by default of cores of targets.
#include <fcntl.h>
#include <libunwind.h>

#include "base/cleanup.h"
#include "check.h"
#include "core/core.h"
#include "core_file.h"
#include "unwind/elf_file.h"
#include "unwind/worker.h"

#define MAX_MODULES 256
#define MAX_SHOWN 10

// Not in its headers, and what perf uses: a search in .eh_frame_hdr.
#define search_table UNW_OBJ(dwarf_search_unwind_table)
extern int search_table(unw_addr_space_t, unw_word_t, unw_dyn_info_t *, unw_proc_info_t *, int,
			void *);

struct module {
	struct stall_elf *elf;
	uint64_t start, end; // where its code is
	uint64_t bias;
	uint64_t table; // .eh_frame_hdr; 0: there is none
	uint32_t entries;
};

// What libunwind is asked about.
struct peer {
	const struct stall_snapshot *snapshot;
	const struct stall_thread *thread;
	struct module modules[MAX_MODULES];
	size_t module_count;
	bool is_guess; // nothing covered the frame: what follows comes from the frame pointer
};

static struct stall_arena arena;
static struct stall_worker *worker;

static void open_module(struct peer *peer, const struct stall_module *module)
{
	struct module *ret = &peer->modules[peer->module_count];
	struct {
		uint8_t encodings[4];
		int32_t frame;
		uint32_t entries;
	} header;

	if (module->fd < 0 || peer->module_count == MAX_MODULES)
		return;
	*ret = (struct module){.start = module->start, .end = module->end};
	CHECK_OK(stall_elf_open(fcntl(module->fd, F_DUPFD_CLOEXEC, 3), &ret->elf));
	CHECK_OK(stall_elf_bias(ret->elf, module->start, module->offset, &ret->bias));
	peer->module_count++;
	for (size_t i = 0; i < ret->elf->segment_count; i++) {
		const Elf64_Phdr *segment = &ret->elf->segments[i];

		if (segment->p_type != PT_GNU_EH_FRAME)
			continue;
		CHECK_OK(stall_elf_read(ret->elf, segment->p_offset, &header, sizeof(header)));
		ret->table = ret->bias + segment->p_vaddr;
		ret->entries = header.entries;
	}
}

// What the core leaves out is as it is in the files.
static bool read_files(const struct peer *peer, uint64_t address, uint64_t *ret)
{
	for (size_t i = 0; i < peer->module_count; i++) {
		const struct module *module = &peer->modules[i];

		for (size_t k = 0; k < module->elf->segment_count; k++) {
			const Elf64_Phdr *load = &module->elf->segments[k];
			uint64_t at = address - module->bias - load->p_vaddr;

			if (load->p_type != PT_LOAD || at >= load->p_filesz)
				continue;
			struct stall_error *err =
				stall_elf_read(module->elf, load->p_offset + at, ret, sizeof(*ret));
			stall_error_destroy(err);
			return !err;
		}
	}
	return false;
}

static int access_mem(unw_addr_space_t space, unw_word_t address, unw_word_t *value, int write,
		      void *arg)
{
	const struct peer *peer = arg;
	uint64_t word;

	if (write)
		return -UNW_EINVAL;
	if (stall_snapshot_read(peer->snapshot, 0, address, &word, 8) != 8 &&
	    !read_files(peer, address, &word))
		return -UNW_EINVAL;
	*value = word;
	return 0;
}

static int access_reg(unw_addr_space_t space, unw_regnum_t reg, unw_word_t *value, int write,
		      void *arg)
{
	const struct peer *peer = arg;

	if (write || reg < 0 || reg >= STALL_REGS)
		return -UNW_EBADREG;
	*value = peer->thread->regs.value[reg];
	return 0;
}

static int find_proc_info(unw_addr_space_t space, unw_word_t ip, unw_proc_info_t *info,
			  int need_unwind_info, void *arg)
{
	struct peer *peer = arg;
	int rc = -UNW_ENOINFO;

	for (size_t i = 0; i < peer->module_count; i++) {
		const struct module *module = &peer->modules[i];
		unw_dyn_info_t table = {
			.format = UNW_INFO_FORMAT_REMOTE_TABLE,
			.start_ip = module->start,
			.end_ip = module->end,
			.u.rti = {.segbase = module->table,
				  .table_data = module->table + 12,
				  .table_len = module->entries}, // of a word each
		};

		if (ip >= module->start && ip < module->end && module->table)
			rc = search_table(space, ip, &table, info, need_unwind_info, arg);
	}
	peer->is_guess |= rc < 0;
	return rc;
}

static void put_unwind_info(unw_addr_space_t space, unw_proc_info_t *info, void *arg)
{
}

static int get_dyn_info_list(unw_addr_space_t space, unw_word_t *ret, void *arg)
{
	return -UNW_ENOINFO;
}

static int access_fpreg(unw_addr_space_t space, unw_regnum_t reg, unw_fpreg_t *value, int write,
			void *arg)
{
	return -UNW_EINVAL;
}

static int resume(unw_addr_space_t space, unw_cursor_t *cursor, void *arg)
{
	return -UNW_EINVAL;
}

static int get_proc_name(unw_addr_space_t space, unw_word_t address, char *name, size_t size,
			 unw_word_t *offset, void *arg)
{
	return -UNW_EINVAL;
}

static unw_accessors_t accessors = {
	.find_proc_info = find_proc_info,
	.put_unwind_info = put_unwind_info,
	.get_dyn_info_list_addr = get_dyn_info_list,
	.access_mem = access_mem,
	.access_reg = access_reg,
	.access_fpreg = access_fpreg,
	.resume = resume,
	.get_proc_name = get_proc_name,
};

// Returns the number of frames.
static uint32_t walk(struct peer *peer, unw_addr_space_t space, uint64_t pcs[STALL_MAX_FRAMES])
{
	unw_cursor_t cursor;
	uint32_t count = 0;
	unw_word_t pc;

	peer->is_guess = false;
	CHECK_INT(unw_init_remote(&cursor, space, peer), 0);
	do {
		// A worker of io_uring has no registers, and one frame all the same.
		if (unw_get_reg(&cursor, UNW_REG_IP, &pc) < 0 || (pc == 0 && count))
			break;
		pcs[count++] = pc;
	} while (count < STALL_MAX_FRAMES && unw_step(&cursor) > 0 && !peer->is_guess);
	return count;
}

static bool is_same(const struct stall_unwound *unwound, const struct stall_stack *stack,
		    const uint64_t *pcs, uint32_t count)
{
	bool same = stack->count == count;

	for (uint32_t i = 0; same && i < count; i++)
		same = unwound->frames[stack->frames[i]].pc == pcs[i];
	return same;
}

static void show(const struct stall_thread *thread, const struct stall_unwound *unwound,
		 const struct stall_stack *stack, const uint64_t *pcs, uint32_t count)
{
	fprintf(stderr, "thread %d, ours (end %d):", thread->tid, stack->end);
	for (uint32_t i = 0; i < stack->count; i++)
		fprintf(stderr, " %#lx", unwound->frames[stack->frames[i]].pc);
	fprintf(stderr, "\n  libunwind:");
	for (uint32_t i = 0; i < count; i++)
		fprintf(stderr, " %#lx", pcs[i]);
	fprintf(stderr, "\n");
}

static void compare(struct peer *peer, const struct stall_unwound *unwound, const char *what)
{
	unw_addr_space_t space = unw_create_addr_space(&accessors, 0);
	uint64_t pcs[STALL_MAX_FRAMES];
	size_t different = 0, frames = 0;

	unw_set_caching_policy(space, UNW_CACHE_GLOBAL);
	for (size_t i = 0; i < peer->snapshot->thread_count; i++) {
		const struct stall_stack *stack = &unwound->stacks[i];

		peer->thread = &peer->snapshot->threads[i];
		uint32_t count = walk(peer, space, pcs);
		frames += count;
		if (!is_same(unwound, stack, pcs, count) && different++ < MAX_SHOWN)
			show(peer->thread, unwound, stack, pcs, count);
	}
	unw_destroy_addr_space(space);
	printf("%s: %zu threads, %zu frames\n", what, peer->snapshot->thread_count, frames);
	CHECK(frames > peer->snapshot->thread_count);
	CHECK_INT(different, 0);
}

static void compare_core(int core, const struct stall_core_options *options, const char *what)
{
	struct stall_snapshot *snapshot = NULL;
	struct stall_unwound unwound = {};
	struct peer peer = {};

	arena.used = 0;
	CHECK_OK(stall_core_create(&arena, core, options, &snapshot));
	if (!snapshot)
		return;
	CHECK_OK(stall_worker_unwind(worker, snapshot, &unwound));
	CHECK(!unwound.partial);
	peer.snapshot = snapshot;
	for (size_t i = 0; i < snapshot->processes[0].maps->module_count; i++)
		open_module(&peer, &snapshot->processes[0].maps->modules[i]);
	compare(&peer, &unwound, what);
	for (size_t i = 0; i < peer.module_count; i++)
		stall_elf_destroy(peer.modules[i].elf);
	stall_unwound_deinit(&unwound);
	stall_snapshot_destroy(snapshot);
}

static struct stall_core_options core_options(void)
{
	return (struct stall_core_options){.files = STALL_CORE_NO_FILES,
					   .max_stack = STALL_DEFAULT_MAX_STACK,
					   .max_threads = STALL_DEFAULT_MAX_THREADS};
}

static void compare_file(const char *core, const char *exe, const char *sysroot)
{
	struct stall_core_options options = core_options();
	int fd = open(core, O_RDONLY | O_CLOEXEC);

	options.files.exe_fd = open(exe, O_RDONLY | O_CLOEXEC);
	options.exe = exe;
	if (sysroot)
		options.files.sysroot = open(sysroot, O_PATH | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0 && options.files.exe_fd >= 0 && (!sysroot || options.files.sysroot >= 0));
	compare_core(fd, &options, core);
}

static void compare_targets(void)
{
	const struct stall_core_options options = core_options();
	char module[PATH_MAX];

	target_path("module.so", module);
	const char *const targets[][4] = {{"frames", module},
					  {"threads", "8", "20"},
					  {"threads-nopie", "8", "20"},
					  {"threads-static-pie", "8", "20"}};
	for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		struct target_process target = {};

		if (!target_start(&target, targets[i])) {
			printf("skipped: %s is not built\n", targets[i][0]);
			continue;
		}
		int core = dump_core(&target);
		CHECK(core >= 0);
		compare_core(core, &options, targets[i][0]);
		target_stop(&target);
	}
}

int main(int argc, char **argv)
{
	static const struct stall_worker_options options = {.deadline_ms = 20000};

	char dir[] = "/tmp/stall-core-XXXXXX";

	CHECK_OK(stall_arena_init(&arena, (size_t)1 << 30));
	CHECK_OK(stall_worker_create(&arena, &options, &worker));
	if (argc > 2)
		compare_file(argv[1], argv[2], argc > 3 ? argv[3] : NULL);
	else if (mkdtemp(dir) && cores_are_written_to(dir))
		compare_targets();
	else
		printf("skipped: no core files here\n");
	rmdir(dir);
	stall_worker_destroy(worker);
	stall_arena_deinit(&arena);
	return check_done();
}
