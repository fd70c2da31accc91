// SPDX-License-Identifier: GPL-2.0
/*
 * sLeAZY FPU: restore the FPU state of tasks that keep using it at the return
 * to user mode, and that of others by #NM, behind CR0.TS.
 *
 * The rule is in asm/fpu/counter.h, the hooks are in asm/fpu/lazy.h. CR0.TS
 * is written by fpregs_arm() here and __fpregs_disarm() there alone, but where
 * lazy_costs.c measures.
 */
#define pr_fmt(fmt) "x86/fpu: " fmt

#include <linux/bitops.h>
#include <linux/cc_platform.h>
#include <linux/cpu.h>
#include <linux/cpufeature.h>
#include <linux/debugfs.h>
#include <linux/device.h>
#include <linux/init.h>
#if BASE_VERSION >= 703
#include <linux/kvm_types.h>
#endif
#include <linux/mutex.h>
#include <linux/ptrace.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/uaccess.h>

#include <asm/fpu/lazy.h>
#include <asm/fpu/signal.h>
#include <asm/msr.h>
#include <asm/ptrace.h>
#include <asm/special_insns.h>

#include "context.h"
#include "internal.h"
#include "lazy_costs.h"
#include "legacy.h"
#include "xstate.h"

#define CREATE_TRACE_POINTS
#include <asm/trace/fpu_lazy.h>

DEFINE_STATIC_KEY_FALSE(fpu_lazy_key);
DEFINE_STATIC_KEY_FALSE(fpu_adaptive_key);
DEFINE_STATIC_KEY_FALSE(fpu_slow_key);

DEFINE_PER_CPU(bool, fpregs_armed);

/*
 * While armed: the state components that are not in use in the registers, which
 * does not change meanwhile. Bits that do not matter are clear.
 */
static DEFINE_PER_CPU(u32, fpregs_not_in_use);

unsigned int fpu_eager_threshold __read_mostly = FPU_EAGER_ALWAYS;
/* The same on the slow path, where fpu_eager_threshold sends all tasks there. */
static unsigned int fpu_slow_threshold __read_mostly = FPU_EAGER_ALWAYS;

/* The rule of fpu_switch=adaptive, not changed while that is in force */
static struct fpu_adaptive fpu_rule __read_mostly;

/* Its account, see asm/fpu/adaptive.h. Touched with interrupts off. */
static DEFINE_PER_CPU(int, fpu_credit);

/*
 * What keeps an armed task from another's content, for each state component. A
 * component that is not in the table makes the machine eager.
 */
enum xfeature_guard {
	UNKNOWN,
	GATED,		/* CR0.TS: each instruction that accesses it raises #NM */
	SWITCHED,	/* __switch_to() writes it, TS need not gate it */
	TASK_EAGER,	/* no task that uses it is armed, nor any on top of it */
	MACHINE_EAGER,	/* no task is armed on a machine that has it enabled */
};

static const struct {
	enum xfeature_guard guard;
	const char *name;
} xfeature_guards[] = {
	/* SDM vol. 3, 2.5 "Control Registers", CR0.TS */
	[XFEATURE_FP]		= { GATED, "x87" },
	[XFEATURE_SSE]		= { GATED, "SSE" },
	[XFEATURE_YMM]		= { GATED, "AVX" },
	[XFEATURE_OPMASK]	= { GATED, "AVX-512 opmask" },
	[XFEATURE_ZMM_Hi256]	= { GATED, "AVX-512 ZMM_Hi256" },
	[XFEATURE_Hi16_ZMM]	= { GATED, "AVX-512 Hi16_ZMM" },
	/*
	 * SDM vol. 2, BNDMK, BNDMOV etc.: no #NM among their exceptions. See
	 * fpu_switch_param().
	 */
	[XFEATURE_BNDREGS]	= { MACHINE_EAGER, "MPX" },
	[XFEATURE_BNDCSR]	= { MACHINE_EAGER, "MPX" },
	/* SDM vol. 2, RDPKRU and WRPKRU: #GP and #UD only */
	[XFEATURE_PKRU]		= { SWITCHED, "PKRU" },
	/* SDM vol. 2, ENQCMD reads the MSR. See try_fixup_enqcmd_gp(), too. */
	[XFEATURE_PASID]	= { MACHINE_EAGER, "PASID" },
#if BASE_VERSION >= 612
	/* SDM vol. 1, "Shadow Stacks": each CALL and RET changes SSP. */
	[XFEATURE_CET_USER]	= { TASK_EAGER, "CET" },
#endif
	/* SDM vol. 2, TILE*: #NM by XFD alone, and by that for tile data only */
	[XFEATURE_XTILE_CFG]	= { MACHINE_EAGER, "AMX" },
	[XFEATURE_XTILE_DATA]	= { MACHINE_EAGER, "AMX" },
#if BASE_VERSION >= 703
	/* Loaded for guests only. In the host, user mode cannot reach the MSRs. */
	[XFEATURE_CET_KERNEL]	= { SWITCHED, "CET of the kernel" },
	/* APX specification, "EGPR": general-purpose registers, which TS ignores */
	[XFEATURE_APX]		= { MACHINE_EAGER, "APX" },
#endif
};

/* Of the enabled components, those with this guard. Set by fpu_lazy_init(). */
static u32 xfeatures_gated __ro_after_init;
static u32 xfeatures_task_eager __ro_after_init;

/*
 * Where registers may leak (X86_BUG_LAZY_FP): clear them before a task is armed
 * on top of them.
 */
static bool fpregs_clear_first __ro_after_init;
static struct fpstate cleared_fpstate __ro_after_init;
/* What XGETBV(1) tells then: the CPU may take zeros for the initial state. */
static u32 cleared_in_use __ro_after_init = ~0;

static void fpregs_arm(void)
{
	write_cr0(read_cr0() | X86_CR0_TS);
	__this_cpu_write(fpregs_armed, true);
	fpu_count(FPU_TS_SETS);
}

