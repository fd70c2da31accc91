// SPDX-License-Identifier: GPL-2.0
/*
 * The rule of the sLeAZY FPU, as the kernel's own counts show it: a task that
 * used the FPU in 5 slices in a row has its registers restored without a trap,
 * for 251 slices, and an unused slice starts the count anew.
 *
 * The counts are of all CPUs. Nothing else should use the FPU meanwhile; a
 * measurement in which the subject was preempted is made again. So is one that
 * is not as expected, as a task on another CPU may have been counted: what is
 * wrong each time is noticed, what is wrong now and then is not.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"
#include "fpu_switch.h"

#define KERNEL_FPU_FILE	"/sys/kernel/debug/selftest_helpers/test_fpu"

#define THRESHOLD	5
#define CYCLE		256
#define TRIES		20

static void use_fpu(void)
{
	fpu_use_by(INSN_X87, fpu_features);
}

static long switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

/*
 * The slices that a test means to have are those that end in slice(). When the
 * task was switched out more often, one of them was cut into two.
 */
static long slices, switches_before;

static void slice(struct fpu_pair *pair)
{
	slices++;
	fpu_slice(pair);
}

static void undisturbed_from_here(void)
{
	slices = 0;
	switches_before = switches();
}

static bool disturbed(void)
{
	return switches() - switches_before != slices;
}

/*
 * The kernel counts what other tasks do, too. So the tests go by what two of at most
 * three undisturbed runs say: true if that is decided, by the run just made.
 */
static bool decided(bool expected)
{
	static int right, wrong;

	if (expected)
		right++;
	else
		wrong++;
	if (right < 2 && wrong < 2)
		return false;
	right = 0;
	wrong = 0;
	return true;
}

#define measured(expected)	(!disturbed() && decided(expected))

FIXTURE(counter)
{
	struct fpu_pair *pair;
	char mode;
	struct fpu_stats before;
	struct fpu_stats after;
	struct fpu_stats since;
};

FIXTURE_SETUP(counter)
{
	const struct sched_param priority = { .sched_priority = 1 };

	self->pair = NULL;
	self->mode = fpu_switch_mode();
	if (!self->mode)
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU, and root");
	if (!fpu_cpu_has(bit_FPU))
		FPU_SKIP_FIXTURE("needs an FPU");
	if (self->mode == 'a')
		FPU_SKIP_FIXTURE("needs fpu_switch=sleazy, lazy or eager");
	if (!fpu_stats_read(&self->before))
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU_STATS");
	/* Kernel threads would cut slices into two. The partner inherits this. */
	ASSERT_EQ(0, sched_setscheduler(0, SCHED_FIFO, &priority));
	self->pair = fpu_pair_start(fpu_nth_cpu(0), COLD, SIGCHLD);
	ASSERT_TRUE(!!self->pair);
}

FIXTURE_TEARDOWN(counter)
{
	if (self->pair)
		fpu_pair_stop(self->pair);
}

#define begin()	fpu_stats_read(&self->before)
#define end() \
do { \
	fpu_stats_read(&self->after); \
	fpu_stats_since(&self->since, &self->before, &self->after); \
} while (0)

/* The counter is 0 after this: one cycle without use, and what is left of one. */
static void forget(struct fpu_pair *pair)
{
	int i;

	for (i = 0; i < CYCLE + 2; i++)
		slice(pair);
}

static void use_slices(struct fpu_pair *pair, int n)
{
	while (n--) {
		slice(pair);
		use_fpu();
	}
}

/*
 * What slice after slice shows, each used. Each starts with the counts of the
 * one before, so the partner's are among them, who has an armed slice as well.
 */
static struct {
	long traps;
	long eager;
	long resets;
} seen[2 * CYCLE + 1];

