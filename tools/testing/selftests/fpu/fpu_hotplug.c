// SPDX-License-Identifier: GPL-2.0
/*
 * A CPU that comes back is not what it was: CR0.TS is clear, its registers hold
 * nothing of any task. Tasks that then run there keep their registers, and
 * do not see those of others.
 */
#include <fcntl.h>
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

#define TIMES	3

FIXTURE(hotplug)
{
	int cpu;	/* goes and comes */
	int other;
	long warned;
};

FIXTURE_SETUP(hotplug)
{
	char path[64];

	self->cpu = fpu_nth_cpu(0);
	self->other = fpu_nth_cpu(1);
	self->warned = fpu_kernel_warned();
	if (self->other < 0)
		FPU_SKIP_FIXTURE("needs two CPUs");
	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/online", self->cpu);
	if (access(path, W_OK))
		FPU_SKIP_FIXTURE("needs root and CPU hotplug");
}

FIXTURE_TEARDOWN(hotplug)
{
	EXPECT_EQ(self->warned, fpu_kernel_warned()) {
		TH_LOG("The kernel has warned, see its log");
	}
}

/*
 * The CPU goes while the task that ran there last had not used the FPU. When it
 * is back, a task that uses its registers in each slice runs beside one that
 * does so seldom, which must find its own.
 */
TEST_F_TIMEOUT(hotplug, registers_after_return, 120)
{
	struct fpu_task *child = fpu_share(sizeof(*child));
	struct fpu_pair *pair;
	int i, status, times;
	pid_t pid;

	ASSERT_TRUE(!!child);
	for (times = 0; times < TIMES; times++) {
		/* Armed slices are the last thing that the CPU sees. */
		ASSERT_EQ(0, fpu_pin(self->cpu));
		for (i = 0; i < 8; i++)
			fpu_sleep();
		ASSERT_EQ(0, fpu_pin(self->other));
		ASSERT_TRUE(fpu_set_online(self->cpu, false));

		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			/* Sleeps elsewhere meanwhile, with its state in memory. */
			fpu_hold(child, times);
			for (i = 0; i < 8; i++)
				fpu_sleep();
			while (fpu_pin(self->cpu))
				fpu_sleep();
			for (i = 0; i < 8; i++) {
				fpu_sleep();
				fpu_sleep();
				fpu_read(child);
			}
			syscall(SYS_exit_group, 0);
		}
		for (i = 0; i < 20; i++)
			fpu_sleep();
		ASSERT_TRUE(fpu_set_online(self->cpu, true));

		pair = fpu_pair_start(self->cpu, HOT, SIGCHLD);
		ASSERT_TRUE(!!pair);
		fpu_hold(&pair->subject, 50 + times);
		for (i = 0; i < 20; i++) {
			fpu_slice(pair);
			fpu_sleep();
			fpu_read(&pair->subject);
		}
		EXPECT_EQ(0, fpu_wrong("subject", &pair->subject));
		EXPECT_EQ(0, fpu_pair_stop(pair));
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(0, status);
		EXPECT_EQ(0, fpu_wrong("child", child));
	}
}

/* A task that is thrown off its CPU takes its state with it. */
TEST_F_TIMEOUT(hotplug, thrown_off, 120)
{
	struct fpu_task *child = fpu_share(sizeof(*child));
	int *stop = fpu_share(sizeof(*stop));
	int times, status, i;
	pid_t pid;

	ASSERT_TRUE(child && stop);
	ASSERT_EQ(0, fpu_pin(self->other));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		int round = 0;

		while (!__atomic_load_n(stop, __ATOMIC_SEQ_CST)) {
			/* Fails while the CPU is away. */
			fpu_pin(self->cpu);
			fpu_hold(child, round++);
			for (i = 0; i < 4; i++) {
				fpu_spin();
				fpu_sleep();
			}
			fpu_read(child);
		}
		syscall(SYS_exit_group, 0);
	}
	for (times = 0; times < TIMES; times++) {
		EXPECT_TRUE(fpu_set_online(self->cpu, false));
		for (i = 0; i < 10; i++)
			fpu_sleep();
		EXPECT_TRUE(fpu_set_online(self->cpu, true));
		for (i = 0; i < 10; i++)
			fpu_sleep();
	}
	__atomic_store_n(stop, 1, __ATOMIC_SEQ_CST);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, fpu_wrong("child", child));
}

TEST_HARNESS_MAIN
