/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __X86_KERNEL_FPU_LAZY_COSTS_H
#define __X86_KERNEL_FPU_LAZY_COSTS_H

#include <asm/fpu/adaptive.h>
#include <asm/fpu/lazy.h>
#include <asm/ptrace.h>

struct seq_file;

/* The FNOP and the XSAVE that are to raise #NM. Nobody but lazy_costs.c executes them. */
extern const char fpu_costs_trap[], fpu_costs_trap_by_xsave[];

extern bool fpu_xsave_ungated;

/* #NM in kernel mode: true if it was asked for. CR0.TS is clear then, and not counted. */
static inline bool fpu_costs_trapped(struct pt_regs *regs)
{
	if (regs->ip != (unsigned long)fpu_costs_trap &&
	    regs->ip != (unsigned long)fpu_costs_trap_by_xsave)
		return false;

	asm volatile("clts" : : : "memory");
	__this_cpu_write(fpregs_armed, false);
	return true;
}

int fpu_costs_measure(struct fpu_costs *costs);
int fpu_costs_show(struct seq_file *m);

#endif /* __X86_KERNEL_FPU_LAZY_COSTS_H */
