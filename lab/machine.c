// SPDX-License-Identifier: GPL-2.0
/* What a rule does to a machine, and what the best of all rules would do */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"

const char * const rule_names[NR_RULES] = {
	[EAGER]		= "eager",
	[SLEAZY]	= "sleazy",
	[LAZY]		= "lazy",
	[ADAPTIVE]	= "adaptive",
};

void machine_init(struct machine *m, enum rule is, const struct fpu_costs *costs,
		  int cpus, int tasks)
{
	int i;

	memset(m, 0, sizeof(*m));
	m->is = is;
	m->costs = costs;
	m->cpus = alloc(cpus, sizeof(*m->cpus));
	m->tasks = alloc(tasks, sizeof(*m->tasks));
	fpu_adaptive_init(&m->adaptive, costs);

	for (i = 0; i < cpus; i++) {
		m->cpus[i].owner = -1;
		m->cpus[i].credit = fpu_adaptive_start(&m->adaptive);
	}
	for (i = 0; i < tasks; i++) {
		m->tasks[i].loaded_on = -1;
		if (m->is == ADAPTIVE)
			fpu_habit_reset(&m->tasks[i].counter, &m->tasks[i].habit);
	}
}

void machine_free(struct machine *m)
{
	free(m->cpus);
	free(m->tasks);
}

static void set_ts(struct machine *m, struct cpu *cpu)
{
	if (cpu->ts)
		return;
	cpu->ts = true;
	m->result.ts_sets++;
	m->result.cost += m->costs->ts_set;
}

static void clear_ts(struct machine *m, struct cpu *cpu)
{
	if (!cpu->ts)
		return;
	cpu->ts = false;
	m->result.ts_clears++;
	m->result.cost += m->costs->ts_clear;
}

static bool is_own(struct machine *m, int cpu, int task)
{
	return m->cpus[cpu].owner == task && m->tasks[task].loaded_on == cpu;
}

static void load(struct machine *m, int cpu, int task)
{
	clear_ts(m, &m->cpus[cpu]);
	if (is_own(m, cpu, task))
		return;
	m->cpus[cpu].owner = task;
	m->tasks[task].loaded_on = cpu;
	m->result.restores++;
	m->result.cost += m->costs->restore;
}

static void save(struct machine *m)
{
	m->result.saves++;
	m->result.cost += m->costs->save;
}

/* The decision at the first return to user mode */
bool machine_arms(struct machine *m, int cpu, int task)
{
	struct task *t = &m->tasks[task];
	struct cpu *c = &m->cpus[cpu];

	switch (m->is) {
	case SLEAZY:
		return !fpu_counter_eager(t->counter, FPU_EAGER_SLEAZY);
	case LAZY:
		return !fpu_counter_eager(t->counter, FPU_EAGER_NEVER);
	case ADAPTIVE:
		if (fpu_counter_eager(t->counter, FPU_EAGER_SLEAZY))
			return false;
		return fpu_adaptive_arm(&m->adaptive, &t->counter, &t->habit, &c->credit,
					c->ts, is_own(m, cpu, task));
	default:
		return !fpu_counter_eager(t->counter, FPU_EAGER_ALWAYS);
	}
}

/* What follows from it */
void machine_finish(struct machine *m, int cpu, int task, bool armed, bool used, bool hint)
{
	struct task *t = &m->tasks[task];
	struct cpu *c = &m->cpus[cpu];
	bool saved = !armed || used;

	if (armed)
		set_ts(m, c);
	if (armed && used) {
		m->result.traps++;
		m->result.cost += m->costs->trap;
		if (m->is == ADAPTIVE)
			fpu_adaptive_trap(&m->adaptive, &c->credit);
	}
	if (saved) {
		load(m, cpu, task);
		save(m);
	}
	if (m->is == ADAPTIVE && !fpu_counter_eager(t->counter, FPU_EAGER_SLEAZY))
		fpu_adaptive_slice_end(&m->adaptive, &t->counter, &t->habit, &c->credit,
				       saved, hint);
	else
		t->counter = fpu_counter_next(t->counter, saved);

	m->result.slices++;
	m->result.unused += !used;
}

void machine_step(struct machine *m, const struct event *e)
{
	struct task *t = &m->tasks[e->task];

	switch (e->type) {
	case SLICE:
		machine_finish(m, e->cpu, e->task, machine_arms(m, e->cpu, e->task),
			       e->used, !e->used || e->hint);
		break;
	case KERNEL_FPU:
		clear_ts(m, &m->cpus[e->cpu]);
		m->cpus[e->cpu].owner = -1;
		break;
	case KERNEL_LOAD:
		load(m, e->cpu, e->task);
		fpu_habit_forced(&t->habit);
		break;
	case NEW_PROGRAM:
		t->counter = 0;
		if (m->is == ADAPTIVE)
			fpu_habit_reset(&t->counter, &t->habit);
		/* Its registers are new, too. */
		t->loaded_on = -1;
		break;
	}
}

struct result simulate(enum rule rule, const struct fpu_costs *costs, const struct trace *trace)
{
	struct machine m;
	size_t i;

	machine_init(&m, rule, costs, trace->cpus, trace->tasks);
	for (i = 0; i < trace->n; i++)
		machine_step(&m, &trace->events[i]);
	machine_free(&m);
	return m.result;
}