static bool watch_cycles(struct fpu_pair *pair)
{
	struct fpu_stats before, after;
	int i;

	forget(pair);
	undisturbed_from_here();
	fpu_stats_read(&before);
	for (i = 0; i < 2 * CYCLE + 1; i++) {
		use_slices(pair, 1);
		fpu_stats_read(&after);
		seen[i].traps = after.traps - before.traps;
		seen[i].eager = after.eager_slices - before.eager_slices;
		seen[i].resets = after.counter_resets - before.counter_resets;
		before = after;
	}
	return !disturbed();
}

/* Others that run on another CPU are counted as well, but not each time. */
static bool counted_others(char mode)
{
	long expected = mode == 'e' ? 2 : 1, resets = 0;
	int i;

	for (i = 0; i < 2 * CYCLE + 1; i++) {
		if (seen[i].traps + seen[i].eager != expected)
			return true;
		resets += seen[i].resets;
	}
	return mode != 'e' && resets != 2;
}

TEST_F_TIMEOUT(counter, always_used, 120)
{
	int i, tries = 0;

	while ((!watch_cycles(self->pair) || counted_others(self->mode)) &&
	       tries < TRIES)
		tries++;

	for (i = 0; i < 2 * CYCLE + 1; i++) {
		bool trap = self->mode == 'l' ||
			    (self->mode == 's' && i % CYCLE < THRESHOLD);

		EXPECT_EQ(trap, seen[i].traps) {
			TH_LOG("traps in used slice %d", i);
		}
		/* In mode eager the partner counts, too. */
		EXPECT_EQ(self->mode == 'e' ? 2 : !trap, seen[i].eager) {
			TH_LOG("eager in used slice %d", i);
		}
		if (self->mode != 'e') {
			EXPECT_EQ(i && i % CYCLE == 0, seen[i].resets) {
				TH_LOG("resets before used slice %d", i);
			}
		}
	}
}

/* Fewer than 5 used slices, an unused one, and the count starts from 0. */
TEST_F_TIMEOUT(counter, unused_slice_resets, 120)
{
	int used, tries;

	if (self->mode != 's')
		SKIP(return, "needs fpu_switch=sleazy");
	for (used = 1; used < THRESHOLD; used++) {
		long traps_first, resets;

		for (tries = 0; ; tries++) {
			ASSERT_LT(tries, TRIES);
			forget(self->pair);
			undisturbed_from_here();
			begin();
			use_slices(self->pair, used);
			slice(self->pair);	/* unused */
			slice(self->pair);
			end();
			traps_first = self->since.traps;
			resets = self->since.counter_resets;
			begin();
			use_fpu();
			use_slices(self->pair, 6);
			end();
			if (measured(traps_first == used && resets == 1 &&
				     self->since.traps == THRESHOLD &&
				     self->since.eager_slices == 2))
				break;
		}
		EXPECT_EQ(used, traps_first);
		EXPECT_EQ(1, resets);
		EXPECT_EQ(THRESHOLD, self->since.traps) {
			TH_LOG("7 used slices after %d used and an unused one", used);
		}
		EXPECT_EQ(2, self->since.eager_slices);
	}
}

/* An eager slice counts as used, since disuse cannot be seen. */
TEST_F_TIMEOUT(counter, eager_slices_count_as_used, 120)
{
	int tries;

	if (self->mode != 's')
		SKIP(return, "needs fpu_switch=sleazy");
	for (tries = 0; ; tries++) {
		ASSERT_LT(tries, TRIES);
		forget(self->pair);
		undisturbed_from_here();
		use_slices(self->pair, THRESHOLD);
		begin();
		forget(self->pair);
		end();
		if (measured(self->since.traps == 0 &&
			     self->since.eager_slices == CYCLE - THRESHOLD &&
			     self->since.counter_resets == 1))
			break;
	}
	EXPECT_EQ(0, self->since.traps);
	EXPECT_EQ(CYCLE - THRESHOLD, self->since.eager_slices);
	EXPECT_EQ(1, self->since.counter_resets);
}

/*
 * A task that wakes up and sleeps in a system call does not return to user
 * mode: that says nothing of its use of the FPU.
 */
