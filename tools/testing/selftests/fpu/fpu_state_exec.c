// SPDX-License-Identifier: GPL-2.0
/*
 * What a new program finds in its registers: written to standard output.
 *
 * Built without C library and start files, whose code uses vector registers.
 */
#include <asm/unistd.h>

#include "fpu_regs.h"

static struct fpu_image image;

static long sys_call(long nr, long a, long b, long c)
{
	long ret;

#ifdef __x86_64__
	asm volatile("syscall"
		     : "=a" (ret)
		     : "0" (nr), "D" (a), "S" (b), "d" (c)
		     : "rcx", "r11", "memory");
#else
	asm volatile("int $0x80"
		     : "=a" (ret)
		     : "0" (nr), "b" (a), "c" (b), "d" (c)
		     : "memory");
#endif
	return ret;
}

void _start(void)
{
	fpu_store(&image, fpu_xfeatures());
	sys_call(__NR_write, 1, (long)&image, sizeof(image));
	sys_call(__NR_exit, 0, 0, 0);
}
