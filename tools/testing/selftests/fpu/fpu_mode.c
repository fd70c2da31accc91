// SPDX-License-Identifier: GPL-2.0
/*
 * Switching between the ways of FPU switching at run time, through debugfs: what
 * is written is in force, or nothing changes; and every task keeps its registers.
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

static const char * const modes[] = { "eager\n", "sleazy\n", "lazy\n", "adaptive\n" };

#define NR_MODES	ARRAY_SIZE(modes)

FIXTURE(mode)
{
	char found[16];
	char costs[64];
	long warned;
};

FIXTURE_SETUP(mode)
{
	if (fpu_switch_file(MODE_FILE, self->found, sizeof(self->found)) <= 0)
		FPU_SKIP_FIXTURE("needs CONFIG_X86_SLEAZY_FPU, root, and no lockdown");
	if (access(MODE_FILE, W_OK) || fpu_switch_file(COSTS_FILE, self->costs,
						       sizeof(self->costs)) <= 0)
		FPU_SKIP_FIXTURE("needs a kernel that switches at run time");
	self->warned = fpu_kernel_warned();
}

FIXTURE_TEARDOWN(mode)
{
	fpu_switch_write(MODE_FILE, "eager");
	/* All zero is what has not been measured, and cannot be written. */
	fpu_switch_write(COSTS_FILE, self->costs);
	EXPECT_EQ(0, fpu_switch_write(MODE_FILE, self->found));
	EXPECT_EQ(self->warned, fpu_kernel_warned()) {
		TH_LOG("The kernel has warned, see its log");
	}
}

/* Is there anything but eager? Costs that are written make adaptive possible. */
static bool can_arm(void)
{
	fpu_switch_write(MODE_FILE, "eager");
	fpu_switch_write(COSTS_FILE, "130 285 150 50 900");
	return fpu_switch_write(MODE_FILE, "sleazy") != EOPNOTSUPP;
}

TEST_F(mode, wrong_words)
{
	static const char * const wrong[] = {
		"\n", "e", "eage", "eagerly", "EAGER", "eager sleazy", " eager", "eager\n\n",
		"sleazy,lazy", "0", "a word that is longer than any mode has",
	};
	char now[16];
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		EXPECT_EQ(EINVAL, fpu_switch_write(MODE_FILE, wrong[i])) {
			TH_LOG("\"%s\"", wrong[i]);
		}
		fpu_switch_file(MODE_FILE, now, sizeof(now));
		EXPECT_STREQ(self->found, now);
	}
}

TEST_F(mode, wrong_costs)
{
	static const char * const wrong[] = {
		"\n", "1 2 3 4", "1 2 3 4 5 6", "1 2 3 4 x", "a line of costs",
	}, * const out_of_range[] = {
		"0 2 3 4 5", "1 2 3 4 20001", "4294967295 2 3 4 5", "4294967297 2 3 4 5",
	};
	char now[64];
	unsigned int i;

	EXPECT_EQ(0, fpu_switch_write(MODE_FILE, "eager"));
	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		EXPECT_EQ(EINVAL, fpu_switch_write(COSTS_FILE, wrong[i])) {
			TH_LOG("\"%s\"", wrong[i]);
		}
	}
	for (i = 0; i < ARRAY_SIZE(out_of_range); i++) {
		EXPECT_EQ(ERANGE, fpu_switch_write(COSTS_FILE, out_of_range[i])) {
			TH_LOG("\"%s\"", out_of_range[i]);
		}
	}
	fpu_switch_file(COSTS_FILE, now, sizeof(now));
	EXPECT_STREQ(self->costs, now);

	EXPECT_EQ(0, fpu_switch_write(COSTS_FILE, "1 2 3 4 20000\n"));
	fpu_switch_file(COSTS_FILE, now, sizeof(now));
	EXPECT_STREQ("1 2 3 4 20000\n", now);
	if (!fpu_switch_write(MODE_FILE, "adaptive"))
		EXPECT_EQ(EBUSY, fpu_switch_write(COSTS_FILE, "5 6 7 8 9"));
	fpu_switch_file(COSTS_FILE, now, sizeof(now));
	EXPECT_STREQ("1 2 3 4 20000\n", now);
}

