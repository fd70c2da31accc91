/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_X86_FPU_ADAPTIVE_H
#define _ASM_X86_FPU_ADAPTIVE_H

#include <asm/fpu/counter.h>

/*
 * The adaptive rule, in the same frame: 5 used slices in a row make a task
 * eager, and a counter that has come to 255 is reset. But
 *
 *  - an eager slice is not blind: when its state is saved, the image that this
 *    overwrites is compared with what is stored. Changed: the slice used the
 *    FPU. Unchanged: a hint that it did not, which may be wrong, as registers
 *    may come to hold the same again. So the counter of an eager task is 5 when
 *    use has just been proven, and goes up with each hint in a row. It is reset
 *    once these are enough to be believed, at 255 at the latest. How many it
 *    takes is learned: a trap right after a hint doubles them.
 *
 *  - below 5, the task is armed if that is expected to cost less than to load.
 *    Its chance to use the FPU is learned for after a used slice and for after
 *    an unused one.
 *
 *  - no task is armed unless a trap could be paid for. What can be spent is
 *    what was saved before on this CPU, and a 512th of what eager switching
 *    costs. So whatever the tasks do, and however wrong the above is, the total
 *    exceeds that of eager switching by no more than that 512th, and
 *    FPU_CREDIT_START once.
 */

/**
 * struct fpu_costs - What things take on this machine, in cycles
 * @save:	Save the FPU state
 * @restore:	Restore it
 * @ts_set:	Set CR0.TS
 * @ts_clear:	Clear CR0.TS
 * @trap:	#NM and the return from it, without what its handler does to the FPU
 */
struct fpu_costs {
	unsigned int save;
	unsigned int restore;
	unsigned int ts_set;
	unsigned int ts_clear;
	unsigned int trap;
};

/* Credit is in 1/512 cycle: a 512th of a cost is that many units. */
#define FPU_CREDIT_SHIFT	9

/* In traps that it pays for, with CR0.TS set and cleared for each */
#define FPU_CREDIT_START	2
#define FPU_CREDIT_MAX		32

#define FPU_COST_MAX		20000	/* so that no credit overflows */

/**
 * struct fpu_adaptive - The adaptive rule for the costs of a machine
 * @costs:	What it is made from
 * @risk:	Credit it takes to arm a task
 * @begin:	Credit it takes if its last slice was loaded, and CR0.TS is clear
 * @max:	Credit never exceeds this
 * @chance:	Arm if the chance of use, in 64ths, is below this; by whether CR0.TS
 *		is set, and whether the registers hold the task's state
 */
struct fpu_adaptive {
	struct fpu_costs costs;
	int risk;
	int begin;
	int max;
	unsigned char chance[2][2];
};

/* How a task's slice began; between slices, the last one, if that was unused */
enum fpu_began {
	FPU_LOADED,
	FPU_ARMED_BY_HINT,	/* the slice before was loaded, but its hint believed */
	FPU_ARMED,
	FPU_ARMED_ON_FOREIGN,	/* and the registers were not the task's */
};

/**
 * struct fpu_habit - What the adaptive rule knows of a task, beside its counter
 * @after_unused:	Chance of use after an unused slice, in 64ths
 * @after_used:		Chance of use after a used slice, in 32ths
 * @doubt:		2^doubt hints in a row are believed; at FPU_DOUBT_MAX, none
 *			are before the counter is reset
 * @began:		enum fpu_began
 */
struct fpu_habit {
	unsigned short after_unused	: 6;
	unsigned short after_used	: 5;
	unsigned short doubt		: 3;
	unsigned short began		: 2;
};

#define FPU_DOUBT_MAX	7

/* The chance below which the gain of an unused slice outweighs a loss */
static inline unsigned char fpu_adaptive_chance(int gain, int loss)
{
	return gain < loss ? 64 * gain / loss : 64;
}

/**
 * fpu_adaptive_init - Make the rule from costs
 * @rule:	The result
 * @costs:	At most FPU_COST_MAX each
 *
 * Who sets CR0.TS is charged for clearing it, too.
 */
static inline void fpu_adaptive_init(struct fpu_adaptive *rule, const struct fpu_costs *costs)
{
	int ts = costs->ts_set + costs->ts_clear;
	int own;

	rule->costs = *costs;
	rule->risk = (ts + costs->trap) << FPU_CREDIT_SHIFT;
	/*
	 * The first armed slice rarely earns what it takes to set TS. Without
	 * something left for the next ones, it would be in vain.
	 */
	rule->begin = rule->risk + (2 * ts << FPU_CREDIT_SHIFT);
	rule->max = FPU_CREDIT_MAX * rule->risk;

	for (own = 0; own < 2; own++) {
		int load = costs->save + (own ? 0 : costs->restore);
		int load_ts = load + costs->ts_clear;

		/*
		 * Once TS is set, it may stay so for many slices, until one
		 * uses the FPU. If the others do not let it, credit runs out.
		 */
		rule->chance[false][own] = fpu_adaptive_chance(load, load + ts + costs->trap);
		rule->chance[true][own] = fpu_adaptive_chance(load_ts, load_ts + costs->trap);
	}
}