TEST_F_TIMEOUT(counter, kernel_only_slices_change_nothing, 120)
{
	static char data[262144];
	const int rest = 65536;		/* what the pipe holds */
	bool valid;
	long sleeps;
	int pipe_fds[2], tries, status;
	pid_t reader;

	if (self->mode != 's')
		SKIP(return, "needs fpu_switch=sleazy");
	for (tries = 0; ; tries++) {
		ASSERT_LT(tries, TRIES);
		ASSERT_EQ(0, pipe(pipe_fds));
		reader = fork();
		ASSERT_GE(reader, 0);
		if (!reader) {
			static char piece[8192];
			int n;

			for (n = 0; n < (int)sizeof(data) - rest; n += sizeof(piece)) {
				if (read(pipe_fds[0], piece, sizeof(piece)) != sizeof(piece))
					break;
			}
			/* It must not run any more when it is counted. */
			for (;;)
				pause();
		}
		forget(self->pair);
		undisturbed_from_here();
		use_slices(self->pair, THRESHOLD - 1);
		sleeps = switches();
		ASSERT_EQ(sizeof(data), write(pipe_fds[1], data, sizeof(data)));
		sleeps = switches() - sleeps;
		slices += sleeps;
		begin();
		use_fpu();		/* the 5th used slice in a row */
		use_slices(self->pair, 1);
		end();
		valid = sleeps >= 3 && measured(self->since.traps == 1 &&
						self->since.eager_slices == 1);
		kill(reader, SIGKILL);
		ASSERT_EQ(reader, waitpid(reader, &status, 0));
		close(pipe_fds[0]);
		close(pipe_fds[1]);
		if (valid)
			break;
	}
	EXPECT_EQ(1, self->since.traps);
	EXPECT_EQ(1, self->since.eager_slices);
}

static void handler(int signal)
{
}

/* The kernel loads the registers for a signal frame: that is no use. */
TEST_F_TIMEOUT(counter, signals_are_no_use, 120)
{
	struct sigaction action = { .sa_handler = handler };
	struct fpu_stats signalled;
	int i, tries;

	if (self->mode == 'e')
		SKIP(return, "needs fpu_switch=sleazy or lazy");
	sigaction(SIGUSR2, &action, NULL);
	for (tries = 0; ; tries++) {
		ASSERT_LT(tries, TRIES);
		forget(self->pair);
		undisturbed_from_here();
		begin();
		for (i = 0; i < 10; i++) {
			slice(self->pair);
			syscall(SYS_kill, syscall(SYS_getpid), SIGUSR2);
		}
		end();
		signalled = self->since;
		begin();
		use_slices(self->pair, 10);
		end();
		if (measured(signalled.traps == 0 && signalled.used_slices == 0 &&
			     self->since.traps == (self->mode == 's' ? THRESHOLD : 10)))
			break;
	}
	EXPECT_EQ(0, signalled.traps);
	EXPECT_EQ(0, signalled.used_slices);
	EXPECT_EQ(self->mode == 's' ? THRESHOLD : 10, self->since.traps);
}

/* A slice of its own for each round: sleep, then use the FPU. */
static void use_and_sleep(int rounds)
{
	while (rounds--) {
		slices++;
		fpu_sleep();
		use_fpu();
	}
}

/* fork() loads them, too. The child starts from 0, the parent goes on. */
TEST_F_TIMEOUT(counter, fork_resets, 120)
{
	struct fpu_stats children;
	int tries, status;
	pid_t pid;

	if (self->mode != 's')
		SKIP(return, "needs fpu_switch=sleazy");
	for (tries = 0; ; tries++) {
		ASSERT_LT(tries, TRIES);
		forget(self->pair);
		use_slices(self->pair, 7);
		begin();
		pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
		ASSERT_GE(pid, 0);
		if (!pid) {
			undisturbed_from_here();
			use_and_sleep(10);
			syscall(SYS_exit_group, disturbed());
		}
		ASSERT_EQ(pid, syscall(SYS_wait4, pid, &status, 0, NULL));
		end();
		children = self->since;
		undisturbed_from_here();
		begin();
		use_slices(self->pair, 3);
		end();
		if (!status && measured(children.traps == THRESHOLD && self->since.traps == 0 &&
					self->since.eager_slices == 3))
			break;
	}
	EXPECT_EQ(THRESHOLD, children.traps);
	EXPECT_EQ(0, self->since.traps);
	EXPECT_EQ(3, self->since.eager_slices);
}

