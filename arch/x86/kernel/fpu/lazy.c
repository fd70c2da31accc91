// SPDX-License-Identifier: GPL-2.0
/*
 * sLeAZY FPU: restore the FPU state of tasks that keep using it at the return
 * to user mode, and that of others by #NM, behind CR0.TS.
 *
 * The rule is in asm/fpu/counter.h, the hooks are in asm/fpu/lazy.h. CR0.TS
 * is written by fpregs_arm() here and __fpregs_disarm() there alone.
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
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include <asm/fpu/lazy.h>
#include <asm/fpu/signal.h>
#include <asm/msr.h>
#include <asm/ptrace.h>
#include <asm/special_insns.h>

#include "context.h"
#include "internal.h"
#include "legacy.h"
#include "xstate.h"

DEFINE_STATIC_KEY_FALSE(fpu_lazy_key);

DEFINE_PER_CPU(bool, fpregs_armed);

/*
 * While armed: the state components in use in the registers, which do not
 * change meanwhile. All bits that do not matter are set.
 */
static DEFINE_PER_CPU(u32, fpregs_in_use);

unsigned int fpu_eager_threshold __ro_after_init = FPU_EAGER_ALWAYS;

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

/*
 * CR0.TS does not stop XGETBV(1), by which dynamic linkers decide what to save
 * around a call. Would @tsk, if armed, see less in use than it has? It would
 * lack what it has of an ungated component, too.
 */
