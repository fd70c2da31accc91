// SPDX-License-Identifier: GPL-2.0
/*
 * Kernel code that uses the FPU without kernel_fpu_begin(), as some modules do,
 * in a system call of an armed task: it is warned of, once, and does no harm.
 *
 * This makes the kernel warn, so it is no part of the default run.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"
#include "fpu_switch.h"

#define RAW	"/sys/kernel/debug/x86/fpu_test/"
#define WARNING	"CR0.TS was set: FPU instruction in kernel mode"

#define KLOG_READ_ALL	3

static int warnings(void)
{
	static char log[1 << 20];
	const char *at = log;
	int n = 0, size;

	size = klogctl(KLOG_READ_ALL, log, sizeof(log) - 1);
	if (size < 0)
		return -1;
	log[size] = 0;
	while ((at = strstr(at, WARNING))) {
		at++;
		n++;
	}
	return n;
}

FIXTURE(raw)
{
	struct fpu_stats before;
	struct fpu_pair *pair;
	int file;
};

FIXTURE_VARIANT(raw)
{
	const char *file;
	int size;
};

FIXTURE_VARIANT_ADD(raw, fxsave)
{
	.file = RAW "raw_fxsave", .size = 512,
};

FIXTURE_VARIANT_ADD(raw, clobber)
{
	.file = RAW "raw_clobber", .size = 0,
};

FIXTURE_SETUP(raw)
{
	char mode = fpu_switch_mode();

	self->pair = NULL;
	if (mode != 's' && mode != 'l')
		FPU_SKIP_FIXTURE("needs fpu_switch=sleazy or lazy");
	self->file = open(variant->file, O_RDONLY);
	if (self->file < 0)
		FPU_SKIP_FIXTURE("needs root and X86_SLEAZY_FPU_TEST");
	if (!fpu_stats_read(&self->before))
		FPU_SKIP_FIXTURE("needs a kernel with CONFIG_X86_SLEAZY_FPU_STATS");
	self->pair = fpu_pair_start(fpu_nth_cpu(0), HOT, SIGCHLD);
	ASSERT_TRUE(!!self->pair);
}

FIXTURE_TEARDOWN(raw)
{
}

/* The registers hold the partner's state each time, and the subject's is in memory. */
TEST_F(raw, armed)
{
	struct fpu_stats after;
	struct fpu_image image;
	int i;

	fpu_hold(&self->pair->subject, 0);
	for (i = 0; i < 30; i++) {
		fpu_live(self->pair, &self->pair->subject, COLD);
		ASSERT_EQ(variant->size, syscall(SYS_pread64, self->file, &image, 512, 0));
		/* The partner is the first to look at the registers after that. */
		fpu_slice(self->pair);
		fpu_read(&self->pair->subject);
	}
	ASSERT_TRUE(fpu_stats_read(&after));
	EXPECT_EQ(0, fpu_wrong("subject", &self->pair->subject));
	EXPECT_EQ(0, fpu_pair_stop(self->pair));

	/* Once, whichever came first */
	EXPECT_EQ(1, warnings());
	/* Each time, TS and what the kernel knows of it were repaired together. */
	i = (after.ts_sets - after.ts_clears) - (self->before.ts_sets - self->before.ts_clears);
	EXPECT_LE(-1, i);
	EXPECT_GE(1, i);
}

TEST_HARNESS_MAIN
