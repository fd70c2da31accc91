#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Run the 32-bit builds of the fpu_state tests where the kernel runs such
# programs.

ksft_skip=4
tests="switch signal ptrace"

cd "$(dirname "$0")" || exit 1

echo "TAP version 13"
if ! ./fpu_state_exec_32 > /dev/null 2>&1; then
	echo "1..0 # SKIP the kernel runs no 32-bit programs"
	exit $ksft_skip
fi

number=0
failed=0
echo "1..3"
for test in $tests; do
	number=$((number + 1))
	output=$("./fpu_state_${test}_32" 2>&1)
	result=$?
	echo "$output" | sed 's/^/# /'
	if [ $result -eq 0 ]; then
		echo "ok $number fpu_state_${test}_32"
	else
		echo "not ok $number fpu_state_${test}_32 # exit=$result"
		failed=1
	fi
done
exit $failed
