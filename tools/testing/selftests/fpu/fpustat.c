// SPDX-License-Identifier: GPL-2.0
/*
 * What the FPU switching of the x86 kernel does, in the manner of vmstat: of the
 * machine, of each CPU, or of the tasks that have the most slices. See
 * Documentation/arch/x86/sleazy-fpu.rst for what is counted.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define DIRECTORY	"/sys/kernel/debug/x86/fpu_switch/"
#define NEEDS		"needs a kernel with CONFIG_X86_SLEAZY_FPU_STATS"
#define MAX_EVENTS	16
#define HEADER_EVERY	20
#define BLANKS		"\n "

/* Of one CPU, or of all */
struct events {
	unsigned long long n[MAX_EVENTS];
};

struct cpus {
	struct events *events;
	int *number;
	int nr;
};

static char names[MAX_EVENTS][24];
static int nr_names;

/* Of a task: its own since it was forked */
struct task {
	int tid;
	char comm[16];
	unsigned int counter;
	unsigned int used;
	unsigned int unused;
	unsigned int traps;
};

struct tasks {
	struct task *task;
	int nr;
	int room;
};

static bool json;

#define fail(...) \
do { \
	fprintf(stderr, "fpustat: " __VA_ARGS__); \
	fprintf(stderr, "\n"); \
	exit(1); \
} while (0)

/* Why a file of the kernel cannot be read, and what to do */
static void fail_of(const char *path)
{
	if (errno == EACCES || errno == EPERM)
		fail("%s: may not be read: run as root, without lockdown", path);
	if (errno == ENOENT && access("/sys/kernel/debug/x86", F_OK) && !geteuid())
		fail("%s: is not there: mount debugfs on /sys/kernel/debug", path);
	if (errno == ENOENT)
		fail("%s: is not there: " NEEDS, path);
	fail("%s: %s", path, strerror(errno));
}

static FILE *open_file(const char *name)
{
	FILE *file = fopen(name, "r");

	if (!file)
		fail_of(name);
	return file;
}

static bool first_line(const char *path, char *line, int size)
{
	FILE *file = fopen(path, "r");
	bool ok;

	if (!file)
		return false;
	ok = fgets(line, size, file);
	fclose(file);
	if (ok)
		line[strcspn(line, "\n")] = 0;
	return ok;
}

/* The lines "name count" */
static void read_sums(struct events *sums)
{
	FILE *file = open_file(DIRECTORY "stats");

	for (nr_names = 0; nr_names < MAX_EVENTS; nr_names++) {
		if (fscanf(file, "%23s %llu", names[nr_names], &sums->n[nr_names]) != 2)
			break;
	}
	fclose(file);
	if (!nr_names)
		fail(DIRECTORY "stats: has nothing that is known here");
}

/* A line of names, and one of counts for each CPU */
static void read_cpus(struct cpus *cpus)
{
	FILE *file = open_file(DIRECTORY "stats_cpus");
	char line[512], *word, *rest;
	int i;

	if (!fgets(line, sizeof(line), file) || !strtok_r(line, BLANKS, &rest))
		fail(DIRECTORY "stats_cpus: is empty");
	for (nr_names = 0; nr_names < MAX_EVENTS; nr_names++) {
		word = strtok_r(NULL, BLANKS, &rest);
		if (!word)
			break;
		snprintf(names[nr_names], sizeof(names[0]), "%s", word);
	}
	for (;; cpus->nr++) {
		cpus->events = realloc(cpus->events, (cpus->nr + 1) * sizeof(*cpus->events));
		cpus->number = realloc(cpus->number, (cpus->nr + 1) * sizeof(*cpus->number));
		if (!cpus->events || !cpus->number)
			fail("out of memory");
		if (fscanf(file, "%d", &cpus->number[cpus->nr]) != 1)
			break;
		for (i = 0; i < nr_names; i++) {
			if (fscanf(file, "%llu", &cpus->events[cpus->nr].n[i]) != 1)
				fail(DIRECTORY "stats_cpus: ends within a line");
		}
	}
	fclose(file);
}