/*
 * Leave no data in the registers. Not by XRSTOR of the initial state: behind
 * that, XGETBV(1) would deny that anything is in use, and no task that has used
 * the FPU could ever be armed.
 */
static void fpregs_clear(void)
{
	if (use_xsave())
		os_xrstor(&cleared_fpstate, xfeatures_gated);
	else if (use_fxsr())
		fxrstor(&cleared_fpstate.regs.fxsave);
	else
		frstor(&cleared_fpstate.regs.fsave);

	__cpu_invalidate_fpregs_state();
}

/*
 * Do the registers hold state that an armed task would use, as CR0.TS does not
 * gate it? XGETBV(1) tells nothing of supervisor state.
 */
static bool fpregs_use_ungated(void)
{
#if BASE_VERSION >= 612
	u64 u_cet;

	if (!(xfeatures_task_eager & XFEATURE_MASK_CET_USER))
		return false;

#if BASE_VERSION >= 703
	rdmsrq(MSR_IA32_U_CET, u_cet);
#else
	rdmsrl(MSR_IA32_U_CET, u_cet);
#endif
	return u_cet;
#else
	return false;
#endif
}

/* The state components that @tsk has in memory, as of its last save */
static __always_inline u32 fpstate_in_use(struct task_struct *tsk)
{
#if BASE_VERSION >= 703
	return x86_task_fpu(tsk)->fpstate->regs.xsave.header.xfeatures;
#else
	return tsk->thread.fpu.fpstate->regs.xsave.header.xfeatures;
#endif
}

/*
 * CR0.TS does not stop XGETBV(1), by which dynamic linkers decide what to save
 * around a call. Would @tsk, if armed, see less in use than it has? It would
 * lack what it has of an ungated component, too.
 */
static __always_inline bool fpregs_hide_state_of(struct task_struct *tsk)
{
	return use_xsave() &&
	       unlikely(fpstate_in_use(tsk) & __this_cpu_read(fpregs_not_in_use));
}

static __always_inline void fpu_lazy_armed(struct task_struct *tsk)
{
	if (IS_ENABLED(CONFIG_X86_SLEAZY_FPU_STATS) && tsk->fpu_slice == FPU_SLICE_NONE)
		fpu_count(FPU_ARMED_SLICES);
	tsk->fpu_slice = FPU_SLICE_UNUSED;
}

/* Out of line, so that the frequent case has no registers to save */
static noinline void fpu_lazy_arm(struct task_struct *tsk)
{
	u32 in_use = ~0;

	if (fpregs_use_ungated()) {
		switch_fpu_return();
		return;
	}

	if (fpregs_clear_first)
		fpregs_clear();

	if (cpu_feature_enabled(X86_FEATURE_XGETBV1))
		in_use = xfeatures_in_use() | ~xfeatures_gated;
	__this_cpu_write(fpregs_not_in_use, ~in_use | xfeatures_task_eager);

	if (fpregs_hide_state_of(tsk)) {
		switch_fpu_return();
	} else {
		fpregs_arm();
		fpu_lazy_armed(tsk);
	}
}

/* Are the registers what @tsk's state in memory is? */
static bool fpregs_hold(struct task_struct *tsk)
{
#if BASE_VERSION >= 703
	return fpregs_state_valid(x86_task_fpu(tsk), smp_processor_id());
#else
	return fpregs_state_valid(&tsk->thread.fpu, smp_processor_id());
#endif
}

/* May @tsk be armed on what is in the registers, or will be when it is? */
static bool fpu_lazy_may_arm(struct task_struct *tsk)
{
	if (!__this_cpu_read(fpregs_armed)) {
		u32 in_use = cleared_in_use;

		if (fpregs_use_ungated())
			return false;
		if (cpu_feature_enabled(X86_FEATURE_XGETBV1) && !fpregs_clear_first)
			in_use = xfeatures_in_use() | ~xfeatures_gated;
		__this_cpu_write(fpregs_not_in_use, ~in_use | xfeatures_task_eager);
	}
	return !fpregs_hide_state_of(tsk);
}

#define fpu_trace(event, task, own)						\
do {										\
	struct task_struct *__tsk = (task);					\
										\
	trace_x86_fpu_##event(__tsk, use_xsave() ? fpstate_in_use(__tsk) :	\
						   XFEATURE_MASK_FPSSE, own);	\
} while (0)

static void fpu_slow_load(struct task_struct *tsk, bool own)
{
	if (tsk->fpu_slice == FPU_SLICE_NONE) {
		fpu_count(FPU_EAGER_SLICES);
		fpu_trace(eager, tsk, own);
	}
	/* What the registers held until the kernel used them was not looked at. */
	tsk->fpu_slice = tsk->fpu_slice == FPU_SLICE_LOADED ||
			 tsk->fpu_slice == FPU_SLICE_PROVEN ? FPU_SLICE_PROVEN :
							      FPU_SLICE_LOADED;
	switch_fpu_return();
}

enum fpu_decision { FPU_LOAD, FPU_ARM, FPU_FORCED };

/* At the first return of a slice */
static enum fpu_decision fpu_slow_decide(struct task_struct *tsk, bool own)
{
	if (fpu_counter_eager(tsk->fpu_counter, READ_ONCE(fpu_slow_threshold)))
		return FPU_LOAD;
	if (!fpu_lazy_may_arm(tsk))
		return FPU_FORCED;
	if (static_branch_unlikely(&fpu_adaptive_key) &&
	    !fpu_adaptive_arm(&fpu_rule, &tsk->fpu_counter, &tsk->fpu_habit,
			      this_cpu_ptr(&fpu_credit), __this_cpu_read(fpregs_armed), own))
		return FPU_LOAD;
	return FPU_ARM;
}

/* And when the kernel has used the FPU since: CR0.TS once more? */
static bool fpu_slow_arm_again(struct task_struct *tsk)
{
	if (fpu_lazy_may_arm(tsk) &&
	    (!static_branch_unlikely(&fpu_adaptive_key) ||
	     fpu_adaptive_set_ts(&fpu_rule, this_cpu_ptr(&fpu_credit))))
		return true;

	fpu_habit_loaded_after_all(&tsk->fpu_habit);
	return false;
}

