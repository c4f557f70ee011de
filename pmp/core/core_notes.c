// SPDX-License-Identifier: Apache-2.0
#include "core/core_notes.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/lengths.h"

#define MAX_NOTES ((size_t)1 << 30) // 4 KiB a thread
#define MAX_FILES 1000000

static struct stall_error *add_thread(struct stall_core_notes *notes,
				      const struct stall_elf_note *note, size_t max_threads)
{
	struct elf_prstatus status;
	struct stall_core_thread thread;

	if (note->desc_size < sizeof(status)) {
		notes->torn = true;
		return NULL;
	}
	if (notes->thread_count == max_threads) {
		notes->threads_lost++;
		return NULL;
	}
	if (!stall_array_reserve(&notes->threads, notes->thread_count, 1, &notes->thread_capacity))
		return &stall_enomem;
	memcpy(&status, note->desc, sizeof(status));
	_Static_assert(sizeof(status.pr_reg) == sizeof(thread.regs), "elf_gregset_t");
	thread.tid = status.pr_pid;
	thread.ppid = status.pr_ppid;
	memcpy(&thread.regs, &status.pr_reg, sizeof(thread.regs));
	notes->threads[notes->thread_count++] = thread;
	return NULL;
}

static void read_auxv(struct stall_core_notes *notes, const struct stall_elf_note *note)
{
	Elf64_auxv_t entry;

	for (size_t at = 0; note->desc_size - at >= sizeof(entry); at += sizeof(entry)) {
		memcpy(&entry, note->desc + at, sizeof(entry));
		if (entry.a_type == AT_NULL)
			break;
		if (entry.a_type == AT_ENTRY)
			notes->entry = entry.a_un.a_val;
		if (entry.a_type == AT_SYSINFO_EHDR)
			notes->vdso = entry.a_un.a_val;
	}
}

// The kernel appends it (d_path(9)).
static bool cut_deleted(char *path)
{
	static const char suffix[] = " (deleted)";
	size_t length = strlen(path), size = strlen(suffix);
	bool is_deleted = length > size && strcmp(path + length - size, suffix) == 0;

	if (is_deleted)
		path[length - size] = '\0';
	return is_deleted;
}

// count, page size, count times (start, end, offset in pages), then the paths, each with a NUL.
static struct stall_error *read_files(struct stall_core_notes *notes,
				      const struct stall_elf_note *note)
{
	uint64_t header[2], entry[3];

	if (notes->files || note->desc_size < sizeof(header))
		return NULL;
	memcpy(header, note->desc, sizeof(header));
	size_t rest = note->desc_size - sizeof(header);
	if (header[0] > MAX_FILES || header[0] > rest / sizeof(entry)) {
		notes->torn = true;
		return NULL;
	}
	size_t count = header[0], table = count * sizeof(entry);
	notes->files = calloc(count + 1, sizeof(*notes->files));
	notes->paths = malloc(rest - table + 1);
	if (!notes->files || !notes->paths)
		return &stall_enomem;
	memcpy(notes->paths, note->desc + sizeof(header) + table, rest - table);
	notes->paths[rest - table] = 0;
	char *path = notes->paths, *next;
	const char *end = notes->paths + (rest - table);
	for (size_t i = 0; i < count && path < end; i++, path = next) {
		next = path + strlen(path) + 1;
		memcpy(entry, note->desc + sizeof(header) + i * sizeof(entry), sizeof(entry));
		notes->files[notes->file_count++] = (struct stall_core_file){
			.start = entry[0],
			.end = entry[1],
			.offset = entry[2] * header[1],
			.path = path,
			.deleted = cut_deleted(path),
		};
	}
	notes->torn |= notes->file_count < count;
	return NULL;
}

static struct stall_error *read_note(struct stall_core_notes *notes,
				     const struct stall_elf_note *note, size_t max_threads)
{
	if (!(note->name_size >= 4 && memcmp(note->name, "CORE", 4) == 0))
		return NULL;
	switch (note->type) {
	case NT_PRSTATUS:
		return add_thread(notes, note, max_threads);
	case NT_PRPSINFO:
		if (note->desc_size >= sizeof(notes->process)) {
			memcpy(&notes->process, note->desc, sizeof(notes->process));
			notes->has_process = true;
		}
		return NULL;
	case NT_AUXV:
		read_auxv(notes, note);
		return NULL;
	case NT_FILE:
		return read_files(notes, note);
	default:
		return NULL;
	}
}

// *left: how many bytes of notes are still read.
static struct stall_error *read_segment(struct stall_core_notes *notes, const struct stall_elf *elf,
					const Elf64_Phdr *segment, size_t max_threads,
					uint64_t *left)
{
	_cleanup_free_ uint8_t *data = NULL;
	uint64_t there = stall_at_most(stall_rest(segment->p_offset, elf->size), *left);
	uint64_t size = stall_at_most(segment->p_filesz, there);
	struct stall_elf_note note;
	size_t position = 0;

	notes->torn |= size < segment->p_filesz;
	*left -= size;
	struct stall_error *err =
		stall_elf_load(elf, size ? segment->p_offset : 0, size, MAX_NOTES, &data);
	// Core files align notes to four bytes whatever p_align says.
	while (!err && stall_elf_next_note(data, size, 4, &position, &note))
		err = read_note(notes, &note, max_threads);
	return err;
}

struct stall_error *stall_core_notes_init(struct stall_core_notes *notes,
					  const struct stall_elf *elf, size_t max_threads)
{
	struct stall_core_notes made = {};
	struct stall_error *err = NULL;
	// Segments of a real core do not overlap: thousands that do would take hours to read.
	uint64_t left = stall_at_most(elf->size, MAX_NOTES);

	for (size_t i = 0; !err && i < elf->segment_count; i++) {
		if (elf->segments[i].p_type == PT_NOTE)
			err = read_segment(&made, elf, &elf->segments[i], max_threads, &left);
	}
	if (!err && made.thread_count == 0)
		err = stall_error_create(STALL_ERROR_FORMAT, "the core file names no thread%s",
					 made.torn ? ": it was cut" : "");
	if (err) {
		stall_core_notes_deinit(&made);
		return err;
	}
	*notes = made;
	return NULL;
}

void stall_core_notes_deinit(struct stall_core_notes *notes)
{
	free(notes->threads);
	free(notes->files);
	free(notes->paths);
	*notes = (struct stall_core_notes){};
}
