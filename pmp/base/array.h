/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow. Code that appends asks for room first, so that a count never passes a capacity that
 * was computed elsewhere. */
#ifndef STALL_ARRAY_H
#define STALL_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/* Whether `*array`, with `count` elements of `*capacity`, has room for `more`, after growing if need
 * be. False: no memory; nothing has changed. What is new in it is not set. */
#define stall_array_reserve(array, count, more, capacity)                                          \
	({                                                                                         \
		size_t capacity_ = *(capacity);                                                    \
		void *grown_ = stall_array_grown(*(array), sizeof(**(array)), (count), (more),     \
						 &capacity_);                                      \
                                                                                                   \
		if (grown_) {                                                                      \
			*(array) = grown_;                                                         \
			*(capacity) = (__typeof__(*(capacity)))capacity_;                          \
		}                                                                                  \
		grown_ != NULL;                                                                    \
	})

/* Whether `*array` has room for `count` elements, for arrays that keep no capacity: what is known before
 * it is filled. False: no memory; nothing has changed. What is new in it is not set. */
#define stall_array_resize(array, count)                                                           \
	({                                                                                         \
		void *resized_ = stall_array_resized(*(array), sizeof(**(array)), (count));        \
                                                                                                   \
		if (resized_)                                                                      \
			*(array) = resized_;                                                       \
		resized_ != NULL;                                                                  \
	})

/* The array itself where it has room already. *capacity: in and out. NULL: no memory. */
void *stall_array_grown(void *array, size_t element, size_t count, size_t more, size_t *capacity);
void *stall_array_resized(void *array, size_t element, size_t count);

#endif