static bool fpu_habit_steady(struct task_struct *tsk)
{
	return static_branch_unlikely(&fpu_adaptive_key) &&
	       fpu_adaptive_steady(&fpu_rule, tsk->fpu_counter, &tsk->fpu_habit,
				   __this_cpu_read(fpu_credit));
}

static void fpu_slow_armed(struct task_struct *tsk, bool own)
{
	fpu_count(FPU_ARMED_SLICES);
	fpu_trace(armed, tsk, own);
	tsk->fpu_slice = FPU_SLICE_ARMED;
}

/*
 * What the frequent paths have no room for: the adaptive rule, and the tracepoints.
 * By each rule, the same as there.
 */
static void fpu_slow_return(struct task_struct *tsk)
{
	bool own = fpregs_hold(tsk), ts = __this_cpu_read(fpregs_armed);

	if (tsk->fpu_slice == FPU_SLICE_NONE && ts && fpu_habit_steady(tsk) &&
	    !fpregs_hide_state_of(tsk)) {
		fpu_slow_armed(tsk, own);
		return;
	}

	if (tsk->fpu_slice == FPU_SLICE_NONE) {
		switch (fpu_slow_decide(tsk, own)) {
		case FPU_FORCED:
			fpu_habit_forced(&tsk->fpu_habit);
			switch_fpu_return();
			return;
		case FPU_LOAD:
			fpu_slow_load(tsk, own);
			return;
		case FPU_ARM:
			fpu_slow_armed(tsk, own);
			break;
		}
	} else if (tsk->fpu_slice != FPU_SLICE_ARMED || (!ts && !fpu_slow_arm_again(tsk))) {
		/* Not armed again is no use, as in fpu_lazy_arm(), but for a rule that looks. */
		if (tsk->fpu_slice == FPU_SLICE_ARMED && !static_branch_unlikely(&fpu_adaptive_key))
			switch_fpu_return();
		else
			fpu_slow_load(tsk, own);
		return;
	}

	if (!ts) {
		if (fpregs_clear_first)
			fpregs_clear();
		fpregs_arm();
	}
}

/*
 * Do the registers hold something else than the image that they were loaded from?
 * Looks at the first 32 bytes of what nearly all code uses. Without SSE it has to
 * say no each time, and will not be trusted for long. IRQs off.
 */
static bool fpregs_changed(struct task_struct *tsk)
{
#if BASE_VERSION >= 703
	union fpregs_state *image = &x86_task_fpu(tsk)->fpstate->regs;
#else
	union fpregs_state *image = &tsk->thread.fpu.fpstate->regs;
#endif
	static const u64 initial[4];
	const u64 *was = initial;
	u64 now[4];

	if (!boot_cpu_has(X86_FEATURE_XMM))
		return false;

	asm volatile("movups %%xmm0, (%1)\n\t"
		     "movups %%xmm1, 16(%1)" : "=m" (now) : "r" (now));
	/* What is in its initial state is not written to the image. */
	if (!use_xsave() || image->xsave.header.xfeatures & XFEATURE_MASK_SSE)
		was = (const u64 *)image->fxsave.xmm_space;
	return (now[0] ^ was[0]) | (now[1] ^ was[1]) | (now[2] ^ was[2]) | (now[3] ^ was[3]);
}

/*
 * Called before the registers are saved. A slice that was not decided on has
 * returned to user mode with what the kernel had loaded, or not at all.
 */
void __fpu_slow_slice_end(struct task_struct *prev)
{
	bool loaded = !test_tsk_thread_flag(prev, TIF_NEED_FPU_LOAD);
	unsigned char counter = prev->fpu_counter;
	/* Else this is a slice that is only traced, and its hint none to go by. */
	bool adaptive = static_branch_unlikely(&fpu_adaptive_key) &&
			!fpu_counter_eager(counter, FPU_EAGER_SLEAZY);
	bool hint, used;

	if (prev->fpu_slice == FPU_SLICE_NONE) {
		if (loaded)
			fpu_habit_forced(&prev->fpu_habit);
		return;
	}

	if (prev->fpu_slice == FPU_SLICE_ARMED && !loaded && fpu_habit_steady(prev)) {
		fpu_trace(unused, prev, false);
		fpu_count_slice(prev, false);
		prev->fpu_slice = FPU_SLICE_NONE;
		return;
	}

	/* The kernel has loaded them for itself, so that there was no trap. */
	if (adaptive && prev->fpu_slice == FPU_SLICE_ARMED && loaded) {
		fpu_habit_loaded_after_all(&prev->fpu_habit);
		prev->fpu_slice = FPU_SLICE_LOADED;
	}

	/* If they are not loaded any more, nobody has looked at them. */
	hint = prev->fpu_slice != FPU_SLICE_ARMED && loaded && !fpregs_changed(prev);
	if (prev->fpu_slice == FPU_SLICE_ARMED)
		fpu_trace(unused, prev, false);
	else
		fpu_trace(used, prev, hint);
	used = prev->fpu_slice == FPU_SLICE_PROVEN ||
	       (prev->fpu_slice == FPU_SLICE_LOADED && !(adaptive && hint));
	fpu_count_slice(prev, used);
	if (used)
		fpu_count(FPU_USED_SLICES);

	if (adaptive)
		fpu_adaptive_slice_end(&fpu_rule, &prev->fpu_counter, &prev->fpu_habit,
				       this_cpu_ptr(&fpu_credit),
				       prev->fpu_slice != FPU_SLICE_ARMED,
				       hint && prev->fpu_slice == FPU_SLICE_LOADED);
	else
		prev->fpu_counter = fpu_counter_next(counter, prev->fpu_slice != FPU_SLICE_ARMED);
	prev->fpu_slice = FPU_SLICE_NONE;

	if (counter && !prev->fpu_counter) {
		fpu_count(FPU_COUNTER_RESETS);
		fpu_trace(reset, prev, false);
	}
}

