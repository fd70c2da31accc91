// SPDX-License-Identifier: GPL-2.0
/*
 * Over suspend, CPUs lose their registers and CR0 is set up anew. Tasks that
 * slept meanwhile keep their registers, and do not see those of others.
 *
 * Hibernation is tested if the environment variable FPU_TEST_SWAP names a block
 * device, whose content is then lost.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"
#include "fpu_switch.h"

#define POWER		"/sys/power/"
#define ALARMS		"/sys/bus/platform/drivers/alarmtimer/alarmtimer.*"
#define ACPI_ALARM	"/sys/module/rtc_cmos/parameters/use_acpi_alarm"
#define NR_HISTORIES	3

enum phase { BEFORE, AFTER };

struct worker {
	struct fpu_task task;
	enum fpu_history history;
	int cpu;
	unsigned int slices;
	pid_t pid;
};

/* In memory that all share. */
static struct {
	bool busy;	/* those who use the FPU do so until the suspend */
	int phase;
} *shared;

static struct worker *workers;
static int nr_workers;

static bool write_file(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	bool done;

	if (file < 0)
		return false;
	done = write(file, text, strlen(text)) == (ssize_t)strlen(text);
	close(file);	/* leaves errno alone if it succeeds */
	return done;
}

/* Is it among the words of the file, of which one may be in brackets? */
static bool offers(const char *path, const char *word)
{
	char text[256], *rest = text, *next;

	if (fpu_switch_file(path, text, sizeof(text)) < 0)
		return false;
	while ((next = strsep(&rest, "\n []"))) {
		if (!strcmp(next, word))
			return true;
	}
	return false;
}

/* Alarms raise an interrupt of ACPI, which ends s2idle: not so in QEMU. */
static bool acpi_alarm(void)
{
	char text[4];

	return fpu_switch_file(ACPI_ALARM, text, sizeof(text)) > 0 && text[0] == 'Y';
}

/* The word in brackets, which is what was chosen */
static void chosen(const char *path, char *word, int size)
{
	char text[256], *begin;

	*word = 0;
	if (fpu_switch_file(path, text, sizeof(text)) < 0)
		return;
	begin = strchr(text, '[');
	if (begin)
		snprintf(word, size, "%.*s", (int)strcspn(begin + 1, "]"), begin + 1);
}

static int times_suspended(void)
{
	char text[16];

	return fpu_switch_file(POWER "suspend_stats/success", text, sizeof(text)) > 0 ?
	       atoi(text) : -1;
}

/* CPUs whose CR0.TS is set, and those that came up with it clear: never counted. */
static bool ts_balance(long *balance)
{
	struct fpu_stats stats;

	if (!fpu_stats_read(&stats))
		return false;
	*balance = stats.ts_sets - stats.ts_clears;
	return true;
}

static int phase(void)
{
	return __atomic_load_n(&shared->phase, __ATOMIC_SEQ_CST);
}

/*
 * A task that has not used the FPU lately runs up to the suspend; the others
 * wait, unless they are to be busy, so it is armed and runs last on its CPU.
 */
static void work(struct worker *worker)
{
	static const unsigned int enough[] = {
		[COLD] = 8, [HOT] = 8, [WRAPPING] = 258,
	};
	bool uses = worker->history != COLD;
	int i;

	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	fpu_pin(worker->cpu);
	fpu_hold(&worker->task, worker->history);
	while (phase() == BEFORE) {
		fpu_sleep();
		if (uses)
			fpu_read(&worker->task);
		if (++worker->slices >= enough[worker->history] && uses && !shared->busy)
			fpu_await_change(&shared->phase, BEFORE);
	}
	for (i = 0; i < 40; i++) {
		if (uses || i % 8 == 7)
			fpu_read(&worker->task);
		fpu_spin();
		fpu_sleep();
	}
	fpu_read(&worker->task);
	syscall(SYS_exit_group, 0);
}

static void start_workers(struct __test_metadata *_metadata, bool busy)
{
	struct worker *w;
	unsigned int enough;
	pid_t pid;

	shared->busy = busy;
	shared->phase = BEFORE;
	for (w = workers; w < workers + nr_workers; w++) {
		memset(w, 0, sizeof(*w));
		w->cpu = fpu_nth_cpu((w - workers) / NR_HISTORIES);
		w->history = (w - workers) % NR_HISTORIES;
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid)
			work(w);
		w->pid = pid;
	}
	for (w = workers; w < workers + nr_workers; w++) {
		enough = w->history == WRAPPING ? 258 : 20;
		if (w->history == HOT && !busy)
			enough = 8;
		while (__atomic_load_n(&w->slices, __ATOMIC_SEQ_CST) < enough &&
		       !syscall(SYS_kill, w->pid, 0))
			fpu_sleep();
	}
}

