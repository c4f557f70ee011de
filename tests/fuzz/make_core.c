// SPDX-License-Identifier: Apache-2.0
// make-core FILE...: cores without memory. The first has a segment for each of some files, the
// vdso among them; the second has many segments of one file that was deleted. The third has thousands
// of segments of notes, which are all the same ones.
#include <elf.h>
#include <stdio.h>
#include <string.h>
#include <sys/procfs.h>

#define BASE 0x10000
#define SIZE 0x1000
#define STEP 0x2000
#define MAX_SEGMENTS 300
#define DELETED "/x (deleted)"

static unsigned char notes[65536];
static size_t notes_size;

static void add_note(Elf64_Word type, const void *desc, size_t size)
{
	const Elf64_Nhdr header = {.n_namesz = 5, .n_descsz = (Elf64_Word)size, .n_type = type};

	memcpy(notes + notes_size, &header, sizeof(header));
	memcpy(notes + notes_size + sizeof(header), "CORE", 5);
	memcpy(notes + notes_size + sizeof(header) + 8, desc, size);
	notes_size += sizeof(header) + 8 + (size + 3) / 4 * 4;
}

// One for each of `count` segments, or one that has them all.
static void add_files(size_t count, int is_one)
{
	unsigned char desc[32768];
	size_t entries = is_one ? 1 : count, size = 16;
	const Elf64_Xword head[2] = {entries, SIZE};

	memcpy(desc, head, sizeof(head));
	for (size_t i = 0; i < entries; i++) {
		const Elf64_Xword start = BASE + i * STEP,
				  end = is_one ? BASE + count * STEP : start + SIZE;
		const Elf64_Xword entry[3] = {start, end, is_one ? 0 : i};

		memcpy(desc + size, entry, sizeof(entry));
		size += sizeof(entry);
	}
	for (size_t i = 0; i < entries; i++)
		size += (size_t)sprintf((char *)desc + size, is_one ? DELETED : "/lib/%zu.so",
					i / 4) +
			1;
	add_note(NT_FILE, desc, size);
}

static Elf64_Ehdr core_header(size_t segments)
{
	return (Elf64_Ehdr){
		.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
			    EV_CURRENT},
		.e_type = ET_CORE,
		.e_machine = EM_X86_64,
		.e_version = EV_CURRENT,
		.e_phoff = sizeof(Elf64_Ehdr),
		.e_ehsize = sizeof(Elf64_Ehdr),
		.e_phentsize = sizeof(Elf64_Phdr),
		.e_phnum = (Elf64_Half)segments,
	};
}

static int write_core(const char *path, size_t segments, int is_one)
{
	const Elf64_Ehdr header = core_header(segments + 1);
	const struct elf_prstatus status = {.pr_pid = 1234};
	const Elf64_auxv_t auxv[] = {{AT_ENTRY, {BASE + 16}},
				     {AT_SYSINFO_EHDR, {BASE + STEP}},
				     {AT_NULL, {0}}};
	Elf64_Phdr table[MAX_SEGMENTS + 1] = {};
	FILE *file = fopen(path, "we");

	notes_size = 0;
	add_note(NT_PRSTATUS, &status, sizeof(status));
	add_note(NT_AUXV, auxv, sizeof(auxv));
	add_files(segments, is_one);
	table[0] = (Elf64_Phdr){
		.p_type = PT_NOTE,
		.p_offset = sizeof(header) + (segments + 1) * sizeof(*table),
		.p_filesz = notes_size,
	};
	for (size_t i = 0; i < segments; i++)
		table[i + 1] = (Elf64_Phdr){
			.p_type = PT_LOAD,
			.p_flags = PF_R | PF_X,
			.p_offset = table[0].p_offset + notes_size,
			.p_vaddr = BASE + i * STEP,
			.p_memsz = SIZE,
			.p_align = SIZE,
		};
	if (!file || fwrite(&header, sizeof(header), 1, file) != 1 ||
	    fwrite(table, sizeof(*table), segments + 1, file) != segments + 1 ||
	    fwrite(notes, notes_size, 1, file) != 1 || fclose(file)) {
		perror(path);
		return 1;
	}
	return 0;
}

static int write_notes(const char *path)
{
	static Elf64_Phdr table[60000];
	static unsigned char empty[1 << 20];
	Elf64_Ehdr header = core_header(sizeof(table) / sizeof(*table));
	FILE *file = fopen(path, "we");

	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		table[i] = (Elf64_Phdr){
			.p_type = PT_NOTE,
			.p_offset = sizeof(header) + sizeof(table),
			.p_filesz = sizeof(empty),
		};
	if (!file || fwrite(&header, sizeof(header), 1, file) != 1 ||
	    fwrite(table, sizeof(table), 1, file) != 1 ||
	    fwrite(empty, sizeof(empty), 1, file) != 1 || fclose(file)) {
		perror(path);
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 1;
	return write_core(argv[1], 12, 0) || write_core(argv[2], MAX_SEGMENTS, 1) ||
	       write_notes(argv[3]);
}