/**
 * fpu_adaptive_start - What a CPU has to begin with
 * @rule:	The rule
 *
 * Return: Its credit.
 */
static inline int fpu_adaptive_start(const struct fpu_adaptive *rule)
{
	return FPU_CREDIT_START * rule->risk;
}

/**
 * fpu_habit_reset - A task is new, or runs a new program
 * @counter:	Of the task
 * @habit:	Of the task
 *
 * Nearly all start-up code uses the FPU. So the task is eager, until hints come.
 */
static inline void fpu_habit_reset(unsigned char *counter, struct fpu_habit *habit)
{
	*counter = FPU_EAGER_SLEAZY;
	habit->after_unused = 0;
	habit->after_used = 31;
	habit->doubt = 1;
	habit->began = FPU_LOADED;
}

static inline void fpu_adaptive_earn(const struct fpu_adaptive *rule, int *credit, int units)
{
	*credit += units;
	if (*credit > rule->max)
		*credit = rule->max;
}

/**
 * fpu_adaptive_set_ts - May CR0.TS be set?
 * @rule:	The rule
 * @credit:	Of this CPU
 *
 * fpu_adaptive_arm() asks this by itself. Others ask before they set TS again
 * in the same slice, after the kernel has used the FPU.
 *
 * Return: true if so, and it is charged for; false to load the state instead.
 */
static inline bool fpu_adaptive_set_ts(const struct fpu_adaptive *rule, int *credit)
{
	if (*credit < rule->risk)
		return false;

	*credit -= (rule->costs.ts_set + rule->costs.ts_clear) << FPU_CREDIT_SHIFT;
	return true;
}

/*
 * CR0.TS is clear and the registers are not the task's: somebody has loaded on
 * this CPU since the task ran here, or it ran elsewhere. Eager switching would
 * restore now. The restore that was saved if the last slice was armed can no
 * longer become necessary without being so in eager switching, too: so only now
 * has it been saved.
 */
static inline void fpu_adaptive_settle(const struct fpu_adaptive *rule,
				       const struct fpu_habit *habit, int *credit)
{
	if (habit->began == FPU_ARMED_ON_FOREIGN)
		fpu_adaptive_earn(rule, credit, rule->costs.restore << FPU_CREDIT_SHIFT);
	fpu_adaptive_earn(rule, credit, rule->costs.restore);
}

/* Is there enough to lose? If so, CR0.TS is charged for. */
static inline bool fpu_adaptive_may(const struct fpu_adaptive *rule,
				    const struct fpu_habit *habit, int *credit, bool ts)
{
	/* Who set it left enough for the one trap that there can be until it is clear. */
	if (ts)
		return *credit >= (int)rule->costs.trap << FPU_CREDIT_SHIFT;
	if (habit->began == FPU_LOADED && *credit < rule->begin)
		return false;

	return fpu_adaptive_set_ts(rule, credit);
}

static inline bool fpu_adaptive_pays(const struct fpu_adaptive *rule, unsigned char counter,
				     const struct fpu_habit *habit, bool ts, bool own)
{
	unsigned int chance = counter ? 2 * habit->after_used : habit->after_unused;

	return counter < FPU_EAGER_SLEAZY && chance < rule->chance[ts][own];
}

/**
 * fpu_adaptive_arm - Arm a task? At the first return to user mode of a slice.
 * @rule:	The rule
 * @counter:	Of the task
 * @habit:	Of the task
 * @credit:	Of this CPU
 * @ts:		CR0.TS is set
 * @own:	The registers hold the task's state
 *
 * Return: true to arm, false to load the state.
 */
static inline bool fpu_adaptive_arm(const struct fpu_adaptive *rule, unsigned char counter,
				    struct fpu_habit *habit, int *credit, bool ts, bool own)
{
	bool hinted = !counter && habit->began == FPU_LOADED;
	bool arm;

	if (!ts && !own)
		fpu_adaptive_settle(rule, habit, credit);

	arm = fpu_adaptive_pays(rule, counter, habit, ts, own) &&
	      fpu_adaptive_may(rule, habit, credit, ts);

