// SPDX-License-Identifier: Apache-2.0
#include "unwind/elf_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/lengths.h"
#include "proc/path_status.h"

#define PAGE ((uint64_t)4096)
#define MAX_SECTION_NAMES (4U << 20)
#define MAX_NOTES (1U << 20)

static struct stall_error *bad(const char *what)
{
	return stall_error_create(STALL_ERROR_FORMAT, "not a sound ELF file: %s", what);
}

struct stall_error *stall_elf_read(const struct stall_elf *elf, uint64_t offset, void *buf,
				   size_t size)
{
	size_t done = 0;

	if (!stall_fits(offset, size, elf->size))
		return bad("data beyond its end");
	if (elf->image) {
		memcpy(buf, elf->image + offset, size);
		return NULL;
	}
	while (done < size) {
		ssize_t n = pread(elf->fd, (char *)buf + done, size - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return stall_error_os(errno, "cannot read the ELF file");
		if (n == 0)
			return bad("it was cut while it was read");
		done += (size_t)n;
	}
	return NULL;
}

struct stall_error *stall_elf_load(const struct stall_elf *elf, uint64_t offset, uint64_t size,
				   size_t limit, uint8_t **ret)
{
	if (!stall_fits(offset, size, elf->size))
		return bad("data beyond its end");
	if (size > limit)
		return stall_error_create(STALL_ERROR_LIMIT,
					  "ELF data of %llu bytes is over the limit of %zu",
					  (unsigned long long)size, limit);
	_cleanup_free_ uint8_t *data = malloc((size_t)size + 1);
	if (!data)
		return &stall_enomem;
	struct stall_error *err = stall_elf_read(elf, offset, data, (size_t)size);
	if (err)
		return err;
	data[size] = 0;
	*ret = no_cleanup_ptr(data);
	return NULL;
}

static struct stall_error *read_table(const struct stall_elf *elf, uint64_t offset, uint64_t count,
				      size_t entry, uint64_t limit, void **ret)
{
	uint8_t *table = NULL;

	if (count > limit)
		return stall_error_create(STALL_ERROR_LIMIT, "ELF header table of %llu entries",
					  (unsigned long long)count);
	struct stall_error *err = stall_elf_load(elf, offset, count * entry, SIZE_MAX, &table);
	if (!err)
		*ret = table;
	return err;
}

// Where a count does not fit the ELF header, section header 0 holds it. (gABI, chapter 4.)
struct counts {
	uint64_t segments, sections, names;
};

static struct stall_error *read_counts(const struct stall_elf *elf, const Elf64_Ehdr *ehdr,
				       struct counts *ret)
{
	*ret = (struct counts){ehdr->e_phnum, ehdr->e_shnum, ehdr->e_shstrndx};
	bool extended =
		ehdr->e_phnum == PN_XNUM || ehdr->e_shstrndx == SHN_XINDEX || ehdr->e_shnum == 0;
	if (!extended || !ehdr->e_shoff)
		return NULL;
	Elf64_Shdr first;
	struct stall_error *err = stall_elf_read(elf, ehdr->e_shoff, &first, sizeof(first));
	if (err)
		return err;
	if (ehdr->e_phnum == PN_XNUM)
		ret->segments = first.sh_info;
	if (ehdr->e_shnum == 0)
		ret->sections = first.sh_size;
	if (ehdr->e_shstrndx == SHN_XINDEX)
		ret->names = first.sh_link;
	return NULL;
}

static struct stall_error *read_sections(struct stall_elf *elf, const Elf64_Ehdr *ehdr,
					 const struct counts *counts)
{
	void *table = NULL;

	if (!ehdr->e_shoff || !counts->sections)
		return NULL;
	if (ehdr->e_shentsize != sizeof(Elf64_Shdr))
		return bad("section headers of another size");
	struct stall_error *err = read_table(elf, ehdr->e_shoff, counts->sections,
					     sizeof(Elf64_Shdr), STALL_MAX_SECTIONS, &table);
	if (err)
		return err;
	elf->sections = table;
	elf->section_count = counts->sections;
	if (counts->names >= counts->sections)
		return NULL;
	const Elf64_Shdr *names = &elf->sections[counts->names];
	uint8_t *text = NULL;
	if (names->sh_type == SHT_NOBITS)
		return NULL;
	err = stall_elf_load(elf, names->sh_offset, names->sh_size, MAX_SECTION_NAMES, &text);
	if (err)
		return err;
	elf->section_names = (char *)text;
	elf->section_names_size = names->sh_size + 1;
	return NULL;
}

static struct stall_error *read_segments(struct stall_elf *elf, const Elf64_Ehdr *ehdr,
					 const struct counts *counts)
{
	void *table = NULL;

	if (!ehdr->e_phoff || !counts->segments)
		return NULL;
	if (ehdr->e_phentsize != sizeof(Elf64_Phdr))
		return bad("program headers of another size");
	struct stall_error *err = read_table(elf, ehdr->e_phoff, counts->segments,
					     sizeof(Elf64_Phdr), STALL_MAX_SEGMENTS, &table);
	if (err)
		return err;
	elf->segments = table;
	elf->segment_count = counts->segments;
	return NULL;
}

bool stall_elf_next_note(const uint8_t *data, size_t size, size_t align, size_t *position,
			 struct stall_elf_note *ret)
{
	Elf64_Nhdr header;
	size_t at = *position, mask = align == 8 ? 7 : 3;

	if (!stall_fits(at, sizeof(header), size))
		return false;
	memcpy(&header, data + at, sizeof(header));
	at += sizeof(header);
	if (!stall_fits(at, header.n_namesz, size))
		return false;
	size_t name = at;
	at = (at + header.n_namesz + mask) & ~mask;
	if (!stall_fits(at, header.n_descsz, size))
		return false;
	*ret = (struct stall_elf_note){
		.type = header.n_type,
		.name = (const char *)data + name,
		.name_size = header.n_namesz,
		.desc = data + at,
		.desc_size = header.n_descsz,
	};
	*position = (at + header.n_descsz + mask) & ~mask;
	return true;
}

static bool is_note(const struct stall_elf_note *note, const char *name, uint32_t type)
{
	size_t length = strlen(name);

	return note->type == type && note->name_size == length + 1 &&
	       memcmp(note->name, name, length + 1) == 0;
}

static bool find_build_id(struct stall_elf *elf, uint64_t offset, uint64_t size, uint64_t align)
{
	_cleanup_free_ uint8_t *data = NULL;
	struct stall_error *err = stall_elf_load(elf, offset, size, MAX_NOTES, &data);
	struct stall_elf_note note;
	size_t position = 0;

	if (err) {
		stall_error_destroy(err);
		return false;
	}
	while (stall_elf_next_note(data, size, align, &position, &note)) {
		if (!is_note(&note, "GNU", NT_GNU_BUILD_ID) || note.desc_size == 0 ||
		    note.desc_size > STALL_BUILD_ID_MAX)
			continue;
		memcpy(elf->build_id, note.desc, note.desc_size);
		elf->build_id_size = note.desc_size;
		return true;
	}
	return false;
}

#define MAX_NOTE_SEGMENTS 64

static void read_build_id(struct stall_elf *elf)
{
	size_t tried = 0;

	if (elf->type == ET_CORE)
		return;
	for (size_t i = 0; i < elf->section_count && tried < MAX_NOTE_SEGMENTS; i++) {
		const Elf64_Shdr *section = &elf->sections[i];

		if (section->sh_type == SHT_NOTE && ++tried &&
		    find_build_id(elf, section->sh_offset, section->sh_size, section->sh_addralign))
			return;
	}
	for (size_t i = 0; i < elf->segment_count && tried < MAX_NOTE_SEGMENTS; i++) {
		const Elf64_Phdr *segment = &elf->segments[i];

		if (segment->p_type == PT_NOTE && ++tried &&
		    find_build_id(elf, segment->p_offset, segment->p_filesz, segment->p_align))
			return;
	}
}

static struct stall_error *check_header(const Elf64_Ehdr *ehdr)
{
	if (memcmp(ehdr->e_ident, ELFMAG, SELFMAG) != 0)
		return bad("no ELF magic");
	if (ehdr->e_ident[EI_CLASS] != ELFCLASS64 || ehdr->e_ident[EI_DATA] != ELFDATA2LSB ||
	    ehdr->e_machine != EM_X86_64)
		return stall_error_create(STALL_ERROR_UNSUPPORTED,
					  "an ELF file for another machine than x86-64");
	return NULL;
}

static struct stall_error *read_headers(struct stall_elf *elf)
{
	Elf64_Ehdr ehdr;
	struct counts counts;

	if (elf->size < sizeof(ehdr))
		return bad("shorter than an ELF header");
	struct stall_error *err = stall_elf_read(elf, 0, &ehdr, sizeof(ehdr));
	if (!err)
		err = check_header(&ehdr);
	if (!err)
		err = read_counts(elf, &ehdr, &counts);
	if (err)
		return err;
	elf->type = ehdr.e_type;
	elf->machine = ehdr.e_machine;
	err = read_segments(elf, &ehdr, &counts);
	if (err)
		return err;
	// Sections are needed for names only: a file without them, or with torn ones, still unwinds.
	// (A core that was cut has none either.)
	stall_error_destroy(read_sections(elf, &ehdr, &counts));
	read_build_id(elf);
	return NULL;
}

struct stall_error *stall_elf_open(int fd, struct stall_elf **ret)
{
	_cleanup_(stall_elf_destroyp) struct stall_elf *elf = calloc(1, sizeof(*elf));
	struct stall_path_status status;

	if (!elf) {
		close(fd);
		return &stall_enomem;
	}
	elf->fd = fd;
	if (!stall_fd_status(fd, &status))
		return stall_error_os(errno, "cannot stat the ELF file");
	if (!S_ISREG(status.mode))
		return stall_error_create(STALL_ERROR_FORMAT, "not a regular file");
	elf->size = status.size;
	struct stall_error *err = read_headers(elf);
	if (err)
		return err;
	*ret = no_cleanup_ptr(elf);
	return NULL;
}

struct stall_error *stall_elf_open_image(const uint8_t *image, size_t size, bool own,
					 struct stall_elf **ret)
{
	_cleanup_(stall_elf_destroyp) struct stall_elf *elf = calloc(1, sizeof(*elf));

	if (!elf) {
		if (own)
			free((void *)image);
		return &stall_enomem;
	}
	elf->fd = -1;
	elf->image = image;
	elf->owns_image = own;
	elf->size = size;
	struct stall_error *err = read_headers(elf);
	if (err)
		return err;
	*ret = no_cleanup_ptr(elf);
	return NULL;
}

void stall_elf_destroy(struct stall_elf *elf)
{
	if (!elf)
		return;
	if (elf->fd >= 0)
		close(elf->fd);
	if (elf->owns_image)
		free((void *)elf->image);
	free(elf->segments);
	free(elf->sections);
	free(elf->section_names);
	free(elf);
}

static const char *section_name(const struct stall_elf *elf, const Elf64_Shdr *section)
{
	return section->sh_name < elf->section_names_size ? elf->section_names + section->sh_name
							  : "";
}

const Elf64_Shdr *stall_elf_section(const struct stall_elf *elf, const char *name)
{
	for (size_t i = 1; i < elf->section_count; i++) {
		if (strcmp(section_name(elf, &elf->sections[i]), name) == 0)
			return &elf->sections[i];
	}
	return NULL;
}

const Elf64_Shdr *stall_elf_section_by_type(const struct stall_elf *elf, uint32_t type)
{
	for (size_t i = 1; i < elf->section_count; i++) {
		if (elf->sections[i].sh_type == type)
			return &elf->sections[i];
	}
	return NULL;
}

struct stall_error *stall_elf_bias(const struct stall_elf *elf, uint64_t start, uint64_t offset,
				   uint64_t *ret)
{
	for (int executable = 1; executable >= 0; executable--) {
		for (size_t i = 0; i < elf->segment_count; i++) {
			const Elf64_Phdr *segment = &elf->segments[i];
			uint64_t first = segment->p_offset & ~(PAGE - 1), end;

			if (segment->p_type != PT_LOAD ||
			    (executable && !(segment->p_flags & PF_X)))
				continue;
			if (!stall_add(segment->p_offset, segment->p_filesz, &end) ||
			    !stall_add(end, PAGE - 1, &end))
				continue;
			if (offset < first || offset >= (end & ~(PAGE - 1)))
				continue;
			uint64_t bias = start - (segment->p_vaddr + (offset - segment->p_offset));
			if (bias & (PAGE - 1))
				continue;
			*ret = bias;
			return NULL;
		}
	}
	return bad("no segment fits the mapping");
}

void stall_elf_build_id_text(const struct stall_elf *elf, char text[2 * STALL_BUILD_ID_MAX + 1])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < elf->build_id_size; i++) {
		text[2 * i] = digits[elf->build_id[i] >> 4];
		text[2 * i + 1] = digits[elf->build_id[i] & 15];
	}
	text[2 * elf->build_id_size] = 0;
}
