// SPDX-License-Identifier: Apache-2.0
#include "unwind/cfi_section.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/lengths.h"
#include "unwind/dwarf_codes.h"
#include "unwind/elf_section.h"

#define MAX_SECTION (256U << 20) // decompressed
#define MAX_ENTRIES (4U << 20)	 // MySQL 9.7 has 110,000
#define MAX_AUGMENTATION 16

struct function {
	uint64_t start;
	uint64_t fde; // offset in the section
};

struct stall_cfi_section {
	bool is_eh_frame;
	uint8_t *data;
	size_t size;
	uint64_t address;
	struct function *functions; // ascending
	size_t count, capacity;
	bool is_damaged; // has entries that could not be read
};

void stall_cfi_section_destroy(struct stall_cfi_section *section)
{
	if (!section)
		return;
	free(section->functions);
	free(section->data);
	free(section);
}

static void section_destroyp(struct stall_cfi_section **section)
{
	stall_cfi_section_destroy(*section);
}

// The stored value, before its base is added.
static bool read_value(uint8_t encoding, struct stall_bytes *bytes, uint64_t *ret)
{
	switch (encoding & 0x0f) {
	case DW_EH_PE_absptr:
	case DW_EH_PE_udata8:
	case DW_EH_PE_sdata8:
		*ret = stall_bytes_number(bytes, 8);
		break;
	case DW_EH_PE_udata2:
		*ret = stall_bytes_number(bytes, 2);
		break;
	case DW_EH_PE_udata4:
		*ret = stall_bytes_number(bytes, 4);
		break;
	case DW_EH_PE_sdata2:
		*ret = stall_bytes_signed(bytes, 2);
		break;
	case DW_EH_PE_sdata4:
		*ret = stall_bytes_signed(bytes, 4);
		break;
	case DW_EH_PE_uleb128:
		*ret = stall_bytes_uleb(bytes);
		break;
	case DW_EH_PE_sleb128:
		*ret = stall_bytes_sleb(bytes);
		break;
	default:
		return false;
	}
	return !bytes->torn;
}

bool stall_cfi_section_pointer(const struct stall_cfi_section *section, uint8_t encoding,
			       struct stall_bytes *bytes, uint64_t *ret)
{
	uint64_t base = 0;

	// Compilers use no other for code, and the base of some is not in the file.
	if ((encoding & 0xf0) == DW_EH_PE_pcrel)
		base = section->address + (uint64_t)(bytes->at - section->data);
	else if (encoding & 0xf0)
		return false;
	if (!read_value(encoding, bytes, ret))
		return false;
	*ret += base;
	return true;
}

// Only exceptions need the routine; here the pointer to it is skipped.
static bool skip_personality(const struct stall_cfi_section *section, struct stall_bytes *data)
{
	uint8_t encoding = (uint8_t)stall_bytes_number(data, 1);
	uint64_t unused;

	if (encoding == DW_EH_PE_aligned) {
		uint64_t address = section->address + (uint64_t)(data->at - section->data);

		stall_bytes_take(data, -address & 7);
		encoding = DW_EH_PE_absptr;
	}
	return read_value(encoding, data, &unused);
}

// LSB Core 5.0, 10.6.1.1.1; "B" is a key of pointer authentication, without data.
static bool read_augmentation(const struct stall_cfi_section *section, const char *letters,
			      struct stall_bytes *entry, struct stall_cfi_cie *cie)
{
	struct stall_bytes data = {};

	if (!*letters)
		return true;
	if (*letters != 'z')
		return false;
	uint64_t size = stall_bytes_uleb(entry);
	data.at = stall_bytes_take(entry, size);
	if (!data.at)
		return false;
	data.end = data.at + size;
	cie->has_data = true;
	while (*++letters) {
		if (*letters == 'R')
			cie->pointer_encoding = (uint8_t)stall_bytes_number(&data, 1);
		else if (*letters == 'L')
			stall_bytes_take(&data, 1);
		else if (*letters == 'S')
			cie->signal = true;
		else if (*letters != 'B' && (*letters != 'P' || !skip_personality(section, &data)))
			return false;
	}
	return !data.torn;
}

// An entry without its length: DWARF 5, 6.4.1. In .eh_frame all entries have offsets of 4 bytes.
struct entry {
	struct stall_bytes rest;
	uint64_t next;	// offset of the entry after it
	uint64_t id_at; // offset of what follows
	uint64_t id;	// of a CIE: a constant; of an FDE: where its CIE is
	bool is_cie;
};