/* Counts of a 32-bit kernel wrap at 32 bits. */
static unsigned long long difference(unsigned long long before, unsigned long long after)
{
	return after >= before ? after - before : after + (1ULL << 32) - before;
}

static void subtract(struct events *since, const struct events *before, const struct events *after)
{
	int i;

	for (i = 0; i < nr_names; i++)
		since->n[i] = difference(before->n[i], after->n[i]);
}

static int width(int i)
{
	int n = strlen(names[i]);

	return n > 9 ? n : 9;
}

static void print_header(const char *first)
{
	int i;

	printf("%10s", first);
	for (i = 0; i < nr_names; i++)
		printf(" %*s", width(i), names[i]);
	printf("\n");
}

static void print_events(const char *first, const char *key, const struct events *events)
{
	int i;

	if (!json) {
		printf("%10s", first);
		for (i = 0; i < nr_names; i++)
			printf(" %*llu", width(i), events->n[i]);
	} else {
		/* Numbers of CPUs are numbers, modes are words. */
		printf(isdigit((unsigned char)*first) ? "{\"%s\": %s" : "{\"%s\": \"%s\"", key,
		       first);
		for (i = 0; i < nr_names; i++)
			printf(", \"%s\": %llu", names[i], events->n[i]);
		printf("}");
	}
	printf("\n");
}

static void mode_now(char *mode, int size)
{
	if (!first_line(DIRECTORY "mode", mode, size))
		fail_of(DIRECTORY "mode");
}

/* @before is what it was the last time, and becomes what it is. */
static void show_sums(int round, struct events *before)
{
	struct events now, since;
	char mode[16];

	read_sums(&now);
	subtract(&since, before, &now);
	mode_now(mode, sizeof(mode));
	if (!json && round % HEADER_EVERY == 0)
		print_header("mode");
	print_events(mode, "mode", &since);
	*before = now;
}

static void show_cpus(int round, struct cpus *before)
{
	struct cpus now = {};
	struct events since;
	char number[16];
	int i, k;

	read_cpus(&now);

	if (!json) {
		if (round)
			printf("\n");
		print_header("cpu");
	}
	for (i = 0; i < now.nr; i++) {
		struct events none = {};
		const struct events *then = &none;

		/* One that was not there counts from 0. */
		for (k = 0; k < before->nr; k++) {
			if (before->number[k] == now.number[i])
				then = &before->events[k];
		}
		subtract(&since, then, &now.events[i]);
		snprintf(number, sizeof(number), "%d", now.number[i]);
		print_events(number, "cpu", &since);
	}
	free(before->events);
	free(before->number);
	*before = now;
}

static bool read_task(int pid, int tid, struct task *task)
{
	char path[64], line[64];
	int known = 0;
	FILE *file;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/arch_status", pid, tid);
	file = fopen(path, "r");
	if (!file)
		return false;
	while (fgets(line, sizeof(line), file)) {
		known += sscanf(line, "fpu_counter: %u", &task->counter) == 1;
		known += sscanf(line, "fpu_used_slices: %u", &task->used) == 1;
		known += sscanf(line, "fpu_unused_slices: %u", &task->unused) == 1;
		known += sscanf(line, "fpu_traps: %u", &task->traps) == 1;
	}
	fclose(file);
	if (known != 4)
		return false;
	task->tid = tid;

	/* A name may have line breaks in it, and ends with one. */
	snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", pid, tid);
	file = fopen(path, "r");
	if (!file)
		return false;
	n = fread(task->comm, 1, sizeof(task->comm), file);
	fclose(file);
	task->comm[n ? n - 1 : 0] = 0;
	return true;
}

static int number_in(DIR *dir)
{
	struct dirent *entry;

	while ((entry = readdir(dir))) {
		if (isdigit((unsigned char)*entry->d_name))
			return atoi(entry->d_name);
	}
	return 0;
}

