// SPDX-License-Identifier: GPL-2.0
/*
 * What a context switch costs with different uses of the FPU: the experiments
 * of the sLeAZY FPU's thread of 2006, and two more.
 *
 * Time is read from the TSC. Under QEMU's -icount shift=0 it counts
 * instructions, and the median over batches is exact to half an instruction.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#include "../kselftest.h"
#include "fpu_switch.h"

#define BATCH	25		/* round trips in one reading of the TSC */

struct shared {
	int turn;
	int ready;
	long child_switches;
	volatile double result;
};

static struct shared *shared;
static int cpu;
static long rounds = 5000;
static bool csv;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static long switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

static void give_turn(int who)
{
	__atomic_store_n(&shared->turn, who, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &shared->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void await_turn(int who)
{
	while (__atomic_load_n(&shared->turn, __ATOMIC_SEQ_CST) != who)
		syscall(SYS_futex, &shared->turn, FUTEX_WAIT, !who, NULL, NULL, 0);
}

/* The operation of 2006 */
static void one_operation(void)
{
	static volatile double a = 1.0, b = 2.0;

	a = 0.3 * (a + b);
}

static void no_operation(void)
{
}

/* The loops of 2006, for a fixed number of steps */
static void getpid_loop(void)
{
	long i;

	for (i = 0; i < 60 * rounds; i++)
		syscall(SYS_getpid);
}

static void long_double_loop(void)
{
	volatile long double sum = 0.0;
	long i;

	for (i = 0; i < 2000 * rounds; i++)
		sum += 1.0;
	shared->result = sum;
}

static void compute_pi(void)
{
	double sum = 0.0, sign = 4.0;
	long i;

	for (i = 0; i < 2000 * rounds; i++) {
		sum += sign / (2 * i + 1);
		sign = -sign;
	}
	shared->result = sum;
}

struct experiment {
	const char *name;
	const char *what;
	void (*parent)(void);
	void (*child)(void);
	bool ping_pong;		/* or else each side runs once, at the same time */
};

static const struct experiment experiments[] = {
	{ "a", "ping-pong over futexes, both sides A = 0.3 * (A + B)",
	  one_operation, one_operation, true },
	{ "b", "a loop of getpid() beside a loop that adds 1.0 to a long double",
	  getpid_loop, long_double_loop, false },
	{ "c", "two programs that compute pi",
	  compute_pi, compute_pi, false },
	{ "d", "ping-pong over futexes, no FPU",
	  no_operation, no_operation, true },
	{ "e", "ping-pong over futexes, one side A = 0.3 * (A + B)",
	  one_operation, no_operation, true },
};

#define NR_EXPERIMENTS	ARRAY_SIZE(experiments)

static int compare(const void *a, const void *b)
{
	unsigned long long x = *(const unsigned long long *)a;
	unsigned long long y = *(const unsigned long long *)b;

	return (x > y) - (x < y);
}

/* Batches of warm-up, for the counter of the rule to get around twice */
#define WARM_UP	(2 * 256 / BATCH + 1)

static void child(const struct experiment *e)
{
	long i, before = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (e->ping_pong) {
		for (i = 0; i < WARM_UP * BATCH + rounds; i++) {
			await_turn(1);
			if (i == WARM_UP * BATCH)
				before = switches();
			e->child();
			give_turn(0);
		}
	} else {
		await_turn(1);
		before = switches();
		e->child();
	}
	shared->child_switches = switches() - before;
	_exit(0);
}

/* TSC ticks per switch: the median over batches. No FPU until all are done. */
static double ping_pong(const struct experiment *e, unsigned long long *batches)
{
	long batch, i, number = rounds / BATCH;
	unsigned long long begin;

	for (batch = 0; batch < number; batch++) {
		begin = __rdtsc();
		for (i = 0; i < BATCH; i++) {
			e->parent();
			give_turn(1);
			await_turn(0);
		}
		batches[batch] = __rdtsc() - begin;
	}
	qsort(batches, number, sizeof(*batches), compare);
	return (double)batches[number / 2] / (2 * BATCH);
}

/*
 * A switch in the fair class does more or less work depending on the time, so
 * ping-pong is in the real-time class where that is permitted. The others need
 * time slices.
 */
static void choose_class(const struct experiment *e)
{
	const struct sched_param fair = { 0 }, real_time = { .sched_priority = 1 };

	if (!e->ping_pong)
		sched_setscheduler(0, SCHED_OTHER, &fair);
	else if (sched_setscheduler(0, SCHED_FIFO, &real_time) && errno != EPERM)
		die("sched_setscheduler");
}

static void run(const struct experiment *e)
{
	unsigned long long *batches = calloc(rounds / BATCH, sizeof(*batches));
	struct fpu_stats before, after, events;
	unsigned long long begin;
	bool counted;
	double ticks;
	long number, i;
	int status;
	pid_t pid;

	if (!batches)
		die("calloc");
	memset(shared, 0, sizeof(*shared));
	choose_class(e);
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid)
		child(e);

	if (e->ping_pong) {
		for (i = 0; i < WARM_UP * BATCH; i++) {
			e->parent();
			give_turn(1);
			await_turn(0);
		}
	}

	fpu_stats_read(&before);
	number = switches();
	if (e->ping_pong) {
		ticks = ping_pong(e, batches);
		number = switches() - number;
		counted = fpu_stats_read(&after);
		if (waitpid(pid, &status, 0) != pid)
			die("waitpid");
	} else {
		begin = __rdtsc();
		give_turn(1);
		e->parent();
		if (waitpid(pid, &status, 0) != pid)
			die("waitpid");
		ticks = __rdtsc() - begin;
		number = switches() - number;
		counted = fpu_stats_read(&after);
	}
	if (status) {
		fprintf(stderr, "the other side of experiment %s failed\n", e->name);
		exit(1);
	}
	number += shared->child_switches;
	if (!e->ping_pong)
		ticks /= number;
	fpu_stats_since(&events, &before, &after);

	if (csv) {
		printf("%s,%ld,%.1f", e->name, number, ticks);
		if (counted)
			printf(",%.1f,%.1f,%.1f,%.1f\n",
			       1000.0 * events.saves / number,
			       1000.0 * events.restores / number,
			       1000.0 * events.traps / number,
			       1000.0 * (events.ts_sets + events.ts_clears) / number);
		else
			printf(",,,,\n");
	} else {
		printf("%s  %s\n   %ld switches, %.1f TSC ticks per switch%s\n",
		       e->name, e->what, number, ticks,
		       e->ping_pong ? " (median)" : ", with the work in between");
		if (counted)
			printf("   per 1000: %.1f saves, %.1f restores, %.1f traps, %.1f TS writes\n",
			       1000.0 * events.saves / number,
			       1000.0 * events.restores / number,
			       1000.0 * events.traps / number,
			       1000.0 * (events.ts_sets + events.ts_clears) / number);
	}
	fflush(stdout);
	free(batches);
}

static void usage(FILE *out)
{
	unsigned int i;

	fprintf(out,
		"fpu_switch_bench [--experiment LETTERS] [--rounds N] [--cpu N] [--csv]\n"
		"\n"
		"Measures what a context switch costs, both sides on one CPU.\n"
		"\n"
		"  -e, --experiment  letters of those to run, all by default:\n");
	for (i = 0; i < NR_EXPERIMENTS; i++)
		fprintf(out, "                      %s  %s\n", experiments[i].name,
			experiments[i].what);
	fprintf(out,
		"  -r, --rounds      round trips to measure (%ld), at least %d\n"
		"  -c, --cpu         the CPU (the last one)\n"
		"      --csv         machine-readable; events are per 1000 switches, and\n"
		"                    empty where the kernel does not count them\n"
		"  -h, --help        this text\n",
		rounds, BATCH);
}

static long number_from(const char *text, long least, long most)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	if (errno || *end || end == text || n < least || n > most) {
		fprintf(stderr, "fpu_switch_bench: %s is no number from %ld to %ld\n",
			text, least, most);
		exit(2);
	}
	return n;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "experiment", required_argument, NULL, 'e' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "cpu", required_argument, NULL, 'c' },
		{ "csv", no_argument, NULL, 'C' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	const char *wanted = "abcde";
	char mode[16];
	cpu_set_t set;
	unsigned int i;
	int option;

	if (sched_getaffinity(0, sizeof(set), &set))
		die("sched_getaffinity");
	for (cpu = CPU_SETSIZE - 1; cpu > 0 && !CPU_ISSET(cpu, &set); cpu--)
		;

	while ((option = getopt_long(argc, argv, "e:r:c:h", options, NULL)) >= 0) {
		switch (option) {
		case 'e':
			wanted = optarg;
			if (!*wanted || strspn(wanted, "abcde") != strlen(wanted)) {
				fprintf(stderr, "experiments are letters of abcde\n");
				return 2;
			}
			break;
		case 'r':
			rounds = number_from(optarg, BATCH, 10000000);
			break;
		case 'c':
			cpu = number_from(optarg, 0, CPU_SETSIZE - 1);
			break;
		case 'C':
			csv = true;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (optind < argc) {
		usage(stderr);
		return 2;
	}

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");

	if (csv)
		puts("experiment,switches,instructions_per_switch,saves,restores,traps,ts_writes");
	else if (fpu_switch_file(FPU_SWITCH_DIR "mode", mode, sizeof(mode)) > 0)
		printf("fpu_switch mode: %s", mode);
	for (i = 0; i < NR_EXPERIMENTS; i++) {
		if (strchr(wanted, experiments[i].name[0]))
			run(&experiments[i]);
	}
	return 0;
}