#define USE_ARGUMENT	"use-and-sleep"

/* This program, executed by the next test: its status is the number of traps, or this. */
#define DISTURBED	102

static void __attribute__((constructor)) executed(int argc, char **argv)
{
	struct fpu_stats before, after;

	if (argc != 3 || strcmp(argv[1], USE_ARGUMENT))
		return;
	fpu_stats_read(&before);
	before.traps = atol(argv[2]);
	undisturbed_from_here();
	use_fpu();
	use_and_sleep(10);
	fpu_stats_read(&after);
	if (disturbed())
		_exit(DISTURBED);
	_exit(after.traps - before.traps < 100 ? after.traps - before.traps : 100);
}

TEST_F_TIMEOUT(counter, exec_resets, 120)
{
	int status, tries, traps;
	pid_t pid;

	if (self->mode != 's')
		SKIP(return, "needs fpu_switch=sleazy");
	for (tries = 0; ; tries++) {
		ASSERT_LT(tries, TRIES);
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			struct fpu_stats stats;
			char text[24];

			use_and_sleep(10);
			fpu_stats_read(&stats);
			snprintf(text, sizeof(text), "%ld", stats.traps);
			execl("/proc/self/exe", "fpu_counter", USE_ARGUMENT, text, NULL);
			_exit(101);
		}
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		ASSERT_TRUE(WIFEXITED(status));
		traps = WEXITSTATUS(status);
		if (traps != DISTURBED && decided(traps == THRESHOLD))
			break;
	}
	EXPECT_EQ(THRESHOLD, traps);
}

/* The kernel uses the FPU in a slice in which the task has used it. */
TEST_F_TIMEOUT(counter, kernel_use_costs_no_second_trap, 120)
{
	struct fpu_stats unused;
	char text[16];
	int tries;

	if (access(KERNEL_FPU_FILE, R_OK))
		SKIP(return, "needs a kernel with CONFIG_TEST_FPU");
	if (self->mode == 'e')
		SKIP(return, "needs fpu_switch=sleazy or lazy");
	for (tries = 0; ; tries++) {
		ASSERT_LT(tries, TRIES);
		forget(self->pair);
		undisturbed_from_here();
		use_slices(self->pair, 1);
		begin();
		ASSERT_GT(fpu_switch_file(KERNEL_FPU_FILE, text, sizeof(text)), -1);
		use_fpu();
		end();
		/* And in one in which it has not */
		slice(self->pair);
		slice(self->pair);
		unused = self->since;
		begin();
		ASSERT_GT(fpu_switch_file(KERNEL_FPU_FILE, text, sizeof(text)), -1);
		end();
		if (measured(unused.traps == 0 && unused.ts_sets == 0 &&
			     self->since.traps == 0 && self->since.ts_clears == 1 &&
			     self->since.ts_sets == 1 && self->since.restores == 0))
			break;
	}
	EXPECT_EQ(0, unused.traps);
	EXPECT_EQ(0, unused.ts_sets);
	EXPECT_EQ(0, self->since.traps);
	EXPECT_EQ(1, self->since.ts_clears);
	EXPECT_EQ(1, self->since.ts_sets);
	EXPECT_EQ(0, self->since.restores);
}

