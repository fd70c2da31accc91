// SPDX-License-Identifier: GPL-2.0
/*
 * Does the account of the adaptive rule ever claim more than was saved?
 *
 * Two tasks on one CPU, and the kernel, may do anything at any time; whether to
 * arm is up to them, too, as long as the credit allows it. So the result holds
 * for whatever the rule believes about its tasks, and for any number of them,
 * as each step is about one task and what the others left behind.
 *
 * Let A be 513/512 of what eager switching has cost, less what this has cost, in
 * units of the credit. Each state has the claim
 *
 *   F = credit + the TS clear that was charged for and is still to come
 *     + for each task, the restore that is saved for now, but may still come
 *
 * If no step raises F by more than A, then A >= F - F(start) >= -F(start) for
 * ever, as F is never negative. The states are finite: all steps from all that
 * can be reached are tried, with the functions of the kernel's own header.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"

enum { X, Y, NOBODY };

#define NR_BEGAN	(FPU_ARMED_ON_FOREIGN + 1)

struct state {
	int credit;
	bool ts;
	int owner;		/* of the registers */
	int eager_owner;	/* and with eager switching */
	int began[2];
};

struct search {
	struct fpu_adaptive rule;
	int unit;		/* every credit is a multiple of it */
	unsigned char *seen;
	struct state *todo;
	size_t nr_todo;
	size_t room;
	struct proof proof;
};

static int gcd(int a, int b)
{
	return b ? gcd(b, a % b) : a;
}

static bool first_visit(struct search *s, const struct state *st)
{
	size_t i = st->credit / s->unit;

	i = ((((i * 2 + st->ts) * 3 + st->owner) * 3 + st->eager_owner) * NR_BEGAN +
	     st->began[X]) * NR_BEGAN + st->began[Y];
	if (s->seen[i / 8] & 1 << i % 8)
		return false;
	s->seen[i / 8] |= 1 << i % 8;
	return true;
}

static void visit(struct search *s, const struct state *st)
{
	if (st->credit < s->proof.lowest)
		s->proof.lowest = st->credit;
	if (st->credit < 0 || st->credit % s->unit) {
		s->proof.broken++;
		return;
	}
	if (!first_visit(s, st))
		return;
	if (s->nr_todo == s->room) {
		s->room = 2 * s->room + 1024;
		s->todo = realloc(s->todo, s->room * sizeof(*st));
		if (!s->todo)
			die("out of memory");
	}
	s->todo[s->nr_todo++] = *st;
	s->proof.states++;
}

static long claim(const struct search *s, const struct state *st)
{
	long f = st->credit;
	int task;

	if (st->ts)
		f += (long)s->rule.costs.ts_clear << FPU_CREDIT_SHIFT;
	for (task = X; task <= Y; task++)
		if (st->began[task] == FPU_ARMED_ON_FOREIGN ||
		    (st->eager_owner == task && st->owner != task))
			f += (long)s->rule.costs.restore << FPU_CREDIT_SHIFT;
	return f;
}

static void step(struct search *s, const struct state *from, const struct state *to,
		 long eager, long cost)
{
	long saved = eager * ((1 << FPU_CREDIT_SHIFT) + 1) - (cost << FPU_CREDIT_SHIFT);

	s->proof.steps++;
	if (claim(s, to) - claim(s, from) > saved)
		s->proof.broken++;
	visit(s, to);
}

static void kernel_fpu(struct search *s, const struct state *from)
{
	struct state to = *from;

	to.ts = false;
	to.owner = NOBODY;
	to.eager_owner = NOBODY;
	step(s, from, &to, 0, from->ts ? s->rule.costs.ts_clear : 0);
}

static long clear_ts(const struct search *s, struct state *st)
{
	long cost = st->ts ? s->rule.costs.ts_clear : 0;

	st->ts = false;
	return cost;
}

static long load(const struct search *s, struct state *st, int task)
{
	long cost = clear_ts(s, st) + s->rule.costs.save;

	if (st->owner != task)
		cost += s->rule.costs.restore;
	st->owner = task;
	return cost;
}

enum way { UNSEEN, LOAD, LOAD_HINT, ARM, ARM_TRAP, ARM_KERNEL, ARM_KERNEL_TRAP, NR_WAYS };

