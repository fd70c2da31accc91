// SPDX-License-Identifier: GPL-2.0
/*
 * A task keeps its FPU registers through everything that switches tasks or
 * makes and ends them; new tasks and programs start with the right ones.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fpu_histories.h"

TEST_F(history, switches)
{
	unsigned int round;

	for (round = 0; round < fpu_rounds(); round++) {
		fpu_hold(self->subject, round);
		fpu_live(self->pair, self->subject, variant->subject);
		fpu_read(self->subject);
	}
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

/* Whatever kind of instruction is the first to need the registers, gets them. */
TEST_F(history, first_instruction)
{
	enum fpu_insn insn;

	for (insn = 0; insn < NR_INSNS; insn++) {
		if (!fpu_can_use_by(insn))
			continue;
		fpu_hold(self->subject, insn);
		fpu_live(self->pair, self->subject, variant->subject);
		fpu_use_by(insn, fpu_features);
		fpu_read(self->subject);
	}
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

static void wait_for_child(struct __test_metadata *_metadata, pid_t pid)
{
	int status;

	ASSERT_EQ(pid, syscall(SYS_wait4, pid, &status, __WALL, NULL));
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
}

/*
 * Dynamic linkers decide by XGETBV(1), which no trap stops, what they have to
 * save around a call. The neighbour leaves behind registers of which none is in
 * use.
 */
TEST_F(history, components_in_use)
{
	struct fpu_image *initial = &self->pair->child.want;
	pid_t pid;

	if (!fpu_knows_in_use)
		SKIP(return, "the CPU has no XGETBV(1)");

	fpu_initial(initial);
	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	pid = syscall(SYS_fork);
	if (!pid) {
		fpu_load(initial, fpu_features);
		syscall(SYS_exit, 0);
	}
	wait_for_child(_metadata, pid);
	fpu_read(self->subject);
	EXPECT_EQ(0, self->subject->not_in_use);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

TEST_F(history, system_calls)
{
	int i;

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	for (i = 0; i < 1000; i++)
		syscall(SYS_getppid);
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

/* Interrupts return to the task at points that it does not choose. */
TEST_F(history, interrupts)
{
	__u64 start;

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	start = fpu_clock();
	while (fpu_clock() - start < 30)
		fpu_spin();
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

TEST_F(history, idle)
{
	int i;

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	for (i = 0; i < 3; i++)
		fpu_sleep();
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

/* Registers that stayed behind on a CPU are stale when the task comes back. */
TEST_F(history, migration)
{
	int cpus[] = { fpu_nth_cpu(1), fpu_nth_cpu(0) };
	struct fpu_pair *pairs[] = { NULL, self->pair };
	unsigned int round;

	if (cpus[0] < 0)
		SKIP(return, "needs two CPUs");

	pairs[0] = fpu_pair_start(cpus[0], variant->partner, SIGCHLD);
	ASSERT_TRUE(!!pairs[0]);
	ASSERT_EQ(0, fpu_pin(cpus[1]));

	for (round = 0; round < 4 * fpu_rounds(); round++) {
		cpu_set_t set;
		int to = round % 2;

		fpu_hold(self->subject, round);
		fpu_live(pairs[!to], self->subject, variant->subject);
		CPU_ZERO(&set);
		CPU_SET(cpus[to], &set);
		syscall(SYS_sched_setaffinity, 0, sizeof(set), &set);
		fpu_read(self->subject);
		fpu_live(pairs[to], self->subject, variant->subject);
		fpu_read(self->subject);
	}
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
	EXPECT_EQ(0, fpu_pair_stop(pairs[0]));
}

/* Read the inherited registers, then hold others in them. */
static int child_of_pair(void *arg)
{
	struct fpu_pair *pair = arg;
	int i;

	for (i = 0; i < 3; i++)
		fpu_sleep();
	fpu_copy(&pair->child.want, &pair->subject.want,
		 sizeof(pair->child.want));
	fpu_read(&pair->child);
	fpu_hold(&pair->child, 200);
	fpu_slice(pair);
	fpu_read(&pair->child);
	syscall(SYS_exit, 0);
	return 0;
}

TEST_F(history, fork)
{
	pid_t pid;

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	pid = syscall(SYS_fork);
	if (!pid)
		child_of_pair(self->pair);
	wait_for_child(_metadata, pid);
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
	EXPECT_EQ(0, fpu_wrong("child", &self->pair->child));
}

TEST_F(history, vfork)
{
	pid_t pid;

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	pid = clone(child_of_pair, self->pair->child_stack +
		    sizeof(self->pair->child_stack),
		    CLONE_VM | CLONE_VFORK | SIGCHLD, self->pair);
	wait_for_child(_metadata, pid);
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
	EXPECT_EQ(0, fpu_wrong("child", &self->pair->child));
}

TEST_F(history, thread)
{
	struct fpu_pair *pair = self->pair;
	int tid = -1;

	fpu_hold(self->subject, 0);
	fpu_live(pair, self->subject, variant->subject);
	clone(child_of_pair, pair->child_stack + sizeof(pair->child_stack),
	      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND |
	      CLONE_SYSVSEM | CLONE_THREAD | CLONE_CHILD_CLEARTID,
	      pair, NULL, NULL, &tid);
	fpu_await_change(&tid, -1);
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
	EXPECT_EQ(0, fpu_wrong("thread", &pair->child));
}

/* The partner is a thread as well: it shares all with the subject but the registers. */
TEST_F(history, threads)
{
	struct fpu_pair *pair;

	pair = fpu_pair_start(self->pair->cpu, variant->partner,
			      CLONE_VM | CLONE_FS | CLONE_FILES |
			      CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_THREAD);
	ASSERT_TRUE(!!pair);
	fpu_hold(self->subject, 0);
	fpu_live(pair, self->subject, variant->subject);
	fpu_slice(self->pair);
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
	EXPECT_EQ(0, fpu_pair_stop(pair));
}

/*
 * A task that owns the registers of the CPU and exits without having used them
 * in its last slice: the kernel touches them then.
 */
TEST_F(history, exit)
{
	pid_t pid;
	int i;

	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		fpu_hold(self->subject, 0);
		fpu_live(self->pair, self->subject, variant->subject);
		fpu_read(self->subject);
		for (i = 0; i < 6; i++)
			fpu_sleep();
		syscall(SYS_exit_group, 0);
	}
	wait_for_child(_metadata, pid);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

TEST_F(history, exec)
{
	struct fpu_task *child = &self->pair->child;
	char path[PATH_MAX];
	int fds[2];
	pid_t pid;

	fpu_exec_helper(path, sizeof(path));
	ASSERT_EQ(0, pipe(fds));

	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		dup2(fds[1], STDOUT_FILENO);
		fpu_hold(self->subject, 0);
		fpu_live(self->pair, self->subject, variant->subject);
		syscall(SYS_execve, path, (char *[]){ path, NULL }, NULL);
		syscall(SYS_exit, errno);
	}
	ASSERT_EQ(sizeof(child->got),
		  read(fds[0], &child->got, sizeof(child->got)));
	wait_for_child(_metadata, pid);
	fpu_initial(&child->want);
	fpu_check(child);
	EXPECT_EQ(0, fpu_wrong("new program", child));
}

TEST_HARNESS_MAIN