/*
 * The task is not eager by its counter.
 *
 * Once it has used the FPU in this slice, load the state at the later returns
 * as well: a softirq that ran kernel_fpu_begin() must not cost a second trap.
 *
 * What is loaded because of fpregs_hide_state_of() is forced, so not use: the
 * slice is no evidence, see fpu_lazy_slice_end().
 */
void __fpu_lazy_return(struct task_struct *tsk)
{
	lockdep_assert_irqs_disabled();

	if (static_branch_unlikely(&fpu_slow_key)) {
		fpu_slow_return(tsk);
	} else if (likely(tsk->fpu_slice == FPU_SLICE_NONE && __this_cpu_read(fpregs_armed))) {
		if (fpregs_hide_state_of(tsk))
			switch_fpu_return();
		else
			fpu_lazy_armed(tsk);
	} else if (tsk->fpu_slice == FPU_SLICE_USED) {
		switch_fpu_return();
	} else if (!__this_cpu_read(fpregs_armed)) {
		fpu_lazy_arm(tsk);
	}
	/* Or else it was armed in this slice, and the registers are as they were. */
}

bool __fpu_lazy_trap(struct pt_regs *regs)
{
	struct task_struct *tsk = current;

	lockdep_assert_irqs_disabled();

	if (!__this_cpu_read(fpregs_armed))
		return false;

	if (unlikely(fpu_costs_trapped(regs)))
		return true;

	/*
	 * A bug, or a module that executes FPU instructions on its own. The
	 * instruction is retried, with what the registers hold. The task's
	 * state is in memory and TIF_NEED_FPU_LOAD stays set: it loses nothing.
	 * Nor does the task whose state the registers hold, as that is no
	 * longer taken for valid.
	 */
	if (!user_mode(regs)) {
		__fpregs_disarm();
		__cpu_invalidate_fpregs_state();
		WARN_ONCE(1, "CR0.TS was set: FPU instruction in kernel mode at %pS",
			  (void *)regs->ip);
		return true;
	}

	fpu_count(FPU_TRAPS);
	fpu_count_trap(tsk);
	fpu_trace(trap, tsk, fpregs_hold(tsk));
	if (static_branch_unlikely(&fpu_adaptive_key))
		fpu_adaptive_trap(&fpu_rule, this_cpu_ptr(&fpu_credit));
	if (static_branch_unlikely(&fpu_slow_key)) {
		tsk->fpu_slice = FPU_SLICE_PROVEN;
	} else {
		fpu_count(FPU_USED_SLICES);
		tsk->fpu_slice = FPU_SLICE_USED;
	}
	fpregs_restore_userregs();
	return true;
}

#ifdef CONFIG_X86_DEBUG_FPU
/* The last thing before user mode, IRQs off. Asks CR0, not fpregs_armed. */
void fpu_lazy_assert_user_state(void)
{
	bool ts;

	if (!static_branch_unlikely(&fpu_lazy_key))
		return;

	ts = read_cr0() & X86_CR0_TS;
	WARN_ON_FPU(ts != __this_cpu_read(fpregs_armed));
	WARN_ON_FPU(ts != test_thread_flag(TIF_NEED_FPU_LOAD));
	if (ts) {
		WARN_ON_FPU(fpregs_use_ungated());
		WARN_ON_FPU(fpregs_hide_state_of(current));
	}
}
#endif

/*
 * The VM exit of VMX loads CR0 with what KVM has read here once, in a preemptible
 * ioctl. By then TS is clear, as vcpu_enter_guest() has loaded the registers. A TS
 * that is not of an armed task is left for KVM to complain of.
 */
unsigned long __fpu_lazy_host_cr0(void)
{
	unsigned long flags, cr0;

	/* An interrupt in between may use the FPU, and clear both. */
	local_irq_save(flags);
	cr0 = read_cr0();
	if (__this_cpu_read(fpregs_armed))
		cr0 &= ~X86_CR0_TS;
	local_irq_restore(flags);

	return cr0;
}
#if BASE_VERSION >= 703
EXPORT_SYMBOL_FOR_KVM(__fpu_lazy_host_cr0);
#else
EXPORT_SYMBOL_GPL(__fpu_lazy_host_cr0);

void __fpu_lazy_vm_entry(void)
{
	if (__this_cpu_read(fpregs_armed))
		__fpregs_disarm();
}
EXPORT_SYMBOL_GPL(__fpu_lazy_vm_entry);
#endif

#ifdef CONFIG_PROC_PID_ARCH_STATUS
/*
 * When a task computes is nobody else's business. Kernel threads have no user
 * registers, and all others have counts, the dead as well. None is in step with the
 * others.
 */
void __fpu_lazy_status(struct seq_file *m, struct task_struct *tsk)
{
	if (tsk->flags & PF_KTHREAD || !ptrace_may_access(tsk, PTRACE_MODE_READ_FSCREDS |
							      PTRACE_MODE_NOAUDIT))
		return;

	seq_printf(m, "fpu_counter:\t%u\n", READ_ONCE(tsk->fpu_counter));
#ifdef CONFIG_X86_SLEAZY_FPU_STATS
	seq_printf(m, "fpu_used_slices:\t%u\n", READ_ONCE(tsk->fpu_used_slices));
	seq_printf(m, "fpu_unused_slices:\t%u\n", READ_ONCE(tsk->fpu_unused_slices));
	seq_printf(m, "fpu_traps:\t%u\n", READ_ONCE(tsk->fpu_traps));
#endif
}
#endif

/*
 * The hooks that must be in this kernel. A link error here names the one that
 * got lost.
 */
#define FPU_LAZY_HOOK_NEEDED(hook)	".long __fpu_lazy_hook_" #hook " - .\n\t"

