// SPDX-License-Identifier: GPL-2.0
/*
 * Kernel code that uses the FPU without kernel_fpu_begin(), as some modules do,
 * in a system call of an armed task: it is warned of, once, and does no harm.
 *
 * This makes the kernel warn, so it is no part of the default run.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"
#include "fpu_switch.h"

#define RAW	"/sys/kernel/debug/x86/fpu_test/raw_fxsave"
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

TEST(raw_fxsave)
{
	char mode = fpu_switch_mode();
	struct fpu_stats before, after;
	struct fpu_image image;
	struct fpu_pair *pair;
	int file, i;

	if (mode != 's' && mode != 'l')
		SKIP(return, "needs fpu_switch=sleazy or lazy");
	file = open(RAW, O_RDONLY);
	if (file < 0)
		SKIP(return, "needs root and X86_SLEAZY_FPU_TEST");
	ASSERT_EQ(0, warnings());

	pair = fpu_pair_start(fpu_nth_cpu(0), HOT, SIGCHLD);
	ASSERT_TRUE(!!pair);
	ASSERT_TRUE(fpu_stats_read(&before));
	fpu_hold(&pair->subject, 0);
	for (i = 0; i < 30; i++) {
		fpu_live(pair, &pair->subject, COLD);
		ASSERT_EQ(512, syscall(SYS_pread64, file, &image, 512, 0));
		fpu_read(&pair->subject);
	}
	ASSERT_TRUE(fpu_stats_read(&after));
	EXPECT_EQ(0, fpu_wrong("subject", &pair->subject));
	EXPECT_EQ(0, fpu_pair_stop(pair));

	EXPECT_EQ(1, warnings());
	/* Each time, TS and what the kernel knows of it were repaired together. */
	i = (after.ts_sets - after.ts_clears) - (before.ts_sets - before.ts_clears);
	EXPECT_LE(-1, i);
	EXPECT_GE(1, i);
}

TEST_HARNESS_MAIN
