/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_X86_FPU_ADAPTIVE_H
#define _ASM_X86_FPU_ADAPTIVE_H

#include <asm/fpu/counter.h>
#include <asm/fpu/habit.h>

/*
 * The adaptive rule, in the same frame: 5 used slices in a row make a task
 * eager, and the counter is reset when it has come to 255. But
 *
 *  - below 5, the task is armed if that is expected to cost less than to load.
 *    Its chance to use the FPU is learned for after a used slice and for after
 *    an unused one.
 *
 *  - if it is loaded, the slice is not blind: when its state is saved, the image
 *    that this overwrites is compared with what is stored. Changed: the slice
 *    used the FPU. Unchanged: a hint that it did not, which may be wrong, as
 *    registers may come to hold the same again. How many hints in a row it takes
 *    to be believed is learned: a trap right after doubles them.
 *
 *  - from 5 on, slices are not looked at, which costs no more than in the other
 *    modes. So the counter does not begin at 5 there, but close to 255: each time
 *    that use is seen again, twice as many slices pass until the next look, up to
 *    15; and 7 where the task would be armed if that could be paid for. Only where
 *    hints are always wrong are it all of the 251.
 *
 *  - no task is armed unless a trap could be paid for. What can be spent is
 *    what was saved before on this CPU, and a 512th of what eager switching
 *    costs. So whatever the tasks do, and however wrong the above is, the total
 *    exceeds that of eager switching by no more than that 512th, and by one
 *    trap once.
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
	FPU_UNSEEN,		/* and was not looked at, as what would be seen is known */
	FPU_WAITING,		/* though it should be armed: there is too little to lose */
	FPU_ARMED_BY_HINT,	/* the slice before was loaded, but its hint believed */
	FPU_ARMED,
	FPU_ARMED_ON_FOREIGN,	/* and the registers were not the task's */
};

#define FPU_CHANCE_MAX	63
#define FPU_DOUBT_MAX	7
#define FPU_SURE_MAX	5
#define FPU_SURE_WAIT	4

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
	return rule->risk;
}

/**
 * fpu_habit_reset - A task is new, or runs a new program
 * @counter:	Of the task
 * @habit:	Of the task
 *
 * Nearly all start-up code uses the FPU. So the task is loaded until hints come.
 * It takes 16 in a row at first: with less, what a CPU has to begin with is lost to
 * programs that start.
 */
static inline void fpu_habit_reset(unsigned char *counter, struct fpu_habit *habit)
{
	*counter = FPU_EAGER_SLEAZY - 1;
	habit->after_unused = 0;
	habit->after_used = FPU_CHANCE_MAX;
	habit->hints = 0;
	habit->doubt = 4;
	habit->sure = 0;
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
	unsigned char chance = counter ? habit->after_used : habit->after_unused;

	return chance < rule->chance[ts][own];
}

/* How many slices are not looked at after one that was used: 0, 1, 3, 7, 15 */
static inline unsigned int fpu_habit_unseen(const struct fpu_habit *habit)
{
	return ((1U << habit->sure) - 1) / 2;
}

/*
 * The counter has come to 255 and was reset, but so as to look. Each slice that was
 * not looked at had a save. Which of them had a restore is not known.
 */
static inline void fpu_adaptive_look(const struct fpu_adaptive *rule, unsigned char *counter,
				     struct fpu_habit *habit, int *credit)
{
	fpu_adaptive_earn(rule, credit, fpu_habit_unseen(habit) * rule->costs.save);
	*counter = FPU_EAGER_SLEAZY - 1;
	habit->began = FPU_LOADED;
}

/**
 * fpu_adaptive_arm - Arm a task? At the first return to user mode of a slice.
 * @rule:	The rule
 * @counter:	Of the task, below FPU_EAGER_SLEAZY
 * @habit:	Of the task
 * @credit:	Of this CPU
 * @ts:		CR0.TS is set
 * @own:	The registers hold the task's state
 *
 * Return: true to arm, false to load the state.
 */
static inline bool fpu_adaptive_arm(const struct fpu_adaptive *rule, unsigned char *counter,
				    struct fpu_habit *habit, int *credit, bool ts, bool own)
{
	bool hinted, pays, arm;

	if (habit->began == FPU_UNSEEN)
		fpu_adaptive_look(rule, counter, habit, credit);
	hinted = !*counter && habit->began == FPU_LOADED;