static int by_tid(const void *a, const void *b)
{
	const struct task *x = a, *y = b;

	return (x->tid > y->tid) - (x->tid < y->tid);
}

/* All of them, in the order of their numbers */
static void read_tasks(struct tasks *tasks)
{
	DIR *processes = opendir("/proc"), *threads;
	char path[64];
	int pid, tid;

	if (!processes)
		fail("/proc: %s", strerror(errno));
	while ((pid = number_in(processes))) {
		snprintf(path, sizeof(path), "/proc/%d/task", pid);
		threads = opendir(path);
		while (threads && (tid = number_in(threads))) {
			if (tasks->nr == tasks->room) {
				tasks->room = 2 * tasks->room + 64;
				tasks->task = realloc(tasks->task,
						      tasks->room * sizeof(*tasks->task));
				if (!tasks->task)
					fail("out of memory");
			}
			tasks->nr += read_task(pid, tid, &tasks->task[tasks->nr]);
		}
		if (threads)
			closedir(threads);
	}
	closedir(processes);
	if (!tasks->nr)
		fail("/proc/PID/arch_status: tells of no task: " NEEDS);
	qsort(tasks->task, tasks->nr, sizeof(*tasks->task), by_tid);
}

static unsigned int slices_of(const struct task *task)
{
	return task->used + task->unused;
}

static int by_slices(const void *a, const void *b)
{
	unsigned int x = slices_of(a), y = slices_of(b);

	return (x < y) - (x > y);
}

/*
 * The share of used slices below which lazy switching pays among such tasks, in
 * 1000ths, by the costs that the kernel has; see fpu_switch/costs. 0 if it has none.
 */
static unsigned int break_even(void)
{
	unsigned long long save, restore, set, clear, trap, state, lazy;
	char line[128];

	if (!first_line(DIRECTORY "adaptive_costs", line, sizeof(line)) ||
	    sscanf(line, "%llu %llu %llu %llu %llu", &save, &restore, &set, &clear, &trap) != 5)
		return 0;
	state = save + restore;
	/* This trap is one from user mode, other than that of the file "costs". */
	lazy = state + trap + set + clear;
	return lazy ? 1000 * state / lazy : 0;
}

static const char *gain(unsigned int even, const struct task *task)
{
	if (!even)
		return "unknown";
	return 1000ULL * task->used < (unsigned long long)even * slices_of(task) ? "yes" : "no";
}

static void show_tasks(int round, struct tasks *before, int top)
{
	struct tasks now = {}, since = {};
	const struct task *then;
	struct task *task;
	unsigned int even;
	char mode[16];
	int i, k;

	read_tasks(&now);
	mode_now(mode, sizeof(mode));
	even = *mode == 'e' ? 0 : break_even();
	since.task = malloc(now.nr * sizeof(*now.task));
	if (!since.task)
		fail("out of memory");
	memcpy(since.task, now.task, now.nr * sizeof(*now.task));
	since.nr = now.nr;
	for (i = 0; i < since.nr; i++) {
		task = &since.task[i];
		then = before->nr ? bsearch(task, before->task, before->nr, sizeof(*task),
					    by_tid) : NULL;
		/* Smaller than before is another task of that number. */
		if (then && slices_of(then) <= slices_of(task)) {
			task->used -= then->used;
			task->unused -= then->unused;
			task->traps -= then->traps;
		}
	}
	qsort(since.task, since.nr, sizeof(*since.task), by_slices);

	if (!json) {
		if (round)
			printf("\n");
		printf("%10s %7s %11s %10s %10s %6s %s\n", "tid", "counter", "used_slices",
		       "unused", "traps", "gains", "command");
	}
	for (i = 0; i < since.nr && i < top && slices_of(&since.task[i]); i++) {
		task = &since.task[i];
		if (!json) {
			/* A name may have anything in it. */
			for (k = 0; task->comm[k]; k++) {
				if (!isprint((unsigned char)task->comm[k]))
					task->comm[k] = '?';
			}
			printf("%10d %7u %11u %10u %10u %6s %s\n", task->tid, task->counter,
			       task->used, task->unused, task->traps,
			       even ? gain(even, task) : "?", task->comm);
			continue;
		}
		printf("{\"tid\": %d, \"fpu_counter\": %u, ", task->tid, task->counter);
		printf("\"used_slices\": %u, \"unused_slices\": %u, ", task->used, task->unused);
		printf("\"traps\": %u, \"gains\": \"%s\", ", task->traps, gain(even, task));
		printf("\"command\": \"");
		for (k = 0; task->comm[k]; k++) {
			unsigned char c = task->comm[k];

			if (c < ' ' || c == '"' || c == '\\' || c > '~')
				printf("\\u%04x", c);
			else
				putchar(c);
		}
		printf("\"}\n");
	}
	if (!json && *mode == 'e')
		printf("In mode eager nobody knows which slices use the FPU: all count as used.\n");
	free(since.task);
	free(before->task);
	*before = now;
}