#define NEVER	(LONG_MAX / 2)

/*
 * The oracle, for one CPU: the least cost of having come to each state, which is
 * TS and the owner of the registers. A used slice is always best loaded, so
 * that nothing but one state is left behind it.
 */
struct oracle {
	long *cost[2];	/* by TS; by owner + 1 */
	int *owners;	/* those that are possible, + 1 */
	int nr_owners;
};

static long min(long a, long b)
{
	return a < b ? a : b;
}

static void oracle_only(struct oracle *o, int owner, long cost)
{
	int i;

	for (i = 0; i < o->nr_owners; i++) {
		o->cost[0][o->owners[i]] = NEVER;
		o->cost[1][o->owners[i]] = NEVER;
	}
	o->nr_owners = 1;
	o->owners[0] = owner;
	o->cost[0][owner] = cost;
}

/* To have it all in memory, or in the registers if TASK is nobody */
static long oracle_load(const struct oracle *o, const struct fpu_costs *costs, int task)
{
	long best = NEVER;
	int i;

	for (i = 0; i < o->nr_owners; i++) {
		int owner = o->owners[i];
		long move = task && owner != task ? costs->restore : 0;

		best = min(best, o->cost[0][owner] + move);
		best = min(best, o->cost[1][owner] + move + costs->ts_clear);
	}
	return best;
}

static void oracle_unused(struct oracle *o, const struct fpu_costs *costs, int task)
{
	long loaded = oracle_load(o, costs, task) + costs->save;
	bool known = false;
	int i;

	for (i = 0; i < o->nr_owners; i++) {
		int owner = o->owners[i];

		o->cost[1][owner] = min(o->cost[1][owner], o->cost[0][owner] + costs->ts_set);
		o->cost[0][owner] = NEVER;
		known |= owner == task;
	}
	if (!known)
		o->owners[o->nr_owners++] = task;
	o->cost[0][task] = loaded;
}

/* It has been loaded elsewhere, for certain. */
static void oracle_stale(struct oracle *o, int task)
{
	int i, ts;
	bool known = false, any = false;

	for (i = 0; i < o->nr_owners; i++) {
		known |= !o->owners[i];
		any |= o->owners[i] == task;
	}
	if (!any)
		return;
	if (!known)
		o->owners[o->nr_owners++] = 0;
	for (ts = 0; ts < 2; ts++) {
		o->cost[ts][0] = min(o->cost[ts][0], o->cost[ts][task]);
		o->cost[ts][task] = NEVER;
	}
}

static void oracle_loaded(struct oracle *cpus, const struct fpu_costs *costs,
			  const struct trace *trace, const struct event *e, long more)
{
	struct oracle *o = &cpus[e->cpu];
	int cpu;

	oracle_only(o, e->task + 1, oracle_load(o, costs, e->task + 1) + more);
	for (cpu = 0; cpu < trace->cpus; cpu++)
		if (cpu != e->cpu)
			oracle_stale(&cpus[cpu], e->task + 1);
}

static void oracle_step(struct oracle *cpus, const struct fpu_costs *costs,
			const struct trace *trace, const struct event *e)
{
	struct oracle *o = &cpus[e->cpu];
	int cpu;

	switch (e->type) {
	case SLICE:
		if (!e->used) {
			oracle_unused(o, costs, e->task + 1);
			break;
		}
		oracle_loaded(cpus, costs, trace, e, costs->save);
		break;
	case KERNEL_LOAD:
		oracle_loaded(cpus, costs, trace, e, 0);
		break;
	case KERNEL_FPU:
		oracle_only(o, 0, oracle_load(o, costs, 0));
		break;
	case NEW_PROGRAM:
		for (cpu = 0; cpu < trace->cpus; cpu++)
			oracle_stale(&cpus[cpu], e->task + 1);
		break;
	}
}

/*
 * A bound from below that no rule can beat: each CPU does its best, as if a task
 * that was armed elsewhere could still find its registers.
 */
long oracle(const struct fpu_costs *costs, const struct trace *trace)
{
	struct oracle *cpus = alloc(trace->cpus, sizeof(*cpus));
	int owners = trace->tasks + 1;
	long sum = 0;
	int cpu, i;
	size_t n;

	for (cpu = 0; cpu < trace->cpus; cpu++) {
		struct oracle *o = &cpus[cpu];

		o->cost[0] = alloc(owners, sizeof(long));
		o->cost[1] = alloc(owners, sizeof(long));
		o->owners = alloc(owners, sizeof(int));
		for (i = 0; i < owners; i++) {
			o->cost[0][i] = NEVER;
			o->cost[1][i] = NEVER;
		}
		oracle_only(o, 0, 0);
	}
	for (n = 0; n < trace->n; n++)
		oracle_step(cpus, costs, trace, &trace->events[n]);

	for (cpu = 0; cpu < trace->cpus; cpu++) {
		struct oracle *o = &cpus[cpu];
		long best = NEVER;

		/* A TS that stays set costs nothing more. */
		for (i = 0; i < o->nr_owners; i++)
			best = min(best, min(o->cost[0][o->owners[i]], o->cost[1][o->owners[i]]));
		sum += best;
		free(o->cost[0]);
		free(o->cost[1]);
		free(o->owners);
	}
	free(cpus);
	return sum;
}