// False: this was the last entry.
static bool read_entry(const struct stall_cfi_section *section, uint64_t offset, struct entry *ret)
{
	if (offset > section->size)
		return false;
	struct stall_bytes bytes = stall_bytes_of(section->data + offset, section->size - offset);
	uint64_t length = stall_bytes_number(&bytes, 4);
	unsigned int id_size = 4;

	if (length == UINT32_MAX) {
		length = stall_bytes_number(&bytes, 8);
		id_size = section->is_eh_frame ? 4 : 8;
	}
	const uint8_t *start = stall_bytes_take(&bytes, length);
	if (bytes.torn || length == 0)
		return false;
	*ret = (struct entry){.rest = stall_bytes_of(start, length)};
	ret->id_at = (uint64_t)(start - section->data);
	ret->next = ret->id_at + length;
	ret->id = stall_bytes_number(&ret->rest, id_size);
	ret->is_cie = ret->id == (section->is_eh_frame ? 0
				  : id_size == 8       ? UINT64_MAX
						       : UINT32_MAX);
	return true;
}

static bool read_cie(const struct stall_cfi_section *section, uint64_t offset,
		     struct stall_cfi_cie *ret)
{
	struct entry entry;

	if (!read_entry(section, offset, &entry) || !entry.is_cie)
		return false;
	struct stall_bytes *rest = &entry.rest;
	uint64_t version = stall_bytes_number(rest, 1);
	const char *letters = (const char *)rest->at;
	size_t size = strnlen(letters, stall_bytes_left(rest));
	if (size > MAX_AUGMENTATION || !stall_bytes_take(rest, size + 1))
		return false;
	// 4 adds the sizes of addresses and of segment selectors.
	if (version == 4 ? stall_bytes_number(rest, 2) != 8 : version != 1 && version != 3)
		return false;
	*ret = (struct stall_cfi_cie){.code_alignment = stall_bytes_uleb(rest),
				      .pointer_encoding = DW_EH_PE_absptr};
	ret->data_alignment = stall_bytes_sleb(rest);
	ret->return_register = version == 1 ? stall_bytes_number(rest, 1) : stall_bytes_uleb(rest);
	if (!read_augmentation(section, letters, rest, ret))
		return false;
	ret->program = *rest;
	return !rest->torn;
}

static bool read_fde(const struct stall_cfi_section *section, const struct entry *entry,
		     struct stall_cfi_fde *ret)
{
	struct stall_bytes rest = entry->rest;
	uint64_t cie = section->is_eh_frame ? entry->id_at - entry->id : entry->id, size;

	if (rest.torn || !read_cie(section, cie, &ret->cie) ||
	    !stall_cfi_section_pointer(section, ret->cie.pointer_encoding, &rest, &ret->start) ||
	    !read_value(ret->cie.pointer_encoding, &rest, &size) ||
	    !stall_add(ret->start, size, &ret->end))
		return false;
	if (ret->cie.has_data)
		stall_bytes_take(&rest, stall_bytes_uleb(&rest));
	ret->program = rest;
	return !rest.torn;
}

static int compare_functions(const void *a, const void *b)
{
	const struct function *x = a, *y = b;

	if (x->start != y->start)
		return x->start < y->start ? -1 : 1;
	return x->fde < y->fde ? -1 : 1;
}

// Whether the section ends here, or a length of 0 marks the end of .eh_frame.
static bool is_end(const struct stall_cfi_section *section, uint64_t offset)
{
	struct stall_bytes rest = stall_bytes_of(section->data + offset, section->size - offset);

	return stall_bytes_left(&rest) == 0 || (stall_bytes_number(&rest, 4) == 0 && !rest.torn);
}

// Without a usable .eh_frame_hdr: reads one entry after the other.
static struct stall_error *index_entries(struct stall_cfi_section *section)
{
	struct entry entry;
	uint64_t at = 0;

	for (; read_entry(section, at, &entry); at = entry.next) {
		struct stall_cfi_fde fde;

		if (entry.is_cie)
			continue;
		if (!read_fde(section, &entry, &fde)) {
			section->is_damaged = true;
			continue;
		}
		// Functions that the linker dropped are empty.
		if (fde.start == fde.end)
			continue;
		if (section->count == MAX_ENTRIES)
			return stall_error_create(STALL_ERROR_LIMIT, "more than %u functions",
						  MAX_ENTRIES);
		if (!stall_array_reserve(&section->functions, section->count, 1,
					 &section->capacity))
			return &stall_enomem;
		section->functions[section->count++] = (struct function){fde.start, at};
	}
	section->is_damaged |= !is_end(section, at);
	if (section->count)
		qsort(section->functions, section->count, sizeof(section->functions[0]),
		      compare_functions);
	return NULL;
}