	if (!ts && !own)
		fpu_adaptive_settle(rule, habit, credit);

	pays = fpu_adaptive_pays(rule, *counter, habit, ts, own);
	arm = pays && fpu_adaptive_may(rule, habit, credit, ts);

	if (!arm)
		habit->began = pays && hinted ? FPU_WAITING : FPU_LOADED;
	else if (hinted)
		habit->began = FPU_ARMED_BY_HINT;
	else
		habit->began = own ? FPU_ARMED : FPU_ARMED_ON_FOREIGN;
	return arm;
}

/**
 * fpu_adaptive_steady - May the rule be left alone?
 * @rule:	The rule
 * @counter:	Of the task
 * @habit:	Of the task
 * @credit:	Of this CPU
 *
 * For a task that passes messages, say: it is armed in slice after slice, uses none, and
 * nothing is left to learn or to earn. So the two calls for such a slice can be left
 * out: fpu_adaptive_arm() with CR0.TS set, and fpu_adaptive_slice_end() without use.
 *
 * Return: true if they would arm the task and change nothing, but perhaps for a
 * restore to be credited later.
 */
static inline bool fpu_adaptive_steady(const struct fpu_adaptive *rule, unsigned char counter,
				       const struct fpu_habit *habit, int credit)
{
	return !counter && !habit->after_unused && habit->began >= FPU_ARMED &&
	       credit == rule->max;
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
	unsigned char *chance = counter ? &habit->after_used : &habit->after_unused;

	if (used)
		*chance += (FPU_CHANCE_MAX - *chance + 3) / 4;
	else
		*chance -= (*chance + 3) / 4;
}

/* After a slice that has used the FPU for certain. FPU_UNSEEN: the next are not looked at. */
static inline unsigned char fpu_habit_used(unsigned char counter, struct fpu_habit *habit)
{
	habit->hints = 0;
	if (counter < FPU_EAGER_SLEAZY - 1)
		return counter + 1;

	if (habit->sure < FPU_SURE_MAX)
		habit->sure++;
	habit->began = FPU_UNSEEN;
	return 256 - fpu_habit_unseen(habit);
}

/* After one that may not have */
static inline unsigned char fpu_habit_hint(unsigned char counter, struct fpu_habit *habit)
{
	/* Nothing hurries. Then one more hint is enough, as what it was may have changed. */
	if (habit->began == FPU_WAITING) {
		habit->hints = (1 << habit->doubt) - 1;
		habit->sure = FPU_SURE_WAIT;
		habit->began = FPU_UNSEEN;
		return 256 - fpu_habit_unseen(habit);
	}
	habit->sure = 0;
	if (!counter)
		return 0;
	/* With a trap, these make 256 slices until the next. */
	if (habit->doubt == FPU_DOUBT_MAX)
		return counter + 1;
	if (++habit->hints < 1 << habit->doubt)
		return counter;

	habit->hints = 0;
	return 0;
}

/* The last slice was loaded on a hint, which this one has shown to be right or wrong. */
static inline void fpu_habit_trust(struct fpu_habit *habit, bool used)
{
	if (used && habit->doubt < FPU_DOUBT_MAX)
		habit->doubt++;
	else if (!used && habit->doubt)
		habit->doubt--;
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
	unsigned char was = *counter, next;
	bool used = saved, learn = true;

	fpu_adaptive_earn(rule, credit, rule->costs.save);

	if (habit->began == FPU_LOADED || habit->began == FPU_WAITING) {
		used = !hint;
		next = hint ? fpu_habit_hint(was, habit) : fpu_habit_used(was, habit);
		/*
		 * Hints in doubt teach nothing, and even when they are believed: that
		 * task's use was many slices ago.
		 */
		learn = used || !was || (!next && !habit->doubt);
	} else {
		if (habit->began == FPU_ARMED_BY_HINT) {
			fpu_habit_trust(habit, used);
			habit->began = FPU_ARMED;
		}
		if (used) {
			habit->began = FPU_LOADED;
			next = fpu_habit_used(was, habit);
		} else {
			next = 0;
			fpu_adaptive_earn(rule, credit, rule->costs.save << FPU_CREDIT_SHIFT);
		}
	}

	if (learn)
		fpu_habit_learn(was, habit, used);
	*counter = next;
}

#endif /* _ASM_X86_FPU_ADAPTIVE_H */
