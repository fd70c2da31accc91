// SPDX-License-Identifier: GPL-2.0
/* Patterns of FPU use that are made up, and those that are made to hurt */
#include <stdlib.h>
#include <string.h>

#include "lab.h"

/*
 * What a task does, and it is its own state:
 *
 *  1 always, 0 never, /N every Nth slice, bA,B A used and B unused in turn, rP
 *  random with P permille, mA,B runs of random length, A used and B unused on
 *  average, sN stops after N, pN always and never for N slices each
 *
 * and behind it ~P: of the used slices, P permille leave the image as it was.
 */
const struct pattern patterns[] = {
	{ "always, alone",			{ "1" } },
	{ "always, alone, all hints wrong",	{ "1~1000" } },
	{ "always, two of them",		{ "1", "1" } },
	{ "always, two, 5% wrong",		{ "1~50", "1~50" } },
	{ "always, two, 20% wrong",		{ "1~200", "1~200" } },
	{ "always, two, 60% wrong",		{ "1~600", "1~600" } },
	{ "always, two, all hints wrong",	{ "1~1000", "1~1000" } },
	{ "never, alone",			{ "0" } },
	{ "never, two of them",			{ "0", "0" } },
	{ "one never, one always",		{ "0", "1" } },
	{ "one never, two always",		{ "0", "1", "1" } },
	{ "one never, one always, 60% wrong",	{ "0", "1~600" } },
	{ "every 2nd, beside always",		{ "/2", "1" } },
	{ "every 2nd, two of them",		{ "/2", "/2" } },
	{ "every 5th, beside always",		{ "/5", "1" } },
	{ "every 20th, beside always",		{ "/20", "1" } },
	{ "every 20th, two of them",		{ "/20", "/20" } },
	{ "bursts 8 of 16, beside always",	{ "b8,8", "1" } },
	{ "bursts 5 of 6, beside always",	{ "b5,1", "1" } },
	{ "bursts 50 of 100, two",		{ "b50,50", "b50,50" } },
	{ "random 2%, two",			{ "r20", "r20" } },
	{ "random 10%, two",			{ "r100", "r100" } },
	{ "random 30%, beside always",		{ "r300", "1" } },
	{ "random 50%, two, 15% wrong",		{ "r500~150", "r500~150" } },
	{ "random 70%, two, 15% wrong",		{ "r700~150", "r700~150" } },
	{ "random 90%, alone, 15% wrong",	{ "r900~150" } },
	{ "runs 4 and 30, beside always",	{ "m4,30~50", "1~50" } },
	{ "runs 30 and 4, two",			{ "m30,4~50", "m30,4~50" } },
	{ "stops after 500, two",		{ "s500~50", "s500~50" } },
	{ "phases of 300, two, 20% wrong",	{ "p300~200", "p300~200" } },
};

const size_t nr_patterns = ARRAY_SIZE(patterns);