TEST_F_TIMEOUT(counter, system_calls_write_no_ts, 120)
{
	int i, tries;

	for (tries = 0; ; tries++) {
		ASSERT_LT(tries, TRIES);
		forget(self->pair);
		undisturbed_from_here();
		begin();
		for (i = 0; i < 1000; i++)
			syscall(SYS_getppid);
		end();
		if (measured(self->since.ts_sets == 0 && self->since.ts_clears == 0 &&
			     self->since.saves == 0 && self->since.restores == 0))
			break;
	}
	EXPECT_EQ(0, self->since.ts_sets);
	EXPECT_EQ(0, self->since.ts_clears);
	EXPECT_EQ(0, self->since.saves);
	EXPECT_EQ(0, self->since.restores);
}

#define TRIPS	500

/* What 1000 switches between two tasks cost */
TEST_F_TIMEOUT(counter, pair_without_use, 120)
{
	long events;
	int i;

	forget(self->pair);
	begin();
	for (i = 0; i < TRIPS; i++)
		slice(self->pair);
	end();
	events = self->since.saves + self->since.restores + self->since.traps +
		 self->since.ts_sets + self->since.ts_clears;
	if (self->mode == 'e') {
		EXPECT_GE(self->since.saves, 2 * TRIPS);
		EXPECT_GE(self->since.restores, 2 * TRIPS);
		EXPECT_GE(self->since.eager_slices, 2 * TRIPS);
		EXPECT_EQ(0, self->since.traps);
		EXPECT_EQ(0, self->since.ts_sets);
		EXPECT_EQ(0, self->since.armed_slices);
	} else {
		EXPECT_LT(events, 5) {
			TH_LOG("%ld saves, %ld restores, %ld traps, %ld + %ld TS writes",
			       self->since.saves, self->since.restores,
			       self->since.traps, self->since.ts_sets,
			       self->since.ts_clears);
		}
		EXPECT_GE(self->since.armed_slices, 2 * TRIPS);
	}
}

TEST_F_TIMEOUT(counter, pair_with_one_user, 120)
{
	bool cleared = fpu_registers_cleared();
	struct fpu_image image;
	int tries;

	/* Use all components, or XGETBV(1) would deny the other's: it would be loaded. */
	fpu_pattern(&image, 0);
	for (tries = 0; ; tries++) {
		ASSERT_LT(tries, TRIES);
		forget(self->pair);
		fpu_load(&image, fpu_features);
		use_slices(self->pair, 2 * CYCLE);
		undisturbed_from_here();
		begin();
		use_slices(self->pair, TRIPS);
		end();
		if (!disturbed())
			break;
	}
	EXPECT_LE(self->since.used_slices, self->mode == 'e' ? 2 * TRIPS + 2 : TRIPS);
	if (self->mode == 'e') {
		EXPECT_GE(self->since.saves, 2 * TRIPS);
		EXPECT_GE(self->since.restores, 2 * TRIPS);
	} else {
		EXPECT_GE(self->since.saves, TRIPS);
		EXPECT_LE(self->since.saves, TRIPS + 2);
		/* The user finds its registers where it left them, or has to load. */
		EXPECT_GE(self->since.restores, cleared ? TRIPS : 0);
		EXPECT_LE(self->since.restores, cleared ? TRIPS + 2 : 2);
		EXPECT_GE(self->since.ts_sets, TRIPS);
		EXPECT_GE(self->since.ts_clears, TRIPS);
	}
}

/* An armed task must not reach the bounds registers of another. */
TEST(no_state_that_ts_does_not_gate)
{
	char mode = fpu_switch_mode();
	unsigned int eax, ebx, ecx, edx;

	if (mode != 's' && mode != 'l')
		SKIP(return, "needs fpu_switch=sleazy or lazy");
	__cpuid(1, eax, ebx, ecx, edx);
	if (!(ecx & bit_OSXSAVE))
		SKIP(return, "needs a CPU with XSAVE");
	/* x87, SSE, AVX, AVX-512 and PKRU: nothing else may be enabled */
	EXPECT_EQ(0, fpu_xgetbv(0) & ~(__u64)(0x7 | XFEATURES_AVX512 | XFEATURE_PKRU));
}

TEST_HARNESS_MAIN