asm(".pushsection .init.rodata, \"a\"\n\t"
	FPU_LAZY_HOOK_NEEDED(return_to_user)
	FPU_LAZY_HOOK_NEEDED(trap)
	FPU_LAZY_HOOK_NEEDED(slice_end)
	FPU_LAZY_HOOK_NEEDED(fork)
	FPU_LAZY_HOOK_NEEDED(exec)
	FPU_LAZY_HOOK_NEEDED(init_cpu)
	FPU_LAZY_HOOK_NEEDED(restore_userregs)
	FPU_LAZY_HOOK_NEEDED(kernel_fpu_begin)
#if BASE_VERSION < 703
	FPU_LAZY_HOOK_NEEDED(drop)
#endif
	FPU_LAZY_HOOK_NEEDED(clear_user_states)
	FPU_LAZY_HOOK_NEEDED(sigreturn)
	FPU_LAZY_HOOK_NEEDED(set_bug)
#if defined(CONFIG_X86_32) || defined(CONFIG_IA32_EMULATION)
	FPU_LAZY_HOOK_NEEDED(sigreturn_ia32)
#endif
#if IS_ENABLED(CONFIG_KVM)
	FPU_LAZY_HOOK_NEEDED(swap_kvm)
#endif
#if IS_BUILTIN(CONFIG_KVM_INTEL)
	FPU_LAZY_HOOK_NEEDED(host_cr0)
#if BASE_VERSION < 703
	FPU_LAZY_HOOK_NEEDED(vm_entry)
#endif
#endif
	".popsection");

enum fpu_switch {
	FPU_SWITCH_AUTO,
	FPU_SWITCH_EAGER,
	FPU_SWITCH_SLEAZY,
	FPU_SWITCH_LAZY,
	FPU_SWITCH_ADAPTIVE,
};

static const char * const fpu_switch_names[] = {
	[FPU_SWITCH_AUTO]	= "auto",
	[FPU_SWITCH_EAGER]	= "eager",
	[FPU_SWITCH_SLEAZY]	= "sleazy",
	[FPU_SWITCH_LAZY]	= "lazy",
	[FPU_SWITCH_ADAPTIVE]	= "adaptive",
};

static enum fpu_switch fpu_switch_asked __initdata = FPU_SWITCH_AUTO;

/* In force: see fpu_switch_to() */
static enum fpu_switch fpu_switch __read_mostly = FPU_SWITCH_EAGER;

/* Why no task may be armed on this machine, or NULL */
static const char *fpu_switch_obstacle;

static int __init fpu_switch_param(char *str)
{
	int mode = match_string(fpu_switch_names, ARRAY_SIZE(fpu_switch_names), str ?: "");

	if (mode < 0) {
		pr_warn("fpu_switch=%s is none of auto, eager, sleazy, lazy, adaptive: using auto\n",
			str ?: "");
		mode = FPU_SWITCH_AUTO;
	}
	fpu_switch_asked = mode;

	/*
	 * BNDMOV and friends ignore CR0.TS. Linux has no user space interface
	 * for MPX since commit 45fc24e89b7c, but guests of KVM lose it, too.
	 */
	if (mode != FPU_SWITCH_AUTO && mode != FPU_SWITCH_EAGER)
		setup_clear_cpu_cap(X86_FEATURE_MPX);

	return 0;
}
early_param("fpu_switch", fpu_switch_param);

/* The first enabled component with which no task may be armed, or NULL */
static const char * __init fpu_lazy_guards(void)
{
	const char *obstacle = NULL;
	u64 enabled = fpu_kernel_cfg.max_features;
	unsigned int i;

	if (!use_xsave())
		return NULL;

	for_each_set_bit(i, (unsigned long *)&enabled, BITS_PER_TYPE(enabled)) {
		switch (i < ARRAY_SIZE(xfeature_guards) ? xfeature_guards[i].guard : UNKNOWN) {
		case GATED:
			xfeatures_gated |= BIT(i);
			break;
		case SWITCHED:
			break;
		case TASK_EAGER:
			xfeatures_task_eager |= BIT(i);
			break;
		case MACHINE_EAGER:
			obstacle = obstacle ?: xfeature_guards[i].name;
			break;
		case UNKNOWN:
			obstacle = obstacle ?: "an unknown xfeature";
			break;
		}
	}
	return obstacle;
}

/* Why no task may be armed on this machine, or NULL */
static const char * __init fpu_lazy_obstacle(void)
{
	if (!cpu_feature_enabled(X86_FEATURE_FPU))
		return "no FPU";
	/* Xen clears TS when it injects #NM, behind fpregs_armed. */
	if (cpu_feature_enabled(X86_FEATURE_XENPV))
		return "Xen PV guest";
	/* Each write of CR0 is an exit to the hypervisor, or worse. */
	if (cc_platform_has(CC_ATTR_GUEST_MEM_ENCRYPT))
		return "confidential guest";
	/* Its drivers use it without kernel_fpu_begin(), and it raises #NM. */
	if (boot_cpu_has(X86_FEATURE_XSTORE_EN) || boot_cpu_has(X86_FEATURE_XCRYPT_EN) ||
	    boot_cpu_has(X86_FEATURE_PHE_EN))
		return "VIA PadLock";
	/* ENCLU stores and loads the registers whatever TS says. */
	if (cpu_feature_enabled(X86_FEATURE_SGX))
		return "SGX";
	/* perf executes XSAVES and XRSTORS in NMIs. */
	if (cpu_feature_enabled(X86_FEATURE_ARCH_LBR))
		return "architectural LBR";
	return fpu_lazy_guards();
}

static void __init fpu_lazy_clear_first(void)
{
	cleared_fpstate = init_fpstate;
	if (use_xsave())
		cleared_fpstate.regs.xsave.header.xfeatures = xfeatures_gated;
	fpregs_clear_first = true;

	if (!cpu_feature_enabled(X86_FEATURE_XGETBV1))
		return;
	kernel_fpu_begin();
	fpregs_clear();
	cleared_in_use = xfeatures_in_use() | ~xfeatures_gated;
	kernel_fpu_end();
}

