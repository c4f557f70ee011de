// SPDX-License-Identifier: Apache-2.0
// The numbers of debugging information, by the names of DWARF 5, 7.5 and 7.7; those of GNU by
// the names of elfutils.
#ifndef STALL_DWARF_NUMBERS_H
#define STALL_DWARF_NUMBERS_H

enum {
	DW_UT_compile = 0x01,
	DW_UT_type = 0x02,
	DW_UT_partial = 0x03,
	DW_UT_skeleton = 0x04,
	DW_UT_split_compile = 0x05,
	DW_UT_split_type = 0x06,
};

enum {
	DW_TAG_class_type = 0x02,
	DW_TAG_member = 0x0d,
	DW_TAG_compile_unit = 0x11,
	DW_TAG_structure_type = 0x13,
	DW_TAG_typedef = 0x16,
	DW_TAG_union_type = 0x17,
	DW_TAG_inheritance = 0x1c,
	DW_TAG_const_type = 0x26,
	DW_TAG_volatile_type = 0x35,
	DW_TAG_namespace = 0x39,
	DW_TAG_partial_unit = 0x3c,
	DW_TAG_type_unit = 0x41,
	DW_TAG_atomic_type = 0x47,
	DW_TAG_skeleton_unit = 0x4a,
};

enum {
	DW_AT_sibling = 0x01,
	DW_AT_name = 0x03,
	DW_AT_byte_size = 0x0b,
	DW_AT_bit_size = 0x0d,
	DW_AT_data_member_location = 0x38,
	DW_AT_declaration = 0x3c,
	DW_AT_external = 0x3f,
	DW_AT_type = 0x49,
	DW_AT_virtuality = 0x4c,
	DW_AT_signature = 0x69,
	DW_AT_data_bit_offset = 0x6b,
	DW_AT_str_offsets_base = 0x72,
	DW_AT_dwo_name = 0x76,
	DW_AT_GNU_dwo_name = 0x2130,
};

enum {
	DW_FORM_addr = 0x01,
	DW_FORM_block2 = 0x03,
	DW_FORM_block4 = 0x04,
	DW_FORM_data2 = 0x05,
	DW_FORM_data4 = 0x06,
	DW_FORM_data8 = 0x07,
	DW_FORM_string = 0x08,
	DW_FORM_block = 0x09,
	DW_FORM_block1 = 0x0a,
	DW_FORM_data1 = 0x0b,
	DW_FORM_flag = 0x0c,
	DW_FORM_sdata = 0x0d,
	DW_FORM_strp = 0x0e,
	DW_FORM_udata = 0x0f,
	DW_FORM_ref_addr = 0x10,
	DW_FORM_ref1 = 0x11,
	DW_FORM_ref2 = 0x12,
	DW_FORM_ref4 = 0x13,
	DW_FORM_ref8 = 0x14,
	DW_FORM_ref_udata = 0x15,
	DW_FORM_indirect = 0x16,
	DW_FORM_sec_offset = 0x17,
	DW_FORM_exprloc = 0x18,
	DW_FORM_flag_present = 0x19,
	DW_FORM_strx = 0x1a,
	DW_FORM_addrx = 0x1b,
	DW_FORM_ref_sup4 = 0x1c,
	DW_FORM_strp_sup = 0x1d,
	DW_FORM_data16 = 0x1e,
	DW_FORM_line_strp = 0x1f,
	DW_FORM_ref_sig8 = 0x20,
	DW_FORM_implicit_const = 0x21,
	DW_FORM_loclistx = 0x22,
	DW_FORM_rnglistx = 0x23,
	DW_FORM_ref_sup8 = 0x24,
	DW_FORM_strx1 = 0x25,
	DW_FORM_strx2 = 0x26,
	DW_FORM_strx3 = 0x27,
	DW_FORM_strx4 = 0x28,
	DW_FORM_addrx1 = 0x29,
	DW_FORM_addrx2 = 0x2a,
	DW_FORM_addrx3 = 0x2b,
	DW_FORM_addrx4 = 0x2c,
	DW_FORM_GNU_addr_index = 0x1f01,
	DW_FORM_GNU_str_index = 0x1f02,
	DW_FORM_GNU_ref_alt = 0x1f20,
	DW_FORM_GNU_strp_alt = 0x1f21,
};

enum {
	DW_OP_const1u_location = 0x08,
	DW_OP_constu_location = 0x10,
	DW_OP_plus_uconst_location = 0x23,
};

#endif
