// SPDX-License-Identifier: GPL-2.0
/* KUnit test of the sLeAZY FPU's counter rule */
#include <linux/module.h>
#include <linux/types.h>

#include <asm/fpu/counter.h>

#include <kunit/test.h>

static void used_slice_counts(struct kunit *test)
{
	unsigned int counter;

	for (counter = 0; counter < 255; counter++)
		KUNIT_EXPECT_EQ_MSG(test, fpu_counter_next(counter, true), counter + 1,
				    "used slice after %u", counter);

	KUNIT_EXPECT_EQ(test, fpu_counter_next(255, true), 0);
}

static void unused_slice_resets(struct kunit *test)
{
	unsigned int counter;

	for (counter = 0; counter <= 255; counter++)
		KUNIT_EXPECT_EQ_MSG(test, fpu_counter_next(counter, false), 0,
				    "unused slice after %u", counter);
}

static void eager_by_mode(struct kunit *test)
{
	unsigned int counter;

	for (counter = 0; counter <= 255; counter++) {
		KUNIT_EXPECT_TRUE_MSG(test, fpu_counter_eager(counter, FPU_EAGER_ALWAYS),
				      "eager at %u", counter);
		KUNIT_EXPECT_EQ_MSG(test, fpu_counter_eager(counter, FPU_EAGER_SLEAZY),
				    counter > 4, "sleazy at %u", counter);
		KUNIT_EXPECT_FALSE_MSG(test, fpu_counter_eager(counter, FPU_EAGER_NEVER),
				       "lazy at %u", counter);
	}
}

/* A task that always uses the FPU: 5 traps, 251 eager slices, over and over */
static void always_used(struct kunit *test)
{
	unsigned char counter = 0;
	unsigned int slice;

	for (slice = 0; slice < 3 * 256; slice++) {
		KUNIT_EXPECT_EQ_MSG(test, fpu_counter_eager(counter, FPU_EAGER_SLEAZY),
				    slice % 256 >= 5, "slice %u", slice);
		counter = fpu_counter_next(counter, true);
	}
	KUNIT_EXPECT_EQ(test, counter, 0);
}

static struct kunit_case fpu_counter_cases[] = {
	KUNIT_CASE(used_slice_counts),
	KUNIT_CASE(unused_slice_resets),
	KUNIT_CASE(eager_by_mode),
	KUNIT_CASE(always_used),
	{}
};

static struct kunit_suite fpu_counter_suite = {
	.name = "x86_fpu_counter",
	.test_cases = fpu_counter_cases,
};

kunit_test_suite(fpu_counter_suite);

MODULE_DESCRIPTION("KUnit test of the sLeAZY FPU's counter rule");
MODULE_LICENSE("GPL");
