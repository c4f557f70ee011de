// SPDX-License-Identifier: Apache-2.0
// The records that a capture file has from this program, and their fields: docs/capture-format.md.
// In Python: stallscope/model/capture.py; tests/unit/test_captureformat.py compares them.
//
// A file that includes this writes records by the functions below alone, one for each record and
// each field, so that a field without a line here cannot be written, nor with another type:
//	stall_record_thread(json);			{"type":"thread"
//	stall_put_thread_tid(json, 12);			,"tid":12
//	stall_put_thread_syscall(json);			,"syscall":	an object is yours to write
#ifndef STALL_CAPTURE_FIELDS_H
#define STALL_CAPTURE_FIELDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json_writer.h"

// In the order in which a file has them.
#define STALL_CAPTURE_RECORDS(RECORD)                                                              \
	RECORD(capture)                                                                            \
	RECORD(process)                                                                            \
	RECORD(module)                                                                             \
	RECORD(frame)                                                                              \
	RECORD(stack)                                                                              \
	RECORD(lock)                                                                               \
	RECORD(thread)                                                                             \
	RECORD(release)                                                                            \
	RECORD(sample)                                                                             \
	RECORD(note)                                                                               \
	RECORD(trigger)                                                                            \
	RECORD(end)                                                                                \
	RECORD(burst)