static void show_file(const char *title, const char *path)
{
	FILE *file = fopen(path, "r");
	char line[256];
	bool any = false;

	printf("\n%s:\n", title);
	while (file && fgets(line, sizeof(line), file)) {
		printf("  %s", line);
		any = true;
	}
	if (!any)
		printf("  cannot be read: %s\n", strerror(errno));
	if (file)
		fclose(file);
}

static bool starts(const char *line, const char *with)
{
	return !strncmp(line, with, strlen(with));
}

/* Of the first CPU, what decides on FPU switching. No serial numbers, no addresses */
static void report_cpu(void)
{
	static const char * const keys[] = {
		"vendor_id", "cpu family", "model", "stepping", "microcode", "bugs",
	}, * const flags[] = {
		"fpu", "fxsr", "sse", "sse2", "xsave", "xsaveopt", "xsavec", "xsaves", "xgetbv1",
		"avx", "avx2", "avx512f", "pku", "user_shstk", "amx_tile", "enqcmd", "sgx",
		"arch_lbr", "apx", "hypervisor",
	};
	FILE *file = open_file("/proc/cpuinfo");
	char line[8192], *flag;
	unsigned int i;

	printf("\ncpu:\n");
	while (fgets(line, sizeof(line), file) && *line != '\n') {
		for (i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
			if (starts(line, keys[i]))
				printf("  %s", line);
		}
		if (!starts(line, "flags"))
			continue;
		printf("  flags\t\t:");
		for (flag = strtok(line, BLANKS); flag; flag = strtok(NULL, BLANKS)) {
			for (i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
				if (!strcmp(flag, flags[i]))
					printf(" %s", flag);
			}
		}
		printf("\n");
	}
	fclose(file);
	printf("  online\t: %ld\n", sysconf(_SC_NPROCESSORS_ONLN));
}

static void report_parameters(void)
{
	static const char * const words[] = {
		"fpu_switch=", "mitigations=", "clearcpuid=", "noxsave", "nofpu", "nofxsr", "nopku",
	};
	FILE *file = open_file("/proc/cmdline");
	char line[4096], *word;
	unsigned int i;

	printf("\nparameters:\n");
	if (fgets(line, sizeof(line), file)) {
		for (word = strtok(line, BLANKS); word; word = strtok(NULL, BLANKS)) {
			for (i = 0; i < sizeof(words) / sizeof(*words); i++) {
				if (starts(word, words[i]))
					printf("  %s\n", word);
			}
		}
	}
	fclose(file);
}