/*
 * What the rule is made of: measured, unless others were written to debugfs's
 * adaptive_costs. All zero if that was not possible.
 */
static struct fpu_costs fpu_rule_costs;

#define FPU_COSTS_UNKNOWN "costs that are unknown or too high"

/* Is there something to go by, within what the rule can count? */
static bool fpu_costs_known(void)
{
	const struct fpu_costs *costs = &fpu_rule_costs;

	return costs->save &&
	       max3(max(costs->save, costs->restore), max(costs->ts_set, costs->ts_clear),
		    costs->trap) <= FPU_COST_MAX;
}

/*
 * Before the first task is armed, and so not with fpu_switch=eager, which leaves
 * CR0.TS alone: does it do what all this relies on? fpu_switch_mutex is held.
 */
static void fpu_lazy_measure(void)
{
	static bool done;
	int err;

	if (done || fpu_switch_obstacle)
		return;

	done = true;
	err = fpu_costs_measure(&fpu_rule_costs);
	if (err == -ENXIO)
		fpu_switch_obstacle = "a CR0.TS that does not gate the FPU";
	else if (err)
		pr_info("FPU switching cannot be measured here\n");
}

static void fpu_adaptive_begin(void)
{
	struct fpu_costs costs = fpu_rule_costs;
	int cpu;

	/* To clear the registers takes a restore, and loses what they hold. */
	if (fpregs_clear_first)
		costs.ts_set = min_t(u64, FPU_COST_MAX, costs.ts_set + 2ULL * costs.restore);

	fpu_adaptive_init(&fpu_rule, &costs);
	for_each_possible_cpu(cpu)
		per_cpu(fpu_credit, cpu) = fpu_adaptive_start(&fpu_rule);
	static_branch_enable(&fpu_adaptive_key);
}

static const unsigned int fpu_thresholds[] = {
	[FPU_SWITCH_EAGER]	= FPU_EAGER_ALWAYS,
	[FPU_SWITCH_SLEAZY]	= FPU_EAGER_SLEAZY,
	[FPU_SWITCH_LAZY]	= FPU_EAGER_NEVER,
	[FPU_SWITCH_ADAPTIVE]	= FPU_EAGER_SLEAZY,
};

/* Held to write fpu_switch, fpu_switch_obstacle, fpu_rule_costs and fpu_tracing */
static DEFINE_MUTEX(fpu_switch_mutex);

/* Number of tracepoints that are on */
static unsigned int fpu_tracing;

/* Tracepoints are on the slow path only. */
static void fpu_switch_threshold(enum fpu_switch mode)
{
	WRITE_ONCE(fpu_eager_threshold, fpu_tracing ? FPU_EAGER_NEVER : fpu_thresholds[mode]);
}

/*
 * A child that is not on the list yet begins with what its fork gave it, by the mode
 * before: a wrong guess, not a wrong state.
 */
static void fpu_lazy_reset_all(void)
{
	struct task_struct *group, *tsk;

	read_lock(&tasklist_lock);
	for_each_process_thread(group, tsk)
		__fpu_lazy_reset(tsk);
	read_unlock(&tasklist_lock);
}

/*
 * No task may be armed before every hook is live, nor with what its fpu_slice says
 * of a time when they were not: who is armed in the middle of a slice is not
 * looked at again, see __fpu_lazy_return(). Until fpu_eager_threshold allows it,
 * nobody writes FPU_SLICE_UNUSED.
 */
static void fpu_switch_begin(enum fpu_switch mode)
{
	if (mode == FPU_SWITCH_EAGER && !fpu_tracing) {
		fpu_lazy_reset_all();
		return;
	}

	static_branch_inc(&fpu_lazy_key);
	if (mode != FPU_SWITCH_EAGER && fpu_xsave_ungated)
		pr_warn_once("XSAVE ignores CR0.TS here: it may store or load registers of other tasks\n");
	if (mode == FPU_SWITCH_ADAPTIVE)
		fpu_adaptive_begin();
	if (mode == FPU_SWITCH_ADAPTIVE || fpu_tracing)
		static_branch_enable(&fpu_slow_key);

	fpu_lazy_reset_all();
	WRITE_ONCE(fpu_slow_threshold, fpu_thresholds[mode]);
	fpu_switch_threshold(mode);
}

static void fpregs_disarm_cpu(void *unused)
{
	if (__this_cpu_read(fpregs_armed))
		__fpregs_disarm();
}

/*
 * The hooks stay live until CR0.TS is clear everywhere and stays so. A task that
 * is armed finds TIF_NEED_FPU_LOAD set when it returns from the interrupt.
 */
static void fpu_switch_end(enum fpu_switch mode)
{
	if (mode == FPU_SWITCH_EAGER && !fpu_tracing)
		return;

	WRITE_ONCE(fpu_eager_threshold, FPU_EAGER_ALWAYS);
	on_each_cpu(fpregs_disarm_cpu, NULL, 1);
	static_branch_disable(&fpu_slow_key);
	static_branch_disable(&fpu_adaptive_key);
	static_branch_dec(&fpu_lazy_key);
}

/*
 * Tasks begin anew, as when the mode changes. Not in adaptive mode, which has the hooks
 * on the slow path anyway: from now on, or no longer, all slices are sent there.
 */
static void fpu_lazy_trace(unsigned int tracing)
{
	bool changes = !tracing != !fpu_tracing && fpu_switch != FPU_SWITCH_ADAPTIVE;

	if (changes)
		fpu_switch_end(fpu_switch);
	fpu_tracing = tracing;
	if (changes)
		fpu_switch_begin(fpu_switch);
	else if (fpu_switch == FPU_SWITCH_ADAPTIVE)
		fpu_switch_threshold(fpu_switch);
}

int fpu_lazy_trace_on(void)
{
	mutex_lock(&fpu_switch_mutex);
	fpu_lazy_trace(fpu_tracing + 1);
	mutex_unlock(&fpu_switch_mutex);
	return 0;
}

