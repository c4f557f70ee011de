// SPDX-License-Identifier: Apache-2.0
#include "unwind/cfi_section.h"

#include <dwarf.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "unwind/cfi_check.h"

#define MAX_SECTION (256U << 20) // decompressed
#define SLACK 64		 // zeros after the last section; see cfi_check.h

// Where a section is in its file.
struct place {
	uint64_t offset, stored, address;
	uint64_t size; // more than `stored` where it is compressed
	bool compressed;
};

// .eh_frame_hdr: what ld, gold and lld write. Its addresses count from its own start, but for the
// first, which counts from where it stands. (LSB Core 5.0, 10.6.2.)
struct header {
	uint8_t version, frame_encoding, count_encoding, table_encoding;
	int32_t frame;
	uint32_t count;
	struct {
		int32_t function, fde;
	} table[]; // ascending
};

// libdw gets an ELF file in memory that has the unwind information alone, so that it reads the
// bytes that were checked and no others: dwarf_begin_elf would read every .debug_* section, which
// for a server is hundreds of megabytes, and dwarf_getcfi_elf all of a file without sections.
struct image {
	Elf64_Ehdr ehdr;
	Elf64_Shdr sections[4]; // null, names, .eh_frame_hdr or null, the frames
	char names[56];
	_Alignas(8) uint8_t data[];
};

#define SECTION_NAMES "\0.shstrtab\0.eh_frame_hdr\0.eh_frame\0.debug_frame"
enum section_name {
	NAME_SHSTRTAB = 1,
	NAME_EH_FRAME_HDR = 11,
	NAME_EH_FRAME = 25,
	NAME_DEBUG_FRAME = 35,
};

struct stall_cfi_section {
	struct image *image;
	Elf *elf;
	Dwarf *dwarf; // of .debug_frame
	Dwarf_CFI *cfi;
	struct stall_cfi_entries entries;
	struct place header, frames;
	const struct header *table; // of `image`; NULL: libdw reads one entry after the other
	bool checked_all, all_fit;
};

void stall_cfi_section_destroy(struct stall_cfi_section *section)
{
	if (!section)
		return;
	if (section->dwarf)
		dwarf_end(section->dwarf);
	else if (section->cfi)
		dwarf_cfi_end(section->cfi);
	elf_end(section->elf);
	free(section->image);
	free(section);
}

static void section_destroyp(struct stall_cfi_section **section)
{
	stall_cfi_section_destroy(*section);
}

static void elf_endp(Elf **elf)
{
	elf_end(*elf);
}

static struct image *create_image(size_t data_size)
{
	struct image *image = calloc(1, sizeof(*image) + data_size + SLACK);

	if (!image)
		return NULL;
	image->ehdr = (Elf64_Ehdr){
		.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
			    EV_CURRENT},
		.e_type = ET_DYN,
		.e_machine = EM_X86_64,
		.e_version = EV_CURRENT,
		.e_ehsize = sizeof(Elf64_Ehdr),
		.e_shoff = offsetof(struct image, sections),
		.e_shentsize = sizeof(Elf64_Shdr),
		.e_shnum = 4,
		.e_shstrndx = 1,
	};
	memcpy(image->names, SECTION_NAMES, sizeof(SECTION_NAMES));
	image->sections[1] = (Elf64_Shdr){.sh_name = NAME_SHSTRTAB,
					  .sh_type = SHT_STRTAB,
					  .sh_offset = offsetof(struct image, names),
					  .sh_size = sizeof(image->names),
					  .sh_addralign = 1};
	return image;
}

static void add_section(struct image *image, int index, enum section_name name, size_t at,
			size_t size, uint64_t address, uint64_t flags)
{
	image->sections[index] = (Elf64_Shdr){.sh_name = name,
					      .sh_type = SHT_PROGBITS,
					      .sh_flags = flags,
					      .sh_addr = address,
					      .sh_offset = offsetof(struct image, data) + at,
					      .sh_size = size,
					      .sh_addralign = 8};
}

static Elf *open_image(struct image *image, size_t data_size)
{
	elf_version(EV_CURRENT);
	return elf_memory((char *)image, sizeof(*image) + data_size);
}

