// SPDX-License-Identifier: GPL-2.0
/* KUnit test of the adaptive rule */
#include <linux/module.h>
#include <linux/string.h>
#include <linux/types.h>

#include <asm/fpu/adaptive.h>

#include <kunit/test.h>

static const struct fpu_costs costs = {
	.save = 130, .restore = 285, .ts_set = 150, .ts_clear = 50, .trap = 900,
};

/* A task on a CPU of its own, or one that others have used in between */
struct adaptive_task {
	struct fpu_adaptive rule;
	struct fpu_habit habit;
	unsigned char counter;
	int credit;
	unsigned int traps;
	unsigned int looks;
};

static void adaptive_setup(struct adaptive_task *t)
{
	fpu_adaptive_init(&t->rule, &costs);
	fpu_habit_reset(&t->counter, &t->habit);
	t->credit = fpu_adaptive_start(&t->rule);
	t->traps = 0;
	t->looks = 0;
}

/* Returns whether it was armed. */
static bool adaptive_slice(struct adaptive_task *t, bool ts, bool own, bool used, bool hint)
{
	bool armed;

	/* The rule is not asked. */
	if (fpu_counter_eager(t->counter, FPU_EAGER_SLEAZY)) {
		t->counter = fpu_counter_next(t->counter, true);
		return false;
	}

	armed = fpu_adaptive_arm(&t->rule, &t->counter, &t->habit, &t->credit, ts, own);
	t->looks++;
	if (armed && used) {
		fpu_adaptive_trap(&t->rule, &t->credit);
		t->traps++;
	}
	fpu_adaptive_slice_end(&t->rule, &t->counter, &t->habit, &t->credit,
			       !armed || used, hint);
	return armed;
}

static void adaptive_costs(struct kunit *test)
{
	struct fpu_adaptive rule;

	fpu_adaptive_init(&rule, &costs);
	KUNIT_EXPECT_EQ(test, rule.risk, 1100 * 512);
	KUNIT_EXPECT_EQ(test, rule.begin, 1500 * 512);
	/* 64 * 415 / 1515, 64 * 130 / 1230, 64 * 465 / 1365, 64 * 180 / 1080 */
	KUNIT_EXPECT_EQ(test, rule.chance[false][false], 17);
	KUNIT_EXPECT_EQ(test, rule.chance[false][true], 6);
	KUNIT_EXPECT_EQ(test, rule.chance[true][false], 21);
	KUNIT_EXPECT_EQ(test, rule.chance[true][true], 10);
}

/* Nothing overflows. */
static void adaptive_costs_max(struct kunit *test)
{
	const struct fpu_costs most = {
		FPU_COST_MAX, FPU_COST_MAX, FPU_COST_MAX, FPU_COST_MAX, FPU_COST_MAX,
	};
	struct fpu_adaptive rule;
	int credit;

	fpu_adaptive_init(&rule, &most);
	credit = rule.max;
	fpu_adaptive_earn(&rule, &credit, rule.costs.restore << FPU_CREDIT_SHIFT);
	KUNIT_EXPECT_EQ(test, credit, rule.max);
	KUNIT_EXPECT_EQ(test, rule.max, 32 * 60000 * 512);
}

/* No trap, a look at one slice in 16, and an account of all that were saved */
static void adaptive_proven_use(struct kunit *test)
{
	struct adaptive_task t;
	unsigned int slice;
	int start;

	adaptive_setup(&t);
	start = t.credit;
	for (slice = 0; slice < 2000; slice++)
		KUNIT_EXPECT_FALSE_MSG(test, adaptive_slice(&t, slice & 1, true, true, false),
				       "slice %u", slice);
	KUNIT_EXPECT_GE(test, t.looks, 2000 / 16);
	KUNIT_EXPECT_LE(test, t.looks, 2000 / 16 + 4);
	KUNIT_EXPECT_LE(test, t.credit, start + 2000 * 130);
	KUNIT_EXPECT_GT(test, t.credit, start + (2000 - 16) * 130);
}

/* The worst of tasks, on a CPU that could pay for any number of traps */
static void adaptive_wrong_hints(struct kunit *test)
{
	struct adaptive_task t;
	unsigned int slice;

	adaptive_setup(&t);
	/* Until the hints are known for what they are */
	for (slice = 0; slice < 2000; slice++) {
		t.credit = t.rule.max;
		adaptive_slice(&t, true, false, true, true);
	}
	KUNIT_EXPECT_EQ(test, (int)t.habit.doubt, FPU_DOUBT_MAX);

	t.traps = 0;
	for (slice = 0; slice < 256 * 100; slice++) {
		t.credit = t.rule.max;
		adaptive_slice(&t, true, false, true, true);
	}
	KUNIT_EXPECT_GT(test, t.traps, 50);
	KUNIT_EXPECT_LE(test, t.traps, 100);
}

static void adaptive_stops(struct kunit *test)
{
	struct adaptive_task t;
	unsigned int slice, armed = 0;

	adaptive_setup(&t);
	for (slice = 0; slice < 1000; slice++)
		adaptive_slice(&t, false, false, true, false);
	t.credit = t.rule.max;

	/* It is looked at, sixteen hints are believed, and then it is likely to go on. */
	for (slice = 0; !armed && slice < 100; slice++)
		armed += adaptive_slice(&t, false, false, false, true);
	KUNIT_EXPECT_GT(test, slice, 16);
	KUNIT_EXPECT_LE(test, slice, 15 + 16 + 1);
	for (slice = 0; slice < 100; slice++)
		armed += adaptive_slice(&t, true, false, false, true);
	KUNIT_EXPECT_EQ(test, armed, 101);
	KUNIT_EXPECT_EQ(test, t.counter, 0);

	/* The first trap changes little, use for long makes it eager. */
	KUNIT_EXPECT_TRUE(test, adaptive_slice(&t, true, false, true, false));
	KUNIT_EXPECT_EQ(test, t.counter, 1);
	t.looks = 0;
	for (slice = 0; slice < 30; slice++)
		adaptive_slice(&t, false, true, true, false);
	KUNIT_EXPECT_LE(test, t.looks, 4 + 5);
	KUNIT_EXPECT_GT(test, t.counter, FPU_EAGER_SLEAZY);
	KUNIT_EXPECT_EQ(test, t.traps, 1);
}

