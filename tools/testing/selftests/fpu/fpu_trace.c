// SPDX-License-Identifier: GPL-2.0
/*
 * The tracepoints of FPU switching: they tell each slice of a task, in order, with
 * the counter that the rule gives, and change nothing but the path that is taken.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"
#include "fpu_switch.h"

#define MODE_FILE	FPU_SWITCH_DIR "mode"
#define COSTS_FILE	FPU_SWITCH_DIR "adaptive_costs"
#define INSTANCES	"/sys/kernel/tracing/instances/"
#define INSTANCE	INSTANCES "fpu_trace/"
#define EVENTS		INSTANCE "events/x86_fpu_lazy/"

#define MARK		"fpu_trace: mark"
#define THRESHOLD	5
#define XFEATURES_SSE	2

enum event { ARMED, EAGER, TRAP, UNUSED, USED, RESET, MODE, NR_EVENTS, UNKNOWN };

static const char * const event_names[NR_EVENTS] = {
	"armed", "eager", "trap", "unused", "used", "reset", "mode",
};

/* What the subject has gone through, by its events */
struct slices {
	unsigned int count[NR_EVENTS];
	unsigned int unchanged;		/* used slices that left registers as they were */
	unsigned int own;		/* eager ones that had nothing to restore */
	unsigned int without_sse;	/* xfeatures lack SSE */
	unsigned int wrong;
};

FIXTURE(trace)
{
	char found[16];
	char costs[64];
	struct fpu_pair *pair;
	long warned;
};

FIXTURE_SETUP(trace)
{
	const struct sched_param priority = { .sched_priority = 1 };

	self->pair = NULL;
	self->warned = fpu_kernel_warned();
	if (fpu_switch_file(MODE_FILE, self->found, sizeof(self->found)) <= 0)
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU, and root");
	fpu_switch_file(COSTS_FILE, self->costs, sizeof(self->costs));
	if (access(INSTANCES, W_OK))
		FPU_SKIP_FIXTURE("needs tracefs, and CONFIG_FTRACE");
	rmdir(INSTANCE);
	if (mkdir(INSTANCE, 0700))
		FPU_SKIP_FIXTURE("needs instances in tracefs");
	ASSERT_EQ(0, access(EVENTS "enable", W_OK));
	ASSERT_EQ(0, sched_setscheduler(0, SCHED_FIFO, &priority));
	self->pair = fpu_pair_start(fpu_nth_cpu(0), HOT, SIGCHLD);
	ASSERT_TRUE(!!self->pair);
}

FIXTURE_TEARDOWN(trace)
{
	if (!self->pair)
		return;
	EXPECT_EQ(0, fpu_pair_stop(self->pair));
	EXPECT_EQ(0, fpu_switch_write(EVENTS "enable", "0"));
	EXPECT_EQ(0, rmdir(INSTANCE));
	fpu_switch_write(MODE_FILE, "eager");
	fpu_switch_write(COSTS_FILE, self->costs);
	EXPECT_EQ(0, fpu_switch_write(MODE_FILE, self->found));
	EXPECT_EQ(self->warned, fpu_kernel_warned()) {
		TH_LOG("The kernel has warned, see its log");
	}
}

static void use_x87(void)
{
	fpu_use_by(INSN_X87, fpu_features);
}

static void change_vectors(void)
{
	asm volatile("pcmpeqd %xmm7, %xmm7\n\t"
		     "psubd %xmm7, %xmm0");
}

/* The tracepoints are switched one by one: what is between the marks has them all. */
static void record(struct fpu_pair *pair, int slices, void (*use)(void))
{
	close(open(INSTANCE "trace", O_WRONLY | O_TRUNC));
	fpu_switch_write(EVENTS "enable", "1");
	fpu_switch_write(INSTANCE "trace_marker", MARK);
	while (slices--) {
		if (use)
			use();
		fpu_slice(pair);
	}
	fpu_switch_write(INSTANCE "trace_marker", MARK);
	fpu_switch_write(EVENTS "enable", "0");
}

/* One line of the trace, or false if it is not of the subject */
static bool parse(const char *line, enum event *event, unsigned int *counter, bool *own,
		  unsigned long long *xfeatures)
{
	const char *at = strstr(line, ": x86_fpu_");
	unsigned int pid, own_field;
	char name[16];

	if (!at || sscanf(at, ": x86_fpu_%15[a-z]: pid=%u counter=%u own=%u xfeatures=%llx",
			  name, &pid, counter, &own_field, xfeatures) != 5)
		return false;
	*own = own_field;
	for (*event = 0; *event < MODE && strcmp(name, event_names[*event]); (*event)++)
		;
	return pid == (unsigned int)getpid();
}