// What the section holds, by libelf's decompressor.
static struct stall_error *unpack(const struct stall_elf *elf, const struct place *place,
				  uint8_t *ret)
{
	_cleanup_free_ struct image *image = create_image(place->stored);

	if (!image)
		return &stall_enomem;
	add_section(image, 3, NAME_DEBUG_FRAME, 0, place->stored, 0, SHF_COMPRESSED);
	struct stall_error *err = stall_elf_read(elf, place->offset, image->data, place->stored);
	if (err)
		return err;
	_cleanup_(elf_endp) Elf *packed = open_image(image, place->stored);
	Elf_Scn *section = elf_getscn(packed, 3);
	Elf_Data *data =
		section && elf_compress(section, 0, 0) == 1 ? elf_getdata(section, NULL) : NULL;
	if (!data || data->d_size != place->size)
		return stall_error_create(STALL_ERROR_FORMAT,
					  "compressed section does not unpack: %s", elf_errmsg(-1));
	memcpy(ret, data->d_buf, data->d_size);
	return NULL;
}

static struct stall_error *read_place(const struct stall_elf *elf, const struct place *place,
				      uint8_t *ret)
{
	return place->compressed ? unpack(elf, place, ret)
				 : stall_elf_read(elf, place->offset, ret, place->size);
}

static bool is_readable(const struct stall_elf *elf, const struct place *place)
{
	return place->size && place->size <= MAX_SECTION && place->offset <= elf->size &&
	       place->stored <= elf->size - place->offset;
}

static bool find_section(const struct stall_elf *elf, const char *name, struct place *ret)
{
	const Elf64_Shdr *section = stall_elf_section(elf, name);

	if (!section || section->sh_type == SHT_NOBITS)
		return false;
	*ret = (struct place){.offset = section->sh_offset,
			      .stored = section->sh_size,
			      .size = section->sh_size,
			      .address = section->sh_addr};
	if (section->sh_flags & SHF_COMPRESSED) {
		Elf64_Chdr packed = {};
		struct stall_error *err =
			stall_elf_read(elf, section->sh_offset, &packed, sizeof(packed));

		stall_error_destroy(err);
		ret->compressed = true;
		ret->size = packed.ch_size;
	}
	return is_readable(elf, ret);
}

static bool has_known_encodings(const struct header *header)
{
	return header->version == 1 &&
	       header->frame_encoding == (DW_EH_PE_pcrel | DW_EH_PE_sdata4) &&
	       header->count_encoding == DW_EH_PE_udata4 &&
	       header->table_encoding == (DW_EH_PE_datarel | DW_EH_PE_sdata4);
}

static uint64_t frames_address(const struct header *header, uint64_t address)
{
	return address + offsetof(struct header, frame) + (uint64_t)header->frame;
}

// A file without section headers, or with a program header of .eh_frame_hdr alone: its frames are
// at most what is left of the segment.
static bool find_by_segments(const struct stall_elf *elf, struct stall_cfi_section *section)
{
	const Elf64_Phdr *found = NULL;
	struct header header;

	for (size_t i = 0; i < elf->segment_count && !found; i++) {
		if (elf->segments[i].p_type == PT_GNU_EH_FRAME)
			found = &elf->segments[i];
	}
	if (!found || found->p_filesz < sizeof(header))
		return false;
	struct stall_error *err = stall_elf_read(elf, found->p_offset, &header, sizeof(header));
	if (err || !has_known_encodings(&header)) {
		stall_error_destroy(err);
		return false;
	}
	section->header = (struct place){.offset = found->p_offset,
					 .stored = found->p_filesz,
					 .size = found->p_filesz,
					 .address = found->p_vaddr};
	uint64_t address = frames_address(&header, found->p_vaddr);
	for (size_t i = 0; i < elf->segment_count; i++) {
		const Elf64_Phdr *load = &elf->segments[i];
		uint64_t in = address - load->p_vaddr;

		if (load->p_type != PT_LOAD || in >= load->p_filesz)
			continue;
		uint64_t size = load->p_filesz - in;
		section->frames = (struct place){.offset = load->p_offset + in,
						 .stored = size,
						 .size = size,
						 .address = address};
		return is_readable(elf, &section->header) && is_readable(elf, &section->frames);
	}
	return false;
}

static bool find_eh_frame(const struct stall_elf *elf, struct stall_cfi_section *section)
{
	if (!stall_elf_section(elf, ".eh_frame"))
		return find_by_segments(elf, section);
	// In a separate debug file the program headers still tell of .eh_frame, and lead elsewhere.
	if (!find_section(elf, ".eh_frame", &section->frames) || section->frames.compressed)
		return false;
	if (!find_section(elf, ".eh_frame_hdr", &section->header) || section->header.compressed)
		section->header = (struct place){};
	return true;
}