// Record or object, field, type, always or optional. An object's fields stand below its own name.
#define STALL_CAPTURE_FIELDS(FIELD)                                                                \
	FIELD(capture, schema, string, always)                                                     \
	FIELD(capture, tool, object, always)                                                       \
	FIELD(tool, name, string, always)                                                          \
	FIELD(tool, version, string, always)                                                       \
	FIELD(capture, time, string, always)                                                       \
	FIELD(capture, time_ns, uint, always)                                                      \
	FIELD(capture, host, object, always)                                                       \
	FIELD(host, name, string, always)                                                          \
	FIELD(host, kernel, string, always)                                                        \
	FIELD(host, arch, string, always)                                                          \
	FIELD(host, cpus, int, always)                                                             \
	FIELD(capture, backend, string, always)                                                    \
	FIELD(capture, backend_reason, string_or_null, always)                                     \
	FIELD(capture, snapshot_ns, uint, always)                                                  \
	FIELD(capture, moment, uint, optional)                                                     \
	FIELD(process, id, uint, always)                                                           \
	FIELD(process, pid, int, always)                                                           \
	FIELD(process, ppid, int, always)                                                          \
	FIELD(process, start_time, uint, always)                                                   \
	FIELD(process, comm, chars, always)                                                        \
	FIELD(process, exe, string_or_null, always)                                                \
	FIELD(process, exe_deleted, bool, always)                                                  \
	FIELD(process, cmdline, list_of_string, always)                                            \
	FIELD(process, strings, object, always)                                                    \
	FIELD(process, threads_lost, uint, always)                                                 \
	FIELD(module, id, uint, always)                                                            \
	FIELD(module, process, uint, always)                                                       \
	FIELD(module, path, string, always)                                                        \
	FIELD(module, start, hex, always)                                                          \
	FIELD(module, end, hex, always)                                                            \
	FIELD(module, bias, hex, always)                                                           \
	FIELD(module, build_id, string_or_null, always)                                            \
	FIELD(module, deleted, bool, always)                                                       \
	FIELD(module, symbols, string, always)                                                     \
	FIELD(module, cfi, string, always)                                                         \
	FIELD(module, debug_file, string_or_null, always)                                          \
	FIELD(module, error, string_or_null, always)                                               \
	FIELD(frame, id, uint, always)                                                             \
	FIELD(frame, kernel, bool, optional)                                                       \
	FIELD(frame, process, id_or_null, always)                                                  \
	FIELD(frame, module, id_or_null, always)                                                   \
	FIELD(frame, pc, hex, always)                                                              \
	FIELD(frame, offset, hex_or_null, always)                                                  \
	FIELD(frame, symbol, string_or_null, always)                                               \
	FIELD(frame, linkage, string_or_null, always)                                              \
	FIELD(frame, symbol_offset, uint_or_null, always)                                          \
	FIELD(frame, same_name, uint, optional)                                                    \
	FIELD(stack, id, uint, always)                                                             \
	FIELD(stack, frames, list_of_int, always)                                                  \
	FIELD(lock, id, uint, always)                                                              \
	FIELD(lock, process, uint, always)                                                         \
	FIELD(lock, address, hex, always)                                                          \
	FIELD(lock, futex, hex_or_null, always)                                                    \
	FIELD(lock, kind, string, always)                                                          \
	FIELD(lock, owner_tid, uint_or_null, always)                                               \
	FIELD(lock, owner_raw, uint, optional)                                                     \
	FIELD(lock, readers, uint_or_null, always)                                                 \
	FIELD(lock, waiters, uint, always)                                                         \
	FIELD(lock, symbol, string_or_null, always)                                                \
	FIELD(lock, stable, bool, always)                                                          \
	FIELD(lock, source, string, always)                                                        \
	FIELD(lock, created, string, optional)                                                     \
	FIELD(lock, mode, string, optional)                                                        \
	FIELD(thread, process, uint, always)                                                       \
	FIELD(thread, tid, int, always)                                                            \
	FIELD(thread, ns_tid, int, optional)                                                       \
	FIELD(thread, name, chars, always)                                                         \
	FIELD(thread, state, chars, always)                                                        \
	FIELD(thread, on_cpu, bool, always)                                                        \
	FIELD(thread, own, bool, optional)                                                         \
	FIELD(thread, label, string, always)                                                       \
	FIELD(thread, label_reason, string, optional)                                              \
	FIELD(thread, passes, uint, always)                                                        \
	FIELD(thread, stopped_ns, uint, always)                                                    \
	FIELD(thread, switches, uint, always)                                                      \
	FIELD(thread, syscall, object_or_null, always)                                             \
	FIELD(syscall, nr, int, always)                                                            \
	FIELD(syscall, name, string_or_null, always)                                               \
	FIELD(syscall, args, list_of_hex, always)                                                  \
	FIELD(thread, file, object, optional)                                                      \
	FIELD(file, path, string, always)                                                          \
	FIELD(file, mount, string_or_null, always)                                                 \
	FIELD(file, device, string_or_null, always)                                                \
	FIELD(file, type, string_or_null, always)                                                  \
	FIELD(thread, stack, id_or_null, always)                                                   \
	FIELD(thread, kernel_stack, id_or_null, always)                                            \
	FIELD(thread, unwind, string, always)                                                      \
	FIELD(thread, live_reads, uint, optional)                                                  \
	FIELD(thread, lock, id_or_null, always)                                                    \
	FIELD(thread, waited_ns, uint, optional)                                                   \
	FIELD(release, process, uint, always)                                                      \
	FIELD(release, tid, int, always)                                                           \
	FIELD(release, lock, id_or_null, always)                                                   \
	FIELD(release, name, chars, always)                                                        \
	FIELD(release, stack, id_or_null, always)                                                  \
	FIELD(release, label, string, always)                                                      \
	FIELD(release, ago_ns, uint, always)                                                       \
	FIELD(release, waited_ns, uint_or_null, always)                                            \
	FIELD(release, count, uint, optional)                                                      \
	FIELD(sample, process, uint, always)                                                       \
	FIELD(sample, tid, int, always)                                                            \
	FIELD(sample, name, chars, always)                                                         \
	FIELD(sample, stack, id_or_null, always)                                                   \
	FIELD(sample, kernel_stack, id_or_null, always)                                            \
	FIELD(sample, label, string, always)                                                       \
	FIELD(sample, count, uint, optional)                                                       \
	FIELD(note, code, string, always)                                                          \
	FIELD(note, message, string, always)                                                       \
	FIELD(trigger, reason, string, always)                                                     \
	FIELD(trigger, kind, string, always)                                                       \
	FIELD(trigger, name, string_or_null, always)                                               \
	FIELD(trigger, address, hex_or_null, always)                                               \
	FIELD(trigger, pid, int, always)                                                           \
	FIELD(trigger, tid, int, always)                                                           \
	FIELD(trigger, length_ms, ms, always)                                                      \
	FIELD(trigger, threshold_ms, ms, always)                                                   \
	FIELD(trigger, waiters, uint, always)                                                      \
	FIELD(trigger, delay_ms, ms, always)                                                       \
	FIELD(trigger, copied_ms, ms, always)                                                      \
	FIELD(trigger, finished_ms, ms, always)                                                    \
	FIELD(trigger, suppressed, uint, always)                                                   \
	FIELD(end, threads, uint, always)                                                          \
	FIELD(end, labels, object, always)                                                         \
	FIELD(labels, verified, uint, always)                                                      \
	FIELD(labels, raced, uint, always)                                                         \
	FIELD(labels, running, uint, always)                                                       \
	FIELD(labels, truncated, uint, always)                                                     \
	FIELD(end, stopped_ns, uint, always)                                                       \
	FIELD(end, elapsed_ns, uint, always)                                                       \
	FIELD(end, phases, object, always)                                                         \
	FIELD(phases, attach_ns, uint, always)                                                     \
	FIELD(phases, snapshot_ns, uint, always)                                                   \
	FIELD(phases, unwind_ns, uint, always)                                                     \
	FIELD(phases, locks_ns, uint, always)                                                      \
	FIELD(phases, write_ns, uint, always)                                                      \
	FIELD(end, live_reads, uint, always)                                                       \
	FIELD(end, unchanged, uint, optional)                                                      \
	FIELD(end, ended, list_of_int, optional)                                                   \
	FIELD(end, sample_period_ns, uint, optional)                                               \
	FIELD(end, sample_window_ns, uint, optional)                                               \
	FIELD(end, sample_cpus, uint, optional)                                                    \
	FIELD(end, samples_lost, uint, optional)                                                   \
	FIELD(burst, wanted, uint, always)                                                         \
	FIELD(burst, taken, uint, always)                                                          \
	FIELD(burst, failed, uint, always)                                                         \
	FIELD(burst, ended, string_or_null, always)

