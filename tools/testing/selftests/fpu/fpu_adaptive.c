// SPDX-License-Identifier: GPL-2.0
/*
 * The adaptive rule in the kernel, as its own counts show it, and the costs it
 * is made of. The rule itself has a KUnit test; here it is whether the kernel
 * tells it the truth.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"
#include "fpu_switch.h"

#define MODE_FILE	FPU_SWITCH_DIR "mode"
#define COSTS_FILE	FPU_SWITCH_DIR "adaptive_costs"

#define COSTS_FORMAT \
	"save_initial %llu save %llu restore_initial %llu restore %llu cr0_read %llu ts_set %llu ts_clear %llu trap %llu break_even_beside_use %u.%u%% break_even %u.%u%%"

#define CYCLE		256

FIXTURE(adaptive)
{
	char found[16];
	char costs[64];
	struct fpu_pair *pair;
	struct fpu_stats before;
	struct fpu_stats after;
	struct fpu_stats since;
};

/* The account begins anew with the mode: each test has the same to spend. */
FIXTURE_SETUP(adaptive)
{
	const struct sched_param priority = { .sched_priority = 1 };

	self->pair = NULL;
	if (fpu_switch_file(MODE_FILE, self->found, sizeof(self->found)) <= 0)
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU, and root");
	if (fpu_switch_file(COSTS_FILE, self->costs, sizeof(self->costs)) <= 0)
		FPU_SKIP_FIXTURE("needs a kernel with an adaptive mode");
	if (!fpu_stats_read(&self->before))
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU_STATS");
	if (!fpu_cpu_has(bit_SSE))
		FPU_SKIP_FIXTURE("needs SSE, which hints come from");
	ASSERT_EQ(0, fpu_switch_write(MODE_FILE, "eager"));
	ASSERT_EQ(0, fpu_switch_write(COSTS_FILE, "130 285 150 50 900"));
	if (fpu_switch_write(MODE_FILE, "sleazy") == EOPNOTSUPP) {
		fpu_switch_write(COSTS_FILE, self->costs);
		FPU_SKIP_FIXTURE("this machine is always eager");
	}

	ASSERT_EQ(0, sched_setscheduler(0, SCHED_FIFO, &priority));
	self->pair = fpu_pair_start(fpu_nth_cpu(0), COLD, SIGCHLD);
	ASSERT_TRUE(!!self->pair);
	ASSERT_EQ(0, fpu_switch_write(MODE_FILE, "adaptive"));
}

FIXTURE_TEARDOWN(adaptive)
{
	if (!self->pair)
		return;
	EXPECT_EQ(0, fpu_pair_stop(self->pair));
	fpu_switch_write(MODE_FILE, "eager");
	fpu_switch_write(COSTS_FILE, self->costs);
	EXPECT_EQ(0, fpu_switch_write(MODE_FILE, self->found));
}

#define begin()	fpu_stats_read(&self->before)
#define end() \
do { \
	fpu_stats_read(&self->after); \
	fpu_stats_since(&self->since, &self->before, &self->after); \
} while (0)

static void change_vectors(void)
{
	asm volatile("pcmpeqd %xmm7, %xmm7\n\t"
		     "psubd %xmm7, %xmm0");
}

static void change_x87(void)
{
	asm volatile("fninit; fld1");
}

static void slices(struct fpu_pair *pair, int n, void (*use)(void))
{
	while (n--) {
		if (use)
			use();
		fpu_slice(pair);
	}
}

/* An account pays for one trap at first. Where TS is dear, it takes longer to earn more. */
static void earn(struct fpu_pair *pair)
{
	slices(pair, fpu_registers_cleared() ? 128 * CYCLE : 4 * CYCLE, NULL);
}

