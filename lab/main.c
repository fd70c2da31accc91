// SPDX-License-Identifier: GPL-2.0
/* The policy laboratory of the sLeAZY FPU */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"

#define SLICES	200000

static const char usage[] =
	"usage: fpu-lab [OPTION...] COMMAND\n"
	"  patterns              every rule on made-up patterns of FPU use\n"
	"  pattern TASK...       every rule on tasks that take turns, see lab/patterns.c\n"
	"  trace FILE...         every rule on recorded programs, see lab/TRACES\n"
	"  adversary             patterns that know the rule, the worst for each\n"
	"  prove                 try all steps: adaptive never exceeds eager but by its 512th\n"
	"  model FILE...         events of scripts/run (MODE-events.csv) times costs\n"
	"options:\n"
	"  --costs=zen4|intel|S,R,W,C,T   cycles: save, restore, TS set, TS clear, trap\n"
	"  --slices=N            per pattern (200000)\n"
	"  --seed=N              of what is random (1)\n"
	"  --csv\n";

/*
 * zen4: measured in user mode; TS and #NM are estimates. intel: published; nobody
 * has published CLTS, so that is an estimate, too.
 */
static const struct {
	const char *name;
	struct fpu_costs costs;
} cost_sets[] = {
	{ "zen4", { .save = 130, .restore = 285, .ts_set = 150, .ts_clear = 50, .trap = 900 } },
	{ "intel", { .save = 104, .restore = 80, .ts_set = 208, .ts_clear = 50, .trap = 1156 } },
};

static struct fpu_costs costs;
static long slices = SLICES;
static unsigned int seed = 1;
static bool csv;

static long parse(const char *what, const char *s, long max, char **end)
{
	long v;

	errno = 0;
	v = strtol(s, end, 10);
	if (*s < '0' || *s > '9' || errno || v > max)
		die("%s: \"%s\" is not from 0 to %ld", what, s, max);
	return v;
}

static void parse_costs(const char *s)
{
	unsigned int *v[] = { &costs.save, &costs.restore, &costs.ts_set, &costs.ts_clear,
			      &costs.trap };
	char *end = (char *)s;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(cost_sets); i++) {
		if (strcmp(s, cost_sets[i].name))
			continue;
		costs = cost_sets[i].costs;
		return;
	}
	for (i = 0; i < ARRAY_SIZE(v); i++) {
		if (i && *end++ != ',')
			die("--costs=%s: zen4, intel, or five numbers S,R,W,C,T", s);
		*v[i] = parse("--costs", end, FPU_COST_MAX, &end);
	}
	if (*end)
		die("--costs=%s: zen4, intel, or five numbers S,R,W,C,T", s);
}

static const char *value(const char *arg, const char *option)
{
	size_t n = strlen(option);

	return strncmp(arg, option, n) || arg[n] != '=' ? NULL : arg + n + 1;
}

static void parse_option(const char *arg)
{
	const char *v;
	char *end;

	if (!strcmp(arg, "--csv")) {
		csv = true;
		return;
	}
	v = value(arg, "--costs");
	if (v) {
		parse_costs(v);
		return;
	}
	v = value(arg, "--slices");
	if (v) {
		slices = parse("--slices", v, 100000000, &end);
		if (*end || !slices)
			die("--slices: \"%s\" is not a number from 1", v);
		return;
	}
	v = value(arg, "--seed");
	if (!v)
		die("unknown option %s\n%s", arg, usage);
	seed = parse("--seed", v, 1L << 31, &end);
	if (*end || !seed)
		die("--seed: \"%s\" is not a number from 1", v);
}

/* In percent */
static double share(double part, double of)
{
	return of ? 100 * part / of : 0;
}