/* What the kernel says is in force is what it does. */
TEST_F_TIMEOUT(mode, in_force, 120)
{
	const struct sched_param priority = { .sched_priority = 1 };
	struct fpu_stats before, after, since;
	struct fpu_pair *pair;
	const int slices = 40;
	char now[16];
	unsigned int i;
	int slice;

	if (!can_arm())
		SKIP(return, "this machine is always eager");
	if (!fpu_stats_read(&before))
		SKIP(return, "needs a kernel with CONFIG_X86_SLEAZY_FPU_STATS");
	ASSERT_EQ(0, sched_setscheduler(0, SCHED_FIFO, &priority));
	pair = fpu_pair_start(fpu_nth_cpu(0), HOT, SIGCHLD);
	ASSERT_TRUE(!!pair);

	for (i = 0; i < 2 * NR_MODES; i++) {
		const char *mode = modes[i % NR_MODES];

		EXPECT_EQ(0, fpu_switch_write(MODE_FILE, mode));
		fpu_switch_file(MODE_FILE, now, sizeof(now));
		EXPECT_STREQ(mode, now);

		fpu_hold(&pair->subject, i);
		fpu_stats_read(&before);
		for (slice = 0; slice < slices; slice++) {
			fpu_read(&pair->subject);
			fpu_slice(pair);
		}
		fpu_stats_read(&after);
		fpu_stats_since(&since, &before, &after);
		/* Two tasks, both of which use the FPU in each slice. */
		switch (mode[0]) {
		case 'e':
			EXPECT_EQ(0, since.traps + since.armed_slices);
			EXPECT_GE(since.eager_slices, 2 * slices - 2);
			break;
		case 's':
			EXPECT_GE(since.traps, 5);
			EXPECT_GE(since.eager_slices, 2 * (slices - 6));
			break;
		case 'l':
			EXPECT_GE(since.traps, 2 * slices - 2);
			EXPECT_EQ(0, since.eager_slices);
			break;
		case 'a':
			/* Programs begin eager, and nothing hints at disuse. */
			EXPECT_GE(since.eager_slices, 2 * (slices - 10));
			break;
		}
		EXPECT_EQ(0, fpu_wrong("subject", &pair->subject));
	}
	EXPECT_EQ(0, fpu_pair_stop(pair));
}

/* A count that a task had in another mode is forgotten. */
TEST_F_TIMEOUT(mode, begins_anew, 60)
{
	struct fpu_stats before, after, since;
	struct fpu_pair *pair;
	int slice, again;

	if (!can_arm())
		SKIP(return, "this machine is always eager");
	if (!fpu_stats_read(&before))
		SKIP(return, "needs a kernel with CONFIG_X86_SLEAZY_FPU_STATS");
	EXPECT_EQ(0, fpu_switch_write(MODE_FILE, "sleazy"));
	pair = fpu_pair_start(fpu_nth_cpu(0), COLD, SIGCHLD);
	ASSERT_TRUE(!!pair);

	for (again = 0; again < 2; again++) {
		fpu_hold(&pair->subject, again);
		for (slice = 0; slice < 20; slice++) {
			fpu_read(&pair->subject);
			fpu_slice(pair);
		}
		if (again) {
			EXPECT_EQ(0, fpu_switch_write(MODE_FILE, "eager"));
			EXPECT_EQ(0, fpu_switch_write(MODE_FILE, "sleazy"));
			/* That may have used the FPU. */
			fpu_hold(&pair->subject, again);
			fpu_slice(pair);
		}
		fpu_stats_read(&before);
		for (slice = 0; slice < 5; slice++) {
			fpu_read(&pair->subject);
			fpu_slice(pair);
		}
		fpu_stats_read(&after);
		fpu_stats_since(&since, &before, &after);
		EXPECT_GE(since.traps, again ? 4 : 0);
		EXPECT_LE(since.traps, again ? 10 : 1);
	}
	EXPECT_EQ(0, fpu_wrong("subject", &pair->subject));
	EXPECT_EQ(0, fpu_pair_stop(pair));
}