/* Whatever is believed of a task: who cannot pay is not armed. */
static void adaptive_credit(struct kunit *test)
{
	struct adaptive_task t;
	unsigned int slice, traps = 0;
	int credit;

	adaptive_setup(&t);
	t.credit = 0;
	for (slice = 0; slice < 1000; slice++) {
		KUNIT_EXPECT_FALSE_MSG(test, adaptive_slice(&t, true, true, false, true),
				       "slice %u", slice);
		KUNIT_EXPECT_LE(test, t.credit, 130 * (slice + 1));
	}
	/* But who waits for that is not looked at all the time. */
	KUNIT_EXPECT_GT(test, t.credit, 130 * (1000 - 8));
	KUNIT_EXPECT_LE(test, t.looks, 16 + 2 * 1000 / 9);

	/* Believed to be unused, always used: all it loses was earned before. */
	adaptive_setup(&t);
	credit = t.credit;
	for (slice = 0; slice < 100000; slice++) {
		t.counter = 0;
		t.habit.after_unused = 0;
		t.habit.began = FPU_LOADED;
		traps += adaptive_slice(&t, false, false, true, true);
		KUNIT_EXPECT_GE_MSG(test, t.credit, 0, "slice %u", slice);
	}
	KUNIT_EXPECT_EQ(test, traps * 1100 * 512 + t.credit, credit + 100000 * (130 + 285));
}

static void adaptive_own_registers(struct kunit *test)
{
	struct adaptive_task t;

	/* What may well be used is armed only where there is a restore to save. */
	adaptive_setup(&t);
	t.counter = 0;
	t.habit.after_unused = 12;
	t.habit.began = FPU_ARMED;
	KUNIT_EXPECT_FALSE(test, fpu_adaptive_arm(&t.rule, &t.counter, &t.habit, &t.credit,
						  false, true));
	t.habit.began = FPU_ARMED;
	KUNIT_EXPECT_TRUE(test, fpu_adaptive_arm(&t.rule, &t.counter, &t.habit, &t.credit,
						 false, false));
}

/* An avoided restore counts once it can no longer be made up for. */
static void adaptive_settles(struct kunit *test)
{
	struct adaptive_task t;
	int credit;

	adaptive_setup(&t);
	t.counter = 0;
	t.habit.began = FPU_ARMED;
	credit = t.credit;
	KUNIT_EXPECT_TRUE(test, adaptive_slice(&t, true, false, false, true));
	KUNIT_EXPECT_EQ(test, t.credit, credit + 130 + 130 * 512);

	credit = t.credit;
	KUNIT_EXPECT_TRUE(test, adaptive_slice(&t, true, false, false, true));
	KUNIT_EXPECT_EQ(test, t.credit, credit + 130 + 130 * 512);

	credit = t.credit;
	KUNIT_EXPECT_TRUE(test, adaptive_slice(&t, false, false, false, true));
	KUNIT_EXPECT_EQ(test, t.credit, credit + 415 + (415 - 200) * 512);
}

/* What is left out in a steady state would have changed nothing. */
static void adaptive_steady(struct kunit *test)
{
	struct adaptive_task t, before;
	unsigned int slice, steady = 0;

	adaptive_setup(&t);
	for (slice = 0; slice < 3000; slice++) {
		bool is = fpu_adaptive_steady(&t.rule, t.counter, &t.habit, t.credit);

		before = t;
		steady += is;
		if (!adaptive_slice(&t, t.habit.began >= FPU_ARMED, false, false, true))
			KUNIT_EXPECT_FALSE_MSG(test, is, "slice %u", slice);
		if (!is)
			continue;
		KUNIT_EXPECT_EQ(test, t.counter, before.counter);
		KUNIT_EXPECT_EQ(test, t.credit, before.credit);
		KUNIT_EXPECT_EQ(test, !memcmp(&t.habit, &before.habit, sizeof(t.habit)), 1);
	}
	KUNIT_EXPECT_GT(test, steady, 1000);
	t.credit--;
	KUNIT_EXPECT_FALSE(test, fpu_adaptive_steady(&t.rule, t.counter, &t.habit, t.credit));
}

static struct kunit_case fpu_adaptive_cases[] = {
	KUNIT_CASE(adaptive_costs),
	KUNIT_CASE(adaptive_costs_max),
	KUNIT_CASE(adaptive_proven_use),
	KUNIT_CASE(adaptive_wrong_hints),
	KUNIT_CASE(adaptive_stops),
	KUNIT_CASE(adaptive_credit),
	KUNIT_CASE(adaptive_own_registers),
	KUNIT_CASE(adaptive_settles),
	KUNIT_CASE(adaptive_steady),
	{}
};

static struct kunit_suite fpu_adaptive_suite = {
	.name = "x86_fpu_adaptive",
	.test_cases = fpu_adaptive_cases,
};

kunit_test_suite(fpu_adaptive_suite);

MODULE_DESCRIPTION("KUnit test of the adaptive rule");
MODULE_LICENSE("GPL");
