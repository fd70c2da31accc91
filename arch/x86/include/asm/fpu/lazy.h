/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_X86_FPU_LAZY_H
#define _ASM_X86_FPU_LAZY_H

#include <linux/jump_label.h>
#include <linux/percpu.h>
#include <linux/sched.h>

#include <asm/fpu/adaptive.h>
#include <asm/fpu/api.h>
#include <asm/fpu/counter.h>
#include <asm/special_insns.h>

struct seq_file;

/*
 * sLeAZY FPU: a task that has not used the FPU lately returns to user mode
 * armed, which is with CR0.TS set, TIF_NEED_FPU_LOAD set and its FPU state in
 * memory. Its first FPU instruction raises #NM, which loads the state.
 *
 * What the hooks below have to keep true:
 *
 *  - in user mode, CR0.TS is set if and only if TIF_NEED_FPU_LOAD is;
 *  - TIF_NEED_FPU_LOAD clear implies CR0.TS clear, at any time;
 *  - the kernel executes no FPU instruction while CR0.TS is set.
 *
 * See Documentation/arch/x86/sleazy-fpu.rst.
 */

/* What the debugfs file fpu_switch/stats counts, see there for each */
enum fpu_event {
	FPU_SAVES,
	FPU_RESTORES,
	FPU_TRAPS,
	FPU_TS_SETS,
	FPU_TS_CLEARS,
	FPU_ARMED_SLICES,
	FPU_USED_SLICES,
	FPU_EAGER_SLICES,
	FPU_COUNTER_RESETS,
	NR_FPU_EVENTS
};

#ifdef CONFIG_X86_SLEAZY_FPU_STATS
DECLARE_PER_CPU(unsigned long [NR_FPU_EVENTS], fpu_events);

static __always_inline void fpu_count(enum fpu_event event)
{
	this_cpu_inc(fpu_events[event]);
}

/*
 * What @tsk's arch_status shows. Changed by the task itself and by the switch
 * away from it, so that no two CPUs ever do at once.
 */
static __always_inline void fpu_count_slice(struct task_struct *tsk, bool used)
{
	if (used)
		tsk->fpu_used_slices++;
	else
		tsk->fpu_unused_slices++;
}

static __always_inline void fpu_count_trap(struct task_struct *tsk)
{
	tsk->fpu_traps++;
}

static __always_inline void fpu_count_from_zero(struct task_struct *tsk)
{
	tsk->fpu_used_slices = 0;
	tsk->fpu_unused_slices = 0;
	tsk->fpu_traps = 0;
}
#else
static __always_inline void fpu_count(enum fpu_event event) { }
static __always_inline void fpu_count_slice(struct task_struct *tsk, bool used) { }
static __always_inline void fpu_count_trap(struct task_struct *tsk) { }
static __always_inline void fpu_count_from_zero(struct task_struct *tsk) { }
#endif

/* task_struct::fpu_slice */
enum {
	FPU_SLICE_NONE,		/* not yet returned to user mode */
	FPU_SLICE_UNUSED,	/* returned armed */
	FPU_SLICE_USED,		/* loaded for user mode, by #NM or at the return */
	/* And on the slow path: in adaptive mode, or traced */
	FPU_SLICE_ARMED,	/* returned armed */
	FPU_SLICE_LOADED,	/* loaded at the return */
	FPU_SLICE_PROVEN,	/* loaded, and known or suspected to have been used */
};

DECLARE_STATIC_KEY_FALSE(fpu_lazy_key);
DECLARE_STATIC_KEY_FALSE(fpu_adaptive_key);
DECLARE_STATIC_KEY_FALSE(fpu_slow_key);

/*
 * This CPU's CR0.TS, so that it is neither read nor written when it is right
 * already. Belongs to the CPU: never saved, never migrated. Changed with
 * preemption disabled; set at the return to user mode only, IRQs off.
 */
DECLARE_PER_CPU(bool, fpregs_armed);

/* FPU_EAGER_* of the mode in force */
extern unsigned int fpu_eager_threshold;

void __fpu_lazy_return(struct task_struct *tsk);
bool __fpu_lazy_trap(struct pt_regs *regs);
void __fpu_slow_slice_end(struct task_struct *prev);
unsigned long __fpu_lazy_host_cr0(void);
#if BASE_VERSION < 703
void __fpu_lazy_vm_entry(void);
#endif
void __fpu_lazy_set_bug(void);
void __fpu_lazy_status(struct seq_file *m, struct task_struct *tsk);