static void print_head(void)
{
	if (csv)
		puts("pattern,rule,slices,unused,traps,saves,restores,"
		     "ts_sets,ts_clears,cost,eager,oracle");
	else
		printf("%45s %6s %9s %8s %8s %8s %8s %8s\n%-36s %-8s %6s %9s %8s %8s %8s %8s %8s\n",
		       "", "no FPU", "traps", "saves", "restores", "cycles", "against",
		       "of the", "", "rule", "%", "/1000", "avoid. %", "avoid. %", "/slice",
		       "eager %", "oracle %");
}

static void print_result(const char *name, enum rule rule, const struct result *r,
			 const struct result *eager, long best)
{
	if (csv) {
		printf("\"%s\",%s,%ld,%ld,%ld,%ld,%ld,%ld,%ld,%ld,%ld,%ld\n", name,
		       rule_names[rule], r->slices, r->unused, r->traps, r->saves, r->restores,
		       r->ts_sets, r->ts_clears, r->cost, eager->cost, best);
		return;
	}
	printf("%-36s %-8s %6.1f %9.2f %8.1f %8.1f %8.1f %+8.2f",
	       rule == EAGER ? name : "", rule_names[rule], share(r->unused, r->slices),
	       1000.0 * r->traps / r->slices,
	       share(eager->saves - r->saves, eager->saves),
	       share(eager->restores - r->restores, eager->restores),
	       (double)r->cost / r->slices, share(r->cost - eager->cost, eager->cost));
	/* Where the oracle saves next to nothing, a share of it says nothing. */
	if ((eager->cost - best) * 100 > eager->cost)
		printf(" %8.1f", share(eager->cost - r->cost, eager->cost - best));
	putchar('\n');
}

struct sums {
	long eager;
	long saved;
	long oracle_saved;
	double worst;
};

static void compare(const char *name, const struct trace *trace, struct sums *sums)
{
	struct result results[NR_RULES];
	long best = oracle(&costs, trace);
	double above;
	int rule;

	for (rule = 0; rule < NR_RULES; rule++) {
		results[rule] = simulate(rule, &costs, trace);
		if (!results[rule].slices)
			die("%s: no slices", name);
		print_result(name, rule, &results[rule], &results[EAGER], best);
	}
	if (!csv)
		printf("%-36s %-8s %42.1f %+8.2f\n", "", "oracle",
		       (double)best / results[EAGER].slices,
		       share(best - results[EAGER].cost, results[EAGER].cost));

	above = share(results[ADAPTIVE].cost - results[EAGER].cost, results[EAGER].cost);
	if (above > sums->worst)
		sums->worst = above;
	sums->saved += results[EAGER].cost - results[ADAPTIVE].cost;
	sums->oracle_saved += results[EAGER].cost - best;
}

static void print_sums(const struct sums *sums)
{
	if (!csv)
		printf("\nadaptive saves %.1f%% of what the oracle does; "
		       "at worst, it is %.2f%% above eager\n",
		       share(sums->saved, sums->oracle_saved), sums->worst);
}

static void run_patterns(void)
{
	struct sums sums = { .worst = -100 };
	size_t i;

	print_head();
	for (i = 0; i < nr_patterns; i++) {
		struct trace trace = { 0 };

		pattern_make(&trace, &patterns[i], slices, seed);
		compare(patterns[i].name, &trace, &sums);
		trace_free(&trace);
	}
	print_sums(&sums);
}

static void run_pattern(char **tasks)
{
	struct pattern pattern = { .name = "pattern" };
	struct sums sums = { .worst = -100 };
	struct trace trace = { 0 };
	size_t n;

	if (!*tasks)
		die("pattern: which tasks? \"r20 1\" is one that uses the FPU in 2%% of its slices, "
		    "beside one that always does");
	for (n = 0; tasks[n]; n++) {
		if (n == ARRAY_SIZE(pattern.tasks))
			die("pattern: not more than %zu tasks", n);
		if (!pattern_task_ok(tasks[n]))
			die("pattern: %s is no task: 0, 1, /N, bA,B, rP, mA,B, sN or pN, with ~P behind it or not",
			    tasks[n]);
		pattern.tasks[n] = tasks[n];
	}
	pattern_make(&trace, &pattern, slices, seed);
	print_head();
	compare(pattern.name, &trace, &sums);
	trace_free(&trace);
}

