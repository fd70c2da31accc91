// SPDX-License-Identifier: GPL-2.0
/* Is the laboratory right? Values worked out by hand, and brute force. */
#include <limits.h>
#include <stdlib.h>

#include "lab.h"

static const struct fpu_costs zen4 = { 130, 285, 150, 50, 900 };
static const struct fpu_costs intel = { 104, 80, 208, 50, 1156 };
static int failed;

static void check(bool good, const char *what, double is)
{
	printf("%sok - lab: %s", good ? "" : "not ", what);
	if (!good)
		printf(" (%g)", is);
	putchar('\n');
	failed += !good;
}

static long cost_of(enum rule rule, const struct fpu_costs *costs, const struct pattern *p, long n)
{
	struct trace trace = { 0 };
	long cost;

	pattern_make(&trace, p, n, 1);
	cost = rule == NR_RULES ? oracle(costs, &trace) : simulate(rule, costs, &trace).cost;
	trace_free(&trace);
	return cost;
}

static void hand_made(void)
{
	static const struct pattern users = { "", { "1", "1" } };
	static const struct pattern mixed = { "", { "0", "1" } };
	static const struct pattern alone = { "", { "1" } };
	long is;

	is = cost_of(EAGER, &zen4, &users, 512);
	check(is == 512 * 415, "eager, two users: each slice is saved and restored", is);
	is = cost_of(EAGER, &zen4, &alone, 512);
	check(is == 512 * 130 + 285, "eager, alone: restored once", is);
	is = cost_of(SLEAZY, &zen4, &users, 512);
	/* Both trap in the first 5 of 256. The second finds TS clear, as does the first. */
	check(is == 512 * 415 + 2 * 5 * (900 + 150 + 50),
	      "sleazy, two users: 5 traps in 256 slices each", is);
	is = cost_of(LAZY, &zen4, &mixed, 512);
	check(is == 256 * (150 + 900 + 50 + 130) + 285,
	      "lazy, a user and a non-user: the owner's registers survive", is);
	is = cost_of(NR_RULES, &zen4, &mixed, 512);
	check(is == 256 * (150 + 50 + 130) + 285, "oracle, a user and a non-user: no trap", is);
}

/* All choices for all slices, one after the other */
static long brute_force(const struct trace *trace)
{
	long best = LONG_MAX;
	unsigned int choice;

	for (choice = 0; choice < 1u << trace->n; choice++) {
		struct machine m;
		size_t i;

		machine_init(&m, EAGER, &zen4, trace->cpus, trace->tasks);
		for (i = 0; i < trace->n; i++) {
			const struct event *e = &trace->events[i];

			if (e->type == SLICE)
				machine_finish(&m, 0, e->task, choice >> i & 1, e->used, true);
			else
				machine_step(&m, e);
		}
		if (m.result.cost < best)
			best = m.result.cost;
		machine_free(&m);
	}
	return best;
}

static void oracle_is_best(void)
{
	unsigned int seed = 1;
	int round, wrong = 0, i;

	for (round = 0; round < 60; round++) {
		struct trace trace = { 0 };

		for (i = 0; i < 10; i++) {
			struct event e = { .type = SLICE };

			seed = seed * 1103515245 + 12345;
			e.task = (seed >> 16) % 3;
			e.used = (seed >> 20) % 3 == 0;
			if ((seed >> 24) % 8 == 0)
				e.type = KERNEL_FPU;
			else if ((seed >> 24) % 16 == 9)
				e.type = KERNEL_LOAD;
			else if ((seed >> 24) % 16 == 1)
				e.type = NEW_PROGRAM;
			trace_add(&trace, e);
		}
		wrong += oracle(&zen4, &trace) != brute_force(&trace);
		trace_free(&trace);
	}
	check(!wrong, "oracle: brute force finds nothing better, 60 random traces", wrong);
}

