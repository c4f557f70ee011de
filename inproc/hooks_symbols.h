/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a function of another loaded object, as dlvsym(RTLD_NEXT) would, by reading the tables of
 * the loader: dlvsym(3) takes the loader's lock, allocates where it fails, and without a version
 * finds the condition variables of glibc 2.2.5. Nothing here takes a lock or calls anything, so it
 * works in any thread, under any lock, and before the constructor has run.
 */
#ifndef STALL_HOOKS_SYMBOLS_H
#define STALL_HOOKS_SYMBOLS_H

/* Returns the function that a call of this name would reach without this library: the first
 * definition behind it, up to the C library, with this version or none. NULL: there is none, or the
 * loader has not linked this library yet. */
void *symbol_find(const char *name, const char *version);

/* How many objects are loaded; 0: the loader has not linked this library yet. */
int symbol_objects(void);

#endif