static void run_traces(char **files)
{
	struct sums sums = { .worst = -100 };

	if (!*files)
		die("trace: which file?");
	print_head();
	for (; *files; files++) {
		struct trace trace = { 0 };

		trace_read(&trace, *files);
		compare(*files, &trace, &sums);
		trace_free(&trace);
	}
	print_sums(&sums);
}

static void run_adversary(void)
{
	int rule;

	if (csv)
		puts("rule,excess,percent,worst");
	for (rule = SLEAZY; rule < NR_RULES; rule++) {
		struct worst w = adversary(rule, &costs, slices);

		printf(csv ? "%s,%.2f,%.3f,\"%s\"\n" :
		       "%-8s %8.2f cycles/slice above eager (at most %.2f%% of eager): %s\n",
		       rule_names[rule], w.excess, 100 * w.share, w.name);
	}
}

static void run_prove(void)
{
	struct proof p = prove(&costs);

	printf("%ld states, %ld steps, %ld claim more than was saved; lowest credit %ld\n",
	       p.states, p.steps, p.broken, p.lowest);
	if (p.broken)
		exit(1);
	printf("adaptive <= 513/512 eager + %d cycles per CPU, whatever the pattern: "
	       "%.2f cycles/slice above eager in the long run\n",
	       (int)(costs.ts_set + costs.ts_clear + costs.trap),
	       (costs.save + costs.restore) / 512.0);
}

static void model_file(const char *file)
{
	const char *name = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
	int mode = strcspn(name, "-.");
	FILE *f = fopen(file, "r");
	char line[256];
	long n = 0;

	if (!f)
		die("%s: cannot be opened", file);
	while (fgets(line, sizeof(line), f)) {
		double saves, restores, traps, ts;
		char mix;

		n++;
		if (sscanf(line, "%c,%*[^,],%*[^,],%lf,%lf,%lf,%lf", &mix, &saves, &restores,
			   &traps, &ts) != 5)
			die("%s:%ld: not experiment,n,instructions,saves,restores,traps,ts",
			    file, n);
		/* TS is cleared as often as it is set. */
		printf(csv ? "%c,%.*s,%.1f\n" : "%c  %-12.*s %8.1f\n", mix, mode, name,
		       (saves * costs.save + restores * costs.restore + traps * costs.trap +
			ts * (costs.ts_set + costs.ts_clear) / 2) / 1000);
	}
	fclose(f);
	if (!n)
		die("%s: is empty", file);
}

static void run_model(char **files)
{
	if (!*files)
		die("model: which file? make run writes build/6.12/results/*-events.csv");
	puts(csv ? "experiment,mode,cycles" : "   mode         cycles per switch");
	for (; *files; files++)
		model_file(*files);
}

int main(int argc, char **argv)
{
	const char *command;
	int i = 1;

	costs = cost_sets[0].costs;
	while (i < argc && argv[i][0] == '-')
		parse_option(argv[i++]);
	if (i == argc)
		die("no command\n%s", usage);
	command = argv[i++];

	if (!strcmp(command, "trace")) {
		run_traces(argv + i);
		return 0;
	}
	if (!strcmp(command, "pattern")) {
		run_pattern(argv + i);
		return 0;
	}
	if (!strcmp(command, "model")) {
		run_model(argv + i);
		return 0;
	}
	if (i < argc)
		die("%s takes no %s", command, argv[i]);
	if (!strcmp(command, "patterns"))
		run_patterns();
	else if (!strcmp(command, "adversary"))
		run_adversary();
	else if (!strcmp(command, "prove"))
		run_prove();
	else
		die("unknown command %s\n%s", command, usage);
	return 0;
}