// .eh_frame_hdr as ld, gold and lld write it. Its addresses are relative to its own start, except
// for the first, which is relative to its own place. (LSB Core 5.0, 10.6.2.)
struct header {
	uint8_t version, frame_encoding, count_encoding, table_encoding;
	int32_t frame;
	uint32_t count;
	struct {
		int32_t function, fde;
	} table[]; // ascending
};

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

// Uses the table, unless it is shorter than declared, not sorted, or of another section.
static bool index_by_header(struct stall_cfi_section *section, const struct header *header,
			    const struct stall_elf_place *place)
{
	if (place->size < sizeof(*header) || !has_known_encodings(header) || header->count == 0 ||
	    header->count > (place->size - sizeof(*header)) / sizeof(header->table[0]) ||
	    header->count > MAX_ENTRIES ||
	    frames_address(header, place->address) != section->address)
		return false;
	section->functions = malloc(header->count * sizeof(section->functions[0]));
	if (!section->functions)
		return false;
	for (uint32_t i = 0; i < header->count; i++) {
		struct function *function = &section->functions[i];

		function->start = place->address + (uint64_t)header->table[i].function;
		function->fde = place->address + (uint64_t)header->table[i].fde - section->address;
		if (i && function->start < function[-1].start) {
			free(no_cleanup_ptr(section->functions));
			return false;
		}
	}
	section->count = section->capacity = header->count;
	return true;
}

static bool find_section(const struct stall_elf *elf, const char *name, struct stall_elf_place *ret)
{
	return stall_elf_place_find(elf, name, MAX_SECTION, ret);
}

// A file without section headers, or with a program header of .eh_frame_hdr alone: its frames are
// at most what is left of the segment.
static bool find_by_segments(const struct stall_elf *elf, struct stall_elf_place *ret_header,
			     struct stall_elf_place *ret_frames)
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
	*ret_header = (struct stall_elf_place){.offset = found->p_offset,
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
		*ret_frames = (struct stall_elf_place){.offset = load->p_offset + in,
						       .stored = size,
						       .size = size,
						       .address = address};
		return stall_elf_place_is_readable(elf, ret_header, MAX_SECTION) &&
		       stall_elf_place_is_readable(elf, ret_frames, MAX_SECTION);
	}
	return false;
}

static bool find_eh_frame(const struct stall_elf *elf, struct stall_elf_place *ret_header,
			  struct stall_elf_place *ret_frames)
{
	if (!stall_elf_section(elf, ".eh_frame"))
		return find_by_segments(elf, ret_header, ret_frames);
	// In a separate debug file the program headers still name .eh_frame, and lead elsewhere.
	if (!find_section(elf, ".eh_frame", ret_frames) || ret_frames->packed_by)
		return false;
	if (!find_section(elf, ".eh_frame_hdr", ret_header) || ret_header->packed_by)
		*ret_header = (struct stall_elf_place){};
	return true;
}

struct stall_error *stall_cfi_section_open(const struct stall_elf *elf, bool is_eh_frame,
					   struct stall_cfi_section **ret)
{
	_cleanup_(section_destroyp) struct stall_cfi_section *section = calloc(1, sizeof(*section));
	_cleanup_free_ uint8_t *table = NULL;
	struct stall_elf_place header = {}, frames;

	*ret = NULL;
	if (!section)
		return &stall_enomem;
	if (is_eh_frame ? !find_eh_frame(elf, &header, &frames)
			: !find_section(elf, ".debug_frame", &frames))
		return NULL;
	struct stall_error *err = stall_elf_place_load(elf, &frames, MAX_SECTION, &section->data);
	if (!err && header.size)
		err = stall_elf_place_load(elf, &header, MAX_SECTION, &table);
	if (err)
		return err;
	section->is_eh_frame = is_eh_frame;
	section->size = frames.size;
	section->address = frames.address;
	if (!table || !index_by_header(section, (const struct header *)table, &header))
		err = index_entries(section);
	if (err)
		return err;
	*ret = no_cleanup_ptr(section);
	return NULL;
}

bool stall_cfi_section_find(const struct stall_cfi_section *section, uint64_t address,
			    struct stall_cfi_fde *ret, bool *ret_bad)
{
	size_t low = 0, high = section->count;
	struct entry entry;

	// The last function that starts at or before the address.
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (section->functions[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0) {
		*ret_bad |= section->is_damaged;
		return false;
	}
	if (!read_entry(section, section->functions[low - 1].fde, &entry) || entry.is_cie ||
	    !read_fde(section, &entry, ret)) {
		*ret_bad = true;
		return false;
	}
	bool covers = address >= ret->start && address < ret->end;
	*ret_bad |= !covers && section->is_damaged;
	return covers;
}