/* What the FPU code has said, and where it has warned */
static void report_log(void)
{
	int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	char record[8192], *text, *end;
	ssize_t n;

	printf("\nkernel log:\n");
	if (log < 0) {
		printf("  cannot be read: %s\n", strerror(errno));
		return;
	}
	/* EPIPE: records were lost meanwhile. */
	while ((n = read(log, record, sizeof(record) - 1)) > 0 || (n < 0 && errno == EPIPE)) {
		if (n < 0)
			continue;
		record[n] = 0;
		text = strchr(record, ';');
		if (!text++)
			continue;
		text[strcspn(text, "\n")] = 0;
		if (starts(text, "x86/fpu: ") || strstr(text, "CR0.TS was set") ||
		    (starts(text, "WARNING: ") && strstr(text, "arch/x86/kernel/fpu/"))) {
			/* From 7.3 on, the name of the task follows. */
			end = strstr(text, ", CPU#");
			if (end)
				*end = 0;
			printf("  %s\n", text);
		}
	}
	close(log);
}

static void report(void)
{
	struct utsname name;

	uname(&name);
	printf("kernel:\n  %s %s %s\n", name.release, name.machine, name.version);
	report_cpu();
	report_parameters();
	show_file("mode", DIRECTORY "mode");
	show_file("lazy_fp", "/sys/devices/system/cpu/vulnerabilities/lazy_fp");
	show_file("costs, measured now", DIRECTORY "costs");
	show_file("costs of the adaptive rule", DIRECTORY "adaptive_costs");
	show_file("stats", DIRECTORY "stats");
	show_file("stats_cpus", DIRECTORY "stats_cpus");
	report_log();
}

static void usage(int status)
{
	fprintf(status ? stderr : stdout,
		"fpustat [-c | -t] [-n N] [-j] [INTERVAL [COUNT]]\n"
		"fpustat -r\n"
		"What the kernel's FPU switching does: first since boot, then in each INTERVAL of\n"
		"so many seconds, COUNT times or until it is interrupted.\n"
		"  -c, --cpus     of each CPU\n"
		"  -t, --tasks    of the tasks with the most slices\n"
		"  -n, --top N    of so many tasks (20)\n"
		"  -j, --json     an object of JSON in each line\n"
		"  -r, --report   all that a report of a fault needs, and nothing private\n");
	exit(status);
}

static unsigned int number_from(const char *text, const char *what)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (errno || !isdigit((unsigned char)*text) || *end || !n || n > 1000000000) {
		fprintf(stderr, "fpustat: %s: %s has to be a number, from 1 on\n", text, what);
		exit(2);
	}
	return n;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "cpus", no_argument, NULL, 'c' },
		{ "tasks", no_argument, NULL, 't' },
		{ "top", required_argument, NULL, 'n' },
		{ "json", no_argument, NULL, 'j' },
		{ "report", no_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{}
	};
	unsigned int interval = 0, times = 1, top = 20, round;
	struct events sums = {};
	struct cpus cpus = {};
	struct tasks tasks = {};
	int option, what = 0;

	while ((option = getopt_long(argc, argv, "ctn:jrh", options, NULL)) >= 0) {
		switch (option) {
		case 'c':
		case 't':
		case 'r':
			if (what && what != option)
				usage(2);
			what = option;
			break;
		case 'n':
			top = number_from(optarg, "--top");
			break;
		case 'j':
			json = true;
			break;
		case 'h':
			usage(0);
			break;
		default:
			usage(2);
		}
	}
	if (optind < argc) {
		interval = number_from(argv[optind++], "INTERVAL");
		times = 0;
	}
	if (optind < argc)
		times = number_from(argv[optind++], "COUNT");
	if (optind < argc || (what == 'r' && (interval || json)))
		usage(2);
	if (what == 'r') {
		report();
		return 0;
	}

	setlinebuf(stdout);
	for (round = 0; !times || round < times; round++) {
		switch (what) {
		case 'c':
			show_cpus(round, &cpus);
			break;
		case 't':
			show_tasks(round, &tasks, top);
			break;
		default:
			show_sums(round, &sums);
		}
		if (interval && round + 1 != times)
			sleep(interval);
	}
	return 0;
}
