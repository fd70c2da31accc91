// SPDX-License-Identifier: GPL-2.0
/* What both programs need */
#include <stdarg.h>
#include <stdlib.h>

#include "lab.h"

void die(const char *fmt, ...)
{
	va_list args;

	fflush(stdout);
	fputs("fpu-lab: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(2);
}

void *alloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		die("out of memory");
	return p;
}
