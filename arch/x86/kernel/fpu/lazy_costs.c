// SPDX-License-Identifier: GPL-2.0
/*
 * What the parts of FPU switching take on this machine, in cycles of the TSC.
 */
#include <linux/cpufeature.h>
#include <linux/irqflags.h>
#include <linux/kprobes.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/vmalloc.h>

#include <asm/fpu/api.h>
#include <asm/fpu/lazy.h>
#include <asm/msr.h>
#include <asm/special_insns.h>
#include <asm/tsc.h>

#include "internal.h"
#include "lazy_costs.h"
#include "legacy.h"
#include "xstate.h"

enum fpu_cost {
	SAVE_INITIAL,
	SAVE,
	RESTORE_INITIAL,
	RESTORE,
	CR0_READ,
	TS_SET,
	TS_CLEAR,
	TRAP,
	NR_FPU_COSTS
};

static const char * const fpu_cost_names[NR_FPU_COSTS] = {
	[SAVE_INITIAL]		= "save_initial",
	[SAVE]			= "save",
	[RESTORE_INITIAL]	= "restore_initial",
	[RESTORE]		= "restore",
	[CR0_READ]		= "cr0_read",
	[TS_SET]		= "ts_set",
	[TS_CLEAR]		= "ts_clear",
	[TRAP]			= "trap",
};

/*
 * The registers in their initial state, and with something in each of them. What
 * is measured is saved to a place that nothing is restored from, or XSAVEOPT and
 * XSAVES would leave out what has not changed in between.
 */
struct fpu_costs_states {
	struct fpstate initial;
	struct fpstate full;
	struct fpstate saved;
};

static void save(struct fpstate *fpstate)
{
	if (use_xsave()) {
		os_xsave(fpstate);
	} else if (use_fxsr()) {
		fxsave(&fpstate->regs.fxsave);
	} else {
		/* As in save_fpregs_to_fpstate() */
		asm volatile("fnsave %[fp]; fwait" : [fp] "=m" (fpstate->regs.fsave));
		frstor(&fpstate->regs.fsave);
	}
}

static void restore(struct fpstate *fpstate)
{
	if (use_xsave())
		os_xrstor(fpstate, fpu_kernel_cfg.max_features & XFEATURE_MASK_FPSTATE);
	else if (use_fxsr())
		fxrstor(&fpstate->regs.fxsave);
	else
		frstor(&fpstate->regs.fsave);
}

static void fill(struct fpstate *full)
{
	struct fxregs_state *fx = &full->regs.fxsave;
	struct xregs_state *xsave = &full->regs.xsave;

	if (!use_fxsr())
		return;

	fx->twd = 0xff;
	memset(fx->st_space, 0x5a, sizeof(fx->st_space));
	memset(fx->xmm_space, 0x5a, sizeof(fx->xmm_space));
	if (!use_xsave())
		return;

	/* PKRU would be in force at once. */
	xsave->header.xfeatures |= fpu_user_cfg.default_features & ~XFEATURE_MASK_PKRU;
	memset(xsave->extended_state_area, 0x5a,
	       fpu_kernel_cfg.default_size - offsetof(struct xregs_state, extended_state_area));
}

/* As fpregs_arm() and __fpregs_disarm(), but not counted as events */
static __always_inline void clear_ts(void)
{
	asm volatile("clts" : : : "memory");
}

static noinline void trap(void)
{
	asm volatile(".globl fpu_costs_trap\n"
		     "fpu_costs_trap:\n\t"
		     "fnop" : : : "memory");
}

/* Of no component: the header is written, and nothing else. */
static noinline void trap_by_xsave(struct xregs_state *xsave)
{
	asm volatile(".globl fpu_costs_trap_by_xsave\n"
		     "fpu_costs_trap_by_xsave:\n\t"
		     "xsave %0" : "+m" (*xsave) : "a" (0), "d" (0) : "memory");
}

/* A probe would execute the instruction elsewhere, where its #NM is not expected. */
NOKPROBE_SYMBOL(trap);
NOKPROBE_SYMBOL(trap_by_xsave);

enum fpu_step {
	NOTHING,
	SAVE_STATE,
	RESTORE_INITIAL_STATE,
	RESTORE_FULL_STATE,
	READ_CR0,
	SET_TS,
	SET_TS_AND_EXPECT_TRAP,
	CLEAR_TS,
	RAISE_TRAP,
	RAISE_TRAP_BY_XSAVE,
};

/* What it takes to get here is the same for all steps, and measured with NOTHING. */
static noinline void take(enum fpu_step step, struct fpu_costs_states *states)
{
	switch (step) {
	case NOTHING:
		break;
	case SAVE_STATE:
		save(&states->saved);
		break;
	case RESTORE_INITIAL_STATE:
		restore(&states->initial);
		break;
	case RESTORE_FULL_STATE:
		restore(&states->full);
		break;
	case READ_CR0:
		read_cr0();
		break;
	case SET_TS_AND_EXPECT_TRAP:
		__this_cpu_write(fpregs_armed, true);
		fallthrough;
	case SET_TS:
		write_cr0(read_cr0() | X86_CR0_TS);
		break;
	case CLEAR_TS:
		clear_ts();
		break;
	case RAISE_TRAP:
		trap();
		break;
	case RAISE_TRAP_BY_XSAVE:
		trap_by_xsave(&states->saved.regs.xsave);
		break;
	}
}

