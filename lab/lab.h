/* SPDX-License-Identifier: GPL-2.0 */
#ifndef LAB_H
#define LAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <asm/fpu/adaptive.h>

#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))

enum event_type {
	SLICE,
	KERNEL_FPU,	/* the kernel has used the registers since */
	KERNEL_LOAD,	/* it has loaded the task's, for a signal frame or fork */
	NEW_PROGRAM,	/* fork or exec */
};

struct event {
	enum event_type type;
	int cpu;
	int task;
	bool used;
	bool hint;	/* the image would be unchanged, if the slice is loaded */
};

struct trace {
	struct event *events;
	size_t n;
	size_t room;
	int cpus;
	int tasks;
};

enum rule { EAGER, SLEAZY, LAZY, ADAPTIVE, NR_RULES };

struct result {
	long slices;
	long unused;
	long cost;
	long saves;
	long restores;
	long traps;
	long ts_sets;
	long ts_clears;
};

extern const char * const rule_names[NR_RULES];

#define __noreturn	__attribute__((__noreturn__))
#define __printf(a, b)	__attribute__((__format__(printf, a, b)))

__noreturn __printf(1, 2) void die(const char *fmt, ...);
void *alloc(size_t n, size_t size);

void trace_add(struct trace *trace, struct event event);
void trace_free(struct trace *trace);
void trace_read(struct trace *trace, const char *file);

/* One CPU, as the kernel sees it: TS, and whose the registers are */
struct cpu {
	bool ts;
	int owner;	/* task, or -1 */
	int credit;
};

struct task {
	unsigned char counter;
	struct fpu_habit habit;
	int loaded_on;	/* CPU, or -1 */
};

struct machine {
	enum rule is;
	const struct fpu_costs *costs;
	struct fpu_adaptive adaptive;
	struct cpu *cpus;
	struct task *tasks;
	struct result result;
};

void machine_init(struct machine *m, enum rule is, const struct fpu_costs *costs,
		  int cpus, int tasks);
void machine_free(struct machine *m);
bool machine_arms(struct machine *m, int cpu, int task);
void machine_finish(struct machine *m, int cpu, int task, bool armed, bool used, bool hint);
void machine_step(struct machine *m, const struct event *event);

struct result simulate(enum rule rule, const struct fpu_costs *costs, const struct trace *trace);
long oracle(const struct fpu_costs *costs, const struct trace *trace);

struct pattern {
	const char *name;
	const char *tasks[3];
};

extern const struct pattern patterns[];
extern const size_t nr_patterns;

bool pattern_task_ok(const char *task);
void pattern_make(struct trace *trace, const struct pattern *pattern, long slices,
		  unsigned int seed);

struct proof {
	long states;
	long steps;
	long broken;	/* steps on which the account claims more than was saved */
	long lowest;	/* credit */
};

struct proof prove(const struct fpu_costs *costs);

/* The worst that was found, in cycles per slice above eager switching */
struct worst {
	double excess;
	double share;	/* of what eager switching costs */
	char name[80];
};

struct worst adversary(enum rule rule, const struct fpu_costs *costs, long slices);

#endif /* LAB_H */