#define STALL_DEFINE_RECORD(record)                                                                \
	static inline void stall_record_##record(struct stall_json *json)                          \
	{                                                                                          \
		stall_json_open(json, '{');                                                        \
		stall_json_member_string(json, "type", #record);                                   \
	}

#define STALL_DEFINE_VALUE(record, field, type, kind)                                              \
	static inline void stall_put_##record##_##field(struct stall_json *json, type value)       \
	{                                                                                          \
		stall_json_member_##kind(json, #field, value);                                     \
	}
#define STALL_DEFINE_string(record, field) STALL_DEFINE_VALUE(record, field, const char *, string)
#define STALL_DEFINE_string_or_null(record, field) STALL_DEFINE_string(record, field)
#define STALL_DEFINE_bool(record, field) STALL_DEFINE_VALUE(record, field, bool, bool)
#define STALL_DEFINE_int(record, field) STALL_DEFINE_VALUE(record, field, int64_t, int)
#define STALL_DEFINE_uint(record, field) STALL_DEFINE_VALUE(record, field, uint64_t, uint)
#define STALL_DEFINE_hex(record, field) STALL_DEFINE_VALUE(record, field, uint64_t, hex)
#define STALL_DEFINE_ms(record, field) STALL_DEFINE_VALUE(record, field, uint64_t, ms) // from ns

// Characters that need not end with a zero.
#define STALL_DEFINE_chars(record, field)                                                          \
	static inline void stall_put_##record##_##field(struct stall_json *json,                   \
							const char *bytes, size_t size)            \
	{                                                                                          \
		stall_json_key(json, #field);                                                      \
		stall_json_string_n(json, bytes, size);                                            \
	}

// Null where it is not known.
#define STALL_DEFINE_KNOWN(record, field, kind)                                                    \
	static inline void stall_put_##record##_##field(struct stall_json *json, bool known,       \
							uint64_t value)                            \
	{                                                                                          \
		stall_json_key(json, #field);                                                      \
		if (known)                                                                         \
			stall_json_##kind(json, value);                                            \
		else                                                                               \
			stall_json_null(json);                                                     \
	}
#define STALL_DEFINE_uint_or_null(record, field) STALL_DEFINE_KNOWN(record, field, uint)
#define STALL_DEFINE_hex_or_null(record, field) STALL_DEFINE_KNOWN(record, field, hex)

// Null is UINT32_MAX.
#define STALL_DEFINE_id_or_null(record, field)                                                     \
	static inline void stall_put_##record##_##field(struct stall_json *json, uint32_t id)      \
	{                                                                                          \
		stall_json_key(json, #field);                                                      \
		if (id == UINT32_MAX)                                                              \
			stall_json_null(json);                                                     \
		else                                                                               \
			stall_json_uint(json, id);                                                 \
	}

#define STALL_DEFINE_KEY(record, field)                                                            \
	static inline void stall_put_##record##_##field(struct stall_json *json)                   \
	{                                                                                          \
		stall_json_key(json, #field);                                                      \
	}
#define STALL_DEFINE_object(record, field) STALL_DEFINE_KEY(record, field)
#define STALL_DEFINE_object_or_null(record, field) STALL_DEFINE_KEY(record, field)
#define STALL_DEFINE_list_of_string(record, field) STALL_DEFINE_KEY(record, field)
#define STALL_DEFINE_list_of_int(record, field) STALL_DEFINE_KEY(record, field)
#define STALL_DEFINE_list_of_hex(record, field) STALL_DEFINE_KEY(record, field)

#define STALL_DEFINE_FIELD(record, field, type, presence) STALL_DEFINE_##type(record, field)

STALL_CAPTURE_RECORDS(STALL_DEFINE_RECORD)
STALL_CAPTURE_FIELDS(STALL_DEFINE_FIELD)

#pragma GCC poison stall_json_key stall_json_member_string stall_json_member_bool
#pragma GCC poison stall_json_member_int stall_json_member_uint stall_json_member_hex
#pragma GCC poison stall_json_member_ms

#endif
