// SPDX-License-Identifier: Apache-2.0
// A shared object that programs load late: it calls them back.
#ifndef MODULE_H
#define MODULE_H

void module_exported(void (*back)(void));

#endif