static void end_workers(struct __test_metadata *_metadata)
{
	static const char * const names[] = {
		[COLD] = "cold", [HOT] = "hot", [WRAPPING] = "wrapping",
	};
	struct worker *w;
	int status;

	shared->phase = AFTER;
	syscall(SYS_futex, &shared->phase, 1 /* FUTEX_WAKE */, nr_workers);
	for (w = workers; w < workers + nr_workers; w++) {
		ASSERT_EQ(w->pid, waitpid(w->pid, &status, 0));
		EXPECT_EQ(0, status);
		EXPECT_EQ(0, fpu_wrong(names[w->history], &w->task)) {
			TH_LOG("on CPU %d, %s before suspend", w->cpu,
			       shared->busy ? "busy" : "quiet");
		}
	}
}

/*
 * A version 1 swap header is at 1024 in the first page: version, last page,
 * number of bad pages; its magic ends the page.
 */
static const char *make_swap(const char *device)
{
	static char page[4096];
	__u32 *header = (__u32 *)(page + 1024);
	struct stat stat;
	char resume[32];
	__u64 size = 0;
	int file;

	if (sysconf(_SC_PAGESIZE) != sizeof(page))
		return "pages of 4 KiB";
	file = open(device, O_WRONLY);
	if (file < 0 || fstat(file, &stat) || !S_ISBLK(stat.st_mode) ||
	    ioctl(file, BLKGETSIZE64, &size) || size < 1 << 20)
		return "a block device in FPU_TEST_SWAP";
	header[0] = 1;
	header[1] = size / sizeof(page) - 1;
	memcpy(page + sizeof(page) - 10, "SWAPSPACE2", 10);
	if (write(file, page, sizeof(page)) != sizeof(page) || fsync(file))
		return "FPU_TEST_SWAP to be writable";
	close(file);
	if (swapon(device, 0))
		return "CONFIG_SWAP";
	snprintf(resume, sizeof(resume), "%u:%u", major(stat.st_rdev), minor(stat.st_rdev));
	if (!write_file(POWER "resume", resume))
		return "CONFIG_HIBERNATION";
	return NULL;
}

/*
 * Unlike a wakealarm of the RTC, this one cannot get lost if it comes too early:
 * then the suspend fails with EBUSY.
 */
static bool suspend_until_alarm(const char *state)
{
	struct itimerspec soon = { .it_value.tv_sec = 5 };
	int alarm = timerfd_create(CLOCK_BOOTTIME_ALARM, TFD_CLOEXEC), tries;
	bool done = false;

	for (tries = 0; tries < 3 && !done; tries++) {
		if (timerfd_settime(alarm, 0, &soon, NULL))
			break;
		done = write_file(POWER "state", state);
		if (!done && errno != EBUSY)
			break;
	}
	close(alarm);
	return done;
}

FIXTURE(suspend)
{
	const char *swap;
	char mem_sleep[16];
	char disk[16];
	long warned;
};

FIXTURE_VARIANT(suspend)
{
	const char *state;
	const char *mem_sleep;	/* kind of state "mem" */
	const char *pm_test;	/* come back from there, by a timer */
	const char *disk;	/* kind of state "disk" */
};

/* No CPU goes away, all idle. */
FIXTURE_VARIANT_ADD(suspend, freeze)
{
	.state = "freeze",
};

/* The same, but not idle. */
FIXTURE_VARIANT_ADD(suspend, freeze_platform)
{
	.state = "freeze", .pm_test = "platform",
};

FIXTURE_VARIANT_ADD(suspend, mem)
{
	.state = "mem", .mem_sleep = "deep",
};

/* All CPUs but one go and come. */
FIXTURE_VARIANT_ADD(suspend, mem_processors)
{
	.state = "mem", .mem_sleep = "deep", .pm_test = "processors",
};

/* The state of the last CPU is saved and restored as well. */
FIXTURE_VARIANT_ADD(suspend, mem_core)
{
	.state = "mem", .mem_sleep = "deep", .pm_test = "core",
};

/* The image is written and loaded again, all without a reboot. */
FIXTURE_VARIANT_ADD(suspend, disk)
{
	.state = "disk", .disk = "test_resume",
};