	if (!arm)
		habit->began = FPU_LOADED;
	else if (hinted)
		habit->began = FPU_ARMED_BY_HINT;
	else
		habit->began = own ? FPU_ARMED : FPU_ARMED_ON_FOREIGN;
	return arm;
}

/**
 * fpu_adaptive_trap - An armed task has raised #NM
 * @rule:	The rule
 * @credit:	Of this CPU
 */
static inline void fpu_adaptive_trap(const struct fpu_adaptive *rule, int *credit)
{
	*credit -= rule->costs.trap << FPU_CREDIT_SHIFT;
}

/**
 * fpu_habit_forced - A slice for which the rule was not asked had to restore
 * @habit:	Of the task
 *
 * What an armed slice before saved may be lost by that.
 */
static inline void fpu_habit_forced(struct fpu_habit *habit)
{
	if (habit->began == FPU_ARMED_ON_FOREIGN)
		habit->began = FPU_ARMED;
}

/**
 * fpu_habit_loaded_after_all - The state had to be loaded though the task was armed
 * @habit:	Of the task
 *
 * No trap tells then whether the slice uses the FPU, but what is saved may.
 */
static inline void fpu_habit_loaded_after_all(struct fpu_habit *habit)
{
	habit->began = FPU_LOADED;
}

/* A quarter of the way, but at least a step: so it gets to either end. */
static inline void fpu_habit_learn(unsigned char counter, struct fpu_habit *habit, bool used)
{
	if (counter && used)
		habit->after_used += (31 - habit->after_used + 3) / 4;
	else if (counter)
		habit->after_used -= (habit->after_used + 3) / 4;
	else if (used)
		habit->after_unused += (63 - habit->after_unused + 3) / 4;
	else
		habit->after_unused -= (habit->after_unused + 3) / 4;
}

/* After a slice that has used the FPU for certain */
static inline unsigned char fpu_habit_used(unsigned char counter)
{
	return counter < FPU_EAGER_SLEAZY ? counter + 1 : FPU_EAGER_SLEAZY;
}

/* After a slice that may not have */
static inline unsigned char fpu_habit_hint(unsigned char counter, const struct fpu_habit *habit)
{
	if (!counter || counter == 255)
		return 0;
	/* From a trap on, this makes 256 slices until the next. */
	if (habit->doubt == FPU_DOUBT_MAX)
		return counter + 1;
	if (counter < FPU_EAGER_SLEAZY)
		counter = FPU_EAGER_SLEAZY;
	counter++;

	return counter - FPU_EAGER_SLEAZY < 1 << habit->doubt ? counter : 0;
}

static inline void fpu_habit_armed(unsigned char *counter, struct fpu_habit *habit, bool used)
{
	fpu_habit_learn(*counter, habit, used);

	if (habit->began == FPU_ARMED_BY_HINT) {
		if (used && habit->doubt < FPU_DOUBT_MAX)
			habit->doubt++;
		else if (!used && habit->doubt)
			habit->doubt--;
		habit->began = FPU_ARMED;
	}

	*counter = used ? fpu_habit_used(*counter) : 0;
	if (used)
		habit->began = FPU_LOADED;
}

static inline void fpu_habit_loaded(unsigned char *counter, struct fpu_habit *habit, bool hint)
{
	unsigned char next = hint ? fpu_habit_hint(*counter, habit) : fpu_habit_used(*counter);

	/*
	 * Hints in doubt teach nothing, and even when they are believed: that
	 * task's use was many slices ago.
	 */
	if (!hint || !*counter || (!next && !habit->doubt))
		fpu_habit_learn(*counter, habit, !hint);
	*counter = next;
}

/**
 * fpu_adaptive_slice_end - A slice ends for which fpu_adaptive_arm() was asked
 * @rule:	The rule
 * @counter:	Of the task
 * @habit:	Of the task
 * @credit:	Of this CPU
 * @saved:	The state was loaded in this slice, and has been saved
 * @hint:	And the save has left the image in memory as it was
 */
static inline void fpu_adaptive_slice_end(const struct fpu_adaptive *rule, unsigned char *counter,
					  struct fpu_habit *habit, int *credit,
					  bool saved, bool hint)
{
	fpu_adaptive_earn(rule, credit, rule->costs.save);

	if (habit->began == FPU_LOADED) {
		fpu_habit_loaded(counter, habit, hint);
	} else {
		if (!saved)
			fpu_adaptive_earn(rule, credit, rule->costs.save << FPU_CREDIT_SHIFT);
		fpu_habit_armed(counter, habit, saved);
	}
}

#endif /* _ASM_X86_FPU_ADAPTIVE_H */
