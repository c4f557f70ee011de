// SPDX-License-Identifier: Apache-2.0
// A job of the worker: two processes that are not there, with the C library's file mapped in them.
#ifndef WORKER_IMAGE_H
#define WORKER_IMAGE_H

#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "snapshot/snapshot.h"
#include "unwind/elf_file.h"
#include "unwind/symbols.h"
#include "unwind/worker_job.h"
#include "unwind/worker_result.h"

#define IMAGE_CODE UINT64_C(0x550000000000)
#define IMAGE_STACK UINT64_C(0x7f0000000000)
#define IMAGE_STACK_SIZE 4096
#define IMAGE_PROCESSES 2
#define IMAGE_THREADS 6
#define IMAGE_REGION (5U << 18) // little more than the least

struct worker_image {
	struct stall_arena arena;
	struct stall_mapping mappings[IMAGE_PROCESSES];
	struct stall_module modules[IMAGE_PROCESSES];
	struct stall_maps maps[IMAGE_PROCESSES];
	struct stall_process processes[IMAGE_PROCESSES];
	struct stall_thread threads[IMAGE_THREADS];
	struct stall_snapshot snapshot;
	// What the processes' memory has at each address, again and again.
	const uint8_t *memory;
	size_t memory_size;
};

static inline size_t worker_image_read(void *arg, uint32_t process, uint64_t address, void *buf,
				       size_t size)
{
	const struct worker_image *image = arg;

	for (size_t i = 0; image->memory_size && i < size; i++)
		((uint8_t *)buf)[i] = image->memory[(address + i) % image->memory_size];
	return image->memory_size ? size : 0;
}

// Where the code of the file is.
static inline Elf64_Phdr worker_image_code(const char *path)
{
	Elf64_Phdr code = {};
	struct stall_elf *elf;

	must(!stall_elf_open(open(path, O_RDONLY | O_CLOEXEC), &elf));
	for (size_t i = 0; i < elf->segment_count; i++)
		if (elf->segments[i].p_type == PT_LOAD && elf->segments[i].p_flags & PF_X)
			code = elf->segments[i];
	must(code.p_memsz);
	stall_elf_destroy(elf);
	return code;
}

static inline void worker_image_init(struct worker_image *image)
{
	static char path[] = "/made/up";
	Dl_info libc;

	must(!stall_arena_init(&image->arena, 1 << 20) && dladdr((void *)(uintptr_t)qsort, &libc));
	const Elf64_Phdr code = worker_image_code(libc.dli_fname);
	for (int i = 0; i < IMAGE_PROCESSES; i++) {
		image->mappings[i] = (struct stall_mapping){
			.start = IMAGE_CODE + (code.p_vaddr & ~4095ULL),
			.end = IMAGE_CODE + code.p_vaddr + code.p_memsz,
			.offset = code.p_offset & ~4095ULL,
			.executable = true,
			.readable = true,
		};
		image->modules[i] = (struct stall_module){
			.path = path,
			.start = image->mappings[i].start,
			.end = image->mappings[i].end,
			.offset = image->mappings[i].offset,
			.fd = open(libc.dli_fname, O_RDONLY | O_CLOEXEC),
		};
		image->maps[i] = (struct stall_maps){
			.mappings = &image->mappings[i],
			.mapping_count = 1,
			.modules = &image->modules[i],
			.module_count = 1,
		};
		image->processes[i] = (struct stall_process){
			.target = {.pid = i + 1, .pidfd = -1, .procfd = -1},
			.exe = i ? NULL : path,
			.maps = &image->maps[i],
		};
	}
	for (int i = 0; i < IMAGE_THREADS; i++)
		image->threads[i] = (struct stall_thread){
			.tid = i + 1,
			.process = (uint32_t)i % IMAGE_PROCESSES,
			.stack_address = IMAGE_STACK,
			.stack_size = IMAGE_STACK_SIZE,
			.stack = stall_arena_alloc(&image->arena, IMAGE_STACK_SIZE),
		};
	image->snapshot = (struct stall_snapshot){
		.arena = &image->arena,
		.backend = "core",
		.memory = {.read = worker_image_read, .arg = image},
		.processes = image->processes,
		.process_count = IMAGE_PROCESSES,
		.threads = image->threads,
		.thread_count = IMAGE_THREADS,
	};
}

// Registers and stacks of the input's bytes, which it uses up. A thread's PC may be in the code.
static inline void worker_image_threads(struct worker_image *image, const uint8_t **data,
					size_t *size)
{
	for (int i = 0; i < IMAGE_THREADS; i++) {
		struct stall_thread *thread = &image->threads[i];
		size_t stack = *size < IMAGE_STACK_SIZE ? *size : IMAGE_STACK_SIZE;
		uint64_t words[4] = {};
		size_t part = *size < sizeof(words) ? *size : sizeof(words);

		memset(thread->stack, 0, IMAGE_STACK_SIZE);
		memcpy(thread->stack, *data, stack);
		memcpy(words, *data, part);
		*data += part;
		*size -= part;
		thread->regs = (struct stall_regs){.valid = (uint32_t)words[3]};
		for (int reg = 0; reg < STALL_REGS; reg++)
			thread->regs.value[reg] = IMAGE_STACK + words[reg % 3] % 8192;
		thread->regs.value[STALL_REG_PC] =
			words[0] >> 63
				? words[0]
				: image->mappings[0].start + words[0] % (image->mappings[0].end -
									 image->mappings[0].start);
	}
}

// Whatever a worker answers: every index and string is sound.
static inline void worker_image_check(const struct stall_snapshot *snapshot,
				      const struct stall_unwound *unwound)
{
	must(unwound->stack_count == snapshot->thread_count);
	for (size_t i = 0; i < unwound->stack_count; i++) {
		const struct stall_stack *stack = &unwound->stacks[i];

		must(stack->count <= STALL_MAX_FRAMES && stack->end <= STALL_UNWIND_NOT_TRIED);
		for (uint32_t k = 0; k < stack->count; k++)
			must(stack->frames[k] < unwound->frame_count);
	}
	for (size_t i = 0; i < unwound->frame_count; i++) {
		const struct stall_frame *frame = &unwound->frames[i];

		must(frame->process < snapshot->process_count);
		must(frame->module == STALL_NO_MODULE ||
		     frame->module < snapshot->processes[frame->process].maps->module_count);
		must(!frame->symbol || strlen(frame->symbol) <= STALL_MAX_LINKAGE);
		must(!frame->linkage || strlen(frame->linkage) <= STALL_MAX_LINKAGE);
	}
	for (size_t i = 0; i < unwound->module_count; i++) {
		const struct stall_module_info *info = &unwound->modules[i];

		must(strlen(info->build_id) < sizeof(info->build_id) && info->symbols && info->cfi);
		must(!info->error || strlen(info->error) <= STALL_MAX_LINKAGE);
	}
}

#endif