FIXTURE_SETUP(suspend)
{
	const char *missing;
	glob_t alarms;
	int cpus;

	self->warned = fpu_kernel_warned();
	self->swap = NULL;
	chosen(POWER "mem_sleep", self->mem_sleep, sizeof(self->mem_sleep));
	chosen(POWER "disk", self->disk, sizeof(self->disk));
	if (access(POWER "state", W_OK))
		FPU_SKIP_FIXTURE("needs root, and CONFIG_SUSPEND or CONFIG_HIBERNATION");
	if (!offers(POWER "state", variant->state))
		FPU_SKIP_FIXTURE("/sys/power/state does not offer %s", variant->state);
	if (variant->mem_sleep && !offers(POWER "mem_sleep", variant->mem_sleep))
		FPU_SKIP_FIXTURE("/sys/power/mem_sleep does not offer %s: no ACPI S3",
				 variant->mem_sleep);
	if (variant->pm_test && !offers(POWER "pm_test", variant->pm_test))
		FPU_SKIP_FIXTURE("needs CONFIG_PM_DEBUG");
	if (!variant->pm_test && !variant->disk && glob(ALARMS, 0, NULL, &alarms))
		FPU_SKIP_FIXTURE("needs an RTC that can wake the machine, CONFIG_RTC_DRV_CMOS");
	if (!variant->pm_test && !strcmp(variant->state, "freeze") && !acpi_alarm())
		FPU_SKIP_FIXTURE("the RTC cannot wake CPUs that only idle, " ACPI_ALARM);
	if (variant->disk) {
		if (!offers(POWER "disk", variant->disk))
			FPU_SKIP_FIXTURE("/sys/power/disk does not offer %s", variant->disk);
		self->swap = getenv("FPU_TEST_SWAP");
		if (!self->swap)
			FPU_SKIP_FIXTURE("FPU_TEST_SWAP names no block device to use as swap");
		missing = make_swap(self->swap);
		if (missing)
			FPU_SKIP_FIXTURE("needs %s", missing);
		ASSERT_TRUE(write_file(POWER "disk", variant->disk));
	}
	if (variant->mem_sleep)
		ASSERT_TRUE(write_file(POWER "mem_sleep", variant->mem_sleep));
	if (variant->pm_test)
		ASSERT_TRUE(write_file(POWER "pm_test", variant->pm_test));

	for (cpus = 0; fpu_nth_cpu(cpus) >= 0;)
		cpus++;
	nr_workers = NR_HISTORIES * cpus;
	workers = fpu_share(nr_workers * sizeof(*workers));
	shared = fpu_share(sizeof(*shared));
	ASSERT_TRUE(workers && shared);
	/* The one that does not go away, or the kernel would have to move us. */
	ASSERT_EQ(0, fpu_pin(fpu_nth_cpu(cpus - 1)));
}

FIXTURE_TEARDOWN(suspend)
{
	if (variant->pm_test)
		write_file(POWER "pm_test", "none");
	if (self->mem_sleep[0])
		write_file(POWER "mem_sleep", self->mem_sleep);
	if (self->disk[0])
		write_file(POWER "disk", self->disk);
	if (self->swap)
		swapoff(self->swap);
	EXPECT_EQ(self->warned, fpu_kernel_warned()) {
		TH_LOG("The kernel has warned, see its log");
	}
}

/* First armed tasks, then owners of registers are the last that the CPUs see. */
TEST_F_TIMEOUT(suspend, registers, 240)
{
	unsigned int round, rounds = 2 * fpu_rounds();
	int cpus = nr_workers / NR_HISTORIES, suspended = times_suspended(), i;
	long before, after, away = 0;
	bool counts = ts_balance(&before), done;

	for (round = 0; round < rounds; round++) {
		start_workers(_metadata, round & 1);
		/* Be armed, too. */
		for (i = 0; i < 8; i++)
			fpu_sleep();
		if (variant->pm_test || variant->disk)
			done = write_file(POWER "state", variant->state);
		else
			done = suspend_until_alarm(variant->state);
		ASSERT_TRUE(done) {
			TH_LOG("suspend failed: %s", strerror(errno));
		}
		end_workers(_metadata);
	}
	if (!variant->disk)
		EXPECT_EQ(suspended + (int)rounds, times_suspended());

	if (!counts)
		return;
	/* A CPU that was armed as it went comes back with TS clear, uncounted. */
	if (strcmp(variant->state, "freeze"))
		away = (cpus - 1) * rounds;
	ASSERT_TRUE(ts_balance(&after));
	EXPECT_LE(before - cpus, after);
	EXPECT_GE(before + cpus + away, after);
}

TEST_HARNESS_MAIN