/*
 * Do the events of the subject make slices? With @threshold >= 0, their counters
 * have to be those of the rule, with that as the number of slices that make eager.
 */
static void check(struct slices *slices, int threshold)
{
	FILE *trace = fopen(INSTANCE "trace", "r");
	enum event event, begun = UNKNOWN;
	int expected = -1, before = 1;
	unsigned long long xfeatures;
	unsigned int counter;
	char line[256];
	bool own, ok, marked = false;

	memset(slices, 0, sizeof(*slices));
	while (trace && fgets(line, sizeof(line), trace)) {
		marked ^= !!strstr(line, MARK);
		if (!marked || !parse(line, &event, &counter, &own, &xfeatures))
			continue;

		slices->count[event]++;
		slices->without_sse += !(xfeatures & XFEATURES_SSE);
		switch (event) {
		case ARMED:
		case EAGER:
			ok = begun >= NR_EVENTS;
			if (threshold >= 0)
				ok = ok && (event == EAGER) == ((int)counter >= threshold);
			slices->own += event == EAGER && own;
			begun = event;
			break;
		case TRAP:
			ok = begun == ARMED || begun == UNKNOWN;
			begun = TRAP;
			break;
		case USED:
			/* After ARMED: the kernel has loaded them meanwhile. */
			ok = begun != NR_EVENTS;
			slices->unchanged += own;
			break;
		case UNUSED:
			ok = begun == ARMED || begun == UNKNOWN;
			break;
		case RESET:
			ok = before && !counter;
			break;
		default:
			ok = false;
		}
		if (threshold >= 0 && expected >= 0)
			ok = ok && (int)counter == expected;
		if (!ok) {
			printf("# after %s, counter %d expected: %s", begun < NR_EVENTS ?
			       event_names[begun] : "the end of a slice", expected, line);
			slices->wrong++;
		}

		expected = counter;
		if (event == USED || event == UNUSED) {
			before = counter;
			expected = event == USED ? (counter + 1) % 256 : 0;
			begun = NR_EVENTS;
		}
	}
	if (trace)
		fclose(trace);
	else
		slices->wrong++;
}

/* The first slice may be under way, and the last one still is. */
TEST_F_TIMEOUT(trace, sleazy_used, 60)
{
	struct slices slices;

	if (fpu_switch_write(MODE_FILE, "sleazy") == EOPNOTSUPP)
		SKIP(return, "this machine is always eager");
	record(self->pair, 300, use_x87);
	check(&slices, THRESHOLD);
	EXPECT_EQ(0, slices.wrong);
	EXPECT_GE(slices.count[TRAP], 5);
	EXPECT_LE(slices.count[TRAP], 15);
	EXPECT_GE(slices.count[EAGER], 280);
	EXPECT_GE(slices.count[USED], 298);
	EXPECT_LE(slices.count[UNUSED], 2);
	EXPECT_GE(slices.count[RESET], 1);
}

TEST_F_TIMEOUT(trace, sleazy_unused, 60)
{
	struct slices slices;

	if (fpu_switch_write(MODE_FILE, "sleazy") == EOPNOTSUPP)
		SKIP(return, "this machine is always eager");
	record(self->pair, 100, NULL);
	check(&slices, THRESHOLD);
	EXPECT_EQ(0, slices.wrong);
	EXPECT_GE(slices.count[UNUSED], 95);
	EXPECT_LE(slices.count[TRAP], 2);
	EXPECT_EQ(0, slices.count[EAGER]);
}

TEST_F_TIMEOUT(trace, lazy, 60)
{
	struct slices slices;

	if (fpu_switch_write(MODE_FILE, "lazy") == EOPNOTSUPP)
		SKIP(return, "this machine is always eager");
	record(self->pair, 50, use_x87);
	check(&slices, 256);
	EXPECT_EQ(0, slices.wrong);
	EXPECT_GE(slices.count[TRAP], 48);
	EXPECT_EQ(0, slices.count[EAGER]);
}