// Whether any search in the table finds the same: libdw does not look whether it is in order, nor
// whether it is as long as it says.
static bool is_sound(const struct header *header, const struct stall_cfi_section *section)
{
	if (section->header.size < sizeof(*header) || !has_known_encodings(header) ||
	    header->count == 0 ||
	    header->count > (section->header.size - sizeof(*header)) / sizeof(header->table[0]) ||
	    frames_address(header, section->header.address) != section->frames.address)
		return false;
	for (uint32_t i = 1; i < header->count; i++) {
		if (section->header.address + (uint64_t)header->table[i].function <
		    section->header.address + (uint64_t)header->table[i - 1].function)
			return false;
	}
	return true;
}

static struct stall_error *read_image(const struct stall_elf *elf,
				      struct stall_cfi_section *section, bool is_eh_frame,
				      size_t *ret_size)
{
	const struct place *header = &section->header, *frames = &section->frames;
	size_t at = (header->size + 7) & ~(size_t)7;
	struct stall_error *err = NULL;

	*ret_size = at + frames->size;
	section->image = create_image(*ret_size);
	if (!section->image)
		return &stall_enomem;
	uint8_t *data = section->image->data;
	if (header->size)
		err = read_place(elf, header, data);
	if (!err)
		err = read_place(elf, frames, data + at);
	if (err)
		return err;
	if (is_sound((const struct header *)data, section)) {
		section->table = (const struct header *)data;
		add_section(section->image, 2, NAME_EH_FRAME_HDR, 0, header->size, header->address,
			    0);
	}
	add_section(section->image, 3, is_eh_frame ? NAME_EH_FRAME : NAME_DEBUG_FRAME, at,
		    frames->size, frames->address, 0);
	return NULL;
}

static struct stall_error *give_to_libdw(struct stall_cfi_section *section, size_t size,
					 bool is_eh_frame)
{
	section->elf = open_image(section->image, size);
	if (is_eh_frame) {
		section->cfi = dwarf_getcfi_elf(section->elf);
	} else {
		section->dwarf = dwarf_begin_elf(section->elf, DWARF_C_READ, NULL);
		section->cfi = section->dwarf ? dwarf_getcfi(section->dwarf) : NULL;
	}
	section->entries = (struct stall_cfi_entries){
		.e_ident = section->image->ehdr.e_ident,
		.data = elf_rawdata(elf_getscn(section->elf, 3), NULL),
		.is_eh_frame = is_eh_frame,
	};
	if (!section->cfi || !section->entries.data)
		return stall_error_create(STALL_ERROR_FORMAT, "libdw: %s", dwarf_errmsg(-1));
	return NULL;
}

struct stall_error *stall_cfi_section_open(const struct stall_elf *elf, bool is_eh_frame,
					   struct stall_cfi_section **ret)
{
	_cleanup_(section_destroyp) struct stall_cfi_section *section = calloc(1, sizeof(*section));
	size_t size;

	*ret = NULL;
	if (!section)
		return &stall_enomem;
	if (is_eh_frame ? !find_eh_frame(elf, section)
			: !find_section(elf, ".debug_frame", &section->frames))
		return NULL;
	struct stall_error *err = read_image(elf, section, is_eh_frame, &size);
	if (!err)
		err = give_to_libdw(section, size, is_eh_frame);
	if (err)
		return err;
	*ret = no_cleanup_ptr(section);
	return NULL;
}

// The last function of the table that starts at or before the address; UINT64_MAX: none.
static uint64_t find_fde(const struct stall_cfi_section *section, uint64_t address)
{
	const struct header *header = section->table;
	uint64_t base = section->header.address;
	uint32_t low = 0, high = header->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (base + (uint64_t)header->table[middle].function <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return UINT64_MAX;
	return base + (uint64_t)header->table[low - 1].fde - section->frames.address;
}

static bool can_ask(struct stall_cfi_section *section, uint64_t address, bool *ret_bad)
{
	bool fits;

	if (section->table) {
		uint64_t fde = find_fde(section, address);

		if (fde == UINT64_MAX)
			return false;
		fits = stall_cfi_fde_fits(&section->entries, fde);
	} else {
		if (!section->checked_all) {
			section->checked_all = true;
			section->all_fit = stall_cfi_all_fit(&section->entries);
		}
		fits = section->all_fit;
	}
	*ret_bad |= !fits;
	return fits;
}

Dwarf_Frame *stall_cfi_section_frame(struct stall_cfi_section *section, uint64_t address,
				     bool *ret_bad)
{
	Dwarf_Frame *frame;

	if (!can_ask(section, address, ret_bad) ||
	    dwarf_cfi_addrframe(section->cfi, address, &frame) != 0)
		return NULL;
	return frame;
}