/*
 * A kernel that loses a hook in a merge must not build: each hook defines a
 * symbol, and lazy.c refers to all of them.
 */
#define FPU_LAZY_HOOK(hook)						\
do {									\
	if (IS_ENABLED(CONFIG_X86_SLEAZY_FPU))				\
		asm volatile(".ifndef __fpu_lazy_hook_" #hook "\n\t"	\
			     ".pushsection .init.rodata, \"a\"\n\t"	\
			     ".weak __fpu_lazy_hook_" #hook "\n"	\
			     "__fpu_lazy_hook_" #hook ": .byte 0\n\t"	\
			     ".popsection\n\t"				\
			     ".endif");					\
} while (0)

/* With statistics, slices are counted in eager mode too. */
static __always_inline bool fpu_lazy_enabled(void)
{
	return IS_ENABLED(CONFIG_X86_SLEAZY_FPU) &&
	       (IS_ENABLED(CONFIG_X86_SLEAZY_FPU_STATS) ||
		static_branch_likely(&fpu_lazy_key));
}

/*
 * CLTS, as it does not serialize and a write to CR0 does. First the register,
 * then the variable: an interrupt in between may use the FPU.
 */
static __always_inline void __fpregs_disarm(void)
{
	asm volatile("clts" : : : "memory");
	__this_cpu_write(fpregs_armed, false);
	fpu_count(FPU_TS_CLEARS);
}

/*
 * Clear CR0.TS on this CPU. To be called before the kernel uses the FPU
 * registers or clears TIF_NEED_FPU_LOAD, with preemption disabled until it
 * has done so.
 *
 * Nothing sets TS again but a return to user mode. So an interrupt that
 * comes in between and disarms as well does no harm.
 *
 * @hook names the caller in FPU_LAZY_HOOK().
 */
#define fpregs_disarm(hook)						\
do {									\
	FPU_LAZY_HOOK(hook);						\
	if (fpu_lazy_enabled() && __this_cpu_read(fpregs_armed))	\
		__fpregs_disarm();					\
} while (0)

/* This CPU has just cleared CR0.TS by itself, as it came up. */
static __always_inline void fpu_lazy_init_cpu(void)
{
	FPU_LAZY_HOOK(init_cpu);

	if (IS_ENABLED(CONFIG_X86_SLEAZY_FPU))
		__this_cpu_write(fpregs_armed, false);
}

/*
 * #NM: true if it was CR0.TS that raised it and the instruction can be
 * retried. IRQs off.
 */
static __always_inline bool fpu_lazy_trap(struct pt_regs *regs)
{
	FPU_LAZY_HOOK(trap);

	return fpu_lazy_enabled() && __fpu_lazy_trap(regs);
}

/* The boot CPU is being identified: may its registers leak? */
static __always_inline void fpu_lazy_set_bug(void)
{
	FPU_LAZY_HOOK(set_bug);

	if (IS_ENABLED(CONFIG_X86_SLEAZY_FPU))
		__fpu_lazy_set_bug();
}

/* Lines of /proc/PID/arch_status */
static inline void fpu_lazy_status(struct seq_file *m, struct task_struct *tsk)
{
	if (IS_ENABLED(CONFIG_X86_SLEAZY_FPU))
		__fpu_lazy_status(m, tsk);
}

/* CR0 for HOST_CR0 of VMX, see __fpu_lazy_host_cr0(). */
static __always_inline unsigned long fpu_lazy_host_cr0(void)
{
	FPU_LAZY_HOOK(host_cr0);

	return IS_ENABLED(CONFIG_X86_SLEAZY_FPU) ? __fpu_lazy_host_cr0() : read_cr0();
}
#if BASE_VERSION < 703

/*
 * A VM entry of VMX without the task's registers, which vcpu_enter_guest() loads
 * before any other: the exit clears TS, so clear it here, where that is noticed.
 * Preemption disabled.
 */
static __always_inline void fpu_lazy_vm_entry(void)
{
	FPU_LAZY_HOOK(vm_entry);

	if (IS_ENABLED(CONFIG_X86_SLEAZY_FPU))
		__fpu_lazy_vm_entry();
}
#endif

