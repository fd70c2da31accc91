// SPDX-License-Identifier: GPL-2.0
/*
 * What /proc/PID/arch_status tells of a task's FPU use: of the task that it is
 * about, in each mode, and to whom it may be told; and what fpustat makes of that and
 * of what debugfs has.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"
#include "fpu_switch.h"

#define NOBODY		65534
#define THRESHOLD	5
#define SLICES		20

struct status {
	long counter;
	long used;
	long unused;
	long traps;
};

/* The number in the line of that name, or -1 */
static long number_of(const char *text, const char *name)
{
	const char *line = strstr(text, name);

	return line ? atol(line + strlen(name)) : -1;
}

/* False if it says nothing, which is all or nothing. */
static bool parse(const char *text, struct status *status)
{
	status->counter = number_of(text, "fpu_counter:\t");
	status->used = number_of(text, "fpu_used_slices:\t");
	status->unused = number_of(text, "fpu_unused_slices:\t");
	status->traps = number_of(text, "fpu_traps:\t");
	return status->counter >= 0;
}

static bool status_of(pid_t pid, struct status *status)
{
	char path[64], text[512];

	snprintf(path, sizeof(path), "/proc/%d/arch_status", pid);
	return fpu_switch_file(path, text, sizeof(text)) >= 0 && parse(text, status);
}

/* Its own, to be parsed later: the C library may use the FPU for that. */
static void take_own(char text[512])
{
	if (fpu_switch_file("/proc/self/arch_status", text, 512) < 0)
		text[0] = 0;
}

static long switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

FIXTURE(status)
{
	struct fpu_pair *pair;
	struct status before;
	struct status after;
	char mode;
};

FIXTURE_SETUP(status)
{
	const struct sched_param priority = { .sched_priority = 1 };

	self->pair = NULL;
	self->mode = fpu_switch_mode();
	if (!self->mode)
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU, and root");
	if (!fpu_cpu_has(bit_FPU))
		FPU_SKIP_FIXTURE("needs an FPU");
	if (access("/proc/self/arch_status", F_OK))
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_PROC_PID_ARCH_STATUS");
	ASSERT_TRUE(status_of(getpid(), &self->before));
	if (self->before.used < 0)
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU_STATS");
	ASSERT_EQ(0, sched_setscheduler(0, SCHED_FIFO, &priority));
	self->pair = fpu_pair_start(fpu_nth_cpu(0), HOT, SIGCHLD);
	ASSERT_TRUE(!!self->pair);
}

FIXTURE_TEARDOWN(status)
{
	if (self->pair)
		fpu_pair_stop(self->pair);
}

/* How often it was switched away from, from here on, besides what is meant to be */
static long disturbed(int slices)
{
	static long before;
	long now = switches() - before;

	before += now;
	return now - slices;
}

static long all_of(const struct status *status)
{
	return status->used + status->unused;
}

/* The task's own slices, whatever the partner does. One cut in two is two. */
TEST_F_TIMEOUT(status, slices, 60)
{
	char text[3][512];
	struct status idle, busy;
	int i, tries;

	for (tries = 0; ; tries++) {
		long extra;

		ASSERT_LT(tries, 20);
		/* The count is 0 after this, where a slice can be unused. */
		for (i = 0; i < 300; i++)
			fpu_slice(self->pair);

		disturbed(0);
		take_own(text[0]);
		for (i = 0; i < SLICES; i++)
			fpu_slice(self->pair);
		take_own(text[1]);
		for (i = 0; i < SLICES; i++) {
			fpu_use_by(INSN_X87, fpu_features);
			fpu_slice(self->pair);
		}
		take_own(text[2]);
		extra = disturbed(2 * SLICES);
		if (!extra)
			break;
	}
	ASSERT_TRUE(parse(text[0], &self->before));
	ASSERT_TRUE(parse(text[1], &idle));
	ASSERT_TRUE(parse(text[2], &busy));

	switch (self->mode) {
	case 'e':
		EXPECT_EQ(SLICES, idle.used - self->before.used);
		EXPECT_EQ(0, busy.unused);
		EXPECT_EQ(0, busy.traps);
		break;
	case 's':
	case 'l':
		EXPECT_EQ(self->before.used, idle.used);
		EXPECT_EQ(SLICES, idle.unused - self->before.unused);
		EXPECT_EQ(self->before.traps, idle.traps);
		EXPECT_EQ(0, idle.counter);
		EXPECT_EQ(idle.unused, busy.unused);
		EXPECT_EQ(SLICES, busy.counter);
		EXPECT_EQ(self->mode == 's' ? THRESHOLD : SLICES, busy.traps - idle.traps);
		break;
	default:
		/* The adaptive rule may take any for unused that it has no proof for. */
		EXPECT_EQ(all_of(&self->before) + SLICES, all_of(&idle));
		EXPECT_EQ(all_of(&idle) + SLICES, all_of(&busy));
		EXPECT_LE(busy.traps - self->before.traps, SLICES);
		return;
	}
	EXPECT_EQ(SLICES, busy.used - idle.used);
}