void fpu_lazy_trace_off(void)
{
	mutex_lock(&fpu_switch_mutex);
	fpu_lazy_trace(fpu_tracing - 1);
	mutex_unlock(&fpu_switch_mutex);
}

/* What to say of the mode on a CPU that is affected by LazyFP */
static const char *fpu_switch_note(enum fpu_switch mode)
{
	if (mode == FPU_SWITCH_EAGER || !boot_cpu_has_bug(X86_BUG_LAZY_FP))
		return "";
	return fpregs_clear_first ? ", with registers cleared (LazyFP, CVE-2018-3665)" :
				    ", vulnerable to LazyFP (CVE-2018-3665)";
}

/* Why auto arms no task here, or NULL. fpu_switch_mutex is held. */
static const char *fpu_switch_auto_obstacle(void)
{
	const struct fpu_costs *costs = &fpu_rule_costs;

	if (fpu_switch_obstacle)
		return fpu_switch_obstacle;
	if (boot_cpu_has_bug(X86_BUG_LAZY_FP))
		return "LazyFP (CVE-2018-3665)";
	if (!fpu_costs_known())
		return FPU_COSTS_UNKNOWN;
	if (fpu_xsave_ungated)
		return "an XSAVE that ignores CR0.TS";
	/* No slice can save more than this. */
	if (costs->ts_set + costs->ts_clear >= costs->save + costs->restore)
		return "slow writes of CR0.TS";
	return NULL;
}

/* What auto is on this machine. fpu_switch_mutex is held. */
static enum fpu_switch fpu_switch_auto(void)
{
	return fpu_switch_auto_obstacle() ? FPU_SWITCH_EAGER : FPU_SWITCH_ADAPTIVE;
}

static int __init fpu_lazy_init(void)
{
	enum fpu_switch asked = fpu_switch_asked, mode = asked;
	const char *obstacle = NULL;

	mutex_lock(&fpu_switch_mutex);
	fpu_switch_obstacle = fpu_lazy_obstacle();
	if (!fpu_switch_obstacle && boot_cpu_has_bug(X86_BUG_LAZY_FP) && !cpu_mitigations_off())
		fpu_lazy_clear_first();

	if (asked != FPU_SWITCH_EAGER) {
		fpu_lazy_measure();
		obstacle = fpu_switch_obstacle;
	}
	if (asked == FPU_SWITCH_AUTO) {
		mode = fpu_switch_auto();
		obstacle = fpu_switch_auto_obstacle();
	} else if (asked == FPU_SWITCH_ADAPTIVE && !obstacle && !fpu_costs_known()) {
		obstacle = FPU_COSTS_UNKNOWN;
	}
	if (obstacle)
		mode = FPU_SWITCH_EAGER;

	pr_info("fpu_switch=%s: %s%s%s%s\n", fpu_switch_names[asked],
		fpu_switch_names[mode],
		obstacle ? ", because of " : "", obstacle ?: "", fpu_switch_note(mode));

	/* Where trace_event= has switched it on */
	fpu_switch_end(FPU_SWITCH_EAGER);
	fpu_switch = mode;
	fpu_switch_begin(mode);
	mutex_unlock(&fpu_switch_mutex);
	return 0;
}
arch_initcall(fpu_lazy_init);

#ifdef CONFIG_SYSFS
static ssize_t lazy_fp_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	bool eager = READ_ONCE(fpu_switch) == FPU_SWITCH_EAGER;
	const char *unsure = "";

	if (!boot_cpu_has_bug(X86_BUG_LAZY_FP))
		return sysfs_emit(buf, "Not affected\n");
	if (!eager && !fpregs_clear_first)
		return sysfs_emit(buf, "Vulnerable\n");

	if (boot_cpu_data.x86_vendor == X86_VENDOR_INTEL &&
	    boot_cpu_has(X86_FEATURE_HYPERVISOR))
		unsure = "; CPU unknown, depends on the hypervisor";
	return sysfs_emit(buf, "Mitigation: %s%s\n",
			  eager ? "Eager FPU switching" : "Clear FPU registers", unsure);
}
static DEVICE_ATTR_RO(lazy_fp);

static struct attribute *lazy_fp_attrs[] = {
	&dev_attr_lazy_fp.attr,
	NULL
};

static const struct attribute_group lazy_fp_group = {
	.name	= "vulnerabilities",
	.attrs	= lazy_fp_attrs,
};

static int __init fpu_lazy_sysfs(void)
{
#if BASE_VERSION >= 612
	struct device *root = bus_get_dev_root(&cpu_subsys);
	int err;

	if (!root)
		return -ENODEV;
	err = sysfs_merge_group(&root->kobj, &lazy_fp_group);
	put_device(root);
	return err;
#else
	return sysfs_merge_group(&cpu_subsys.dev_root->kobj, &lazy_fp_group);
#endif
}
late_initcall(fpu_lazy_sysfs);
#endif /* CONFIG_SYSFS */

#ifdef CONFIG_DEBUG_FS
/*
 * From one mode to another by way of eager, which starts all tasks anew. Readers of
 * fpu_switch see the old one until all is done.
 */
static int fpu_switch_to(enum fpu_switch mode)
{
	int err = 0;

	mutex_lock(&fpu_switch_mutex);
	if (mode != FPU_SWITCH_EAGER)
		fpu_lazy_measure();
	if (mode == FPU_SWITCH_AUTO)
		mode = fpu_switch_auto();

	if ((mode != FPU_SWITCH_EAGER && fpu_switch_obstacle) ||
	    (mode == FPU_SWITCH_ADAPTIVE && !fpu_costs_known())) {
		err = -EOPNOTSUPP;
	} else if (mode != fpu_switch) {
		fpu_switch_end(fpu_switch);
		fpu_switch_begin(mode);
		pr_info("fpu_switch: %s, was %s%s\n", fpu_switch_names[mode],
			fpu_switch_names[fpu_switch], fpu_switch_note(mode));
		trace_x86_fpu_mode(fpu_switch_names[fpu_switch], fpu_switch_names[mode]);
		WRITE_ONCE(fpu_switch, mode);
	}
	mutex_unlock(&fpu_switch_mutex);
	return err;
}

