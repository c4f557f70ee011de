// SPDX-License-Identifier: Apache-2.0
#include "module.h"

#include "target.h"

static NOIPA void module_hidden(void (*back)(void))
{
	back();
	KEEP_FRAME();
}

NOIPA void module_exported(void (*back)(void))
{
	module_hidden(back);
	KEEP_FRAME();
}