static unsigned int next_random(unsigned int *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

static bool permille(unsigned int *seed, long p)
{
	return (long)(next_random(seed) % 1000) < p;
}

struct behaviour {
	char kind;
	long a;
	long b;
	long wrong;
	long slice;
	bool on;
};

/* One of the forms above, and its numbers make sense */
bool pattern_task_ok(const char *task)
{
	const char *s = task;
	int numbers = 0;
	long v;
	char *end;

	if (!*s || !strchr("01/brmsp", *s))
		return false;
	if (strchr("/brmsp", *s++)) {
		int expected = strchr("bm", *task) ? 2 : 1;

		for (; numbers < expected; numbers++) {
			if (numbers && *s++ != ',')
				return false;
			v = strtol(s, &end, 10);
			if (*s < '0' || *s > '9' || v > 1000000 || (!v && *task != 'r' && *task != 'b'))
				return false;
			s = end;
		}
	}
	if (*s == '~') {
		v = strtol(s + 1, &end, 10);
		if (s[1] < '0' || s[1] > '9' || v > 1000)
			return false;
		s = end;
	}
	return !*s;
}

static struct behaviour parse(const char *s)
{
	struct behaviour t = { .kind = *s, .on = true };
	char *end = (char *)s + 1;

	if (strchr("/brmsp", *s))
		t.a = strtol(end, &end, 10);
	if (*end == ',')
		t.b = strtol(end + 1, &end, 10);
	if (*end == '~')
		t.wrong = strtol(end + 1, &end, 10);
	return t;
}

static bool uses(struct behaviour *t, unsigned int *seed)
{
	long i = t->slice++;

	switch (t->kind) {
	case '0':
		return false;
	case '/':
		return i % t->a == t->a - 1;
	case 'b':
		return i % (t->a + t->b) < t->a;
	case 'r':
		return permille(seed, t->a);
	case 'm':
		if (permille(seed, 1000 / (t->on ? t->a : t->b)))
			t->on = !t->on;
		return t->on;
	case 's':
		return i < t->a;
	case 'p':
		return i / t->a % 2 == 0;
	default:
		return true;
	}
}

/* The tasks take turns on one CPU. */
void pattern_make(struct trace *trace, const struct pattern *pattern, long slices,
		  unsigned int seed)
{
	struct behaviour tasks[ARRAY_SIZE(pattern->tasks)];
	int n = 0;
	long i;

	while (n < (int)ARRAY_SIZE(tasks) && pattern->tasks[n]) {
		tasks[n] = parse(pattern->tasks[n]);
		n++;
	}
	for (i = 0; i < slices; i++) {
		struct behaviour *t = &tasks[i % n];
		struct event e = { .type = SLICE, .task = i % n };

		e.used = uses(t, &seed);
		e.hint = !e.used || permille(&seed, t->wrong);
		trace_add(trace, e);
	}
}

/*
 * The adversary sees all that the rule does. A loaded slice either looks unused,
 * to lure the rule into arming, or has its use seen; of the armed ones, it
 * leaves alone LURE in a row and then traps. What is between its slices is
 * nothing, a task that uses the FPU, one that does not, or the kernel.
 */
struct plan {
	int lure;
	int honest;	/* one loaded slice in so many is seen to be used, 0: none */
	int between;
	int often;	/* only after so many slices */
	int tasks;	/* of its kind, in turn */
};

static const char * const between[] = { "nothing", "a user", "a non-user", "the kernel" };

static double excess(enum rule rule, const struct fpu_costs *costs, const struct plan *p,
		     long slices, double *share)
{
	struct machine m, eager;
	int unused[2] = { 0, 0 };
	long i, loaded = 0;
	double sum, base;

	machine_init(&m, rule, costs, 1, 3);
	machine_init(&eager, EAGER, costs, 1, 3);
	for (i = 0; m.result.slices < slices; i++) {
		int task = i % p->tasks;
		bool armed = machine_arms(&m, 0, task);
		struct event e = { .type = SLICE, .task = 2, .used = p->between == 1,
				   .hint = p->between == 2 };
		bool used, hint;

		if (armed) {
			used = unused[task] >= p->lure;
			unused[task] = used ? 0 : unused[task] + 1;
			hint = true;
		} else {
			loaded++;
			hint = !p->honest || loaded % p->honest;
			used = true;
		}
		machine_finish(&m, 0, task, armed, used, hint);
		machine_finish(&eager, 0, task, false, used, hint);
		if (!p->between || i % p->often)
			continue;
		if (p->between == 3)
			e.type = KERNEL_FPU;
		machine_step(&m, &e);
		machine_step(&eager, &e);
	}
	base = eager.result.cost;
	sum = m.result.cost - base;
	machine_free(&m);
	machine_free(&eager);
	*share = sum / base;
	return sum / slices;
}

static void try_plan(enum rule rule, const struct fpu_costs *costs, const struct plan *p,
		     long slices, struct worst *worst)
{
	double share, e;

	e = excess(rule, costs, p, slices, &share);
	if (share > worst->share)
		worst->share = share;
	if (e <= worst->excess)
		return;
	worst->excess = e;
	snprintf(worst->name, sizeof(worst->name),
		 "%d task(s), trap after %d unused, 1 in %d seen, %s after %d",
		 p->tasks, p->lure, p->honest, between[p->between], p->often);
}

static void try_tasks(enum rule rule, const struct fpu_costs *costs, struct plan *p,
		      long slices, struct worst *worst)
{
	static const int lures[] = { 0, 1, 2, 3, 5, 8, 13, 21, 34, 100 };
	static const int honest[] = { 0, 2, 3, 5, 9, 17, 33, 65, 129 };
	size_t i, j;

	for (i = 0; i < ARRAY_SIZE(lures); i++) {
		for (j = 0; j < ARRAY_SIZE(honest); j++) {
			p->lure = lures[i];
			p->honest = honest[j];
			try_plan(rule, costs, p, slices, worst);
		}
	}
}

struct worst adversary(enum rule rule, const struct fpu_costs *costs, long slices)
{
	struct worst worst = { .excess = -1e9, .share = -1e9 };
	struct plan p;

	for (p.between = 0; p.between < (int)ARRAY_SIZE(between); p.between++)
		for (p.often = 1; p.often <= (p.between ? 4 : 1); p.often++)
			for (p.tasks = 1; p.tasks <= 2; p.tasks++)
				try_tasks(rule, costs, &p, slices, &worst);
	return worst;
}