static int mode_show(struct seq_file *m, void *unused)
{
	seq_printf(m, "%s\n", fpu_switch_names[READ_ONCE(fpu_switch)]);
	return 0;
}

static int mode_open(struct inode *inode, struct file *file)
{
	return single_open(file, mode_show, NULL);
}

static ssize_t mode_write(struct file *file, const char __user *buf, size_t count, loff_t *pos)
{
	char word[16] = {};
	int mode, err;

	if (count >= sizeof(word))
		return -EINVAL;
	if (copy_from_user(word, buf, count))
		return -EFAULT;

	mode = sysfs_match_string(fpu_switch_names, word);
	if (mode < 0)
		return mode;

	err = fpu_switch_to(mode);
	return err ?: count;
}

static const struct file_operations mode_fops = {
	.owner		= THIS_MODULE,
	.open		= mode_open,
	.read		= seq_read,
	.write		= mode_write,
	.llseek		= seq_lseek,
	.release	= single_release,
};

/* Measured anew at each reading */
static int costs_show(struct seq_file *m, void *unused)
{
	return fpu_switch_obstacle ? -EOPNOTSUPP : fpu_costs_show(m);
}
DEFINE_SHOW_ATTRIBUTE(costs);

static int adaptive_costs_show(struct seq_file *m, void *unused)
{
	struct fpu_costs costs;

	mutex_lock(&fpu_switch_mutex);
	fpu_lazy_measure();
	costs = fpu_rule_costs;
	mutex_unlock(&fpu_switch_mutex);

	seq_printf(m, "%u %u %u %u %u\n", costs.save, costs.restore, costs.ts_set,
		   costs.ts_clear, costs.trap);
	return 0;
}

static int adaptive_costs_open(struct inode *inode, struct file *file)
{
	return single_open(file, adaptive_costs_show, NULL);
}

/* Five numbers: save, restore, setting TS, clearing TS, trap. Not while in use. */
static ssize_t adaptive_costs_write(struct file *file, const char __user *buf, size_t count,
				    loff_t *pos)
{
	unsigned long long to[5];
	char line[64] = {}, rest;
	int i, err = 0;

	if (count >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, buf, count))
		return -EFAULT;
	if (sscanf(line, "%llu %llu %llu %llu %llu %c", &to[0], &to[1], &to[2], &to[3], &to[4],
		   &rest) != 5)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(to); i++) {
		if (!to[i] || to[i] > FPU_COST_MAX)
			return -ERANGE;
	}

	mutex_lock(&fpu_switch_mutex);
	fpu_lazy_measure();
	if (fpu_switch == FPU_SWITCH_ADAPTIVE)
		err = -EBUSY;
	else
		fpu_rule_costs = (struct fpu_costs){
			.save = to[0], .restore = to[1], .ts_set = to[2],
			.ts_clear = to[3], .trap = to[4],
		};
	mutex_unlock(&fpu_switch_mutex);
	return err ?: count;
}

static const struct file_operations adaptive_costs_fops = {
	.owner		= THIS_MODULE,
	.open		= adaptive_costs_open,
	.read		= seq_read,
	.write		= adaptive_costs_write,
	.llseek		= seq_lseek,
	.release	= single_release,
};

#ifdef CONFIG_X86_SLEAZY_FPU_STATS
DEFINE_PER_CPU(unsigned long [NR_FPU_EVENTS], fpu_events);

static const char * const fpu_event_names[NR_FPU_EVENTS] = {
	[FPU_SAVES]		= "saves",
	[FPU_RESTORES]		= "restores",
	[FPU_TRAPS]		= "traps",
	[FPU_TS_SETS]		= "ts_sets",
	[FPU_TS_CLEARS]		= "ts_clears",
	[FPU_ARMED_SLICES]	= "armed_slices",
	[FPU_USED_SLICES]	= "used_slices",
	[FPU_EAGER_SLICES]	= "eager_slices",
	[FPU_COUNTER_RESETS]	= "counter_resets",
};

static int stats_show(struct seq_file *m, void *unused)
{
	int event, cpu;

	for (event = 0; event < NR_FPU_EVENTS; event++) {
		unsigned long sum = 0;

		for_each_possible_cpu(cpu)
			sum += per_cpu(fpu_events, cpu)[event];
		seq_printf(m, "%s %lu\n", fpu_event_names[event], sum);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

/* The same of each CPU. One that is offline keeps what it has counted. */
static int stats_cpus_show(struct seq_file *m, void *unused)
{
	int event, cpu;

	seq_puts(m, "cpu");
	for (event = 0; event < NR_FPU_EVENTS; event++)
		seq_printf(m, " %s", fpu_event_names[event]);
	seq_puts(m, "\n");

	for_each_present_cpu(cpu) {
		seq_printf(m, "%d", cpu);
		for (event = 0; event < NR_FPU_EVENTS; event++)
			seq_printf(m, " %lu", READ_ONCE(per_cpu(fpu_events, cpu)[event]));
		seq_puts(m, "\n");
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats_cpus);
#endif

static int __init fpu_lazy_debugfs(void)
{
	struct dentry *dir = debugfs_create_dir("fpu_switch", arch_debugfs_dir);

	debugfs_create_file("mode", 0600, dir, NULL, &mode_fops);
	debugfs_create_file("costs", 0400, dir, NULL, &costs_fops);
	debugfs_create_file("adaptive_costs", 0600, dir, NULL, &adaptive_costs_fops);
#ifdef CONFIG_X86_SLEAZY_FPU_STATS
	debugfs_create_file("stats", 0400, dir, NULL, &stats_fops);
	debugfs_create_file("stats_cpus", 0400, dir, NULL, &stats_cpus_fops);
#endif
	return 0;
}
late_initcall(fpu_lazy_debugfs);
#endif /* CONFIG_DEBUG_FS */