/* The kernel uses the FPU in an armed slice, and the task is to be armed again. */
static bool kernel_in_slice(struct search *s, struct state *st, long *eager, long *cost)
{
	*cost += clear_ts(s, st);
	st->owner = NOBODY;
	*eager += s->rule.costs.save + s->rule.costs.restore;
	if (!fpu_adaptive_set_ts(&s->rule, &st->credit))
		return false;
	*cost += s->rule.costs.ts_set;
	st->ts = true;
	return true;
}

static void slice(struct search *s, const struct state *from, int task, enum way way,
		  unsigned char counter)
{
	const struct fpu_costs *c = &s->rule.costs;
	struct fpu_habit habit = { .began = from->began[task] };
	struct state to = *from;
	long eager = c->save, cost = 0;
	bool saved = way < ARM;

	/* The chance is below 64 for any counter, but for this one. */
	habit.after_used = saved ? 64 : 0;
	if (saved)
		counter = FPU_EAGER_SLEAZY - 1;
	if (from->eager_owner != task)
		eager += c->restore;
	to.eager_owner = task;

	/*
	 * Not asked. This save is credited later; to do so now gives the adversary no
	 * less, as it may spend it at once.
	 */
	if (way == UNSEEN) {
		if (habit.began != FPU_LOADED)
			return;
		cost += load(s, &to, task);
		fpu_adaptive_earn(&s->rule, &to.credit, c->save);
		step(s, from, &to, eager, cost);
		return;
	}

	if (fpu_adaptive_arm(&s->rule, &counter, &habit, &to.credit, to.ts, to.owner == task)) {
		cost += to.ts ? 0 : c->ts_set;
		to.ts = true;
		if (way >= ARM_KERNEL && !kernel_in_slice(s, &to, &eager, &cost)) {
			saved = true;
		} else if (way == ARM_TRAP || way == ARM_KERNEL_TRAP) {
			fpu_adaptive_trap(&s->rule, &to.credit);
			cost += c->trap;
			saved = true;
		}
	} else {
		saved = true;
	}
	if (saved)
		cost += load(s, &to, task);
	fpu_adaptive_slice_end(&s->rule, &counter, &habit, &to.credit, saved, way == LOAD_HINT);
	to.began[task] = habit.began < FPU_ARMED_BY_HINT ? FPU_LOADED : habit.began;
	step(s, from, &to, eager, cost);
}

static void all_steps(struct search *s, const struct state *from)
{
	int task, way, counter;

	kernel_fpu(s, from);
	for (task = X; task <= Y; task++)
		for (way = 0; way < NR_WAYS; way++)
			for (counter = 0; counter < 2; counter++)
				slice(s, from, task, way, counter);
}

struct proof prove(const struct fpu_costs *costs)
{
	struct search s = { .proof = { .lowest = LONG_MAX } };
	struct state start = { .owner = NOBODY, .eager_owner = NOBODY };
	size_t bits;

	fpu_adaptive_init(&s.rule, costs);
	/* Arming is up to the adversary, see above. */
	memset(s.rule.chance, 64, sizeof(s.rule.chance));
	/* The upper limit only takes credit away. A low one keeps the states few. */
	s.rule.begin = s.rule.risk;
	s.rule.max = s.rule.risk + ((costs->save + costs->restore) << FPU_CREDIT_SHIFT);
	s.unit = gcd(costs->save, costs->restore);
	s.unit = gcd(s.unit ? s.unit : 1, s.rule.risk);
	s.unit = gcd(s.unit, (costs->ts_set + costs->ts_clear) << FPU_CREDIT_SHIFT);
	s.rule.max -= s.rule.max % s.unit;
	start.credit = s.rule.risk;

	bits = ((size_t)s.rule.max / s.unit + 1) * 2 * 3 * 3 * NR_BEGAN * NR_BEGAN;
	s.seen = alloc(bits / 8 + 1, 1);
	visit(&s, &start);
	while (s.nr_todo) {
		struct state st = s.todo[--s.nr_todo];

		all_steps(&s, &st);
	}
	free(s.seen);
	free(s.todo);
	return s.proof;
}
