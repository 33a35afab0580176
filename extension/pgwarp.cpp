// Entry point of pgwarp.so.

#include "extension/compat.h"

extern "C" {
_Pragma("GCC visibility push(default)") PG_MODULE_MAGIC;
void _PG_init(void);
_Pragma("GCC visibility pop")
}

void _PG_init(void) {}