/* No machine is too eager to be traced. What has not changed is seen. */
TEST_F_TIMEOUT(trace, eager, 60)
{
	struct slices slices;

	ASSERT_EQ(0, fpu_switch_write(MODE_FILE, "eager"));
	record(self->pair, 50, NULL);
	check(&slices, 0);
	EXPECT_EQ(0, slices.wrong);
	EXPECT_GE(slices.count[EAGER], 48);
	EXPECT_EQ(0, slices.count[ARMED]);
	EXPECT_EQ(0, slices.count[TRAP]);
	/* The partner's have been in the registers. */
	EXPECT_EQ(0, slices.own);
	if (!fpu_cpu_has(bit_SSE))
		return;
	EXPECT_GE(slices.unchanged, 40);

	record(self->pair, 50, change_vectors);
	check(&slices, 0);
	EXPECT_EQ(0, slices.wrong);
	EXPECT_LE(slices.unchanged, 4);
	EXPECT_LE(slices.without_sse, 8);
}

TEST_F_TIMEOUT(trace, adaptive, 60)
{
	struct slices slices;
	int err;

	if (!fpu_cpu_has(bit_SSE))
		SKIP(return, "needs SSE, which hints come from");
	fpu_switch_write(MODE_FILE, "eager");
	ASSERT_EQ(0, fpu_switch_write(COSTS_FILE, "130 285 150 50 900"));
	err = fpu_switch_write(MODE_FILE, "adaptive");
	if (err == EOPNOTSUPP)
		SKIP(return, "this machine is always eager");
	ASSERT_EQ(0, err);
	record(self->pair, 100, change_vectors);
	check(&slices, -1);
	EXPECT_EQ(0, slices.wrong);
	EXPECT_GE(slices.count[EAGER], 90);
	EXPECT_LE(slices.unchanged, 4);

	record(self->pair, 300, NULL);
	check(&slices, -1);
	EXPECT_EQ(0, slices.wrong);
	EXPECT_GE(slices.unchanged, 20);
}

/* Registers are kept over what tracing switches to and from. */
TEST_F_TIMEOUT(trace, registers, 60)
{
	int file = open(EVENTS "enable", O_WRONLY);
	int i, slice, on, off;

	ASSERT_GE(file, 0);
	for (i = 0; i < 20; i++) {
		fpu_switch_write(MODE_FILE, i % 2 ? "sleazy" : "lazy");
		fpu_hold(&self->pair->subject, i);
		on = syscall(SYS_write, file, "1", 1);
		for (slice = 0; slice < 8; slice++) {
			fpu_read(&self->pair->subject);
			fpu_slice(self->pair);
		}
		off = syscall(SYS_write, file, "0", 1);
		fpu_slice(self->pair);
		fpu_read(&self->pair->subject);
		EXPECT_EQ(1, on);
		EXPECT_EQ(1, off);
		EXPECT_EQ(0, fpu_wrong("subject", &self->pair->subject));
	}
	/* Or else the instance could not be removed. */
	close(file);
}

TEST_F(trace, mode)
{
	char text[4096], *at;

	fpu_switch_write(MODE_FILE, "eager");
	if (fpu_switch_write(MODE_FILE, "lazy") == EOPNOTSUPP)
		SKIP(return, "this machine is always eager");
	fpu_switch_write(INSTANCE "trace", "\n");
	ASSERT_EQ(0, fpu_switch_write(EVENTS "x86_fpu_mode/enable", "1"));
	EXPECT_EQ(0, fpu_switch_write(MODE_FILE, "sleazy"));
	EXPECT_EQ(0, fpu_switch_write(MODE_FILE, "sleazy"));
	EXPECT_EQ(0, fpu_switch_write(MODE_FILE, "eager"));
	ASSERT_LT(0, fpu_switch_file(INSTANCE "trace", text, sizeof(text)));
	at = strstr(text, "x86_fpu_mode: from=lazy to=sleazy\n");
	ASSERT_NE(NULL, at);
	at = strstr(at, "x86_fpu_mode: ");
	ASSERT_NE(NULL, at);
	at = strstr(at + 1, "x86_fpu_mode: ");
	ASSERT_NE(NULL, at);
	EXPECT_EQ(0, strncmp(at, "x86_fpu_mode: from=sleazy to=eager\n", 35));
	EXPECT_EQ(NULL, strstr(at + 1, "x86_fpu_mode: "));
}

TEST_HARNESS_MAIN