#ifdef CONFIG_X86_SLEAZY_FPU
/*
 * Return to user mode with TIF_NEED_FPU_LOAD set: load or arm. IRQs off.
 *
 * What is loaded is always valid: unlike in 2008, when a task could be eager
 * and have no state in memory yet (commit 870568b39064), every user task has
 * an fpstate from fork on.
 */
static __always_inline void fpu_lazy_return(void)
{
	struct task_struct *tsk;

	FPU_LAZY_HOOK(return_to_user);

	if (!fpu_lazy_enabled()) {
		switch_fpu_return();
		return;
	}

	tsk = current;
	/* That of a mode before or after is right, too: fpu_switch_end() disarms all CPUs. */
	if (fpu_counter_eager(tsk->fpu_counter, data_race(fpu_eager_threshold))) {
		if (IS_ENABLED(CONFIG_X86_SLEAZY_FPU_STATS) &&
		    tsk->fpu_slice != FPU_SLICE_USED) {
			fpu_count(FPU_EAGER_SLICES);
			fpu_count(FPU_USED_SLICES);
		}
		tsk->fpu_slice = FPU_SLICE_USED;
		switch_fpu_return();
	} else {
		__fpu_lazy_return(tsk);
	}
}

static __always_inline void __fpu_lazy_reset(struct task_struct *tsk)
{
	/* In this order: a slice that ends in between must not be counted. */
	WRITE_ONCE(tsk->fpu_slice, FPU_SLICE_NONE);
	WRITE_ONCE(tsk->fpu_counter, 0);
	if (static_branch_unlikely(&fpu_adaptive_key))
		fpu_habit_reset(&tsk->fpu_counter, &tsk->fpu_habit);
}

/* @dst is a copy of current, but a new task. */
static __always_inline void fpu_lazy_fork(struct task_struct *dst)
{
	FPU_LAZY_HOOK(fork);
	__fpu_lazy_reset(dst);
	fpu_count_from_zero(dst);
}

/* Current runs a new program. */
static __always_inline void fpu_lazy_exec(void)
{
	FPU_LAZY_HOOK(exec);
	__fpu_lazy_reset(current);
}

static __always_inline void __fpu_lazy_slice_end(struct task_struct *prev, bool used)
{
	unsigned char counter = fpu_counter_next(prev->fpu_counter, used);

	if (IS_ENABLED(CONFIG_X86_SLEAZY_FPU_STATS) && prev->fpu_counter && !counter)
		fpu_count(FPU_COUNTER_RESETS);
	fpu_count_slice(prev, used);

	prev->fpu_counter = counter;
	prev->fpu_slice = FPU_SLICE_NONE;
}

/*
 * Called by __switch_to(), before it saves the registers. Kernel threads never
 * leave FPU_SLICE_NONE, nor does a slice whose registers the kernel had to load
 * for itself (for a signal frame, fork, a vCPU) before the first return to user
 * mode: then neither use nor disuse can be seen, and the counter stays. If it had
 * to do so after that return, an armed slice counts as unused: what the kernel
 * loads for itself is no use, and no trap tells of one that follows.
 */
static __always_inline void fpu_lazy_slice_end(struct task_struct *prev)
{
	FPU_LAZY_HOOK(slice_end);

	if (!fpu_lazy_enabled())
		return;

	/* Two calls, so that the frequent case is one compare and two stores. */
	if (likely(prev->fpu_slice == FPU_SLICE_USED))
		__fpu_lazy_slice_end(prev, true);
	else if (prev->fpu_slice == FPU_SLICE_UNUSED)
		__fpu_lazy_slice_end(prev, false);
	else if (static_branch_unlikely(&fpu_slow_key))
		__fpu_slow_slice_end(prev);
}
#else
static __always_inline void fpu_lazy_return(void)
{
	switch_fpu_return();
}

static inline void fpu_lazy_fork(struct task_struct *dst) { }
static inline void fpu_lazy_exec(void) { }
static inline void fpu_lazy_slice_end(struct task_struct *prev) { }
#endif /* CONFIG_X86_SLEAZY_FPU */

#if defined(CONFIG_X86_SLEAZY_FPU) && defined(CONFIG_X86_DEBUG_FPU)
void fpu_lazy_assert_user_state(void);
#else
static inline void fpu_lazy_assert_user_state(void) { }
#endif

#endif /* _ASM_X86_FPU_LAZY_H */