/* One that holds a pattern, uses it in some slices, and has partners on its CPU */
static void keep_registers(struct fpu_task *task, int cpu, unsigned int number, int *stop)
{
	unsigned int round = number;
	int i;

	fpu_pin(cpu);
	while (!__atomic_load_n(stop, __ATOMIC_SEQ_CST)) {
		fpu_hold(task, round);
		for (i = 0; i < 16; i++) {
			if (i % 4 < (int)(number % 4) + 1)
				fpu_read(task);
			if (i % 3 == 2)
				fpu_sleep();
			else
				syscall(SYS_sched_yield);
		}
		fpu_read(task);
		round += 7;
	}
	syscall(SYS_exit_group, 0);
}

TEST_F_TIMEOUT(mode, registers_under_load, 300)
{
	enum { TASKS = 8, TIMES = 40 };
	struct fpu_task *tasks = fpu_share(TASKS * sizeof(*tasks));
	int *stop = fpu_share(sizeof(*stop));
	int i, times, status, other = fpu_nth_cpu(1);
	pid_t pids[TASKS];

	if (!can_arm())
		SKIP(return, "this machine is always eager");
	ASSERT_TRUE(tasks && stop);
	for (i = 0; i < TASKS; i++) {
		pids[i] = fork();
		ASSERT_GE(pids[i], 0);
		if (!pids[i])
			keep_registers(&tasks[i], i % 2 && other >= 0 ? other : fpu_nth_cpu(0), i,
				       stop);
	}
	for (times = 0; times < TIMES; times++) {
		const char *mode = modes[(times * 7 + times / 5) % NR_MODES];

		EXPECT_EQ(0, fpu_switch_write(MODE_FILE, mode));
		fpu_sleep();
	}
	__atomic_store_n(stop, 1, __ATOMIC_SEQ_CST);
	for (i = 0; i < TASKS; i++) {
		ASSERT_EQ(pids[i], waitpid(pids[i], &status, 0));
		EXPECT_EQ(0, status);
		EXPECT_GT(tasks[i].readings, 4);
		EXPECT_EQ(0, fpu_wrong("task", &tasks[i]));
	}
}

/* Lockdown keeps root as well from what changes the kernel, but not from its counts. */
TEST(locked_down)
{
	char text[512];

	if (fpu_switch_file("/sys/kernel/security/lockdown", text, sizeof(text)) <= 0 ||
	    strstr(text, "[none]"))
		SKIP(return, "needs lockdown=integrity");
	if (access(MODE_FILE, F_OK))
		SKIP(return, "needs a kernel with CONFIG_X86_SLEAZY_FPU");

	EXPECT_EQ(-1, fpu_switch_file(MODE_FILE, text, sizeof(text)));
	EXPECT_EQ(EPERM, errno);
	EXPECT_EQ(-1, fpu_switch_file(COSTS_FILE, text, sizeof(text)));
	EXPECT_EQ(EPERM, errno);
	EXPECT_EQ(EPERM, fpu_switch_write(MODE_FILE, "eager"));
	EXPECT_EQ(EPERM, fpu_switch_write(COSTS_FILE, "130 285 150 50 900"));
	if (!access(FPU_SWITCH_DIR "stats", F_OK))
		EXPECT_LT(0, fpu_switch_file(FPU_SWITCH_DIR "stats", text, sizeof(text)));
}

TEST_HARNESS_MAIN
