/* SPDX-License-Identifier: GPL-2.0 */
/* As much of KUnit as counter_kunit.c needs, in a program */
#ifndef SHIM_KUNIT_TEST_H
#define SHIM_KUNIT_TEST_H

#include <stdio.h>

struct kunit {
	unsigned int failed;
};

struct kunit_case {
	void (*run)(struct kunit *test);
	const char *name;
};

struct kunit_suite {
	const char *name;
	struct kunit_case *test_cases;
};

#define KUNIT_CASE(test)	{ test, #test }

/* Of each case, the first failure is enough. */
#define SHIM_EXPECT(test, a, op, b, ...)				\
do {									\
	long long left = (a), right = (b);				\
									\
	if (left op right || (test)->failed++)				\
		break;							\
	printf("# line %d: %s is %lld, not " #op " %lld ",		\
	       __LINE__, #a, left, right);				\
	printf(__VA_ARGS__);						\
	putchar('\n');							\
} while (0)

#define KUNIT_EXPECT_EQ_MSG(test, a, b, ...)	SHIM_EXPECT(test, a, ==, b, __VA_ARGS__)
#define KUNIT_EXPECT_GE_MSG(test, a, b, ...)	SHIM_EXPECT(test, a, >=, b, __VA_ARGS__)
#define KUNIT_EXPECT_TRUE_MSG(test, a, ...)	SHIM_EXPECT(test, !!(a), ==, 1, __VA_ARGS__)
#define KUNIT_EXPECT_FALSE_MSG(test, a, ...)	SHIM_EXPECT(test, !!(a), ==, 0, __VA_ARGS__)
#define KUNIT_EXPECT_EQ(test, a, b)		SHIM_EXPECT(test, a, ==, b, "%s", "")
#define KUNIT_EXPECT_GT(test, a, b)		SHIM_EXPECT(test, a, >, b, "%s", "")
#define KUNIT_EXPECT_GE(test, a, b)		SHIM_EXPECT(test, a, >=, b, "%s", "")
#define KUNIT_EXPECT_LE(test, a, b)		SHIM_EXPECT(test, a, <=, b, "%s", "")
#define KUNIT_EXPECT_TRUE(test, a)		SHIM_EXPECT(test, !!(a), ==, 1, "%s", "")
#define KUNIT_EXPECT_FALSE(test, a)		SHIM_EXPECT(test, !!(a), ==, 0, "%s", "")

#define kunit_test_suite(suite)						\
int main(void)								\
{									\
	unsigned int failed = 0;					\
	struct kunit_case *c;						\
									\
	for (c = (suite).test_cases; c->run; c++) {			\
		struct kunit test = { 0 };				\
									\
		c->run(&test);						\
		failed += !!test.failed;				\
		printf("%sok - KUnit, in a program: %s\n",		\
		       test.failed ? "not " : "", c->name);		\
	}								\
	return !!failed;						\
}									\
extern int shim_end

#endif /* SHIM_KUNIT_TEST_H */