static const struct {
	u8 prepare;
	u8 measure;
} fpu_cost_steps[NR_FPU_COSTS] = {
	[SAVE_INITIAL]		= { RESTORE_INITIAL_STATE, SAVE_STATE },
	[SAVE]			= { RESTORE_FULL_STATE, SAVE_STATE },
	[RESTORE_INITIAL]	= { RESTORE_FULL_STATE, RESTORE_INITIAL_STATE },
	[RESTORE]		= { RESTORE_INITIAL_STATE, RESTORE_FULL_STATE },
	[CR0_READ]		= { NOTHING, READ_CR0 },
	[TS_SET]		= { NOTHING, SET_TS },
	[TS_CLEAR]		= { SET_TS, CLEAR_TS },
	[TRAP]			= { SET_TS_AND_EXPECT_TRAP, RAISE_TRAP },
};

#define SAMPLES	128

/* The least that it takes. TS is clear before @prepare, and after @measure at last. */
static u64 cycles_of(enum fpu_step prepare, enum fpu_step measure,
		     struct fpu_costs_states *states)
{
	u64 least = U64_MAX, begin;
	unsigned long flags;
	int i;

	for (i = 0; i < SAMPLES; i++) {
		local_irq_save(flags);
		take(prepare, states);
		begin = rdtsc_ordered();
		take(measure, states);
		least = min(least, rdtsc_ordered() - begin);
		clear_ts();
		local_irq_restore(flags);
	}
	return least;
}

/*
 * XSAVE and XRSTOR ignore CR0.TS here, as under QEMU without KVM: a task that is armed
 * and executes one of them stores or loads registers that are not its own. Known once
 * something was measured.
 */
bool fpu_xsave_ungated __read_mostly;

/* False if CR0.TS does not do what all this relies on. */
static bool measure(u64 *cycles, struct fpu_costs_states *states)
{
	bool trapped;
	u64 nothing;
	int i;

	kernel_fpu_begin();
	nothing = cycles_of(NOTHING, NOTHING, states);
	for (i = 0; i < NR_FPU_COSTS; i++) {
		cycles[i] = cycles_of(fpu_cost_steps[i].prepare, fpu_cost_steps[i].measure,
				      states);
		cycles[i] -= min(nothing, cycles[i]);
	}
	trapped = !this_cpu_xchg(fpregs_armed, false);
	if (trapped && use_xsave()) {
		cycles_of(SET_TS_AND_EXPECT_TRAP, RAISE_TRAP_BY_XSAVE, states);
		WRITE_ONCE(fpu_xsave_ungated, this_cpu_xchg(fpregs_armed, false));
	}
	kernel_fpu_end();

	return trapped;
}

static int fpu_costs_cycles(u64 *cycles)
{
	struct fpu_costs_states *states;
	bool trapped;

	if (!boot_cpu_has(X86_FEATURE_TSC))
		return -EOPNOTSUPP;

	states = vzalloc(sizeof(*states));
	if (!states)
		return -ENOMEM;
	states->initial = init_fpstate;
	states->full = init_fpstate;
	states->saved = init_fpstate;
	fill(&states->full);

	/* For #NM to be ours, whatever the mode. No task is armed by this. */
	static_branch_inc(&fpu_lazy_key);
	trapped = measure(cycles, states);
	static_branch_dec(&fpu_lazy_key);

	vfree(states);
	return trapped ? 0 : -ENXIO;
}

/* What is above FPU_COST_MAX is not exact, and what is below the clock's ticks is not 0. */
static unsigned int fpu_cost(u64 cycles)
{
	return clamp_t(u64, cycles, 1, FPU_COST_MAX + 1);
}

/**
 * fpu_costs_measure - Measure what FPU switching takes on this CPU
 * @costs:	The result
 *
 * A trap from user mode is measured from kernel mode and taken to be twice that:
 * the entry from user mode and the return to it do more, and how much depends on
 * the mitigations. Who takes a trap for dearer than it is arms less tasks.
 *
 * May sleep, and leaves nothing in the registers.
 *
 * Return: 0, -EOPNOTSUPP without TSC, -ENOMEM, -ENXIO if CR0.TS raises no #NM.
 */
int fpu_costs_measure(struct fpu_costs *costs)
{
	u64 cycles[NR_FPU_COSTS];
	int err = fpu_costs_cycles(cycles);

	if (err)
		return err;

	costs->save = fpu_cost(cycles[SAVE]);
	costs->restore = fpu_cost(cycles[RESTORE]);
	costs->ts_set = fpu_cost(cycles[TS_SET]);
	costs->ts_clear = fpu_cost(cycles[TS_CLEAR]);
	costs->trap = fpu_cost(2 * cycles[TRAP]);
	return 0;
}

/* In percent of the slices, with a tenth: to arm pays if less of them use the FPU */
static void break_even(struct seq_file *m, const char *name, u64 gain, u64 loss)
{
	u32 permille = gain ? div64_u64(1000 * gain, gain + loss) : 0;

	seq_printf(m, "%s %u.%u%%\n", name, permille / 10, permille % 10);
}

/*
 * An armed slice without use gains a save and a restore, one with use loses a trap.
 * Beside a task that uses the FPU, TS has to be set and cleared for each; among
 * tasks that do not, it has to be so for a trap only.
 */
int fpu_costs_show(struct seq_file *m)
{
	u64 cycles[NR_FPU_COSTS], switched, ts;
	int err = fpu_costs_cycles(cycles);
	int i;

	if (err)
		return err;

	for (i = 0; i < NR_FPU_COSTS; i++)
		seq_printf(m, "%s %llu\n", fpu_cost_names[i], cycles[i]);

	switched = cycles[SAVE] + cycles[RESTORE];
	ts = cycles[TS_SET] + cycles[TS_CLEAR];
	break_even(m, "break_even_beside_use", switched - min(switched, ts),
		   2 * cycles[TRAP] + ts);
	break_even(m, "break_even", switched, 2 * cycles[TRAP] + ts);
	return 0;
}