/* A child has not used anything yet, a new program has. */
TEST_F(status, fork_is_zero)
{
	struct status *child = fpu_share(sizeof(*child));
	pid_t pid;
	int status;

	ASSERT_TRUE(!!child);
	fpu_slice(self->pair);
	ASSERT_TRUE(status_of(getpid(), &self->before));
	EXPECT_GT(self->before.used + self->before.unused, 0);

	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		bool known = status_of(getpid(), child);

		/* Preempted, it may have had a slice already. */
		_exit(known && child->used + child->unused <= 1 ? 0 : 1);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

/* What is left when a task is dead, but has not been waited for */
TEST_F(status, zombie)
{
	struct status *last = fpu_share(sizeof(*last));
	siginfo_t info;
	pid_t pid;
	int i;

	ASSERT_TRUE(!!last);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		for (i = 0; i < 10; i++) {
			fpu_use_by(INSN_X87, fpu_features);
			fpu_sleep();
		}
		_exit(!status_of(getpid(), last));
	}
	ASSERT_EQ(0, waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
	EXPECT_EQ(0, info.si_status);
	ASSERT_TRUE(status_of(pid, &self->after));
	EXPECT_GE(self->after.used, last->used);
	EXPECT_GE(all_of(last), 10);
	EXPECT_EQ(self->after.traps, last->traps);
	EXPECT_EQ(pid, waitpid(pid, NULL, 0));
}

/* A kernel thread has no registers of a user. */
TEST_F(status, kernel_thread)
{
	EXPECT_FALSE(status_of(2, &self->after));
}

/* Others are told nothing, and the task itself is. */
TEST_F(status, other_user)
{
	pid_t parent = getpid(), pid = fork();
	int status;

	ASSERT_GE(pid, 0);
	if (!pid) {
		struct status seen;

		if (setgid(NOBODY) || setuid(NOBODY))
			_exit(1);
		if (status_of(parent, &seen))
			_exit(2);
		/* Its files are root's until it says that it may be looked at. */
		prctl(PR_SET_DUMPABLE, 1);
		_exit(status_of(getpid(), &seen) ? 0 : 3);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

/* Beside this program */
#define FPUSTAT		"./fpustat"

/* Its exit status. What it says, on both, ends up in @text. */
static int fpustat(const char *options, char *text, size_t size)
{
	char command[128];
	size_t n;
	FILE *pipe;
	int status;

	snprintf(command, sizeof(command), FPUSTAT " %s 2>&1", options);
	pipe = popen(command, "r");
	if (!pipe)
		return -1;
	n = fread(text, 1, size - 1, pipe);
	text[n] = 0;
	status = pclose(pipe);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

FIXTURE(fpustat)
{
	char text[65536];
	struct fpu_stats before;
	struct fpu_stats after;
};

FIXTURE_SETUP(fpustat)
{
	if (!fpu_switch_mode())
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU, and root");
	if (!fpu_stats_read(&self->before))
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU_STATS");
}

FIXTURE_TEARDOWN(fpustat)
{
}

/* The sums since boot are between those before and after. */
TEST_F(fpustat, sums)
{
	long saves, traps;

	ASSERT_EQ(0, fpustat("--json", self->text, sizeof(self->text)));
	fpu_stats_read(&self->after);
	saves = number_of(self->text, "\"saves\": ");
	traps = number_of(self->text, "\"traps\": ");
	EXPECT_GE(saves, self->before.saves);
	EXPECT_LE(saves, self->after.saves);
	EXPECT_GE(traps, self->before.traps);
	EXPECT_LE(traps, self->after.traps);

	ASSERT_EQ(0, fpustat("", self->text, sizeof(self->text)));
	EXPECT_TRUE(strstr(self->text, "eager_slices"));
}

/* Those of the CPUs are the sums. */
TEST_F(fpustat, cpus)
{
	long saves = 0, cpus = 0;
	const char *line;

	ASSERT_EQ(0, fpustat("-c -j", self->text, sizeof(self->text)));
	fpu_stats_read(&self->after);
	for (line = self->text; (line = strstr(line, "\"saves\": ")); line++) {
		saves += number_of(line, "\"saves\": ");
		cpus++;
	}
	EXPECT_GE(saves, self->before.saves);
	EXPECT_LE(saves, self->after.saves);
	EXPECT_GE(cpus, sysconf(_SC_NPROCESSORS_ONLN));
}

/* Another line for each interval, with what has happened in it */
TEST_F(fpustat, intervals)
{
	long first, second;
	char *line;

	ASSERT_EQ(0, fpustat("-j 1 2", self->text, sizeof(self->text)));
	fpu_stats_read(&self->after);
	first = number_of(self->text, "\"saves\": ");
	line = strchr(self->text, '\n');
	ASSERT_TRUE(!!line);
	second = number_of(line, "\"saves\": ");
	EXPECT_GE(first, self->before.saves);
	EXPECT_GE(second, 0);
	EXPECT_LE(first + second, self->after.saves);
	EXPECT_EQ(NULL, strstr(strchr(line + 1, '\n') ?: "", "saves"));
}

/* A task with more slices than any other in the interval, and with a name to quote */
TEST_F(fpustat, tasks)
{
	int *done = fpu_share(sizeof(*done)), i;
	struct status counted;
	char key[32], *line;
	pid_t pid = fork();

	ASSERT_TRUE(pid >= 0 && done);
	if (!pid) {
		prctl(PR_SET_NAME, "a \"b\"\\\n.%");
		for (i = 0; i < 200; i++) {
			fpu_use_by(INSN_X87, fpu_features);
			fpu_sleep();
		}
		__atomic_store_n(done, 1, __ATOMIC_SEQ_CST);
		for (;;)
			pause();
	}
	while (!__atomic_load_n(done, __ATOMIC_SEQ_CST))
		fpu_sleep();
	ASSERT_EQ(0, fpustat("-t -j -n 1000", self->text, sizeof(self->text)));
	ASSERT_TRUE(status_of(pid, &counted));
	EXPECT_GE(all_of(&counted), 200);
	snprintf(key, sizeof(key), "{\"tid\": %d,", pid);
	line = strstr(self->text, key);
	EXPECT_TRUE(!!line);
	if (line) {
		EXPECT_EQ(counted.used, number_of(line, "\"used_slices\": "));
		EXPECT_EQ(counted.unused, number_of(line, "\"unused_slices\": "));
		EXPECT_EQ(counted.traps, number_of(line, "\"traps\": "));
		*strchr(line, '\n') = 0;
		EXPECT_TRUE(strstr(line, "\"a \\u0022b\\u0022\\u005c\\u000a.%\"}"));
	}
	kill(pid, SIGKILL);
	EXPECT_EQ(pid, waitpid(pid, NULL, 0));
}

/*
 * By these costs, a task gains that uses the FPU in less than 27.3% of its slices: one
 * that does in a fifth, and not one that does in a third.
 */
TEST_F(fpustat, gains)
{
	const char *costs = FPU_SWITCH_DIR "adaptive_costs";
	char found[64], key[32], *line;
	struct status before, after;
	int every, i, *done;
	pid_t pid;

	if (fpu_switch_mode() != 'l')
		SKIP(return, "needs fpu_switch=lazy, which sees each use");
	done = fpu_share(sizeof(*done));
	ASSERT_TRUE(done && fpu_switch_file(costs, found, sizeof(found)) > 0);
	ASSERT_EQ(0, fpu_switch_write(costs, "130 285 150 50 900"));
	for (every = 3; every <= 5; every += 2) {
		*done = 0;
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			for (i = 0; i < 300; i++) {
				if (i % every == 0)
					fpu_use_by(INSN_X87, fpu_features);
				fpu_sleep();
			}
			__atomic_store_n(done, 1, __ATOMIC_SEQ_CST);
			for (;;)
				pause();
		}
		while (!__atomic_load_n(done, __ATOMIC_SEQ_CST))
			fpu_sleep();
		status_of(pid, &before);
		EXPECT_EQ(0, fpustat("-t -j -n 1000", self->text, sizeof(self->text)));
		status_of(pid, &after);
		EXPECT_EQ(all_of(&before), all_of(&after));
		snprintf(key, sizeof(key), "{\"tid\": %d,", pid);
		line = strstr(self->text, key);
		EXPECT_TRUE(!!line);
		if (line) {
			*strchr(line, '\n') = 0;
			EXPECT_TRUE(strstr(line, every == 3 ? "\"gains\": \"no\"" :
							      "\"gains\": \"yes\"")) {
				TH_LOG("%s", line);
			}
		}
		kill(pid, SIGKILL);
		EXPECT_EQ(pid, waitpid(pid, NULL, 0));
	}
	/* All zero is what has not been measured, and cannot be written. */
	fpu_switch_write(costs, found);
}

TEST_F(fpustat, wrong_words)
{
	static const char * const wrong[] = {
		"0", "-1", "x", "1 0", "1 1x", "1 2 3", "-c -t", "-n 0", "-n", "-r 1", "-r -j",
		"--cups", "99999999999999999999",
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		EXPECT_EQ(2, fpustat(wrong[i], self->text, sizeof(self->text))) {
			TH_LOG("%s", wrong[i]);
		}
		EXPECT_NE(0, self->text[0]);
	}
}

/* It says what is missing. */
TEST_F(fpustat, other_user)
{
	pid_t pid = fork();
	int status;

	ASSERT_GE(pid, 0);
	if (!pid) {
		if (setgid(NOBODY) || setuid(NOBODY))
			_exit(1);
		if (fpustat("", self->text, sizeof(self->text)) != 1)
			_exit(2);
		_exit(!strstr(self->text, "run as root"));
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

/* All that it promises, and no name of the machine or of a task */
TEST_F(fpustat, report)
{
	static const char * const promised[] = {
		"kernel:\n", "cpu:\n", "vendor_id", "flags\t\t: fpu", "parameters:\n", "mode:\n",
		"lazy_fp:\n", "costs, measured now:\n", "stats:\n  saves ", "stats_cpus:\n  cpu ",
		"kernel log:\n", "fpu_switch=",
	};
	unsigned int i;

	prctl(PR_SET_NAME, "a private name");
	if (unshare(CLONE_NEWUTS))
		SKIP(return, "needs a kernel with CONFIG_UTS_NS");
	ASSERT_EQ(0, sethostname("a-private-host", 14));
	ASSERT_EQ(0, fpustat("--report", self->text, sizeof(self->text)));
	for (i = 0; i < ARRAY_SIZE(promised); i++) {
		EXPECT_TRUE(strstr(self->text, promised[i])) {
			TH_LOG("%s", promised[i]);
		}
	}
	EXPECT_EQ(NULL, strstr(self->text, "private"));
}

TEST_HARNESS_MAIN