static __always_inline bool fpregs_hide_state_of(struct task_struct *tsk)
{
	u32 own;

	if (!use_xsave())
		return false;

#if BASE_VERSION >= 703
	own = x86_task_fpu(tsk)->fpstate->regs.xsave.header.xfeatures;
#else
	own = tsk->thread.fpu.fpstate->regs.xsave.header.xfeatures;
#endif
	return unlikely(own & ~__this_cpu_read(fpregs_in_use));
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
	__this_cpu_write(fpregs_in_use, in_use & ~xfeatures_task_eager);

	if (fpregs_hide_state_of(tsk)) {
		switch_fpu_return();
	} else {
		fpregs_arm();
		fpu_lazy_armed(tsk);
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

	if (unlikely(tsk->fpu_slice == FPU_SLICE_USED)) {
		switch_fpu_return();
	} else if (!__this_cpu_read(fpregs_armed)) {
		fpu_lazy_arm(tsk);
	} else if (tsk->fpu_slice == FPU_SLICE_NONE) {
		if (fpregs_hide_state_of(tsk))
			switch_fpu_return();
		else
			fpu_lazy_armed(tsk);
	}
	/* Or else it was armed in this slice, and the registers are as they were. */
}

bool __fpu_lazy_trap(struct pt_regs *regs)
{
	struct task_struct *tsk = current;

	lockdep_assert_irqs_disabled();

	if (!__this_cpu_read(fpregs_armed))
		return false;

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
	fpu_count(FPU_USED_SLICES);
	tsk->fpu_slice = FPU_SLICE_USED;
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
};

static const char * const fpu_switch_names[] = {
	[FPU_SWITCH_AUTO]	= "auto",
	[FPU_SWITCH_EAGER]	= "eager",
	[FPU_SWITCH_SLEAZY]	= "sleazy",
	[FPU_SWITCH_LAZY]	= "lazy",
};

/* As asked for until fpu_lazy_init(), then the mode in force */
static enum fpu_switch fpu_switch __ro_after_init = FPU_SWITCH_AUTO;

static int __init fpu_switch_param(char *str)
{
	int mode = match_string(fpu_switch_names, ARRAY_SIZE(fpu_switch_names), str ?: "");

	if (mode < 0) {
		pr_warn("fpu_switch=%s is none of auto, eager, sleazy, lazy: using auto\n",
			str ?: "");
		mode = FPU_SWITCH_AUTO;
	}
	fpu_switch = mode;

	/*
	 * BNDMOV and friends ignore CR0.TS. Linux has no user space interface
	 * for MPX since commit 45fc24e89b7c, but guests of KVM lose it, too.
	 */
	if (mode == FPU_SWITCH_SLEAZY || mode == FPU_SWITCH_LAZY)
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
}

static int __init fpu_lazy_init(void)
{
	enum fpu_switch asked = fpu_switch;
	const char *obstacle = fpu_lazy_obstacle();
	const char *note = "";

	if (asked == FPU_SWITCH_AUTO) {
		if (!obstacle && boot_cpu_has_bug(X86_BUG_LAZY_FP))
			obstacle = "LazyFP (CVE-2018-3665)";
		fpu_switch = FPU_SWITCH_SLEAZY;
	} else if (asked == FPU_SWITCH_EAGER) {
		obstacle = NULL;
	}
	if (obstacle)
		fpu_switch = FPU_SWITCH_EAGER;

	if (fpu_switch != FPU_SWITCH_EAGER && boot_cpu_has_bug(X86_BUG_LAZY_FP)) {
		if (cpu_mitigations_off()) {
			note = ", vulnerable to LazyFP (CVE-2018-3665)";
		} else {
			note = ", with registers cleared (LazyFP, CVE-2018-3665)";
			fpu_lazy_clear_first();
		}
	}

	pr_info("fpu_switch=%s: %s%s%s%s\n", fpu_switch_names[asked],
		fpu_switch_names[fpu_switch],
		obstacle ? ", because of " : "", obstacle ?: "", note);

	if (fpu_switch == FPU_SWITCH_EAGER)
		return 0;

	/* Not before every hook is live may a task be armed. */
	static_branch_enable(&fpu_lazy_key);
	fpu_eager_threshold = fpu_switch == FPU_SWITCH_LAZY ? FPU_EAGER_NEVER :
							      FPU_EAGER_SLEAZY;
	return 0;
}
arch_initcall(fpu_lazy_init);

#ifdef CONFIG_SYSFS
static ssize_t lazy_fp_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	const char *unsure = "";

	if (!boot_cpu_has_bug(X86_BUG_LAZY_FP))
		return sysfs_emit(buf, "Not affected\n");
	if (fpu_switch != FPU_SWITCH_EAGER && !fpregs_clear_first)
		return sysfs_emit(buf, "Vulnerable\n");

	if (boot_cpu_data.x86_vendor == X86_VENDOR_INTEL &&
	    boot_cpu_has(X86_FEATURE_HYPERVISOR))
		unsure = "; CPU unknown, depends on the hypervisor";
	return sysfs_emit(buf, "Mitigation: %s%s\n", fpu_switch == FPU_SWITCH_EAGER ?
			  "Eager FPU switching" : "Clear FPU registers", unsure);
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
static int mode_show(struct seq_file *m, void *unused)
{
	seq_printf(m, "%s\n", fpu_switch_names[fpu_switch]);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(mode);

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
#endif

static int __init fpu_lazy_debugfs(void)
{
	struct dentry *dir = debugfs_create_dir("fpu_switch", arch_debugfs_dir);

	debugfs_create_file("mode", 0400, dir, NULL, &mode_fops);
#ifdef CONFIG_X86_SLEAZY_FPU_STATS
	debugfs_create_file("stats", 0400, dir, NULL, &stats_fops);
#endif
	return 0;
}
late_initcall(fpu_lazy_debugfs);
#endif /* CONFIG_DEBUG_FS */

/*
 * Both bytes lie in a word that task_struct has anyway: whatever is aligned to
 * a word behind them is not moved by them.
 */
static_assert(!IS_ENABLED(CONFIG_64BIT) || IS_ENABLED(CONFIG_RANDSTRUCT) ||
	      offsetof(struct task_struct, fpu_counter) / sizeof(long) ==
	      offsetof(struct task_struct, fpu_slice) / sizeof(long));
static_assert(!IS_ENABLED(CONFIG_64BIT) || IS_ENABLED(CONFIG_RANDSTRUCT) ||
	      offsetof(struct task_struct, fpu_counter) % sizeof(long));