/* Registers that change are proof: no trap is risked. */
TEST_F_TIMEOUT(adaptive, proven_use, 60)
{
	slices(self->pair, 20, change_vectors);
	begin();
	slices(self->pair, 4 * CYCLE, change_vectors);
	end();
	EXPECT_LE(self->since.traps, 4);
	EXPECT_GE(self->since.eager_slices, 4 * CYCLE - 8);
	/*
	 * It is looked at once in 16 slices, when its counter has been reset. The partner
	 * waits for credit, and is looked at once in 4 or 5.
	 */
	EXPECT_GE(self->since.counter_resets, 4 * CYCLE / 16 - 1);
	EXPECT_LE(self->since.counter_resets, 4 * CYCLE / 16 + 4 * CYCLE / 4);
}

/* Each slice uses the FPU, but not what hints come from. Trust goes. */
TEST_F_TIMEOUT(adaptive, hints_that_lie, 120)
{
	slices(self->pair, 8 * CYCLE, change_x87);
	begin();
	slices(self->pair, 8 * CYCLE, change_x87);
	end();
	EXPECT_LE(self->since.traps, 8);
}

/* One that stops is noticed, and then neither saved nor restored. */
TEST_F_TIMEOUT(adaptive, disuse, 60)
{
	int tries;

	slices(self->pair, 20, change_vectors);
	earn(self->pair);
	/* Other tasks that get the CPU count, too, and leave other components in use. */
	for (tries = 0; tries < 10; tries++) {
		begin();
		slices(self->pair, 200, NULL);
		end();
		if (!self->since.traps && self->since.saves <= 2)
			break;
	}
	EXPECT_EQ(0, self->since.traps);
	EXPECT_LE(self->since.saves, 2);
	EXPECT_GE(self->since.armed_slices, 2 * 200 - 4);
}

/* A task that uses the FPU seldom keeps its registers, and is armed in between. */
TEST_F_TIMEOUT(adaptive, seldom, 120)
{
	int i;

	earn(self->pair);
	fpu_hold(&self->pair->subject, 1);
	begin();
	for (i = 0; i < 100; i++) {
		fpu_read(&self->pair->subject);
		slices(self->pair, 16, NULL);
	}
	end();
	EXPECT_EQ(0, fpu_wrong("subject", &self->pair->subject));
	/* The partner is in all of its own, and the subject in most. */
	EXPECT_GT(self->since.armed_slices, 100 * 16 + 100 * 8);
	EXPECT_LE(self->since.traps, 100 + 10);
}

/* Where a trap is dear and nothing else is, nothing is risked, for long. */
TEST_F_TIMEOUT(adaptive, dear_traps, 60)
{
	ASSERT_EQ(0, fpu_switch_write(MODE_FILE, "eager"));
	ASSERT_EQ(0, fpu_switch_write(COSTS_FILE, "1 1 1 1 20000"));
	ASSERT_EQ(0, fpu_switch_write(MODE_FILE, "adaptive"));
	slices(self->pair, 100, NULL);
	begin();
	slices(self->pair, 400, change_x87);
	end();
	EXPECT_LE(self->since.traps, 4);
}

/* The break-even is what the costs in the same file give. */
TEST(costs)
{
	char text[512];
	unsigned long long save, restore, set, clear, trap, switched, ts, gain;
	unsigned int beside, beside_tenth, even, even_tenth;
	unsigned long long unused;
	int n;

	n = fpu_switch_file(FPU_SWITCH_DIR "costs", text, sizeof(text));
	if (n <= 0)
		SKIP(return, "needs measured costs, and a machine not always eager");
	n = sscanf(text, COSTS_FORMAT, &unused, &save, &unused, &restore, &unused, &set, &clear,
		   &trap, &beside, &beside_tenth, &even, &even_tenth);
	ASSERT_EQ(12, n);
	EXPECT_GT(save, 0);
	EXPECT_GT(restore, 0);
	EXPECT_GT(trap, clear);
	switched = save + restore;
	ts = set + clear;
	gain = switched > ts ? switched - ts : 0;
	EXPECT_EQ(gain ? 1000 * gain / (gain + 2 * trap + ts) : 0, 10 * beside + beside_tenth);
	EXPECT_EQ(1000 * switched / (switched + 2 * trap + ts), 10 * even + even_tenth);
}

TEST_HARNESS_MAIN