static void goals(const struct fpu_costs *costs, const char *name)
{
	double bound = (costs->save + costs->restore) / 512.0;
	const long n = 20000;
	long start = costs->ts_set + costs->ts_clear + costs->trap;
	struct worst w;
	struct proof p;
	char what[100];
	double worst = -1e9;
	size_t i;

	for (i = 0; i < nr_patterns; i++) {
		long eager = cost_of(EAGER, costs, &patterns[i], n);
		double above = cost_of(ADAPTIVE, costs, &patterns[i], n) - eager * 513.0 / 512;

		if (above > worst)
			worst = above;
	}
	snprintf(what, sizeof(what), "adaptive, %s: no pattern is above its bound", name);
	check(worst <= start, what, worst);

	w = adversary(ADAPTIVE, costs, n);
	snprintf(what, sizeof(what), "adaptive, %s: no adversary is, either", name);
	check(w.excess <= bound + (double)start / n, what, w.excess);
	w = adversary(SLEAZY, costs, n);
	snprintf(what, sizeof(what), "sleazy, %s: an adversary makes it lose hundreds of cycles",
		 name);
	check(w.excess > 300, what, w.excess);

	p = prove(costs);
	snprintf(what, sizeof(what), "adaptive, %s: the account holds in every step", name);
	check(!p.broken && p.lowest >= 0 && p.states > 100000, what, p.broken);
}

/* Slices between the end of use and the first that is armed, rich CPU */
static double noticed(int wrong, int rounds)
{
	struct machine m;
	unsigned int seed = 1;
	long sum = 0;
	int round, i;

	machine_init(&m, ADAPTIVE, &zen4, 1, 1);
	for (round = 0; round < rounds; round++) {
		for (i = 0; i < 1000; i++) {
			bool armed;

			seed = seed * 1103515245 + 12345;
			m.cpus[0].credit = m.adaptive.max;
			m.cpus[0].owner = -1;
			armed = machine_arms(&m, 0, 0);
			machine_finish(&m, 0, 0, armed, true, (int)((seed >> 16) % 1000) < wrong);
		}
		for (i = 0; i < 1000; i++) {
			bool armed;

			m.cpus[0].owner = -1;
			armed = machine_arms(&m, 0, 0);
			machine_finish(&m, 0, 0, armed, false, true);
			if (armed)
				break;
		}
		sum += i;
	}
	machine_free(&m);
	return (double)sum / rounds;
}

/* Traps in 256 slices of a task that always uses the FPU and is known, rich CPU */
static double trapped(int wrong)
{
	struct machine m;
	unsigned int seed = 1;
	const int known = 256 * 10;
	double traps;
	long i;

	machine_init(&m, ADAPTIVE, &zen4, 1, 1);
	for (i = 0; i < known + 256 * 400; i++) {
		bool armed;

		if (i == known)
			m.result.traps = 0;
		seed = seed * 1103515245 + 12345;
		m.cpus[0].credit = m.adaptive.max;
		m.cpus[0].owner = -1;
		armed = machine_arms(&m, 0, 0);
		machine_finish(&m, 0, 0, armed, true, (int)((seed >> 16) % 1000) < wrong);
	}
	traps = m.result.traps / 400.0;
	machine_free(&m);
	return traps;
}

static void notice(void)
{
	static const int wrong[] = { 0, 50, 200, 400, 600 };
	double most = 0;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		double slices = noticed(wrong[i], 100);

		printf("# %d permille of hints wrong: noticed after %.1f slices, "
		       "%.2f traps in 256 slices of use\n",
		       wrong[i], slices, trapped(wrong[i]));
		if (slices > most)
			most = slices;
	}
	check(most <= 16, "adaptive: who stops is noticed within 16 slices on average", most);
	most = 0;
	for (i = 0; i <= 1000; i += 50)
		if (trapped(i) > most)
			most = trapped(i);
	check(most <= 1, "adaptive: who goes on traps at most once in 256 slices", most);
}

int main(void)
{
	hand_made();
	oracle_is_best();
	notice();
	goals(&zen4, "zen4");
	goals(&intel, "intel");
	return !!failed;
}
